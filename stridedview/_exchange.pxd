# The DLPack C exchange API, as a consumer. See _exchange.pyx.

from cpython.object cimport PyObject
from libc.stdint cimport int32_t

from stridedview._dlpack cimport (
    DLManagedTensorVersioned, DLPackExchangeAPI, DLTensor,
)
from stridedview._source cimport Source


cdef class Managed:
    # Owns one managed tensor and gives it back to its producer when dropped.
    cdef DLManagedTensorVersioned* tensor


# Raise the Python error that a C call left set; nothing if it left none.
cdef int raise_set_error() except *
# Return the API of a type at a major version that we speak, or NULL if it has none.
cdef DLPackExchangeAPI* find_exchange(object type_) except? NULL
# Return the family number under which the type's current stream is asked.
cdef int exchange_family(DLPackExchangeAPI* api) except -1
cdef int set_exchange_family(int family, DLPackExchangeAPI* api) except -1
# Fill `source` from a DLTensor whose strides count items; pointers are borrowed from it.
cdef int source_from_dltensor(Source* source, const DLTensor* tensor) except -1
# Fill it from a managed tensor of a version that we speak; the tensor stays the caller's.
cdef int source_from_managed(
    Source* source, const DLManagedTensorVersioned* tensor) except -1
# Import without flags: for producers whose tensors are always writable.
cdef int exchange_borrow(
    DLPackExchangeAPI* api, PyObject* producer, Source* source) except -1
# Import with the read-only flag; `source.keep` then holds the managed tensor.
cdef int exchange_import(
    DLPackExchangeAPI* api, PyObject* producer, Source* source) except -1
# Take over the tensor in a DLPack capsule; `source.keep` then holds it.
cdef int capsule_import(object capsule, Source* source) except -1
# The current stream of a family on a device.
cdef int exchange_stream(int family, int32_t device_id, void** stream) except -1
