"""The protocols through which other libraries see a StridedView.

Owns DLPack out (method, capsules, C exchange API), the CUDA and the host array
interface, ``.smv`` and ``.to_torch()``. It copies only where a protocol asks for a
copy, and then through ``copy`` and ``copy_to_host`` of the class. Every export
holds the view, and the view its owner; the stream that orders the memory is told
to the consumer, or put before the consumer's by the hook of ``set_hooks``.
"""

from cpython.object cimport PyObject
from cpython.pycapsule cimport PyCapsule_New
from cpython.ref cimport Py_INCREF
from libc.stdint cimport int32_t, intptr_t, uint64_t, uintptr_t

from stridedview._dlpack cimport (
    DLPACK_FLAG_BITMASK_IS_COPIED,
    DLPACK_FLAG_BITMASK_READ_ONLY,
    DLPACK_MAJOR,
    DLPACK_MINOR,
    DLManagedTensorVersioned,
    DLPackCurrentWorkStream,
    DLPackDLTensorFromPyObject,
    DLPackExchangeAPI,
    DLPackManagedTensorFromPyObject,
    DLPackManagedTensorToPyObject,
    DLPackSetError,
    DLTensor,
    kDLCPU,
    kDLCUDA,
    kDLCUDAHost,
    kDLCUDAManaged,
)
from stridedview._dtype cimport DType, dtype_by_id, dtype_facts, dtype_from_dlpack
from stridedview._exchange cimport (
    Managed,
    find_exchange,
    raise_set_error,
    source_from_managed,
)
from stridedview._layout cimport intern_layout
from stridedview._managed cimport (
    fill_dltensor,
    legacy_capsule,
    new_managed,
    versioned_capsule,
)
from stridedview._source cimport Source
from stridedview._view cimport (
    FAMILY_NONE,
    NO_STREAM,
    StridedView,
    make_view,
    on_device,
    on_host,
)

import operator

import numpy as np

from stridedview import _torch_gate
from stridedview._view import add_members

cdef const char* EXCHANGE = "dlpack_exchange_api"

cdef object _order_hook = None
cdef object _current_stream_hook = None
cdef object _allocate_hook = None


def set_hooks(*, order=None, current_stream=None, allocate=None):
    """Install what this module needs of modules above it.

    Parameters
    ----------
    order : callable(view, consumer_stream)
        Put a stream (a handle) behind the one that orders the view.
    current_stream : callable(device_id) -> int
        The stream on which work for a device is queued now.
    allocate : callable(shape, dtype_name, device) -> StridedView
    """
    global _order_hook, _current_stream_hook, _allocate_hook
    _order_hook = order or _order_hook
    _current_stream_hook = current_stream or _current_stream_hook
    _allocate_hook = allocate or _allocate_hook


# ---- DLPack, the method --------------------------------------------------------------


cdef int _fill(StridedView view, int32_t device_type, DLTensor* out) except -1:
    # There is one host, whatever device pinned memory was taken for.
    return fill_dltensor(
        out, view.data, view.layout, view.dtype_id, device_type,
        0 if device_type == kDLCPU else view.device_id)


cdef uint64_t _flags(StridedView view, bint copied) noexcept:
    return (
        (<uint64_t>DLPACK_FLAG_BITMASK_READ_ONLY if view.is_readonly else 0)
        | (<uint64_t>DLPACK_FLAG_BITMASK_IS_COPIED if copied else 0))


cdef object _consumer_stream(object stream):
    # None, or an int of what the protocol allows.
    if stream is None:
        return None
    try:
        if isinstance(stream, (bool, np.bool_)):
            raise TypeError
        number = operator.index(stream)
    except TypeError:
        raise TypeError(
            "stream must be None or an integer: -1, 1 (legacy), 2 (per thread) or a handle, "
            f"got {stream!r}") from None
    if number == 0 or not -1 <= number < 2**64:
        raise BufferError(
            "stream must be None, -1, 1 (legacy), 2 (per thread) or a handle, "
            f"got {stream!r}")
    return number


cdef tuple _pair(object value, str name):
    try:
        first, second = value
        return operator.index(first), operator.index(second)
    except (TypeError, ValueError):
        raise TypeError(f"{name} must be a pair of integers, got {value!r}") from None


cdef int _order_consumer(StridedView view, object stream) except -1:
    # -1 says "no ordering". None is the legacy stream for CUDA; a view whose producer
    # names no stream has nothing to be put before.
    stream = _consumer_stream(stream)
    if not on_device(view) or stream == -1:
        return 0
    if view.stream_handle == NO_STREAM and view.family == FAMILY_NONE:
        return 0
    if _order_hook is not None:
        _order_hook(view, 1 if stream is None else stream)
    return 0


cdef StridedView _on_asked_device(StridedView view, object asked, object copy):
    # Return the view itself, or a copy of it, that lives on the device asked for.
    cdef bint to_host = asked == (kDLCPU, 0)
    cdef bint same = asked is None or asked == view.device
    if to_host and on_host(view):
        same = True             # pinned and managed memory is the host's as it stands
    if same and not copy:
        return view
    if copy is False:
        raise BufferError(
            f"a view on device {view.device} cannot be given to {asked} without a copy, "
            "which copy=False rules out")
    if to_host:
        return (<object>view)._host_copy()
    if same:
        return (<object>view).copy()
    raise BufferError(
        f"a view on device {view.device} is not copied to device {asked}; "
        "use stridedview.to_device")


cdef object _UNSAID = object()      # a keyword that the caller left out


cdef bint _is_asked_by_torch(object stream, object max_version, object copy) except -1:
    # No consumer says who it is. torch (2.9 to 2.13) alone asks for (1, 0) and leaves copy
    # out unless its caller gave it, which NumPy never does; -1 is cuda.core.
    return (
        copy is _UNSAID and stream != -1 and type(max_version) is tuple
        and max_version == (1, 0))


cdef int _refuse_reversed(StridedView view) except -1:
    # torch computes the size of a storage in a function that is noexcept: what it throws of
    # a negative stride ends the process.
    cdef int axis
    if not view.layout.size:
        return 0
    for axis, (extent, stride) in enumerate(zip(view.shape, view.strides)):
        if stride < 0 and extent > 1:
            raise BufferError(
                f"axis {axis} of this view is reversed (strides {view.strides} in bytes), "
                "and torch has no negative strides; pass view.copy(). A consumer of DLPack "
                "that has them asks with copy=None")
    return 0


def __dlpack__(
        StridedView self not None, *, stream=None, max_version=None, dl_device=None,
        copy=_UNSAID):
    """Return a DLPack capsule of this view.

    Parameters
    ----------
    stream : int, optional
        The consumer's: None or 1 legacy, 2 per thread, -1 no ordering, or a handle.
    max_version : (int, int), optional
        The newest DLPack the consumer takes. Without it, or below 1.0, the capsule is
        of the old form, which cannot say that memory is read-only.
    dl_device : (int, int), optional
        Where the consumer wants the data: this device, or the host.
    copy : bool, optional
        True always copies, False never, None where ``dl_device`` needs it.

    Raises
    ------
    BufferError
        If DLPack cannot say the dtype or the strides, if a read-only view is asked for
        in the old form, or if the device or stream cannot be honoured: a stream of 0, of
        less than -1 or of more than 64 bits cannot. If a stride is negative and the
        keywords are those of ``torch.from_dlpack``, which it would abort.
    TypeError
        If ``stream`` is no integer, or ``max_version`` or ``dl_device`` no pair of them.
    """
    cdef bint is_for_torch = _is_asked_by_torch(stream, max_version, copy)
    if max_version is not None:
        max_version = _pair(max_version, "max_version")
    if dl_device is not None:
        dl_device = _pair(dl_device, "dl_device")
    _consumer_stream(stream)            # before anything is copied for it
    cdef StridedView view = _on_asked_device(
        self, dl_device, None if copy is _UNSAID else copy)
    cdef DLTensor tensor
    cdef int32_t device_type = view.device_type
    if is_for_torch:
        _refuse_reversed(view)
    if dl_device is not None and dl_device[0] == kDLCPU:
        device_type = kDLCPU
    _fill(view, device_type, &tensor)
    _order_consumer(view, stream)
    if max_version is not None and max_version[0] >= 1:
        return versioned_capsule(&tensor, view, _flags(view, view is not self))
    if view.is_readonly:
        raise BufferError(
            "this view is read-only, which DLPack before 1.0 cannot say: the consumer "
            "must pass max_version=(1, 0) or newer")
    return legacy_capsule(&tensor, view)


def __dlpack_device__(StridedView self not None):
    """Return DLPack's (device type, device id)."""
    return self.device_type, self.device_id


# ---- DLPack, the C exchange API ------------------------------------------------------
#
# Each function is declared `except -1` and cast to the API's type: the same C function,
# which returns -1 with the Python error set, as the specification asks. The API is
# called with the GIL held, except the allocator, which takes it.

cdef StridedView _view_of(void* py_object):
    # Borrowed from the caller for the call. Exact, as the type is final.
    if type(<object>py_object) is not StridedView:
        raise TypeError(f"expected a StridedView, got {type(<object>py_object).__name__}")
    return <StridedView>py_object


cdef int _managed_from_object(void* py_object, DLManagedTensorVersioned** out) except -1:
    cdef StridedView view = _view_of(py_object)
    cdef DLTensor tensor
    _fill(view, view.device_type, &tensor)
    out[0] = new_managed(&tensor, view, _flags(view, False))
    return 0


cdef int _dltensor_from_object(void* py_object, DLTensor* out) except -1:
    # Borrowed: good as long as the view is, which the caller holds.
    cdef StridedView view = _view_of(py_object)
    return _fill(view, view.device_type, out)


cdef int _managed_to_object(DLManagedTensorVersioned* managed, void** out) except -1:
    cdef object view = view_of_managed(managed)
    Py_INCREF(view)             # the caller's reference
    out[0] = <void*>view
    return 0


cdef StridedView view_of_managed(DLManagedTensorVersioned* managed):
    """Return a view that owns a managed tensor; on an error the caller still owns it."""
    cdef Source source
    cdef Managed owner
    source_from_managed(&source, managed)
    layout = intern_layout(
        source.ndim, source.shape, source.strides, source.unit,
        dtype_facts[source.dtype].itemsize)
    owner = Managed.__new__(Managed)
    view = make_view(
        source.data, layout, source.dtype, source.device_type, source.device_id,
        source.is_readonly, owner, FAMILY_NONE, NO_STREAM)
    owner.tensor = managed
    return view


cdef int _current_work_stream(
        int32_t device_type, int32_t device_id, void** out) except -1:
    cdef intptr_t handle = 0
    if device_type != kDLCPU and _current_stream_hook is not None:
        handle = _current_stream_hook(device_id)
    out[0] = <void*>handle
    return 0


cdef int _allocate(
        DLTensor* prototype, DLManagedTensorVersioned** out, void* context,
        DLPackSetError set_error) noexcept with gil:
    try:
        return _allocate_like(prototype, out)
    except BaseException as error:
        # Told through set_error, and so not left as a Python error too.
        if set_error != NULL:
            kind = type(error).__name__.encode(errors="replace")
            message = str(error).encode(errors="replace")
            set_error(context, kind, message)
        return -1


cdef int _allocate_like(DLTensor* prototype, DLManagedTensorVersioned** out) except -1:
    cdef int i
    cdef int dtype_id = dtype_from_dlpack(
        prototype.dtype.code, prototype.dtype.bits, prototype.dtype.lanes)
    cdef StridedView view
    if _allocate_hook is None:
        raise BufferError("this build of stridedview cannot allocate")
    view = _allocate_hook(
        tuple([prototype.shape[i] for i in range(prototype.ndim)]),
        dtype_by_id(dtype_id).name,
        (prototype.device.device_type, prototype.device.device_id))
    return _managed_from_object(<void*>view, out)


cdef DLPackExchangeAPI exchange_api
exchange_api.header.version.major = DLPACK_MAJOR
exchange_api.header.version.minor = DLPACK_MINOR
exchange_api.header.prev_api = NULL
exchange_api.managed_tensor_allocator = _allocate
exchange_api.managed_tensor_from_py_object_no_sync = (
    <DLPackManagedTensorFromPyObject>_managed_from_object)
exchange_api.managed_tensor_to_py_object_no_sync = (
    <DLPackManagedTensorToPyObject>_managed_to_object)
exchange_api.dltensor_from_py_object_no_sync = (
    <DLPackDLTensorFromPyObject>_dltensor_from_object)
exchange_api.current_work_stream = (
    <DLPackCurrentWorkStream>_current_work_stream)


# ---- array interfaces ----------------------------------------------------------------

cdef enum:
    NOWHERE = 256       # the address of no items on the host, aligned for every dtype


cdef dict _interface(StridedView view):
    cdef DType entry = dtype_by_id(view.dtype_id)
    if not entry.typestr:
        raise AttributeError(f"the array interface has no typestr for {entry.name}")
    interface = {
        "version": 3,
        "shape": view.shape,
        "typestr": entry.typestr,
        "data": (<uintptr_t>view.data if view.layout.size else 0, bool(view.is_readonly)),
        "strides": None if view.layout.is_c_contiguous else view.strides,
    }
    if entry._numpy is not None and entry._numpy.names is not None:
        interface["descr"] = entry._numpy.descr
    return interface


def cuda_array_interface(StridedView self not None):
    """The CUDA array interface, version 3; device views have it, host views do not."""
    if not on_device(self):
        raise AttributeError("a host view has no __cuda_array_interface__")
    interface = _interface(self)
    # The protocol has no stream 0: the legacy stream is 1.
    interface["stream"] = None if self.stream_handle == NO_STREAM else (
        self.stream_handle or 1)
    return interface


def array_interface(StridedView self not None):
    """NumPy's array interface; host views have it, device views do not."""
    if not on_host(self):
        raise AttributeError("a device view has no __array_interface__")
    interface = _interface(self)
    if not self.layout.size:
        # NumPy 1 takes no null pointer, though nothing is at it.
        pointer = <uintptr_t>self.data or NOWHERE
        interface["data"] = (pointer, bool(self.is_readonly))
    return interface


cdef class _HostMemory:
    # What NumPy holds on to: the interface of raw bytes, and the view behind it.
    cdef readonly dict __array_interface__
    cdef StridedView view


def host_array(StridedView view not None):
    """Return a NumPy array of a host view's own memory, which it keeps alive."""
    cdef _HostMemory memory = _HostMemory.__new__(_HostMemory)
    if not view.layout.size:
        return np.empty(view.shape, view.dtype)
    memory.view = view
    memory.__array_interface__ = {
        "version": 3,
        "shape": view.shape,
        "typestr": f"|V{view.layout.itemsize}",
        "data": (<uintptr_t>view.data, bool(view.is_readonly)),
        "strides": view.strides,
    }
    return np.asarray(memory).view(view.dtype)


def __array__(StridedView self not None, dtype=None, copy=None):
    """Return a NumPy array: of a host view's own memory, else a copy of the device's.

    Raises
    ------
    ValueError
        If ``copy`` is False and one is needed.
    """
    if on_host(self):
        array = host_array(self)
        if copy:
            array = array.copy()
    elif copy is False:
        raise ValueError(
            "`copy=False` is not possible: a NumPy array of a device view is a copy")
    else:
        array = (<object>self).copy_to_host()
    if dtype is None or array.dtype == dtype:
        return array
    if copy is False:
        raise ValueError(f"{self.dtype_name} cannot be {dtype} without a copy")
    return array.astype(dtype)


# ---- other libraries' own objects ----------------------------------------------------


def smv(StridedView self not None):
    """This view as cuda.core's StridedMemoryView; it holds this view."""
    from cuda.core.utils import StridedMemoryView
    if dtype_facts[self.dtype_id].bits:
        return StridedMemoryView.from_dlpack(self, stream_ptr=-1)
    if on_device(self):
        return StridedMemoryView.from_cuda_array_interface(self, stream_ptr=-1)
    return StridedMemoryView.from_array_interface(self)


cdef DLPackExchangeAPI* _torch_api = NULL


cdef DLPackExchangeAPI* _find_torch() except NULL:
    global _torch_api
    if _torch_api == NULL:
        import torch
        _torch_gate.check_version(torch)
        _torch_api = find_exchange(torch.Tensor)
        if _torch_api == NULL:
            raise ImportError(
                f"torch {torch.__version__} offers no DLPack exchange API; install "
                f"{_torch_gate.TORCH.requirement}")
    return _torch_api


def to_torch(StridedView self not None, *, bint allow_write=False):
    """Return a torch.Tensor of the same memory, which holds this view.

    Parameters
    ----------
    allow_write : bool
        Give out read-only memory too: torch cannot mark a tensor read-only.

    Raises
    ------
    BufferError
        If the view is read-only and ``allow_write`` is not set, or torch cannot say its
        dtype or strides: it has no negative ones.
    ImportError
        If torch is absent or too old.
    """
    cdef DLPackExchangeAPI* api = _find_torch()
    cdef DLManagedTensorVersioned* managed
    cdef DLTensor tensor
    cdef void* made = NULL
    # torch knows neither pinned nor managed memory by DLPack's types.
    cdef int32_t device_type = self.device_type
    if device_type == kDLCUDAHost:
        device_type = kDLCPU
    elif device_type == kDLCUDAManaged:
        device_type = kDLCUDA
    if self.is_readonly and not allow_write:
        raise BufferError(
            "this view is read-only and torch has no such tensors; "
            "pass allow_write=True if nothing will write to it")
    _refuse_reversed(self)
    _fill(self, device_type, &tensor)
    managed = new_managed(&tensor, self, 0)
    if api.managed_tensor_to_py_object_no_sync(managed, &made) != 0:
        managed.deleter(managed)        # torch takes it only when it succeeds
        raise_set_error()
        raise BufferError("torch refused the tensor without saying why")
    result = <object>made
    _give_up(<PyObject*>made)
    return result


cdef extern from "Python.h":
    void _give_up "Py_DECREF"(PyObject* reference)


add_members({
    "__dlpack__": __dlpack__,
    "__dlpack_device__": __dlpack_device__,
    "__dlpack_c_exchange_api__": PyCapsule_New(&exchange_api, EXCHANGE, NULL),
    "__cuda_array_interface__": property(cuda_array_interface),
    "__array_interface__": property(array_interface),
    "__array__": __array__,
    "smv": property(smv),
    "to_torch": to_torch,
})


# The name under which the package publishes the class: its members are complete here.
globals()["StridedView"] = StridedView
