# The torch route's C face. See _torch.pyx.

from cpython.object cimport PyObject
from libc.stdint cimport int32_t, int64_t, uint16_t, uint64_t

from stridedview._layout cimport Layout
from stridedview._source cimport Source


ctypedef struct TorchApi:
    # torch's C ABI (aoti_torch_*): each takes the address of an at::Tensor and returns 0
    # or a code; failures set no Python error.
    int32_t (*get_data_ptr)(void*, void**) noexcept nogil
    int32_t (*get_dim)(void*, int64_t*) noexcept nogil
    int32_t (*get_sizes)(void*, int64_t**) noexcept nogil
    int32_t (*get_strides)(void*, int64_t**) noexcept nogil
    int32_t (*get_dtype)(void*, int32_t*) noexcept nogil
    int32_t (*get_device_index)(void*, int32_t*) noexcept nogil
    int32_t (*get_storage_size)(void*, int64_t*) noexcept nogil
    int32_t (*get_storage_offset)(void*, int64_t*) noexcept nogil
    int32_t (*get_current_cuda_stream)(int32_t, void**) noexcept nogil


ctypedef struct TorchRoute:
    # What the fast call needs of the gate and the C ABI; filled by require_torch().
    bint is_c_abi               # the self-check passed
    Py_ssize_t tensor_offset    # of the at::Tensor in the Python object, bytes
    Py_ssize_t key_offset       # of the dispatch-key word in a TensorImpl, bytes; -1 unknown
    uint64_t key_ignored        # bits in which plain and inference tensors differ
    uint64_t key_cuda
    uint64_t key_cpu
    TorchApi api
    uint16_t dtype_ids[128]     # torch's scalar type -> id in the dtype table


cdef TorchRoute torch_route


# Fill `source` from a tensor of a plain type; TypeError or BufferError by kind otherwise.
cdef int torch_source(PyObject* tensor, Source* source) except -1
# torch's current stream on a CUDA device.
cdef int torch_stream(int32_t device_id, void** stream) except -1
# Refuse storage that was shrunk under the tensor, whose layout this is.
cdef int torch_check_storage(PyObject* tensor, Layout layout) except -1
cdef int require_torch() except -1
# torch's number for an id of the dtype table, -1 if it has none.
cdef int torch_scalar_type(int dtype) noexcept
