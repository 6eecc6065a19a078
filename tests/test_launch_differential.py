"""The bytes that a launch hands the driver are those of numba-cuda, unpatched."""

import collections
import enum
import math

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numba import cuda, types
from numba.cuda.np import numpy_support

import stridedview
from tests import standin
from tests.launching import (
    PRODUCERS,
    Foreign,
    memory_view,
    parameters,
    pointer_of,
    recorded,
    twins,
)

pytestmark = pytest.mark.standin


class Colour(enum.IntEnum):
    RED = 3
    BLUE = -4


class Weight(enum.Enum):
    LIGHT = 1.5
    HEAVY = 2.5


Point = collections.namedtuple("Point", "x y")
Pair = collections.namedtuple("Pair", "array scale")

BASE = np.arange(5 * 6 * 7 * 4, dtype=np.float32).reshape(5, 6, 7, 4)
RECORD = np.dtype([("x", np.int32), ("y", np.float64)], align=True)


def device(host):
    """Return a device array of a host array's layout, gaps and all."""
    base = host
    while isinstance(base.base, np.ndarray):
        base = base.base
    if base is host or not host.size:
        return cuda.to_device(host)
    whole = cuda.device_array(base.nbytes, np.uint8)
    address = pointer_of(whole) + host.ctypes.data - base.ctypes.data
    return cuda.cudadrv.devicearray.DeviceNDArray(
        host.shape, host.strides, host.dtype, gpu_data=_Held(whole, address, base.nbytes)
    )


class _Held(cuda.driver.MemoryPointer):
    """Memory inside another array's, which it keeps."""

    def __init__(self, owner, address, size):
        super().__init__(cuda.current_context(), address, size, owner=owner)


LAYOUTS = {
    "rank 0": np.array(3.0),
    "rank 1": BASE[0, 0, :, 0].copy(),
    "rank 2 in C": BASE[0, :, :, 0].copy(),
    "rank 2 in F": np.asfortranarray(BASE[0, :, :, 0]),
    "rank 3": BASE[0].copy(),
    "rank 4 in F": np.asfortranarray(BASE),
    "empty": np.empty((0, 3), np.int16),
    "one item": np.ones((1, 1), np.int8),
    "every second": BASE.reshape(-1)[::2],
    "offset": BASE.reshape(-1)[5:25],
    "offset and strided": BASE[1:, ::2, 1, 1:],
    "transposed": BASE[0].T,
    "permuted": BASE.transpose(2, 0, 3, 1),
    "a column": BASE[0, 0, :, 2],
    "broadcast": np.broadcast_to(BASE[0, 0, 0, :], (3, 4)),
}
TORCH = {"torch", "parameter", "view of a tensor"}
# Strides that torch cannot say.
REVERSED = {
    "reversed": BASE.reshape(-1)[::-1],
    "reversed rows": BASE[0, ::-1, :, 0],
    "reversed in steps": BASE[0, :, ::-2, 0],
}
DTYPES = [
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float16", "float32", "float64", "complex64", "complex128",
]  # fmt: skip
SCALARS = {
    "int": 7,
    "negative int": -7,
    "largest int": 2**63 - 1,
    "smallest int": -(2**63),
    "float": 1.5,
    "infinite": float("inf"),
    "true": True,
    "false": False,
    "complex": 1 - 2j,
    "datetime": np.datetime64(5, "s"),
    "datetime in days": np.datetime64("2024-02-29"),
    "no time": np.datetime64("NaT", "ns"),
    "timedelta": np.timedelta64(-6, "ms"),
    "int enum": Colour.BLUE,
    "float enum": Weight.HEAVY,
    "empty tuple": (),
    "tuple": (1, 2.0),
    "tuple of one kind": (1, 2, 3),
    "nested tuple": ((1,), (2.5, (3, True))),
    "named tuple": Point(1, 2.5),
    "nested named tuple": Point(Point(1, np.int8(2)), (3,)),
    "tuple of NumPy scalars": (np.int16(3), np.float32(0.5), np.complex64(1j)),
    "tuple of bools": (np.bool_(True), False, 3),
    "tuple of enums": (Colour.RED, 1),
    "tuple of times": (np.timedelta64(3, "us"), 3),
    **{
        f"NumPy {name}": np.dtype(name).type(value)
        for name, value in [
            ("bool", True), ("int8", -1), ("int16", -300), ("int32", -70000),
            ("int64", -(2**40)), ("uint8", 255), ("uint16", 65535), ("uint32", 2**32 - 1),
            ("uint64", 2**64 - 1), ("float16", 0.1), ("float32", 0.1), ("float64", 0.1),
            ("complex64", 1 + 0.1j), ("complex128", 1 + 0.1j),
        ]
    },
}  # fmt: skip


@pytest.fixture
def one(driver):
    """Give a fresh pair of kernels of one argument."""
    return twins(1)


TWINS = {}


def kept_twins(arity):
    """Return one pair of kernels for all tests of this file, to share their compiles."""
    if arity not in TWINS:
        TWINS[arity] = twins(arity)
    return TWINS[arity]


def assert_same(theirs, ours, *, planned=True):
    """Assert that unpatched Numba records the same bytes, once and again on a hit."""
    kernels = kept_twins(len(theirs))
    expected = parameters(kernels[0], theirs)
    with stridedview.enabled():
        first = recorded(kernels[1], ours)
        again = recorded(kernels[1], ours)
    assert first.parameters == expected
    assert again.parameters == expected
    assert not again.short
    # That it came through our own call, and not through Numba's.
    assert (again.entry == "cuLaunchKernel") is planned


def assert_same_through(make, array):
    assert_same((array,), (make(array),))


@pytest.mark.parametrize("kind", PRODUCERS)
@pytest.mark.parametrize("name", LAYOUTS)
def test_parameters_when_an_array_comes_from_any_producer_then_they_are_numbas(
    driver, name, kind
):
    assert_same_through(PRODUCERS[kind], device(LAYOUTS[name]))


def test_parameters_when_an_array_comes_as_a_memory_view_then_they_are_numbas(driver):
    for name, host in {**LAYOUTS, **REVERSED}.items():
        array = device(host)
        # cuda.core takes the NULL pointer of an empty array for host memory.
        assert_same((array,), (memory_view(array),), planned=name != "empty")


@pytest.mark.parametrize("kind", sorted(PRODUCERS.keys() - TORCH))
@pytest.mark.parametrize("name", REVERSED)
def test_parameters_when_an_array_is_reversed_then_they_are_numbas(driver, name, kind):
    assert_same_through(PRODUCERS[kind], device(REVERSED[name]))


@pytest.mark.parametrize("kind", ["torch", "interface", "device array", "DLPack only"])
@pytest.mark.parametrize("name", DTYPES)
def test_parameters_when_an_array_is_of_any_dtype_then_they_are_numbas(driver, name, kind):
    assert_same_through(PRODUCERS[kind], cuda.to_device(np.ones((3, 4), name)))


@pytest.mark.parametrize("kind", ["device array", "view", "interface", "memory view"])
@pytest.mark.parametrize("name", ["datetime64[s]", "timedelta64[ms]"])
def test_parameters_when_an_array_holds_times_then_they_are_numbas(driver, name, kind):
    make = memory_view if kind == "memory view" else PRODUCERS[kind]
    assert_same_through(make, cuda.to_device(np.arange(5).astype(name)))


@pytest.mark.parametrize("kind", ["device array", "view", "interface"])
@pytest.mark.parametrize("step", [1, 2])
def test_parameters_when_an_array_holds_records_then_they_are_numbas(driver, step, kind):
    host = np.zeros(6, [("x", np.int32), ("y", np.float32)])
    assert_same_through(PRODUCERS[kind], device(host[::step]))


@pytest.mark.parametrize("kind", ["device array", "view"])
def test_parameters_when_records_are_padded_then_they_are_numbas(driver, kind):
    assert_same_through(PRODUCERS[kind], device(np.zeros(6, RECORD)[::2]))


def test_parameters_when_a_foreign_arrays_records_are_padded_then_they_are_numbas(driver):
    assert_same_through(PRODUCERS["interface"], device(np.zeros(6, RECORD)))


@pytest.mark.parametrize("make", [cuda.mapped_array, cuda.managed_array])
@pytest.mark.parametrize("order", ["C", "F"])
def test_parameters_when_an_array_is_mapped_or_managed_then_they_are_numbas(
    driver, make, order
):
    array = make((3, 4), dtype=np.float64, order=order)
    assert_same((array,), (array,))


@pytest.mark.parametrize("name", SCALARS)
def test_parameters_when_a_scalar_or_tuple_is_launched_then_they_are_numbas(driver, name):
    assert_same((SCALARS[name],), (SCALARS[name],))


@pytest.mark.parametrize("kind", PRODUCERS)
def test_parameters_when_tuples_hold_arrays_then_they_are_numbas(driver, kind):
    made = PRODUCERS[kind]
    a = cuda.to_device(np.ones((3, 4), np.float32))
    b = cuda.to_device(np.ones(5, np.int64))
    assert_same(
        ((a, 2, (b, 1.5)), Pair(a, np.float32(2))),
        ((made(a), 2, (made(b), 1.5)), Pair(made(a), np.float32(2))),
    )


def test_parameters_when_tuples_hold_several_producers_then_they_are_numbas(driver):
    a = cuda.to_device(np.ones((3, 4), np.float32))
    assert_same(
        ((a, a, a), Pair(a, a)),
        (
            (PRODUCERS["torch"](a), a, PRODUCERS["exchange"](a)),
            Pair(PRODUCERS["view"](a), PRODUCERS["interface"](a)),
        ),
    )


@pytest.mark.parametrize("name", {**LAYOUTS, **REVERSED})
def test_type_when_an_array_is_launched_then_its_letter_is_numpys(driver, one, name):
    host = {**LAYOUTS, **REVERSED}[name]
    array = device(host)
    with stridedview.enabled():
        for kind, make in PRODUCERS.items():
            if name not in REVERSED or kind not in TORCH:
                one[1][1, 1](make(array))
    letter = "C" if host.flags.c_contiguous else "F" if host.flags.f_contiguous else "A"
    expected = types.Array(numpy_support.from_dtype(host.dtype), host.ndim, letter)
    assert list(one[1].overloads) == [(expected,)]


# ---- records: a pointer to a device copy, made for the launch ----


@cuda.jit
def take_record(record):
    record.x = 1


def record_seen(args, taken):
    """Launch, and return the values of the record that the kernel would have read."""
    seen = []

    def kernel(launch):
        seen.append(driver_read(launch))
        standin.write(launch.words[0], np.array((9, 9.5), RECORD).tobytes())

    def driver_read(launch):
        assert len(launch.words) == 1
        data = standin.read(launch.words[0], RECORD.itemsize)
        return np.frombuffer(data, RECORD)[0].item()

    standin.on_launch(kernel)
    taken[1, 1](*args)
    standin.on_launch(None)
    return seen


@pytest.mark.parametrize("nested", [False, True], ids=["alone", "in a tuple"])
def test_record_when_launched_then_it_is_copied_in_and_back_as_numba_does(driver, nested):
    numbas, ours = twins(1)
    records = [np.array([(4, 2.5)], RECORD)[0] for _ in range(2)]
    wrap = (lambda record: (record,)) if nested else (lambda record: record)
    theirs = record_seen((wrap(records[0]),), numbas)
    with stridedview.enabled():
        assert record_seen((wrap(records[1]),), ours) == theirs
    assert theirs == [(4, 2.5)]
    assert records[0].item() == records[1].item() == (9, 9.5)
    assert list(numbas.overloads) == list(ours.overloads)


def test_record_when_a_kernel_reads_its_fields_then_it_compiles(driver):
    record = np.array([(4, 2.5)], RECORD)[0]
    with stridedview.enabled():
        take_record[1, 1](record)
    assert len(driver.launches()[-1].words) == 1


def test_record_when_it_is_on_the_device_then_its_own_pointer_is_passed(driver):
    numbas, ours = twins(1)
    record = cuda.to_device(np.array([(4, 2.5)], RECORD)[0])
    expected = parameters(numbas, (record,))
    with stridedview.enabled():
        assert parameters(ours, (record,)) == expected


# ---- mixtures ----

# A signature each; what is drawn is the values and who produces the arrays, so that the
# number of compiles is bounded.
MIXTURES = [
    ("vector", "int", "float"),
    ("matrix", "vector", "NumPy"),
    ("strided", "tuple", "bool"),
    ("vector", "vector", "vector"),
    ("named", "matrix", "int"),
    ("complex", "strided", "enum"),
    ("tuple", "named", "time"),
    ("rank 0", "empty", "float"),
]


def array_of(extents, dtype, step=1):
    host = np.zeros(tuple(extent * step for extent in extents), dtype)
    return device(host[tuple(slice(None, None, step) for _ in extents)])


EXTENT = st.integers(2, 5)
ARRAYS = {
    "vector": st.builds(lambda n: array_of((n,), np.float32), EXTENT),
    "matrix": st.builds(lambda n, m: array_of((n, m), np.int16), EXTENT, EXTENT),
    "strided": st.builds(lambda n, m, s: array_of((n, m), np.float64, s), EXTENT, EXTENT,
                         st.integers(2, 3)),
    "rank 0": st.builds(lambda: array_of((), np.int32)),
    "empty": st.builds(lambda n: array_of((0, n), np.float32), EXTENT),
}  # fmt: skip
# Who can produce any of the arrays; the stand-in's exchange producers among them.
ANYONE = st.sampled_from(list(PRODUCERS))


@st.composite
def argument(draw, kind):
    """Draw an argument as (for Numba, for us)."""
    if kind in ARRAYS:
        array = draw(ARRAYS[kind])
        return array, PRODUCERS[draw(ANYONE)](array)
    if kind == "tuple":
        array, ours = draw(argument("vector"))
        number = draw(st.integers(-(2**63), 2**63 - 1))
        return (array, number), (ours, number)
    if kind == "named":
        array, ours = draw(argument("matrix"))
        scale = np.float32(draw(st.floats(width=32, allow_nan=False)))
        return Pair(array, scale), Pair(ours, scale)
    value = draw(
        {
            "int": st.integers(-(2**63), 2**63 - 1),
            "float": st.floats(),
            "bool": st.booleans(),
            "complex": st.complex_numbers(),
            "NumPy": st.integers(0, 255).map(np.uint8),
            "enum": st.sampled_from(Colour),
            "time": st.integers(-(2**62), 2**62).map(lambda n: np.timedelta64(n, "us")),
        }[kind]
    )
    return value, value


@settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data(), kinds=st.sampled_from(MIXTURES))
def test_parameters_when_arguments_are_mixed_then_they_are_numbas(driver, data, kinds):
    pairs = [data.draw(argument(kind)) for kind in kinds]
    assert_same([pair[0] for pair in pairs], [pair[1] for pair in pairs])


# ---- more elements than 32 bits count ----

HUGE = {
    "one axis": ((2**31 + 5,), None),
    "two axes": ((2**17, 2**16), None),
    "long strides": ((3, 2**20), (2**40, 1)),
    "negative strides": ((2**31 + 5,), (-1,)),
    "no strides": ((2**33, 3), (0, 0)),
}


@pytest.mark.parametrize("case", HUGE)
def test_array_when_it_has_more_elements_than_32_bits_count_then_all_is_numbas(
    driver, case
):
    shape, strides = HUGE[case]
    memory = cuda.device_array(64, np.int8)
    made = Foreign(pointer_of(memory), shape, np.int8, strides, memory)
    theirs, ours = twins(1)
    expected = recorded(theirs, (cuda.as_cuda_array(made),)).words
    assert math.prod(shape) == expected[2]
    given = [made]
    with stridedview.enabled():
        given += [stridedview.from_any(made)]
        if case in ("one axis", "two axes", "long strides"):
            steps = strides or (*shape[1:], 1)
            given += [
                driver.torch_tensor(shape, torch.int8, steps, pointer=pointer_of(memory))
            ]
        for value in given:
            for _ in range(2):
                assert recorded(ours, (value,)).words == expected
