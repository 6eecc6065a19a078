"""Copies on one device: memcpy, the driver's two-dimensional copy, or a kernel.

Owns the choice of how a plan is carried out on one device and the stream-ordered
scratch memory. Which stream and what order is decided by the caller (_transfer).
"""

from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uintptr_t

from stridedview._copyplan cimport CopyPlan, Step, widen
from stridedview._driver cimport (
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
    CU_STREAM_CAPTURE_MODE_RELAXED,
    CUDA_ERROR_OUT_OF_MEMORY,
    CUDA_SUCCESS,
    Memcpy2D,
    check,
    driver,
    require_driver,
)
from stridedview._layout cimport MAX_NDIM, WORDS_BEFORE_SHAPE, Layout, intern_layout
from stridedview._view cimport StridedView

from stridedview._kernels import ROOM as _ROOM
from stridedview._kernels import CompilerMissingError, kernel_handle

cdef enum:
    OUTER_ROOM = 8              # as in _kernels.SOURCE
    CU_MEMORYTYPE_UNIFIED = 4
    MEMCPY2D_FROM = 4096        # bytes of a row from which the driver's own copy is taken
    MAX_PITCH = 0x7FFFFFFF

assert _ROOM == OUTER_ROOM


cdef struct Axes:
    int64_t extent[OUTER_ROOM]
    int64_t dst[OUTER_ROOM]
    int64_t src[OUTER_ROOM]


# ---- the device and scratch memory ---------------------------------------------------


cdef class CurrentDevice:
    """Make a device current for the block, and the former context again after it.

    Within the block this thread may wait and take memory while any thread captures.
    """

    def __enter__(self):
        require_driver()
        self._make_current()
        self.mode = CU_STREAM_CAPTURE_MODE_RELAXED
        driver.cuThreadExchangeStreamCaptureMode(&self.mode)
        return self

    cdef int _make_current(self) except -1:
        cdef int now = -1
        if driver.cuCtxGetDevice(&now) == CUDA_SUCCESS and now == self.device:
            return 0
        driver.cuCtxGetCurrent(&self.replaced)
        from cuda.core import Device
        Device(self.device).set_current()
        return 0

    def __exit__(self, kind, value, traceback):
        cdef void* ours
        driver.cuThreadExchangeStreamCaptureMode(&self.mode)
        if self.replaced != NULL:
            check(driver.cuCtxPopCurrent(&ours), "cuCtxPopCurrent")
            check(driver.cuCtxPushCurrent(self.replaced), "cuCtxPushCurrent")
            self.replaced = NULL


cdef CurrentDevice current_device(StridedView view):
    cdef CurrentDevice current = CurrentDevice.__new__(CurrentDevice)
    current.device = view.device_id
    return current


cdef class Scratch:
    """Device memory for the time of one copy."""

    def __dealloc__(self):
        if self.ptr:
            driver.cuMemFreeAsync(self.ptr, self.stream)


cdef Scratch scratch(size_t nbytes, void* stream):
    cdef Scratch made = Scratch.__new__(Scratch)
    cdef int result
    made.stream = stream
    result = driver.cuMemAllocAsync(&made.ptr, nbytes, stream)
    if result == CUDA_ERROR_OUT_OF_MEMORY:
        raise MemoryError(f"out of device memory: {nbytes} bytes of scratch for a copy")
    check(result, "cuMemAllocAsync")
    return made


cdef Layout compact(Layout layout, str order):
    """Return a layout of the same shape without gaps, in C, F or (K) the given order."""
    cdef const int64_t* shape = &layout.words[WORDS_BEFORE_SHAPE]
    cdef int64_t strides[MAX_NDIM]
    cdef int64_t stride = layout.itemsize
    cdef int axis, ndim = layout.ndim
    if order not in ("C", "F", "K", "A"):
        raise ValueError(f"order must be 'C', 'F', 'A' or 'K', got {order!r}")
    if order == "A":
        order = "F" if layout.letter == "F" else "C"
    if order == "C" or (order == "K" and layout.is_c_contiguous):
        return intern_layout(ndim, shape, NULL, 1, layout.itemsize)
    axes = range(ndim)
    if order == "K":
        steps = layout.strides
        axes = sorted(range(ndim), key=lambda axis: (abs(steps[axis]), -axis))
    for axis in axes:
        strides[axis] = stride
        stride *= max(shape[axis], 1)
    return intern_layout(ndim, shape, strides, 1, layout.itemsize)


# ---- on one device -------------------------------------------------------------------


cdef int queue_plan(CopyPlan* plan, int device, void* stream) except -1:
    cdef int result
    if plan.nbytes == 0:
        return 0
    if plan.count == 0:
        with nogil:
            result = driver.cuMemcpyAsync(
                <uintptr_t>plan.dst, <uintptr_t>plan.src, plan.item, stream)
        return check(result, "cuMemcpyAsync")
    if plan.count == 1 and plan.item >= MEMCPY2D_FROM and _fits_2d(plan):
        return _queue_2d(plan, stream)
    return _queue_kernel(plan, device, stream)


cdef bint _fits_2d(const CopyPlan* plan) noexcept:
    cdef const Step* step = &plan.steps[plan.count - 1]
    return plan.item <= step.dst <= MAX_PITCH and plan.item <= step.src <= MAX_PITCH


cdef int _queue_2d(const CopyPlan* plan, void* stream) except -1:
    cdef const Step* step = &plan.steps[plan.count - 1]
    cdef Memcpy2D copy
    cdef int result
    copy.src_x = copy.src_y = copy.dst_x = copy.dst_y = 0
    copy.src_type = copy.dst_type = CU_MEMORYTYPE_UNIFIED
    copy.src_host = copy.dst_host = copy.src_array = copy.dst_array = NULL
    copy.src_device, copy.src_pitch = <uintptr_t>plan.src, step.src
    copy.dst_device, copy.dst_pitch = <uintptr_t>plan.dst, step.dst
    copy.width, copy.height = plan.item, step.extent
    with nogil:
        result = driver.cuMemcpy2DAsync(&copy, stream)
    return check(result, "cuMemcpy2DAsync")


cdef dict _without_compiler = {}        # device -> why no kernel can be compiled


def compiler_missing():
    """Return {device: reason} where strided copies go row by row for want of NVRTC."""
    return dict(_without_compiler)


def forget_missing_compiler():
    """Try NVRTC again at the next strided copy."""
    _without_compiler.clear()


cdef int _queue_kernel(CopyPlan* plan, int device, void* stream) except -1:
    cdef CopyPlan whole = plan[0]
    cdef int width = widen(plan)
    if device in _without_compiler:
        return _queue_rows(&whole, stream)
    if plan.count - 1 > OUTER_ROOM:
        return _queue_peeled(plan, device, stream)
    try:
        return _queue_launch(plan, width, device, stream)
    except CompilerMissingError as error:
        # Without NVRTC (or with one too old for the chip) there is still the driver's own
        # copy, row by row; `status` tells. Whatever else fails is raised: it may pass.
        _without_compiler[device] = str(error)
    return _queue_rows(&whole, stream)


cdef int _queue_peeled(CopyPlan* plan, int device, void* stream) except -1:
    # More axes than one launch takes: the outermost is walked here.
    cdef CopyPlan inner
    cdef int64_t i
    cdef int k
    for i in range(plan.steps[0].extent):
        inner = plan[0]
        inner.count = plan.count - 1
        inner.dst += i * plan.steps[0].dst
        inner.src += i * plan.steps[0].src
        for k in range(inner.count):
            inner.steps[k] = plan.steps[k + 1]
        _queue_kernel(&inner, device, stream)
    return 0


cdef int _queue_rows(CopyPlan* plan, void* stream) except -1:
    # As two-dimensional copies where the strides allow it, else item by item.
    cdef CopyPlan inner
    cdef int64_t i
    cdef int k
    if plan.count == 0:
        return check(driver.cuMemcpyAsync(
            <uintptr_t>plan.dst, <uintptr_t>plan.src, plan.item, stream), "cuMemcpyAsync")
    if plan.count == 1 and _fits_2d(plan):
        return _queue_2d(plan, stream)
    for i in range(plan.steps[0].extent):
        inner = plan[0]
        inner.count = plan.count - 1
        inner.dst += i * plan.steps[0].dst
        inner.src += i * plan.steps[0].src
        for k in range(inner.count):
            inner.steps[k] = plan.steps[k + 1]
        _queue_rows(&inner, stream)
    return 0


cdef tuple _capability(int device):
    cdef int major = 0, minor = 0
    cdef str what = "cuDeviceGetAttribute"
    check(driver.cuDeviceGetAttribute(
        &major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device), what)
    check(driver.cuDeviceGetAttribute(
        &minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device), what)
    return major, minor


cdef void* _kernel(int device, int width, str name) except NULL:
    # A capture in global mode forbids loading a module, in any thread.
    cdef int mode = CU_STREAM_CAPTURE_MODE_RELAXED
    driver.cuThreadExchangeStreamCaptureMode(&mode)
    try:
        return <void*><uintptr_t>kernel_handle(_capability(device), width, name)
    finally:
        driver.cuThreadExchangeStreamCaptureMode(&mode)


cdef int _transposed_axis(const CopyPlan* plan, int width) noexcept:
    # The axis along which the source runs fastest, if that is another than the target's.
    cdef const Step* inner = &plan.steps[plan.count - 1]
    cdef int i
    if inner.dst != width or inner.src == width or inner.extent < 8:
        return -1
    for i in range(plan.count - 1):
        if plan.steps[i].src == width and plan.steps[i].extent >= 8:
            return i
    return -1


cdef int64_t _outer_axes(const CopyPlan* plan, int skip, Axes* out, int* count) noexcept:
    # Every axis but the last and `skip`; returns the number of rows they make.
    cdef int64_t rows = 1
    cdef int i
    count[0] = 0
    for i in range(plan.count - 1):
        if i != skip:
            out.extent[count[0]] = plan.steps[i].extent
            out.dst[count[0]] = plan.steps[i].dst
            out.src[count[0]] = plan.steps[i].src
            count[0] += 1
            rows *= plan.steps[i].extent
    return rows


cdef int _queue_launch(CopyPlan* plan, int width, int device, void* stream) except -1:
    cdef Step* inner = &plan.steps[plan.count - 1]
    cdef Step* other
    cdef Axes outer
    cdef int count, skip = _transposed_axis(plan, width)
    cdef int64_t rows = _outer_axes(plan, skip, &outer, &count)
    cdef int64_t pieces, a_tiles, b_tiles
    cdef unsigned int across = 1
    cdef void* args[12]
    args[0], args[1], args[2], args[3] = &plan.dst, &plan.src, &outer, &count
    args[4], args[5], args[6] = &inner.extent, &inner.dst, &inner.src
    if skip >= 0:
        other = &plan.steps[skip]
        a_tiles, b_tiles = (inner.extent + 31) // 32, (other.extent + 31) // 32
        args[7], args[8], args[9] = &other.extent, &other.dst, &other.src
        args[10], args[11] = &a_tiles, &b_tiles
        return _launch(
            _kernel(device, width, "copy_tiled"), rows * a_tiles * b_tiles, 32, 8, args,
            stream)
    if inner.extent <= 128:
        while across < inner.extent:
            across *= 2
        args[7] = &rows
        pieces = 4 * (256 // across)
        return _launch(
            _kernel(device, width, "copy_short"), (rows + pieces - 1) // pieces, across,
            256 // across, args, stream)
    pieces = (inner.extent + 1023) // 1024
    args[7] = &pieces
    return _launch(_kernel(device, width, "copy_long"), rows * pieces, 256, 1, args, stream)


cdef int _launch(
        void* kernel, int64_t grid, unsigned int x, unsigned int y, void** args,
        void* stream) except -1:
    cdef int result
    if grid > 0x7FFFFFFF:
        raise OverflowError(f"a copy of {grid} blocks is more than one launch takes")
    with nogil:
        result = driver.cuLaunchKernel(
            kernel, <unsigned int>grid, 1, 1, x, y, 1, 0, stream, args, NULL)
    return check(result, "cuLaunchKernel (strided copy)")
