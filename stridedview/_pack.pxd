# Arguments into parameter words: the C face. See _pack.pyx.

from cpython.object cimport PyObject, PyTypeObject
from libc.stdint cimport int32_t, int64_t, intptr_t, uint8_t, uint16_t, uint32_t, uint64_t

from stridedview._source cimport Source


cdef enum:
    # Where a word has what; see word_of_array.
    WORD_DTYPE = 8
    WORD_NDIM = 24
    WORD_LETTER = 32
    WORD_READONLY = 34
    WORD_FAMILY = 36
    WORD_DEVICE_TYPE = 44
    WORD_DEVICE = 48

    LETTER_C = 0
    LETTER_F = 1
    LETTER_A = 2

    WAITS = 16                  # distinct streams that one launch can wait for
    WORDS_KEPT = 1024           # flattened arguments of a launch that can be planned
    MISMATCH = 1


cdef enum:
    # How the fast call reads a slot without a signature word; see `prepare_slot`.
    FAST_NONE = 0
    FAST_TORCH = 1              # a plain torch tensor, through the C ABI
    FAST_VIEW = 2               # a StridedView
    FAST_INT64 = 3
    FAST_FLOAT64 = 4


cdef struct Slot:
    PyTypeObject* type          # as last seen; the plan holds a reference
    uint64_t word
    uint32_t offset             # in the parameter buffer, bytes
    uint16_t kind               # an array route of _ingest, or a KIND
    uint8_t setter
    uint8_t fast
    int32_t following           # slots of a tuple's items, nested ones included
    # The parts of an array's word, apart.
    int32_t ndim
    int32_t itemsize
    int32_t device_id
    int32_t scalar_type         # torch's number of the dtype
    uint32_t misaligned         # address bits that must be 0
    uint16_t dtype
    uint8_t letter
    uint8_t family
    uint8_t device_type
    bint is_readonly


cdef struct Call:
    # What one launch learns while its arguments are packed.
    int wait_count
    intptr_t waits[16]          # streams that single arrays name
    PyObject* keep              # list of what must live until the launch is queued, or NULL


cdef struct Words:
    int count
    int device                  # of the arrays, or -1
    int device_argument         # index of the argument that named it
    bint planned                # False once an argument is none that a plan can take
    int wait_count              # distinct streams that single arrays name
    intptr_t waits[16]
    uint64_t word[1024]


# Write one argument at its slot. Returns 0, MISMATCH if it is of another signature, or -1.
cdef int pack_argument(Slot* slot, PyObject* argument, char* buffer, Call* call) except -1
# Append the signature words of one argument.
cdef int append_words(PyObject* argument, int index, Words* words) except -1
cdef int kind_of(PyTypeObject* type_, PyObject* sample) except -1
# Take a slot's word apart and choose its fast reading, once its type and kind are set.
cdef int prepare_slot(Slot* slot) except -1
# The fast readings: True if the argument was written, False to go the general way, which
# also is the one that raises.
cdef bint pack_torch(const Slot* slot, PyObject* tensor, uint64_t* words) noexcept
cdef bint pack_view(const Slot* slot, PyObject* view, uint64_t* words, Call* call) noexcept
# Whether an argument, or an item of a tuple, is read through a protocol of Python's.
cdef bint takes_python(PyObject* argument) except -1
