"""What does not fit a kernel's formal types is refused, and what fits is not.

numba-cuda checks nothing where a kernel has one explicit signature.
"""

import enum

import numpy as np
import pytest
from numba import cuda, float32, float64, int32, types, void
from numba.cuda.core.errors import NumbaPerformanceWarning
from numba.cuda.np import numpy_support

import stridedview
from tests.launching import PRODUCERS, Foreign, caught, pointer_of, recorded, tensor
from tests.standin.helpers import words_of

pytestmark = pytest.mark.standin


def vector(size=4, dtype=np.float32):
    return cuda.to_device(np.zeros(size, dtype))


def matrix(order="C"):
    return cuda.to_device(np.zeros((3, 4), np.float32, order))


def take_three(a, b, c):
    pass


def fresh():
    """Return a kernel of three arguments without overloads."""
    return cuda.jit(take_three)


# ---- explicit signatures ----


@cuda.jit(void(float32[::1], int32, float64[:, :]))
def signed(a, count, c):
    pass


@cuda.jit(void(float32[::1, :]))
def fortran(a):
    pass


@cuda.jit("void(Tuple([float32[::1], int32]))")
def paired(pair):
    pass


def good_for(kernel):
    """Return arguments that fit, with the words that must be recorded."""
    if kernel is signed:
        a, c = vector(), cuda.to_device(np.zeros((2, 2)))
        return (a, 7, c), (*words_of(a), 7, *words_of(c))
    if kernel is fortran:
        a = matrix("F")
        return (a,), words_of(a)
    a = vector()
    return ((a, 5),), (*words_of(a), 5)


def doubles():
    return cuda.to_device(np.zeros((2, 2)))


UNFIT = {
    "too few": (signed, lambda: (vector(), 7), "'signed'.*3 arguments, got 2"),
    "too many": (signed, lambda: (vector(), 7, doubles(), 1), "3 arguments, got 4"),
    "none": (signed, lambda: (), "3 arguments, got 0"),
    "strided into C": (
        signed, lambda: (vector(8)[::2], 7, doubles()),
        r"argument 1 'a': expected 1-d float32 \[C\].*got 1-d float32 \[A\].*\(8,\)",
    ),
    "another dtype": (
        signed, lambda: (vector(4, np.float64), 7, doubles()),
        r"argument 1 'a': expected.*float32.*got.*float64",
    ),
    "another width": (
        signed, lambda: (vector(4, np.int16), 7, doubles()), "argument 1 'a'.*int16"
    ),
    "another ndim": (
        signed, lambda: (matrix(), 7, doubles()), "argument 1 'a'.*1-d.*got 2-d.*reshape"
    ),
    "scalar for array": (
        signed, lambda: (1.5, 7, doubles()), r"argument 1 'a'.*\[C\].*got float64"
    ),
    "array for scalar": (
        signed, lambda: (vector(), vector(), doubles()),
        "argument 2 'count'.*int32.*got 1-d",
    ),
    "tuple for array": (
        signed, lambda: ((vector(),), 7, doubles()), r"argument 1 'a'.*\[C\]"
    ),
    "tuple for scalar": (signed, lambda: (vector(), (7,), doubles()), "argument 2 'count'"),
    "None for array": (signed, lambda: (None, 7, doubles()), "argument 1 'a'"),
    "text for scalar": (signed, lambda: (vector(), "7", doubles()), "argument 2 'count'"),
    "float for int": (
        signed, lambda: (vector(), 7.5, doubles()), r"argument 2 'count'.*int32.*int\(x\)"
    ),
    "complex for int": (
        signed, lambda: (vector(), 7j, doubles()), "argument 2 'count'.*int32"
    ),
    "read-only": (
        signed,
        lambda: (
            Foreign(pointer_of(KEPT), (4,), np.float32, owner=KEPT, readonly=True), 7,
            doubles(),
        ),
        "argument 1 'a'.*read-only.*writable",
    ),
    "host array of another dtype": (
        signed, lambda: (np.zeros(4), 7, doubles()), "argument 1 'a'.*float64"
    ),
    "host array with strides": (
        signed, lambda: (np.zeros(8, np.float32)[::2], 7, doubles()),
        r"argument 1 'a'.*\[A\]",
    ),
    "C into F": (
        fortran, lambda: (matrix(),), r"argument 1 'a'.*\[F\].*got 2-d float32 \[C\]"
    ),
    "tensor in C into F": (
        fortran, lambda: (tensor(matrix()),), r"argument 1 'a'.*\[F\].*\(4, 1\)"
    ),
    "tuple too short": (paired, lambda: ((vector(),),), "argument 1 'pair'"),
    "tuple of others": (paired, lambda: ((vector(8)[::2], 5),), "argument 1 'pair'"),
    "tuple of numbers": (paired, lambda: ((5, 5),), "argument 1 'pair'"),
}  # fmt: skip
KEPT = None


@pytest.mark.parametrize("case", UNFIT)
@pytest.mark.parametrize("warm", [False, True], ids=["first", "after a good launch"])
def test_explicit_signature_when_an_argument_does_not_fit_then_it_is_refused(
    enabled, case, warm
):
    global KEPT
    KEPT = vector()
    kernel, make, match = UNFIT[case]
    args, words = good_for(kernel)
    if warm:
        kernel[1, 1](*args)
    bad = make()
    for _ in range(2):
        with caught((TypeError, OverflowError), match):
            kernel[1, 1](*bad)
    assert recorded(kernel, args).words == words


# ---- arrays that are contiguous in both senses ----


def take(a):
    pass


def fortran_twin():
    """Return a kernel of its own, so that no plan of another test is hit."""
    return cuda.jit("void(float32[::1, :])")(take)


SHAPES = {"column": (4, 1), "row": (1, 4), "empty": (0, 4), "one item": (1, 1)}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("make", PRODUCERS.values(), ids=PRODUCERS)
def test_f_signature_when_an_array_is_c_and_f_contiguous_then_it_is_taken_as_in_numba(
    driver, shape, make
):
    array = cuda.to_device(np.zeros(shape, np.float32))
    expected = recorded(fortran_twin(), (array,)).words
    with stridedview.enabled():
        kernel = fortran_twin()
        for _ in range(2):
            assert recorded(kernel, (make(array),)).words == expected
            # Of the same letter, as such an array is C: its plan must not take this one.
            with caught(TypeError, r"argument 1 'a'.*\[F\].*got 2-d float32 \[C\]"):
                kernel[1, 1](make(matrix()))


@pytest.mark.parametrize("make", PRODUCERS.values(), ids=PRODUCERS)
def test_f_signature_when_an_axis_of_extent_1_has_any_stride_then_it_is_taken(
    enabled, make
):
    array = matrix()[:, :1]
    kernel = fortran_twin()
    with caught(TypeError, "argument 1 'a'"):
        kernel[1, 1](make(array))  # (3, 1) with strides (16, 4)
    row = matrix("F")[:1, :1]
    for _ in range(2):
        assert recorded(kernel, (make(row),)).words[4] == pointer_of(row)


@pytest.mark.filterwarnings("ignore:Host array")
@pytest.mark.parametrize("hint", [lambda array: array, cuda.In, cuda.Out])
def test_f_signature_when_a_host_array_is_c_and_f_contiguous_then_it_is_taken(
    enabled, hint
):
    kernel = fortran_twin()
    for shape in SHAPES.values():
        words = recorded(kernel, (hint(np.zeros(shape, np.float32)),)).words
        assert words[5:7] == shape
    with caught(TypeError, r"argument 1 'a'.*\[F\]"):
        kernel[1, 1](hint(np.zeros((3, 4), np.float32)))


def test_f_signature_when_the_array_is_in_a_tuple_then_it_is_the_same(enabled):
    kernel = cuda.jit("void(Tuple([int32, float32[::1, :]]))")(take)
    column = cuda.to_device(np.zeros((4, 1), np.float32))
    for _ in range(2):
        assert recorded(kernel, ((5, column),)).words == (5, *words_of(column))
        with caught(TypeError, r"argument 1 'a'.*\[F\]"):
            kernel[1, 1]((5, matrix()))


def test_f_signature_when_prepared_for_a_column_then_no_c_array_takes_its_place(enabled):
    column, other = (cuda.to_device(np.zeros((n, 1), np.float32)) for n in (4, 5))
    prepared = stridedview.prepare(fortran_twin()[1, 1], column)
    prepared.update(0, other)
    with caught(TypeError, "argument 1 'a': it is not F-contiguous.*prepare it anew"):
        prepared.update(0, matrix())
    enabled.clear()
    prepared()
    assert enabled.launches()[-1].words == words_of(other)


# ---- records and times ----

RECORD = np.dtype([("x", "i4"), ("y", "f8", (4,))])
LONGER = np.dtype([*RECORD.descr, ("z", "f4")])
SHORTER = np.dtype([("x", "i4")])
PADDED = np.dtype([("x", "i4"), ("y", "f8", (4,))], align=True)
SECONDS, SPAN = types.NPDatetime("s"), types.NPTimedelta("s")


class Level(enum.IntEnum):
    HIGH = 3


def record_type(dtype):
    return numpy_support.from_dtype(dtype)


def record(dtype):
    return np.zeros(1, dtype)[0]


KINDS = {
    "shorter record": (record_type(RECORD), lambda: record(SHORTER), "Record.*got Record"),
    "record with other offsets": (
        record_type(RECORD), lambda: record(PADDED), "Record.*got Record"
    ),
    "record on the device": (
        record_type(RECORD), lambda: cuda.to_device(np.zeros(2, SHORTER))[1],
        "Record.*got Record",
    ),
    "int for a record": (record_type(RECORD), lambda: 5, "Record.*got int64"),
    "record for an int": (types.int32, lambda: record(SHORTER), "int32.*got Record"),
    "time of another unit": (
        SECONDS, lambda: np.datetime64("2020-01-01", "ns"),
        r"datetime64\[s\].*got datetime64\[ns\]",
    ),
    "span of another unit": (
        SPAN, lambda: np.timedelta64(1, "ms"), r"timedelta64\[s\].*got timedelta64\[ms\]"
    ),
    "span for a time": (SECONDS, lambda: np.timedelta64(5, "s"), "datetime64.*timedelta64"),
    "time for a span": (SPAN, lambda: np.datetime64(5, "s"), "timedelta64.*datetime64"),
    "int for a time": (SECONDS, lambda: 5, r"datetime64\[s\].*got int64"),
    "float for a span": (SPAN, lambda: 5.0, r"timedelta64\[s\].*got float64"),
    "time for an int": (types.int64, lambda: np.datetime64(5, "s"), "int64.*got datetime"),
    "time for a float": (types.float64, lambda: np.datetime64(5, "s"), "float64.*datetime"),
    "time for a boolean": (types.boolean, lambda: np.datetime64(5, "s"), "bool.*datetime"),
    "time for a complex": (
        types.complex64, lambda: np.datetime64(5, "s"), "complex64.*datetime"
    ),
}  # fmt: skip


@pytest.mark.parametrize("nested", [False, True], ids=["alone", "in a tuple"])
@pytest.mark.parametrize("case", KINDS)
def test_explicit_signature_when_a_scalar_is_of_another_kind_then_it_is_refused(
    enabled, case, nested
):
    formal, make, match = KINDS[case]
    value, place = make(), ""
    if nested:
        formal, value, place = types.Tuple([types.int8, formal]), (1, value), "item 2: "
    kernel = cuda.jit(void(formal))(take)
    for _ in range(2):
        with caught(TypeError, f"argument 1 'a': {place}expected {match}"):
            kernel[1, 1](value)


OF_THE_KIND = {
    "record": (record_type(RECORD), lambda: record(RECORD)),
    "record with more behind": (record_type(RECORD), lambda: record(LONGER)),
    "record on the device": (
        record_type(RECORD), lambda: cuda.to_device(np.zeros(2, RECORD))[1]
    ),
    "time": (SECONDS, lambda: np.datetime64("2020-01-01", "s")),
    "time without a unit": (SECONDS, lambda: np.datetime64("NaT")),
    "span": (SPAN, lambda: np.timedelta64(-5, "s")),
    "span without a unit": (SPAN, lambda: np.timedelta64(7)),
    "enum": (types.int8, lambda: Level.HIGH),
}  # fmt: skip


@pytest.mark.parametrize("case", OF_THE_KIND)
def test_explicit_signature_when_a_scalar_is_of_the_kind_then_it_is_passed_as_in_numba(
    driver, case
):
    formal, make = OF_THE_KIND[case]
    value = make()
    expected = recorded(cuda.jit(void(formal))(take), (value,))
    with stridedview.enabled():
        kernel = cuda.jit(void(formal))(take)
        for _ in range(2):
            found = recorded(kernel, (value,))
            if not isinstance(formal, types.Record):  # else the address of a copy
                assert found.parameters == expected.parameters


# ---- extensions ----


class SevenForText:
    """An extension that passes 7 in place of a text."""

    def prepare_args(self, ty, val, **_):
        return (types.int64, 7) if isinstance(val, str) else (ty, val)


def test_explicit_signature_when_an_extension_replaces_the_argument_then_it_is_not_checked(
    driver,
):
    found = []
    for ours in (False, True):
        kernel = cuda.jit("void(int64)", extensions=[SevenForText()])(take)
        if ours:
            stridedview.enable()
        try:
            found.append([recorded(kernel, ("text",)).words for _ in range(2)])
            if ours:
                with caught(TypeError, "signature of 1 arguments, got 2"):
                    kernel[1, 1]("text", 2)
        finally:
            stridedview.disable()
    assert found == [[(7,), (7,)]] * 2


# ---- numbers that do not fit ----


@cuda.jit("void(int8, uint32, boolean)")
def narrow(a, b, c):
    pass


@pytest.mark.parametrize("value", [2**64, 2**200, -(2**63) - 1])
def test_int_when_beyond_64_bits_then_it_is_refused_whatever_was_compiled(enabled, value):
    kernel = fresh()
    for _ in range(2):
        with caught(OverflowError, rf"argument 2 'b': {value} does not fit 64 bits"):
            kernel[1, 1](1, value, 3)
        with caught(OverflowError, "argument 2 'b'"):
            kernel[1, 1](1, (2, (value,)), 3)
        kernel[1, 1](1, 2, 3)


def test_int_when_it_fits_only_uint64_then_it_is_passed_as_that(enabled):
    kernel = fresh()
    kernel[1, 1](1, 2, 3)
    for value in (2**64 - 1, 2**63):
        assert recorded(kernel, (1, value, 3)).words == (1, value, 3)
    assert recorded(kernel, (1, 2, 3)).words == (1, 2, 3)
    assert len(kernel.overloads) == 2


BEYOND = {
    "int8": ((256, 1, True), "argument 1 'a': 256.*int8"),
    "negative int8": ((-129, 1, True), "argument 1 'a': -129.*int8"),
    "uint32": ((1, 2**32, True), "argument 2 'b': 4294967296.*uint32"),
    "negative uint32": ((1, -(2**31) - 1, True), "argument 2 'b': -2147483649.*uint32"),
    "NumPy's int64": ((np.int64(300), 1, True), "argument 1 'a': 300.*int8"),
    "uint64": ((1, 2**63, True), "argument 2 'b'.*uint32"),
}


@pytest.mark.parametrize("case", BEYOND)
@pytest.mark.parametrize("warm", [False, True], ids=["first", "after a good launch"])
def test_int_when_beyond_a_narrow_formal_then_it_is_refused(enabled, case, warm):
    args, match = BEYOND[case]
    if warm:
        narrow[1, 1](1, 2, True)
    for _ in range(2):
        with caught(OverflowError, match):
            narrow[1, 1](*args)
    assert recorded(narrow, (-1, 2, False)).words == (255, 2, 0)


def test_int_when_of_the_other_signedness_then_its_bits_are_passed_unless_strict(enabled):
    host = np.zeros(2, np.float32)
    beside_host = cuda.jit("void(int32, float32[::1])")(lambda n, a: None)
    for _ in range(2):
        assert recorded(narrow, (200, -1, True)).words == (200, 0xFFFFFFFF, 1)
        with pytest.warns(NumbaPerformanceWarning):
            assert recorded(beside_host, (0xFFFFFFFF, host)).words[0] == 0xFFFFFFFF
    with stridedview.enabled(strict=True):
        with caught(OverflowError, "argument 1 'a': 200.*int8"):
            narrow[1, 1](200, 1, True)
        with caught(OverflowError, "argument 2 'b': -1.*uint32"):
            narrow[1, 1](1, -1, True)
        with caught(OverflowError, "argument 1 'n': 4294967295.*int32"):
            beside_host[1, 1](0xFFFFFFFF, host)
    assert recorded(narrow, (200, -1, True)).words == (200, 0xFFFFFFFF, 1)


@pytest.mark.parametrize(
    ("value", "truth"), [(300, 1), (256, 1), (0, 0), (2.5, 1), (0.0, 0), (np.int8(2), 1)]
)
def test_boolean_formal_when_given_a_number_then_it_takes_its_truth(enabled, value, truth):
    for _ in range(2):
        assert recorded(narrow, (1, 2, value)).words == (1, 2, truth)


BEYOND_FLOATS = {
    "float32": ("float32", 1e300, "1e\\+300.*float32"),
    "negative float32": ("float32", -3.5e38, "-3.5e\\+38.*float32"),
    "float32, NumPy's": ("float32", np.float64(1e300), "1e\\+300.*float32"),
    "float16": ("float16", 1e10, "10000000000.*float16"),
    "float16, the first": ("float16", 65520.0, "65520.*float16"),
    "float16, an int": ("float16", 70000, "70000.*float16"),
    "float16, an int beyond int64": ("float16", 2**63, "float16"),
    "complex64": ("complex64", 1e300, "1e\\+300.*complex64"),
    "complex64, imaginary": ("complex64", 1e300j, "1e\\+300j.*complex64"),
    "complex64, NumPy's": ("complex64", np.complex128(1e300), "complex64"),
}


@pytest.mark.parametrize("nested", [False, True], ids=["alone", "in a tuple"])
@pytest.mark.parametrize("case", BEYOND_FLOATS)
def test_float_when_beyond_a_narrow_formal_then_it_is_refused(enabled, case, nested):
    formal, value, match = BEYOND_FLOATS[case]
    good = type(value)(1)
    if nested:
        formal, value, good = f"Tuple([int8, {formal}])", (1, value), (1, good)
    kernel = cuda.jit(f"void({formal})")(take)
    for _ in range(2):
        with caught(OverflowError, f"argument 1 'a': .*{match}"):
            kernel[1, 1](value)
        recorded(kernel, (good,))


INF, NAN = float("inf"), float("nan")
WITHIN_FLOATS = {
    "infinity": ("float32", INF),
    "negative infinity": ("float16", -INF),
    "no number": ("float16", NAN),
    "no number in float32": ("float32", NAN),
    "the largest float32": ("float32", float(np.finfo(np.float32).max)),
    "rounds to the largest float32": ("float32", 3.4028235e38),
    "the largest float16": ("float16", 65504.0),
    "rounds to the largest float16": ("float16", 65519.99),
    "small": ("float16", 1e-300),
    "infinite complex64": ("complex64", complex(INF, NAN)),
    "large": ("float64", 1e300),
    "large complex": ("complex128", 1e300j),
    "largest int": ("float32", 2**64 - 1),
}


@pytest.mark.parametrize("case", WITHIN_FLOATS)
def test_float_when_it_is_infinite_or_fits_then_it_is_passed_as_numba_does(driver, case):
    formal, value = WITHIN_FLOATS[case]
    expected = recorded(cuda.jit(f"void({formal})")(take), (value,)).parameters
    with stridedview.enabled():
        kernel = cuda.jit(f"void({formal})")(take)
        for _ in range(2):
            assert recorded(kernel, (value,)).parameters == expected
