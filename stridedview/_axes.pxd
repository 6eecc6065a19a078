# Operations on whole axes of raw C arrays. See _axes.pyx for what it owns.

from libc.stdint cimport int64_t

from stridedview._geometry cimport Axes, Geometry


cdef int normal_axis(int64_t axis, int ndim) except -1
# `order` has source.ndim axes; NULL reverses them.
cdef int permute_axes(const Axes* source, const int64_t* order, Geometry* out) except -1
# `wanted` has `ndim` extents, of which one may be -1.
cdef int reshape_axes(
    const Axes* source, int ndim, const int64_t* wanted, str order, Geometry* out) except -1
cdef int squeeze_axes(const Axes* source, object axis, Geometry* out) except -1
cdef int expand_axes(const Axes* source, object axis, Geometry* out) except -1
cdef int broadcast_axes(const Axes* source, object shape, Geometry* out) except -1
cdef int reinterpret_axes(const Axes* source, int64_t itemsize, Geometry* out) except -1
