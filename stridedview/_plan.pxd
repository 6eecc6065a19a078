# Launch plans: the C face. See _plan.pyx.

from libc.stdint cimport uint32_t, uint64_t, uint8_t

from stridedview._pack cimport Slot


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
    cdef int stream_device                  # whose current streams are asked
    cdef int lead                           # family whose current stream is followed
    cdef int family_count
    cdef uint8_t families[256]              # distinct, in the order of the arguments
    cdef readonly object kernel             # Numba's compiled kernel: keeps the module loaded
    cdef list extensions                    # the kernel's; a plan holds while it is empty
    cdef readonly bytes words
    cdef readonly uint64_t generation       # of the dispatcher it is good for; 0 for none
    cdef list types                         # references for the slots' type pointers
    cdef int failure                        # why the driver called it stale, or CUDA_SUCCESS
    cdef bint is_valid
