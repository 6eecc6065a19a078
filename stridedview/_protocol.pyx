"""The protocols that are Python attributes: array interfaces and DLPack's methods.

Owns reading the dicts of ``__cuda_array_interface__`` and ``__array_interface__`` and
calling ``__dlpack__``. What comes from there is foreign and may be anything: each value is
checked before it is used, and what is wrong is named.
Sources: https://numba.readthedocs.io/en/stable/cuda/cuda_array_interface.html,
https://numpy.org/doc/stable/reference/arrays.interface.html,
https://dmlc.github.io/dlpack/latest/python_spec.html
"""

from libc.stdint cimport intptr_t, uintptr_t

from stridedview._dlpack cimport (
    DLPACK_MAJOR, DLPACK_MINOR, kDLCPU, kDLCUDA, kDLCUDAManaged,
)
from stridedview._driver cimport (
    CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, CUDA_ERROR_NOT_INITIALIZED, CUDA_SUCCESS, driver,
    require_driver,
)
from stridedview._dtype cimport dtype_from_numpy
from stridedview._exchange cimport capsule_import
from stridedview._source cimport Source, check_source, read_shape
from stridedview._view cimport NO_STREAM

import operator
import sys

import numpy as np

cdef enum:
    TYPESTRS_KEPT = 4096
    # What DLPack means by a consumer's stream.
    LEGACY_STREAM = 1
    UNORDERED = -1

cdef dict _typestr_ids = {}     # typestr -> id


cdef int dtype_id_of(object dtype) except -1:
    if not isinstance(dtype, str):
        return dtype_from_numpy(dtype)
    found = _typestr_ids.get(dtype)
    if found is not None:
        return found
    cdef int id = dtype_from_numpy(np.dtype(dtype))
    if len(_typestr_ids) < TYPESTRS_KEPT:
        _typestr_ids[dtype] = id
    return id


cdef str not_an_array(object producer):
    kind = type(producer)
    name = f"{kind.__module__}.{kind.__qualname__} is not an array"
    if isinstance(producer, np.generic):
        return f"{name} but one number; pass numpy.asarray(x)"
    if isinstance(producer, (bytes, bytearray, memoryview)) or kind.__module__ == "array":
        return f"{name}, only a buffer; pass numpy.frombuffer(x, dtype)"
    if isinstance(producer, (list, tuple)) or hasattr(kind, "__array__"):
        return f"{name}; pass numpy.asarray(x)"
    return (
        f"{name}: it has none of __dlpack__, __cuda_array_interface__ and "
        "__array_interface__")


# ---- array interfaces ----------------------------------------------------------------


cdef dict _interface(object producer, str name):
    interface = getattr(producer, name)
    if not isinstance(interface, dict):
        raise TypeError(f"its {name} is a {type(interface).__name__}, not a dict")
    for key in ("shape", "typestr", "data"):
        if key not in interface:
            raise TypeError(f"its {name} has no {key!r}")
    if interface.get("mask") is not None:
        raise TypeError("masked arrays are not supported; pass the data and the mask apart")
    _integer(interface.get("version", 3), "version")
    return interface


cdef object _integer(object value, str what):
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"its {what} must be an integer, got {value!r}") from None


cdef int _read_interface(dict interface, Source* source) except -1:
    # The keys that both interfaces have, except what tells the dtype.
    read_shape(source, interface["shape"], interface.get("strides"))
    data = interface["data"]
    if not isinstance(data, (tuple, list)) or len(data) != 2:
        raise TypeError(f"its data must be (pointer, read-only), got {data!r}")
    source.data = <void*>_address(data[0])
    source.is_readonly = bool(data[1])
    return 0


cdef uintptr_t _address(object pointer) except? 0:
    if pointer is None:
        return 0
    address = _integer(pointer, "pointer")
    if not 0 <= address <= 2 * sys.maxsize + 1:
        raise BufferError(f"its pointer {address:#x} is no address")
    return address


cdef object _interface_dtype(dict interface):
    typestr = interface["typestr"]
    descr = interface.get("descr")
    if not isinstance(typestr, str) or len(typestr) < 2:
        raise TypeError(f"its typestr is {typestr!r}; it must be one like '<f4'")
    if typestr[1] != "V" or not descr:
        return typestr
    # Padding is written as fields without a name: reading it back makes it padding again.
    try:
        dtype = np.lib.format.descr_to_dtype(descr)
    except (IndexError, KeyError, TypeError, ValueError) as error:
        raise TypeError(f"its descr {descr!r} describes no dtype: {error}") from error
    if not dtype.names:
        return typestr
    if dtype.itemsize == np.dtype(typestr).itemsize:
        return dtype
    raise TypeError(
        f"its descr has items of {dtype.itemsize} bytes, its typestr {typestr!r} of "
        f"{np.dtype(typestr).itemsize}")


# ---- CUDA array interface ------------------------------------------------------------


cdef int cuda_interface_source(object producer, Source* source) except -1:
    try:
        interface = _interface(producer, "__cuda_array_interface__")
    except AttributeError:
        return _from_other(producer, source)
    source.dtype = dtype_id_of(_interface_dtype(interface))
    _read_interface(interface, source)
    source.stream = _cai_stream(interface)
    source.device_type = kDLCUDA
    source.device_id = pointer_device(source.data)
    return check_source(source)


cdef int _from_other(object producer, Source* source) except -1:
    # This one object lacks the interface that others of its type have: it may be an array
    # on the host, or no array.
    if getattr(producer, "__dlpack__", None) is not None:
        return dlpack_source(producer, source)
    if getattr(producer, "__array_interface__", None) is not None:
        return host_interface_source(producer, source)
    raise TypeError(not_an_array(producer))


cdef intptr_t _cai_stream(dict interface) except? -1:
    stream = interface.get("stream")
    if stream is None or interface.get("version", 3) < 3:
        return NO_STREAM
    handle = _integer(stream, "stream")
    if handle == 0:
        raise ValueError(
            "stream 0 is ambiguous in __cuda_array_interface__ and not allowed; the "
            "producer must say 1 (legacy default) or 2 (per-thread default)")
    if not 0 < handle <= sys.maxsize:
        raise ValueError(f"stream {handle} in __cuda_array_interface__ is no handle")
    return handle


cdef int pointer_device(void* pointer) except -1:
    """Return the ordinal of the device that a pointer belongs to."""
    cdef int ordinal = 0
    cdef int result
    if pointer is NULL:
        return 0
    require_driver()
    result = driver.cuPointerGetAttribute(
        &ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, <uintptr_t>pointer)
    if result == CUDA_SUCCESS:
        return ordinal
    why = (
        "CUDA is not initialized in this process" if result == CUDA_ERROR_NOT_INITIALIZED
        else "it is host memory, or was freed")
    raise BufferError(
        f"its pointer {<uintptr_t>pointer:#x} is not known to the CUDA driver: {why}")


# ---- DLPack capsules and the host ----------------------------------------------------


cdef int dlpack_source(object producer, Source* source) except -1:
    cdef dict asked = {}
    # Producers on the host are asked without a stream.
    if _dlpack_device_type(producer) in (kDLCUDA, kDLCUDAManaged):
        asked["stream"] = _stream_to_ask_with()
    try:
        capsule = producer.__dlpack__(max_version=(DLPACK_MAJOR, DLPACK_MINOR), **asked)
    except TypeError:
        capsule = producer.__dlpack__(**asked)      # before DLPack 1.0
    capsule_import(capsule, source)
    if asked.get("stream") == LEGACY_STREAM:
        source.stream = LEGACY_STREAM
    return 0


cdef int _stream_to_ask_with() except? 0:
    # A producer that works in a capture would draw the legacy stream into it, and so spoil
    # it: then no order is asked for, and there is none to be had across its border.
    torch_cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if (
        torch_cuda is not None and torch_cuda.is_initialized()
        and torch_cuda.is_current_stream_capturing()
    ):
        return UNORDERED
    return LEGACY_STREAM


cdef int _dlpack_device_type(object producer) except -1:
    ask = getattr(producer, "__dlpack_device__", None)
    if ask is None:
        raise TypeError("it has __dlpack__ but not __dlpack_device__")
    device = ask()
    if not isinstance(device, tuple) or len(device) != 2:
        raise TypeError(f"its __dlpack_device__ gave {device!r}, not (type, id)")
    return abs(_integer(device[0], "device type"))


cdef int host_interface_source(object producer, Source* source) except -1:
    interface = _interface(producer, "__array_interface__")
    # NumPy's typestr says V2 for bfloat16; its dtype knows better.
    is_numpys = isinstance(producer, (np.ndarray, np.void))
    source.dtype = dtype_id_of(producer.dtype if is_numpys else _interface_dtype(interface))
    _read_interface(interface, source)
    source.device_type = kDLCPU
    source.device_id = 0
    return check_source(source)
