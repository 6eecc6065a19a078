# cython: freethreading_compatible=True
"""Operations on whole axes of raw C arrays, by NumPy's rules.

Owns permuting, squeezing, expanding, broadcasting, another itemsize, and
reshaping without a copy. Every function writes a whole Geometry or raises; none
of them moves the first item.
"""

from libc.stdint cimport int64_t
from libc.string cimport memcpy

from stridedview._geometry cimport (
    MAX_NDIM,
    Axes,
    Geometry,
    c_contiguous,
    empty,
    f_contiguous,
    fill_c_strides,
    fill_f_strides,
    mul_overflows,
    parse_extents,
)

from numpy.exceptions import AxisError


cdef int normal_axis(int64_t axis, int ndim) except -1:
    if axis < -ndim or axis >= ndim:
        raise AxisError(axis, ndim)
    return <int>(axis if axis >= 0 else axis + ndim)


cdef int _axis_set(object axis, int ndim, bint* chosen) except -1:
    # Mark the axes named by an int or a tuple of ints; refuse a repeated one.
    cdef int64_t named[MAX_NDIM]
    cdef int count = parse_extents(axis, "axis", named)
    cdef int i, at
    for i in range(ndim):
        chosen[i] = False
    for i in range(count):
        at = normal_axis(named[i], ndim)
        if chosen[at]:
            raise ValueError(f"axis {named[i]} is repeated")
        chosen[at] = True
    return count


cdef int permute_axes(const Axes* source, const int64_t* order, Geometry* out) except -1:
    """Reorder the axes; NULL reverses them."""
    cdef bint seen[MAX_NDIM]
    cdef int i, at, ndim = source.ndim
    out.ndim, out.itemsize, out.offset = ndim, source.itemsize, 0
    for i in range(ndim):
        seen[i] = False
    for i in range(ndim):
        at = ndim - 1 - i if order == NULL else normal_axis(order[i], ndim)
        if seen[at]:
            raise ValueError("repeated axis in transpose")
        seen[at] = True
        out.shape[i] = source.shape[at]
        out.strides[i] = source.strides[at]
    return 0


cdef int squeeze_axes(const Axes* source, object axis, Geometry* out) except -1:
    """Drop axes of extent 1: all of them, or those named."""
    cdef bint chosen[MAX_NDIM]
    cdef int i
    out.ndim, out.itemsize, out.offset = 0, source.itemsize, 0
    if source.ndim == 0 and not isinstance(axis, tuple) and axis in (0, -1):
        return 0                # NumPy lets this one through
    if axis is not None:
        _axis_set(axis, source.ndim, chosen)
    for i in range(source.ndim):
        if axis is None:
            chosen[i] = source.shape[i] == 1
        if not chosen[i]:
            out.shape[out.ndim] = source.shape[i]
            out.strides[out.ndim] = source.strides[i]
            out.ndim += 1
        elif source.shape[i] != 1:
            raise ValueError(
                f"cannot squeeze axis {i}: its extent is {source.shape[i]}, not 1")
    return 0


cdef int expand_axes(const Axes* source, object axis, Geometry* out) except -1:
    """Insert axes of extent 1 at the given positions of the result."""
    cdef bint chosen[MAX_NDIM]
    cdef int64_t named[MAX_NDIM]
    cdef int i, at = source.ndim - 1
    cdef int ndim = source.ndim + parse_extents(axis, "axis", named)
    if ndim > MAX_NDIM:
        raise ValueError(f"the result would have more than {MAX_NDIM} dimensions")
    _axis_set(axis, ndim, chosen)
    out.ndim, out.itemsize, out.offset = ndim, source.itemsize, 0
    for i in range(ndim - 1, -1, -1):
        if chosen[i]:
            out.shape[i] = 1
            # As a C array has it, so that a consumer that reads it sees nothing odd.
            if i + 1 == ndim:
                out.strides[i] = source.itemsize
            else:
                mul_overflows(out.strides[i + 1], max(out.shape[i + 1], 1), &out.strides[i])
        else:
            out.shape[i] = source.shape[at]
            out.strides[i] = source.strides[at]
            at -= 1
    return 0


cdef int broadcast_axes(const Axes* source, object shape, Geometry* out) except -1:
    """Repeat axes of extent 1, and new leading ones, with stride 0."""
    cdef int i, lead
    out.ndim = parse_extents(shape, "shape", out.shape)
    out.itemsize, out.offset = source.itemsize, 0
    lead = out.ndim - source.ndim
    for i in range(out.ndim):
        if out.shape[i] < 0:
            raise ValueError(f"negative extent {out.shape[i]} in shape {shape}")
        if i < lead:
            out.strides[i] = 0
        elif source.shape[i - lead] == out.shape[i]:
            out.strides[i] = source.strides[i - lead]
        elif source.shape[i - lead] == 1:
            out.strides[i] = 0
        else:
            lead = -1
            break
    if lead < 0:
        raise ValueError(
            f"cannot broadcast shape {_extents(source)} to {shape}")
    return 0


cdef tuple _extents(const Axes* source):
    cdef int i
    return tuple([source.shape[i] for i in range(source.ndim)])


cdef int reinterpret_axes(const Axes* source, int64_t itemsize, Geometry* out) except -1:
    """View the items as items of another size, along the last axis."""
    cdef int last = source.ndim - 1
    cdef int64_t nbytes
    out.ndim, out.itemsize, out.offset = source.ndim, itemsize, 0
    memcpy(out.shape, source.shape, source.ndim * sizeof(int64_t))
    memcpy(out.strides, source.strides, source.ndim * sizeof(int64_t))
    if itemsize == source.itemsize:
        return 0
    if itemsize <= 0:
        raise ValueError(f"itemsize must be positive, got {itemsize}")
    if last < 0:
        raise ValueError(
            f"a view of no dimensions cannot change its itemsize ({source.itemsize} to "
            f"{itemsize}); reshape it to (1,) first")
    if source.strides[last] != source.itemsize and source.shape[last] != 1 \
            and not empty(source):
        raise ValueError(
            "To change to a dtype of a different size, the last axis must be contiguous; "
            f"its stride is {source.strides[last]} bytes, its items have {source.itemsize}")
    if mul_overflows(source.shape[last], source.itemsize, &nbytes):
        raise OverflowError("the last axis' size in bytes does not fit 64 bits")
    if itemsize < source.itemsize and source.itemsize % itemsize:
        raise ValueError(
            "When changing to a smaller dtype, its size must be a divisor of the size of "
            f"original dtype: {itemsize} does not divide {source.itemsize}")
    if nbytes % itemsize:
        raise ValueError(
            "When changing to a larger dtype, its size must be a divisor of the total size "
            "in bytes of the last axis of the array.")
    out.shape[last] = nbytes // itemsize
    out.strides[last] = itemsize
    return 0


class CopyNeededError(ValueError, NotImplementedError):
    """A shape that only a copy can have.

    NotImplementedError is what Numba's arrays raise for it.
    """


# ---- reshape -------------------------------------------------------------------------


cdef int64_t _count(int ndim, const int64_t* shape) except -1:
    cdef int64_t size = 1
    cdef int i
    for i in range(ndim):
        if shape[i] == 0:
            return 0
    for i in range(ndim):
        if mul_overflows(size, shape[i], &size):
            raise OverflowError("the product of the extents does not fit 64 bits")
    return size


cdef object _as_written(int ndim, const int64_t* wanted):
    # A shape for an error's message.
    return tuple([wanted[i] for i in range(ndim)])


cdef int _resolve_shape(
        const Axes* source, int ndim, const int64_t* wanted, Geometry* out) except -1:
    # Put the right extent in the place of -1, and compare the sizes.
    cdef int64_t size = _count(source.ndim, source.shape)
    cdef int64_t known
    cdef int i, unknown = -1
    out.ndim = ndim
    for i in range(ndim):
        out.shape[i] = wanted[i]
        if wanted[i] < -1:
            raise ValueError(
                f"negative extent {wanted[i]} in shape {_as_written(ndim, wanted)}")
        if wanted[i] == -1:
            if unknown >= 0:
                raise ValueError(f"shape {_as_written(ndim, wanted)} has -1 more than once")
            unknown = i
    if unknown >= 0:
        out.shape[unknown] = 1
        known = _count(ndim, out.shape)
        if known > 0 and size % known == 0:
            out.shape[unknown] = size // known
            return 0
    elif _count(ndim, out.shape) == size:
        return 0
    raise ValueError(f"cannot reshape {size} items into shape {_as_written(ndim, wanted)}")


cdef int _merge_runs(
        const Axes* source, bint fortran, int64_t* extents, int64_t* strides) noexcept:
    # Join neighbouring axes that one stride walks through, extent-1 axes left out. A run
    # keeps the stride of its fastest axis: the last in C order, the first in F order.
    cdef int i, runs = 0
    cdef int64_t joined
    for i in range(source.ndim):
        if source.shape[i] == 1:
            continue
        if runs and fortran:
            mul_overflows(strides[runs - 1], extents[runs - 1], &joined)
            if joined == source.strides[i]:
                extents[runs - 1] *= source.shape[i]
                continue
        elif runs:
            mul_overflows(source.strides[i], source.shape[i], &joined)
            if joined == strides[runs - 1]:
                extents[runs - 1] *= source.shape[i]
                strides[runs - 1] = source.strides[i]
                continue
        extents[runs] = source.shape[i]
        strides[runs] = source.strides[i]
        runs += 1
    return runs


cdef void _fill_run(
        int64_t stride, bint fortran, int start, int stop, Geometry* out) noexcept:
    # Divide one run, walked by `stride`, into the new axes start to stop.
    cdef int i
    if fortran:
        for i in range(start, stop):
            out.strides[i] = stride
            mul_overflows(stride, out.shape[i], &stride)
    else:
        for i in range(stop - 1, start - 1, -1):
            out.strides[i] = stride
            mul_overflows(stride, out.shape[i], &stride)


cdef bint _divide_runs(const Axes* source, bint fortran, Geometry* out) noexcept:
    # Give every new axis its stride; False if one would have to step over a run's end.
    cdef int64_t extents[MAX_NDIM]
    cdef int64_t strides[MAX_NDIM]
    cdef int runs = _merge_runs(source, fortran, extents, strides)
    cdef int run, start = 0, stop
    cdef int64_t filled
    for run in range(runs):
        filled = 1
        stop = start
        while stop < out.ndim and filled < extents[run]:
            filled *= out.shape[stop]
            stop += 1
        if filled != extents[run]:
            return False
        while run == runs - 1 and stop < out.ndim:
            stop += 1           # what is left after the last run has extent 1
        _fill_run(strides[run], fortran, start, stop, out)
        start = stop
    if runs == 0:
        _fill_run(source.itemsize, fortran, 0, out.ndim, out)
    return True


cdef bint _same_extents(const Axes* source, const Geometry* out) noexcept:
    cdef int i
    if source.ndim != out.ndim:
        return False
    for i in range(out.ndim):
        if source.shape[i] != out.shape[i]:
            return False
    return True


cdef int reshape_axes(
        const Axes* source, int ndim, const int64_t* wanted, str order,
        Geometry* out) except -1:
    """Give the items, walked in ``order``, another shape without moving them."""
    cdef bint fortran
    if order == "A":
        order = "F" if f_contiguous(source) and not c_contiguous(source) else "C"
    if order != "C" and order != "F":
        raise ValueError(f"order must be 'C', 'F' or 'A', got {order!r}")
    fortran = order == "F"
    out.itemsize, out.offset = source.itemsize, 0
    _resolve_shape(source, ndim, wanted, out)
    if _same_extents(source, out):
        memcpy(out.strides, source.strides, out.ndim * sizeof(int64_t))
    elif empty(source) or (f_contiguous(source) if fortran else c_contiguous(source)):
        if fortran:
            fill_f_strides(out.ndim, out.shape, out.itemsize, out.strides)
        else:
            fill_c_strides(out.ndim, out.shape, out.itemsize, out.strides)
    elif not _divide_runs(source, fortran, out):
        raise CopyNeededError(
            f"cannot reshape {_extents(source)} into {_as_written(ndim, wanted)} in "
            f"{order} order without "
            "a copy; copy to a contiguous array first")
    return 0
