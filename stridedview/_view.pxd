# StridedView's C face. See _view.pyx for what it owns.

from libc.stdint cimport int32_t, int64_t, intptr_t, uint8_t, uint16_t

from stridedview._layout cimport Layout


cdef enum:
    # Families: who orders the memory, that is, whose current stream counts at a launch.
    FAMILY_NONE = 0             # nobody: no stream is known
    FAMILY_TORCH = 1
    FAMILY_CUPY = 2
    FAMILY_NUMBA = 3            # Numba's default stream, or the array's own
    FAMILY_OWN = 4              # allocated here, on the stream the view carries
    FAMILY_EXCHANGE = 8         # first of the types known by their exchange API

    NO_STREAM = -1              # a view's stream field: the producer names none


cdef class StridedView:
    cdef readonly Layout layout
    cdef readonly object owner      # keeps the memory alive
    cdef void* data
    cdef intptr_t stream_handle     # the producer's stream, or NO_STREAM
    cdef int32_t device_type        # DLPack's
    cdef int32_t device_id
    cdef uint16_t dtype_id          # index in the dtype table
    cdef uint8_t family
    cdef bint is_readonly
    # What Numba's users of device arrays set or cache on an array, and the stream object
    # given to bind(): a dict, or None. Kept apart as most views never need it.
    cdef object extra
    cdef object __weakref__


cdef StridedView make_view(
    void* data, Layout layout, int dtype_id, int32_t device_type, int32_t device_id,
    bint is_readonly, object owner, int family, intptr_t stream)

# A view of the same memory: another layout, `offset` bytes further on.
cdef StridedView derive(StridedView source, Layout layout, int64_t offset)

# A view of one field of a structured dtype.
cdef StridedView field(StridedView view, str name)

cdef str place_name(StridedView view)               # where the memory is: "cuda:0"
cdef bint on_host(StridedView view) noexcept        # may the CPU read it
cdef bint on_device(StridedView view) noexcept      # may a kernel read it
