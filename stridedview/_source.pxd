# What an importer learns of an array: the one struct between producers and consumers.
#
# Owns the struct and its checks. Pointers in it are borrowed: `shape` and `strides` point
# into the producer (a tensor's own memory, a DLTensor) or into `scratch`, and are good only
# until control returns to Python. Nothing here keeps an array alive except `keep`.

from cpython.object cimport PyObject
from libc.stdint cimport int32_t, int64_t, intptr_t, uint8_t, uint16_t

from stridedview._layout cimport MAX_NDIM, Layout


cdef enum:
    # No allocation lies in the first page; a pointer there is the offset of a slice into
    # storage that was freed, or an invented one.
    FIRST_PAGE = 4096


cdef struct Source:
    void* data                  # byte_offset folded in
    const int64_t* shape
    const int64_t* strides      # in units of `unit` bytes; NULL means C order
    int64_t unit
    intptr_t stream             # the stream that orders the data, or NO_STREAM
    int32_t ndim
    int32_t device_type         # DLPack's
    int32_t device_id
    uint16_t dtype              # index in the dtype table
    uint8_t family
    bint is_readonly
    # A new reference that must live as long as the data is used, or NULL: the producer
    # itself keeps the data alive and the caller holds the producer.
    PyObject* keep
    int64_t scratch[128]        # 2 * MAX_NDIM: room for shape and strides read from Python


# Check what a foreign producer claims: rank, extents, overflow, alignment, a pointer.
cdef int check_source(Source* source) except -1
# Its two parts. The layout, after the checks of rank, extents and overflow: cheap for a
# shape and strides that passed before.
cdef Layout checked_layout(const Source* source)
# The device, and the pointer if there are items.
cdef int check_place(const Source* source, bint has_items) except -1
# Read Python's shape and strides (bytes, or None) into `scratch`.
cdef int read_shape(Source* source, object shape, object strides) except -1
