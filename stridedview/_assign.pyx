"""Assigning to the items of a StridedView.

Owns what ``view[key] = value`` and ``fill`` mean: the value is converted and
broadcast as NumPy does it. A value smaller than the target is sent once and
repeated on the device. Which stream and who waits is as in _transfer.
"""

from libc.stdint cimport int64_t, intptr_t, uint8_t, uint16_t, uint32_t, uintptr_t

from stridedview._copyplan cimport CopyPlan
from stridedview._device_copy cimport compact, current_device, queue_plan, scratch
from stridedview._driver cimport check, driver, require_driver
from stridedview._layout cimport Layout, broadcast_layout, reshape_layout, slice_layout
from stridedview._stream cimport is_capturing
from stridedview._transfer cimport (
    as_source,
    check_unique,
    check_writable,
    copy_into,
    keep_sides,
    last_of_repeated,
    on_host_side,
    on_scratch,
    order_after_producer,
    plan_copy,
    repeats_itself,
    synchronize,
    upload,
    work_stream,
)
from stridedview._view cimport StridedView, derive, field

from stridedview._view import add_members


cdef StridedView _broadcast(StridedView source, StridedView target):
    # NumPy's assignment also drops leading axes of extent 1.
    cdef Layout layout = source.layout
    extra = layout.ndim - target.layout.ndim
    while extra > 0 and layout.shape[0] == 1:
        layout, extra = reshape_layout(layout, layout.shape[1:], "C"), extra - 1
    if layout.shape != target.layout.shape:
        try:
            layout = broadcast_layout(layout, target.shape)
        except ValueError:
            raise ValueError(
                f"could not broadcast input array from shape {_in_words(layout.shape)} "
                f"into shape {_in_words(target.shape)}") from None
    return source if layout is source.layout else derive(source, layout, 0)


cdef str _in_words(tuple shape):
    # As NumPy writes it.
    return f"({','.join(map(str, shape))}{',' if len(shape) == 1 else ''})"


cdef int assign(StridedView target, object value, object stream) except -1:
    """Write a value of any broadcastable shape and any dtype."""
    cdef StridedView source, wide
    check_writable(target)
    source = as_source(value, target, True)
    wide = _broadcast(source, target)
    if target.layout.size == 0:
        return 0
    if repeats_itself(target.layout):
        return _assign_last(target, source, wide, stream)
    if not on_host_side(target):
        check_unique(target)
    if not on_host_side(target) and on_host_side(source) \
            and source.layout.size < target.layout.size:
        return _assign_repeated(target, source, stream)
    return copy_into(target, wide, stream)


cdef int _assign_last(
        StridedView target, StridedView source, StridedView wide, object stream) except -1:
    # Many items in one place: the last one stays, as when NumPy assigns.
    cdef tuple key = last_of_repeated(target)
    cdef int lead = target.layout.ndim - source.layout.ndim
    if lead < 0:
        return assign(target[key], wide[key], stream)
    # What the source repeats need not be sent more than once.
    part = tuple([slice(None) if source.layout.shape[i] == 1 else key[lead + i]
                  for i in range(source.layout.ndim)])
    return assign(target[key], source[part] if part else source, stream)


cdef int _assign_repeated(StridedView target, StridedView source, object stream) except -1:
    # Few host items to many places: send the few, spread them on the device.
    cdef void* handle
    cdef bint named
    cdef StridedView sent
    require_driver()
    with current_device(target):
        named = work_stream(target, stream, &handle)
        if named:
            order_after_producer(target, handle)
        if source.layout.size == 1 and _fill_dense(target, <char*>source.data, handle):
            sent = None
        else:
            sent = on_scratch(
                scratch(source.layout.nbytes, handle), compact(source.layout, "K"), target)
            # On the same handle throughout: the scratch's own stream is this one.
            sent.stream_handle = <intptr_t>handle
            upload(sent, source, stream if named else None)
            _spread(target, sent, handle)
        if named:
            keep_sides(target, target, handle)    # the source has been read
        elif not is_capturing(handle):
            synchronize(handle)
        sent = None             # scratch goes back while its device is current
    return 0


cdef int _spread(StridedView target, StridedView sent, void* handle) except -1:
    cdef CopyPlan plan
    plan_copy(&plan, target, _broadcast(sent, target))
    return queue_plan(&plan, target.device_id, handle)


cdef bint _fill_dense(StridedView target, const char* item, void* handle) except -1:
    # Memory without gaps and a value of at most 4 repeating bytes: the driver's memset.
    cdef CopyPlan plan
    cdef int64_t itemsize = target.layout.itemsize
    cdef int64_t width = itemsize, nbytes = target.layout.nbytes
    cdef unsigned long long start
    cdef int result
    plan_copy(&plan, target, target)
    if plan.count != 0:
        return False
    while width > 1 and width % 2 == 0 and _repeats(item, width):
        width //= 2
    start = <uintptr_t>plan.dst
    if width == 1:
        result = driver.cuMemsetD8Async(start, (<const uint8_t*>item)[0], nbytes, handle)
    elif width == 2 and start % 2 == 0:
        result = driver.cuMemsetD16Async(
            start, (<const uint16_t*>item)[0], nbytes // 2, handle)
    elif width == 4 and start % 4 == 0:
        result = driver.cuMemsetD32Async(
            start, (<const uint32_t*>item)[0], nbytes // 4, handle)
    else:
        return False
    check(result, "cuMemset")
    return True


cdef bint _repeats(const char* item, int64_t width) noexcept:
    # Is the second half of the first `width` bytes as the first?
    cdef int64_t i
    for i in range(width // 2):
        if item[i] != item[i + width // 2]:
            return False
    return True


# ---- the methods ---------------------------------------------------------------------


def setitem(StridedView self not None, key, value, stream=0):
    """Write ``value``, broadcast and converted as NumPy does, at ``key``.

    Raises
    ------
    ValueError
        If the view is read-only, the shapes do not agree, or items of the view on a device
        overlap in another way than by a stride of 0, of which the last one stays.
    TypeError
        If the value is masked or cannot be converted.
    IndexError
        If ``key`` is no basic index.
    """
    cdef int64_t offset = 0
    cdef StridedView target
    if isinstance(key, str):
        assign(field(self, key), value, stream)
        return
    layout = slice_layout(self.layout, key, &offset)
    target = derive(self, layout, offset)
    assign(target, value, stream)


def getitem(StridedView self not None, item, stream=0):
    """Return ``self[item]``, read on this stream.

    Raises
    ------
    IndexError
        If ``item`` is no basic index.
    """
    return (self.bind(stream) if stream else self)[item]


def fill(StridedView self not None, value, stream=0):
    """Write one value to every item.

    Raises
    ------
    TypeError, ValueError
        As for an assignment to ``self[...]``.
    """
    assign(self, value, stream)


add_members({"setitem": setitem, "getitem": getitem, "fill": fill})
