# Layout's C face. See _layout.pyx for what it owns.

from libc.stdint cimport int64_t


cdef enum:
    MAX_NDIM = 64
    WORDS_BEFORE_SHAPE = 5      # meminfo, parent, size, itemsize, pointer
    WORD_OF_POINTER = 4


cdef class Layout:
    cdef readonly int ndim
    cdef readonly int64_t itemsize
    cdef readonly int64_t size
    cdef readonly bint is_c_contiguous
    cdef readonly bint is_f_contiguous
    # The block of a kernel parameter, 5 + 2 * ndim words: 0, 0, size, itemsize, 0 (the
    # pointer's place), shape, strides in bytes.
    cdef int64_t* words


# Return the interned Layout of raw C arrays. `strides` is NULL for C order, else counts
# units of `unit` bytes (1 for byte strides, itemsize for DLPack's and torch's).
cdef Layout intern_layout(
    int ndim, const int64_t* shape, const int64_t* strides, int64_t unit, int64_t itemsize)
