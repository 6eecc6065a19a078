"""Numba's types of our arrays, and what stands in for them while Numba resolves a call.

Owns the map from the dtype table to Numba's types and the typing of every producer by its
signature: C if C-contiguous by NumPy's rule, else F, else A, whatever letter the
producer's own route in Numba would give.
"""

from __future__ import annotations

import functools
import struct

import numpy as np
from numba.cuda import types
from numba.cuda.args import ArgHint, In, InOut, Out
from numba.cuda.core.errors import NumbaNotImplementedError
from numba.cuda.cudadrv.devicearray import DeviceRecord
from numba.cuda.np import numpy_support
from numba.cuda.typing import typeof as numba_typeof

from stridedview import _dtype, _ingest, _pack, _signature

# Bound before anything is patched: numba_cuda replaces the name in other modules.
_typeof = numba_typeof.typeof
HINTS = (In, Out, InOut)
_ARGUMENT = numba_typeof.Purpose.argument


@functools.cache
def _fp8_types():
    from numba.cuda._internal import cuda_fp8

    return {
        "fp8_e4m3": cuda_fp8._type_fp8_e4m3,
        "fp8_e5m2": cuda_fp8._type_fp8_e5m2,
        "fp8_e8m0": cuda_fp8._type_fp8_e8m0,
    }


@functools.cache
def dtype_type(name):
    """Return Numba's type for an entry of the dtype table, by its name.

    Raises
    ------
    TypeError
        If Numba has no such type.
    """
    entry = _dtype.dtype(name)
    if not entry.kernel:
        raise TypeError(f"a kernel cannot take dtype {entry.name}; {entry.advice}")
    if entry.numba_name.startswith("fp8"):
        return _fp8_types()[entry.numba_name]
    return getattr(types, entry.numba_name)


def _registered_type(dtype):
    try:
        return numpy_support.from_dtype(dtype)
    except (NotImplementedError, NumbaNotImplementedError) as error:
        raise TypeError(f"Numba has no type for dtype {dtype}: {error}") from error


@functools.lru_cache(maxsize=4096)
def _array_type(name, ndim, letter, readonly):
    return types.Array(dtype_type(name), ndim, letter, readonly=readonly)


def view_type(view):
    """Return the ``types.Array`` of a StridedView."""
    letter = view.layout.letter
    name = view.dtype_name
    if _dtype.is_static(name):
        return _array_type(name, view.ndim, letter, view.readonly)
    dtype = _registered_type(view.dtype)
    return types.Array(dtype, view.ndim, letter, readonly=view.readonly)


@functools.lru_cache(maxsize=4096)
def _facts_type(facts):
    """Return the ``types.Array`` of what a signature word says."""
    entry = _dtype.entries()[facts.dtype - 1]
    if _dtype.is_static(entry.name):
        return _array_type(entry.name, facts.ndim, facts.letter, facts.readonly)
    dtype = _registered_type(entry.numpy)
    return types.Array(dtype, facts.ndim, facts.letter, readonly=facts.readonly)


class Typed:
    """Stands for an argument while Numba resolves an overload: a type and nothing else."""

    __slots__ = ("_numba_type_",)

    def __init__(self, numba_type):
        self._numba_type_ = numba_type


def is_record(value):
    """Whether a value is one structured item, which Numba passes by its own pointer."""
    return isinstance(value, (np.void, DeviceRecord))


def stand_in(value):
    """Return what Numba resolves in place of an argument.

    Arrays, and integers that only fit uint64, become :class:`Typed`; tuples are rebuilt
    around their items; everything else stays, for Numba to type.
    """
    if is_record(value):
        return value
    kind = _pack.kind_name(value)
    if kind == "array":
        return Typed(view_type(_ingest.from_any(value)))
    if kind == "tuple":
        # By its own items: a subclass may iterate over others.
        return rebuilt(value, [stand_in(item) for item in tuple.__iter__(value)])
    if kind == "int" and not -(2**63) <= value < 2**63:
        return Typed(types.uint64)
    return value


def rebuilt(value, items):
    """Return a tuple of its class with other items, or itself if they are the same."""
    if all(new is old for new, old in zip(items, tuple.__iter__(value), strict=True)):
        return value
    return type(value)(*items) if hasattr(value, "_fields") else tuple(items)


def word_iterator(words):
    """Return an iterator over signature words, for :func:`stand_in_of_words`."""
    return iter(struct.unpack(f"{len(words) // 8}Q", words))


def stand_in_of_words(value, words):
    """Return what :func:`stand_in` does, of an argument whose words are known.

    An array is not imported again: a producer whose second answer differs from its first
    would have a plan made for words that are not those of the kernel.
    """
    word = next(words)
    if _pack.kind_name(value) == "tuple":
        items = [stand_in_of_words(item, words) for item in tuple.__iter__(value)]
        return rebuilt(value, items)
    facts = None if is_record(value) else _signature.array_facts(word)
    if facts is not None:
        _ingest.check_storage(value)
        return Typed(_facts_type(facts))
    return Typed(types.uint64) if _signature.is_uint64(word) else value


def type_of(value):
    """Return Numba's type of a launch argument, ours for arrays.

    Raises
    ------
    TypeError
        If Numba has none.
    """
    standing = stand_in(value)
    if isinstance(standing, Typed):
        return standing._numba_type_
    try:
        return _typeof(standing, _ARGUMENT)
    except ValueError as error:
        raise TypeError(f"{error}; pass an array or a number") from error


def can_be_passed(numba_type):
    """Whether Numba can pass an argument of this type to a kernel."""
    if isinstance(numba_type, types.BaseTuple):
        return all(can_be_passed(item) for item in numba_type)
    if isinstance(numba_type, types.EnumMember):
        return can_be_passed(numba_type.dtype)
    return isinstance(
        numba_type,
        (
            types.Array,
            types.CPointer,
            types.Integer,
            types.Float,
            types.Boolean,
            types.Complex,
            types.NPDatetime,
            types.NPTimedelta,
            types.Record,
        ),
    ) and not _is_small_float(numba_type)


def _is_small_float(numba_type):
    # bfloat16 and float8 arrays work; Numba has no packing for scalars of these types.
    return numba_type == types.bfloat16 or numba_type in _fp8_types().values()


def describe(numba_type):
    """Return a type as messages say it: "float32 [C]" with its rank, or Numba's name."""
    if isinstance(numba_type, types.Array):
        mutable = "" if numba_type.mutable else ", read-only"
        return f"{numba_type.ndim}-d {numba_type.dtype} [{numba_type.layout}{mutable}]"
    return str(numba_type)


def is_hint(value):
    """Whether a value is one of Numba's hints In, Out, InOut."""
    return isinstance(value, ArgHint)


def check_hint(value):
    """Refuse a hint, also one in a tuple, that holds something else than one array.

    Raises
    ------
    TypeError
        Naming the hint and what it holds.
    """
    if _pack.kind_name(value) == "tuple":
        for item in tuple.__iter__(value):
            check_hint(item)
    if type(value) not in HINTS or is_record(value.value):
        return
    kind = _pack.kind_name(value.value)
    if kind == "array":
        return
    advice = {"tuple": "pass a tuple of hints", "other": "pass an array or a number"}
    raise TypeError(
        f"cuda.{type(value).__name__} takes an array, got "
        f"{type(value.value).__qualname__}; {advice.get(kind, 'pass it as it is')}"
    )
