"""What does not fit a kernel's formal types is refused, and what fits is not.

numba-cuda checks nothing where a kernel has one explicit signature.
"""

import numpy as np
import pytest
from numba import cuda, float32, float64, int32, void

import stridedview
from tests.launching import Foreign, caught, pointer_of, recorded, tensor
from tests.standin.helpers import words_of

pytestmark = pytest.mark.standin


@pytest.fixture
def enabled(driver):
    """Enable for a test, and give the stand-in."""
    with stridedview.enabled():
        yield driver


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
    "column of C into F": (
        fortran, lambda: (cuda.to_device(np.zeros((4, 1), np.float32)),),
        r"argument 1 'a'.*\[F\]",
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
    "int8": ((128, 1, True), "argument 1 'a': 128.*int8"),
    "negative int8": ((-129, 1, True), "argument 1 'a': -129.*int8"),
    "uint32": ((1, 2**32, True), "argument 2 'b': 4294967296.*uint32"),
    "negative uint32": ((1, -1, True), "argument 2 'b': -1.*uint32"),
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


@pytest.mark.parametrize(
    ("value", "truth"), [(300, 1), (256, 1), (0, 0), (2.5, 1), (0.0, 0), (np.int8(2), 1)]
)
def test_boolean_formal_when_given_a_number_then_it_takes_its_truth(enabled, value, truth):
    for _ in range(2):
        assert recorded(narrow, (1, 2, value)).words == (1, 2, truth)
