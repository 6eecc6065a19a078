"""Views in other processes: pickling by value, and handles to the same memory.

Owns the pickled form and the IPC handle. It adds ``__reduce_ex__`` and
``get_ipc_handle`` to StridedView. As the last module that adds members it also
hands the public names of ``memory`` on, so that a view got through the package has
them all.
"""

from __future__ import annotations

import ctypes
from typing import Any

from stridedview._alloc import empty_in
from stridedview._dtype import dtype as find_dtype
from stridedview._dtype import is_static
from stridedview._layout import Layout
from stridedview._view import (
    StridedView,
    add_members,
    as_readonly,
    numba_ipc_handle,
    view_of_pointer,
)
from stridedview.memory import (
    OutOfMemoryError,
    empty,
    empty_like,
    empty_many,
    from_any,
    from_many,
    full,
    pinned,
    to_device,
    zeros,
)

__all__ = [
    "IpcHandle",
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

_CPU, _CUDA = 1, 2
HANDLE_BYTES = 64  # of a CUipcMemHandle


# ---- pickling by value ---------------------------------------------------------------


def _reduce_ex(self: StridedView, _protocol: int) -> tuple[Any, ...]:
    """Pickle the items, their dtype and the device; protocol 5 can pass them out of band.

    The items travel as a NumPy array in the order of their axes, so gaps are not sent.
    They come back in the kind of memory they were in, on the device of the same number.
    """
    what = dtype_of(self)
    # NumPy may lack the dtype: the bytes then travel as unsigned integers.
    plain = self if find_dtype(what).typestr else self.view(f"u{self.itemsize}")
    return _restore, (plain.copy_to_host(), what, self.device, self.readonly)


def dtype_of(view: StridedView) -> Any:
    """Return what names a view's dtype in every process, also where NumPy has none."""
    return view.dtype_name if is_static(view.dtype_name) else view.dtype


def _restore(
    array: Any, dtype: Any, device: tuple[int, int], readonly: bool
) -> StridedView:
    kind, number = device
    view = from_any(array)
    if kind == _CUDA:
        view = to_device(view, device=number)
    elif kind != _CPU:
        source, view = view, empty_in(device, view)
        view.copy_to_device(source)
    view = view.view(dtype)
    return as_readonly(view) if readonly and not view.readonly else view


# ---- the same memory in another process ----------------------------------------------


def _ask(result: tuple[Any, ...], what: str, advice: str) -> Any:
    code, *values = result
    if int(code) != 0:
        raise BufferError(f"{what} failed: {code.name}; {advice}")
    return values[0] if len(values) == 1 else values


class IpcHandle:
    """A handle to a view's memory for another process on this machine.

    It pickles. There, ``open()`` gives a view of the same memory, with the shape, the
    strides and the offset within its block that it had here, read-only if it was, and
    ``close()`` ends its use; as a context manager it does both. The process that made it
    must keep the memory.
    """

    def __init__(
        self,
        handle: bytes,
        offset: int,
        layout: Layout,
        dtype: Any,
        device: int,
        readonly: bool = False,
    ) -> None:
        self._handle = handle
        self._offset = offset
        self._layout = layout
        self._dtype = dtype
        self._device = device
        self._readonly = readonly
        self._base: int | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return IpcHandle, (
            self._handle,
            self._offset,
            self._layout,
            self._dtype,
            self._device,
            self._readonly,
        )

    def open(self) -> StridedView:
        """Return a view of the memory, read-only if the one it was made of is.

        Raises
        ------
        BufferError
            If the driver refuses: in the process that made the handle, for one.
        ValueError
            If it is open already.
        """
        from cuda.bindings import driver
        from cuda.core import Device

        if self._base is not None:
            raise ValueError("IpcHandle is already opened; close() it first")
        if not isinstance(self._handle, bytes) or len(self._handle) != HANDLE_BYTES:
            raise ValueError(
                f"this is no IPC handle: the driver's has {HANDLE_BYTES} bytes"
            )
        handle = driver.CUipcMemHandle()
        ctypes.memmove(handle.getPtr(), self._handle, HANDLE_BYTES)
        before = driver.cuCtxGetCurrent()[1]
        Device(self._device).set_current()
        try:
            return self._opened(driver, handle)
        finally:
            if before is not None and int(before):
                driver.cuCtxSetCurrent(before)

    def _opened(self, driver: Any, handle: Any) -> StridedView:
        flag = driver.CUipcMem_flags.CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
        base = _ask(
            driver.cuIpcOpenMemHandle(handle, flag),
            "cuIpcOpenMemHandle",
            "a handle opens only in a process other than its maker's",
        )
        self._base = int(base)
        return view_of_pointer(
            self._base + self._offset,
            self._layout,
            self._dtype,
            (_CUDA, self._device),
            readonly=self._readonly,
            owner=self,
        )

    def close(self) -> None:
        """End the use of the memory: views of it must not be touched any more."""
        from cuda.bindings import driver

        if self._base is not None:
            _ask(driver.cuIpcCloseMemHandle(self._base), "cuIpcCloseMemHandle", "")
            self._base = None

    def __enter__(self) -> StridedView:
        return self.open()

    def __exit__(self, *exception: object) -> None:
        self.close()


def _get_ipc_handle(self: StridedView) -> Any:
    """Return a handle with which another process can use this memory.

    Raises
    ------
    BufferError
        If this is no device memory, or memory of a stream-ordered pool, which CUDA's IPC
        handles do not reach.
    """
    from cuda.bindings import driver

    if self.device[0] != _CUDA:
        raise BufferError(f"only device memory has IPC handles; this is on {self.device}")
    ours = numba_ipc_handle(self)
    if ours is not None:
        return ours
    advice = (
        "memory of a stream-ordered pool (stridedview.empty's default) cannot be shared: "
        "allocate with like=torch_tensor, or with numba.cuda.device_array"
    )
    base, _ = _ask(driver.cuMemGetAddressRange(self.ptr), "cuMemGetAddressRange", advice)
    handle = _ask(driver.cuIpcGetMemHandle(base), "cuIpcGetMemHandle", advice)
    return IpcHandle(
        ctypes.string_at(handle.getPtr(), HANDLE_BYTES),
        self.ptr - int(base),
        self.layout,
        dtype_of(self),
        self.device[1],
        self.readonly,
    )


add_members({"__reduce_ex__": _reduce_ex, "get_ipc_handle": _get_ipc_handle})
