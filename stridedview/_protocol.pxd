# The Python-level protocols' C face. See _protocol.pyx.

from stridedview._source cimport Source


# Fill `source` from __cuda_array_interface__; an object that lacks what others of its
# type have is read through its next protocol.
cdef int cuda_interface_source(object producer, Source* source) except -1
# Fill `source` from __array_interface__, as host memory.
cdef int host_interface_source(object producer, Source* source) except -1
# Fill `source` from __dlpack__; `source.keep` then holds the tensor.
cdef int dlpack_source(object producer, Source* source) except -1
# The id of a NumPy dtype or typestr.
cdef int dtype_id_of(object dtype) except -1
# Why an object is refused that speaks none of the protocols, and what to pass.
cdef str not_an_array(object producer)
