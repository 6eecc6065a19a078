# Basic indexing on raw C arrays. See _indexing.pyx for what it owns.

from libc.stdint cimport int64_t

from stridedview._geometry cimport Axes, Geometry


cdef int slice_axes(const Axes* source, object key, Geometry* out) except -1

# Parts of it, for whoever knows the key's kind. Each applies to the first axis and writes
# the offset; `slice_first` also writes that axis of the result, `row_axes` writes no axes.
cdef int slice_first(const Axes* source, object key, Geometry* out) except -1
cdef int row_axes(const Axes* source, int64_t index, Geometry* out) except -1
# Append the axes that follow the first as they are.
cdef int take_rest(const Axes* source, Geometry* out) except -1
