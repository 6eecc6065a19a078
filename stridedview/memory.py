"""Allocating arrays and moving them to a device.

Owns the functions that fill what _alloc allocates, and ``copy``. It adds ``copy``
to StridedView and tells _export how to allocate and to order streams.
"""

from typing import Any

from stridedview import _assign, _export, _record, _transfer
from stridedview._alloc import OutOfMemoryError, empty, empty_like, empty_many, pinned
from stridedview._ingest import from_any, from_many
from stridedview._stream import order_view
from stridedview._view import StridedView, add_members

__all__ = [
    "OutOfMemoryError",
    "StridedView",
    "empty",
    "empty_like",
    "empty_many",
    "from_any",
    "from_many",
    "full",
    "pinned",
    "to_device",
    "zeros",
]

_CPU = 1
# Imported so that a view has every member.
_MEMBERS = (_assign, _export, _record, _transfer)


def zeros(
    shape: Any,
    dtype: Any = "float64",
    *,
    order: str = "C",
    device: Any = None,
    stream: Any = None,
    like: Any = None,
) -> StridedView:
    """Return a new view of zeros; see :func:`empty`."""
    return full(shape, 0, dtype, order=order, device=device, stream=stream, like=like)


def full(
    shape: Any,
    value: Any,
    dtype: Any = "float64",
    *,
    order: str = "C",
    device: Any = None,
    stream: Any = None,
    like: Any = None,
) -> StridedView:
    """Return a new view filled with one value; see :func:`empty`."""
    view = empty(shape, dtype, order=order, device=device, stream=stream, like=like)
    view.fill(value, stream or 0)
    return view


def to_device(
    array: Any, *, device: Any = None, stream: Any = None, like: Any = None
) -> StridedView:
    """Return a view of an array's items on a device.

    Parameters
    ----------
    array : array or nested sequence of numbers
        A device array is returned as a view of its own memory, not copied. A host array
        is copied; the copy has no gaps and keeps the order of its axes in memory.
    device, stream, like
        As for :func:`empty`. With a stream the copy is queued there; without one it is
        done on return.

    Raises
    ------
    OutOfMemoryError
        Saying how much was asked for.
    TypeError
        For a dtype that a device has not.
    """
    view = as_view(array)
    if view.device[0] != _CPU:
        return view
    target = empty_like(core(view), device=device, stream=stream, like=like)
    target.copy_to_device(core(view), stream or 0)
    return _repeated(target, view)


_PROTOCOLS = ("__dlpack__", "__cuda_array_interface__", "__array_interface__")


def as_view(array: Any) -> StridedView:
    """Return a view of an array, or of what NumPy makes of numbers and sequences."""
    import numpy as np

    is_array = any(hasattr(array, name) for name in _PROTOCOLS)
    if isinstance(array, np.generic) or not (is_array or isinstance(array, StridedView)):
        array = np.asarray(array)
    return from_any(array)


def core(view: StridedView) -> StridedView:
    """Return the part of a broadcast view that is not repetition.

    It is sent once, and broadcast again on the other side.
    """
    if 0 not in view.strides or view.size == 0:
        return view
    first = tuple(_first(n, s) for n, s in zip(view.shape, view.strides, strict=True))
    part: StridedView = view[first]
    return part


def _first(extent: int, stride: int) -> slice:
    return slice(0, 1) if stride == 0 and extent > 1 else slice(None)


def _repeated(target: StridedView, view: StridedView) -> StridedView:
    return target if target.shape == view.shape else target.broadcast_to(view.shape)


def copy(self: StridedView, order: str = "K", stream: Any = 0) -> StridedView:
    """Return a copy without gaps, in new memory of the same device.

    Parameters
    ----------
    order : {'C', 'F', 'A', 'K'}
        K keeps the order of the axes in memory.
    stream : stream or 0
        Where the copy is queued.
    """
    if self.device[0] == _CPU:
        return from_any(self.__array__(copy=True))
    target = empty_like(self, order=order, stream=stream or self.stream or None)
    target.copy_to_device(self, stream)
    return target


def _allocate(shape: Any, dtype: str, device: tuple[int, int]) -> StridedView:
    if device[0] == _CPU:
        import numpy as np

        return from_any(np.empty(shape, dtype))
    return empty(shape, dtype, device=device)


add_members({"copy": copy})
_export.set_hooks(order=order_view, allocate=_allocate)
