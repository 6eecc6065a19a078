# Streams and their ordering: the C face. See _stream.pyx.

from libc.stdint cimport int32_t, uintptr_t


cdef enum:
    STREAM_LEGACY = 1           # CU_STREAM_LEGACY; 0 means the same through our entry points
    STREAM_PER_THREAD = 2       # CU_STREAM_PER_THREAD


# Numba's default stream: 0, or the per-thread one where cuda-python is told so.
cdef void* numba_default_stream() noexcept nogil
# The stream on which a family's producers work now; False if the family has none.
cdef bint family_stream(int family, int32_t device_id, void** stream) except -1
# Put the work queued on `target` from now on behind what is queued on `behind` now.
# Adds nothing if they are one stream or if the wait would cross a capture's border.
cdef int order_behind(void* target, void* behind) except -1
cdef bint is_capturing(void* stream) noexcept nogil
# Keep an object until the work queued on `stream` so far is done. False if too many are
# kept: then each producer's stream has to wait for `stream`, so that memory given back
# there is reused only after the work.
cdef bint keep_until_done(object owner, void* stream) except -1
cdef void* stream_handle(object stream) except? NULL


cdef inline bint same_stream(void* one, void* other) noexcept nogil:
    # 0 and STREAM_LEGACY are one stream.
    return one is other or ((<uintptr_t>one | <uintptr_t>other) == STREAM_LEGACY)
