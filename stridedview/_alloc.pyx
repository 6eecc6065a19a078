"""Allocation of device memory as StridedViews.

Owns where memory comes from: cuda.core's memory resource of a device, or that device's
default pool directly (a _block) while that is what the resource would ask; the
allocator of another framework, through its C exchange API; and page-locked, managed and
plain host memory beside arrays of these kinds. The public functions that fill and copy
are in memory.py.
"""

from cpython.object cimport PyObject
from libc.stdint cimport int64_t, intptr_t, uintptr_t
from libc.stdlib cimport free
from libc.string cimport memset

from stridedview._block cimport Block, Loan, take_block, take_loan
from stridedview._device_copy cimport compact
from stridedview._dlpack cimport (
    DLManagedTensorVersioned,
    DLPackExchangeAPI,
    DLTensor,
    kDLCPU,
    kDLCUDA,
    kDLCUDAHost,
    kDLCUDAManaged,
)
from stridedview._driver cimport (
    CU_STREAM_CAPTURE_MODE_RELAXED,
    CUDA_ERROR_OUT_OF_MEMORY,
    CUDA_SUCCESS,
    check,
    driver,
    driver_error,
    driver_ready,
    require_driver,
)
from stridedview._dtype cimport DType, dtype_by_id, dtype_facts, dtype_lanes, find_dtype
from stridedview._exchange cimport find_exchange, raise_set_error
from stridedview._export cimport view_of_managed
from stridedview._geometry cimport MAX_NDIM, add_overflows, fill_f_strides, parse_extents
from stridedview._ingest cimport as_view
from stridedview._layout cimport Layout, intern_layout
from stridedview._stream cimport STREAM_PER_THREAD, stream_handle
from stridedview._view cimport (
    FAMILY_NONE, FAMILY_OWN, NO_STREAM, StridedView, make_view, place_name,
)

import operator
import re
import sys

import numpy as np

from stridedview._stream import is_named

# How allocators say that there is no room, in lower case.
cdef object _SHORTAGE = re.compile(
    "out of (device )?memory|out_of_memory|bad_alloc|(can't|cannot|could not|failed to) allocate")

cdef enum:
    PART = 256      # bytes: the alignment of an array that shares its memory with others

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


cdef int device_number(object device) except -2:
    """Return a device's number, or -1 for the current one; ValueError if there is none."""
    cdef int count = 0
    number = None if device is None else _number_of(device)
    if number is None:
        return -1
    require_driver()
    if driver.cuDeviceGetCount(&count) != CUDA_SUCCESS:
        from cuda.bindings import driver as bindings
        bindings.cuInit(0)
        check(driver.cuDeviceGetCount(&count), "cuDeviceGetCount")
    if not 0 <= number < count:
        raise ValueError(
            f"device {device!r}: no such device, as this process sees {count}, numbered "
            "from 0; leave device out for the current one")
    return number


cdef object _number_of(object device):
    # What a device says its number is; None for the current one.
    if isinstance(device, tuple) and len(device) == 2 and device[0] == kDLCUDA:
        device = device[1]
    elif isinstance(device, str) and device.partition(":")[0] == "cuda":
        return None if device == "cuda" else _number_in(device)
    elif getattr(device, "type", None) == "cuda":           # torch.device
        return device.index
    else:                                                   # cuda.core's, CuPy's, Numba's
        device = getattr(device, "device_id", getattr(device, "id", device))
    try:
        if isinstance(device, (bool, np.bool_)):
            raise TypeError
        return operator.index(device)
    except TypeError:
        raise TypeError(
            "device must be a number, 'cuda:N' or a CUDA device object, got "
            f"{device!r}") from None


cdef object _number_in(str device):
    digits = device.partition(":")[2]
    if not (digits.isascii() and digits.isdecimal()):
        raise ValueError(f"device must be 'cuda' or 'cuda:N' with N from 0, got {device!r}")
    return int(digits)


# ---- from cuda.core ------------------------------------------------------------------

cdef class _Home:
    # What is asked of cuda.core and of the driver once per device.
    cdef object device
    cdef object stream          # the default stream
    cdef void* handle           # of that
    cdef int number
    # The primary context, or 0 if another was current when it was looked at: only there is
    # memory taken without cuda.core, as only a primary context can be found again later.
    cdef unsigned long long context_id
    cdef object resource        # the memory resource looked at last
    cdef void* pool             # its pool if that is the device's default one, else NULL


cdef extern from "Python.h":
    PyObject* PyThreadState_GetDict()
    PyObject* PyDict_GetItemWithError(object, object) except? NULL

cdef object _HOMES = object()


cdef list _homes_here():
    """Return this thread's homes, one a device, in the order of their first use.

    cuda.core's Device objects are a thread's own, and so are the memory resources that a
    user puts on them.
    """
    cdef PyObject* kept = PyThreadState_GetDict()
    cdef PyObject* found = PyDict_GetItemWithError(<object>kept, _HOMES)
    if found != NULL:
        return <list>found
    homes = []
    (<dict>kept)[_HOMES] = homes
    return homes


cdef _Home _home(int number):
    """Return a device's home; the device is current after it."""
    cdef unsigned long long now = 0
    cdef list homes = _homes_here()
    if driver_ready() and driver.cuCtxGetId(NULL, &now) == CUDA_SUCCESS:
        for home in homes:
            if (<_Home>home).context_id == now and (
                    number < 0 or number == (<_Home>home).number):
                return <_Home>home
    return _find_home(number)


cdef _Home _find_home(int number):
    cdef int now = -1
    cdef list homes = _homes_here()
    require_driver()
    if driver.cuCtxGetDevice(&now) == CUDA_SUCCESS and (number < 0 or number == now):
        for home in homes:
            if (<_Home>home).number == now:
                _look_at_context(<_Home>home)
                return <_Home>home
    return _new_home(number)


cdef _Home _new_home(int number):
    cdef _Home home = _Home.__new__(_Home)
    from cuda.core import Device
    home.device = Device() if number < 0 else Device(number)
    home.device.set_current()
    home.number = home.device.device_id
    home.stream = home.device.default_stream
    home.handle = stream_handle(home.stream)
    _look_at_context(home)
    _make_resource(home)
    homes = _homes_here()
    homes[:] = [other for other in homes if (<_Home>other).number != home.number] + [home]
    return home


cdef int _make_resource(_Home home) except -1:
    # A device's resource is made in each thread anew, and reads and sets what its pool
    # keeps: that is refused while any thread captures in global mode, but in relaxed mode.
    cdef int mode = CU_STREAM_CAPTURE_MODE_RELAXED
    if home.context_id == 0:
        return 0
    driver.cuThreadExchangeStreamCaptureMode(&mode)
    try:
        home.device.memory_resource
    finally:
        driver.cuThreadExchangeStreamCaptureMode(&mode)
    return 0


cdef int _look_at_context(_Home home) except -1:
    cdef unsigned int flags = 0
    cdef int active = 0
    cdef void* primary = NULL
    cdef void* current = NULL
    home.context_id, home.pool, home.resource = 0, NULL, None
    driver.cuDevicePrimaryCtxGetState(home.number, &flags, &active)
    if active and driver.cuDevicePrimaryCtxRetain(&primary, home.number) == CUDA_SUCCESS:
        driver.cuCtxGetCurrent(&current)
        if current == primary:
            driver.cuCtxGetId(NULL, &home.context_id)
        driver.cuDevicePrimaryCtxRelease(home.number)
    return 0


cdef int _look_at_resource(_Home home, object resource) except -1:
    # A resource of the user's, or of another kind, is asked for memory through its methods.
    cdef void* pool = NULL
    from cuda.core import DeviceMemoryResource
    home.pool, home.resource = NULL, resource
    if (
        type(resource) is DeviceMemoryResource and not resource.is_handle_owned
        and driver.cuDeviceGetDefaultMemPool(&pool, home.number) == CUDA_SUCCESS
        and <uintptr_t>pool == int(resource.handle)
    ):
        home.pool = pool
    return 0


cdef Block _block(_Home home, Layout layout, int dtype_id, void* stream, object stream_object):
    """Return a block of the device's default pool, or None if cuda.core must be asked."""
    cdef int result = CUDA_SUCCESS
    cdef Block block
    # The per-thread stream is another one in each thread, and any thread may free.
    if home.context_id == 0 or stream == <void*><uintptr_t>STREAM_PER_THREAD:
        return None
    resource = home.device.memory_resource
    if resource is not home.resource:
        _look_at_resource(home, resource)
    if home.pool == NULL:
        return None
    block = take_block(
        home.pool, layout.nbytes, stream, stream_object, home.number, home.context_id, &result)
    if block is None and result == CUDA_ERROR_OUT_OF_MEMORY:
        raise _out_of_memory(home.number, layout, dtype_id) from driver_error(
            result, "cuMemAllocFromPoolAsync")
    return block


cdef object _core_stream(object stream, void* handle):
    # It takes its own streams and graph builders, not what merely has the protocol.
    if type(stream).__module__.startswith("cuda.core"):
        return stream
    from cuda.core import Stream
    return Stream.from_handle(<uintptr_t>handle)


cdef object _out_of_memory(int device, Layout layout, int dtype_id):
    return OutOfMemoryError(
        f"out of memory on cuda:{device}: {layout.nbytes} bytes asked for "
        f"{dtype_by_id(dtype_id).name} {layout.shape}", layout.nbytes)


cdef Loan _loan(
        _Home home, Layout layout, int dtype_id, object stream, object stream_object):
    # Whatever memory resource the user has put on the device.
    try:
        return take_loan(
            home.device.memory_resource, layout.nbytes, {"stream": stream}, stream_object)
    except Exception as error:
        if not _is_out_of_memory(str(error), layout.nbytes):
            raise
        raise _out_of_memory(home.number, layout, dtype_id) from error


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
    cdef _Home home = _home(device_number(device))
    cdef bint named = stream is not None and is_named(stream)
    cdef void* handle = stream_handle(stream) if named else home.handle
    cdef uintptr_t ptr = 0
    cdef StridedView view
    owner = None
    if layout.nbytes != 0:
        owner = _block(home, layout, dtype_id, handle, stream if named else None)
        if owner is not None:
            ptr = (<Block>owner).address
        else:
            owner = _loan(
                home, layout, dtype_id, _core_stream(stream, handle) if named else home.stream,
                stream if named else None)
            ptr = int((<Loan>owner).buffer.handle)
    view = make_view(
        <void*>ptr, layout, dtype_id, kDLCUDA, home.number, False, owner, FAMILY_OWN,
        <intptr_t>handle)
    if named:
        view.extra = {"stream": stream}
    return view


# ---- from another framework ----------------------------------------------------------


cdef StridedView _allocate_like(
        object like, Layout layout, int dtype_id, object device, object stream):
    # The exchange API's allocator knows no strides, so memory is asked for flat.
    cdef DLPackExchangeAPI* api = find_exchange(type(like))
    cdef StridedView model = as_view(like), flat
    _check_beside(device, model)
    if _has_no_framework(like):
        return _allocate_in(
            model.device_type, model.device_id, layout, dtype_id,
            model.stream if stream is None else stream)
    if api != NULL and api.managed_tensor_allocator != NULL:
        flat = _allocate_exchange(api, model, layout, dtype_id)
    elif type(like).__module__.partition(".")[0] == "cupy":
        cupy = sys.modules["cupy"]
        with cupy.cuda.Device(model.device_id):
            flat = as_view(cupy.empty(layout.nbytes, "u1"))
    else:
        raise TypeError(
            f"like={type(like).__module__}.{type(like).__qualname__}: its framework offers "
            "no allocator (type.__dlpack_c_exchange_api__); pass "
            "like=stridedview.from_any(array) for memory of its kind on its device")
    return make_view(
        flat.data, layout, dtype_id, flat.device_type, flat.device_id, False, flat.owner,
        model.family, flat.stream_handle)


cdef int _check_beside(object device, StridedView model) except -1:
    # Both may be given, but then they have to agree.
    cdef int number
    if device is None:
        return 0
    number = device_number(device)
    if model.device_type in (kDLCPU, kDLCUDAHost):
        raise ValueError(
            f"device={device!r}, but the array in like= is in host memory; leave one out")
    if number not in (-1, model.device_id):
        raise ValueError(
            f"device={device!r}, but the array in like= is on {place_name(model)}; "
            "leave one out")
    return 0


cdef bint _has_no_framework(object like) except -1:
    # NumPy's arrays, views, and cuda.core's descriptions of memory: they say where and of
    # what kind. cuda.core's type has an exchange API, whose allocator always refuses.
    return isinstance(like, (StridedView, np.ndarray)) or any(
        cls.__module__.partition(".")[0] == "cuda" for cls in type(like).__mro__)


cdef StridedView _allocate_in(
        int device_type, int device, Layout layout, int dtype_id, object stream):
    # In a kind of memory, as DLPack names it.
    if device_type == kDLCPU:
        return _host_memory(layout, dtype_id)
    if device_type == kDLCUDAHost:
        return _page_locked(layout, dtype_id)
    if device_type == kDLCUDAManaged:
        return _managed_memory(layout, dtype_id, device)
    return allocate(layout, dtype_id, (kDLCUDA, device), stream)


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
    prototype.dtype.lanes = dtype_lanes(dtype_id)
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
    cause = _pending_error()
    text = complaint.message.decode(errors="replace") if complaint.message != NULL else ""
    free(complaint.kind)
    free(complaint.message)
    # torch calls every error a MemoryError and adds pages: what tells is in its first line.
    reason = (text.partition("\n")[0] or str(cause or "it gives no reason")).strip()
    where = place_name(model)
    whose = f"{type(model.owner).__module__.partition('.')[0]}'s allocator"
    if isinstance(cause, MemoryError) or _SHORTAGE.search(reason.lower()):
        error = OutOfMemoryError(
            f"out of memory on {where}: {layout.nbytes} bytes asked for {layout.shape} "
            f"from {whose}: {reason}", layout.nbytes)
    else:
        error = BufferError(
            f"like=: {whose} gives no memory on {where} for {layout.shape}: "
            f"{reason.partition('. ')[0]}; leave like out to take cuda.core's")
    error.__cause__ = cause
    return error


cdef object _pending_error():
    # An allocator may leave a Python error set beside its complaint, or in place of one.
    try:
        raise_set_error()
    except Exception as error:
        return error
    return None


# ---- of other kinds ------------------------------------------------------------------


cdef StridedView _host_memory(Layout layout, int dtype_id):
    cdef uintptr_t address
    try:
        owner = np.empty(layout.nbytes + PART, np.uint8)
    except MemoryError as error:
        raise OutOfMemoryError(
            f"out of host memory: {layout.nbytes} bytes asked for", layout.nbytes) from error
    address = (<uintptr_t>owner.ctypes.data + PART - 1) & ~<uintptr_t>(PART - 1)
    return make_view(
        <void*>address, layout, dtype_id, kDLCPU, 0, False, owner, FAMILY_NONE, NO_STREAM)


cdef StridedView _page_locked(Layout layout, int dtype_id):
    cdef uintptr_t ptr = 0
    cdef Loan loan = None
    cdef _Home home = _home(-1)
    if layout.nbytes:
        from cuda.core import LegacyPinnedMemoryResource
        try:
            loan = take_loan(LegacyPinnedMemoryResource(), layout.nbytes, {}, None)
        except Exception as error:
            if "OUT_OF_MEMORY" not in str(error):
                raise
            raise OutOfMemoryError(
                f"out of page-locked memory: {layout.nbytes} bytes asked for",
                layout.nbytes) from error
        ptr = int(loan.buffer.handle)
    return make_view(
        <void*>ptr, layout, dtype_id, kDLCUDAHost, home.number, False, loan,
        FAMILY_NONE, NO_STREAM)


cdef object _managed_resource = None


cdef object _resource_of_managed():
    # cuda.core's own needs memory pools of CUDA 13; this is what every device has.
    global _managed_resource
    if _managed_resource is None:
        from stridedview._managed_resource import ManagedResource
        _managed_resource = ManagedResource()
    return _managed_resource


cdef StridedView _managed_memory(Layout layout, int dtype_id, int device):
    cdef uintptr_t ptr = 0
    cdef Loan loan = None
    cdef void* before = NULL
    require_driver()
    driver.cuCtxGetCurrent(&before)
    if before is not NULL:
        check(driver.cuCtxPushCurrent(before), "cuCtxPushCurrent")
    try:
        _home(device)
        if layout.nbytes:
            try:
                loan = take_loan(_resource_of_managed(), layout.nbytes, {}, None)
            except MemoryError as error:
                raise _out_of_memory(device, layout, dtype_id) from error
            ptr = int(loan.buffer.handle)
    finally:
        if before is not NULL:
            driver.cuCtxPopCurrent(&before)
    return make_view(
        <void*>ptr, layout, dtype_id, kDLCUDAManaged, device, False, loan, FAMILY_NONE,
        NO_STREAM)


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
        tensor), on its device; a stream does not apply to that. Of a view, a NumPy array
        or cuda.core's memory views, which have no framework: memory of the same kind
        (device, page-locked, managed or plain host), ordered by a device view's stream if
        none is named.

    Returns
    -------
    StridedView

    Raises
    ------
    OutOfMemoryError
        Saying how much was asked for.
    OverflowError
        If the number of bytes does not fit 64 bits.
    BufferError
        If the allocator of ``like`` refuses for another reason.
    TypeError, ValueError
        For a dtype a device has not, a wrong shape or order, a device that is none or not
        there, or one that ``like`` is not on.
    """
    cdef DType entry = find_dtype(dtype)
    cdef Layout layout = layout_of(shape, entry.id, order)
    if like is not None:
        return _allocate_like(like, layout, entry.id, device, stream)
    return allocate(layout, entry.id, device, stream)


def empty_like(array, dtype=None, *, str order="K", device=None, stream=None, like=None):
    """Return a new view with the shape of an array, without its gaps.

    It is in device memory also if the array is on the host; with ``like=array`` it is in
    memory of the array's kind.

    Parameters
    ----------
    array : array
        Anything that ``from_any`` takes.
    dtype : optional
        Of the array if absent.
    order : {'C', 'F', 'A', 'K'}
        K keeps the order of the array's axes in memory.
    device, stream, like
        As for :func:`empty`; without any, the device of the array.

    Raises
    ------
    BufferError, TypeError, ValueError
        If ``array`` is none that ``from_any`` takes, and as for :func:`empty`.
    OutOfMemoryError, OverflowError
        As for :func:`empty`.
    """
    cdef StridedView model = as_view(array)
    cdef int dtype_id = model.dtype_id
    cdef Layout layout = model.layout
    if dtype is not None:
        dtype_id = find_dtype(dtype).id
        if dtype_facts[dtype_id].itemsize != layout.itemsize:
            itemsize = dtype_facts[dtype_id].itemsize
            steps = [step // layout.itemsize * itemsize for step in layout.strides]
            layout = Layout(layout.shape, steps, itemsize=itemsize)
    layout = compact(layout, order)
    if like is not None:
        return _allocate_like(like, layout, dtype_id, device, stream)
    if device is None and model.device_type in (kDLCUDA, kDLCUDAManaged):
        device = model.device_id
    return allocate(layout, dtype_id, device, stream)


def empty_many(specs, *, device=None, stream=None, like=None):
    """Return a list of new views that share one allocation, each aligned to 256 bytes.

    Parameters
    ----------
    specs : iterable of (shape, dtype)
    device, stream, like
        As for :func:`empty`.

    Raises
    ------
    OutOfMemoryError
        Saying how much was asked for.
    OverflowError
        If the number of bytes of all arrays does not fit 64 bits.
    TypeError
        If an item of ``specs`` is no pair.
    BufferError, TypeError, ValueError
        As for :func:`empty`.

    Notes
    -----
    The memory goes back when the last of the views has gone.
    """
    cdef int64_t total = 0, padded
    cdef StridedView slab
    cdef Layout layout
    cdef DType entry
    parts = []
    for number, spec in enumerate(specs):
        try:
            shape, dtype = spec
        except (TypeError, ValueError):
            raise TypeError(
                f"specs[{number}]: expected a pair (shape, dtype), got {spec!r}") from None
        entry = find_dtype(dtype)
        layout = layout_of(shape, entry.id, "C")
        parts.append((total, layout, entry.id))
        if add_overflows(layout.nbytes, PART - 1, &padded) or add_overflows(
                total, padded & ~<int64_t>(PART - 1), &total):
            raise OverflowError("the number of bytes of all arrays does not fit 64 bits")
    slab = empty(total, "uint8", device=device, stream=stream, like=like)
    views = []
    for offset, part, dtype_id in parts:
        view = make_view(
            <char*>slab.data + <int64_t>offset, <Layout>part, dtype_id, slab.device_type,
            slab.device_id, False, slab.owner, slab.family, slab.stream_handle)
        # Each its own: what is noted there of one part is not so of another.
        (<StridedView>view).extra = None if slab.extra is None else dict(slab.extra)
        views.append(view)
    return views


def pinned(shape, dtype="float64", *, str order="C"):
    """Return a new view of page-locked host memory, which kernels can use in place.

    ``numpy.asarray`` of it is an array of the same memory. It is every device's and no
    stream orders it, so there is no ``device`` and no ``stream``.

    Raises
    ------
    OutOfMemoryError
        Saying how much was asked for.
    OverflowError
        If the number of bytes does not fit 64 bits.
    TypeError, ValueError
        For a dtype a device has not, a wrong shape or order.
    """
    cdef DType entry = find_dtype(dtype)
    return _page_locked(layout_of(shape, entry.id, order), entry.id)


def empty_in(device, StridedView model not None):
    """Return a new view like another, in the kind of memory and on the device of a pair.

    Raises
    ------
    OutOfMemoryError
        Saying how much was asked for.
    ValueError
        If there is no such device.
    """
    number = device_number((kDLCUDA, device[1])) if device[0] == kDLCUDAManaged else device[1]
    return _allocate_in(
        device[0], number, compact(model.layout, "K"), model.dtype_id, None)


def device_id(device):
    """Return the number of an existing device, or -1 for the current one.

    Raises
    ------
    TypeError
        If it is no CUDA device.
    ValueError
        If there is none of that number.
    """
    return device_number(device)
