# Copies between views: the C face. See _transfer.pyx for what it owns.

from stridedview._copyplan cimport CopyPlan
from stridedview._device_copy cimport Scratch
from stridedview._layout cimport Layout
from stridedview._view cimport StridedView


# Copy between two views of one shape and dtype; only dst's items change.
cdef int copy_into(StridedView dst, StridedView src, object stream) except -1
cdef int upload(StridedView dst, StridedView src, object stream) except -1
# Write the stream for a copy of this view; return whether it was named.
cdef bint work_stream(StridedView view, object stream, void** out) except -1
cdef int order_after_producer(StridedView view, void* stream) except -1
cdef int synchronize(void* stream) except -1
# Keep both sides of a copy until it is done, or let their own streams wait for it.
cdef int keep_sides(StridedView dst, StridedView src, void* stream) except -1
# Does this memory go over the link as host memory does?
cdef bint on_host_side(StridedView view) noexcept
cdef StridedView on_scratch(Scratch memory, Layout layout, StridedView like)
cdef int plan_copy(
    CopyPlan* plan, StridedView dst, StridedView src, bint sort_by_src=*) except -1
cdef int check_writable(StridedView view) except -1
# Refuse to write items that share bytes.
cdef int check_unique(StridedView dst) except -1
# Has an axis stride 0, so that many items are in one place; the key of the last of them.
cdef bint repeats_itself(Layout layout) noexcept
cdef tuple last_of_repeated(StridedView dst)
# Return what is to be copied as a view, of the target's dtype if `convert`.
cdef StridedView as_source(object value, StridedView target, bint convert)
