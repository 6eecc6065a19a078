"""Scalars into parameter bytes.

Owns the setters: how a Python or NumPy number is written as the kernel's formal type, and
which values are refused. What fits is written as numba-cuda writes it; what does not fit
is an error here, where numba-cuda cuts an integer off and makes a float infinite.
"""

from libc.math cimport fabs, isfinite
from libc.stdint cimport (
    int16_t, int32_t, int64_t, int8_t, uint16_t, uint32_t, uint64_t, uint8_t,
)

import enum

import numpy as np

cdef extern from "Python.h":
    long long PyLong_AsLongLongAndOverflow(object, int*) except? -1
    unsigned long long PyLong_AsUnsignedLongLong(object) except? 18446744073709551615
    double PyComplex_RealAsDouble(object) except? -1.0
    double PyComplex_ImagAsDouble(object) except? -1.0

# The least that rounds to infinity as float16: half a step above its largest, 65504.
cdef double HALF_BEYOND = 65520.0


cdef int store_other(int setter, int kind, object value, char* destination) except -1:
    if kind == KIND_BOOL:
        return store_int(setter, value is True, destination)
    if kind == KIND_COMPLEX:
        return _store_complex(setter, value, destination)
    if kind == KIND_ENUM:
        return _store_python(setter, value.value, destination)
    return _store_python(setter, _python_value(value), destination)


cdef object _python_value(object scalar):
    # A NumPy scalar as the Python number of its kind; times as their int64.
    if scalar.dtype.kind in "mM":
        return int(scalar.view(np.int64))
    return scalar.item()


cdef int _store_python(int setter, object value, char* destination) except -1:
    cdef int overflow = 0
    cdef long long integer
    if isinstance(value, np.generic):
        value = _python_value(value)
    if isinstance(value, int):
        integer = PyLong_AsLongLongAndOverflow(value, &overflow)
        if overflow:
            return store_uint64(setter, value, destination)
        return store_int(setter, integer, destination)
    if isinstance(value, float):
        return store_float(setter, value, destination)
    if isinstance(value, complex):
        return _store_complex(setter, value, destination)
    raise TypeError(f"a {type(value).__qualname__} cannot be packed as a scalar")


# Whether integers must be of their formal type's signedness.
cdef bint _is_strict = False


def set_strict(bint value):
    """Set whether a narrow integer of the other signedness is refused; see ``enable``.

    Otherwise it is passed by its bits, as arrays are: 0xffffffff for int32.
    """
    global _is_strict
    _is_strict = value


cdef int _does_not_fit(object value, str name) except -1:
    raise OverflowError(f"{value} does not fit the kernel's formal type {name}")


cdef int store_int(int setter, long long value, char* destination) except -1:
    if setter == SET_INT64:
        (<int64_t*>destination)[0] = value
    elif setter == SET_INT32:
        if value != <int32_t>value and (
                _is_strict or value != <uint32_t>value):
            return _does_not_fit(value, "int32")
        (<int32_t*>destination)[0] = <int32_t>value
    elif setter == SET_FLOAT64:
        (<double*>destination)[0] = <double>value
    elif setter == SET_FLOAT32:
        (<float*>destination)[0] = <float>value
    elif setter == SET_BOOL:
        destination[0] = value != 0
    else:
        return _store_narrow(setter, value, destination)
    return 0


cdef int _store_narrow(int setter, long long value, char* destination) except -1:
    if setter == SET_UINT64 or setter == SET_POINTER:
        if value < 0:
            return _does_not_fit(value, "uint64" if setter == SET_UINT64 else "pointer")
        (<uint64_t*>destination)[0] = <uint64_t>value
    elif setter == SET_UINT32:
        if value != <uint32_t>value and (
                _is_strict or value != <int32_t>value):
            return _does_not_fit(value, "uint32")
        (<uint32_t*>destination)[0] = <uint32_t>value
    elif setter == SET_INT16:
        if value != <int16_t>value and (
                _is_strict or value != <uint16_t>value):
            return _does_not_fit(value, "int16")
        (<int16_t*>destination)[0] = <int16_t>value
    elif setter == SET_UINT16:
        if value != <uint16_t>value and (
                _is_strict or value != <int16_t>value):
            return _does_not_fit(value, "uint16")
        (<uint16_t*>destination)[0] = <uint16_t>value
    elif setter == SET_INT8:
        if value != <int8_t>value and (
                _is_strict or value != <uint8_t>value):
            return _does_not_fit(value, "int8")
        (<int8_t*>destination)[0] = <int8_t>value
    elif setter == SET_UINT8:
        if value != <uint8_t>value and (
                _is_strict or value != <int8_t>value):
            return _does_not_fit(value, "uint8")
        (<uint8_t*>destination)[0] = <uint8_t>value
    elif setter == SET_TIME:
        (<int64_t*>destination)[0] = value
    elif setter == SET_FLOAT16:
        return _store_half(<double>value, destination)
    else:
        return _store_complex(setter, <double>value, destination)
    return 0


cdef int store_uint64(int setter, object value, char* destination) except -1:
    cdef unsigned long long integer
    if value < 0 or value >= 1 << 64:
        raise OverflowError(
            f"{value} does not fit 64 bits; a kernel takes integers from -2**63 to 2**64 - 1")
    integer = PyLong_AsUnsignedLongLong(value)
    if setter == SET_UINT64 or setter == SET_POINTER:
        (<uint64_t*>destination)[0] = integer
    elif setter == SET_FLOAT64 or setter == SET_FLOAT32 or setter == SET_FLOAT16:
        return store_float(setter, <double>integer, destination)
    elif setter == SET_BOOL:
        destination[0] = 1
    elif setter == SET_COMPLEX64 or setter == SET_COMPLEX128:
        return _store_complex(setter, <double>integer, destination)
    else:
        return _does_not_fit(value, _setter_name(setter))
    return 0


cdef int store_float(int setter, double value, char* destination) except -1:
    if setter == SET_FLOAT64:
        (<double*>destination)[0] = value
    elif setter == SET_FLOAT32:
        if _overflows(value):
            return _does_not_fit(value, "float32")
        (<float*>destination)[0] = <float>value
    elif setter == SET_FLOAT16:
        return _store_half(value, destination)
    elif setter == SET_BOOL:
        destination[0] = value != 0.0
    elif setter == SET_COMPLEX64 or setter == SET_COMPLEX128:
        return _store_complex(setter, value, destination)
    else:
        raise TypeError(
            f"a float cannot be passed as the kernel's formal type {_setter_name(setter)}; "
            "pass int(x)")
    return 0


cdef inline bint _overflows(double value) noexcept:
    """Whether a finite value is infinite as float32."""
    return not isfinite(<float>value) and isfinite(value)


cdef int _store_half(double value, char* destination) except -1:
    if fabs(value) >= HALF_BEYOND and isfinite(value):
        return _does_not_fit(value, "float16")
    # NumPy rounds to nearest even, as Numba packs it.
    (<uint16_t*>destination)[0] = <uint16_t>int(np.float16(value).view(np.uint16))
    return 0


cdef int _store_complex(int setter, object value, char* destination) except -1:
    cdef double real = PyComplex_RealAsDouble(value)
    cdef double imag = PyComplex_ImagAsDouble(value)
    if setter == SET_COMPLEX128:
        (<double*>destination)[0] = real
        (<double*>destination)[1] = imag
    elif setter == SET_COMPLEX64:
        if _overflows(real) or _overflows(imag):
            return _does_not_fit(value, "complex64")
        (<float*>destination)[0] = <float>real
        (<float*>destination)[1] = <float>imag
    elif setter == SET_BOOL:
        destination[0] = real != 0.0 or imag != 0.0
    else:
        raise TypeError(
            f"a complex number cannot be passed as the kernel's formal type "
            f"{_setter_name(setter)}; pass x.real")
    return 0


cdef str _setter_name(int setter):
    return {
        SET_BOOL: "boolean", SET_INT8: "int8", SET_INT16: "int16", SET_INT32: "int32",
        SET_INT64: "int64", SET_UINT8: "uint8", SET_UINT16: "uint16", SET_UINT32: "uint32",
        SET_UINT64: "uint64", SET_FLOAT16: "float16", SET_FLOAT32: "float32",
        SET_FLOAT64: "float64", SET_COMPLEX64: "complex64", SET_COMPLEX128: "complex128",
        SET_POINTER: "pointer", SET_TIME: "datetime64 or timedelta64",
    }.get(setter, "array")


SETTERS = {
    "array": SET_ARRAY, "F array": SET_F_ARRAY, "tuple": SET_TUPLE, "boolean": SET_BOOL,
    "int8": SET_INT8, "int16": SET_INT16, "int32": SET_INT32, "int64": SET_INT64,
    "uint8": SET_UINT8, "uint16": SET_UINT16, "uint32": SET_UINT32, "uint64": SET_UINT64,
    "float16": SET_FLOAT16, "float32": SET_FLOAT32, "float64": SET_FLOAT64,
    "complex64": SET_COMPLEX64, "complex128": SET_COMPLEX128, "pointer": SET_POINTER,
    "time": SET_TIME,
}

# What a setter writes, as a NumPy dtype, where that has another name.
cdef dict _HELD = {"boolean": "bool", "pointer": "uint64", "time": "int64"}


def fitted(str setter, object value):
    """Return a number as a formal type holds it: a Python number, a time as numpy.int64.

    Parameters
    ----------
    setter : str
        A scalar's, among ``SETTERS``.
    value : object
        A number, NumPy scalar or enum member.

    Raises
    ------
    OverflowError, TypeError
        If the value does not fit, as for a plan that packs it.
    """
    cdef char written[16]
    if isinstance(value, enum.Enum):
        value = value.value
    _store_python(SETTERS[setter], value, written)
    held = np.frombuffer(written[:16], _HELD.get(setter, setter), 1)[0]
    return held if setter == "time" else held.item()
