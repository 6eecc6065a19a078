"""What an importer learns of an array, and the checks that every foreign claim passes.

Owns the struct ``Source`` and the one funnel for byte offsets, NULL strides, extents,
overflow and alignment. It knows no producer: ``_torch`` and ``_ingest`` fill the struct.
"""

from cpython.long cimport PyLong_AsLongLong, PyLong_CheckExact
from cpython.number cimport PyIndex_Check, PyNumber_Index
from libc.stdint cimport int32_t, int64_t, uintptr_t

from stridedview._dlpack cimport kDLCPU
from stridedview._dtype cimport dtype_by_id, dtype_facts

cdef enum:
    # No allocation lies in the first page; a pointer there is the offset of a slice into
    # storage that was freed, or an invented one.
    FIRST_PAGE = 4096
    # What a signature word has room for: a greater number would pass for another device.
    DEVICES = 1 << 16


cdef extern from *:
    """
    #if defined(_MSC_VER)
    #include <intrin.h>
    static int sv_mul_overflow(long long a, long long b, long long *r) {
        __int64 high; *r = _mul128(a, b, &high);
        return high != (*r >> 63);
    }
    #else
    #define sv_mul_overflow(a, b, r) __builtin_mul_overflow(a, b, r)
    #endif
    """
    bint mul_overflow "sv_mul_overflow"(long long a, long long b, long long* result) nogil


cdef int64_t _as_int64(object value, str what) except? -1:
    if not PyLong_CheckExact(value):
        # Not every number: an extent of 4.0 is a producer's mistake.
        if not PyIndex_Check(value):
            raise TypeError(
                f"its {what} has a {type(value).__name__}, not an integer: {value!r}")
        value = PyNumber_Index(value)
    return PyLong_AsLongLong(value)


cdef int _check_tuple(object value, str what) except -1:
    # Lists too: producers hand them out, and the meaning is the same.
    if not isinstance(value, (tuple, list)):
        raise TypeError(f"its {what} must be a tuple of integers, got {value!r}")
    return 0


cdef int read_shape(Source* source, object shape, object strides) except -1:
    cdef Py_ssize_t ndim, axis
    _check_tuple(shape, "shape")
    if strides is not None:
        _check_tuple(strides, "strides")
    ndim = len(shape)
    if ndim > MAX_NDIM:
        raise BufferError(
            f"an array of {ndim} axes is not supported; the most is {MAX_NDIM}")
    if strides is not None and len(strides) != ndim:
        raise BufferError(f"{ndim} extents but {len(strides)} strides")
    for axis in range(ndim):
        source.scratch[axis] = _as_int64(shape[axis], "shape")
    source.shape = source.scratch
    source.strides = NULL
    source.ndim = <int32_t>ndim
    source.unit = 1
    if strides is not None:
        for axis in range(ndim):
            source.scratch[MAX_NDIM + axis] = _as_int64(strides[axis], "strides")
        source.strides = &source.scratch[MAX_NDIM]
    return 0


cdef int check_source(Source* source) except -1:
    cdef long long size = 1
    cdef long long span
    cdef int axis
    cdef bint empty = False
    if not 0 <= source.device_id < DEVICES:
        raise BufferError(f"its device id {source.device_id} is no CUDA device's")
    if source.ndim < 0 or source.ndim > MAX_NDIM:
        raise BufferError(
            f"an array of {source.ndim} axes is not supported; the most is {MAX_NDIM}")
    if source.ndim and source.shape is NULL:
        raise BufferError(f"an array of {source.ndim} axes came without a shape")
    for axis in range(source.ndim):
        if source.shape[axis] < 0:
            raise BufferError(f"extent {source.shape[axis]} of axis {axis} is negative")
        empty = empty or source.shape[axis] == 0
    if empty:
        return 0
    for axis in range(source.ndim):
        if mul_overflow(size, source.shape[axis], &size):
            raise OverflowError("the product of the extents does not fit 64 bits")
        if source.strides is not NULL and (
            mul_overflow(source.strides[axis], source.unit, &span)
            or mul_overflow(span, source.shape[axis], &span)
        ):
            raise OverflowError(
                f"the extent of axis {axis} times its stride exceeds 64 bits")
    if mul_overflow(size, dtype_facts[source.dtype].itemsize, &size):
        raise OverflowError("the number of bytes does not fit 64 bits")
    return _check_pointer(source)


cdef int _check_pointer(Source* source) except -1:
    cdef uintptr_t address = <uintptr_t>source.data
    cdef uintptr_t alignment = <uintptr_t>dtype_facts[source.dtype].alignment
    if address < FIRST_PAGE:
        raise BufferError(
            f"its pointer is {address:#x}: the memory was freed or never allocated")
    # The host reads at any address, and a launch copies what is there.
    if source.device_type != kDLCPU and address & (alignment - 1):
        raise BufferError(
            f"its pointer {address:#x} is not aligned to the {alignment} bytes of "
            f"{dtype_by_id(source.dtype).name}; pass a copy")
    return 0
