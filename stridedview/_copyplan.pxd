# What a copy between two layouts has to move. See _copyplan.pyx for what it owns.

from libc.stdint cimport int64_t

from stridedview._layout cimport Layout


cdef struct Step:
    int64_t extent
    int64_t dst                 # bytes from one to the next
    int64_t src


# Outermost first; `item` bytes lie together on both sides.
cdef struct CopyPlan:
    char* dst
    char* src
    int64_t item
    int64_t nbytes              # moved in all
    int count
    Step steps[64]


# Fill a plan for two layouts of one shape and itemsize. Steps are sorted by the strides of
# `dst` (or of `src`), so that this side is walked upwards in memory.
cdef int make_plan(
    CopyPlan* plan, char* dst, Layout dst_layout, char* src, Layout src_layout,
    bint sort_by_src) except -1
# Is one side a single run of memory, walked in order?
cdef bint dense_side(const CopyPlan* plan, bint src) noexcept nogil
# Split the item so that a type of the returned width (1 to 16 bytes) can move everything.
cdef int widen(CopyPlan* plan) noexcept nogil
# Move the items `first` to `last` between the strided side on the host and dense memory that
# starts with item `first`.
cdef void pack(
    const CopyPlan* plan, bint from_src, char* dense, int64_t first,
    int64_t last) noexcept nogil
