"""The parameters of a kernel: which there are, of what size, and where they are packed.

Owns the flattening of Numba's types into parameters and their natural alignment; a plan's
slots come from it, and so does the size that is checked before a compile.
"""

from __future__ import annotations

from numba.cuda import types

from stridedview import _scalars, _signature
from stridedview.numba_cuda import _types


def parameter_sizes(numba_type):
    """Return the bytes of each parameter that an argument of a type becomes, a list."""
    if isinstance(numba_type, types.Array):
        return [8] * (5 + 2 * numba_type.ndim)
    if isinstance(numba_type, types.BaseTuple):
        return [size for item in numba_type for size in parameter_sizes(item)]
    if isinstance(numba_type, types.EnumMember):
        return parameter_sizes(numba_type.dtype)
    if isinstance(numba_type, types.Boolean):
        return [1]
    width = max(getattr(numba_type, "bitwidth", 64) // 8, 1)
    return [width // 2] * 2 if isinstance(numba_type, types.Complex) else [width]


def packed_size(numba_types):
    """Return the bytes that arguments take as parameters, with natural alignment."""
    packed = 0
    for numba_type in numba_types:
        for size in parameter_sizes(numba_type):
            packed = -(-packed // size) * size + size
    return packed


_SCALARS = {
    types.boolean: ("boolean", 1),
    types.float16: ("float16", 2),
    types.float32: ("float32", 4),
    types.float64: ("float64", 8),
    types.complex64: ("complex64", 4),
    types.complex128: ("complex128", 8),
}


def _scalar(formal):
    """Return (setter, bytes of each part) of a scalar's formal type, ("", 0) if none."""
    if isinstance(formal, types.EnumMember):
        return _scalar(formal.dtype)
    if isinstance(formal, types.CPointer):
        return "pointer", 8
    if isinstance(formal, (types.NPDatetime, types.NPTimedelta)):
        return "time", 8
    if isinstance(formal, types.Integer):
        return str(_plain(formal)), formal.bitwidth // 8
    return _SCALARS.get(formal, ("", 0))


class _Member:
    """In place of an enum member, of which Numba's packing reads the value only."""

    def __init__(self, value):
        self.value = value


def fitted(formal, value):
    """Return a number as Numba's own packing reads it, as its formal type holds it.

    Raises
    ------
    OverflowError, TypeError
        If it does not fit, as where a plan packs it.
    """
    name, _ = _scalar(formal)
    if not name:
        return value
    held = _scalars.fitted(name, value)
    return _Member(held) if isinstance(formal, types.EnumMember) else held


class Parameters:
    """The flattened parameters of a kernel, laid out with natural alignment."""

    def __init__(self, words):
        self._words = _types.word_iterator(words)
        self.slots = []
        self.expected = []  # (offset, size) of each parameter, bytes
        self.size = 0

    def add(self, formal, value):
        """Add one argument; return whether a plan can take it."""
        word = next(self._words, 0)
        if isinstance(formal, types.Array):
            facts = _signature.array_facts(word)
            if facts is None or facts.ndim != formal.ndim:
                return False  # what is packed would not fit the place
            # An array that is both is C by its letter; its kernel reads no strides.
            is_both = formal.layout == "F" and facts.letter == "C" and formal.ndim > 1
            setter = "F array" if is_both else "array"
            return self._place(setter, 8, [8] * (5 + 2 * formal.ndim))
        if isinstance(formal, types.BaseTuple):
            return self._add_tuple(formal, value)
        return self._add_scalar(formal)

    def _add_scalar(self, formal):
        name, width = _scalar(formal)
        parts = 2 if name.startswith("complex") else 1
        return bool(name) and self._place(name, width, [width] * parts)

    def _place(self, setter, alignment, sizes):
        offset = -(-self.size // alignment) * alignment
        self.slots.append((_scalars.SETTERS[setter], offset, 0))
        self.size = offset
        for size in sizes:
            self.expected.append((self.size, size))
            self.size += size
        return True

    def _add_tuple(self, formal, value):
        place = len(self.slots)
        self.slots.append(None)
        for item_type, item in zip(formal, tuple.__iter__(value), strict=True):
            if not self.add(item_type, item):
                return False
        self.slots[place] = (_scalars.SETTERS["tuple"], 0, len(self.slots) - place - 1)
        return True


def _plain(formal):
    # A literal integer type is packed as its own width of integer.
    return getattr(formal, "literal_type", formal)
