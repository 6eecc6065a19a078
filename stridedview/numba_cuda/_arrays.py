"""StridedViews from numba-cuda's own array functions: ``enable(arrays=True)``.

Owns the replacements of the functions that make DeviceNDArrays, as a table for the
patch, and Numba's MemoryPointer to a view's memory. Memory comes from Numba's memory
manager, so that an EMM plugin, deferred deallocation and IPC handles work as before.
"""

from __future__ import annotations

import inspect

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


class IpcHandle:
    """A handle to a view's memory, made and opened by Numba's memory manager."""

    def __init__(self, ipc_handle, layout, dtype):
        self._ipc_handle = ipc_handle
        self._layout = layout
        self._dtype = dtype

    def open(self):
        """Return a view of the memory, in a process other than the maker's."""
        context = devices.get_context()
        pointer = self._ipc_handle.open(context)
        return _view.view_of_pointer(
            int(pointer.device_pointer),
            self._layout,
            self._dtype,
            (_CUDA, context.device.id),
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


def ipc_handle(view):
    """Return a handle to the memory of a view that Numba's memory manager owns."""
    context = _context(view)
    return IpcHandle(context.get_ipc_handle(view.gpu_data), view.layout, view.dtype)


def _allocate(layout, dtype, stream):
    """Return a view of Numba's memory, of the size from the first byte to the last."""
    context = devices.get_context()
    low, high = layout.byte_extent
    pointer, ptr = None, 0
    if high > low:
        pointer = context.memalloc(high - low)
        ptr = int(pointer.device_pointer) - low
    view = _view.view_of_pointer(
        ptr, layout, dtype, (_CUDA, context.device.id), owner=pointer, family=FAMILY_NUMBA
    )
    if pointer is not None and low == 0:
        _view.set_gpu_data(view, pointer)
    return view.bind(stream) if stream else view


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
