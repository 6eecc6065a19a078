# Launch configurations: the C face. See _configuration.pyx.

from libc.stdint cimport uint64_t

from stridedview._plan cimport Plan


cdef class DispatcherState:
    cdef readonly object dispatcher         # to tell a state that another's __dict__ copied
    cdef readonly dict plans                # key -> Plan
    cdef readonly dict configurations       # (type-exact key) -> LaunchConfiguration
    cdef readonly dict on_streams           # the same, of those with a stream object
    cdef readonly dict prepared             # forall: signature -> specialized kernel, block
    cdef tuple last                         # (arguments, configuration) asked for last
    cdef readonly uint64_t generation
    cdef public bint is_config_sensitive
    cdef object __weakref__


cdef class LaunchConfiguration:
    cdef void* vectorcall                   # first, so that its offset is the object's size
    cdef Plan plan                          # the last one that matched
    cdef DispatcherState state
    cdef list callbacks
    cdef void* stream_handle
    cdef bint is_named
    cdef unsigned int grid[3]
    cdef unsigned int block[3]
    cdef unsigned int shared
    cdef readonly object dispatcher
    cdef object _griddim
    cdef object _blockdim
    cdef object _stream
    cdef object _sharedmem
    cdef public object _kernel_launch_config_sensitive
    cdef dict __dict__
    cdef object __weakref__
    cdef int _set_up(self, dispatcher, griddim, blockdim, stream, sharedmem) except -1
    cdef int _set_stream(self, stream) except -1
    cdef int _set_shared(self, sharedmem) except -1
    cdef int _changed(self) except -1


cdef DispatcherState state_of(object dispatcher)
# Set by _launch, which stands above: the vectorcall of every configuration made from then on.
cdef int set_launch_entry(void* entry) except -1
