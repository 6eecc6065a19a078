"""StridedView: a pointer, a Layout, a dtype and a device.

Owns the class, its attributes and the operations that make another view of the same
memory, but for those that take axes or extents one by one, which are in _variadic. It
touches no memory itself: exporting is in _export, copying and element access in
_transfer. Each of these adds its methods to the class when it is imported (see
``add_members``), so that imports point one way.
"""

from cpython.object cimport PyObject
from libc.stdint cimport int32_t, int64_t, intptr_t, uintptr_t

cimport cython

from stridedview._dlpack cimport kDLCPU, kDLCUDA, kDLCUDAHost, kDLCUDAManaged
from stridedview._dtype cimport (
    DType, dtype_by_id, dtype_facts, dtype_from_numpy, find_dtype,
)
from stridedview._layout cimport (
    Layout,
    broadcast_layout,
    expand_layout,
    reinterpret_layout,
    reshape_layout,
    reverse_layout,
    slice_layout,
    squeeze_layout,
    strided_layout,
)

import ctypes
import importlib

cdef extern from "Python.h":
    ctypedef struct PyTypeObject:
        PyObject* tp_dict
        void* tp_new
    void PyType_Modified(PyTypeObject* cls)

cdef dict DEVICE_NAMES = {
    kDLCPU: "cpu",
    kDLCUDA: "cuda",
    kDLCUDAHost: "cuda_host",
    kDLCUDAManaged: "cuda_managed",
}
cdef str HOW_TO_MAKE_ONE = (
    "a StridedView is made by stridedview.from_any(array), empty(), to_device() "
    "and their like, or from another view")
cdef object _numba_typer = None
cdef object _stream_reader = None


@cython.final
@cython.freelist(256)       # measured: making a view falls from 42 to 27 ns
cdef class StridedView:
    """An array on a device (or the host): memory of someone else, seen through a layout.

    Views come from ``from_any``, from the functions that allocate, and from other
    views; there is no constructor. A view never changes and never copies; its memory
    lives as long as ``owner``, which every view of it holds.

    Attributes
    ----------
    layout : Layout
    owner : object
        What keeps the memory alive.
    """

    def __init__(self):
        raise TypeError(HOW_TO_MAKE_ONE)

    # ---- facts ----

    @property
    def ptr(self):
        """Address of the first item."""
        return <uintptr_t>self.data

    @property
    def shape(self):
        """The extents, a tuple."""
        return self.layout.shape

    @property
    def strides(self):
        """Bytes from one item to the next along each axis, a tuple."""
        return self.layout.strides

    @property
    def strides_in_items(self):
        """The strides in items, as torch counts them."""
        return self.layout.strides_in_items

    @property
    def ndim(self):
        """Number of axes."""
        return self.layout.ndim

    @property
    def size(self):
        """Number of items."""
        return self.layout.size

    @property
    def itemsize(self):
        """Bytes of one item."""
        return self.layout.itemsize

    @property
    def nbytes(self):
        """Bytes of all items together, gaps not counted."""
        return self.layout.nbytes

    @property
    def alloc_size(self):
        """Bytes from the first byte in use to the last, gaps counted."""
        return self.layout.last_byte - self.layout.first_byte

    @property
    def dtype(self):
        """The NumPy dtype.

        Raises
        ------
        TypeError
            For bfloat16 and float8 where ml_dtypes is not installed: see ``dtype_name``.
        """
        cdef DType entry = dtype_by_id(self.dtype_id)
        return entry._numpy if entry._numpy is not None else entry.numpy

    @property
    def dtype_name(self):
        """The dtype's name, as torch has it."""
        return dtype_by_id(self.dtype_id).name

    @property
    def device(self):
        """DLPack's (device type, device id): (2, 0) is cuda:0, (1, 0) the host."""
        return self.device_type, self.device_id

    @property
    def readonly(self):
        """Whether writing through this view is refused."""
        return bool(self.is_readonly)

    @property
    def stream(self):
        """The stream that orders this memory: what ``bind`` was given, a handle, or 0."""
        if self.extra is not None and "stream" in self.extra:
            return self.extra["stream"]
        return 0 if self.stream_handle == NO_STREAM else self.stream_handle

    @property
    def flags(self):
        """A dict: C_CONTIGUOUS, F_CONTIGUOUS, WRITEABLE."""
        return {
            "C_CONTIGUOUS": bool(self.layout.is_c_contiguous),
            "F_CONTIGUOUS": bool(self.layout.is_f_contiguous),
            "WRITEABLE": not self.is_readonly,
        }

    def is_c_contiguous(self):
        """Return whether the items lie in C order without gaps, by NumPy's rule."""
        return bool(self.layout.is_c_contiguous)

    def is_f_contiguous(self):
        """Return whether the items lie in Fortran order without gaps."""
        return bool(self.layout.is_f_contiguous)

    def __len__(self):
        if self.layout.ndim == 0:
            raise TypeError("len() of a view of no dimensions")
        return self.layout.words[5]

    def __repr__(self):
        return (
            f"StridedView({self.dtype_name} {self.shape} [{self.layout.letter}]"
            f"{'' if self.layout.is_c_contiguous else f' strides {self.strides}'} "
            f"on {place_name(self)} at {<uintptr_t>self.data:#x}"
            f"{', read-only' if self.is_readonly else ''})")

    def __copy__(self):
        return self             # it cannot change

    # ---- other views of the same memory ----

    def __getitem__(self, key):
        cdef int64_t offset = 0
        cdef Layout layout
        if type(key) is str:
            return field(self, key)
        layout = slice_layout(self.layout, key, &offset)
        view = derive(self, layout, offset)
        if layout.ndim == 0 and _names_an_item(key):
            return _item(view)
        return view

    def __setitem__(self, key, value):
        (<object>self).setitem(key, value)

    def __iter__(self):
        if self.layout.ndim == 0:
            raise TypeError("iteration over a view of no dimensions")
        if self.layout.ndim == 1 and self.dtype.names is None:
            return iter((<object>self).copy_to_host())
        # One by one: an axis may be longer than a list can be.
        return map(self.__getitem__, range(self.layout.words[5]))

    @property
    def T(self):
        """The view with its axes reversed."""
        return derive(self, reverse_layout(self.layout), 0)

    def ravel(self, order="C", stream=0):
        """Give the items one axis; never copies.

        Raises
        ------
        ValueError
            If the items would have to be copied.
        """
        return _bound(derive(self, reshape_layout(self.layout, -1, order), 0), stream)

    def squeeze(self, axis=None, stream=0):
        """Drop the axes of extent 1, all or those named.

        Raises
        ------
        ValueError
            If a named axis has another extent.
        """
        return _bound(derive(self, squeeze_layout(self.layout, axis), 0), stream)

    def expand_dims(self, axis):
        """Insert axes of extent 1 at these positions of the result.

        Raises
        ------
        ValueError
            If a position is repeated or out of bounds, or there would be more than 64.
        """
        return derive(self, expand_layout(self.layout, axis), 0)

    def broadcast_to(self, shape):
        """Repeat axes of extent 1, and new leading ones; the result is read-only.

        Raises
        ------
        ValueError
            If the shapes do not agree.
        """
        cdef Layout layout = broadcast_layout(self.layout, shape)
        cdef StridedView view = derive(self, layout, 0)
        view.is_readonly = self.is_readonly or layout is not self.layout
        return view

    def as_strided(self, shape, strides, offset=0):
        """See the memory with this shape and these strides (bytes), ``offset`` bytes on.

        Nothing is checked against the size of the memory, which a view does not know.

        Raises
        ------
        ValueError
            If the lengths differ or an extent is negative.
        OverflowError
            If the offset, or an extent times its stride, does not fit 64 bits.
        """
        return derive(self, strided_layout(self.layout, shape, strides), offset)

    def view(self, dtype):
        """See the bytes as items of another dtype, along the last axis.

        Raises
        ------
        ValueError
            If the sizes of the items differ and the last axis is not contiguous, or its
            bytes do not divide.
        TypeError
            If a CUDA device has no such dtype.
        """
        cdef DType entry = find_dtype(dtype)
        cdef StridedView view = derive(
            self, reinterpret_layout(self.layout, dtype_facts[entry.id].itemsize), 0)
        view.dtype_id = entry.id
        return view

    def split(self, section, stream=0):
        """Yield the consecutive parts of ``section`` items of a one-dimensional view.

        Raises
        ------
        ValueError
            If the view has another number of dimensions, or ``section`` is below 1.
        """
        if self.layout.ndim != 1:
            raise ValueError(f"only a view of one dimension splits; this has {self.ndim}")
        if section < 1:
            raise ValueError(f"a part has at least one item, got section={section!r}")
        return (
            _bound(self[begin:begin + section], stream)
            for begin in range(0, self.layout.size, section))

    def bind(self, stream=0):
        """Return this view, ordered by ``stream`` from now on.

        Raises
        ------
        TypeError
            If it is no stream.
        """
        return _bound(derive(self, self.layout, 0), stream, False)

    # ---- what Numba and its users of device arrays ask for ----

    @property
    def __cuda_memory__(self):
        """Whether a kernel can read this memory where it is."""
        return on_device(self)

    @property
    def __cuda_ndarray__(self):
        """Whether this is, to Numba, an array on a device."""
        return on_device(self)

    @property
    def _numba_type_(self):
        """The Numba type of this view."""
        if _numba_typer is None:
            importlib.import_module("stridedview.numba_cuda")
        return _numba_typer(self)

    @property
    def _strided_memory_view_shim(self):
        return (<object>self).smv

    @property
    def device_ctypes_pointer(self):
        """The address as a ctypes.c_size_t, as Numba's: cuda.core's launch takes it."""
        return ctypes.c_size_t(<uintptr_t>self.data)

    @property
    def gpu_data(self):
        """Numba's MemoryPointer to this memory, made when first asked for."""
        if self.extra is None or "gpu_data" not in self.extra:
            _extra(self)["gpu_data"] = importlib.import_module(
                "stridedview.numba_cuda._arrays").memory_pointer(self)
        return self.extra["gpu_data"]

    @property
    def _cuda_memsize_(self):
        if self.extra is None or "_cuda_memsize_" not in self.extra:
            raise AttributeError("_cuda_memsize_")
        return self.extra["_cuda_memsize_"]

    @_cuda_memsize_.setter
    def _cuda_memsize_(self, size):
        _extra(self)["_cuda_memsize_"] = size


cdef object _refuse_new(PyObject* cls, PyObject* args, PyObject* keywords):
    raise TypeError(HOW_TO_MAKE_ONE)


# A view without a layout would be a crash at its first attribute, so that __new__ refuses
# too. In this module it goes to Cython's own allocation, not through the slot.
(<PyTypeObject*>StridedView).tp_new = <void*>_refuse_new


cdef dict _extra(StridedView view):
    if view.extra is None:
        view.extra = {}
    return <dict>view.extra


cdef StridedView make_view(
        void* data, Layout layout, int dtype_id, int32_t device_type, int32_t device_id,
        bint is_readonly, object owner, int family, intptr_t stream):
    cdef StridedView view = StridedView.__new__(StridedView)
    view.data = data
    view.layout = layout
    view.owner = owner
    view.stream_handle = stream
    view.device_type = device_type
    view.device_id = device_id
    view.dtype_id = dtype_id
    view.family = family
    view.is_readonly = is_readonly
    return view


cdef StridedView derive(StridedView source, Layout layout, int64_t offset):
    # Field by field, as nine arguments to make_view() cost a third of the whole.
    cdef StridedView view = StridedView.__new__(StridedView)
    view.data = <char*>source.data + offset
    view.layout = layout
    view.owner = source.owner
    view.stream_handle = source.stream_handle
    view.device_type = source.device_type
    view.device_id = source.device_id
    view.dtype_id = source.dtype_id
    view.family = source.family
    view.is_readonly = source.is_readonly
    if source.extra is not None:
        _pass_on(source, view, offset)
    return view


cdef int _pass_on(StridedView source, StridedView view, int64_t offset) except -1:
    # The bound stream holds for every view; Numba's pointer, which has a size, for one of
    # the same bytes.
    extra = <dict>source.extra
    if "stream" in extra:
        _extra(view)["stream"] = extra["stream"]
    if "gpu_data" in extra and offset == 0 and _same_extent(source.layout, view.layout):
        _extra(view)["gpu_data"] = extra["gpu_data"]
    return 0


cdef bint _same_extent(Layout one, Layout other) noexcept:
    return one.first_byte == other.first_byte and one.last_byte == other.last_byte


cdef str place_name(StridedView view):
    kind = DEVICE_NAMES.get(view.device_type, f"device type {view.device_type}")
    return f"{kind}:{view.device_id}"


cdef bint on_host(StridedView view) noexcept:
    return view.device_type != kDLCUDA


cdef bint on_device(StridedView view) noexcept:
    return view.device_type != kDLCPU


cdef bint _names_an_item(object key):
    # Integers alone name one item; with an Ellipsis, or None, it is a view of no axes.
    if type(key) is tuple:
        for part in <tuple>key:
            if part is Ellipsis:
                return False
        return True
    return key is not Ellipsis


cdef object _item(StridedView view):
    # An item of a structured array stays on the device, as Numba's DeviceRecord does.
    if dtype_facts[view.dtype_id].bits == 0 and view.dtype.names is not None:
        return (<object>view)._record()
    return (<object>view)._read()


cdef StridedView field(StridedView view, str name):
    cdef StridedView part
    cdef Layout layout
    fields = view.dtype.fields
    if fields is None:
        raise IndexError(f"{name!r}: dtype {view.dtype} has no fields")
    if name not in fields:
        raise ValueError(f"no field {name!r} in dtype {view.dtype}")
    dtype, offset = fields[name][:2]
    base = dtype.base
    steps = tuple([base.itemsize * _product(dtype.shape[i + 1:])
                   for i in range(len(dtype.shape))])
    layout = Layout(view.shape + dtype.shape, view.strides + steps, itemsize=base.itemsize)
    part = derive(view, layout, offset)
    part.dtype_id = dtype_from_numpy(base)
    return part


cdef int64_t _product(extents) except? -1:
    cdef int64_t product = 1
    for extent in extents:
        product *= extent
    return product


cdef StridedView _bound(StridedView view, object stream, bint unless_none=True):
    # Numba's own: a stream of 0 leaves the view's stream as it is, but not in bind().
    if not stream and unless_none:
        return view
    if stream and _stream_reader is None:
        importlib.import_module("stridedview._stream")
    view.stream_handle = _stream_reader(stream) if stream else NO_STREAM
    view.family = FAMILY_OWN if stream else FAMILY_NUMBA
    _extra(view)["stream"] = stream
    return view


def set_stream_reader(reader):
    """Install the function that gives a stream object's handle. Owned by _stream."""
    global _stream_reader
    _stream_reader = reader


def set_numba_typer(typer):
    """Install the function that gives a view's Numba type. Owned by numba_cuda."""
    global _numba_typer
    _numba_typer = typer


def numba_ipc_handle(StridedView view not None):
    """Return a handle from Numba's memory manager, or None for other memory."""
    # A MemoryPointer or a DeviceNDArray; nothing is imported to find out.
    if not hasattr(getattr(view.owner, "gpu_data", view.owner), "device_pointer"):
        return None
    return importlib.import_module("stridedview.numba_cuda._arrays").ipc_handle(view)


def numba_record_type(StridedView view not None):
    """Return the Numba type of one item of a structured view."""
    types = importlib.import_module("stridedview.numba_cuda._types")
    return types._registered_type(view.dtype)


def add_members(dict members):
    """Put functions and properties on StridedView.

    For this package's own modules at import, before anybody else sees the type: a
    static type refuses setattr, and a class has one file while its methods would make
    that file long and its imports circular.
    """
    cdef PyTypeObject* cls = <PyTypeObject*>StridedView
    (<dict>cls.tp_dict).update(members)
    PyType_Modified(cls)


def set_gpu_data(StridedView view not None, pointer):
    """Say which of Numba's MemoryPointers a view's memory came from."""
    _extra(view)["gpu_data"] = pointer
    return view


def as_readonly(StridedView view not None):
    """Return a view of the same memory that cannot be written through."""
    cdef StridedView guarded = derive(view, view.layout, 0)
    guarded.is_readonly = True
    return guarded


def view_of_pointer(
        uintptr_t ptr, Layout layout not None, dtype, device=(2, 0), *, readonly=False,
        owner=None, intptr_t stream=NO_STREAM, int family=FAMILY_NONE):
    """Return a view of memory that is given by its address.

    Parameters
    ----------
    ptr : int
        Address of the first item.
    layout : Layout
    dtype : str, numpy.dtype or anything that ``stridedview.dtype`` takes
    device : (int, int)
        DLPack's device type and id.
    readonly : bool
    owner : object
        What keeps the memory alive; nothing else does.
    stream : int
        Handle of the stream that orders the memory, or -1 for none.
    family : int
        Whose current stream counts at a launch.

    Raises
    ------
    ValueError
        If the layout's itemsize is not the dtype's.
    """
    cdef DType entry = find_dtype(dtype)
    if layout.itemsize != dtype_facts[entry.id].itemsize:
        raise ValueError(
            f"layout has items of {layout.itemsize} bytes, dtype {entry.name} of "
            f"{dtype_facts[entry.id].itemsize}")
    return make_view(
        <void*>ptr, layout, entry.id, device[0], device[1], readonly, owner, family, stream)
