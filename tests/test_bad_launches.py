"""Bad input: refused before the driver is asked to launch, in words that help."""

import collections
import types as python_types

import numpy as np
import pytest
from numba import cuda

import stridedview
from stridedview.numba_cuda import _checks
from tests.launching import Foreign, caught, pointer_of, producer, recorded, tensor
from tests.standin.helpers import run_child, words_of

pytestmark = pytest.mark.standin


def vector(size=4, dtype=np.float32):
    return cuda.to_device(np.zeros(size, dtype))


def take_three(a, b, c):
    pass


def fresh():
    """Return a kernel of three arguments without overloads."""
    return cuda.jit(take_three)


# ---- what no kernel takes ----


def generator():
    yield 1


ODD = {
    "None": None,
    "text": "text",
    "bytes": b"bytes",
    "bytearray": bytearray(4),
    "slice": slice(1, 2),
    "list": [1, 2],
    "dict": {},
    "set": {1},
    "dispatcher": cuda.jit("void(int32)")(lambda a: None),
    "function": take_three,
    "dtype": np.dtype("f4"),
    "class": np.float32,
    "own class": Foreign,
    "module": np,
    "object": object(),
    "namespace": python_types.SimpleNamespace(a=1),
    "range": range(3),
    "iterator": generator(),
    "text of NumPy's": np.str_("text"),
    "Ellipsis": ...,
}


@pytest.mark.parametrize("case", ODD)
@pytest.mark.parametrize("nested", [False, True], ids=["alone", "in a tuple"])
def test_argument_when_no_kernel_takes_its_kind_then_it_is_refused_before_compiling(
    enabled, case, nested
):
    kernel = fresh()
    value = (1, ODD[case]) if nested else ODD[case]
    for _ in range(2):
        with caught(TypeError, "argument 2 'b'"):
            kernel[1, 1](1, value, 2)
    assert kernel.overloads == {}
    assert recorded(kernel, (1, 2, 3)).words == (1, 2, 3)
    with caught(TypeError, "argument 2 'b'"):
        kernel[1, 1](1, value, 2)


NAMES = {
    "None": "a kernel cannot take None",
    "text": "a kernel cannot take str",
    "list": "a kernel cannot take list",
    "slice": "a kernel cannot take slice",
    "bytes": "a kernel cannot take bytes",
}


@pytest.mark.parametrize("case", NAMES)
def test_argument_when_no_kernel_takes_its_kind_then_its_python_type_is_told(enabled, case):
    explicit = cuda.jit("void(int32, int32, int32)")(take_three)
    tupled = cuda.jit("void(int32, Tuple([int32, float32[::1]]), int32)")(take_three)
    kind = NAMES[case].rpartition(" ")[2]
    with caught(TypeError, f"argument 2 'b': {NAMES[case]}; pass an array or a number"):
        fresh()[1, 1](1, ODD[case], 2)
    with caught(TypeError, f"argument 2 'b': item 2: item 1: {NAMES[case]}; pass an"):
        fresh()[1, 1](1, (3, (ODD[case], 4)), 2)
    with caught(TypeError, f"argument 2 'b': expected int32 .*, got {kind}; pass"):
        explicit[1, 1](1, ODD[case], 2)
    with caught(TypeError, f"'b': item 2: expected 1-d float32 .*, got {kind}; pass"):
        tupled[1, 1](1, (1, ODD[case]), 2)


def test_kernel_when_given_too_few_or_too_many_then_the_names_are_told(enabled):
    kernel = fresh()
    for count in (0, 1, 2, 4, 70):
        with caught(TypeError, rf"'take_three' takes 3 arguments \(a, b, c\), got {count}"):
            kernel[1, 1](*range(count))
    kernel[1, 1](1, 2, 3)
    for count in (0, 2, 4):
        with caught(TypeError, f"got {count}"):
            kernel[1, 1](*range(count))


def test_kernel_when_given_keywords_then_it_is_a_type_error_naming_them(enabled):
    kernel = fresh()
    for _ in range(2):
        with caught(TypeError, "keyword.*'c'"):
            kernel[1, 1](1, 2, c=3)
        kernel[1, 1](1, 2, 3)


def test_kernel_when_it_takes_any_number_then_it_is_refused(enabled):
    @cuda.jit
    def kernel(a, *rest):
        pass

    with caught(TypeError, r"\*args.*tuple"):
        kernel[1, 1](1, 2, 3)


# ---- memory ----


def test_read_only_producer_when_the_kernel_writes_then_its_plan_is_not_reused(enabled):
    @cuda.jit
    def write(a):
        a[0] = 1

    array = vector()
    for make in (
        lambda readonly: Foreign(
            pointer_of(array), (4,), np.float32, owner=array, readonly=readonly
        ),
        lambda readonly: producer(array, "Plain", readonly=readonly),
        lambda readonly: stridedview.from_any(producer(array, "Plain", readonly=readonly)),
    ):
        write[1, 1](make(False))
        write[1, 1](make(False))
        for _ in range(2):
            with caught(Exception, "Cannot modify readonly array"):
                write[1, 1](make(True))
        assert recorded(write, (make(False),)).words == words_of(array)


def test_read_only_producer_when_the_kernel_only_reads_then_it_has_an_overload(enabled):
    @cuda.jit
    def read(a, b):
        b[0] = a[0]

    array = vector()
    frozen = Foreign(pointer_of(array), (4,), np.float32, owner=array, readonly=True)
    assert recorded(read, (frozen, array)).words == 2 * words_of(array)
    with caught(Exception, "Cannot modify readonly array"):
        read[1, 1](frozen, frozen)


def misaligned(array):
    return {
        "interface": Foreign(pointer_of(array) + 2, (4,), np.float32, owner=array),
        "exchange": producer(array, byte_offset=1),
        "DLPack only": producer(array, "Plain", byte_offset=1),
    }


@pytest.mark.parametrize("case", ["interface", "exchange", "DLPack only"])
def test_pointer_when_misaligned_then_it_is_refused_with_the_address(enabled, case):
    kernel, array = fresh(), vector(8)
    bad = misaligned(array)[case]
    for _ in range(2):
        with caught(BufferError, "argument 3 'c'.*not aligned to the 4 bytes of float32"):
            kernel[1, 1](1, 2, bad)
        kernel[1, 1](1, 2, array)
        kernel[1, 1](1, 2, producer(array))


STRIDED_OFF = {
    "of the interface": lambda array: Foreign(
        pointer_of(array), (4,), np.float32, strides=(6,), owner=array
    ),
    "of a view": lambda array: stridedview.from_any(array).as_strided((4,), (6,)),
}


@pytest.mark.parametrize("case", STRIDED_OFF)
def test_stride_when_it_leads_off_the_alignment_then_it_is_refused(enabled, case):
    kernel, array = fresh(), vector(8)
    even = stridedview.from_any(array).as_strided((4,), (8,))
    bad = STRIDED_OFF[case](array)
    for _ in range(2):
        with caught(BufferError, "argument 3 'c'.*6 bytes along axis 0.*4 bytes.*float32"):
            kernel[1, 1](1, 2, bad)
        kernel[1, 1](1, 2, even)
    single = stridedview.from_any(array).as_strided((1, 4), (6, 8))
    assert recorded(kernel, (1, 2, single)).words[-2:] == (6, 8)


def test_torch_tensor_when_misaligned_then_it_is_refused_with_the_address(enabled):
    import torch

    kernel, array = fresh(), vector(8)
    bad = enabled.torch_tensor((4,), torch.float32, pointer=pointer_of(array) + 2)
    kernel[1, 1](1, 2, tensor(array))
    with caught(BufferError, r"argument 3 'c'.*aligned.*clone"):
        kernel[1, 1](1, 2, bad)
    assert recorded(kernel, (1, 2, array)).words == (1, 2, *words_of(array))


@pytest.mark.parametrize(
    "pointer", [0, 8, 4092], ids=["NULL", "small", "in the first page"]
)
def test_pointer_when_the_memory_was_freed_then_it_is_refused(enabled, pointer):
    kernel, array = fresh(), vector()
    bad = enabled.producers().Producer(pointer, (4,))
    for _ in range(2):
        with caught(BufferError, f"argument 1 'a'.*{pointer:#x}.*freed or never"):
            kernel[1, 1](bad, 2, 3)
        kernel[1, 1](producer(array), 2, 3)


def test_interface_when_its_pointer_is_the_hosts_then_it_is_refused(enabled):
    host = np.zeros(4, np.float32)
    bad = Foreign(host.ctypes.data, (4,), np.float32, owner=host)
    with caught(BufferError, "argument 1 'a'.*not known to the CUDA driver"):
        fresh()[1, 1](bad, 2, 3)


def test_masked_array_when_launched_then_it_is_refused(enabled):
    with caught(TypeError, "argument 1 'a'.*filled"):
        fresh()[1, 1](np.ma.masked_array([1, 2], [True, False]), 2, 3)


def test_producer_when_it_raises_then_its_own_words_come_through(enabled):
    kernel, array = fresh(), vector()
    bad = enabled.producers().Producer(
        pointer_of(array), (4,), fail=BufferError("not today")
    )
    for _ in range(2):
        with caught(BufferError, "argument 1 'a': not today"):
            kernel[1, 1](bad, 2, 3)
        kernel[1, 1](producer(array), 2, 3)


# ---- grid and block ----

DIMENSIONS = {
    "no blocks": ((0, 32), "grid x is 0"),
    "no blocks along y": (((2, 0), 32), "grid y is 0"),
    "no threads": ((1, 0), "block x is 0"),
    "too many threads": ((1, 1025), "1025.*1024"),
    "too many in all": ((1, (32, 33)), r"1056 threads \(32 x 33 x 1\).*1024"),
    "too many along z": ((1, (1, 1, 65)), "block z is 65.*64"),
    "too many blocks along y": (((1, 65536), 1), "grid y is 65536.*65535"),
}


@pytest.mark.parametrize("case", DIMENSIONS)
def test_dimensions_when_beyond_the_device_then_the_number_and_limit_are_told(
    enabled, case
):
    from cuda.core._utils.cuda_utils import CUDAError

    grid, match = DIMENSIONS[case]
    kernel = fresh()
    for _ in range(2):
        with pytest.raises(CUDAError, match=match):
            kernel[grid](1, 2, 3)
        kernel[1, 32](1, 2, 3)
    assert {record.grid for record in enabled.launches()} == {(1, 1, 1)}


@pytest.mark.parametrize("case", ["no blocks", "too many in all"])
def test_dimensions_when_beyond_the_device_then_the_first_launch_asks_no_driver(
    enabled, case
):
    grid, match = DIMENSIONS[case]
    with caught(RuntimeError, match):
        fresh()[grid](1, 2, 3)


@pytest.mark.parametrize(
    "grid", [(-1, 1), (1, -1), (2**32, 1), (1, 1, 0, -1), (1, 1, 0, 2**32)], ids=str
)
def test_dimensions_when_they_fit_no_unsigned_int_then_it_is_a_value_error(enabled, grid):
    with caught(ValueError, "unsigned 32-bit"):
        fresh()[grid]


UNHASHABLE = {
    "array as the grid": ((np.array([1, 2]), 1), "griddim must be an integer or a tuple"),
    "array as the block": ((1, np.array([32])), r"blockdim .* got array\(\[32\]\)"),
    "set as the grid": (({1}, 1), "griddim must be an integer or a tuple"),
    "dict as the stream": ((1, 1, {}), "expected a stream, got builtins.dict"),
    "list as shared memory": ((1, 1, 0, []), "sharedmem must be an integer"),
    "shared memory as the stream": ((1, 1, 1024), "shared memory come fourth"),
}


@pytest.mark.parametrize("case", UNHASHABLE)
def test_configuration_when_it_is_none_then_it_says_what_is_taken(enabled, case):
    key, message = UNHASHABLE[case]
    for _ in range(2):
        with caught((TypeError, ValueError), message):
            fresh()[key](1, 2, 3)


def test_configuration_when_a_stream_has_no_hash_then_it_is_taken(enabled):
    class Stream:
        __hash__ = None

        def __init__(self, handle):
            self.handle = handle

        def __cuda_stream__(self):
            return 0, self.handle

    side = cuda.stream()
    kernel = fresh()
    for _ in range(2):
        kernel[1, 1, Stream(int(side.handle))](1, 2, 3)
        assert enabled.launches()[-1].stream == int(side.handle)


# ---- bytes of parameters ----


@pytest.mark.parametrize("way", ["launch", "forall", "prepare"])
def test_parameters_when_over_the_limit_then_it_is_told_before_the_compile(enabled, way):
    kernel, args = fresh(), (1, (vector(),) * 700, 2)
    launch = {
        "launch": kernel[1, 1],
        "forall": kernel.forall(8),
        "prepare": lambda *given: stridedview.prepare(kernel[1, 1], *given),
    }[way]
    message = (
        r"'take_three' take 39216 bytes of parameters, the limit is 32764 \(compute "
        r"capability 9.0, driver of CUDA 1\d\.\d+\); the largest: argument 2 "
        r"\(39200 bytes\)"
    )
    for _ in range(2):
        with caught(ValueError, message):
            launch(*args)
    assert kernel.overloads == {}
    assert recorded(kernel, (1, 2, 3)).words == (1, 2, 3)


def test_parameters_when_only_their_padding_exceeds_the_limit_then_it_is_told(enabled):
    # 2,100 pairs of 1 and 8 bytes: 18,900 bytes, and 33,600 with each 8 aligned.
    pairs = ((np.int8(1), 2.5),) * 2100
    with caught(ValueError, "take 33616 bytes of parameters"):
        fresh()[1, 1](1, pairs, 2)


def test_parameters_when_just_within_the_limit_then_they_are_launched(enabled):
    values = (7,) * 4093
    for _ in range(2):
        assert recorded(fresh(), (1, values, 2)).words == (1, *values, 2)
    with caught(ValueError, "take 32768 bytes of parameters, the limit is 32764"):
        fresh()[1, 1](1, (*values, 8), 2)


def test_parameters_when_the_chip_is_old_then_its_own_limit_is_told():
    child = run_child(
        """
        from tests import standin
        standin.load()
        from numba import cuda
        import stridedview
        stridedview.enable()

        @cuda.jit
        def take(a):
            pass

        try:
            take[1, 1]((7,) * 513)
        except ValueError as error:
            print(error)
        """,
        cc="6.1",
    )
    assert "take 4104 bytes of parameters, the limit is 4096" in child.stdout, child.stderr
    assert "compute capability 6.1" in child.stdout


@pytest.mark.parametrize(
    ("capability", "driver_version", "limit"),
    [
        ((9, 0), (13, 0), 32764), ((7, 0), (12, 1), 32764), ((7, 0), (12, 0), 4096),
        ((6, 2), (12, 9), 4096), ((9, 0), (11, 8), 4096), ((10, 0), (12, 4), 32764),
    ],
)  # fmt: skip
def test_parameter_limit_when_asked_then_it_is_the_devices(
    capability, driver_version, limit
):
    assert _checks.parameter_limit(capability, driver_version) == limit


def test_named_tuple_when_two_classes_look_alike_then_each_has_its_own_type(enabled):
    one, other = (collections.namedtuple(name, "x y") for name in ("One", "Other"))
    kernel = fresh()
    for _ in range(2):
        for kind in (one, other):
            assert recorded(kernel, (1, kind(2, 3), 4)).words == (1, 2, 3, 4)
    assert len(kernel.overloads) == 2
