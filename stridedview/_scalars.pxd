# Scalars into parameter bytes: the C face. See _scalars.pyx.


cdef enum:
    # What an argument is; the low byte of its signature word. Kinds above the array
    # routes of _ingest, so that one number tells route and kind.
    KIND_OTHER = 0              # Numba's own code takes it
    KIND_ARRAY = 1
    KIND_HOST = 2               # an array in host memory: never in a plan
    KIND_INT = 32
    KIND_UINT64 = 33            # an int of 2**63 to 2**64 - 1
    KIND_FLOAT = 34
    KIND_BOOL = 35
    KIND_COMPLEX = 36
    KIND_SCALAR = 37            # a NumPy scalar
    KIND_TUPLE = 38
    KIND_ENUM = 39

    # How a value is written, by the kernel's formal type.
    SET_NONE = 0
    SET_ARRAY = 1
    SET_F_ARRAY = 2             # an array of letter C that has to be F-contiguous as well
    SET_TUPLE = 3               # the slots after it are its items
    SET_BOOL = 4
    SET_INT8 = 5
    SET_INT16 = 6
    SET_INT32 = 7
    SET_INT64 = 8
    SET_UINT8 = 9
    SET_UINT16 = 10
    SET_UINT32 = 11
    SET_UINT64 = 12
    SET_FLOAT16 = 13
    SET_FLOAT32 = 14
    SET_FLOAT64 = 15
    SET_COMPLEX64 = 16
    SET_COMPLEX128 = 17
    SET_POINTER = 18
    SET_TIME = 19               # datetime64 and timedelta64: their int64


# Write a value at `destination` as a setter's type; OverflowError or TypeError if it is none.
cdef int store_int(int setter, long long value, char* destination) except -1
cdef int store_uint64(int setter, object value, char* destination) except -1
cdef int store_float(int setter, double value, char* destination) except -1
cdef int store_other(int setter, int kind, object value, char* destination) except -1
