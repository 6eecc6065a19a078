# cython: freethreading_compatible=True
"""Facts of a shape and strides held in raw C arrays.

Owns the default strides, contiguity by NumPy's rules, and whether two indices
share an address. It knows no Layout, no pointer and no dtype but its size;
strides are in bytes. The operations on such arrays are in _indexing and _axes.

Where NumPy's answer depends on its version (the strides of empty arrays and of
axes of extent 1, which address nothing), ours is fixed: an empty axis counts as
one of extent 1.
"""

from cpython.long cimport PyLong_AsLongLong, PyLong_CheckExact
from cpython.number cimport PyIndex_Check, PyNumber_Index
from libc.stdint cimport int64_t
from libc.stdlib cimport qsort

cimport cython

# How many nodes the search for two indices of one address visits before it answers
# "maybe": a layout that needs more is one that nobody makes by slicing.
cdef enum:
    UNIQUE_BUDGET = 20000


cdef int64_t _as_int64(object value, str what) except? -1:
    if not PyLong_CheckExact(value):
        if not PyIndex_Check(value):
            raise TypeError(f"{what} must be integers, got {type(value).__name__}")
        value = PyNumber_Index(value)
    return PyLong_AsLongLong(value)


cdef int parse_extents(object sequence, str what, int64_t* out) except -1:
    """Write a sequence of ints (or one int) into ``out``; return how many."""
    cdef int count = 0
    if PyLong_CheckExact(sequence) or (
            PyIndex_Check(sequence) and getattr(sequence, "ndim", 0) == 0):
        out[0] = _as_int64(sequence, what)
        return 1
    if isinstance(sequence, (str, bytes, bytearray, set, frozenset, dict)):
        raise TypeError(f"{what} must be integers in order, got {sequence!r}")
    for item in sequence:
        if count == MAX_NDIM:
            raise ValueError(f"{what}: at most {MAX_NDIM} dimensions are supported")
        out[count] = _as_int64(item, what)
        count += 1
    return count


cdef int fill_c_strides(
        int ndim, const int64_t* shape, int64_t itemsize, int64_t* strides) except -1:
    cdef int64_t stride = itemsize
    cdef int axis
    for axis in range(ndim - 1, -1, -1):
        strides[axis] = stride
        if shape[axis] > 1 and mul_overflows(stride, shape[axis], &stride):
            raise OverflowError("the product of the extents does not fit 64 bits")
    return 0


cdef int fill_f_strides(
        int ndim, const int64_t* shape, int64_t itemsize, int64_t* strides) except -1:
    cdef int64_t stride = itemsize
    cdef int axis
    for axis in range(ndim):
        strides[axis] = stride
        if shape[axis] > 1 and mul_overflows(stride, shape[axis], &stride):
            raise OverflowError("the product of the extents does not fit 64 bits")
    return 0


cdef bint empty(const Axes* axes) noexcept nogil:
    cdef int axis
    for axis in range(axes.ndim):
        if axes.shape[axis] == 0:
            return True
    return False


cdef bint c_contiguous(const Axes* axes) noexcept nogil:
    """NumPy's rule: axes of extent 1 do not count, and empty is contiguous."""
    cdef int64_t expected = axes.itemsize
    cdef int axis
    for axis in range(axes.ndim - 1, -1, -1):
        if axes.shape[axis] != 1:
            if axes.strides[axis] != expected:
                return empty(axes)
            # Cannot overflow unnoticed where it matters: Layout checked the product.
            mul_overflows(expected, axes.shape[axis], &expected)
    return True


cdef bint f_contiguous(const Axes* axes) noexcept nogil:
    cdef int64_t expected = axes.itemsize
    cdef int axis
    for axis in range(axes.ndim):
        if axes.shape[axis] != 1:
            if axes.strides[axis] != expected:
                return empty(axes)
            mul_overflows(expected, axes.shape[axis], &expected)
    return True


cdef struct Span:
    int64_t stride              # bytes, positive
    int64_t reach               # extent - 1


cdef int _wider_first(const void* a, const void* b) noexcept nogil:
    cdef int64_t left = (<const Span*>a).stride
    cdef int64_t right = (<const Span*>b).stride
    return (left < right) - (left > right)


@cython.cdivision(True)         # the divisor is positive, the dividend made so
cdef inline int64_t _floor(int64_t value, int64_t divisor) noexcept nogil:
    return value // divisor if value >= 0 else -((-value + divisor - 1) // divisor)


cdef bint _meets(
        int count, const Span* spans, const int64_t* below, int64_t partial,
        bint moved, int64_t itemsize, int* budget) noexcept nogil:
    # Is there a difference of two indices, not zero, that moves less than one item?
    # `below[i]` is the most that the spans from i on can take back. Only steps that the
    # narrower spans can still undo are tried; the first step taken is positive, as its
    # mirror image is the same pair of indices.
    cdef int64_t bound, low, high, step
    budget[0] -= 1
    if budget[0] < 0:
        return True
    if count == 0:
        return moved
    bound = below[1] + itemsize - 1
    low = max(-_floor(bound + partial, spans[0].stride), -spans[0].reach if moved else 0)
    high = min(_floor(bound - partial, spans[0].stride), spans[0].reach)
    for step in range(low, high + 1):
        if _meets(count - 1, spans + 1, below + 1, partial + step * spans[0].stride,
                  moved or step != 0, itemsize, budget):
            return True
    return False


cdef bint unique(const Axes* axes) noexcept nogil:
    """Say whether no byte belongs to two indices.

    Exact for every layout made by slicing, transposing, broadcasting and sliding
    windows; gives up with False after a bounded search in contrived ones.
    """
    cdef Span spans[MAX_NDIM]
    cdef int64_t below[MAX_NDIM + 1]
    cdef int axis, count = 0, budget = UNIQUE_BUDGET
    if empty(axes):
        return True
    for axis in range(axes.ndim):
        if axes.shape[axis] > 1:
            if axes.strides[axis] == 0:
                return False
            spans[count].stride = (
                axes.strides[axis] if axes.strides[axis] > 0 else -axes.strides[axis])
            spans[count].reach = axes.shape[axis] - 1
            count += 1
    qsort(spans, count, sizeof(Span), _wider_first)
    below[count] = 0
    for axis in range(count - 1, -1, -1):
        # Fits: Layout has checked the byte extent, which is the sum of all of them.
        below[axis] = below[axis + 1] + spans[axis].reach * spans[axis].stride
    return not _meets(count, spans, below, 0, False, axes.itemsize, &budget)
