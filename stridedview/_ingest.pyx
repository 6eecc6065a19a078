"""The one table of producers: exact type -> importer, filled on first sight of a type.

Owns which route an object takes and the routes that read Python attributes; torch's and
the exchange API's are in their own modules. Every route ends in the same ``Source`` and
passes the same checks.
"""

from cpython.object cimport PyObject, PyTypeObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport int32_t, int64_t, intptr_t, uintptr_t

from stridedview._dlpack cimport (
    DLPackExchangeAPI, kDLCPU, kDLCUDA, kDLCUDAHost, kDLCUDAManaged,
)
from stridedview._driver cimport (
    CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, CUDA_SUCCESS, driver, require_driver,
)
from stridedview._dtype cimport dtype_facts, dtype_from_numpy
from stridedview._exchange cimport (
    capsule_import, exchange_family, exchange_import, find_exchange,
)
from stridedview._layout cimport intern_layout
from stridedview._source cimport Source, check_source, read_shape
from stridedview._torch cimport require_torch, torch_check_storage, torch_source
from stridedview._view cimport (
    FAMILY_CUPY, FAMILY_NONE, FAMILY_NUMBA, NO_STREAM, StridedView, make_view,
)

import sys

import numpy as np

import stridedview._export  # completes StridedView
from stridedview import _torch, _torch_gate

cdef extern from "Python.h":
    PyTypeObject* Py_TYPE(PyObject*)

# Types hold their place as long as they are here, so the table is bounded: past this
# many types (a program that makes classes in a loop) it starts anew.
cdef enum:
    TYPES_KEPT = 4096

cdef dict _routes = {}          # type -> route
cdef dict _reasons = {}         # type -> why it is refused, or how it is read
cdef dict _exchange_apis = {}   # type -> address of its exchange API
cdef dict _dtype_ids = {}       # producer's dtype object or typestr -> id


cdef int route_of(PyTypeObject* type_, PyObject* sample) except -1:
    found = _routes.get(<object>type_)
    if found is not None:
        return found
    return _classify(<object>type_, <object>sample)


cdef int _classify(object type_, object sample) except -1:
    if len(_routes) >= TYPES_KEPT:
        _routes.clear()
        _reasons.clear()
        _exchange_apis.clear()
    route, reason = _choose(type_, sample)
    # A torch that is imported later must be seen: what is no array now is asked again.
    if route != ROUTE_NONE or type_.__module__ == "builtins":
        _routes[type_] = route
        _reasons[type_] = reason
    return route


cdef tuple _choose(object type_, object sample):
    cdef DLPackExchangeAPI* api
    if type_ is StridedView:
        return ROUTE_VIEW, "own fields"
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "Tensor") and issubclass(type_, torch.Tensor):
        return _choose_torch(torch, type_)
    known = _choose_known(type_)
    if known is not None:
        return known
    api = find_exchange(type_)
    if api is not NULL:
        _exchange_apis[type_] = <uintptr_t>api
        return ROUTE_EXCHANGE, "exchange API"
    return _choose_protocol(type_, sample)


cdef tuple _choose_torch(object torch, object type_):
    require_torch()
    if issubclass(type_, torch.nn.parameter.UninitializedTensorMixin):
        return ROUTE_REFUSED, "uninitialized"
    if not _torch_gate.is_plain_type(type_):
        return ROUTE_REFUSED, "wrapper subclass"
    name, reason = _torch.route()
    return ROUTE_TORCH, name


cdef tuple _choose_known(object type_):
    module = type_.__module__.partition(".")[0]
    if issubclass(type_, np.ma.MaskedArray):
        return ROUTE_REFUSED, "masked"
    if module == "cuda":
        if type_.__name__ == "StridedMemoryView":
            api = find_exchange(type_)
            if api is not NULL:
                _exchange_apis[type_] = <uintptr_t>api
            return ROUTE_MEMORY_VIEW, "its fields"
        if any(base.__name__ == "Buffer" for base in type_.__mro__):
            return ROUTE_BUFFER, "its fields"
    if module == "cupy" and type_.__name__ == "ndarray":
        return ROUTE_CUPY, "its attributes"
    if getattr(type_, "__cuda_ndarray__", False):
        return ROUTE_NUMBA, "its attributes"
    if issubclass(type_, (np.ndarray, np.void)):
        return ROUTE_HOST, "array interface"
    return None


cdef tuple _choose_protocol(object type_, object sample):
    # A scalar of NumPy's has an array interface but is a number here.
    if issubclass(type_, np.generic):
        return ROUTE_NONE, ""
    if hasattr(type_, "__cuda_array_interface__") or _has(sample, "__cuda_array_interface__"):
        return ROUTE_CAI, "CUDA array interface"
    if hasattr(type_, "__dlpack__"):
        return ROUTE_DLPACK, "DLPack capsule"
    if hasattr(type_, "__array_interface__"):
        return ROUTE_HOST, "array interface"
    return ROUTE_NONE, ""


cdef bint _has(object sample, str name) except -1:
    # Some frameworks raise from the property for arrays on the host.
    try:
        return hasattr(sample, name)
    except (AttributeError, BufferError, RuntimeError, TypeError, ValueError):
        return False


cdef int import_source(int route, PyObject* producer, Source* source) except -1:
    source.keep = NULL
    if route == ROUTE_TORCH:
        return torch_source(producer, source)
    if route == ROUTE_VIEW:
        return _from_view(<StridedView>producer, source)
    source.stream = NO_STREAM
    source.is_readonly = False
    source.family = FAMILY_NONE
    return _import_foreign(route, <object>producer, source)


cdef int _import_foreign(int route, object producer, Source* source) except -1:
    if route == ROUTE_CUPY:
        return _from_cupy(producer, source)
    if route == ROUTE_NUMBA:
        return _from_numba(producer, source)
    if route == ROUTE_EXCHANGE:
        return _from_exchange(producer, source)
    if route == ROUTE_CAI:
        return _from_cai(producer, source)
    if route == ROUTE_DLPACK:
        return _from_dlpack(producer, source)
    if route == ROUTE_MEMORY_VIEW:
        return _from_memory_view(producer, source)
    if route == ROUTE_BUFFER:
        return _from_buffer(producer, source)
    if route == ROUTE_HOST:
        return _from_host(producer, source)
    _refuse(producer)
    raise TypeError(f"{type(producer).__qualname__} is not an array")


cdef int _refuse(object producer) except -1:
    if isinstance(producer, np.ma.MaskedArray):
        raise TypeError("masked arrays are not supported; pass x.filled() or x.data and x.mask")
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(producer, torch.Tensor):
        _torch_gate.check(producer)
    return 0


cdef int _from_view(StridedView view, Source* source) except -1:
    cdef int ndim = view.layout.ndim
    source.data = view.data
    source.ndim = ndim
    source.shape = view.layout.words + 5
    source.strides = view.layout.words + 5 + ndim
    source.unit = 1
    source.stream = view.stream_handle
    source.device_type = view.device_type
    source.device_id = view.device_id
    source.dtype = view.dtype_id
    source.family = view.family
    source.is_readonly = view.is_readonly
    return 0


cdef int _dtype_id(object dtype) except -1:
    # Keyed on the producer's dtype object: NumPy's hash by value, and dtypes are few.
    found = _dtype_ids.get(dtype)
    if found is not None:
        return found
    cdef int id = dtype_from_numpy(np.dtype(dtype))
    # Not a struct's: NumPy calls an aligned and an unaligned one of the same fields equal.
    if len(_dtype_ids) < TYPES_KEPT and getattr(dtype, "names", None) is None:
        _dtype_ids[dtype] = id
    return id


cdef int _from_cupy(object array, Source* source) except -1:
    data = array.data
    source.dtype = _dtype_id(array.dtype)
    read_shape(source, array.shape, array.strides)
    source.data = <void*><uintptr_t>data.ptr
    source.device_type = kDLCUDA
    source.device_id = data.device_id
    source.family = FAMILY_CUPY
    return _check_filled(source)


cdef int _check_filled(Source* source) except -1:
    # Zero-size arrays of these producers have pointer 0; the others are as foreign as any.
    return check_source(source)


cdef int _from_numba(object array, Source* source) except -1:
    pointer = array.device_ctypes_pointer.value
    stream = array.stream
    source.dtype = _dtype_id(array.dtype)
    read_shape(source, array.shape, array.strides)
    source.data = <void*><uintptr_t>(pointer or 0)
    source.device_type = kDLCUDA
    source.device_id = _numba_device(array)
    source.family = FAMILY_NUMBA
    if stream is not None and not isinstance(stream, int):
        source.stream = _stream_handle(stream)
    elif stream:
        source.stream = stream
    return check_source(source)


cdef int _numba_device(object array) except -1:
    memory = array.gpu_data
    return memory.context.device.id


cdef intptr_t _stream_handle(object stream) except? -1:
    handle = stream.handle
    # Numba's stream objects hold an int, or a driver object for the named default streams.
    handle = int(handle) if handle is not None else 0
    return <intptr_t>handle if handle else NO_STREAM


cdef int _from_exchange(object producer, Source* source) except -1:
    cdef DLPackExchangeAPI* api = <DLPackExchangeAPI*><uintptr_t>_exchange_apis[type(producer)]
    exchange_import(api, <PyObject*>producer, source)
    source.family = exchange_family(api)
    return 0


cdef int _from_memory_view(object view, Source* source) except -1:
    address = _exchange_apis.get(type(view))
    if address is not None:
        try:
            exchange_import(<DLPackExchangeAPI*><uintptr_t>address, <PyObject*>view, source)
        except (BufferError, TypeError):
            pass        # a structured dtype, which DLPack cannot say: read its fields
        else:
            return 0
    return _from_memory_view_fields(view, source)


cdef int _from_memory_view_fields(object view, Source* source) except -1:
    dtype = view.dtype
    strides = view.strides
    source.dtype = _dtype_id(dtype)
    read_shape(source, view.shape, strides)
    source.unit = dtype_facts[source.dtype].itemsize
    source.data = <void*><uintptr_t>view.ptr
    source.device_type = kDLCUDA if view.is_device_accessible else kDLCPU
    source.device_id = max(view.device_id, 0)
    source.is_readonly = view.readonly
    return check_source(source)


cdef int _from_buffer(object buffer, Source* source) except -1:
    source.dtype = _dtype_id(np.dtype("u1"))
    read_shape(source, (buffer.size,), None)
    source.data = <void*><uintptr_t>int(buffer.handle)
    source.device_type = kDLCUDA if buffer.is_device_accessible else kDLCPU
    source.device_id = max(buffer.device_id, 0)
    return check_source(source)


cdef int _from_cai(object producer, Source* source) except -1:
    interface = producer.__cuda_array_interface__
    if interface.get("mask") is not None:
        raise TypeError("masked arrays are not supported; pass the data and the mask apart")
    source.dtype = _dtype_id(_interface_dtype(interface))
    read_shape(source, interface["shape"], interface.get("strides"))
    pointer, readonly = interface["data"]
    source.data = <void*><uintptr_t>(pointer or 0)
    source.is_readonly = bool(readonly)
    source.stream = _cai_stream(interface)
    source.device_type = kDLCUDA
    source.device_id = pointer_device(source.data)
    return check_source(source)


cdef object _interface_dtype(dict interface):
    typestr = interface["typestr"]
    if typestr[1] == "V" and interface.get("descr"):
        return np.dtype(interface["descr"])
    return typestr


cdef intptr_t _cai_stream(dict interface) except? -1:
    stream = interface.get("stream")
    if stream is None or interface.get("version", 3) < 3:
        return NO_STREAM
    if stream == 0:
        raise ValueError(
            "stream 0 is ambiguous in __cuda_array_interface__ and not allowed; the "
            "producer must say 1 (legacy default) or 2 (per-thread default)")
    return stream


cdef int pointer_device(void* pointer) except -1:
    """Return the ordinal of the device that a pointer belongs to."""
    cdef int ordinal = 0
    if pointer is NULL:
        return 0
    require_driver()
    if driver.cuPointerGetAttribute(
        &ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, <uintptr_t>pointer
    ) != CUDA_SUCCESS:
        raise BufferError(
            f"its pointer {<uintptr_t>pointer:#x} is not known to the CUDA driver: it is "
            "host memory, or was freed")
    return ordinal


cdef int _from_dlpack(object producer, Source* source) except -1:
    device_type, device_id = producer.__dlpack_device__()
    # 1 is the legacy default stream; host producers take no stream.
    stream = 1 if int(device_type) in (kDLCUDA, kDLCUDAManaged) else None
    try:
        capsule = producer.__dlpack__(stream=stream, max_version=(1, 3))
    except TypeError:
        capsule = producer.__dlpack__(stream=stream)        # before DLPack 1.0
    capsule_import(capsule, source)
    if stream is not None:
        source.stream = stream
    return 0


cdef int _from_host(object producer, Source* source) except -1:
    interface = producer.__array_interface__
    dtype = getattr(producer, "dtype", None)
    if dtype is None:
        dtype = _interface_dtype(interface)
    source.dtype = _dtype_id(dtype)
    read_shape(source, interface["shape"], interface.get("strides"))
    pointer, readonly = interface["data"]
    source.data = <void*><uintptr_t>pointer
    source.is_readonly = bool(readonly)
    source.device_type = kDLCPU
    source.device_id = 0
    return check_source(source)


cdef StridedView view_from_source(Source* source, object owner):
    """Make a view; takes over ``source.keep`` as owner if there is one."""
    layout = intern_layout(
        source.ndim, source.shape, source.strides, source.unit,
        dtype_facts[source.dtype].itemsize)
    if source.keep is not NULL:
        owner = (owner, <object>source.keep)
    return make_view(
        source.data, layout, source.dtype, source.device_type, source.device_id,
        source.is_readonly, owner, source.family, source.stream)


cdef void release(Source* source) noexcept:
    if source.keep is not NULL:
        Py_DECREF(<object>source.keep)
        source.keep = NULL


cdef StridedView as_view(object producer):
    cdef Source source
    cdef int route = route_of(Py_TYPE(<PyObject*>producer), <PyObject*>producer)
    if route == ROUTE_VIEW:
        return <StridedView>producer
    if route == ROUTE_NONE:
        raise TypeError(
            f"{type(producer).__module__}.{type(producer).__qualname__} is not an array: it "
            "has none of __dlpack__, __cuda_array_interface__ and __array_interface__")
    source.keep = NULL
    try:
        import_source(route, <PyObject*>producer, &source)
        if route == ROUTE_TORCH:
            torch_check_storage(<PyObject*>producer, &source)
        return view_from_source(&source, producer)
    finally:
        release(&source)


def from_any(obj, *, stream=None):
    """Return a StridedView of any array, without a copy.

    Parameters
    ----------
    obj : array
        A torch tensor, CuPy, JAX or NumPy array, DeviceNDArray, StridedMemoryView,
        Buffer, or any object with DLPack's protocols or ``__cuda_array_interface__``.
        Host arrays become host views (device cpu).
    stream : int or stream object, optional
        Where the view will be used: the producer's current work is ordered before
        whatever is put on it later. None orders nothing; a launch then orders itself.

    Returns
    -------
    StridedView
        It keeps ``obj`` alive.

    Raises
    ------
    TypeError
        If it is no array, or a kind whose memory cannot be used as it stands.
    BufferError
        If the exchange is refused: freed storage, a misaligned pointer, an unknown type.
    """
    view = as_view(obj)
    if stream is not None:
        _order(view, stream)
    return view


def from_many(objs, *, stream=None):
    """Return a list of StridedViews of many arrays; see :func:`from_any`.

    Parameters
    ----------
    objs : iterable of arrays
    stream : int or stream object, optional
        As in :func:`from_any`; one wait for each distinct stream among the producers.

    Returns
    -------
    list of StridedView
    """
    cdef list views = []
    cdef Py_ssize_t index = 0
    for obj in objs:
        try:
            views.append(as_view(obj))
        except (BufferError, TypeError, ValueError, OverflowError) as error:
            raise type(error)(f"item {index}: {error}") from error
        index += 1
    if stream is not None:
        for view in views:
            _order(view, stream)
    return views


# Set by _stream, which stands above this module.
cdef object _order_hook = None


def set_order_hook(hook):
    """Install the function that puts a stream behind a view's producer."""
    global _order_hook
    _order_hook = hook


cdef int _order(StridedView view, object stream) except -1:
    _order_hook(view, stream)
    return 0


def routes():
    """Return how each type seen so far is imported.

    Returns
    -------
    list of dict
        "producer" (the type's full name), "route" and "reason".
    """
    names = {
        ROUTE_NONE: "not an array", ROUTE_REFUSED: "refused", ROUTE_TORCH: "torch",
        ROUTE_VIEW: "own", ROUTE_MEMORY_VIEW: "StridedMemoryView", ROUTE_BUFFER: "Buffer",
        ROUTE_CUPY: "CuPy", ROUTE_NUMBA: "Numba device array", ROUTE_EXCHANGE: "exchange API",
        ROUTE_DLPACK: "DLPack", ROUTE_CAI: "CUDA array interface", ROUTE_HOST: "host",
    }
    return [
        {
            "producer": f"{kind.__module__}.{kind.__qualname__}",
            "route": names[route],
            "reason": _reasons[kind],
        }
        for kind, route in list(_routes.items())
        if route != ROUTE_NONE
    ]
