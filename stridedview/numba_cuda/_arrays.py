"""StridedViews from numba-cuda's own array functions: ``enable(arrays=True)``.

Owns the replacements of the functions that make DeviceNDArrays, as a table for the
patch, and Numba's MemoryPointer to a view's memory. Memory comes from Numba's memory
manager, so that an EMM plugin, deferred deallocation and IPC handles work as before.
"""

from __future__ import annotations

import ctypes
import inspect
from typing import NamedTuple

import numpy as np
from numba import cuda
from numba.cuda import api
from numba.cuda.api_util import prepare_shape_strides_dtype
from numba.cuda.core import config
from numba.cuda.cudadrv import devices, driver

from stridedview import _sharing, _view, memory
from stridedview._layout import Layout

FAMILY_NUMBA = 3  # as in _view.pxd: Numba's default stream, or the array's own
_CPU, _CUDA = 1, 2
_OUT_OF_MEMORY = driver.binding.CUresult.CUDA_ERROR_OUT_OF_MEMORY


def memory_pointer(view):
    """Return a MemoryPointer to a view's first item; it keeps the view's memory alive."""
    pointer = driver.binding.CUdeviceptr(view.ptr if view.size else 0)
    context = _context(view)
    # The owner, not the view: the view holds the pointer, and a cycle frees memory late.
    owner = view.owner if view.owner is not None else view
    return driver.MemoryPointer(context, pointer, size=view.alloc_size, owner=owner)


def _context(view):
    # Not get_context(number): that pushes the context on the thread's stack and leaves it.
    return devices.gpus[view.device[1]].get_primary_context()


class OutOfMemoryError(memory.OutOfMemoryError, driver.CudaAPIError):
    """A device has not the memory that was asked for: Numba's own error, with a size."""

    def __init__(self, message, nbytes):
        memory.OutOfMemoryError.__init__(self, message, nbytes)
        self.code, self.msg = _OUT_OF_MEMORY, message

    __str__ = MemoryError.__str__


class IpcHandle:
    """A handle to a view's memory, made and opened by Numba's memory manager."""

    def __init__(self, ipc_handle, layout, dtype, readonly=False):
        self._ipc_handle = ipc_handle
        self._layout = layout
        self._dtype = dtype
        self._readonly = readonly

    def __reduce__(self):
        handle = self._ipc_handle
        if type(handle) is driver.IpcHandle and not hasattr(handle.handle, "reserved"):
            # Numba's own pickling reads an attribute that cuda-bindings has no more.
            raw = ctypes.string_at(handle.handle.getPtr(), _sharing.HANDLE_BYTES)
            handle = _RawHandle(raw, handle.size, handle.source_info, handle.offset)
        return IpcHandle, (handle, self._layout, self._dtype, self._readonly)

    def open(self):
        """Return a view of the memory, in a process other than the maker's.

        Raises
        ------
        ValueError
            If it is open already, or this is the process that made it.
        """
        context = devices.get_context()
        pointer = self._ipc_handle.open(context)
        return _view.view_of_pointer(
            int(pointer.device_pointer),
            self._layout,
            self._dtype,
            (_CUDA, context.device.id),
            readonly=self._readonly,
            owner=pointer,
            family=FAMILY_NUMBA,
        )

    def close(self):
        """End the use of the memory: views of it must not be touched any more."""
        self._ipc_handle.close()

    def __enter__(self):
        return self.open()

    def __exit__(self, *exception):
        self.close()


class _RawHandle(NamedTuple):
    """The bytes of one of Numba's handles and what it knows; it unpickles as a handle."""

    raw: bytes
    size: int
    source_info: object
    offset: int

    def __reduce__(self):
        return _handle_of, tuple(self)


def _handle_of(raw, size, source_info, offset):
    handle = driver.binding.CUipcMemHandle()
    ctypes.memmove(handle.getPtr(), raw, len(raw))
    return driver.IpcHandle(None, handle, size, source_info, offset)


def ipc_handle(view):
    """Return a handle to the memory of a view that Numba's memory manager owns."""
    handle = _context(view).get_ipc_handle(view.gpu_data)
    return IpcHandle(handle, view.layout, _sharing.dtype_of(view), view.readonly)


def _allocate(layout, dtype, stream):
    """Return a view of Numba's memory, of the size from the first byte to the last."""
    context = devices.get_context()
    low, high = layout.byte_extent
    pointer, ptr = None, 0
    if high > low:
        pointer = _memory(context, high - low, layout, dtype)
        ptr = int(pointer.device_pointer) - low
    view = _view.view_of_pointer(
        ptr, layout, dtype, (_CUDA, context.device.id), owner=pointer, family=FAMILY_NUMBA
    )
    if pointer is not None and low == 0:
        _view.set_gpu_data(view, pointer)
    return view.bind(stream) if stream else view


def _memory(context, nbytes, layout, dtype):
    try:
        return context.memalloc(nbytes)
    except driver.CudaAPIError as error:
        if error.code != _OUT_OF_MEMORY:
            raise
        raise OutOfMemoryError(
            f"out of memory on cuda:{context.device.id}: {nbytes} bytes asked for "
            f"{dtype} {layout.shape}",
            nbytes,
        ) from error


def device_array(shape, dtype=np.float64, strides=None, order="C", stream=0):
    """Return a new StridedView of uninitialized device memory, as Numba's function does."""
    shape, strides, dtype = prepare_shape_strides_dtype(shape, strides, dtype, order)
    return _allocate(Layout(shape, strides, itemsize=dtype.itemsize), dtype, stream)


def device_array_like(ary, stream=0):
    """Return a new StridedView like an array: its shape and order, without its gaps."""
    shape, strides = ary.shape, ary.strides
    axes = sorted(range(len(shape)), key=lambda axis: (abs(strides[axis]), -axis))
    compact = [0] * len(shape)
    step = ary.dtype.itemsize
    for axis in axes:
        compact[axis] = step
        step *= max(shape[axis], 1)
    return _allocate(Layout(shape, compact, itemsize=ary.dtype.itemsize), ary.dtype, stream)


def to_device(obj, stream=0, copy=True, to=None):
    """Return a StridedView of an array on the device, copied there if it is on the host."""
    if to is not None:
        if copy:
            to.copy_to_device(obj, stream=stream)
        return to
    record = isinstance(obj, np.void)
    view = memory.as_view(obj)
    if view.device[0] != _CPU:
        return view.bind(stream) if stream else view
    core = memory.core(view)
    target = device_array_like(core, stream=stream)
    if copy:
        target.copy_to_device(core, stream=stream)
    if core is not view:
        # Writable, as Numba has it, though a write reaches many items.
        strides = [
            s if n > 1 else 0 for n, s in zip(core.shape, target.strides, strict=True)
        ]
        target = target.as_strided(view.shape, strides)
    return target[()] if record else target


def as_cuda_array(obj, sync=True):
    """Return a StridedView of any object on a device; nothing is copied.

    Raises
    ------
    TypeError
        If it is no array, or an array on the host.
    """
    view = _sharing.from_any(obj)
    if view.device[0] == _CPU:
        raise TypeError(
            f"{type(obj).__name__} is on the host; cuda.to_device copies it to the device"
        )
    return _synchronized(view, sync)


def _synchronized(view, sync):
    if not view.stream:
        return view
    stream = view.stream
    if isinstance(stream, int):
        stream = cuda.external_stream(stream)
    if sync and config.CUDA_ARRAY_INTERFACE_SYNC:
        stream.synchronize()
    return view.bind(stream)


class _Described:
    """An object whose CUDA array interface is what a caller passed."""

    def __init__(self, desc, owner):
        self.__cuda_array_interface__ = desc
        self.owner = owner


def from_cuda_array_interface(desc, owner=None, sync=True):
    """Return a StridedView from a description by the CUDA array interface.

    Raises
    ------
    NotImplementedError
        If it has a mask.
    """
    if desc.get("mask") is not None:
        raise NotImplementedError("Masked arrays are not supported")
    return _synchronized(_sharing.from_any(_Described(desc, owner)), sync)


def _parameters(*names):
    def probe(function):
        found = tuple(inspect.signature(function).parameters)
        return "" if found == names else f"takes {found}, expected {names}"

    return probe


_REPLACED = (
    (device_array, ("shape", "dtype", "strides", "order", "stream")),
    (device_array_like, ("ary", "stream")),
    (to_device, ("obj", "stream", "copy", "to")),
    (as_cuda_array, ("obj", "sync")),
    (from_cuda_array_interface, ("desc", "owner", "sync")),
)


def table():
    """Return the rows (owner, attribute, replacement, probe), as the patch has them.

    Both the module that defines the functions and ``numba.cuda`` have them as attributes;
    ``pinned_array``, ``mapped_array``, ``managed_array`` and their like stay Numba's.
    """
    return [
        (owner, function.__name__, function, _parameters(*names))
        for owner in (cuda, api)
        for function, names in _REPLACED
    ]
