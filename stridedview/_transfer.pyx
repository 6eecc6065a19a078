"""Copying and reading the items of a StridedView.

Owns the decisions: which stream a copy runs on and what it waits for, when the
host waits, when a copy goes through scratch memory. The moving itself is in
_device_copy and _copyplan; assignment, which also converts and broadcasts, is in
_assign.

Streams. A stream that is named gets the copy, behind the producers of both sides,
and the host waits only where it must unpack. Without one the copy runs on the
stream that orders the target (or, downwards, the source), and is over for the host
when the call returns; between two device views the host never waits, and whatever
follows on either side's stream is behind the copy.
"""

from libc.stdint cimport int64_t, uintptr_t

from stridedview._copyplan cimport CopyPlan, dense_side, make_plan
from stridedview._device_copy cimport (
    Scratch,
    compact,
    current_device,
    queue_plan,
    scratch,
)
from stridedview._dlpack cimport kDLCPU, kDLCUDAHost
from stridedview._driver cimport (
    CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
    CU_STREAM_CAPTURE_MODE_RELAXED,
    CUDA_SUCCESS,
    check,
    driver,
    driver_ready,
    require_driver,
)
from stridedview._dtype cimport dtype_by_id, dtype_from_numpy
from stridedview._ingest cimport as_view
from stridedview._layout cimport (
    WORDS_BEFORE_SHAPE,
    Layout,
    is_unique,
    reshape_layout,
    slice_layout,
)
from stridedview._ring cimport transfer
from stridedview._stream cimport (
    family_stream,
    is_capturing,
    keep_until_done,
    order_behind,
    same_stream,
    stream_handle,
)
from stridedview._view cimport FAMILY_NONE, NO_STREAM, StridedView, derive, make_view

import numpy as np

from stridedview._export import host_array
from stridedview._stream import is_named
from stridedview._view import add_members

ctypedef int64_t intptr        # addresses, where they are compared and added to offsets

cdef enum:
    CU_MEMORYTYPE_HOST = 1


# ---- host arrays as views ------------------------------------------------------------


cdef StridedView view_of_array(object array):
    # Takes every NumPy dtype that a view can have, the array's own strides included.
    cdef Layout layout = Layout(array.shape, array.strides, itemsize=array.itemsize)
    return make_view(
        <void*><uintptr_t>array.ctypes.data, layout, dtype_from_numpy(array.dtype), kDLCPU,
        0, not array.flags.writeable, array, FAMILY_NONE, NO_STREAM)


cdef object array_of_layout(Layout layout, object dtype):
    # A new NumPy array with this layout, which has no gaps.
    return np.ndarray(
        layout.shape, dtype, np.empty(layout.nbytes, np.uint8), strides=layout.strides)


cdef object _array_of(StridedView view):
    # NumPy may lack the dtype: unsigned integers then carry the bytes.
    if not dtype_by_id(view.dtype_id).typestr:
        view = (<object>view).view(f"u{view.layout.itemsize}")
    return host_array(view)


cdef bint on_host_side(StridedView view) noexcept:
    # Pinned memory goes over the link as host memory does; managed memory is the device's.
    return view.device_type == kDLCPU or view.device_type == kDLCUDAHost


cdef bint _is_pinned(StridedView view) except -1:
    # NumPy arrays over pinned memory do not say so; the driver knows.
    cdef int kind = 0
    if view.device_type == kDLCUDAHost:
        return True
    return (
        driver.cuPointerGetAttribute(
            &kind, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, <uintptr_t>view.data) == CUDA_SUCCESS
        and kind == CU_MEMORYTYPE_HOST)


# ---- streams -------------------------------------------------------------------------


cdef bint work_stream(StridedView view, object stream, void** out) except -1:
    """Write the stream for a copy of this view; return whether it was named."""
    if is_named(stream):
        out[0] = stream_handle(stream)
        return True
    out[0] = NULL
    if not family_stream(view.family, view.device_id, out) \
            and view.stream_handle != NO_STREAM:
        out[0] = <void*>view.stream_handle
    return False


cdef int order_after_producer(StridedView view, void* stream) except -1:
    cdef void* producer = NULL
    if not on_host_side(view):
        work_stream(view, None, &producer)
        order_behind(stream, producer)
    return 0


cdef int synchronize(void* stream) except -1:
    # Relaxed: a capture in global mode would forbid the wait, in any thread.
    cdef int mode = CU_STREAM_CAPTURE_MODE_RELAXED
    cdef int result
    with nogil:
        driver.cuThreadExchangeStreamCaptureMode(&mode)
        result = driver.cuStreamSynchronize(stream)
        driver.cuThreadExchangeStreamCaptureMode(&mode)
    return check(result, "cuStreamSynchronize")


cdef int _refuse_in_capture(void* stream) except -1:
    if is_capturing(stream):
        raise RuntimeError(
            "a copy between pageable host memory and a device cannot be captured; copy "
            "before the capture, or use pinned memory without gaps")
    return 0


# ---- the four directions -------------------------------------------------------------


cdef int copy_into(StridedView dst, StridedView src, object stream) except -1:
    """Copy between two views of one shape and dtype; only dst's items change."""
    if dst.layout.size == 0:
        return 0
    if repeats_itself(dst.layout):
        key = last_of_repeated(dst)
        return copy_into(dst[key], src[key], stream)
    if on_host_side(dst) and on_host_side(src):
        _settle(dst, stream)
        _settle(src, stream)
        np.copyto(_array_of(dst), _array_of(src), casting="unsafe")
        return 0
    require_driver()
    if on_host_side(dst) and not is_unique(dst.layout):
        dense = copy_to_host(src, None, stream)
        _settle(src, stream)
        np.copyto(_array_of(dst), dense, casting="unsafe")
        return 0
    check_unique(dst)
    if on_host_side(src):
        return upload(dst, src, stream)
    if on_host_side(dst):
        return _download(dst, src, stream)
    return _copy_on_device(dst, src, stream)


cdef bint repeats_itself(Layout layout) noexcept:
    cdef int axis
    for axis in range(layout.ndim):
        if layout.words[WORDS_BEFORE_SHAPE + layout.ndim + axis] == 0 \
                and layout.words[WORDS_BEFORE_SHAPE + axis] > 1:
            return True
    return False


cdef tuple last_of_repeated(StridedView dst):
    # Many items go to one place: the last one stays, as when NumPy assigns.
    return tuple([slice(-1, None) if step == 0 else slice(None) for step in dst.strides])


cdef int check_unique(StridedView dst) except -1:
    """Refuse to write items that share bytes: on a device nothing says which one stays."""
    if not is_unique(dst.layout):
        raise ValueError(
            f"cannot write to a device view whose items overlap: shape {dst.shape}, strides "
            f"{dst.strides} bytes, items of {dst.layout.itemsize}; which one stays there is "
            "not defined; write to a view in which each byte belongs to one item, or from "
            "a kernel")
    return 0


cdef int _settle(StridedView view, object stream) except -1:
    # The CPU is about to touch memory that a kernel may still be using.
    cdef void* handle
    if view.device_type != kDLCPU and driver_ready():
        with current_device(view):
            work_stream(view, stream, &handle)
            synchronize(handle)
    return 0


cdef StridedView on_scratch(Scratch memory, Layout layout, StridedView like):
    return make_view(
        <void*><uintptr_t>memory.ptr, layout, like.dtype_id, like.device_type,
        like.device_id, False, memory, FAMILY_NONE, NO_STREAM)


cdef int plan_copy(
        CopyPlan* plan, StridedView dst, StridedView src, bint sort_by_src=False) except -1:
    return make_plan(
        plan, <char*>dst.data, dst.layout, <char*>src.data, src.layout, sort_by_src)


cdef int upload(StridedView dst, StridedView src, object stream) except -1:
    cdef CopyPlan plan
    cdef void* handle
    cdef bint pinned = _is_pinned(src), named, waited
    cdef StridedView dense = dst
    with current_device(dst):
        named = work_stream(dst, stream, &handle)
        if named:
            order_after_producer(dst, handle)
        plan_copy(&plan, dst, src)
        if not (pinned and plan.count == 0):
            _refuse_in_capture(handle)
        if not dense_side(&plan, False):
            dense = on_scratch(
                scratch(dst.layout.nbytes, handle), compact(dst.layout, "K"), dst)
            plan_copy(&plan, dense, src)
        waited = transfer(&plan, True, pinned, handle)
        if dense is not dst:
            plan_copy(&plan, dst, dense)
            queue_plan(&plan, dst.device_id, handle)
        if named:
            keep_sides(dst, src, handle)
        elif (dense is not dst or not waited) and not is_capturing(handle):
            synchronize(handle)
        dense = None            # scratch goes back while its device is current
    return 0


cdef int _download(StridedView dst, StridedView src, object stream) except -1:
    cdef CopyPlan plan
    cdef void* handle
    cdef bint pinned = _is_pinned(dst), named, waited
    cdef StridedView dense = src
    with current_device(src):
        named = work_stream(src, stream, &handle)
        if named:
            order_after_producer(src, handle)
        plan_copy(&plan, dst, src, True)
        if not (pinned and plan.count == 0):
            _refuse_in_capture(handle)
        if not dense_side(&plan, True):
            # In the order of the host's side, which is then written in one run.
            dense = on_scratch(
                scratch(src.layout.nbytes, handle), compact(dst.layout, "K"), src)
            plan_copy(&plan, dense, src)
            queue_plan(&plan, src.device_id, handle)
            plan_copy(&plan, dst, dense, True)
        waited = transfer(&plan, False, pinned, handle)
        if named:
            keep_sides(dst, src, handle)
        elif not waited and not is_capturing(handle):
            synchronize(handle)
        dense = None            # scratch goes back while its device is current
    return 0


cdef bint _overlap(StridedView a, StridedView b) noexcept:
    # NumPy's meaning of v[1:] = v[:-1]: as if the source were copied first.
    cdef int64_t a_first = <intptr>a.data + a.layout.first_byte
    cdef int64_t b_first = <intptr>b.data + b.layout.first_byte
    cdef int64_t a_last = <intptr>a.data + a.layout.last_byte
    cdef int64_t b_last = <intptr>b.data + b.layout.last_byte
    if a.data == b.data and a.layout is b.layout:
        return False
    return a_first < b_last and b_first < a_last


cdef int _copy_on_device(StridedView dst, StridedView src, object stream) except -1:
    cdef CopyPlan plan
    cdef void* handle
    cdef void* source_stream
    cdef bint named
    cdef StridedView dense = src
    if dst.device_id != src.device_id:
        dense = _on_other_device(dst, src)
    with current_device(dst):
        named = work_stream(dst, stream, &handle)
        work_stream(dense, None, &source_stream)
        if named:
            order_after_producer(dst, handle)
        order_behind(handle, source_stream)
        if dense is src and _overlap(dst, src):
            dense = on_scratch(
                scratch(src.layout.nbytes, handle), compact(src.layout, "K"), dst)
            plan_copy(&plan, dense, src)
            queue_plan(&plan, dst.device_id, handle)
        plan_copy(&plan, dst, dense)
        queue_plan(&plan, dst.device_id, handle)
        if named:
            keep_sides(dst, src, handle)
        else:
            order_behind(source_stream, handle)
        dense = None            # scratch goes back while its device is current
    return 0


cdef int keep_sides(StridedView dst, StridedView src, void* stream) except -1:
    """Keep both sides of a copy until it is done, or let their own streams wait for it."""
    cdef void* producer = NULL
    if not (_is_foreign(dst, stream) or _is_foreign(src, stream)):
        return 0
    if keep_until_done((dst, src), stream):
        return 0
    if on_host_side(dst) or on_host_side(src):
        return synchronize(stream)      # no stream orders the reuse of host memory
    for view in (dst, src):
        work_stream(view, None, &producer)
        order_behind(producer, stream)
    return 0


cdef bint _is_foreign(StridedView view, void* stream) except -1:
    # Memory that is given back on this very stream is reused only after its work.
    cdef void* producer = NULL
    if on_host_side(view):
        return True
    work_stream(view, None, &producer)
    return not same_stream(producer, stream)


cdef StridedView _on_other_device(StridedView dst, StridedView src):
    # A gapless copy of src on dst's device: packed where it is, then sent.
    cdef CopyPlan plan
    cdef void* handle
    cdef void* source_stream
    cdef void* context = NULL
    cdef void* source_context = NULL
    cdef StridedView packed, sent
    cdef Layout layout = compact(src.layout, "K")
    with current_device(src):
        work_stream(src, None, &source_stream)
        packed = on_scratch(scratch(layout.nbytes, source_stream), layout, src)
        plan_copy(&plan, packed, src)
        queue_plan(&plan, src.device_id, source_stream)
        # An event of one device's cannot be recorded on a stream of another's.
        synchronize(source_stream)
        check(driver.cuCtxGetCurrent(&source_context), "cuCtxGetCurrent")
    with current_device(dst):
        work_stream(dst, None, &handle)
        sent = on_scratch(scratch(layout.nbytes, handle), layout, dst)
        check(driver.cuCtxGetCurrent(&context), "cuCtxGetCurrent")
        # Not cuMemcpyAsync: neither device has access to the memory of the other's pool.
        check(driver.cuMemcpyPeerAsync(
            <uintptr_t>sent.data, context, <uintptr_t>packed.data, source_context,
            layout.nbytes, handle), "cuMemcpyPeerAsync")
        synchronize(handle)
    with current_device(src):
        packed = None           # scratch goes back while its device is current
    return sent


# ---- what may be copied --------------------------------------------------------------


cdef int check_writable(StridedView view) except -1:
    if view.is_readonly:
        raise ValueError("the view is read-only: it cannot be written to")
    return 0


cdef StridedView _matched(StridedView source, StridedView target):
    # As Numba: the dtypes are equal, and the shapes but for extents of 1.
    if source.dtype_id != target.dtype_id:
        raise TypeError(
            f"incompatible dtype: {source.dtype_name} vs. {target.dtype_name}; "
            "assign with target[...] = source to convert")
    if source.layout.shape == target.layout.shape:
        return source
    if [n for n in source.shape if n != 1] != [n for n in target.shape if n != 1]:
        raise ValueError(f"incompatible shape: {source.shape} vs. {target.shape}")
    return derive(source, reshape_layout(source.layout, target.shape, "C"), 0)


def without_record(value):
    """Return the view behind a record, and anything else as it is."""
    if isinstance(value, (StridedView, np.ndarray, np.generic)):
        return value
    inner = getattr(value, "view", None)
    return inner if isinstance(inner, StridedView) else value


cdef bint _is_array(object value) except -1:
    return isinstance(value, StridedView) or (
        not isinstance(value, (np.ndarray, np.generic)) and (
            hasattr(value, "__dlpack__") or hasattr(value, "__cuda_array_interface__")))


cdef StridedView as_source(object value, StridedView target, bint convert):
    """Return what is to be copied as a view, of the target's dtype if ``convert``."""
    cdef StridedView view
    if isinstance(value, np.ma.MaskedArray):
        as_view(value)              # refuses, as everywhere
    value = without_record(value)
    if _is_array(value):
        view = as_view(value)
        if not convert or view.dtype_id == target.dtype_id:
            return view
        # No kernel of ours converts: the host does, and the docs say so.
        value = (<object>view).copy_to_host()
    if isinstance(value, (np.ndarray, np.generic)):
        array = np.asarray(value)
        if convert or array.dtype == target.dtype:
            array = array.astype(target.dtype, copy=False)
    else:
        array = np.asarray(value, target.dtype)
    return view_of_array(array)


# ---- the methods ---------------------------------------------------------------------


def copy_to_host(StridedView self not None, ary=None, stream=0):
    """Copy to a host array, a new one unless ``ary`` is given, and return it.

    Parameters
    ----------
    ary : host array, optional
        Of this dtype and shape (extents of 1 aside), any strides. A new one has no gaps
        and keeps the order of the axes in memory.
    stream : stream or 0
        Named, the copy is queued there and the host does not wait, unless ``ary`` has
        gaps. Otherwise the copy is done on return.

    Raises
    ------
    TypeError, ValueError
        If dtype or shape differ, or ``ary`` is read-only or masked.
    """
    cdef StridedView target
    if ary is None:
        ary = array_of_layout(compact(self.layout, "K"), self.dtype)
    if isinstance(ary, np.ma.MaskedArray):
        as_view(ary)                # refuses, as everywhere
    target = view_of_array(ary) if isinstance(ary, np.ndarray) else as_view(ary)
    check_writable(target)
    copy_into(target, _matched(self, target), stream)
    return ary


def copy_to_device(StridedView self not None, ary, stream=0):
    """Copy any array, on the host or a device, into this view.

    Parameters
    ----------
    ary : array
        Of this dtype and shape (extents of 1 aside), any strides.
    stream : stream or 0
        Named, the copy is queued there; pinned memory must then stay until it is done.

    Raises
    ------
    TypeError, ValueError
        If dtype or shape differ, ``ary`` is masked, or this view is read-only or has items
        that overlap.
    """
    check_writable(self)
    copy_into(self, _matched(as_source(ary, self, False), self), stream)


def item(StridedView self not None, *index):
    """Return one item as a Python scalar: of a view of one item, or at ``index``.

    Raises
    ------
    ValueError
        If there is no index and the view has not exactly one item.
    IndexError
        If the index is out of bounds.
    """
    cdef StridedView view = self
    cdef int64_t offset = 0
    if index:
        key = index[0] if len(index) == 1 and isinstance(index[0], tuple) else index
        layout = slice_layout(self.layout, key, &offset)
        view = derive(self, layout, offset)
    if view.layout.size != 1:
        raise ValueError(f"item() needs one item; the view has {view.size}")
    return copy_to_host(view).item()


def _read(StridedView self not None):
    return copy_to_host(self)[()]


def _host_copy(StridedView self not None):
    return view_of_array(copy_to_host(self))


add_members({
    "copy_to_host": copy_to_host,
    "copy_to_device": copy_to_device,
    "item": item,
    "_read": _read,
    "_host_copy": _host_copy,
})
