"""The driver entry points that we call, found once.

Owns a struct of function pointers. They come from the driver's own resolver through
``cuda.bindings``, so that no CUDA header and no library name is needed here, and in
their legacy-stream form: what stream 0 means is decided by us (see ``_stream``), never
by a compile-time default. Finding them initialises nothing and makes no context.
"""

from libc.stdint cimport uintptr_t

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
    ("cuDeviceGetAttribute", 2000),
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
    ("cuMemcpyHtoDAsync", 3020),
    ("cuMemcpyDtoHAsync", 3020),
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


cdef object _address(object binding, str name, int version):
    result, address, status = binding.cuGetProcAddress(name.encode(), version, LEGACY_STREAM)
    if int(result) != CUDA_SUCCESS:
        raise RuntimeError(f"the CUDA driver could not look up {name}: {result}")
    return int(address)


cdef int check(int result, str what) except -1:
    """Raise DriverError naming the call unless the result is CUDA_SUCCESS."""
    if result != CUDA_SUCCESS:
        raise error(result, what)
    return 0


def error(int result, str what):
    """Return the DriverError for a result code, with the driver's own words."""
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
    """Return the id of this thread's current context, or 0 if it has none."""
    cdef unsigned long long context_id = 0
    require_driver()
    if driver.cuCtxGetId(NULL, &context_id) != CUDA_SUCCESS:
        return 0
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
