"""The driver entry points that we call, found once.

Owns a struct of function pointers. They come from the driver's own resolver through
``cuda.bindings``, so that no CUDA header and no library name is needed here, and in
their legacy-stream form: what stream 0 means is decided by us (see ``_stream``), never
by a compile-time default. Finding them initialises nothing and makes no context.
"""

cimport cython
from libc.stdint cimport uintptr_t

import os

cdef bint _ready = False

# Name, and the driver version that introduced the form we declare.
cdef tuple ENTRY_POINTS = (
    ("cuLaunchKernel", 4000),
    ("cuLaunchKernelEx", 11060),
    ("cuCtxGetId", 12000),
    ("cuCtxGetCurrent", 4000),
    ("cuCtxGetDevice", 2000),
    ("cuCtxPushCurrent", 4000),
    ("cuCtxPopCurrent", 4000),
    ("cuKernelGetFunction", 12000),
    ("cuKernelGetParamInfo", 12040),
    ("cuFuncSetAttribute", 9000),
    ("cuFuncGetAttribute", 2020),
    ("cuDeviceGetCount", 2000),
    ("cuDeviceGetAttribute", 2000),
    ("cuDeviceGetDefaultMemPool", 11020),
    ("cuDevicePrimaryCtxGetState", 7000),
    ("cuDevicePrimaryCtxRetain", 7000),
    ("cuDevicePrimaryCtxRelease", 11000),
    ("cuPointerGetAttribute", 4000),
    ("cuEventCreate", 2000),
    ("cuEventRecord", 2000),
    ("cuEventQuery", 2000),
    ("cuEventSynchronize", 2000),
    ("cuEventDestroy", 4000),
    ("cuStreamWaitEvent", 3020),
    ("cuStreamIsCapturing", 10000),
    ("cuStreamGetCaptureInfo", 12030),
    ("cuStreamSynchronize", 2000),
    ("cuThreadExchangeStreamCaptureMode", 10010),
    ("cuMemcpyAsync", 4000),
    ("cuMemcpyPeerAsync", 4000),
    ("cuMemcpyHtoDAsync", 3020),
    ("cuMemcpyDtoHAsync", 3020),
    ("cuMemcpy2DAsync", 3020),
    ("cuMemsetD8Async", 3020),
    ("cuMemsetD16Async", 3020),
    ("cuMemsetD32Async", 3020),
    ("cuMemAllocAsync", 11020),
    ("cuMemAllocFromPoolAsync", 11020),
    ("cuMemFreeAsync", 11020),
    ("cuMemHostAlloc", 2020),
    ("cuMemFreeHost", 2000),
    ("cuGetErrorName", 6000),
    ("cuGetErrorString", 6000),
)

# The forms with a per-thread variant are asked for in the legacy one.
cdef int LEGACY_STREAM = 1


class DriverError(RuntimeError):
    """A CUDA driver call failed.

    Attributes
    ----------
    code : int
        The driver's result code.
    """

    def __init__(self, message, code):
        super().__init__(message)
        self.code = code

    def __reduce__(self):
        # A process pool sends errors by pickle, which passes `args` alone.
        return type(self), (str(self), self.code)


cdef bint driver_ready() noexcept nogil:
    return _ready


cdef int require_driver() except -1:
    global _ready
    if not _ready:
        _resolve()
        _ready = True
    return 0


cdef int _resolve() except -1:
    cdef void** slot = <void**>&driver
    cdef int index = 0
    from cuda.bindings import driver as binding
    _require_library(binding)
    # The struct holds the entry points in this table's order and nothing else.
    assert sizeof(Driver) == len(ENTRY_POINTS) * sizeof(void*)
    for name, version in ENTRY_POINTS:
        address = _address(binding, name, version)
        if address == 0:
            raise RuntimeError(
                f"the CUDA driver has no {name} (asked for its form of CUDA "
                f"{version // 1000}.{version % 1000 // 10}); a driver of CUDA 12.4 or "
                "newer is needed"
            )
        slot[index] = <void*><uintptr_t>address
        index += 1
    return 0


cdef int _require_library(object binding) except -1:
    # cuda.bindings looks for the library at its first call, twenty frames further down.
    try:
        binding.cuGetProcAddress(b"cuInit", 2000, LEGACY_STREAM)
    except RuntimeError as error:
        raise RuntimeError(f"{_without_driver()} ({error})") from None
    return 0


cdef str _without_driver():
    if os.environ.get("NUMBA_ENABLE_CUDASIM") == "1":
        return (
            "Numba's CUDA simulator has no device memory: give kernels CPU tensors or NumPy "
            "arrays; with like=cpu_tensor stridedview allocates such memory too")
    return (
        "there is no NVIDIA driver on this machine, and launches and device memory need one; "
        "`python -m stridedview status` shows what was found. NUMBA_ENABLE_CUDASIM=1 in the "
        "environment runs kernels on CPU tensors in Numba's simulator")


cdef object _address(object binding, str name, int version):
    result, address, _status = binding.cuGetProcAddress(name.encode(), version, LEGACY_STREAM)
    if int(result) != CUDA_SUCCESS:
        raise RuntimeError(f"the CUDA driver could not look up {name}: {result}")
    return int(address)


cdef int check(int result, str what) except -1:
    """Raise DriverError naming the call unless the result is CUDA_SUCCESS."""
    if result != CUDA_SUCCESS:
        raise driver_error(result, what)
    return 0


def error(int result, str what):
    """Return the DriverError for a result code, with the driver's own words."""
    return driver_error(result, what)


cdef object driver_error(int result, str what):
    cdef const char* name = NULL
    cdef const char* text = NULL
    require_driver()
    driver.cuGetErrorName(result, &name)
    driver.cuGetErrorString(result, &text)
    known = name.decode() if name is not NULL else f"error {result}"
    words = text.decode() if text is not NULL else "no description"
    return DriverError(f"{what} failed: {known} ({result}): {words}", result)


def resolve():
    """Find the driver's entry points now.

    Raises
    ------
    ImportError
        If cuda.bindings is not installed.
    RuntimeError
        If there is no driver, or one without an entry point that is needed.
    """
    require_driver()


def is_ready():
    """Whether the entry points have been found."""
    return bool(_ready)


def current_context_id():
    """Return the id of this thread's current context, or 0 if it has none.

    Raises
    ------
    DriverError
        If the context is there and cannot be asked: a kernel crashed in it.
    """
    cdef unsigned long long context_id = 0
    cdef int result
    require_driver()
    result = driver.cuCtxGetId(NULL, &context_id)
    if result in (CUDA_ERROR_NOT_INITIALIZED, CUDA_ERROR_INVALID_CONTEXT,
                  CUDA_ERROR_CONTEXT_IS_DESTROYED):
        return 0
    check(result, "cuCtxGetId")
    return context_id


def exchange_capture_mode(int mode):
    """Set this thread's stream-capture mode and return the one it had.

    Parameters
    ----------
    mode : int
        0 global, 1 thread-local, 2 relaxed (CUstreamCaptureMode).
    """
    require_driver()
    check(driver.cuThreadExchangeStreamCaptureMode(&mode), "cuThreadExchangeStreamCaptureMode")
    return mode


def memory_type(uintptr_t pointer):
    """Return what the driver knows of an address.

    Returns
    -------
    int
        1 page-locked host memory, 2 device memory, 3 array, 4 unified; 0 if unknown,
        which pageable host memory is.
    """
    cdef unsigned int kind = 0
    require_driver()
    if driver.cuPointerGetAttribute(
        &kind, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, pointer
    ) != CUDA_SUCCESS:
        return 0
    return kind


def synchronize_stream(uintptr_t stream):
    """Wait on the host until a stream's work is done; without the GIL."""
    cdef int result
    require_driver()
    with nogil:
        result = driver.cuStreamSynchronize(<void*>stream)
    check(result, "cuStreamSynchronize")


def kernel_function(uintptr_t kernel):
    """Return the CUfunction (int) of a CUkernel in the current context."""
    cdef void* function = NULL
    require_driver()
    check(driver.cuKernelGetFunction(&function, <void*>kernel), "cuKernelGetFunction")
    return <uintptr_t>function


def kernel_parameters(uintptr_t kernel):
    """Return [(offset, size)] in bytes of a CUkernel's parameters."""
    cdef size_t offset, size
    cdef list found = []
    require_driver()
    while driver.cuKernelGetParamInfo(<void*>kernel, len(found), &offset, &size) == CUDA_SUCCESS:
        found.append((offset, size))
    return found


def function_attribute(uintptr_t function, int attribute):
    """Return an attribute (CUfunction_attribute) of a CUfunction."""
    cdef int value = 0
    require_driver()
    check(driver.cuFuncGetAttribute(&value, attribute, <void*>function), "cuFuncGetAttribute")
    return value


def set_function_attribute(uintptr_t function, int attribute, int value):
    """Set an attribute (CUfunction_attribute) of a CUfunction."""
    require_driver()
    check(driver.cuFuncSetAttribute(<void*>function, attribute, value), "cuFuncSetAttribute")


def device_attribute(int device, int attribute):
    """Return an attribute (CUdevice_attribute) of a device."""
    cdef int value = 0
    require_driver()
    check(driver.cuDeviceGetAttribute(&value, attribute, device), "cuDeviceGetAttribute")
    return value


def current_context():
    """Return this thread's current context handle (int), or 0."""
    cdef void* context = NULL
    require_driver()
    driver.cuCtxGetCurrent(&context)
    return <uintptr_t>context


def current_device():
    """Return the ordinal of this thread's current context's device, or -1."""
    cdef int device = -1
    require_driver()
    if driver.cuCtxGetDevice(&device) != CUDA_SUCCESS:
        return -1
    return device


def push_context(uintptr_t context):
    """Make a context current, above the one that is."""
    require_driver()
    check(driver.cuCtxPushCurrent(<void*>context), "cuCtxPushCurrent")


def pop_context():
    """Put back the context below the current one."""
    cdef void* popped = NULL
    require_driver()
    check(driver.cuCtxPopCurrent(&popped), "cuCtxPopCurrent")


# -- what a thread has for a while --------------------------------------------------------

# Signals are handled between bytecodes. A `with` of a type in C is entered and left within
# one each, so that an interrupt finds what it changed changed or put back, never half done.

@cython.final
cdef class CaptureMode:
    """Have another stream-capture mode in this thread within a ``with``.

    Parameters
    ----------
    mode : int
        As for :func:`exchange_capture_mode`.
    """
    cdef int mode

    def __init__(self, int mode):
        self.mode = mode

    def __enter__(self):
        self.mode = exchange_capture_mode(self.mode)

    def __exit__(self, *_):
        self.mode = exchange_capture_mode(self.mode)


@cython.final
cdef class CurrentContext:
    """Have another current context in this thread within a ``with``.

    Parameters
    ----------
    context : int
        Its handle; 0 leaves the context as it is.
    prepare : callable
        Called once it is current.
    stays : bool
        Whether it is left current.
    """
    cdef uintptr_t context
    cdef object prepare
    cdef bint stays

    def __init__(self, uintptr_t context, prepare, bint stays):
        self.context = context
        self.prepare = prepare
        self.stays = stays

    def __enter__(self):
        if not self.context:
            return
        push_context(self.context)
        try:
            self.prepare()
        except BaseException:
            pop_context()
            raise

    def __exit__(self, *_):
        if self.context and not self.stays:
            pop_context()
