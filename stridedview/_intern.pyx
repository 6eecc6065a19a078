# cython: freethreading_compatible=True
"""The table that makes equal layouts one object.

Owns identity: a strong cache of what was used last and weak references to all
that lives. It knows of a layout only its key: ndim, itemsize, and the words of
shape and strides.
"""

from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF, Py_XDECREF
from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport calloc, free

cimport cython

cdef extern from "Python.h":
    PyObject* PyWeakref_NewRef(PyObject* target, PyObject* callback)

cdef extern from *:
    """
    /* A new reference to a weak reference's target, or NULL if that is gone. Before 3.13
       the borrowed target is safe to take because the GIL is held throughout, and the
       macro already answers None for a target whose count has reached zero. */
    static PyObject* sv_weakref_target(PyObject* reference) {
    #if PY_VERSION_HEX >= 0x030D0000
        PyObject* target = NULL;
        if (PyWeakref_GetRef(reference, &target) < 0) PyErr_Clear();
        return target;
    #else
        PyObject* target = PyWeakref_GET_OBJECT(reference);
        if (target == Py_None) return NULL;
        Py_INCREF(target);
        return target;
    #endif
    }
    """
    PyObject* weakref_target "sv_weakref_target"(PyObject* reference) noexcept


# Two parts. `recent` holds strong references to the layouts used last, in sets of four:
# it answers a hit and bounds what stays alive for nothing. `known` is an open-addressing
# table of weak references to every living layout: it keeps identity unique. A weak
# reference whose layout died stays until the table is rebuilt, at the latest when as
# many slots are filled as are free, so memory follows the number of living layouts.
#
# Both are touched only within a critical section on `_guard`. With the GIL that is
# nothing, and it is enough because no Python code can run inside: no object is made
# there, and every reference that is dropped is dropped after it. Without the GIL it is
# a lock. Making a layout happens outside; another thread's equal one, put in meanwhile,
# is looked for again before ours goes in.

cdef class Interned:
    """Base of Layout; see _intern.pxd."""


cdef enum:
    SETS = 512
    WAYS = 4
    FIRST_CAPACITY = 4096

cdef uint64_t _recent_hash[SETS * WAYS]
cdef PyObject* _recent[SETS * WAYS]         # each NULL or an owned reference to a Layout
cdef unsigned char _next_way[SETS]

cdef uint64_t* _known_hash = NULL
cdef PyObject** _known = NULL               # each NULL or an owned reference to a weakref
cdef uint64_t _capacity = 0                 # a power of two
cdef uint64_t _filled = 0
cdef object _guard = object()


cdef inline uint64_t _mix(uint64_t a, uint64_t b) noexcept nogil:
    a = (a ^ b) * <uint64_t>0x9E3779B97F4A7C15
    return a ^ (a >> 32)


cdef inline uint64_t _hash_key(int ndim, const int64_t* key, int64_t itemsize) noexcept nogil:
    # Shape and strides run through two chains, which a processor works on side by side.
    cdef uint64_t a = <uint64_t>itemsize, b = <uint64_t>ndim
    cdef int i
    for i in range(ndim):
        a = _mix(a, <uint64_t>key[i])
        b = _mix(b, <uint64_t>key[ndim + i])
    return _mix(a, b * <uint64_t>0xC2B2AE3D27D4EB4F)


cdef inline bint _is(
        Interned layout, int ndim, const int64_t* key, int64_t itemsize) noexcept:
    # A loop, as the few words of a usual key cost less than calling memcmp.
    cdef const int64_t* own = &layout.words[KEY_AT]
    cdef int i
    if layout.ndim != ndim or layout.itemsize != itemsize:
        return False
    for i in range(2 * ndim):
        if own[i] != key[i]:
            return False
    return True


cdef inline PyObject* _find_recent(
        uint64_t h, int ndim, const int64_t* key, int64_t itemsize) noexcept:
    # Return a borrowed reference, valid within the critical section. The cast is sound:
    # only `_remember` fills `_recent`, with Layouts.
    cdef int i, first = <int>(h >> 55) * WAYS
    for i in range(first, first + WAYS):
        if _recent_hash[i] == h and _recent[i] != NULL \
                and _is(<Interned>_recent[i], ndim, key, itemsize):
            return _recent[i]
    return NULL


cdef PyObject* _remember(uint64_t h, PyObject* layout) noexcept:
    # Put the layout among the recent ones; return the one it replaces, for the caller to
    # release after the critical section.
    cdef int which = <int>(h >> 55)
    cdef int i = which * WAYS + _next_way[which]
    cdef PyObject* replaced = _recent[i]
    _next_way[which] = (_next_way[which] + 1) % WAYS
    Py_INCREF(<object>layout)
    _recent[i] = layout
    _recent_hash[i] = h
    return replaced


cdef Interned _find_known(
        uint64_t h, int ndim, const int64_t* key, int64_t itemsize, list dropped):
    # `dropped` keeps what was looked at and is not wanted, to be released by the caller.
    cdef uint64_t i
    cdef PyObject* target
    if _capacity == 0:
        return None
    i = h & (_capacity - 1)
    while _known[i] != NULL:
        if _known_hash[i] == h:
            target = weakref_target(_known[i])
            if target != NULL:
                # Sound: `_put_known` made the weak reference of a Layout.
                layout = <Interned>target
                Py_DECREF(layout)       # `layout` holds one of its own now
                if _is(<Interned>layout, ndim, key, itemsize):
                    return <Interned>layout
                dropped.append(layout)
        i = (i + 1) & (_capacity - 1)
    return None


cdef void _place(
        uint64_t* hashes, PyObject** references, uint64_t capacity,
        uint64_t h, PyObject* reference) noexcept:
    cdef uint64_t i = h & (capacity - 1)
    while references[i] != NULL:
        i = (i + 1) & (capacity - 1)
    references[i] = reference
    hashes[i] = h


cdef int _rebuild(list dropped) except -1:
    # Keep the references whose layout lives, in a table at least four times their number.
    global _known, _known_hash, _capacity, _filled
    cdef uint64_t i, capacity = FIRST_CAPACITY, living = 0
    cdef PyObject* target
    cdef PyObject** references
    cdef uint64_t* hashes
    for i in range(_capacity):
        if _known[i] == NULL:
            continue
        target = weakref_target(_known[i])
        if target == NULL:
            # A dead weak reference without a callback: freeing it runs no Python code.
            Py_DECREF(<object>_known[i])
            _known[i] = NULL
        else:
            dropped.append(<object>target)
            Py_DECREF(<object>target)
            living += 1
    while capacity < 4 * (living + 1):
        capacity *= 2
    references = <PyObject**>calloc(capacity, sizeof(PyObject*))
    hashes = <uint64_t*>calloc(capacity, sizeof(uint64_t))
    if references == NULL or hashes == NULL:
        free(references)
        free(hashes)
        raise MemoryError("no memory for the table of layouts")
    for i in range(_capacity):
        if _known[i] != NULL:
            _place(hashes, references, capacity, _known_hash[i], _known[i])
    free(_known)
    free(_known_hash)
    _known, _known_hash, _capacity, _filled = references, hashes, capacity, living
    return 0


cdef Interned enter(Interned made):
    # Put a new layout in, or return the equal one that another thread put in meanwhile.
    global _filled
    cdef list dropped = []
    cdef PyObject* replaced = NULL
    cdef PyObject* reference = PyWeakref_NewRef(<PyObject*>made, NULL)
    cdef Interned found
    cdef int64_t* key = &made.words[KEY_AT]
    if reference == NULL:
        raise MemoryError("no memory for a layout")
    with cython.critical_section(_guard):
        found = _find_known(made.hash, made.ndim, key, made.itemsize, dropped)
        if found is None:
            found = made
            if 2 * (_filled + 1) > _capacity:
                _rebuild(dropped)
            _place(_known_hash, _known, _capacity, made.hash, reference)
            _filled += 1
            reference = NULL
        replaced = _remember(made.hash, <PyObject*>found)
    Py_XDECREF(reference)
    Py_XDECREF(replaced)
    return found


cdef Interned find(int ndim, const int64_t* key, int64_t itemsize, uint64_t* h):
    """Return the living layout of a key, or None; write the key's hash."""
    cdef Interned found = None
    cdef PyObject* hit
    h[0] = _hash_key(ndim, key, itemsize)
    with cython.critical_section(_guard):
        hit = _find_recent(h[0], ndim, key, itemsize)
        if hit != NULL:
            found = <Interned>hit
    return found if hit != NULL else _find_again(h[0], ndim, key, itemsize)


cdef Interned _find_again(uint64_t h, int ndim, const int64_t* key, int64_t itemsize):
    cdef list dropped = []
    cdef PyObject* replaced = NULL
    cdef Interned found
    with cython.critical_section(_guard):
        found = _find_known(h, ndim, key, itemsize, dropped)
        if found is not None:
            replaced = _remember(h, <PyObject*>found)
    Py_XDECREF(replaced)
    return found


def counts():
    """Return (filled slots, capacity) of the table of weak references."""
    return _filled, _capacity
