# Layout's C face. See _layout.pyx for what it owns.

from libc.stdint cimport int8_t, int64_t

from stridedview._geometry cimport Axes
from stridedview._intern cimport Interned


cdef enum:
    MAX_NDIM = 64
    WORDS_BEFORE_SHAPE = 5      # meminfo, parent, size, itemsize, pointer
    WORD_OF_POINTER = 4


# From its base: ndim, itemsize, words (the block of a kernel parameter), hash.
cdef class Layout(Interned):
    cdef readonly int64_t size
    cdef readonly int64_t nbytes
    cdef readonly bint is_c_contiguous
    cdef readonly bint is_f_contiguous
    cdef readonly tuple shape
    cdef readonly tuple strides
    cdef int64_t first_byte         # the byte extent, relative to the first item
    cdef int64_t last_byte          # one past the last byte
    cdef bint whole_strides         # every stride is a whole number of items
    cdef int8_t unique_known        # -1 until asked, then the answer
    cdef bytes _storage             # holds the words


# Return the interned Layout of raw C arrays. `strides` is NULL for C order, else counts
# units of `unit` bytes (1 for byte strides, itemsize for DLPack's and torch's).
cdef Layout intern_layout(
    int ndim, const int64_t* shape, const int64_t* strides, int64_t unit, int64_t itemsize)

cdef Axes axes_of(Layout layout) noexcept

# The strides in items, for DLPack: they live as long as the layout. BufferError if an
# itemsize does not divide a stride.
cdef const int64_t* item_strides(Layout layout) except NULL
cdef bint is_unique(Layout layout) noexcept
cdef char layout_letter(Layout layout) noexcept

# The algebra without Python tuples: return the new layout, write how far the first item
# moved (bytes).
cdef Layout slice_layout(Layout source, object key, int64_t* offset)
cdef Layout permute_layout(Layout source, object axes)
cdef Layout reverse_layout(Layout source)
cdef Layout reshape_layout(Layout source, object shape, str order)
# The same with the integers read already.
cdef Layout permute_to(Layout source, int count, const int64_t* order)
cdef Layout reshape_to(Layout source, int ndim, const int64_t* wanted, str order)
cdef Layout squeeze_layout(Layout source, object axis)
cdef Layout expand_layout(Layout source, object axis)
cdef Layout broadcast_layout(Layout source, object shape)
cdef Layout reinterpret_layout(Layout source, int64_t itemsize)
cdef Layout strided_layout(Layout source, object shape, object strides)
