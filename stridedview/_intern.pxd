# The intern table's C face. See _intern.pyx for what it owns.

from libc.stdint cimport int64_t, uint64_t


cdef enum:
    KEY_AT = 5                  # where the key, shape and strides, starts in the words


# What the table needs of a layout; it never changes once entered.
cdef class Interned:
    cdef readonly int ndim
    cdef readonly int64_t itemsize
    # The block of a kernel parameter, 5 + 2 * ndim words: 0, 0, size, itemsize, 0 (the
    # pointer's place), shape, strides in bytes. The strides in items follow it.
    cdef int64_t* words
    cdef uint64_t hash
    cdef object __weakref__


cdef Interned find(int ndim, const int64_t* key, int64_t itemsize, uint64_t* h)
cdef Interned enter(Interned made)
