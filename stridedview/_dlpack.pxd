# The DLPack 1.x C ABI, declared from the published specification.
#
# Owns the structs that cross the boundary to another library, and nothing else:
# no allocation, no conversion. Field order and width are the ABI; the names are
# the specification's so that a reader can look them up.
# Source: https://dmlc.github.io/dlpack/latest/c_api.html

from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t


cdef enum:
    # Device types a consumer here can meet.
    kDLCPU = 1
    kDLCUDA = 2
    kDLCUDAHost = 3
    kDLCUDAManaged = 13

    # Type codes.
    kDLInt = 0
    kDLUInt = 1
    kDLFloat = 2
    kDLOpaqueHandle = 3
    kDLBfloat = 4
    kDLComplex = 5
    kDLBool = 6
    kDLFloat8_e3m4 = 7
    kDLFloat8_e4m3 = 8
    kDLFloat8_e4m3b11fnuz = 9
    kDLFloat8_e4m3fn = 10
    kDLFloat8_e4m3fnuz = 11
    kDLFloat8_e5m2 = 12
    kDLFloat8_e5m2fnuz = 13
    kDLFloat8_e8m0fnu = 14
    kDLFloat4_e2m1fn = 17

    # Flags of a versioned managed tensor.
    DLPACK_FLAG_BITMASK_READ_ONLY = 1
    DLPACK_FLAG_BITMASK_IS_COPIED = 2

    DLPACK_MAJOR = 1
    DLPACK_MINOR = 3


ctypedef struct DLDevice:
    int32_t device_type
    int32_t device_id


ctypedef struct DLDataType:
    uint8_t code
    uint8_t bits
    uint16_t lanes


ctypedef struct DLTensor:
    void* data
    DLDevice device
    int32_t ndim
    DLDataType dtype
    int64_t* shape
    int64_t* strides        # in items; NULL means C order
    uint64_t byte_offset


ctypedef struct DLPackVersion:
    uint32_t major
    uint32_t minor


ctypedef struct DLManagedTensor:
    # The form before 1.0, in capsules named "dltensor".
    DLTensor dl_tensor
    void* manager_ctx
    void (*deleter)(DLManagedTensor*) noexcept


ctypedef struct DLManagedTensorVersioned:
    # The form since 1.0, in capsules named "dltensor_versioned".
    DLPackVersion version
    void* manager_ctx
    void (*deleter)(DLManagedTensorVersioned*) noexcept
    uint64_t flags
    DLTensor dl_tensor


ctypedef struct DLPackExchangeAPIHeader:
    DLPackVersion version
    DLPackExchangeAPIHeader* prev_api


# The C exchange API (1.3): a struct of functions that a type publishes in its
# attribute ``__dlpack_c_exchange_api__``, a capsule named "dlpack_exchange_api".
# Each function returns 0, or -1 with a Python error set.
ctypedef void (*DLPackSetError)(void* context, const char* kind, const char* message) noexcept
ctypedef int (*DLPackManagedTensorAllocator)(
    DLTensor* prototype, DLManagedTensorVersioned** out, void* context,
    DLPackSetError set_error) noexcept
ctypedef int (*DLPackManagedTensorFromPyObject)(
    void* py_object, DLManagedTensorVersioned** out) noexcept
ctypedef int (*DLPackManagedTensorToPyObject)(
    DLManagedTensorVersioned* tensor, void** out) noexcept
ctypedef int (*DLPackDLTensorFromPyObject)(void* py_object, DLTensor* out) noexcept
ctypedef int (*DLPackCurrentWorkStream)(
    int32_t device_type, int32_t device_id, void** out) noexcept


ctypedef struct DLPackExchangeAPI:
    DLPackExchangeAPIHeader header
    DLPackManagedTensorAllocator managed_tensor_allocator
    DLPackManagedTensorFromPyObject managed_tensor_from_py_object_no_sync
    DLPackManagedTensorToPyObject managed_tensor_to_py_object_no_sync
    DLPackDLTensorFromPyObject dltensor_from_py_object_no_sync
    DLPackCurrentWorkStream current_work_stream
