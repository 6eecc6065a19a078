# Owners of device memory. See _block.pyx for what it owns.

from libc.stdint cimport int64_t


cdef class Block:
    cdef unsigned long long address         # 0: it has none, or has given it back
    cdef unsigned long long context_id      # of the primary context it was taken in
    cdef void* stream                       # takes and gives back in the order of this
    cdef int device
    cdef object stream_object               # keeps the stream; None for a default one


# Take a block in the current context, whose id is given. Return None with the driver's
# answer in `result` if it refuses, or CUDA_SUCCESS there if no memory was asked for because
# of a capture, or because the stream cannot be used.
cdef Block take_block(
    void* pool, size_t nbytes, void* stream, object stream_object, int device,
    unsigned long long context_id, int* result)


cdef class Loan:
    cdef readonly object buffer
    cdef void* context                      # in which it is given back
    cdef object stream_object               # keeps a stream that the buffer only points to


# Ask a cuda.core memory resource for memory, with these keywords.
cdef Loan take_loan(object resource, int64_t nbytes, dict options, object stream_object)
