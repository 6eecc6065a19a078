# Prepared launches: the C face. See _prepared.pyx.

from cpython.object cimport PyObject
from libc.stdint cimport uint64_t

from stridedview._configuration cimport LaunchConfiguration
from stridedview._pack cimport Call
from stridedview._plan cimport Plan


cdef class Packed:
    # The parameters of one launch, complete and never written again: a launch in another
    # thread, whose driver call holds no GIL, goes on with what it started with.
    cdef Plan plan
    cdef uint64_t generation    # of the dispatcher's overloads when the plan was taken
    cdef tuple args             # keeps the producers alive
    cdef tuple packs            # for each argument (streams it names, what it handed out)
    cdef char* buffer
    cdef Call call


cdef class PreparedLaunch:
    cdef void* vectorcall       # first, so that its offset is the object's size
    cdef readonly LaunchConfiguration configuration
    cdef Packed packed
    cdef object __weakref__
