"""Allocation of device memory as StridedViews.

Owns where memory comes from: cuda.core's memory resource of a device, the
allocator of another framework (through its C exchange API), or the driver itself
where memory must be shared with another process. The public functions that fill
and copy are in memory.py.
"""

cimport cython
from libc.stdint cimport int64_t, intptr_t, uintptr_t
from libc.stdlib cimport free
from libc.string cimport memset

from stridedview._device_copy cimport compact
from stridedview._dlpack cimport (
    DLManagedTensorVersioned,
    DLPackExchangeAPI,
    DLTensor,
    kDLCUDA,
    kDLCUDAHost,
)
from stridedview._driver cimport (
    CU_STREAM_CAPTURE_MODE_RELAXED, CUDA_SUCCESS, check, driver, require_driver,
)
from stridedview._dtype cimport DType, dtype_by_id, dtype_facts
from stridedview._exchange cimport find_exchange
from stridedview._export cimport view_of_managed
from stridedview._geometry cimport MAX_NDIM, fill_f_strides, parse_extents
from stridedview._ingest cimport as_view
from stridedview._layout cimport Layout, intern_layout
from stridedview._stream cimport stream_handle
from stridedview._view cimport FAMILY_NONE, FAMILY_OWN, NO_STREAM, StridedView, make_view

import sys

from stridedview._dtype import dtype as find_dtype
from stridedview._stream import is_named

cdef extern from *:
    """
    #include <stdlib.h>
    #include <string.h>

    /* What an allocator says through its callback, kept without the GIL. */
    typedef struct { char* kind; char* message; } sv_complaint;

    static char* sv_duplicate(const char* text) {
        size_t size = strlen(text) + 1;
        char* copy = (char*)malloc(size);
        if (copy) memcpy(copy, text, size);
        return copy;
    }
    static void sv_complain(void* context, const char* kind, const char* message) {
        sv_complaint* complaint = (sv_complaint*)context;
        complaint->kind = sv_duplicate(kind);
        complaint->message = sv_duplicate(message);
    }
    """
    ctypedef struct Complaint "sv_complaint":
        char* kind
        char* message
    void complain "sv_complain"(
        void* context, const char* kind, const char* message) noexcept


class OutOfMemoryError(MemoryError):
    """A device has not the memory that was asked for.

    Attributes
    ----------
    nbytes : int
        What was asked for.
    """

    def __init__(self, message, nbytes):
        super().__init__(message)
        self.nbytes = nbytes

    def __reduce__(self):
        # A process pool sends errors by pickle, which passes `args` alone.
        return type(self), (str(self), self.nbytes)


# ---- what is asked for ---------------------------------------------------------------


cdef Layout layout_of(object shape, int dtype_id, str order):
    cdef int64_t extents[MAX_NDIM]
    cdef int64_t strides[MAX_NDIM]
    cdef int ndim = parse_extents(shape, "shape", extents)
    cdef int64_t itemsize = dtype_facts[dtype_id].itemsize
    cdef int axis
    for axis in range(ndim):
        if extents[axis] < 0:
            raise ValueError(f"negative extent {extents[axis]} in shape {shape}")
    if order == "C":
        return intern_layout(ndim, extents, NULL, 1, itemsize)
    if order != "F":
        raise ValueError(f"order must be 'C' or 'F', got {order!r}")
    fill_f_strides(ndim, extents, itemsize, strides)
    return intern_layout(ndim, extents, strides, 1, itemsize)


cdef int _device_id(object device) except -2:
    """Return a device's number, or -1 for the current one."""
    if device is None:
        return -1
    if isinstance(device, int):
        return device
    if isinstance(device, tuple) and len(device) == 2 and device[0] == kDLCUDA:
        return device[1]
    if isinstance(device, str) and (device == "cuda" or device.startswith("cuda:")):
        return int(device[5:]) if len(device) > 4 else -1
    if getattr(device, "type", None) == "cuda":             # torch.device
        return -1 if device.index is None else device.index
    number = getattr(device, "device_id", getattr(device, "id", None))
    if isinstance(number, int):                             # cuda.core's, CuPy's, Numba's
        return number
    raise TypeError(f"device must be a number, 'cuda:N' or a device object, got {device!r}")


# ---- from cuda.core ------------------------------------------------------------------

cdef class _Home:
    # What is asked of cuda.core once per device.
    cdef object device
    cdef object stream          # the default stream
    cdef intptr_t handle

cdef list _homes = []           # by device number, None until needed


cdef _Home _home(int number):
    """Return a device's home; the device is current after it."""
    cdef int now = -1
    require_driver()
    if driver.cuCtxGetDevice(&now) == CUDA_SUCCESS and (number < 0 or number == now):
        if now < len(_homes) and _homes[now] is not None:
            return <_Home>_homes[now]
    return _new_home(number)


cdef _Home _new_home(int number):
    cdef _Home home = _Home.__new__(_Home)
    from cuda.core import Device
    home.device = Device() if number < 0 else Device(number)
    home.device.set_current()
    home.stream = home.device.default_stream
    home.handle = <intptr_t>stream_handle(home.stream)
    while len(_homes) <= home.device.device_id:
        _homes.append(None)
    _homes[home.device.device_id] = home
    return home


cdef object _core_stream(object stream, intptr_t handle):
    # cuda.core takes its own streams and graph builders, not what merely has the protocol.
    if type(stream).__module__.startswith("cuda.core"):
        return stream
    from cuda.core import Stream
    return Stream.from_handle(handle)


# No references but to the buffer, which has none to us: it is never part of a cycle.
@cython.final
@cython.no_gc
cdef class _CoreMemory:
    # Memory of cuda.core's, given back in its own context, and without spoiling a capture.
    cdef object buffer
    cdef void* context

    def __dealloc__(self):
        # To free memory while any thread captures in global mode would spoil that capture.
        cdef int mode = CU_STREAM_CAPTURE_MODE_RELAXED
        cdef void* popped
        # The legacy stream that it goes back on is the current context's.
        cdef bint pushed = (
            self.context is not NULL
            and driver.cuCtxPushCurrent(self.context) == CUDA_SUCCESS)
        driver.cuThreadExchangeStreamCaptureMode(&mode)
        self.buffer = None
        driver.cuThreadExchangeStreamCaptureMode(&mode)
        if pushed:
            driver.cuCtxPopCurrent(&popped)


cdef _CoreMemory _taken(object resource, int64_t nbytes, dict options):
    """Return memory of a resource, taken without spoiling a capture."""
    cdef _CoreMemory memory = _CoreMemory.__new__(_CoreMemory)
    cdef int mode = CU_STREAM_CAPTURE_MODE_RELAXED
    driver.cuCtxGetCurrent(&memory.context)
    driver.cuThreadExchangeStreamCaptureMode(&mode)
    try:
        memory.buffer = resource.allocate(nbytes, **options)
    finally:
        driver.cuThreadExchangeStreamCaptureMode(&mode)
    return memory


cdef _CoreMemory _memory(object device, Layout layout, int dtype_id, object stream):
    # Whatever memory resource the user has put on the device.
    try:
        return _taken(device.memory_resource, layout.nbytes, {"stream": stream})
    except Exception as error:
        if not _is_out_of_memory(str(error), layout.nbytes):
            raise
        raise OutOfMemoryError(
            f"out of memory on cuda:{device.device_id}: {layout.nbytes} bytes asked for "
            f"{dtype_by_id(dtype_id).name} {layout.shape}", layout.nbytes) from error


cdef bint _is_out_of_memory(str text, object asked) except -1:
    # cuda.core's error has no public name and no code. Its text names the driver's; that
    # of 1.0 gives no reason, so the driver is asked what it has left.
    if "Failed to allocate memory from pool" not in text:
        return "OUT_OF_MEMORY" in text
    from cuda.bindings import driver as bindings
    code, left, _total = bindings.cuMemGetInfo()
    return code == bindings.CUresult.CUDA_SUCCESS and asked > left


cdef StridedView allocate(Layout layout, int dtype_id, object device, object stream):
    """Return a new view of cuda.core's memory, ordered by the stream it came from."""
    cdef void* before = NULL
    if device is None:
        return _allocate_here(layout, dtype_id, None, stream)
    require_driver()
    driver.cuCtxGetCurrent(&before)
    if before is NULL:
        return _allocate_here(layout, dtype_id, device, stream)
    # Once more on the stack, where the other device takes its place until it is popped.
    check(driver.cuCtxPushCurrent(before), "cuCtxPushCurrent")
    try:
        return _allocate_here(layout, dtype_id, device, stream)
    finally:
        driver.cuCtxPopCurrent(&before)


cdef StridedView _allocate_here(Layout layout, int dtype_id, object device, object stream):
    # The device is current after it.
    cdef _Home home = _home(-1 if device is None else _device_id(device))
    cdef bint named = stream is not None and is_named(stream)
    cdef intptr_t handle = home.handle
    cdef uintptr_t ptr = 0
    cdef StridedView view
    cdef _CoreMemory memory = None
    source = home.stream
    if named:
        handle = <intptr_t>stream_handle(stream)
        source = _core_stream(stream, handle)
    if layout.nbytes != 0:
        memory = _memory(home.device, layout, dtype_id, source)
        ptr = memory.buffer.handle
    view = make_view(
        <void*>ptr, layout, dtype_id, kDLCUDA, home.device.device_id, False, memory,
        FAMILY_OWN, handle)
    if named:
        view.extra = {"stream": stream}
    return view


# ---- from another framework ----------------------------------------------------------


cdef StridedView _allocate_like(object like, Layout layout, int dtype_id):
    # The exchange API's allocator knows no strides, so memory is asked for flat.
    cdef DLPackExchangeAPI* api = find_exchange(type(like))
    cdef StridedView model = as_view(like), flat
    if isinstance(like, StridedView):
        return allocate(layout, dtype_id, (kDLCUDA, model.device_id), model.stream)
    if api != NULL and api.managed_tensor_allocator != NULL:
        flat = _allocate_exchange(api, model, layout, dtype_id)
    elif type(like).__module__.partition(".")[0] == "cupy":
        cupy = sys.modules["cupy"]
        with cupy.cuda.Device(model.device_id):
            flat = as_view(cupy.empty(layout.nbytes, "u1"))
    else:
        raise TypeError(
            f"like={type(like).__module__}.{type(like).__qualname__}: its framework offers "
            "no allocator (type.__dlpack_c_exchange_api__)")
    return make_view(
        flat.data, layout, dtype_id, flat.device_type, flat.device_id, False, flat.owner,
        model.family, flat.stream_handle)


cdef StridedView _allocate_exchange(
        DLPackExchangeAPI* api, StridedView model, Layout layout, int dtype_id):
    cdef DLManagedTensorVersioned* managed = NULL
    cdef Complaint complaint
    cdef DLTensor prototype
    cdef int64_t count = layout.size, step = 1
    cdef int result
    memset(&complaint, 0, sizeof(complaint))
    memset(&prototype, 0, sizeof(prototype))
    prototype.device.device_type = model.device_type
    prototype.device.device_id = model.device_id
    prototype.ndim = 1
    prototype.dtype.code = dtype_facts[dtype_id].code
    prototype.dtype.bits = dtype_facts[dtype_id].bits
    prototype.dtype.lanes = 1
    if prototype.dtype.bits == 0:           # a structured dtype: as bytes
        prototype.dtype.code, prototype.dtype.bits, count = 1, 8, layout.nbytes
    prototype.shape, prototype.strides = &count, &step
    result = api.managed_tensor_allocator(&prototype, &managed, &complaint, complain)
    if result != 0 or managed == NULL:
        raise _refused(&complaint, layout, model)
    try:
        return view_of_managed(managed)
    except (BufferError, OverflowError, ValueError):
        managed.deleter(managed)
        raise


cdef object _refused(Complaint* complaint, Layout layout, StridedView model):
    text = complaint.message.decode(errors="replace") if complaint.message != NULL else ""
    free(complaint.kind)
    free(complaint.message)
    # torch calls every error a MemoryError and adds a C++ backtrace: keep the first line.
    reason = text.partition("\n")[0]
    if "memory" in reason or not reason:
        return OutOfMemoryError(
            f"out of memory on {model.device}: {layout.nbytes} bytes asked for "
            f"{layout.shape} from {type(model.owner).__module__}'s allocator: {reason}",
            layout.nbytes)
    return BufferError(f"the allocator of like= refused {layout.shape}: {reason}")


# ---- the functions -------------------------------------------------------------------


def empty(shape, dtype="float64", *, str order="C", device=None, stream=None, like=None):
    """Return a new view of uninitialized device memory.

    Parameters
    ----------
    shape : int or sequence of int
    dtype : str, numpy.dtype, torch.dtype
    order : {'C', 'F'}
    device : int, 'cuda:N' or a device object, optional
        The current device if absent.
    stream : stream, optional
        The memory is taken, and later given back, in the order of this stream; the default
        stream if absent.
    like : array, optional
        Take the memory from this array's framework (torch's caching allocator for a
        tensor), on its device; ``device`` and ``stream`` do not apply then.

    Returns
    -------
    StridedView

    Raises
    ------
    OutOfMemoryError
        Saying how much was asked for.
    TypeError, ValueError
        For a dtype a device has not, a wrong shape or order.
    """
    cdef DType entry = find_dtype(dtype)
    cdef Layout layout = layout_of(shape, entry.id, order)
    if like is not None:
        return _allocate_like(like, layout, entry.id)
    return allocate(layout, entry.id, device, stream)


def empty_like(array, dtype=None, *, str order="K", device=None, stream=None, like=None):
    """Return a new view with the shape of an array, without its gaps.

    Parameters
    ----------
    array : array
        Anything that ``from_any`` takes.
    dtype : optional
        Of the array if absent.
    order : {'C', 'F', 'A', 'K'}
        K keeps the order of the array's axes in memory.
    device, stream, like
        As for :func:`empty`.
    """
    cdef StridedView model = as_view(array)
    cdef int dtype_id = model.dtype_id
    cdef Layout layout = model.layout
    if dtype is not None:
        dtype_id = (<DType>find_dtype(dtype)).id
        if dtype_facts[dtype_id].itemsize != layout.itemsize:
            itemsize = dtype_facts[dtype_id].itemsize
            steps = [step // layout.itemsize * itemsize for step in layout.strides]
            layout = Layout(layout.shape, steps, itemsize=itemsize)
    layout = compact(layout, order)
    if like is not None:
        return _allocate_like(like, layout, dtype_id)
    if device is None and model.device_type == kDLCUDA:
        device = model.device_id
    return allocate(layout, dtype_id, device, stream)


def empty_many(specs, *, device=None, stream=None, like=None):
    """Return a list of new views that share one allocation, each aligned to 256 bytes.

    Parameters
    ----------
    specs : iterable of (shape, dtype)
    device, stream, like
        As for :func:`empty`.

    Notes
    -----
    The memory goes back when the last of the views has gone.
    """
    cdef int64_t total = 0
    cdef StridedView slab
    cdef Layout layout
    cdef DType entry
    parts = []
    for shape, dtype in specs:
        entry = find_dtype(dtype)
        layout = layout_of(shape, entry.id, "C")
        parts.append((total, layout, entry.id))
        total += (layout.nbytes + 255) & ~255
    slab = empty(total, "uint8", device=device, stream=stream, like=like)
    views = []
    for offset, part, dtype_id in parts:
        view = make_view(
            <char*>slab.data + <int64_t>offset, <Layout>part, dtype_id, slab.device_type,
            slab.device_id, False, slab.owner, slab.family, slab.stream_handle)
        (<StridedView>view).extra = slab.extra
        views.append(view)
    return views


def pinned(shape, dtype="float64", *, str order="C"):
    """Return a new view of page-locked host memory, which kernels can use in place.

    ``numpy.asarray`` of it is an array of the same memory.

    Raises
    ------
    OutOfMemoryError
        Saying how much was asked for.
    """
    cdef DType entry = find_dtype(dtype)
    cdef Layout layout = layout_of(shape, entry.id, order)
    cdef uintptr_t ptr = 0
    cdef _CoreMemory memory = None
    cdef _Home home = _home(-1)
    if layout.nbytes:
        from cuda.core import LegacyPinnedMemoryResource
        try:
            memory = _taken(LegacyPinnedMemoryResource(), layout.nbytes, {})
        except Exception as error:
            if "OUT_OF_MEMORY" not in str(error):
                raise
            raise OutOfMemoryError(
                f"out of page-locked memory: {layout.nbytes} bytes asked for",
                layout.nbytes) from error
        ptr = int(memory.buffer.handle)
    return make_view(
        <void*>ptr, layout, entry.id, kDLCUDAHost, home.device.device_id, False, memory,
        FAMILY_NONE, NO_STREAM)
