"""Which stream, and the ordering between two.

Owns the reading of stream objects, the current stream of each family of producers, the
events that put one stream behind another, and the queue that keeps arrays alive until a
launch on a foreign stream has used them. Nothing here waits on the host, unless the driver
has no event left to keep an array by.

Through our legacy-flavoured entry points 0 and 1 are both the legacy default stream and 2
is the per-thread one. What Numba calls 0 is the per-thread stream if cuda-python was told
so by ``CUDA_PYTHON_CUDA_PER_THREAD_DEFAULT_STREAM``; torch's 0 is always the legacy one.
"""

from cpython.number cimport PyIndex_Check
from libc.stdint cimport int32_t, uintptr_t

from stridedview._driver cimport (
    CU_EVENT_DISABLE_TIMING, CU_STREAM_CAPTURE_MODE_RELAXED, CUDA_ERROR_INVALID_CONTEXT,
    CUDA_ERROR_NOT_READY, CUDA_SUCCESS, check, driver, require_driver,
)
from stridedview._exchange cimport exchange_stream
from stridedview._source cimport FIRST_PAGE
from stridedview._torch cimport torch_stream
from stridedview._view cimport (
    FAMILY_CUPY, FAMILY_EXCHANGE, FAMILY_NUMBA, FAMILY_TORCH,
    NO_STREAM, StridedView,
)

import atexit
import gc
import operator
import os
import sys
from collections import deque

from stridedview import _export, _ingest, _view
from stridedview._driver import DriverError

cdef enum:
    CAPTURE_ACTIVE = 1          # CU_STREAM_CAPTURE_STATUS_ACTIVE
    EVENTS_MADE_AHEAD = 8       # per context, so that a capture finds some
    OWNERS_KEPT = 1024          # launches whose arguments are kept at a time

cdef bint _per_thread = (
    os.environ.get("CUDA_PYTHON_CUDA_PER_THREAD_DEFAULT_STREAM", "0") not in ("", "0"))

# context id -> list of idle event handles (ints). An event is taken out while in use, so
# that two threads that queue at once never share one.
cdef dict _idle_events = {}

# (owner, event, context id), oldest first.
_kept = deque()


cdef void* numba_default_stream() noexcept nogil:
    return <void*><uintptr_t>STREAM_PER_THREAD if _per_thread else NULL


cdef bint family_stream(int family, int32_t device_id, void** stream) except -1:
    if family == FAMILY_TORCH:
        torch_stream(device_id, stream)
    elif family == FAMILY_CUPY:
        stream[0] = _cupy_stream(device_id)
    elif family == FAMILY_NUMBA:
        stream[0] = numba_default_stream()
    elif family >= FAMILY_EXCHANGE:
        exchange_stream(family, device_id, stream)
    else:
        return False
    return True


cdef object _cupy_current_stream = None


cdef void* _cupy_stream(int32_t device_id) except? NULL:
    global _cupy_current_stream
    if _cupy_current_stream is None:
        _cupy_current_stream = sys.modules["cupy"].cuda.get_current_stream
    return <void*><uintptr_t>_cupy_current_stream(device_id).ptr


cdef bint is_capturing(void* stream) noexcept nogil:
    cdef unsigned long long ignored
    return _capture_id(stream, &ignored)


cdef bint _capture_id(void* stream, unsigned long long* capture_id) noexcept nogil:
    # The legacy stream cannot be captured; asking while another stream captures is an
    # error of its own, which means no here.
    cdef int status = 0
    capture_id[0] = 0
    if driver.cuStreamGetCaptureInfo(
        stream, &status, capture_id, NULL, NULL, NULL, NULL
    ) != CUDA_SUCCESS:
        return False
    return status == CAPTURE_ACTIVE


cdef int order_behind(void* target, void* behind) except -1:
    cdef unsigned long long target_capture, behind_capture
    cdef void* event
    if same_stream(target, behind):
        return 0
    require_driver()
    _capture_id(target, &target_capture)
    _capture_id(behind, &behind_capture)
    if target_capture != behind_capture:
        # A wait across a capture's border would spoil the capture, or pull an outsider
        # into it; within one capture, or outside any, it is an ordinary wait.
        return 0
    event = _take_event()
    try:
        _record_and_wait(event, behind, target)
    finally:
        # A wait holds the event's state at the time of the call, so that the event can
        # be recorded anew at once.
        _give_event(event)
    return 0


cdef int _record_and_wait(void* event, void* behind, void* target) except -1:
    cdef int result
    with nogil:     # a full queue blocks in the driver
        result = driver.cuEventRecord(event, behind)
    check(result, "cuEventRecord")
    with nogil:
        result = driver.cuStreamWaitEvent(target, event, 0)
    return check(result, "cuStreamWaitEvent")


cdef unsigned long long _context_id() except? 0:
    cdef unsigned long long context_id = 0
    check(driver.cuCtxGetId(NULL, &context_id), "cuCtxGetId")
    return context_id


cdef void* _take_event() except NULL:
    cdef list idle = _idle_events.setdefault(_context_id(), [])
    try:
        return <void*><uintptr_t>idle.pop()
    except IndexError:
        return _make_event()


cdef void* _make_event() except NULL:
    cdef void* event = NULL
    cdef int mode = CU_STREAM_CAPTURE_MODE_RELAXED
    # Making an event while any thread captures in global mode would spoil that capture.
    driver.cuThreadExchangeStreamCaptureMode(&mode)
    result = driver.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING)
    driver.cuThreadExchangeStreamCaptureMode(&mode)
    check(result, "cuEventCreate")
    return event


cdef int _give_event(void* event) except -1:
    (<list>_idle_events.setdefault(_context_id(), [])).append(<uintptr_t>event)
    return 0


def prepare_events():
    """Make events ahead in the current context, so that a capture finds some."""
    require_driver()
    idle = _idle_events.setdefault(_context_id(), [])
    while len(idle) < EVENTS_MADE_AHEAD:
        idle.append(<uintptr_t>_make_event())


cdef bint keep_until_done(object owner, void* stream) except -1:
    cdef void* event
    cdef int result
    if is_capturing(stream):
        return True         # the graph's owner keeps what the graph uses
    release_done()
    if len(_kept) >= OWNERS_KEPT:
        return False
    try:
        event = _take_event()
    except DriverError:
        return _wait_until_done(stream)
    with nogil:
        result = driver.cuEventRecord(event, stream)
    if result != CUDA_SUCCESS:
        _give_event(event)
        return _wait_until_done(stream)
    _keep(owner, <uintptr_t>event, _context_id())
    return True


cdef bint _watches_collections = False


cdef int _keep(object owner, uintptr_t event, unsigned long long context_id) except -1:
    global _watches_collections
    _kept.append((owner, event, context_id))
    if not _watches_collections:
        # A program that launches no more gets its memory back too.
        _watches_collections = True
        gc.callbacks.append(_release_at_collection)
    return 0


def _release_at_collection(phase, info):
    if phase == "start":
        release_done()


cdef bint _wait_until_done(void* stream) except -1:
    # No event tells when the work is done, and it is queued already: to raise would give
    # its memory back under it, and let the caller queue it twice.
    cdef int result
    with nogil:
        result = driver.cuStreamSynchronize(stream)
    check(result, "cuStreamSynchronize")
    return True


def release_done():
    """Drop the owners whose work is done.

    Called whenever one is kept, at every so many launches, and at garbage collections.
    """
    cdef int mode = CU_STREAM_CAPTURE_MODE_RELAXED
    if not _kept:
        return
    require_driver()
    # While any thread captures in global mode, asking an event that has no part in the
    # capture would spoil it, and so would freeing what a dropped owner holds.
    driver.cuThreadExchangeStreamCaptureMode(&mode)
    try:
        while _kept and _release_oldest():
            pass
    finally:
        driver.cuThreadExchangeStreamCaptureMode(&mode)


cdef bint _release_oldest() except -1:
    """Drop the oldest owner if its launch is done; return whether it was."""
    cdef int result
    try:
        item = _kept.popleft()
    except IndexError:
        return False        # another thread was faster
    result = driver.cuEventQuery(<void*><uintptr_t>item[1])
    if result == CUDA_ERROR_NOT_READY or (
            result == CUDA_ERROR_INVALID_CONTEXT and not _has_context()):
        _kept.appendleft(item)      # without a current context nothing can be asked
        return False
    if result == CUDA_SUCCESS:
        _idle_events.setdefault(item[2], []).append(item[1])
    # Any other answer says that the context, and with it the launch, is gone.
    return True


cdef bint _has_context() noexcept:
    cdef unsigned long long ignored
    return driver.cuCtxGetId(NULL, &ignored) == CUDA_SUCCESS


def kept_count():
    """Return how many launches' arguments are kept alive now."""
    return len(_kept)


cdef void* stream_handle(object stream) except? NULL:
    """Return the driver's handle of a stream object or int.

    Raises TypeError for what is no stream, ValueError for an int that is no handle.
    """
    if stream is None:
        return NULL
    if PyIndex_Check(stream) and not isinstance(stream, bool):
        return _checked_handle(stream)
    handle = _handle_of_object(stream)
    if handle is None and hasattr(stream, "stream"):    # cuda.core's GraphBuilder
        handle = _handle_of_object(stream.stream)
    if handle is None:
        _refuse(stream)
    return _checked_handle(handle)


cdef void* _checked_handle(object handle) except? NULL:
    # Streams are objects of the driver's, and none lies in the first page.
    cdef object value = operator.index(handle)
    if not (0 <= value <= STREAM_PER_THREAD or FIRST_PAGE <= value <= <uintptr_t>-1):
        raise ValueError(
            f"stream {value} is no handle of a CUDA stream; bytes of shared memory come "
            "fourth: kernel[grid, block, 0, shared]")
    return <void*><uintptr_t>value


cdef object _handle_of_object(object stream):
    # None if it has none. torch's and CuPy's attributes first: their __cuda_stream__ is
    # younger than they are.
    for attribute in ("cuda_stream", "ptr", "handle"):
        handle = getattr(stream, attribute, None)
        if handle is not None:
            return _as_int(handle, attribute, stream) or _default_of(stream)
    if hasattr(stream, "__cuda_stream__"):
        protocol = stream.__cuda_stream__
        _version, handle = protocol() if callable(protocol) else protocol
        return _as_int(handle, "__cuda_stream__", stream)
    if type(stream).__name__ == "Stream" and hasattr(stream, "handle"):
        return _default_of(stream)      # Numba's wrapper may hold None for it
    return None


cdef object _as_int(object handle, str attribute, object stream):
    # The driver's own objects have an int(), but are no indices.
    if isinstance(handle, (str, bytes, float)) or not hasattr(handle, "__int__"):
        raise TypeError(
            f"{attribute} of {type(stream).__module__}.{type(stream).__qualname__} is "
            f"{handle!r}, not a handle of a CUDA stream")
    return int(handle)


cdef int _refuse(object stream) except -1:
    raise TypeError(
        f"expected a stream, got {type(stream).__module__}.{type(stream).__qualname__}: "
        "pass an int handle, a torch, CuPy, Numba or cuda.core stream, or an object with "
        "__cuda_stream__")


cdef object _default_of(object stream):
    # What Numba calls 0 may be the per-thread stream; anyone else's 0 is the legacy one.
    if type(stream).__module__.startswith(("numba.", "numba_cuda.")):
        return <uintptr_t>numba_default_stream()
    return 0


def handle_of(stream):
    """Return the driver handle (int) of a stream object, an int, or None (0).

    Raises
    ------
    TypeError
        If it is no stream.
    ValueError
        If an int is no handle.
    """
    return <uintptr_t>stream_handle(stream)


def is_named(stream):
    """Whether a launch's stream argument names a stream; 0 and None do not.

    ``kernel[grid, block, 0, shared]`` is the only way to give shared memory without a
    stream, so that 0 there cannot mean the legacy stream; Numba's stream objects can.
    """
    return not (stream is None or (PyIndex_Check(stream) and stream == 0))


def leads(StridedView view):
    """Whether a view's producer has a current stream that an unnamed launch follows."""
    return view.family == FAMILY_TORCH or view.family == FAMILY_CUPY or (
        view.family >= FAMILY_EXCHANGE)


def producer_streams(StridedView view):
    """Return the handles of the streams that order a view: its family's and its own."""
    cdef void* handle = NULL
    cdef list found = []
    require_driver()
    if family_stream(view.family, view.device_id, &handle):
        found.append(<uintptr_t>handle)
    if view.stream_handle != NO_STREAM:
        found.append(view.stream_handle)
    return found


def default_stream():
    """Return the handle of what Numba calls its default stream."""
    return <uintptr_t>numba_default_stream()


def same(uintptr_t one, uintptr_t other):
    """Whether two handles mean one stream: 0 and 1 are both the legacy default."""
    return bool(same_stream(<void*>one, <void*>other))


def keep(owner, uintptr_t stream, producer_streams):
    """Keep an object until the work queued on ``stream`` so far is done.

    Where too many are kept, the producers' streams (handles) wait for that work instead.
    """
    require_driver()
    if not keep_until_done(owner, <void*>stream):
        for producer in producer_streams:
            order_behind(<void*><uintptr_t>producer, <void*>stream)


def order(target, behind):
    """Put the work queued on ``target`` from now on behind what ``behind`` holds now.

    Parameters
    ----------
    target, behind : int
        Stream handles in the current context.
    """
    require_driver()
    order_behind(<void*><uintptr_t>target, <void*><uintptr_t>behind)


def capturing(stream):
    """Whether a stream (handle) is in a capture."""
    require_driver()
    return is_capturing(<void*><uintptr_t>stream)


def order_view(StridedView view, stream):
    """Put ``stream`` behind the work that produced a view."""
    cdef void* target
    cdef void* behind = NULL
    if view.device_type == 1:
        return
    require_driver()
    target = stream_handle(stream)
    if family_stream(view.family, view.device_id, &behind):
        order_behind(target, behind)
    if view.stream_handle != NO_STREAM:
        order_behind(target, <void*>view.stream_handle)


_ingest.set_order_hook(order_view)
_view.set_stream_reader(handle_of)
# Memory of our own is worked on where Numba's is, on whichever device.
_export.set_hooks(current_stream=lambda _device: default_stream())
# Nothing is asked of a driver that is going away; what was kept goes with the process.
atexit.register(_kept.clear)
