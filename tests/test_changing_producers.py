"""Producers that answer differently from one asking to the next.

What a launch was typed by is what is packed; and no later launch of another producer gets
the plan of what one had claimed.
"""

import contextlib
import warnings

import numpy as np
import pytest
import torch
from numba import cuda, types
from numba.cuda.core.errors import NumbaPerformanceWarning

import stridedview
from stridedview import _dtype, _launch
from stridedview.numba_cuda import _types
from tests import standin
from tests.launching import Foreign, foreign, pointer_of, producer, recorded
from tests.standin.helpers import words_of

pytestmark = pytest.mark.standin


def fresh(**options):
    """Return a kernel of one argument without overloads."""

    @cuda.jit(**options)
    def kernel(a):
        pass

    return kernel


def vector(size=4, dtype=np.float32):
    return cuda.to_device(np.zeros(size, dtype))


class Changing:
    """A producer that shows one array, and another from one asking to a later one."""

    def __init__(self, array, other=None, from_turn=None, to_turn=None):
        self.array, self.other = foreign(array), foreign(array if other is None else other)
        self.turns = range(from_turn or 0, to_turn or 0)
        self.asked = 0

    @property
    def __cuda_array_interface__(self):
        self.asked += 1
        shown = self.other if self.asked in self.turns else self.array
        return shown.__cuda_array_interface__


# From which asking to which the other array is shown; a first launch asks a few times.
TURNS = [(first, last) for first in range(1, 5) for last in range(first + 1, 7)]
OTHERS = {
    "dtype": lambda: vector(4, np.float64),
    "rank": lambda: cuda.to_device(np.zeros((2, 2), np.float32)),
    "layout": lambda: vector(8)[::2],
}
LAUNCHES = {
    "launch": lambda kernel, value: kernel[1, 1](value),
    "forall": lambda kernel, value: kernel.forall(4)(value),
    "prepare": lambda kernel, value: stridedview.prepare(kernel[1, 1], value)(),
    "debug": lambda kernel, value: kernel[1, 1](value),
}


FLOATS = (types.Array(types.float32, 1, "C"),)


def names_of(kernel, signature):
    """Return the names of what was compiled for a signature, by forall too."""
    made = [kernel, *kernel.specializations.values()]
    found = [each.overloads[signature] for each in made if signature in each.overloads]
    return {each._codelibrary.get_cufunc().name for each in found}


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("way", LAUNCHES)
def test_kernel_when_a_producer_changed_in_its_first_launch_then_others_get_the_right_one(
    enabled, way, other
):
    array = vector()
    for turns in TURNS:
        kernel = fresh(**({"debug": True, "opt": False} if way == "debug" else {}))
        # It may be refused, as it changed in the middle.
        with contextlib.suppress(TypeError, RuntimeError):
            LAUNCHES[way](kernel, Changing(array, OTHERS[other](), *turns))
        for _ in range(2):
            standin.clear()
            LAUNCHES[way](kernel, foreign(array))
            (record,) = standin.launches()
            assert record.words == words_of(array)
            assert record.function in names_of(kernel, FLOATS)
        if way == "launch":
            assert kernel[1, 1].last_plan.kernel is kernel.overloads[FLOATS]


@pytest.mark.parametrize("turns", TURNS, ids=str)
def test_numbas_code_when_a_producer_changes_within_a_launch_then_its_types_are_kept(
    enabled, turns
):
    @cuda.jit
    def both(host, a):
        pass

    array, other = vector(), vector(4, np.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NumbaPerformanceWarning)
        both[1, 1](np.zeros(2), Changing(array, other, *turns))
    (signature,) = both.overloads
    record = enabled.launches()[-1]
    shown = {4: array, 8: other}[signature[1].dtype.bitwidth // 8]
    assert record.words[7:] == words_of(shown)


def test_launch_when_a_producer_is_asked_then_once_and_at_the_first_launch_twice(enabled):
    kernel, made = fresh(), Changing(vector())
    kernel[1, 1](made)
    assert made.asked <= 2
    made.asked = 0
    kernel[1, 1](made)
    assert made.asked == 1


def test_launch_when_a_producer_is_another_array_each_time_then_each_is_packed(enabled):
    kernel = fresh()

    class Moving:
        shown = None

        @property
        def __cuda_array_interface__(self):
            return foreign(self.shown).__cuda_array_interface__

    moving = Moving()
    arrays = [
        vector(), vector(7), vector(4, np.int8), vector(8)[::2], vector(0),
        cuda.to_device(np.zeros((2, 3), np.float32)), vector(4)[::-1],
    ]  # fmt: skip
    for _ in range(2):
        for array in arrays:
            moving.shown = array
            assert recorded(kernel, (moving,)).words == words_of(array)


def test_launch_when_a_producer_becomes_read_only_then_the_writing_plan_is_not_used(
    enabled,
):
    @cuda.jit
    def write(a):
        a[0] = 1

    array = vector()
    made = Foreign(pointer_of(array), (4,), np.float32, owner=array)
    write[1, 1](made)
    made.__cuda_array_interface__["data"] = (pointer_of(array), True)
    with pytest.raises(Exception, match="Cannot modify readonly array"):
        write[1, 1](made)
    made.__cuda_array_interface__["data"] = (pointer_of(array), False)
    assert recorded(write, (made,)).words == words_of(array)


DAMAGED = {
    "no shape": ("shape", None, (TypeError, ValueError)),
    "negative extent": ("shape", (-4,), (BufferError, ValueError)),
    "other rank of strides": ("strides", (4, 4), (BufferError, ValueError)),
    "no pointer": ("data", None, (TypeError, ValueError, BufferError)),
    "NULL": ("data", (0, False), BufferError),
    "misaligned": ("data", (4098, False), BufferError),
    "unknown dtype": ("typestr", "<q9", (TypeError, ValueError)),
    "mask": ("mask", object(), (TypeError, ValueError, BufferError, NotImplementedError)),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_launch_when_an_interface_is_damaged_between_two_then_it_is_refused(enabled, case):
    key, value, errors = DAMAGED[case]
    kernel, array = fresh(), vector()
    made = foreign(array)
    kernel[1, 1](made)
    whole = dict(made.__cuda_array_interface__)
    made.__cuda_array_interface__ = {**whole, key: value}
    if key == "typestr":
        made.__cuda_array_interface__.pop("descr")
    enabled.clear()
    with pytest.raises(errors, match=r"argument 1 'a'|Masked|mask"):
        kernel[1, 1](made)
    assert enabled.launches() == []
    made.__cuda_array_interface__ = whole
    assert recorded(kernel, (made,)).words == words_of(array)


@pytest.mark.parametrize("kind", [ValueError, AttributeError, KeyboardInterrupt, OSError])
def test_launch_when_an_interface_raises_in_the_middle_of_many_then_nothing_is_launched(
    enabled, kind
):
    class Raising:
        fails = True

        @property
        def __cuda_array_interface__(self):
            if self.fails:
                raise kind("not now")
            return foreign(array).__cuda_array_interface__

    @cuda.jit
    def three(a, b, c):
        pass

    array, made = vector(), Raising()
    args = producer(array, "Plain"), made, producer(array)
    for fails in (False, True, False, True):
        made.fails = fails
        enabled.clear()
        if fails:
            with pytest.raises((kind, TypeError)):
                three[1, 1](*args)
        else:
            three[1, 1](*args)
        assert len(enabled.launches()) == (not fails)


# ---- types from words ----

LAYOUTS = {"C": (3, 1), "F": (1, 2), "A": (6, 2)}
NAMES = [entry.name for entry in _dtype.entries() if entry.kernel and entry.torch_name]


@pytest.mark.parametrize("letter", LAYOUTS)
@pytest.mark.parametrize("name", NAMES)
def test_type_when_read_from_a_word_then_it_is_that_of_a_view(driver, name, letter):
    made = standin.torch_tensor((2, 3), getattr(torch, name), LAYOUTS[letter], pointer=8192)
    words, _ = _launch.signature_words(None, (made,))
    standing = _types.stand_in_of_words(made, _types.word_iterator(words))
    assert standing._numba_type_ == _types.view_type(stridedview.from_any(made))
    assert standing._numba_type_.layout == letter


RECORDS = [("x", "<i4"), ("y", "<f8", (2,)), ("t", "<M8[s]")]


@pytest.mark.parametrize("readonly", [False, True])
@pytest.mark.parametrize("dtype", [RECORDS, "<M8[ms]", "<m8[D]", "<c16"], ids=str)
def test_type_when_numpy_alone_has_the_dtype_then_the_word_tells_it_too(
    driver, dtype, readonly
):
    array = cuda.to_device(np.zeros(3 * np.dtype(dtype).itemsize, np.uint8))
    made = Foreign(pointer_of(array), (3,), dtype, owner=array, readonly=readonly)
    nested = (1, (made, 2**63), made)
    words, _ = _launch.signature_words(None, (nested,))
    standing = _types.stand_in_of_words(nested, _types.word_iterator(words))
    expected = _types.view_type(stridedview.from_any(made))
    assert expected.mutable is not readonly
    assert standing[1][0]._numba_type_ == standing[2]._numba_type_ == expected
    assert standing[0] == 1
    assert standing[1][1]._numba_type_ == types.uint64
