"""Signature words in words: what a plan was made for, and how two signatures differ.

Owns the reading of the 64-bit words that ``_pack`` makes of arguments; the places of the
bits are those in ``_pack.pxd``.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

from stridedview import _dtype

_KINDS = {
    0: "an object for Numba's own code",
    1: "array",
    2: "host array",
    32: "int",
    33: "int beyond int64",
    34: "float",
    35: "bool",
    36: "complex",
    37: "NumPy scalar",
    38: "tuple",
    39: "enum member",
}
_ARRAY, _UINT64, _SCALAR, _TUPLE, _ENUM = 1, 33, 37, 38, 39
_LETTERS = "CFA?"
_FAMILIES = {
    0: "no library",
    1: "torch",
    2: "CuPy",
    3: "Numba",
    4: "stridedview",
}
_DEVICES = {1: "cpu", 2: "cuda", 3: "pinned memory", 13: "managed memory"}


def split(words: bytes) -> list[bytes]:
    """Return the words of each argument; a tuple's are its own and its items'."""
    arguments = []
    place, end = 0, len(words)
    while place < end:
        after = _end(words, place)
        arguments.append(words[place:after])
        place = after
    return arguments


def _end(words: bytes, place: int) -> int:
    (word,) = struct.unpack_from("Q", words, place)
    place += 8
    if word & 0xFF == _TUPLE:
        for _ in range(word >> 32):
            place = _end(words, place)
    return place


class ArrayFacts(NamedTuple):
    """What an array's word says of its type."""

    dtype: int  # number in the dtype table, from 1
    ndim: int
    letter: str
    readonly: bool


def array_facts(word: int) -> ArrayFacts | None:
    """Return what a word says of an array's type, or None if it is no array's."""
    if word & 0xFF != _ARRAY:
        return None
    return ArrayFacts(
        word >> 8 & 0xFFFF,
        word >> 24 & 0xFF,
        _LETTERS[word >> 32 & 3],
        bool(word >> 34 & 1),
    )


def is_uint64(word: int) -> bool:
    """Whether a word is that of an integer beyond int64."""
    return word & 0xFF == _UINT64


def read(word: int) -> dict[str, Any]:
    """Return the fields of one word by name, "kind" first."""
    kind = word & 0xFF
    facts: dict[str, Any] = {"kind": _KINDS.get(kind, f"kind {kind}")}
    array = array_facts(word)
    if array is not None:
        family = word >> 36 & 0xFF
        device = _DEVICES.get(word >> 44 & 0xF, f"device type {word >> 44 & 0xF}")
        facts |= {
            "dtype": _dtype_name(array.dtype),
            "ndim": array.ndim,
            "layout": array.letter,
            "readonly": array.readonly,
            "stream of": _FAMILIES.get(family, f"exchange API {family}"),
            "device": f"{device}:{word >> 48}",
        }
    elif kind == _SCALAR:
        facts["dtype"] = _dtype_name(word >> 8 & 0xFFFF)
    elif kind == _TUPLE:
        facts |= {"length": word >> 32, "class": word >> 8 & 0xFFFF}
    elif kind == _ENUM:
        facts["class"] = word >> 8 & 0xFFFF
    return facts


def _dtype_name(number: int) -> str:
    entries = _dtype.entries()
    if 1 <= number <= len(entries):
        return str(entries[number - 1].name)
    return f"structured dtype {number}"


def describe(word: int) -> str:
    """Return one word in words: "float32, 2-d, C, cuda:0"."""
    facts = read(word)
    if facts["kind"] == "array":
        mutable = ", read-only" if facts["readonly"] else ""
        return (
            f"{facts['ndim']}-d {facts['dtype']} [{facts['layout']}{mutable}] on "
            f"{facts['device']}"
        )
    return " ".join(str(fact) for fact in facts.values())


def difference(before: bytes, after: bytes) -> str:
    """Return how one argument's words differ from another's: "dtype float32 -> float64".

    Returns "" if they do not.
    """
    if before == after:
        return ""
    changes = []
    old, new = _unpacked(before), _unpacked(after)
    if len(old) != len(new) or old[0] & 0xFF != new[0] & 0xFF:
        return f"{describe(old[0])} -> {describe(new[0])}"
    for place, (one, other) in enumerate(zip(old, new, strict=True)):
        if one != other:
            where = f"item word {place}: " if len(old) > 1 else ""
            changes.append(where + _changed_fields(one, other))
    return "; ".join(changes)


def _changed_fields(one: int, other: int) -> str:
    old, new = read(one), read(other)
    if old.keys() != new.keys():
        return f"{describe(one)} -> {describe(other)}"
    return ", ".join(
        f"{name} {old[name]} -> {new[name]}" for name in old if old[name] != new[name]
    )


def _unpacked(words: bytes) -> tuple[int, ...]:
    return struct.unpack(f"{len(words) // 8}Q", words)
