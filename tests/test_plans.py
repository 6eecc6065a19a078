"""A plan is used as long as it is right, and no longer."""

import contextlib
import threading

import numpy as np
import pytest
from cuda.bindings import driver as cu
from numba import cuda, float32, int32

import stridedview
from tests.launching import HIT, calls_of, caught, recorded, sensitive_kernels, tensor
from tests.standin.helpers import good, words_of

pytestmark = pytest.mark.standin


def fresh(**options):
    """Return a kernel of one argument without overloads."""

    @cuda.jit(**options)
    def take(a):
        pass

    return take


def vector(size=4, dtype=np.float32):
    return cuda.to_device(np.zeros(size, dtype))


# ---- hits and misses ----


def test_launch_when_a_signature_is_seen_again_then_only_the_driver_is_called(enabled):
    kernel, array = fresh(), tensor(vector())
    kernel[1, 1](array)
    assert calls_of(lambda: kernel[1, 1](array)) == HIT
    other = tensor(vector(7))
    assert calls_of(lambda: kernel[1, 1](other)) == HIT
    assert enabled.launches()[-1].words[2:6] == (7, 4, other.data_ptr(), 7)


def test_launch_when_signatures_alternate_then_each_finds_its_plan(enabled):
    kernel = fresh()
    floats, integers = vector(), vector(4, np.int32)
    for array in (floats, integers):
        kernel[1, 1](array)
    first, second = [recorded(kernel, (array,)).function for array in (floats, integers)]
    assert first != second
    for _ in range(2):
        for array, function in (
            (floats, first),
            (integers, second),
            (7, None),
            (1.5, None),
        ):
            record = recorded(kernel, (array,))
            assert function in (None, record.function)
    for value in (floats, integers, 7, 1.5):
        assert calls_of(lambda value=value: kernel[1, 1](value))["cuLaunchKernel"] == 1
    assert len(kernel.overloads) == 4


def test_launch_when_another_configuration_is_used_then_the_plan_is_shared(enabled):
    kernel, array = fresh(), vector()
    kernel[1, 1](array)
    plan = kernel[1, 1].last_plan
    assert calls_of(lambda: kernel[2, 32](array))["cuLaunchKernel"] == 1
    assert kernel[2, 32].last_plan is plan
    record = recorded(kernel, (array,), (3, 64))
    assert (record.grid, record.block) == ((3, 1, 1), (64, 1, 1))


# ---- contexts ----


def test_launch_when_a_fresh_thread_has_no_context_then_it_is_launched_there(enabled):
    kernel, array = fresh(), vector()
    for first in (True, False):
        found = []

        def work(found=found):
            assert int(good(cu.cuCtxGetCurrent()) or 0) == 0
            kernel[1, 1](array)
            found.append(enabled.launches()[-1])

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert found, "the launch in the thread failed"
        assert found[0].words == words_of(array)
        if not first:
            assert found[0].entry == "cuLaunchKernel"


def test_launch_when_a_thread_without_context_launches_numbers_then_it_works(enabled):
    kernel = fresh()
    kernel[1, 1](7)
    errors = []

    def work():
        try:
            kernel[1, 1](8)
        except BaseException as error:  # noqa: BLE001
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert errors == []
    assert enabled.launches()[-1].words == (8,)


# ---- overloads ----


def test_launch_when_recompiled_then_the_new_kernel_is_launched(enabled):
    kernel, array = fresh(), vector()
    before = recorded(kernel, (array,))
    kernel.recompile()
    after = recorded(kernel, (array,))
    assert after.handle != before.handle
    compiled = next(iter(kernel.overloads.values()))
    assert kernel[1, 1].last_plan is not None
    assert after.function == compiled._codelibrary.get_cufunc().name


def test_launch_when_a_closer_overload_is_added_then_it_is_taken(enabled):
    @cuda.jit([(float32,)])
    def take(a):
        pass

    take._specialized = False
    take._can_compile = False
    assert recorded(take, (np.int16(3),)).parameters == (np.float32(3).tobytes(),)
    take._can_compile = True
    take.compile((int32,))
    take._can_compile = False
    # As Numba resolves it: int16 to int32 is a promotion, to float32 a conversion.
    assert recorded(take, (np.int16(3),)).parameters == (np.int32(3).tobytes(),)


def test_launch_when_compiling_is_disabled_then_a_new_signature_is_refused(enabled):
    kernel = fresh()
    kernel[1, 1](vector())
    kernel.disable_compile()
    with caught((TypeError, RuntimeError), "."):
        kernel[1, 1](vector(4, np.int64))
    array = vector()
    assert recorded(kernel, (array,)).words == words_of(array)


@pytest.mark.parametrize(
    "signatures", [["int32", "float64"], ["float64", "int32"]], ids=" ".join
)
@pytest.mark.parametrize("value", [5, 2.5, np.int16(5), np.float32(2.5)], ids=repr)
def test_launch_when_a_kernel_has_several_signatures_then_it_resolves_as_numba(
    driver, signatures, value
):
    def take(a):
        pass

    kernels = [cuda.jit([f"void({each})" for each in signatures])(take) for _ in range(2)]
    expected = recorded(kernels[0], (value,))
    with stridedview.enabled():
        for _ in range(2):
            assert recorded(kernels[1], (value,)).parameters == expected.parameters


# ---- guards ----


def test_callbacks_when_added_later_and_removed_then_they_run_as_long(enabled):
    kernel, array = fresh(), vector()
    kernel[1, 1](array)
    kernel[1, 1](array)
    seen = []
    configuration = kernel[1, 1]
    configuration.pre_launch_callbacks.append(lambda *found: seen.append(found))
    kernel[1, 1](array)
    assert [found[1] for found in seen] == [configuration]
    assert seen[0][0] is next(iter(kernel.overloads.values()))
    configuration.pre_launch_callbacks.clear()
    assert calls_of(lambda: kernel[1, 1](array)) == HIT
    assert len(seen) == 1


def test_callbacks_when_they_run_then_they_see_the_arguments(enabled):
    kernel, array = fresh(), vector()
    seen = []
    configuration = kernel[1, 1]
    configuration.pre_launch_callbacks = [lambda _, found: seen.append(found.args)]
    configuration(array)
    assert seen == [(array,)]
    assert configuration.args is None


def test_callbacks_when_set_as_a_tuple_then_later_ones_are_not_lost(enabled):
    configuration = fresh()[1, 1]
    configuration.pre_launch_callbacks = ()
    seen = []
    configuration.pre_launch_callbacks.append(lambda *found: seen.append(found))
    configuration(vector())
    assert len(seen) == 1


class Doubling:
    """An extension that passes twice each number."""

    def prepare_args(self, ty, val, **_):
        return ty, val * 2 if isinstance(val, int) else val


def test_extensions_when_the_kernel_has_them_then_they_map_the_arguments(enabled):
    kernel = fresh(extensions=[Doubling()])
    for _ in range(2):
        assert recorded(kernel, (4,)).words == (8,)


def test_extensions_when_added_later_then_they_are_heard_as_numba_hears_them(driver):
    found = {}
    for ours in (False, True):
        options = []
        kernel = fresh(extensions=options)
        with stridedview.enabled() if ours else contextlib.nullcontext():
            before = recorded(kernel, (4,)).words
            next(iter(kernel.overloads.values())).extensions.append(Doubling())
            found[ours] = before, recorded(kernel, (4,)).words
            assert found[ours][0] == (4,)
    assert found[True] == found[False] == ((4,), (8,))


@pytest.fixture
def sensitive():
    """Give a kernel that is compiled anew for each configuration."""

    @cuda.jit
    def sensitive(a):
        pass

    with sensitive_kernels():
        yield sensitive


def test_launch_when_a_kernel_is_sensitive_to_its_configuration_then_each_has_its_own(
    enabled, sensitive
):
    array = vector()
    handles = {}
    for block in (32, 64, 32, 64):
        record = recorded(sensitive, (array,), (1, block))
        assert record.block == (block, 1, 1)
        assert handles.setdefault(block, record.handle) == record.handle
    assert handles[32] != handles[64]
    assert calls_of(lambda: sensitive[1, 32](array)) == HIT
    # A stream does not count.
    assert recorded(sensitive, (array,), (1, 64, cuda.stream())).handle == handles[64]


def test_launch_when_a_sensitive_kernels_configuration_changes_then_so_does_the_kernel(
    enabled, sensitive
):
    array = vector()
    handles = {
        block: recorded(sensitive, (array,), (1, block)).handle for block in (32, 64)
    }
    configuration = sensitive[1, 32]
    prepared = stridedview.prepare(configuration, array)
    for block in (64, 32):
        configuration.blockdim = (block, 1, 1)
        for launch in (prepared, lambda: configuration(array)):
            enabled.clear()
            launch()
            (record,) = enabled.launches()
            assert (record.block[0], record.handle) == (block, handles[block])
            assert calls_of(launch) == HIT


# ---- faults ----


@pytest.mark.parametrize("code", [400, 201, 709])
def test_launch_when_the_function_is_stale_then_it_is_tried_once_more_with_a_new_plan(
    enabled, code
):
    kernel, array = fresh(), vector()
    kernel[1, 1](array)
    stale = kernel[1, 1].last_plan
    enabled.fail_next("cuLaunchKernel", code)
    kernel[1, 1](array)
    assert kernel[1, 1].last_plan is not stale
    assert enabled.launches()[-1].words == words_of(array)
    enabled.fail_none()
    assert calls_of(lambda: kernel[1, 1](array)) == HIT


@pytest.mark.parametrize("code", [1, 700, 719, 2])
def test_launch_when_the_driver_refuses_then_the_error_is_of_every_kind(enabled, code):
    from cuda.core._utils.cuda_utils import CUDAError

    kernel, array = fresh(), vector()
    kernel[1, 1](array)
    enabled.fail_next("cuLaunchKernel", code, times=0)
    enabled.reset_calls()
    with pytest.raises(CUDAError) as raised:
        kernel[1, 1](array)
    assert isinstance(raised.value, RuntimeError)
    assert raised.value.code == code
    # Retried at most once, and only where something could have been mended.
    assert enabled.calls()["cuLaunchKernel"] == 1
    enabled.fail_none()
    kernel[1, 1](array)
    assert enabled.launches()[-1].words == words_of(array)


def test_launch_when_the_context_cannot_be_asked_then_the_drivers_error_comes(enabled):
    view = stridedview.from_any(vector())
    failed = []
    for after in range(8):
        # As when a kernel before it crashed, at each of the questions of a first launch.
        kernel = fresh()
        enabled.fail_next("cuCtxGetId", 700, after=after)
        try:
            kernel[1, 1](view)
        except stridedview.DriverError as error:
            failed.append(error.code)
        enabled.fail_none()
        kernel[1, 1](view)
    assert failed
    assert set(failed) == {700}


def test_launch_when_the_function_stays_stale_then_it_fails_after_one_retry(enabled):
    kernel, array = fresh(), vector()
    kernel[1, 1](array)
    enabled.fail_next("cuLaunchKernel", 400, times=0)
    enabled.reset_calls()
    with pytest.raises(RuntimeError, match=r"400|INVALID_HANDLE"):
        kernel[1, 1](array)
    assert enabled.calls()["cuLaunchKernel"] == 2
