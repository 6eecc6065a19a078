# cython: freethreading_compatible=True
"""The memo of the layout algebra: what an operation on a layout gave the last time.

Owns one bounded table: (a layout, an operation, a few raw integers) -> a layout. It knows
of an operation only its number, and never decides whether one is allowed: an entry is
made after the operation has been done, checked and interned.
"""

from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF, Py_XDECREF
from libc.stdint cimport int64_t, uint64_t, uintptr_t

cimport cython


cdef enum:
    ENTRIES_BITS = 9            # 512 entries of 64 bytes

# One place for each key, the newest stays: a layout is compared by identity, as interned
# layouts may be. An entry owns both layouts, so that no other can come to stand at the
# address it is known by; thus the table keeps at most two layouts an entry alive.
cdef struct Entry:
    PyObject* source            # NULL: nothing here yet
    PyObject* result
    int64_t operation
    int64_t operands[OPERANDS]
    int64_t unused              # to 64 bytes: an entry is one cache line

cdef Entry _entries[1 << ENTRIES_BITS]

# As in _intern: with the GIL the critical sections are nothing, and enough because no
# Python code can run inside; without it they are a lock.
cdef object _guard = object()


cdef inline Entry* _place(
        PyObject* source, int64_t operation, const int64_t* operands) noexcept nogil:
    cdef uint64_t h = (<uintptr_t>source >> 4) + <uint64_t>operation
    h = (h ^ <uint64_t>operands[0]) * <uint64_t>0x9E3779B97F4A7C15
    h = (h ^ <uint64_t>operands[1]) * <uint64_t>0xC2B2AE3D27D4EB4F
    h ^= <uint64_t>operands[2] * <uint64_t>0x165667B19E3779F9
    h ^= <uint64_t>operands[3] * <uint64_t>0x27D4EB2F165667C5
    return &_entries[h >> (64 - ENTRIES_BITS)]


cdef inline bint _is(
        const Entry* entry, PyObject* source, int64_t operation,
        const int64_t* operands) noexcept nogil:
    return (
        entry.source == source and entry.operation == operation
        and entry.operands[0] == operands[0] and entry.operands[1] == operands[1]
        and entry.operands[2] == operands[2] and entry.operands[3] == operands[3])


cdef Interned recall(Interned source, int64_t operation, const int64_t* operands):
    cdef Entry* entry = _place(<PyObject*>source, operation, operands)
    cdef Interned found = None
    with cython.critical_section(_guard):
        if _is(entry, <PyObject*>source, operation, operands):
            # Sound: only `remember` fills the table.
            found = <Interned>entry.result
    return found


cdef int remember(
        Interned source, int64_t operation, const int64_t* operands,
        Interned result) except -1:
    cdef Entry* entry = _place(<PyObject*>source, operation, operands)
    cdef PyObject* old_source
    cdef PyObject* old_result
    cdef int i
    Py_INCREF(source)
    Py_INCREF(result)
    with cython.critical_section(_guard):
        old_source, old_result = entry.source, entry.result
        entry.source, entry.result = <PyObject*>source, <PyObject*>result
        entry.operation = operation
        for i in range(OPERANDS):
            entry.operands[i] = operands[i]
    # Outside: whoever holds a weak reference to the last of one may run Python code now.
    Py_XDECREF(old_source)
    Py_XDECREF(old_result)
    return 0
