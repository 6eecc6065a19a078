"""What owns the memory of ``empty``: a block of the device's default pool, or a loan.

Owns the driver's two calls, and that a block goes back exactly once: on the stream that
it was taken on, in the context that it was taken in, never into a context that came later
and never in a way that would spoil a capture. A loan is a buffer of any other resource,
which gives itself back. Which of them, and from which pool, is _alloc's to say.
"""

from libc.stdint cimport int64_t

cimport cython

from stridedview._driver cimport (
    CU_STREAM_CAPTURE_MODE_RELAXED,
    CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,
    CUDA_SUCCESS,
    driver,
)

from collections import deque

cdef enum:
    # What became of a block that was to go back.
    SETTLED = 0                 # given back, or there is nothing left to give it to
    LATER = 1                   # the stream captures, or another capture forbids it

# Blocks that could not go back because of a capture; dropping one tries again. A deque, as
# in _stream, so that threads may add and take at once.
_waiting = deque()


@cython.final
@cython.freelist(64)
# A stream object may be anybody's, so that a cycle can lead through it. The collector would
# clear what that object holds, the stream itself, before the memory has gone back on it:
# so it is not shown the way, and such a cycle stays until somebody breaks it.
@cython.no_gc
cdef class Block:
    """Device memory that goes back to its pool when the last view of it has gone."""

    def __dealloc__(self):
        # The driver alone is asked, without Python: this may run while that shuts down,
        # in any thread, with any context current or none.
        cdef int outcome
        if self.address == 0:
            return
        with nogil:             # a full launch queue blocks in the driver
            outcome = _give_back(self.address, self.stream, self.context_id, self.device)
        if outcome == LATER:
            _waiting.append(_moved(self))

    def __repr__(self):
        return f"Block(address={self.address:#x}, device={self.device})"


cdef Block _moved(Block block):
    # The claim of a block that is going away, in a new one.
    cdef Block again = Block.__new__(Block)
    again.stream_object = block.stream_object
    again.stream, again.device = block.stream, block.device
    again.context_id = block.context_id
    again.address, block.address = block.address, 0
    return again


cdef Block take_block(
        void* pool, size_t nbytes, void* stream, object stream_object, int device,
        unsigned long long context_id, int* result):
    cdef unsigned long long address = 0
    cdef Block block = Block.__new__(Block)
    if _waiting:
        _retry()
    if _captures(stream, result) or result[0] != CUDA_SUCCESS:
        result[0] = CUDA_SUCCESS
        return None
    with nogil:                 # the pool may have to grow, a full launch queue blocks
        result[0] = _ask_pool(&address, nbytes, pool, stream)
    if result[0] != CUDA_SUCCESS:
        return None
    block.stream_object = stream_object
    block.stream, block.device, block.context_id = stream, device, context_id
    block.address = address
    return block


cdef int _retry() except -1:
    # Each block that goes away here tries once more, and waits again if it has to.
    cdef Py_ssize_t count = len(_waiting)
    try:
        for _ in range(count):
            _waiting.popleft()
    except IndexError:
        pass                    # another thread was faster
    return 0


cdef bint _captures(void* stream, int* result) noexcept nogil:
    # Asked of the legacy stream while a stream that it waits for captures, the driver
    # answers with an error and leaves that capture alone; the work itself would spoil it.
    cdef int status = 0
    result[0] = driver.cuStreamIsCapturing(stream, &status)
    return status != 0 or result[0] == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT


# Both calls run in relaxed mode: while any thread captures in global mode, what the driver
# counts as unsafe would spoil that capture, though it has no part in it.

cdef int _ask_pool(
        unsigned long long* address, size_t nbytes, void* pool, void* stream) noexcept nogil:
    cdef int result
    cdef int mode = CU_STREAM_CAPTURE_MODE_RELAXED
    driver.cuThreadExchangeStreamCaptureMode(&mode)
    result = driver.cuMemAllocFromPoolAsync(address, nbytes, pool, stream)
    driver.cuThreadExchangeStreamCaptureMode(&mode)
    return result


cdef int _give_back(
        unsigned long long address, void* stream, unsigned long long context_id,
        int device) noexcept nogil:
    cdef unsigned long long now = 0
    cdef int outcome
    cdef int mode = CU_STREAM_CAPTURE_MODE_RELAXED
    driver.cuThreadExchangeStreamCaptureMode(&mode)
    if driver.cuCtxGetId(NULL, &now) == CUDA_SUCCESS and now == context_id:
        outcome = _give_back_here(address, stream)
    else:
        outcome = _give_back_elsewhere(address, stream, context_id, device)
    driver.cuThreadExchangeStreamCaptureMode(&mode)
    return outcome


cdef int _give_back_here(unsigned long long address, void* stream) noexcept nogil:
    cdef int result
    if _captures(stream, &result):
        return LATER
    # An error says that the stream or the context is gone: there is nobody to tell, and no
    # stream left on which the memory could go back in order.
    if result == CUDA_SUCCESS:
        driver.cuMemFreeAsync(address, stream)
    return SETTLED


cdef int _give_back_elsewhere(
        unsigned long long address, void* stream, unsigned long long context_id,
        int device) noexcept nogil:
    # Another context is current in this thread, or none. The primary context of the device
    # may have been reset since; its handle is then the same but its id is not, and its
    # memory went with it. It is retained only if it is active, so as not to make one.
    cdef unsigned int flags = 0
    cdef int active = 0
    cdef int outcome = SETTLED
    cdef void* context = NULL
    cdef void* popped = NULL
    cdef unsigned long long now = 0
    if driver.cuDevicePrimaryCtxGetState(device, &flags, &active) != CUDA_SUCCESS or (
            not active):
        return SETTLED
    if driver.cuDevicePrimaryCtxRetain(&context, device) == CUDA_SUCCESS:
        if (
            driver.cuCtxGetId(context, &now) == CUDA_SUCCESS and now == context_id
            and driver.cuCtxPushCurrent(context) == CUDA_SUCCESS
        ):
            outcome = _give_back_here(address, stream)
            driver.cuCtxPopCurrent(&popped)
        driver.cuDevicePrimaryCtxRelease(device)
    return outcome


@cython.final
@cython.no_gc_clear             # it lets go of the buffer itself, see below
cdef class Loan:
    """A cuda.core buffer, let go of in relaxed capture mode when the last view has gone.

    Attributes
    ----------
    buffer : cuda.core.Buffer
    """

    def __dealloc__(self):
        # What a buffer does then may be one of the calls that spoil other captures.
        cdef int mode = CU_STREAM_CAPTURE_MODE_RELAXED
        cdef void* popped
        # The legacy stream that it goes back on is the current context's.
        cdef bint pushed = (
            self.context != NULL and driver.cuCtxPushCurrent(self.context) == CUDA_SUCCESS)
        driver.cuThreadExchangeStreamCaptureMode(&mode)
        self.buffer = None
        driver.cuThreadExchangeStreamCaptureMode(&mode)
        if pushed:
            driver.cuCtxPopCurrent(&popped)


cdef Loan take_loan(object resource, int64_t nbytes, dict options, object stream_object):
    cdef Loan loan = Loan.__new__(Loan)
    cdef int mode = CU_STREAM_CAPTURE_MODE_RELAXED
    if _waiting:
        _retry()
    driver.cuCtxGetCurrent(&loan.context)
    driver.cuThreadExchangeStreamCaptureMode(&mode)
    try:
        loan.buffer = resource.allocate(nbytes, **options)
    finally:
        driver.cuThreadExchangeStreamCaptureMode(&mode)
    loan.stream_object = stream_object
    return loan


def waiting():
    """Return how many blocks wait for a capture to end before they can go back."""
    return len(_waiting)
