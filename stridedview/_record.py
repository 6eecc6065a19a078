"""Record: one item of a structured array, on the device.

Owns what ``view[i]`` of a structured view is: not an array of no dimensions but a
record, which a kernel takes by pointer and whose fields read and write as items.
"""

from __future__ import annotations

import copy
from typing import Any

from stridedview._view import StridedView, add_members, numba_record_type


class Record:
    """One item of a structured view, where it lies.

    ``record["field"]`` reads a scalar field as NumPy's scalar and any other as a view;
    assigning writes the device's memory. Every attribute of the view of no dimensions
    behind it (``dtype``, ``copy_to_host``, ``owner``...) is there too.
    """

    __slots__ = ("__weakref__", "view")

    # It is no array, so it offers no array protocol: Numba takes it as device memory.
    __cuda_memory__ = True
    _HIDDEN = frozenset(
        {
            "__array__",
            "__array_interface__",
            "__array_struct__",
            "__cuda_array_interface__",
            "__dlpack__",
            "__dlpack_device__",
        }
    )

    view: StridedView

    def __init__(self, view: StridedView) -> None:
        object.__setattr__(self, "view", view)

    def __getattr__(self, name: str) -> Any:
        if name in self._HIDDEN or name == "view":
            raise AttributeError(name)
        return getattr(self.view, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name != "_cuda_memsize_":
            raise AttributeError(f"a record is read-only but for its fields: {name}")
        self.view._cuda_memsize_ = value

    def __getitem__(self, name: str) -> Any:
        field = self.view[_checked(name)]
        if field.ndim:
            return field
        return Record(field) if field.dtype.names else field._read()

    def __setitem__(self, name: str, value: Any) -> None:
        self.view.setitem(_checked(name), value)

    def getitem(self, item: str, stream: Any = 0) -> Any:
        """Return ``self[item]``, read on this stream."""
        return Record(self.view.bind(stream))[item] if stream else self[item]

    def setitem(self, key: str, value: Any, stream: Any = 0) -> None:
        """Write a field on this stream."""
        self.view.setitem(_checked(key), value, stream=stream)

    def __copy__(self) -> Record:
        return Record(self.view)

    def __deepcopy__(self, memo: dict[int, Any]) -> Record:
        return Record(copy.deepcopy(self.view, memo))

    def __reduce__(self) -> tuple[Any, ...]:
        return Record, (self.view,)

    @property
    def _numba_type_(self) -> Any:
        return numba_record_type(self.view)

    def __repr__(self) -> str:
        return f"Record({self.view!r})"


def _checked(name: Any) -> str:
    if not isinstance(name, str):
        raise IndexError(f"a record is indexed by the name of a field, not by {name!r}")
    return name


def _record(self: StridedView) -> Record:
    return Record(self)


add_members({"_record": _record})
