# Basic indexing on raw C arrays. See _indexing.pyx for what it owns.

from libc.stdint cimport int64_t

from stridedview._geometry cimport Axes, Geometry


cdef int64_t int_index(object key) except? -1
cdef int slice_axes(const Axes* source, object key, Geometry* out) except -1

# Parts of it, for whoever knows the key's kind: a slice object, an int for the first axis.
cdef int slice_axis(
    object key, int64_t extent, int64_t stride, int64_t* count, int64_t* new_stride,
    int64_t* moved) except -1
cdef int row_axes(const Axes* source, int64_t index, Geometry* out) except -1
# Append the axes that follow the first as they are.
cdef int take_rest(const Axes* source, Geometry* out) except -1
