# The pinned ring between host and device. See _ring.pyx for what it owns.

from stridedview._copyplan cimport CopyPlan


# Move between host and device; the device's side is dense and walked in order. Returns True
# if the call has already waited for the stream.
cdef bint transfer(CopyPlan* plan, bint to_device, bint pinned, void* stream) except -1
