"""Arguments that Numba's own launch code takes: wrapped so that they arrive right.

Owns what ``numba.cuda.dispatcher.wrap_arg`` gives while we are enabled. Device arrays of
any producer are handed over as views. Host arrays are packed into contiguous memory,
copied in, and copied back element by element, so that strided and reversed ones work and
nothing between their elements is touched; elements that share memory share it in the copy.
Pinned memory is used in place.
"""

from __future__ import annotations

import warnings

import numpy as np
from numba.cuda import args as numba_args
from numba.cuda.core import config
from numba.cuda.core.errors import NumbaPerformanceWarning
from numba.cuda.cudadrv import devices
from numba.cuda.cudadrv.driver import driver

from stridedview import _driver, _dtype, _ingest, _pack, _sharing, _stream
from stridedview._layout import Layout
from stridedview.numba_cuda import _parameters, _types

_wrap_arg = numba_args.wrap_arg


PAGE_LOCKED = 1  # CU_MEMORYTYPE_HOST
HOST = 1  # DLPack's kDLCPU
NOT_CAPTURED = (
    "a host array cannot be copied while its stream captures a graph; move it to the "
    "device before the capture"
)


class _Width:
    """In place of a dtype, of which Numba's packing reads the itemsize only."""

    __slots__ = ("itemsize",)

    def __init__(self, itemsize):
        self.itemsize = itemsize


class _Strides:
    __slots__ = ("is_contiguous_c", "is_contiguous_f", "strides_in_bytes")

    def __init__(self, strides):
        self.strides_in_bytes = strides
        self.is_contiguous_c = self.is_contiguous_f = False


class _Packable:
    """An array as Numba's ``_prepare_args`` reads it; names are Numba's."""

    __slots__ = ("_layout", "dtype", "owner", "ptr", "shape", "size")

    def __init__(self, pointer, shape, strides, itemsize, owner):
        self.ptr = pointer
        self.shape = shape
        self.size = 1
        for extent in shape:
            self.size *= extent
        self.dtype = _Width(itemsize)
        self._layout = _Strides(strides)
        self.owner = owner


def _packable(view):
    pointer = view.ptr if view.size else 0
    return _Packable(pointer, view.shape, view.strides, view.itemsize, view)


class DeviceArgument(numba_args.ArgHint):
    """A device array of any producer, for Numba's ``_prepare_args``.

    A hint, as Numba's own ``wrap_arg`` leaves hints as they are.
    """

    def __init__(self, view):
        super().__init__(view)
        self.view = view

    def to_device(self, retr, stream=0):  # noqa: ARG002 - as Numba calls it
        """Return the array as Numba's packing reads it; no copy is made."""
        view = self.view
        retr.append(lambda: view)  # alive until the kernel is queued
        return _packable(view)


class HostArgument(numba_args.ArgHint):
    """A host array: copied in and back around the launch, as its hint says."""

    def __init__(self, view, *, copy_in, copy_back):
        super().__init__(view)
        self.view = view
        self.copy_in = copy_in
        self.copy_back = copy_back and not view.readonly
        if self.copy_back and view.size:
            _check_sharing(view)

    def to_device(self, retr, stream=0):
        """Copy in; append the copy back to ``retr``; return the device's array."""
        handle = _stream.handle_of(stream)
        view = self.view
        if not view.size:
            return _packable(view)
        if _stream.capturing(handle):
            raise RuntimeError(NOT_CAPTURED)
        aligned = view.ptr % _alignment(view) == 0 and _are_aligned(view)
        if aligned and _driver.memory_type(view.ptr) == PAGE_LOCKED:
            # A host array's values are there when the launch returns.
            if self.copy_in:
                _warn("a host synchronization, though no copy overhead: it is pinned")
            retr.append(lambda: _driver.synchronize_stream(handle))
            return _packable(view)
        if self.copy_in:
            _warn("copy overhead to/from device")
        return self._copied(retr, stream, handle)

    def _copied(self, retr, stream, handle):
        view = self.view
        mirror = _Mirror(view, written=self.copy_back)
        memory = mirror.memory
        device = devices.get_context().device._dev
        buffer = device.allocate(memory.nbytes, stream=stream)
        pointer = int(buffer.handle)
        if self.copy_in:
            mirror.items[...] = mirror.originals
            driver.cuMemcpyHtoDAsync(pointer, memory.ctypes.data, memory.nbytes, handle)

        def finish():
            if self.copy_back:
                driver.cuMemcpyDtoHAsync(memory.ctypes.data, pointer, memory.nbytes, handle)
            _driver.synchronize_stream(handle)
            if self.copy_back:
                mirror.originals[...] = mirror.items
            buffer.close(stream)

        retr.append(finish)
        return _Packable(
            pointer + mirror.first, view.shape, mirror.strides, view.itemsize, buffer
        )


class _Mirror:
    """Host memory that lies as the device's copy of a host array will.

    Items that share memory in the array share it in the copy: a kernel that writes to one
    would else be undone by the others as they are copied back.

    Parameters
    ----------
    view : StridedView
    written : bool
        Whether what the kernel leaves is copied back.

    Attributes
    ----------
    originals : numpy.ndarray
        Items of the array, of each that is repeated along an axis of stride 0 one.
    items : numpy.ndarray
        Their copies.
    memory : numpy.ndarray
        The bytes in which the copies lie.
    first : int
        Where the array's first item lies among the bytes.
    strides : tuple of int
        With which the kernel finds the copies, bytes.
    """

    def __init__(self, view, *, written):
        layout = _without_repeats(view)
        ones = (*map(slice, layout.shape), ...)
        self.originals = items_of(view)[ones]
        if layout.is_unique or not (written or _are_aligned(view)):
            self._pack()
        else:
            self._keep(layout)
        self.strides = tuple(
            0 if extent != kept else stride
            for extent, kept, stride in zip(
                view.shape, layout.shape, self.items.strides, strict=True
            )
        )

    def _pack(self):
        order = "F" if self.originals.flags.f_contiguous else "C"
        self.items = np.empty_like(self.originals, order=order, subok=False)
        self.memory = self.items.reshape(-1, order="A").view(np.uint8)
        self.first = 0

    def _keep(self, layout):
        low, high = layout.byte_extent
        self.first = -(low // 256) * 256  # as aligned as the device's memory
        self.memory = np.zeros(self.first + high, np.uint8)
        self.items = np.ndarray(
            layout.shape, self.originals.dtype, self.memory, self.first, layout.strides
        )


def _without_repeats(view):
    """Return the layout of a view with one item along each axis of stride 0."""
    axes = zip(view.shape, view.strides, strict=True)
    shape = [1 if stride == 0 else extent for extent, stride in axes]
    return Layout(shape, view.strides, itemsize=view.itemsize)


def _check_sharing(view):
    """Refuse items that share memory and cannot lie so on the device.

    Raises
    ------
    BufferError
        If a copy that they share, too, would not be aligned.
    """
    if not _are_aligned(view) and not _without_repeats(view).is_unique:
        raise BufferError(
            "its items share memory at addresses that are not aligned to the "
            f"{_alignment(view)} bytes of {view.dtype_name}; pass a copy (x.copy())"
        )


def _alignment(view):
    """Return the alignment of a view's dtype, bytes."""
    return _dtype.dtype(_sharing.dtype_of(view)).alignment


def _are_aligned(view):
    """Whether all items are, if the first one is."""
    # A kernel may not read across the boundaries of its items; a copy is aligned anew.
    alignment = _alignment(view)
    return all(
        stride % alignment == 0 or extent == 1
        for extent, stride in zip(view.shape, view.strides, strict=True)
    )


def _warn(cost):
    if config.CUDA_WARN_ON_IMPLICIT_COPY and not config.DISABLE_PERFORMANCE_WARNINGS:
        warnings.warn(
            NumbaPerformanceWarning(f"Host array used in CUDA kernel will incur {cost}."),
            stacklevel=2,
        )


class _Holder:
    def __init__(self, interface, view):
        self.__array_interface__ = interface
        self.view = view


def items_of(view):
    """Return a NumPy array over a host view's items, as opaque bytes of their width."""
    interface = {
        "version": 3,
        "shape": view.shape,
        "strides": view.strides,
        "typestr": f"|V{view.itemsize}",
        "data": (view.ptr, view.readonly),
    }
    return np.asarray(_Holder(interface, view))


def viewed(value):
    """Return a view of an argument that is an array; tuples and hints hold views then.

    Records, numbers and whatever else is no array stay as they are.
    """
    if type(value) in _types.HINTS:
        inner = viewed(value.value)
        return value if inner is value.value else type(value)(inner)
    kind = _pack.kind_name(value)
    if kind == "tuple":
        return _types.rebuilt(value, [viewed(item) for item in tuple.__iter__(value)])
    return value if kind != "array" or _is_record(value) else _ingest.from_any(value)


def _is_record(value):
    return _types.is_record(value) or (
        isinstance(value, np.ndarray) and value.ndim == 0 and value.dtype.names is not None
    )


def wrapped(formal, value):
    """Return an argument for ``_Kernel.launch`` that needs no patch to arrive right.

    Numbers come as what their formal type holds of them; a tuple of any class as a plain
    one of its own items.

    Raises
    ------
    OverflowError, TypeError
        If a number does not fit its formal type.
    """
    if _types.is_hint(value):
        return wrap_arg(value)
    kind = _pack.kind_name(value)
    if kind == "tuple":
        items = tuple.__iter__(value)
        return tuple(wrapped(*pair) for pair in zip(formal, items, strict=True))
    if kind in ("int", "scalar"):
        return _parameters.fitted(formal, value)
    return value if kind != "array" or _is_record(value) else wrap_arg(value)


def wrap_arg(value, default=numba_args.InOut):
    """Wrap an argument for Numba's ``_prepare_args``.

    Records and whatever is no array go to Numba's own ``wrap_arg``.
    """
    if isinstance(value, (DeviceArgument, HostArgument)):
        return value
    hint = default
    inner = value
    if isinstance(value, numba_args.ArgHint):
        hint = type(value)
        inner = value.value
    if _is_record(inner) or _pack.kind_name(inner) != "array":
        return _wrap_arg(value, default)
    view = _ingest.from_any(inner)
    if view.device[0] != HOST:
        return DeviceArgument(view)
    return HostArgument(
        view,
        copy_in=not issubclass(hint, numba_args.Out) or issubclass(hint, numba_args.InOut),
        copy_back=issubclass(hint, numba_args.Out),
    )
