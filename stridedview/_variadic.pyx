"""The methods of StridedView that take axes or extents one by one.

Owns ``transpose``, ``permute`` and ``reshape``, in Python's own fast calling form: a
``def`` with ``*args`` would have a tuple made for each call, which costs as much as the
operation itself. It adds them to the class when it is imported.
"""

from cpython.long cimport PyLong_AsLongLong, PyLong_CheckExact
from cpython.object cimport PyObject, PyTypeObject
from libc.stdint cimport int64_t

from stridedview._geometry cimport MAX_NDIM
from stridedview._layout cimport (
    permute_layout, permute_to, reshape_layout, reshape_to, reverse_layout,
)
from stridedview._view cimport StridedView, derive

from stridedview._view import add_members

cdef extern from "Python.h":
    ctypedef struct PyMethodDef:
        const char* ml_name
        void* ml_meth
        int ml_flags
        const char* ml_doc
    int METH_FASTCALL
    int METH_KEYWORDS
    object PyDescr_NewMethod(PyTypeObject* cls, PyMethodDef* method)

# Python reads the first line as the signature. All of this must live as long as the class.
cdef const char* TRANSPOSE = b"""transpose($self, /, *axes)
--

Reorder the axes, given one by one, as a sequence, or as ``axes=``; without any, reverse
them.

Returns
-------
StridedView
    Of the same memory: nothing is copied.

Raises
------
ValueError
    If the axes are not a permutation.
"""
cdef const char* PERMUTE = b"""permute($self, /, *axes)
--

Reorder the axes, as torch spells it.
"""
cdef const char* RESHAPE = b"""reshape($self, /, *shape, order='C')
--

Give the items another shape, one extent may be -1; never copies.

Raises
------
ValueError
    If the sizes differ, or the items would have to be copied.
"""
cdef PyMethodDef _methods[3]


# Each function is called with the arguments in an array that it borrows; `keywords` is
# NULL or a tuple of the names of those after the first `count`. Python has checked the
# type of `self`. What Cython makes of a `cdef object` function is the C form asked for:
# a new reference, or NULL with the error set.

cdef bint _read(PyObject** args, Py_ssize_t count, int64_t* numbers) except -1:
    # Whether all the arguments are plain ints, few enough; written if so.
    cdef Py_ssize_t i
    if count > MAX_NDIM:
        return False
    for i in range(count):
        if not PyLong_CheckExact(<object>args[i]):
            return False
        numbers[i] = PyLong_AsLongLong(<object>args[i])
    return True


cdef object _sequence(PyObject** args, Py_ssize_t count):
    # One argument may be a sequence itself.
    cdef Py_ssize_t i
    if count == 1:
        return <object>args[0]
    return tuple([<object>args[i] for i in range(count)])


cdef int _no_keywords(str name, PyObject* keywords) except -1:
    if keywords != NULL and len(<tuple>keywords):
        raise TypeError(f"{name}() takes no keyword arguments")
    return 0


cdef str _order(PyObject** args, Py_ssize_t count, PyObject* keywords):
    # The one keyword of reshape.
    cdef tuple names
    if keywords == NULL:
        return "C"
    names = <tuple>keywords
    for name in names:
        if name != "order":
            raise TypeError(f"reshape() got an unexpected keyword argument {name!r}")
    order = <object>args[count] if names else "C"
    if type(order) is not str:
        raise TypeError(f"order must be 'C', 'F' or 'A', got {order!r}")
    return <str>order


cdef object _axes(PyObject** args, Py_ssize_t count, PyObject* keywords):
    # The one keyword of transpose, which Numba's method has; then nothing else is given.
    if <tuple>keywords != ("axes",):
        raise TypeError(
            "transpose() got an unexpected keyword argument: only axes= is one, got "
            f"{', '.join(<tuple>keywords)}")
    if count:
        raise TypeError("transpose() takes the axes one by one or as axes=, not both")
    return <object>args[0]


cdef object _transpose(
        PyObject* self, PyObject** args, Py_ssize_t count, PyObject* keywords):
    cdef StridedView view = <StridedView>self
    cdef int64_t numbers[MAX_NDIM]
    if keywords != NULL and len(<tuple>keywords):
        return derive(view, permute_layout(view.layout, _axes(args, count, keywords)), 0)
    if count == 0:
        return derive(view, reverse_layout(view.layout), 0)
    if _read(args, count, numbers):
        return derive(view, permute_to(view.layout, <int>count, numbers), 0)
    return derive(view, permute_layout(view.layout, _sequence(args, count)), 0)


cdef object _permute(
        PyObject* self, PyObject** args, Py_ssize_t count, PyObject* keywords):
    cdef StridedView view = <StridedView>self
    cdef int64_t numbers[MAX_NDIM]
    _no_keywords("permute", keywords)
    if _read(args, count, numbers):
        return derive(view, permute_to(view.layout, <int>count, numbers), 0)
    return derive(view, permute_layout(view.layout, _sequence(args, count)), 0)


cdef object _reshape(
        PyObject* self, PyObject** args, Py_ssize_t count, PyObject* keywords):
    cdef StridedView view = <StridedView>self
    cdef int64_t numbers[MAX_NDIM]
    cdef str order = _order(args, count, keywords)
    if _read(args, count, numbers):
        return derive(view, reshape_to(view.layout, <int>count, numbers, order), 0)
    return derive(view, reshape_layout(view.layout, _sequence(args, count), order), 0)


cdef object _method(int index, const char* name, void* function, const char* text):
    cdef PyMethodDef* method = &_methods[index]
    method.ml_name, method.ml_meth, method.ml_doc = name, function, text
    method.ml_flags = METH_FASTCALL | METH_KEYWORDS
    return PyDescr_NewMethod(<PyTypeObject*>StridedView, method)


add_members({
    "transpose": _method(0, b"transpose", <void*>_transpose, TRANSPOSE),
    "permute": _method(1, b"permute", <void*>_permute, PERMUTE),
    "reshape": _method(2, b"reshape", <void*>_reshape, RESHAPE),
})
