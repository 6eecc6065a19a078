"""Allocating arrays and moving them to a device.

Owns the functions that fill what _alloc allocates, and ``copy``. It adds ``copy``
to StridedView and tells _export how to allocate and to order streams.
"""

from typing import Any

from stridedview import _assign, _export, _record, _transfer
from stridedview._alloc import (
    OutOfMemoryError,
    device_id,
    empty,
    empty_like,
    empty_many,
    pinned,
)
from stridedview._dtype import dtype as find_dtype
from stridedview._ingest import from_any, from_many
from stridedview._stream import is_named, order_view
from stridedview._transfer import without_record
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

_CPU, _CUDA, _MANAGED = 1, 2, 13
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
    """Return a new view of zeros; see :func:`empty`.

    Raises
    ------
    OutOfMemoryError, OverflowError, BufferError, TypeError, ValueError
        As for :func:`empty`.
    """
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
    """Return a new view filled with one value; see :func:`empty`.

    Raises
    ------
    OutOfMemoryError, OverflowError, BufferError, TypeError, ValueError
        As for :func:`empty`, and if the value cannot be converted to the dtype.
    """
    view = empty(shape, dtype, order=order, device=device, stream=stream, like=like)
    view.fill(value, stream or 0)
    return view


def to_device(
    array: Any,
    dtype: Any = None,
    *,
    order: str = "K",
    device: Any = None,
    stream: Any = None,
    like: Any = None,
) -> StridedView:
    """Return a view of an array's items on a device.

    Parameters
    ----------
    array : array or nested sequence of numbers
        An array that a device can use where it is, page-locked and managed memory
        included, is returned as a view of its own memory if it is as the other arguments
        ask; it is not copied. Any other is copied; the copy has no gaps.
    dtype : optional
        Of the array if absent. A conversion is done on the host, as in an assignment.
    order : {'C', 'F', 'A', 'K'}
        K keeps the order of the array's axes in memory.
    device : int, 'cuda:N' or a device object, optional
        An array elsewhere is copied there, also from another device or page-locked memory.
    stream : stream, optional
        The copy is queued there; without it, it is done on return. Where nothing has to
        be copied, the stream is put behind the work that made the array.
    like : array, optional
        Always copy, into memory as :func:`empty` takes it for this array.

    Raises
    ------
    OutOfMemoryError
        Saying how much was asked for.
    BufferError
        If ``array`` or ``like`` refuses to be read, or the allocator of ``like`` to give.
    TypeError, ValueError
        For a dtype that a device has not, a wrong order, a device that is none, not there
        or not that of ``like``.
    """
    view = as_view(array)
    if like is None and _is_there(view, device) and _is_so(view, dtype, order):
        if is_named(stream):
            order_view(view, stream)
        return view
    part = core(view)
    target = empty_like(part, dtype, order=order, device=device, stream=stream, like=like)
    target.setitem(..., part, stream or 0)
    return _repeated(target, view)


def _is_there(view: StridedView, device: Any) -> bool:
    kind, number = view.device
    wanted = -1 if device is None else device_id(device)
    if device is None:
        return kind != _CPU
    return kind in (_CUDA, _MANAGED) and wanted in (-1, number)


def _is_so(view: StridedView, dtype: Any, order: str) -> bool:
    """Whether a view has this dtype and this order, if they are given."""
    c, f = view.is_c_contiguous(), view.is_f_contiguous()
    orders = {"C": c, "F": f, "A": c or f, "K": True}
    if order not in orders:
        raise ValueError(f"order must be 'C', 'F', 'A' or 'K', got {order!r}")
    return orders[order] and (dtype is None or find_dtype(dtype).name == view.dtype_name)


_PROTOCOLS = ("__dlpack__", "__cuda_array_interface__", "__array_interface__")


def as_view(array: Any) -> StridedView:
    """Return a view of an array, or of what NumPy makes of numbers and sequences."""
    import numpy as np

    array = without_record(array)
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
    """Return a copy without gaps, in new memory of the same kind on the same device.

    Page-locked memory is copied to page-locked, managed to managed memory.

    Parameters
    ----------
    order : {'C', 'F', 'A', 'K'}
        K keeps the order of the axes in memory.
    stream : stream or 0
        Where the copy is queued.

    Raises
    ------
    OutOfMemoryError
        Saying how much was asked for.
    ValueError
        For a wrong order.
    """
    target = empty_like(self, order=order, stream=stream or self.stream or None, like=self)
    target.copy_to_device(self, stream)
    return target


def _allocate(shape: Any, dtype: str, device: tuple[int, int]) -> StridedView:
    if device[0] == _CPU:
        import numpy as np

        return from_any(np.empty(shape, dtype))
    return empty(shape, dtype, device=device)


add_members({"copy": copy})
_export.set_hooks(order=order_view, allocate=_allocate)
