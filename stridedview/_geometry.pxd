# Shape and stride arithmetic on raw C arrays. See _geometry.pyx for what it owns.

from libc.stdint cimport int64_t


cdef extern from *:
    """
    #include <stdint.h>

    #if defined(__GNUC__) || defined(__clang__)
    static inline int sv_mul_overflows(int64_t a, int64_t b, int64_t* out) {
        return __builtin_mul_overflow(a, b, out);
    }
    static inline int sv_add_overflows(int64_t a, int64_t b, int64_t* out) {
        return __builtin_add_overflow(a, b, out);
    }
    #else
    static inline int sv_mul_overflows(int64_t a, int64_t b, int64_t* out) {
        *out = (int64_t)((uint64_t)a * (uint64_t)b);
        if (a == 0 || b == 0) return 0;
        if ((a == -1 && b == INT64_MIN) || (b == -1 && a == INT64_MIN)) return 1;
        return *out / b != a;
    }
    static inline int sv_add_overflows(int64_t a, int64_t b, int64_t* out) {
        *out = (int64_t)((uint64_t)a + (uint64_t)b);
        return ((a ^ *out) & (b ^ *out)) < 0;
    }
    #endif
    """
    # Return nonzero if the result does not fit; *out then holds the wrapped value.
    bint mul_overflows "sv_mul_overflows"(int64_t a, int64_t b, int64_t* out) noexcept nogil
    bint add_overflows "sv_add_overflows"(int64_t a, int64_t b, int64_t* out) noexcept nogil


cdef enum:
    MAX_NDIM = 64               # NumPy's own limit since 2.0; DLPack and torch allow it too


# Borrowed shape and strides (bytes): whoever made the struct keeps the arrays alive.
cdef struct Axes:
    int ndim
    int64_t itemsize
    const int64_t* shape
    const int64_t* strides


# The result of an operation: its own arrays, and how far the first item moved, in bytes.
cdef struct Geometry:
    int ndim
    int64_t itemsize
    int64_t offset
    int64_t shape[MAX_NDIM]
    int64_t strides[MAX_NDIM]


cdef int parse_extents(object sequence, str what, int64_t* out) except -1
cdef int fill_c_strides(
    int ndim, const int64_t* shape, int64_t itemsize, int64_t* strides) except -1
cdef int fill_f_strides(
    int ndim, const int64_t* shape, int64_t itemsize, int64_t* strides) except -1
cdef bint empty(const Axes* axes) noexcept nogil
cdef bint c_contiguous(const Axes* axes) noexcept nogil
cdef bint f_contiguous(const Axes* axes) noexcept nogil
cdef bint unique(const Axes* axes) noexcept nogil
