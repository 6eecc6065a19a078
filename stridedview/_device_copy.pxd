# Copies that the driver makes. See _device_copy.pyx for what it owns.

from libc.stddef cimport size_t

from stridedview._copyplan cimport CopyPlan
from stridedview._layout cimport Layout
from stridedview._view cimport StridedView


# Holds a device current for a `with` block.
cdef class CurrentDevice:
    cdef int device
    cdef int mode               # the capture mode that is put back
    cdef void* replaced
    cdef int _make_current(self) except -1

# Stream-ordered scratch memory; given back behind the work queued on its stream.
cdef class Scratch:
    cdef unsigned long long ptr
    cdef void* stream

cdef Scratch scratch(size_t nbytes, void* stream)
cdef CurrentDevice current_device(StridedView view)
# Queue the copy of a plan whose two sides a kernel can reach.
cdef int queue_plan(CopyPlan* plan, int device, void* stream) except -1
# The layout of a copy without gaps that keeps the order of the axes in memory.
cdef Layout compact(Layout layout, str order)
