"""Between host and device at the link's speed.

Owns the ring: pinned buffers through which several threads move pageable or gapped
host memory. Each thread has buffers of its own and takes the next chunk when it is done
with one, so that none waits for another: while one buffer is on the link, the thread
packs the next. The chunks stay small enough to be read by the link from the processor's
cache. Which stream, and in what order, is decided by the caller (_transfer).
"""

from cpython.pythread cimport (
    PyThread_acquire_lock,
    PyThread_allocate_lock,
    PyThread_free_lock,
    PyThread_release_lock,
    PyThread_type_lock,
    WAIT_LOCK,
)
from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uintptr_t
from libc.stdlib cimport free, malloc

from stridedview._copyplan cimport CopyPlan, pack
from stridedview._driver cimport (
    CU_STREAM_CAPTURE_MODE_RELAXED,
    CUDA_SUCCESS,
    check,
    driver,
)

import os
from concurrent.futures import ThreadPoolExecutor

from stridedview import _locks

cdef enum:
    CU_MEMHOSTALLOC_PORTABLE = 1
    CU_EVENT_BLOCKING_SYNC = 1
    CU_EVENT_DISABLE_TIMING = 2
    # Measured on a 16-core host with an H200, whose link carries 55 GB/s: 49 GB/s of
    # contiguous memory with these, 44 with 12 threads, 23 with buffers of half a MiB.
    MAX_THREADS = 15
    SLOTS_EACH = 2              # a thread's buffers: one on the link, one being packed
    SLOT_BYTES = 2 << 20
    # From how many bytes the ring beats the driver's own staging, and one thread's packing.
    RING_FROM = 16 << 20
    RING_FROM_WITH_GAPS = 1 << 20
    MAX_PIECE = 1 << 15         # bytes: the largest item that is moved as one


cdef class _Ring:
    # Pinned buffers of one context, each with the event of its last use.
    cdef void* slots[MAX_THREADS * SLOTS_EACH]
    cdef void* events[MAX_THREADS * SLOTS_EACH]
    cdef void* began            # after what the stream had to do before a transfer
    cdef int threads


# One transfer, shared by its threads. Everything from `next` on is guarded by `lock`.
cdef struct Job:
    const CopyPlan* plan
    void** slots
    void** events
    void* began
    void* stream
    void* context
    int64_t unit                # bytes that are moved as one
    int64_t units
    int64_t each                # units of a chunk
    bint to_device
    PyThread_type_lock lock
    PyThread_type_lock finished     # released by the last thread that leaves
    int64_t next
    int threads                 # that have not left
    int result
    const char* what


# Context id -> its ring. An id is never given twice; the buffers of a context that was
# reset are gone with it, and what is left here of them is small.
cdef dict _rings = {}
cdef object _pool = None
cdef object _ring_lock = _locks.lock()
cdef PyThread_type_lock _share_lock = PyThread_allocate_lock()


def _after_fork():
    # The threads are the parent's, and so is the context.
    global _rings, _pool
    _rings, _pool = {}, None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


cdef int _thread_count():
    if hasattr(os, "sched_getaffinity"):
        return min(MAX_THREADS, len(os.sched_getaffinity(0)))
    return min(MAX_THREADS, os.cpu_count() or 1)


cdef _Ring _get_ring():
    # Called with the lock held.
    global _pool
    cdef unsigned long long context = 0
    cdef _Ring made
    check(driver.cuCtxGetId(NULL, &context), "cuCtxGetId")
    found = _rings.get(context)
    if found is not None:
        return <_Ring>found
    made = _Ring.__new__(_Ring)
    made.threads = _thread_count()
    _fill_ring(made)
    if _pool is None and made.threads > 1:
        _pool = ThreadPoolExecutor(made.threads - 1, "stridedview-copy")
    _rings[context] = made
    return made


cdef int _fill_ring(_Ring ring) except -1:
    # A capture in global mode forbids allocating, in any thread.
    cdef int result, mode = CU_STREAM_CAPTURE_MODE_RELAXED
    cdef const char* what = b""
    driver.cuThreadExchangeStreamCaptureMode(&mode)
    result = _make_buffers(ring, &what)
    if result != CUDA_SUCCESS:
        _free_buffers(ring)
    driver.cuThreadExchangeStreamCaptureMode(&mode)
    return check(result, what.decode())


cdef int _make_buffers(_Ring ring, const char** what) noexcept:
    # Return the driver's result, and whose it is.
    cdef int slot, count = ring.threads * SLOTS_EACH
    cdef int result
    what[0] = b"cuMemHostAlloc"
    result = driver.cuMemHostAlloc(
        &ring.slots[0], <size_t>count * SLOT_BYTES, CU_MEMHOSTALLOC_PORTABLE)
    if result != CUDA_SUCCESS:
        ring.slots[0] = NULL
        return result
    what[0] = b"cuEventCreate"
    for slot in range(count):
        ring.slots[slot] = <char*>ring.slots[0] + slot * SLOT_BYTES
        # Waited for by polling: a sleeping thread wakes too late to keep the link busy.
        result = driver.cuEventCreate(&ring.events[slot], CU_EVENT_DISABLE_TIMING)
        if result != CUDA_SUCCESS:
            ring.events[slot] = NULL
            return result
    return driver.cuEventCreate(
        &ring.began, CU_EVENT_DISABLE_TIMING | CU_EVENT_BLOCKING_SYNC)


cdef int _free_buffers(_Ring ring) noexcept:
    # Nothing was queued that uses them.
    cdef int slot
    for slot in range(ring.threads * SLOTS_EACH):
        if ring.events[slot] != NULL:
            driver.cuEventDestroy(ring.events[slot])
    if ring.slots[0] != NULL:
        driver.cuMemFreeHost(ring.slots[0])
    return 0


# ---- what a thread does --------------------------------------------------------------


cdef bint _take(Job* job, int64_t* first, int64_t* last) noexcept nogil:
    # The next chunk; False if there is none, or if a thread has failed.
    PyThread_acquire_lock(job.lock, WAIT_LOCK)
    first[0] = job.next
    last[0] = min(job.next + job.each, job.units)
    if job.result == CUDA_SUCCESS:
        job.next = last[0]
    PyThread_release_lock(job.lock)
    return job.result == CUDA_SUCCESS and first[0] < last[0]


cdef bint _failed(Job* job, int result, const char* what) noexcept nogil:
    if result == CUDA_SUCCESS:
        return False
    PyThread_acquire_lock(job.lock, WAIT_LOCK)
    if job.result == CUDA_SUCCESS:
        job.result, job.what = result, what
    PyThread_release_lock(job.lock)
    return True


cdef bint _queue(Job* job, int slot, int64_t first, int64_t last) noexcept nogil:
    cdef size_t nbytes = (last - first) * job.unit
    cdef char* device = job.plan.dst if job.to_device else job.plan.src
    cdef int result
    device += first * job.unit
    if job.to_device:
        result = driver.cuMemcpyHtoDAsync(
            <uintptr_t>device, job.slots[slot], nbytes, job.stream)
    else:
        result = driver.cuMemcpyDtoHAsync(
            job.slots[slot], <uintptr_t>device, nbytes, job.stream)
    if _failed(job, result, "cuMemcpyHtoDAsync" if job.to_device else "cuMemcpyDtoHAsync"):
        return False
    return not _failed(
        job, driver.cuEventRecord(job.events[slot], job.stream), "cuEventRecord")


cdef bint _wait(Job* job, int slot) noexcept nogil:
    # First, asleep, for what was queued before: that may be a long kernel.
    cdef int result = driver.cuEventSynchronize(job.began)
    if result == CUDA_SUCCESS:
        result = driver.cuEventSynchronize(job.events[slot])
    return not _failed(job, result, "cuEventSynchronize")


cdef void _upload(Job* job, int slot) noexcept nogil:
    cdef int64_t first, last
    cdef int turn = 0
    cdef int64_t packed = 0
    while _take(job, &first, &last):
        # The first buffers need no wait for this stream, unless another still uses them.
        if (packed >= SLOTS_EACH or driver.cuEventQuery(job.events[slot + turn])) \
                and not _wait(job, slot + turn):
            return
        packed += 1
        pack(job.plan, True, <char*>job.slots[slot + turn], first, last)
        if not _queue(job, slot + turn, first, last):
            return
        turn = 1 - turn


cdef void _download(Job* job, int slot) noexcept nogil:
    # One chunk is on the link while the one before it is unpacked.
    cdef int64_t first, last, came_first = 0, came_last = 0
    cdef int turn = 0
    cdef bint more = True
    while more:
        more = _take(job, &first, &last)
        # A copy of another stream may still read the slot; this one is behind it.
        if more and not (
                _wait(job, slot + turn) and _queue(job, slot + turn, first, last)):
            return
        turn = 1 - turn
        if came_first < came_last:
            if not _wait(job, slot + turn):
                return
            pack(job.plan, False, <char*>job.slots[slot + turn], came_first, came_last)
        came_first, came_last = first, last


cdef void _run(Job* job, int thread) noexcept nogil:
    # Relaxed: a capture in global mode would forbid the waits, in any thread.
    cdef int mode = CU_STREAM_CAPTURE_MODE_RELAXED
    cdef void* popped
    if not _failed(job, driver.cuCtxPushCurrent(job.context), "cuCtxPushCurrent"):
        driver.cuThreadExchangeStreamCaptureMode(&mode)
        if job.to_device:
            _upload(job, thread * SLOTS_EACH)
        else:
            _download(job, thread * SLOTS_EACH)
        driver.cuThreadExchangeStreamCaptureMode(&mode)
        driver.cuCtxPopCurrent(&popped)


cdef void _leave(Job* job) noexcept nogil:
    cdef bint is_last
    PyThread_acquire_lock(job.lock, WAIT_LOCK)
    job.threads -= 1
    is_last = job.threads == 0
    PyThread_release_lock(job.lock)
    if is_last:
        PyThread_release_lock(job.finished)


cdef class _Share:
    # A thread's part in a job: NULL once it is taken up, or too late.
    cdef Job* job
    cdef int thread

    def __call__(self):
        # The job is on the stack of the caller of _run_all, who waits until all have left.
        cdef Job* job = _take_share(self)
        if job != NULL:
            with nogil:
                _run(job, self.thread)
                _leave(job)


cdef Job* _take_share(_Share share) noexcept:
    cdef Job* job
    PyThread_acquire_lock(_share_lock, WAIT_LOCK)
    job = share.job
    share.job = NULL
    if job != NULL:
        PyThread_acquire_lock(job.lock, WAIT_LOCK)
        job.threads += 1
        PyThread_release_lock(job.lock)
    PyThread_release_lock(_share_lock)
    return job


# ---- the transfer --------------------------------------------------------------------


cdef int _run_all(Job* job, int threads) except -1:
    cdef list shares = []
    cdef _Share share
    cdef int thread
    job.threads = 1             # this one; the others count themselves when they begin
    try:
        for thread in range(1, threads):
            share = _Share.__new__(_Share)
            share.job, share.thread = job, thread
            shares.append(share)
            _pool.submit(share)
    except RuntimeError:
        pass                    # no more threads, as while the interpreter ends
    finally:
        # Not interruptible: the others read the job and the arrays until they leave.
        with nogil:
            _run(job, 0)
        # Whoever has not begun by now would find nothing left to do.
        for share in shares:
            if _take_share(share) != NULL:
                _leave(job)
        with nogil:
            _leave(job)
            PyThread_acquire_lock(job.finished, WAIT_LOCK)
    return 0


cdef int _ring_transfer(const CopyPlan* plan, bint to_device, void* stream) except -1:
    cdef Job job
    cdef _Ring ring = _get_ring()
    cdef int threads
    job.plan, job.to_device, job.stream = plan, to_device, stream
    job.slots, job.events, job.began = ring.slots, ring.events, ring.began
    job.unit = plan.item if plan.count else 1
    job.units = plan.nbytes // job.unit
    threads = <int>min(<int64_t>ring.threads, (plan.nbytes + (1 << 18) - 1) >> 18)
    job.each = max(
        min(<int64_t>SLOT_BYTES, plan.nbytes // (threads * SLOTS_EACH) + 1) // job.unit, 1)
    job.next, job.result, job.what = 0, CUDA_SUCCESS, b""
    check(driver.cuCtxGetCurrent(&job.context), "cuCtxGetCurrent")
    check(driver.cuEventRecord(job.began, stream), "cuEventRecord")
    job.lock, job.finished = PyThread_allocate_lock(), PyThread_allocate_lock()
    if job.lock == NULL or job.finished == NULL:
        raise MemoryError("no lock could be made for a copy")
    PyThread_acquire_lock(job.finished, WAIT_LOCK)
    _run_all(&job, threads)
    PyThread_release_lock(job.finished)
    PyThread_free_lock(job.finished)
    PyThread_free_lock(job.lock)
    return check(job.result, job.what.decode())


cdef int _split_item(CopyPlan* plan) noexcept:
    # A long item becomes many short ones, so that a chunk is a whole number of items.
    cdef int64_t piece = 1
    if plan.count == 0 or plan.item <= MAX_PIECE or plan.count == 64:
        return 0
    while piece < MAX_PIECE and plan.item % (2 * piece) == 0:
        piece *= 2
    plan.steps[plan.count].extent = plan.item // piece
    plan.steps[plan.count].dst = plan.steps[plan.count].src = piece
    plan.count += 1
    plan.item = piece
    return 0


cdef bint transfer(CopyPlan* plan, bint to_device, bint pinned, void* stream) except -1:
    if plan.nbytes == 0:
        return False
    if plan.count == 0 and (pinned or plan.nbytes < RING_FROM):
        _copy_whole(plan, to_device, stream)
        return False
    _split_item(plan)
    if plan.nbytes < RING_FROM_WITH_GAPS or (plan.count and plan.item > MAX_PIECE):
        return _transfer_small(plan, to_device, stream)
    with _ring_lock:
        _ring_transfer(plan, to_device, stream)
    return not to_device


cdef int _copy_whole(const CopyPlan* plan, bint to_device, void* stream) except -1:
    cdef int result
    with nogil:
        if to_device:
            result = driver.cuMemcpyHtoDAsync(
                <uintptr_t>plan.dst, plan.src, plan.nbytes, stream)
        else:
            result = driver.cuMemcpyDtoHAsync(
                plan.dst, <uintptr_t>plan.src, plan.nbytes, stream)
    return check(result, "cuMemcpyHtoDAsync" if to_device else "cuMemcpyDtoHAsync")


cdef bint _transfer_small(CopyPlan* plan, bint to_device, void* stream) except -1:
    # Through pageable memory: the driver has read it when its call returns.
    cdef char* dense = <char*>malloc(plan.nbytes)
    cdef CopyPlan whole = plan[0]
    cdef int result
    if dense == NULL:
        raise MemoryError(f"out of host memory: {plan.nbytes} bytes for a copy")
    try:
        if to_device:
            pack(plan, True, dense, 0, plan.nbytes // plan.item)
            whole.src = dense
            _copy_whole(&whole, True, stream)
            return False
        whole.dst = dense
        _copy_whole(&whole, False, stream)
        with nogil:
            result = driver.cuStreamSynchronize(stream)
        check(result, "cuStreamSynchronize")
        pack(plan, False, dense, 0, plan.nbytes // plan.item)
        return True
    finally:
        free(dense)
