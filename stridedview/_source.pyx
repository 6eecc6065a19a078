"""What an importer learns of an array, and the checks that every foreign claim passes.

Owns the struct ``Source`` and the one funnel for byte offsets, NULL strides, extents,
overflow and alignment. It knows no producer: ``_torch`` and ``_ingest`` fill the struct.
"""

from cpython.long cimport PyLong_AsLongLong, PyLong_CheckExact
from cpython.number cimport PyIndex_Check, PyNumber_Index
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF, Py_XDECREF
from libc.stdint cimport int32_t, int64_t, uint64_t, uintptr_t

cimport cython

from stridedview._dlpack cimport kDLCPU
from stridedview._dtype cimport dtype_by_id, dtype_facts
from stridedview._layout cimport WORDS_BEFORE_SHAPE, Layout, intern_layout

cdef enum:
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
    return check_place(source, _check_extents(source))


cdef bint _check_extents(const Source* source) except -1:
    # Return whether there are any items.
    cdef long long size = 1
    cdef long long span
    cdef int axis
    cdef bint empty = False
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
        return False
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
    return True


# Layouts that came through the checks, by a hash of the raw shape and strides: the newest
# of a place stays, and is compared word for word. An entry is an owned reference or NULL.
# As in _intern, the critical sections are nothing with the GIL and a lock without it.
cdef enum:
    SEEN_BITS = 8

cdef PyObject* _seen[1 << SEEN_BITS]
cdef object _seen_guard = object()


cdef inline int _place_of(const Source* source) noexcept:
    cdef uint64_t h = <uint64_t>source.unit
    cdef int axis
    for axis in range(source.ndim):
        h = (h ^ <uint64_t>source.shape[axis]) * <uint64_t>0x9E3779B97F4A7C15
        h += <uint64_t>source.strides[axis]
    return <int>((h * <uint64_t>0xC2B2AE3D27D4EB4F) >> (64 - SEEN_BITS))


cdef inline bint _is(Layout layout, const Source* source) noexcept:
    # Strides in items, as the source has them: the third part of a layout's words.
    cdef int axis, ndim = source.ndim
    cdef const int64_t* words = &layout.words[WORDS_BEFORE_SHAPE]
    if layout.ndim != ndim or layout.itemsize != source.unit or not layout.whole_strides:
        return False
    for axis in range(ndim):
        if words[axis] != source.shape[axis] or (
                words[2 * ndim + axis] != source.strides[axis]):
            return False
    return True


cdef Layout checked_layout(const Source* source):
    cdef Layout layout = None
    cdef int place
    # The table knows strides in items, and an unchecked rank could not be hashed.
    if source.strides == NULL or not 0 <= source.ndim <= MAX_NDIM or (
            source.unit != dtype_facts[source.dtype].itemsize):
        return _check_and_intern(source)
    place = _place_of(source)
    with cython.critical_section(_seen_guard):
        # Sound: only `_remember` fills the table.
        if _seen[place] != NULL and _is(<Layout>_seen[place], source):
            layout = <Layout>_seen[place]
    if layout is None:
        layout = _check_and_intern(source)
        _remember(place, layout)
    return layout


cdef Layout _check_and_intern(const Source* source):
    _check_extents(source)
    return intern_layout(
        source.ndim, source.shape, source.strides, source.unit,
        dtype_facts[source.dtype].itemsize)


cdef int _remember(int place, Layout layout) except -1:
    cdef PyObject* replaced
    Py_INCREF(layout)
    with cython.critical_section(_seen_guard):
        replaced = _seen[place]
        _seen[place] = <PyObject*>layout
    Py_XDECREF(replaced)        # outside, as it may be the last reference
    return 0


cdef int check_place(const Source* source, bint has_items) except -1:
    cdef uintptr_t address = <uintptr_t>source.data
    cdef uintptr_t alignment = <uintptr_t>dtype_facts[source.dtype].alignment
    if not 0 <= source.device_id < DEVICES:
        raise BufferError(f"its device id {source.device_id} is no CUDA device's")
    if not has_items:
        return 0                # nothing is addressed
    if address < FIRST_PAGE:
        raise BufferError(
            f"its pointer is {address:#x}: the memory was freed or never allocated")
    # The host reads at any address, and a launch copies what is there.
    if source.device_type != kDLCPU and address & (alignment - 1):
        raise BufferError(
            f"its pointer {address:#x} is not aligned to the {alignment} bytes of "
            f"{dtype_by_id(source.dtype).name}; pass a copy")
    return 0
