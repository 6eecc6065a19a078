# The table of producers' C face. See _ingest.pyx.

from cpython.object cimport PyObject, PyTypeObject

from stridedview._source cimport Source
from stridedview._view cimport StridedView


cdef enum:
    # How an object of an exact type is imported.
    ROUTE_UNKNOWN = 0
    ROUTE_NONE = 1              # not an array
    ROUTE_TORCH = 2
    ROUTE_VIEW = 3
    ROUTE_MEMORY_VIEW = 4       # cuda.core's StridedMemoryView
    ROUTE_BUFFER = 5            # cuda.core's Buffer
    ROUTE_CUPY = 6
    ROUTE_NUMBA = 7
    ROUTE_EXCHANGE = 8
    ROUTE_DLPACK = 9
    ROUTE_CAI = 10
    ROUTE_HOST = 11
    ROUTE_REFUSED = 12
    ROUTE_JAX = 13              # DLPack, and never written


# Return the route of a type, classifying it on first sight. `sample` is an instance.
cdef int route_of(PyTypeObject* type_, PyObject* sample) except -1
# Fill `source`; source.keep is a new reference or NULL.
cdef int import_source(int route, PyObject* producer, Source* source) except -1
cdef StridedView view_from_source(Source* source, object owner)
cdef StridedView as_view(object producer)
