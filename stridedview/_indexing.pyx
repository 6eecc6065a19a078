# cython: freethreading_compatible=True
"""Basic indexing on raw C arrays, by NumPy's rules.

Owns what ``v[key]`` means: ints, slices of any step, Ellipsis and None. Index
arrays and masks select what no strides describe; they are refused by name. Every
function writes a whole Geometry or raises; its ``offset`` is how far the first
item moved, in bytes.
"""

from cpython.object cimport PyObject
from cpython.long cimport PyLong_CheckExact
from cpython.number cimport PyIndex_Check, PyNumber_Index
from libc.stdint cimport int64_t
from libc.string cimport memcpy

from stridedview._geometry cimport (
    MAX_NDIM,
    Axes,
    Geometry,
    add_overflows,
    mul_overflows,
)

import numpy as np

cdef extern from "Python.h":
    ctypedef struct PySliceObject:
        PyObject* start
        PyObject* stop
        PyObject* step
    Py_ssize_t PY_SSIZE_T_MAX
    long long PyLong_AsLongLongAndOverflow(object number, int* overflow) except? -1
    int PySlice_Unpack(
        object slice, Py_ssize_t* start, Py_ssize_t* stop, Py_ssize_t* step) except -1
    Py_ssize_t PySlice_AdjustIndices(
        Py_ssize_t length, Py_ssize_t* start, Py_ssize_t* stop, Py_ssize_t step) noexcept

cdef object numpy_bool = np.bool_


cdef int _refuse_mask(object key) except -1:
    cdef str kind = type(key).__name__
    if isinstance(key, (bool, numpy_bool)) or "bool" in str(getattr(key, "dtype", "")):
        raise IndexError(
            f"a boolean index ({kind}) selects by value, which a view cannot; "
            "copy to the host and index there, or write a kernel")
    if isinstance(key, list) and key and all([isinstance(name, str) for name in key]):
        raise IndexError(
            f"several fields {key} are no view here, as a write would also reach what lies "
            "between them; take one field at a time")
    if isinstance(key, (list, tuple, range)) or hasattr(key, "__array__") \
            or hasattr(key, "__dlpack__") or hasattr(key, "__cuda_array_interface__"):
        raise IndexError(
            f"an index array ({kind}) selects items that no strides describe; "
            "copy to the host and index there, or write a kernel")
    raise IndexError(
        "only integers, slices (`:`), ellipsis (`...`) and None are valid indices, "
        f"got {kind}")


cdef int64_t int_index(object key) except? -1:
    """Return an int as an index; IndexError, as NumPy's, if it does not fit."""
    cdef int overflow = 0
    cdef int64_t index = PyLong_AsLongLongAndOverflow(key, &overflow)
    if overflow:
        raise IndexError(f"index {key} does not fit 64 bits: it is out of bounds")
    return index


cdef int64_t _as_index(object key) except? -1:
    if PyLong_CheckExact(key):
        return int_index(key)
    # A bool is an int to Python, and a tensor of one item has __index__: both are masks
    # or arrays here, as in NumPy.
    if not PyIndex_Check(key) or isinstance(key, bool) or getattr(key, "ndim", 0) != 0 \
            or "bool" in str(getattr(key, "dtype", "")):
        _refuse_mask(key)
    try:
        return int_index(PyNumber_Index(key))
    except TypeError:
        _refuse_mask(key)


cdef inline bint _bound_is_plain(PyObject* bound, Py_ssize_t* value) except -1:
    # Write a slice's bound if it is an int that fits; borrowed from the slice.
    cdef int overflow = 0
    cdef long long number
    if not PyLong_CheckExact(<object>bound):
        return False
    number = PyLong_AsLongLongAndOverflow(<object>bound, &overflow)
    if overflow or number != <Py_ssize_t>number:
        return False
    value[0] = <Py_ssize_t>number
    return True


cdef int _unpack(
        object key, Py_ssize_t* start, Py_ssize_t* stop, Py_ssize_t* step) except -1:
    # `a[0:64]`, `a[:n]`, `a[n:]`: what PySlice_Unpack does, without asking three objects
    # whether they have an __index__.
    cdef PySliceObject* bounds = <PySliceObject*>key
    start[0], stop[0], step[0] = 0, PY_SSIZE_T_MAX, 1
    if (
        <object>bounds.step is None
        and (<object>bounds.start is None or _bound_is_plain(bounds.start, start))
        and (<object>bounds.stop is None or _bound_is_plain(bounds.stop, stop))
    ):
        return 0
    return PySlice_Unpack(key, start, stop, step)


cdef int slice_axis(
        object key, int64_t extent, int64_t stride, int64_t* count, int64_t* new_stride,
        int64_t* moved) except -1:
    """Apply a slice object to one axis: what is left of it, and how far it starts (bytes)."""
    cdef Py_ssize_t start = 0, stop = 0, step = 0
    _unpack(key, &start, &stop, &step)
    moved[0] = 0
    new_stride[0] = stride
    if step == 1 and 0 <= start < stop <= extent:
        count[0] = stop - start
    else:
        count[0] = PySlice_AdjustIndices(extent, &start, &stop, step)
    if count[0] <= 0:
        # Nothing is addressed, so nothing moves: NumPy leaves the pointer too.
        count[0] = 0
        return 0
    if mul_overflows(stride, step, new_stride):
        # Only a step beyond the axis can do this, and then there is one item.
        new_stride[0] = stride
    if mul_overflows(start, stride, moved):
        raise OverflowError(f"index {start} times stride {stride} does not fit 64 bits")
    return 0


cdef int _take_slice(
        object key, int64_t extent, int64_t stride, Geometry* out, int target) except -1:
    cdef int64_t moved
    slice_axis(key, extent, stride, &out.shape[target], &out.strides[target], &moved)
    if add_overflows(out.offset, moved, &out.offset):
        raise OverflowError("the offset of the first item does not fit 64 bits")
    return 0


cdef int _move(Geometry* out, int64_t index, int64_t stride) except -1:
    cdef int64_t moved
    if mul_overflows(index, stride, &moved) or add_overflows(
            out.offset, moved, &out.offset):
        raise OverflowError(f"index {index} times stride {stride} does not fit 64 bits")
    return 0


cdef int _take_integer(
        int64_t index, int axis, int64_t extent, int64_t stride, Geometry* out) except -1:
    if index < -extent or index >= extent:
        raise IndexError(
            f"index {index} is out of bounds for axis {axis} with size {extent}")
    return _move(out, index if index >= 0 else index + extent, stride)


cdef int _room(Geometry* out, int more) except -1:
    if out.ndim + more > MAX_NDIM:
        raise IndexError(f"the result would have more than {MAX_NDIM} dimensions")
    return 0


cdef int _take_whole(const Axes* source, int axis, int count, Geometry* out) except -1:
    _room(out, count)
    memcpy(&out.shape[out.ndim], &source.shape[axis], count * sizeof(int64_t))
    memcpy(&out.strides[out.ndim], &source.strides[axis], count * sizeof(int64_t))
    out.ndim += count
    return 0


cdef int _count_consumed(tuple keys, int ndim) except -1:
    cdef int consumed = 0, ellipses = 0
    for key in keys:
        if key is Ellipsis:
            ellipses += 1
        elif key is not None:
            consumed += 1
    if ellipses > 1:
        raise IndexError("an index can only have a single ellipsis ('...')")
    if consumed > ndim:
        raise IndexError(
            f"too many indices: the view is {ndim}-dimensional, but {consumed} were given")
    return consumed


cdef int _take_one(const Axes* source, int axis, object key, Geometry* out) except -1:
    # Apply one key that consumes `axis`.
    if isinstance(key, slice):
        _room(out, 1)
        _take_slice(key, source.shape[axis], source.strides[axis], out, out.ndim)
        out.ndim += 1
        return 0
    return _take_integer(
        _as_index(key), axis, source.shape[axis], source.strides[axis], out)


cdef int _slice_tuple(const Axes* source, tuple keys, Geometry* out) except -1:
    cdef int consumed = _count_consumed(keys, source.ndim)
    cdef int axis = 0
    for key in keys:
        if key is Ellipsis:
            _take_whole(source, axis, source.ndim - consumed, out)
            axis += source.ndim - consumed
        elif key is None:
            _room(out, 1)
            out.shape[out.ndim] = 1
            out.strides[out.ndim] = 0
            out.ndim += 1
        else:
            _take_one(source, axis, key, out)
            axis += 1
    return _take_whole(source, axis, source.ndim - axis, out)


cdef int row_axes(const Axes* source, int64_t index, Geometry* out) except -1:
    """Apply an integer to the first axis: write the offset, and no axes yet."""
    out.ndim, out.itemsize, out.offset = 0, source.itemsize, 0
    return _take_integer(index, 0, source.shape[0], source.strides[0], out)


cdef int take_rest(const Axes* source, Geometry* out) except -1:
    """Append every axis but the first, as it is."""
    return _take_whole(source, 1, source.ndim - 1, out)


cdef int slice_axes(const Axes* source, object key, Geometry* out) except -1:
    """Apply a basic index: ints, slices of any step, Ellipsis, None, or a tuple of them."""
    out.ndim = 0
    out.itemsize = source.itemsize
    out.offset = 0
    if type(key) is tuple:
        return _slice_tuple(source, <tuple>key, out)
    if key is Ellipsis or key is None or source.ndim == 0:
        if key is not Ellipsis and key is not None and not isinstance(key, slice):
            _as_index(key)      # a mask is refused as a mask, also by a view of no axes
        return _slice_tuple(source, (key,), out)
    _take_one(source, 0, key, out)
    return _take_whole(source, 1, source.ndim - 1, out)
