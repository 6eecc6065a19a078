# The driver entry points that we call. See _driver.pyx for how they are found.

from libc.stddef cimport size_t
from libc.stdint cimport uint64_t


cdef enum:
    CUDA_SUCCESS = 0
    CUDA_ERROR_OUT_OF_MEMORY = 2
    CUDA_ERROR_NOT_INITIALIZED = 3
    CUDA_ERROR_INVALID_CONTEXT = 201
    CUDA_ERROR_INVALID_HANDLE = 400
    CUDA_ERROR_NOT_READY = 600
    CUDA_ERROR_CONTEXT_IS_DESTROYED = 709
    CUDA_ERROR_STREAM_CAPTURE_IMPLICIT = 906

    CU_STREAM_CAPTURE_MODE_RELAXED = 2
    CU_EVENT_DISABLE_TIMING = 2
    CU_LAUNCH_ATTRIBUTE_COOPERATIVE = 2
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76
    CU_POINTER_ATTRIBUTE_MEMORY_TYPE = 2
    CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL = 9

# The driver's marks for a packed parameter buffer in `extra`.
cdef enum:
    CU_LAUNCH_PARAM_END = 0
    CU_LAUNCH_PARAM_BUFFER_POINTER = 1
    CU_LAUNCH_PARAM_BUFFER_SIZE = 2


ctypedef struct LaunchAttribute:
    # CUlaunchAttribute: an id, padding to 8, and a value of 64 bytes.
    int id
    int pad
    unsigned char value[64]


ctypedef struct LaunchConfig:
    # CUlaunchConfig.
    unsigned int grid[3]
    unsigned int block[3]
    unsigned int shared
    void* stream
    LaunchAttribute* attributes
    unsigned int attribute_count


ctypedef struct Memcpy2D:
    # CUDA_MEMCPY2D, version 2.
    size_t src_x
    size_t src_y
    int src_type
    const void* src_host
    unsigned long long src_device
    void* src_array
    size_t src_pitch
    size_t dst_x
    size_t dst_y
    int dst_type
    void* dst_host
    unsigned long long dst_device
    void* dst_array
    size_t dst_pitch
    size_t width
    size_t height


ctypedef struct Driver:
    int (*cuLaunchKernel)(
        void*, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int,
        unsigned int, unsigned int, void*, void**, void**) noexcept nogil
    int (*cuLaunchKernelEx)(const LaunchConfig*, void*, void**, void**) noexcept nogil
    int (*cuCtxGetId)(void*, unsigned long long*) noexcept nogil
    int (*cuCtxGetCurrent)(void**) noexcept nogil
    int (*cuCtxGetDevice)(int*) noexcept nogil
    int (*cuCtxPushCurrent)(void*) noexcept nogil
    int (*cuCtxPopCurrent)(void**) noexcept nogil
    int (*cuKernelGetFunction)(void**, void*) noexcept nogil
    int (*cuKernelGetParamInfo)(void*, size_t, size_t*, size_t*) noexcept nogil
    int (*cuFuncSetAttribute)(void*, int, int) noexcept nogil
    int (*cuFuncGetAttribute)(int*, int, void*) noexcept nogil
    int (*cuDeviceGetCount)(int*) noexcept nogil
    int (*cuDeviceGetAttribute)(int*, int, int) noexcept nogil
    int (*cuDeviceGetDefaultMemPool)(void**, int) noexcept nogil
    int (*cuDevicePrimaryCtxGetState)(int, unsigned int*, int*) noexcept nogil
    int (*cuDevicePrimaryCtxRetain)(void**, int) noexcept nogil
    int (*cuDevicePrimaryCtxRelease)(int) noexcept nogil
    int (*cuPointerGetAttribute)(void*, int, unsigned long long) noexcept nogil
    int (*cuEventCreate)(void**, unsigned int) noexcept nogil
    int (*cuEventRecord)(void*, void*) noexcept nogil
    int (*cuEventQuery)(void*) noexcept nogil
    int (*cuEventSynchronize)(void*) noexcept nogil
    int (*cuEventDestroy)(void*) noexcept nogil
    int (*cuStreamWaitEvent)(void*, void*, unsigned int) noexcept nogil
    int (*cuStreamIsCapturing)(void*, int*) noexcept nogil
    int (*cuStreamGetCaptureInfo)(
        void*, int*, unsigned long long*, void**, void**, void**, size_t*) noexcept nogil
    int (*cuStreamSynchronize)(void*) noexcept nogil
    int (*cuThreadExchangeStreamCaptureMode)(int*) noexcept nogil
    int (*cuMemcpyAsync)(unsigned long long, unsigned long long, size_t, void*) noexcept nogil
    int (*cuMemcpyPeerAsync)(
        unsigned long long, void*, unsigned long long, void*, size_t, void*) noexcept nogil
    int (*cuMemcpyHtoDAsync)(unsigned long long, const void*, size_t, void*) noexcept nogil
    int (*cuMemcpyDtoHAsync)(void*, unsigned long long, size_t, void*) noexcept nogil
    int (*cuMemcpy2DAsync)(const Memcpy2D*, void*) noexcept nogil
    int (*cuMemsetD8Async)(unsigned long long, unsigned char, size_t, void*) noexcept nogil
    int (*cuMemsetD16Async)(unsigned long long, unsigned short, size_t, void*) noexcept nogil
    int (*cuMemsetD32Async)(unsigned long long, unsigned int, size_t, void*) noexcept nogil
    int (*cuMemAllocAsync)(unsigned long long*, size_t, void*) noexcept nogil
    int (*cuMemAllocFromPoolAsync)(unsigned long long*, size_t, void*, void*) noexcept nogil
    int (*cuMemFreeAsync)(unsigned long long, void*) noexcept nogil
    int (*cuMemHostAlloc)(void**, size_t, unsigned int) noexcept nogil
    int (*cuMemFreeHost)(void*) noexcept nogil
    int (*cuGetErrorName)(int, const char**) noexcept nogil
    int (*cuGetErrorString)(int, const char**) noexcept nogil


cdef Driver driver


# Fill `driver` on the first call; ImportError or RuntimeError if there is no driver.
cdef int require_driver() except -1
cdef bint driver_ready() noexcept nogil
# Raise DriverError for a result other than CUDA_SUCCESS.
cdef int check(int result, str what) except -1
# The DriverError for a result.
cdef object driver_error(int result, str what)
