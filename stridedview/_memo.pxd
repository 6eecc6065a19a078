# The memo of the layout algebra: its C face. See _memo.pyx for what it owns.

from libc.stdint cimport int64_t

from stridedview._intern cimport Interned


cdef enum:
    OPERANDS = 4                # the most raw integers an entry is known by

    # Operations. Those that take a varying number of operands are entered as
    # `operation + MEMO_COUNT * number`, so that (2,) and (2, 0) are two entries.
    MEMO_FIRST_AXIS = 1         # another extent and stride (bytes) of the first axis
    MEMO_WITHOUT_FIRST = 2      # the layout of one row
    MEMO_REVERSE = 3            # the axes the other way round
    MEMO_PERMUTE = 4
    MEMO_RESHAPE = 5            # in C order
    MEMO_COUNT = 8


# Return the layout that an operation on `source` gave, or None. `operands` has OPERANDS
# integers, the unused ones 0.
cdef Interned recall(Interned source, int64_t operation, const int64_t* operands)
cdef int remember(
    Interned source, int64_t operation, const int64_t* operands, Interned result) except -1
