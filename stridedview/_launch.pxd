# Launch plans and the fast call: the C face. See _launch.pyx.

from cpython.object cimport PyObject
from libc.stdint cimport int32_t, uint32_t, uint64_t, uint8_t

from stridedview._pack cimport Slot


cdef enum:
    FAMILIES_KEPT = 8


cdef class Plan:
    cdef Slot* slots
    cdef readonly int argument_count
    cdef int slot_count
    cdef readonly uint32_t size             # of the packed parameters, bytes
    cdef void* function                     # CUfunction of `context_id`
    cdef void* context
    cdef readonly uint64_t context_id
    cdef readonly int device                # of the arrays, or -1
    cdef readonly bint cooperative
    cdef int lead                           # family whose current stream is followed
    cdef int family_count
    cdef uint8_t families[8]                # distinct, in the order of the arguments
    cdef readonly object kernel             # Numba's compiled kernel: keeps the module loaded
    cdef list extensions                    # the kernel's; a plan holds while it is empty
    cdef readonly bytes words
    cdef list types                         # references for the slots' type pointers
    cdef bint is_valid


cdef class DispatcherState:
    cdef readonly dict plans                # key -> Plan
    cdef readonly dict configurations       # (type-exact key) -> LaunchConfiguration
    cdef object last_key
    cdef object last_configuration
    cdef readonly uint64_t generation
    cdef public bint is_config_sensitive


cdef class LaunchConfiguration:
    cdef void* vectorcall                   # first, so that its offset is the object's size
    cdef Plan plan                          # the last one that matched
    cdef uint64_t plan_generation
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
    cdef int _set_stream(self, stream) except -1
