# The dtype table's C face. See _dtype.pyx for what it owns.

from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t


cdef enum:
    DTYPE_CAPACITY = 65536      # static entries and registered ones (structured, datetime)
    DTYPE_NONE = 0              # no entry: an unknown type


cdef struct DTypeFacts:
    int32_t itemsize            # bytes
    int32_t alignment           # bytes, a power of two
    uint8_t code                # DLPack type code
    uint8_t bits                # DLPack bits; 0 if DLPack cannot say this type
    bint kernel                 # may a kernel take it


cdef DTypeFacts dtype_facts[DTYPE_CAPACITY]       # indexed by id


cdef class DType:
    cdef readonly int id
    cdef readonly str name
    cdef readonly str numba_name
    cdef readonly str torch_name
    cdef readonly str typestr
    cdef readonly str advice
    cdef object _numpy


cdef int dtype_from_dlpack(int code, int bits, int lanes) except -1
cdef int dtype_lanes(int id) noexcept
cdef int dtype_from_numpy(object dtype) except -1
cdef DType dtype_by_id(int id)
# The entry for whatever ``stridedview.dtype`` takes.
cdef DType find_dtype(object what)
