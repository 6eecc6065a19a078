"""What a copy between two layouts has to move.

Owns the reduction of two layouts of one shape to the fewest steps, and the loop
that packs host memory by such steps. It calls no driver.
"""

from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport qsort
from libc.string cimport memcpy

from stridedview._layout cimport WORDS_BEFORE_SHAPE, Layout


cdef int64_t _size(int64_t value) noexcept nogil:
    return value if value >= 0 else -value


cdef int _by_dst(const void* a, const void* b) noexcept nogil:
    cdef const Step* left = <const Step*>a
    cdef const Step* right = <const Step*>b
    if _size(left.dst) != _size(right.dst):
        return -1 if _size(left.dst) > _size(right.dst) else 1
    return (_size(left.src) < _size(right.src)) - (_size(left.src) > _size(right.src))


cdef int _by_src(const void* a, const void* b) noexcept nogil:
    cdef const Step* left = <const Step*>a
    cdef const Step* right = <const Step*>b
    if _size(left.src) != _size(right.src):
        return -1 if _size(left.src) > _size(right.src) else 1
    return (_size(left.dst) < _size(right.dst)) - (_size(left.dst) > _size(right.dst))


cdef void _flip(CopyPlan* plan, Step* step) noexcept nogil:
    # Walk the axis from its other end, on both sides.
    plan.dst += (step.extent - 1) * step.dst
    plan.src += (step.extent - 1) * step.src
    step.dst = -step.dst
    step.src = -step.src


cdef void _merge(CopyPlan* plan) noexcept nogil:
    # Join a step with the one inside it where both sides walk on evenly.
    cdef Step* inner
    cdef Step* outer
    cdef int i, kept = 0
    for i in range(1, plan.count):
        outer, inner = &plan.steps[kept], &plan.steps[i]
        if outer.dst == inner.extent * inner.dst and outer.src == inner.extent * inner.src:
            inner.extent *= outer.extent
            plan.steps[kept] = inner[0]
        else:
            kept += 1
            plan.steps[kept] = inner[0]
    plan.count = kept + 1 if plan.count else 0
    if plan.count and plan.steps[kept].dst == plan.item \
            and plan.steps[kept].src == plan.item:
        plan.item *= plan.steps[kept].extent
        plan.count -= 1


cdef int make_plan(
        CopyPlan* plan, char* dst, Layout dst_layout, char* src, Layout src_layout,
        bint sort_by_src) except -1:
    cdef const int64_t* shape = &dst_layout.words[WORDS_BEFORE_SHAPE]
    cdef const int64_t* other = &src_layout.words[WORDS_BEFORE_SHAPE]
    cdef int i, ndim = dst_layout.ndim
    cdef Step* step
    if dst_layout.shape != src_layout.shape or dst_layout.itemsize != src_layout.itemsize:
        raise ValueError(
            f"cannot copy {src_layout} to {dst_layout}: shape and itemsize must agree")
    plan.dst, plan.src, plan.count = dst, src, 0
    plan.item, plan.nbytes = dst_layout.itemsize, dst_layout.nbytes
    if plan.nbytes == 0:
        return 0
    for i in range(ndim):
        if shape[i] != 1:
            step = &plan.steps[plan.count]
            step.extent, step.dst, step.src = shape[i], shape[ndim + i], other[ndim + i]
            if (step.src if sort_by_src else step.dst) < 0:
                _flip(plan, step)
            plan.count += 1
    qsort(plan.steps, plan.count, sizeof(Step), _by_src if sort_by_src else _by_dst)
    _merge(plan)
    return 0


cdef bint dense_side(const CopyPlan* plan, bint src) noexcept nogil:
    cdef int64_t expected = plan.item
    cdef int i
    for i in range(plan.count - 1, -1, -1):
        if (plan.steps[i].src if src else plan.steps[i].dst) != expected:
            return False
        expected *= plan.steps[i].extent
    return True


cdef int widen(CopyPlan* plan) noexcept nogil:
    cdef uint64_t bits = <uint64_t>plan.item | <uint64_t>plan.dst | <uint64_t>plan.src
    cdef int width = 16
    cdef int i
    for i in range(plan.count):
        bits |= <uint64_t>plan.steps[i].dst | <uint64_t>plan.steps[i].src
    while bits & <uint64_t>(width - 1):
        width >>= 1
    if plan.item > width and plan.count < 64:
        plan.steps[plan.count].extent = plan.item // width
        plan.steps[plan.count].dst = plan.steps[plan.count].src = width
        plan.count += 1
        plan.item = width
    return width


# ---- packing on the host -------------------------------------------------------------

ctypedef fused Word:
    char
    uint16_t
    uint32_t
    uint64_t


cdef void _run(
        Word* dense, char* strided, int64_t stride, int64_t count, bint gather) noexcept nogil:
    # Plain loads and stores of possibly unaligned words: a memcpy of constant size is what
    # C has for that, and compiles to one move.
    cdef int64_t i
    if gather:
        for i in range(count):
            memcpy(&dense[i], strided + i * stride, sizeof(Word))
    else:
        for i in range(count):
            memcpy(strided + i * stride, &dense[i], sizeof(Word))


cdef void _run_of(
        int64_t item, char* dense, char* strided, int64_t stride, int64_t count,
        bint gather) noexcept nogil:
    cdef int64_t i
    if item == 4:
        _run[uint32_t](<uint32_t*>dense, strided, stride, count, gather)
    elif item == 8:
        _run[uint64_t](<uint64_t*>dense, strided, stride, count, gather)
    elif item == 2:
        _run[uint16_t](<uint16_t*>dense, strided, stride, count, gather)
    elif item == 1:
        _run[char](dense, strided, stride, count, gather)
    elif gather:
        for i in range(count):
            memcpy(dense + i * item, strided + i * stride, item)
    else:
        for i in range(count):
            memcpy(strided + i * stride, dense + i * item, item)


cdef void pack(
        const CopyPlan* plan, bint from_src, char* dense, int64_t first,
        int64_t last) noexcept nogil:
    cdef char* base = plan.src if from_src else plan.dst
    cdef int64_t at[64]
    cdef int64_t left = first, run, stride
    cdef char* strided
    cdef int i, inner = plan.count - 1
    if inner < 0:
        # One run of bytes: `first` and `last` count them.
        if from_src:
            memcpy(dense, base + first, last - first)
        else:
            memcpy(base + first, dense, last - first)
        return
    for i in range(inner, -1, -1):
        at[i] = left % plan.steps[i].extent
        left //= plan.steps[i].extent
    stride = plan.steps[inner].src if from_src else plan.steps[inner].dst
    while first < last:
        strided = base
        for i in range(plan.count):
            strided += at[i] * (plan.steps[i].src if from_src else plan.steps[i].dst)
        run = min(plan.steps[inner].extent - at[inner], last - first)
        _run_of(plan.item, dense, strided, stride, run, from_src)
        dense += run * plan.item
        first += run
        at[inner] += run
        i = inner
        while i > 0 and at[i] == plan.steps[i].extent:
            at[i] = 0
            i -= 1
            at[i] += 1


def describe_plan(Layout dst not None, Layout src not None):
    """Return (item bytes, [(extent, dst stride, src stride), ...]) of a copy, for tests."""
    cdef CopyPlan plan
    make_plan(&plan, NULL, dst, NULL, src, False)
    return plan.item, [
        (plan.steps[i].extent, plan.steps[i].dst, plan.steps[i].src)
        for i in range(plan.count)]


def copy_on_host(uintptr_t dst, Layout to not None, uintptr_t src, Layout from_ not None):
    """Copy between two layouts of host memory through a dense buffer, for tests."""
    cdef CopyPlan plan
    make_plan(&plan, <char*>dst, to, <char*>src, from_, False)
    cdef int64_t units = plan.nbytes // plan.item if plan.count else plan.nbytes
    buffer = bytearray(plan.nbytes)
    cdef char* dense = buffer
    if plan.nbytes:
        pack(&plan, True, dense, 0, units)
        pack(&plan, False, dense, 0, units)
