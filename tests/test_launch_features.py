"""What numba-cuda can do with a kernel, through our way: the same is recorded."""

import contextlib

import numpy as np
import pytest
from numba import cuda, float32, types, void

import stridedview
from tests.launching import (
    HIT,
    Foreign,
    calls_of,
    caught,
    parameters,
    pointer_of,
    recorded,
    tensor,
)  # fmt: skip
from tests.standin.helpers import words_of

pytestmark = pytest.mark.standin


@cuda.jit
def take(a):
    pass


def matrix(order):
    return cuda.to_device(np.zeros((3, 4), np.float32, order))


def fresh(**options):
    """Return a kernel of one argument without overloads."""

    @cuda.jit(**options)
    def kernel(a):
        pass

    return kernel


def vector(size=4, dtype=np.float32):
    return cuda.to_device(np.zeros(size, dtype))


def same_but_for_the_call(ours, theirs):
    """Assert that two records differ in nothing but how the driver was called."""
    for name in ("grid", "block", "shared", "stream", "attributes", "parameters"):
        assert getattr(ours, name) == getattr(theirs, name), name


# ---- forall and specialize ----


@pytest.mark.parametrize("options", [{}, {"tpb": 64}, {"sharedmem": 512}], ids=str)
def test_forall_when_launched_then_it_is_recorded_as_numbas(driver, options):
    array = vector(1000)
    fresh().forall(1000, **options)(array)
    theirs = driver.launches()[-1]
    with stridedview.enabled():
        kernel = fresh()
        for given in (array, tensor(array), array):
            kernel.forall(1000, **options)(given)
            same_but_for_the_call(driver.launches()[-1], theirs)


def test_forall_when_a_signature_is_seen_again_then_only_the_launch_is_called(enabled):
    kernel, array = fresh(), tensor(vector(1000))
    for _ in range(2):
        kernel.forall(1000)(array)
    counts = calls_of(lambda: kernel.forall(1000)(array))
    assert counts["cuLaunchKernel"] == 1
    assert set(counts) <= {"cuCtxGetId", "cuLaunchKernel"}


def test_forall_when_there_are_no_tasks_then_nothing_is_launched(enabled):
    assert fresh().forall(0)(vector()) is None
    assert enabled.launches() == []
    with pytest.raises(ValueError, match="negative"):
        fresh().forall(-1)


def test_forall_when_a_stream_is_given_then_it_is_launched_there(enabled):
    stream = cuda.stream()
    fresh().forall(10, stream=stream)(vector())
    assert enabled.launches()[-1].stream == int(stream.handle)


def test_forall_when_recompiled_then_the_new_kernel_is_launched(enabled):
    kernel, array = fresh(), vector()
    kernel.forall(10)(array)
    kernel.compile((types.int64,))
    kernel.forall(10)(array)
    assert enabled.launches()[-1].words == words_of(array)


def test_specialize_when_given_any_producer_then_the_kernel_takes_the_others_too(enabled):
    array = vector()
    for given in (array, tensor(array), stridedview.from_any(array)):
        special = fresh().specialize(given)
        assert special.specialized
        for passed in (array, tensor(array)):
            assert recorded(special, (passed,)).words == words_of(array)
        assert special.specialize.__self__ is special


def test_specialize_when_done_twice_then_it_is_the_same_kernel(enabled):
    kernel, array = fresh(), vector()
    assert kernel.specialize(array) is kernel.specialize(tensor(array))


# ---- kinds of kernels ----


def test_cooperative_kernel_when_launched_then_attribute_2_is_set(driver):
    def together(a):
        cuda.cg.this_grid().sync()

    array = vector()
    theirs = recorded(cuda.jit(together), (array,), (2, 32))
    with stridedview.enabled():
        kernel = cuda.jit(together)
        for given in (array, tensor(array), tensor(array)):
            ours = recorded(kernel, (given,), (2, 32))
            same_but_for_the_call(ours, theirs)
            assert ours.attributes == {2: 1}
        assert ours.packed is not None


def test_cooperative_kernel_when_the_grid_is_too_large_then_both_numbers_are_told(enabled):
    @cuda.jit
    def together(a):
        cuda.cg.this_grid().sync()

    array = vector()
    together[1, 32](array)
    (compiled,) = together.overloads.values()
    most = compiled.max_cooperative_grid_blocks(32)
    # Numba itself raises a ValueError with both numbers.
    with caught(ValueError, rf"TOO_LARGE: .*{1 << 20} blocks.* limit.* {most}$"):
        together[1 << 20, 32](array)
    assert recorded(together, (array,), (1, 32)).words == words_of(array)


def test_debug_kernel_when_launched_then_its_error_code_is_read(enabled):
    kernel = fresh(debug=True, opt=False)
    array = tensor(vector())
    for _ in range(2):
        calls = calls_of(lambda: kernel[1, 1](array))
        assert calls["cuMemcpyDtoH_v2"] >= 1
        assert enabled.launches()[-1].words[4] == array.data_ptr()


def test_debug_kernel_when_it_raises_then_the_message_is_numbas(driver):
    def kernel(a):
        if a[0]:
            raise ValueError("too small")

    messages = {}
    for ours in (False, True):
        compiled = cuda.jit(debug=True, opt=False)(kernel)
        array = vector()
        compiled[1, 1](array)
        overload = next(iter(compiled.overloads.values()))
        function = overload._codelibrary.get_cufunc()
        memory, size = function.module.get_global_symbol(function.name + "__errcode__")
        assert size == 4
        # The exception's code, as the kernel would leave it.
        code = next(iter(overload.call_helper.exceptions))
        driver.on_launch(
            lambda _, code=code, memory=memory: driver.write(
                int(
                    memory.handle.value
                    if hasattr(memory.handle, "value")
                    else memory.handle
                ),
                code.to_bytes(4, "little"),
            )
        )
        with stridedview.enabled() if ours else contextlib.nullcontext():
            with pytest.raises(ValueError, match="too small") as raised:
                compiled[1, 1](array)
            messages[ours] = str(raised.value)
        driver.on_launch(None)
    assert messages[True] == messages[False]
    assert "tid=[0, 0, 0] ctaid=[0, 0, 0]" in messages[True]


def test_attributes_when_read_after_a_fast_launch_then_they_are_numbas(driver):
    def body(a):
        tile = cuda.shared.array(96, float32)
        tile[cuda.threadIdx.x] = a[cuda.threadIdx.x]
        cuda.syncthreads()
        a[0] = tile[95 - cuda.threadIdx.x]

    array = vector(96)
    theirs, ours = cuda.jit(body), cuda.jit(body)
    theirs[1, 96](array)
    with stridedview.enabled():
        ours[1, 96](tensor(array))
        ours[1, 96](tensor(array))
        for name in ("get_regs_per_thread", "get_shared_mem_per_block",
                     "get_const_mem_size", "get_local_mem_per_thread",
                     "get_max_threads_per_block"):  # fmt: skip
            found = [list(getattr(kernel, name)().values()) for kernel in (ours, theirs)]
            assert found[0] == found[1], name
        assert next(iter(ours.inspect_asm().values())).count(".entry") == 1


def test_kernel_when_it_is_a_classs_attribute_then_only_the_class_has_it_to_launch(enabled):
    class Owner:
        kernel = take

    array = vector()
    Owner.kernel[1, 1](array)
    assert enabled.launches()[-1].words == words_of(array)
    # Of an object it is a bound method, as in Numba: no kernel takes an object.
    with caught(TypeError, "'method' object is not subscriptable"):
        Owner().kernel[1, 1]


# ---- shared memory ----


def test_shared_memory_when_given_without_a_stream_then_it_is_passed(enabled):
    array = vector()
    for stream in (0, None):
        record = recorded(take, (array,), (1, 1, stream, 4096))
        assert (record.shared, record.stream) == (4096, 0)


def test_shared_memory_when_over_48_kb_then_it_is_opted_in_once(enabled):
    kernel, array = fresh(), vector()
    configuration = kernel[1, 32, 0, 100_000]
    calls = calls_of(lambda: configuration(array))
    assert calls["cuFuncSetAttribute"] == 1
    assert enabled.launches()[-1].shared == 100_000
    assert calls_of(lambda: configuration(array)) == HIT
    # Another size of the same kernel needs no more.
    kernel[1, 32, 0, 150_000](array)
    assert calls_of(lambda: kernel[1, 32, 0, 150_000](array)) == HIT


def test_shared_memory_when_over_the_limit_then_the_error_has_both_numbers(enabled):
    kernel, array = fresh(), vector()
    kernel[1, 32](array)
    with pytest.raises(RuntimeError, match=r"300000 bytes.*232448|232448.*300000"):
        kernel[1, 32, 0, 300_000](array)
    assert enabled.launches()[-1].shared == 0
    assert recorded(kernel, (array,), (1, 32)).words == words_of(array)


# ---- numbers and sizes of arguments ----


def test_launch_when_a_kernel_takes_nothing_then_nothing_is_passed(driver):
    def nothing():
        pass

    theirs = recorded(cuda.jit(nothing), ())
    with stridedview.enabled():
        kernel = cuda.jit(nothing)
        same_but_for_the_call(recorded(kernel, ()), theirs)
        assert calls_of(lambda: kernel[1, 1]()) == HIT


def wide(count):
    """Return a kernel of so many arguments."""
    names = ", ".join(f"a{index}" for index in range(count))
    scope = {}
    exec(f"def wide({names}):\n    pass\n", scope)
    return cuda.jit(scope["wide"])


@pytest.mark.parametrize("count", [30, 70])
def test_launch_when_a_kernel_takes_many_arguments_then_all_are_numbas(driver, count):
    values = [vector(size) for size in range(1, 1 + count // 2)] + list(range(count // 2))
    expected = parameters(wide(count), values)
    with stridedview.enabled():
        kernel = wide(count)
        given = [tensor(value) if not isinstance(value, int) else value for value in values]
        for _ in range(2):
            assert parameters(kernel, given) == expected
        assert calls_of(lambda: kernel[1, 1](*given)) == HIT


def test_launch_when_the_parameters_exceed_4096_bytes_then_all_are_numbas(driver):
    array = cuda.to_device(np.zeros((2, 2, 2, 2), np.float32))
    expected = parameters(wide(45), [array] * 45)
    assert len(expected) == 45 * 13
    with stridedview.enabled():
        kernel = wide(45)
        for _ in range(2):
            record = recorded(kernel, [tensor(array)] * 45)
            assert record.parameters == expected
        assert len(record.packed) == 45 * 13 * 8 > 4096


def test_launch_when_there_are_more_items_than_a_plan_takes_then_numba_passes_them(enabled):
    values = tuple(range(1100))
    for _ in range(2):
        assert recorded(take, (values,)).words == values


def test_launch_when_the_parameters_exceed_the_limit_then_the_largest_is_named(enabled):
    array = cuda.to_device(np.zeros((1,) * 8, np.float32))
    kernel = wide(3)
    with caught(ValueError, r"argument 2 \(33600 bytes\)") as raised:
        kernel[1, 1](1, (array,) * 200, array)
    assert raised is None
    assert not kernel.overloads
    assert recorded(kernel, (1, (array,) * 2, 2)).words[0] == 1


def test_launch_when_parameters_need_padding_then_the_buffer_ends_with_the_last(driver):
    values = (np.int8(1), np.float64(2), np.int16(3), np.complex64(4j), np.bool_(True))
    expected = parameters(wide(5), values)
    with stridedview.enabled():
        record = recorded(wide(5), values)
    assert record.parameters == expected
    # 1, padding to 8, 8, 2, padding to 4, two of 4, 1.
    assert len(record.packed) == 29
    assert not record.short


# ---- explicit signatures that fit ----

FITTING = {
    "C into A": ("void(float32[:])", lambda: vector()),
    "strided into A": ("void(float32[:])", lambda: vector(8)[::2]),
    "C into C": ("void(float32[::1])", lambda: vector()),
    "F into F": ("void(float32[::1,:])", lambda: matrix("F")),
    "int into float64": ("void(float64)", lambda: 7),
    "int into int8": ("void(int8)", lambda: -7),
    "int into uint64": ("void(uint64)", lambda: 2**64 - 1),
    "int into complex128": ("void(complex128)", lambda: 7),
    "float into float32": ("void(float32)", lambda: 1.5),
    "float into float16": ("void(float16)", lambda: 0.1),
    "float into complex64": ("void(complex64)", lambda: 1.5),
    "float32 into float64": ("void(float64)", lambda: np.float32(0.1)),
    "int64 into int32": ("void(int32)", lambda: np.int64(7)),
    "bool into bool": ("void(boolean)", lambda: True),
    "bool into int32": ("void(int32)", lambda: True),
    "pointer": ("void(CPointer(float32))", lambda: 4096 + 256),
    "tuple": ("void(Tuple([float32, int8]))", lambda: (1, 2)),
}  # fmt: skip


@pytest.mark.parametrize("case", FITTING)
def test_explicit_signature_when_the_argument_fits_then_it_is_packed_as_numba_does(
    driver, case
):
    signature, make = FITTING[case]
    value = make()
    expected = parameters(cuda.jit(signature)(take.py_func), (value,))
    with stridedview.enabled():
        kernel = cuda.jit(signature)(take.py_func)
        assert kernel.specialized
        for _ in range(2):
            assert parameters(kernel, (value,)) == expected


def test_explicit_signature_when_a_size_1_axis_has_any_stride_then_it_fits_c(enabled):
    kernel = cuda.jit(void(float32[:, ::1]))(take.py_func)
    array = vector(4)
    odd = Foreign(pointer_of(array), (1, 4), np.float32, (9999, 4), array)
    assert recorded(kernel, (odd,)).words[2:] == (4, 4, pointer_of(array), 1, 4, 9999, 4)


def test_explicit_signature_when_only_signedness_differs_then_it_warns_or_is_refused(
    driver,
):
    kernel = cuda.jit("void(uint32[:])")(take.py_func)
    array = vector(4, np.int32)
    with stridedview.enabled():
        with pytest.warns(Warning, match="argument 1 'a': .*int32.*uint32"):
            kernel[1, 1](array)
        assert driver.launches()[-1].words == words_of(array)
    with stridedview.enabled(strict=True), caught(TypeError, "argument 1 'a'.*uint32"):
        kernel[1, 1](array)
