# Basic indexing on raw C arrays. See _indexing.pyx for what it owns.

from stridedview._geometry cimport Axes, Geometry


cdef int slice_axes(const Axes* source, object key, Geometry* out) except -1
