"""Launches of unpatched numba-cuda on the stand-in driver, and the records they leave."""

import ctypes
import enum

import numpy as np
import pytest
from cuda.bindings import driver as cu
from numba import cuda, float32, int32, void

from tests.standin.helpers import (
    array_words,
    code,
    good,
    kernel_of,
    launch,
    launch_packed,
    words_of,
)

pytestmark = pytest.mark.standin


@cuda.jit
def take_one(a):
    pass


@cuda.jit
def take_three(a, b, c):
    pass


@cuda.jit
def add(a, b, c):
    i = cuda.grid(1)
    if i < a.size:
        c[i] = a[i] + b[i]


@cuda.jit("void(int32, float64)")
def scalars(i, x):
    pass


@cuda.jit("void(float32[::1])")
def first_item(a):
    a[0] = 1


@cuda.jit("void(float32[::1])", debug=True, opt=False)
def debug_kernel(a):
    a[0] = 1


@cuda.jit("void(float32[::1])", launch_bounds=128)
def bounded(a):
    a[0] = 1


class Colour(enum.IntEnum):
    RED = 3


class Foreign:
    """An object that only has ``__cuda_array_interface__``."""

    def __init__(self, array):
        self.array = array
        self.__cuda_array_interface__ = array.__cuda_array_interface__


def host_arrays():
    base = np.arange(5 * 6 * 7 * 4, dtype=np.float32).reshape(5, 6, 7, 4)
    return {
        "rank-0": np.array(3.0),
        "rank-1": base[0, 0, :, 0].copy(),
        "rank-2-c": base[0, :, :, 0].copy(),
        "rank-2-f": np.asfortranarray(base[0, :, :, 0]),
        "rank-3": base[0].copy(),
        "rank-4-f": np.asfortranarray(base),
        "empty": np.empty((0, 3), np.int16),
        "complex": np.ones(4, np.complex128),
        "bool": np.ones((2, 2), bool),
        "datetime": np.arange(3).astype("datetime64[s]"),
    }


HOST_ARRAYS = host_arrays()
SLICES = {
    "step": np.s_[::2, ::3],
    "reversed": np.s_[::-1, :],
    "transposed": None,
    "column": np.s_[:, 2],
    "one-row": np.s_[1:2, :],
}
SCALARS = {
    "int": (7, (7,)),
    "negative": (-7, (2**64 - 7,)),
    "float": (1.5, (0x3FF8000000000000,)),
    "bool": (True, (1,)),
    "complex": (1 + 2j, (0x3FF0000000000000, 0x4000000000000000)),
    "float32": (np.float32(1.5), (0x3FC00000,)),
    "float16": (np.float16(1.5), (0x3E00,)),
    "int8": (np.int8(-1), (0xFF,)),
    "uint16": (np.uint16(65535), (0xFFFF,)),
    "int32": (np.int32(-2), (0xFFFFFFFE,)),
    "uint64": (np.uint64(2**64 - 1), (2**64 - 1,)),
    "complex64": (np.complex64(1 + 2j), (0x3F800000, 0x40000000)),
    "datetime": (np.datetime64(5, "s"), (5,)),
    "timedelta": (np.timedelta64(6, "ms"), (6,)),
    "enum": (Colour.RED, (3,)),
    "tuple": ((1, 2.0), (1, 0x4000000000000000)),
    "nested": (((1,), (2, (3,))), (1, 2, 3)),
    "empty-tuple": ((), ()),
}


@pytest.mark.parametrize("name", HOST_ARRAYS)
def test_parameters_when_an_array_is_launched_then_they_are_its_words(driver, name):
    array = cuda.to_device(HOST_ARRAYS[name])
    take_one[1, 1](array)
    assert driver.launches()[-1].words == words_of(array)


@pytest.mark.parametrize("name", SLICES)
def test_parameters_when_an_array_is_strided_then_strides_are_bytes(driver, name):
    host = np.arange(60, dtype=np.int16).reshape(6, 10)
    whole = cuda.to_device(host)
    index = SLICES[name]
    view, expected = (whole.T, host.T) if index is None else (whole[index], host[index])
    if (
        name == "transposed"
    ):  # numba-cuda's own transpose copies: the strides are what counts
        whole = view
    offset = expected.ctypes.data - host.ctypes.data if index is not None else 0
    take_one[1, 1](view)
    assert driver.launches()[-1].words == array_words(
        whole.device_ctypes_pointer.value + offset, expected.shape, view.strides, 2
    )


@pytest.mark.parametrize("name", SCALARS)
def test_parameters_when_a_scalar_or_tuple_is_launched_then_bytes_are_its_value(
    driver, name
):
    value, words = SCALARS[name]
    take_one[1, 1](value)
    assert driver.launches()[-1].words == words


def test_parameters_when_a_record_is_launched_then_they_are_one_pointer_to_a_device_copy(
    driver,
):
    dtype = np.dtype([("x", np.int32), ("y", np.float64)], align=True)
    seen = []
    driver.on_launch(
        lambda record: seen.append(driver.read(record.words[0], dtype.itemsize))
    )
    record = np.array([(4, 2.5)], dtype)[0]
    take_one[1, 1](record)
    assert len(driver.launches()[-1].words) == 1
    assert np.frombuffer(seen[0], dtype)[0] == record


def test_parameters_when_a_record_array_is_launched_then_they_are_its_words(driver):
    array = cuda.to_device(np.zeros(3, [("x", np.int32), ("y", np.float64)]))
    take_one[1, 1](array)
    assert driver.launches()[-1].words == words_of(array)


def test_parameters_when_a_foreign_object_is_launched_then_each_costs_one_pointer_query(
    driver,
):
    arrays = [cuda.to_device(np.ones(4, np.float32)) for _ in range(3)]
    foreign = [Foreign(array) for array in arrays]
    take_three[1, 1](*foreign)
    driver.reset_calls()
    take_three[1, 1](*foreign)
    assert driver.launches()[-1].words == sum((words_of(array) for array in arrays), ())
    assert driver.calls()["cuPointerGetAttribute"] == 3


def test_calls_when_three_device_arrays_are_launched_then_three_calls_are_made(
    driver,
):
    arrays = [cuda.to_device(np.ones(4, np.float32)) for _ in range(3)]
    take_three[1, 1](*arrays)
    driver.reset_calls()
    take_three[1, 1](*arrays)
    assert driver.calls() == {
        "cuCtxGetCurrent": 1,
        "cuCtxGetDevice": 1,
        "cuLaunchKernelEx": 1,
    }


def test_record_when_configured_then_it_has_grid_block_shared_memory_and_stream(driver):
    stream = cuda.stream()
    array = cuda.device_array(4, np.float32)
    first_item[(2, 3), (4, 5, 6), stream, 512](array)
    record = driver.launches()[-1]
    assert (record.grid, record.block, record.shared) == ((2, 3, 1), (4, 5, 6), 512)
    assert (
        record.stream == stream.handle.value
        if hasattr(stream.handle, "value")
        else int(stream.handle)
    )
    assert "first_item" in record.function
    assert (record.entry, record.device, record.captured, record.packed) == (
        "cuLaunchKernelEx",
        0,
        False,
        None,
    )


def test_record_when_an_explicit_signature_packs_then_sizes_are_the_formal_types(driver):
    scalars[1, 1](-3, 0.5)
    assert driver.launches()[-1].parameters == (
        (-3).to_bytes(4, "little", signed=True),
        np.float64(0.5).tobytes(),
    )


def test_record_when_the_launch_is_cooperative_then_attribute_2_is_set(driver):
    @cuda.jit(void(float32[::1]))
    def together(a):
        cuda.cg.this_grid().sync()

    array = cuda.device_array(4, np.float32)
    together[2, 32](array)
    assert driver.launches()[-1].attributes[2] == 1


def test_cooperative_launch_when_it_does_not_fit_the_device_then_it_is_too_large(
    driver, function
):
    pointers = (ctypes.c_void_p * 2)(*map(ctypes.addressof, VALUES))
    assert (
        code(
            cu.cuLaunchCooperativeKernel(
                function, 4, 1, 1, 32, 1, 1, 0, 0, ctypes.addressof(pointers)
            )
        )
        == 0
    )
    assert driver.launches()[-1].attributes == {2: 1}
    assert (
        code(
            cu.cuLaunchCooperativeKernel(
                function, 1 << 20, 1, 1, 32, 1, 1, 0, 0, ctypes.addressof(pointers)
            )
        )
        == 720
    )


def test_record_when_launched_by_forall_then_the_grid_covers_the_tasks(driver):
    arrays = [cuda.to_device(np.ones(1000, np.float32)) for _ in range(3)]
    add.forall(1000)(*arrays)
    record = driver.launches()[-1]
    assert record.grid[0] * record.block[0] >= 1000
    assert record.words == sum((words_of(array) for array in arrays), ())


def test_debug_kernel_when_launched_then_it_is_recorded_and_its_error_code_read(driver):
    array = cuda.device_array(4, np.float32)
    debug_kernel[1, 1](array)
    assert driver.launches()[-1].words == words_of(array)
    assert driver.calls().get("cuLibraryGetGlobal", 0) >= 1


def test_host_array_when_launched_then_it_is_copied_there_and_back(driver):
    host = np.arange(4, dtype=np.float32)
    driver.on_launch(
        lambda record: driver.write(record.words[4], np.full(4, 9, np.float32).tobytes())
    )
    with pytest.warns(Warning, match="copy overhead"):
        take_one[1, 1](host)
    assert (host == 9).all()


def test_function_attributes_when_read_then_they_come_from_the_cubin(driver):
    @cuda.jit(void(float32[::1]))
    def with_shared(a):
        tile = cuda.shared.array(96, float32)
        tile[cuda.threadIdx.x] = a[cuda.threadIdx.x]
        cuda.syncthreads()
        a[0] = tile[95 - cuda.threadIdx.x]

    overload = next(iter(with_shared.overloads.values()))
    assert overload.shared_mem_per_block == 96 * 4
    assert overload.regs_per_thread > 0
    assert next(iter(bounded.overloads.values())).max_threads_per_block == 128


# ---- what the driver refuses ----


@pytest.fixture
def kernel(driver):
    cuda.current_context()
    return kernel_of(scalars)


@pytest.fixture
def function(kernel):
    return good(cu.cuKernelGetFunction(kernel))


VALUES = (ctypes.c_int32(5), ctypes.c_double(2.0))
PACKED = bytes(ctypes.c_int32(5)) + bytes(4) + bytes(ctypes.c_double(2.0))


def test_launch_when_given_pointers_then_each_parameter_has_its_bytes(driver, function):
    assert launch(function, VALUES) == 0
    record = driver.launches()[-1]
    assert record.parameters == tuple(map(bytes, VALUES))
    assert (record.entry, record.packed, record.handle) == (
        "cuLaunchKernel",
        None,
        int(function),
    )


def test_launch_when_given_the_kernel_then_it_runs_in_the_current_context(driver, kernel):
    assert launch(cu.CUfunction(int(kernel)), VALUES) == 0
    assert driver.launches()[-1].parameters == tuple(map(bytes, VALUES))


def test_packed_launch_when_exact_then_buffer_and_parameters_are_recorded(driver, function):
    assert launch_packed(function, PACKED) == 0
    record = driver.launches()[-1]
    assert (record.packed, record.short) == (PACKED, False)
    assert record.parameters == tuple(map(bytes, VALUES))


def test_packed_launch_when_a_byte_too_long_then_it_is_refused(driver, function):
    assert launch_packed(function, PACKED + b"\0") == 701
    assert driver.launches() == []


def test_packed_launch_when_too_short_then_it_is_accepted_and_marked(driver, function):
    assert launch_packed(function, PACKED[:-1]) == 0
    assert driver.launches()[-1].short


REFUSED = {
    "empty-grid": {"grid": (0, 1, 1)},
    "empty-block": {"block": (0, 1, 1)},
    "block-too-large": {"block": (1025, 1, 1)},
    "block-too-deep": {"block": (1, 1, 65)},
    "grid-too-wide": {"grid": (1, 65536, 1)},
    "shared-over-48-kb": {"shared": 49153},
}


@pytest.mark.parametrize("name", REFUSED)
def test_launch_when_its_shape_is_impossible_then_it_is_an_invalid_value(
    driver, function, name
):
    assert launch(function, VALUES, **REFUSED[name]) == 1
    assert driver.launches() == []


def test_launch_when_the_block_exceeds_the_bounds_then_it_is_an_invalid_value(driver):
    array = cuda.device_array(4, np.float32)
    bounded[1, 128](array)
    with pytest.raises(Exception, match=r"\b1\b|INVALID_VALUE"):
        bounded[1, 129](array)


def test_launch_when_dynamic_shared_memory_is_opted_in_then_more_than_48_kb_pass(driver):
    @cuda.jit("void(int32, float64)")
    def own(i, x):  # its attributes stay changed
        pass

    cuda.current_context()
    attribute = cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    kernel = kernel_of(own)
    function = good(cu.cuKernelGetFunction(kernel))
    good(cu.cuKernelSetAttribute(attribute, 80_000, kernel, 0))
    assert [launch(function, VALUES, shared=size) for size in (80_000, 80_001)] == [0, 1]
    good(cu.cuFuncSetAttribute(function, attribute, 100_000))
    good(
        cu.cuKernelSetAttribute(attribute, 49_152, kernel, 0)
    )  # the function's own value stays
    assert [launch(function, VALUES, shared=size) for size in (100_000, 100_001)] == [0, 1]
    assert code(cu.cuFuncSetAttribute(function, attribute, 300_000)) == 1


def test_launch_when_the_handle_is_none_of_the_drivers_then_it_is_invalid(driver, function):
    assert launch(cu.CUfunction(0x1234), VALUES) == 400
    assert launch(function, VALUES, stream=0x1230) == 400


def test_param_info_when_asked_then_kernel_and_function_say_offset_and_size(
    driver, kernel, function
):
    expected = [(0, 4), (8, 8)]
    assert [
        tuple(good(cu.cuKernelGetParamInfo(kernel, index))) for index in (0, 1)
    ] == expected
    assert [
        tuple(good(cu.cuFuncGetParamInfo(function, index))) for index in (0, 1)
    ] == expected
    assert code(cu.cuKernelGetParamInfo(kernel, 2)) == 1
    assert good(cu.cuKernelGetParamCount(kernel)) == 2


def test_signature_list_when_launched_then_the_first_that_converts_is_taken(driver):
    @cuda.jit([void(int32), void(float32)])
    def either(x):
        pass

    either[1, 1](np.float32(1))
    assert driver.launches()[-1].parameters == (np.float32(1).tobytes(),)
