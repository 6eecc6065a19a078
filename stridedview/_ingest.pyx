"""The one table of producers: exact type -> importer, filled on first sight of a type.

Owns which route an object takes and the routes that read a library's own attributes; those
of torch, of the exchange API and of the Python-level protocols are in their own modules.
Every route ends in the same ``Source`` and passes the same checks.
"""

from cpython.object cimport PyObject, PyTypeObject
from cpython.ref cimport Py_DECREF
from libc.stdint cimport int32_t, intptr_t, uintptr_t

cimport cython

from stridedview._dlpack cimport (
    DLPackExchangeAPI, kDLCPU, kDLCUDA, kDLCUDAHost, kDLCUDAManaged,
)
from stridedview._dtype cimport dtype_facts
from stridedview._exchange cimport exchange_family, exchange_import, find_exchange
from stridedview._layout cimport Layout, intern_layout
from stridedview._protocol cimport (
    cuda_interface_source, dlpack_source, dtype_id_of, host_interface_source, not_an_array,
)
from stridedview._source cimport (
    Source, check_place, check_source, checked_layout, read_shape,
)
from stridedview._torch cimport require_torch, torch_check_storage, torch_source
from stridedview._view cimport (
    FAMILY_CUPY, FAMILY_NONE, FAMILY_NUMBA, NO_STREAM, StridedView, make_view,
)

import importlib
import sys

import numpy as np

import stridedview._export  # no-cython-lint: completes StridedView, as does the next
import stridedview._variadic  # no-cython-lint
from stridedview import _torch, _torch_gate

cdef extern from "Python.h":
    PyTypeObject* Py_TYPE(PyObject*)
    bint PyObject_TypeCheck(object, PyTypeObject*)

cdef PyTypeObject* _ndarray = <PyTypeObject*>np.ndarray

# Types hold their place as long as they are here, so the table is bounded: past this
# many types (a program that makes classes in a loop) it starts anew.
cdef enum:
    TYPES_KEPT = 4096

cdef dict _routes = {}          # type -> route
cdef dict _reasons = {}         # type -> why it is refused, or how it is read
cdef dict _exchange_apis = {}   # type -> address of its exchange API, 0 if it has none


# The type asked for last and its route in one word, so that no thread can see the one
# without the other: the address of a type has its lowest bits free. The table holds the
# type, so that no other comes to stand at its address; 0 says that there is none.
cdef uintptr_t _last_route = 0

cdef enum:
    ROUTE_BITS = 15             # more than there are routes


cdef int route_of(PyTypeObject* type_, PyObject* sample) except -1:
    global _last_route
    cdef uintptr_t last = _last_route
    if last & ~<uintptr_t>ROUTE_BITS == <uintptr_t>type_:
        return <int>(last & ROUTE_BITS)
    with cython.critical_section(_routes):      # so that nobody empties it meanwhile
        found = _routes.get(<object>type_)
        if found is not None and <uintptr_t>type_ & ROUTE_BITS == 0:
            _last_route = <uintptr_t>type_ | <uintptr_t>(<int>found)
    if found is None:
        return _classify(<object>type_, <object>sample)
    return found


cdef int _classify(object type_, object sample) except -1:
    global _last_route
    if len(_routes) >= TYPES_KEPT:
        with cython.critical_section(_routes):
            _last_route = 0
            _routes.clear()
        _reasons.clear()
        _exchange_apis.clear()
    route, reason = _choose(type_, sample)
    # A torch that is imported later must be seen: what is no array now is asked again.
    if route != ROUTE_NONE or type_.__module__ == "builtins":
        _reasons[type_] = reason
        _routes[type_] = route
    return route


cdef DLPackExchangeAPI* _exchange_of(object type_) except? NULL:
    # Found again if another thread has emptied the table since the type was classified.
    address = _exchange_apis.get(type_)
    if address is None:
        address = <uintptr_t>find_exchange(type_)
        _exchange_apis[type_] = address
    return <DLPackExchangeAPI*><uintptr_t>address


cdef tuple _choose(object type_, object sample):
    if type_ is StridedView:
        return ROUTE_VIEW, "own fields"
    torch = sys.modules.get("torch")
    # A torch that is half imported, or that a test has put a mock in place of, has none.
    if isinstance(getattr(torch, "Tensor", None), type) and issubclass(type_, torch.Tensor):
        return _choose_torch(torch, type_)
    known = _choose_known(type_)
    if known is not None:
        return known
    if _exchange_of(type_) is not NULL:
        return ROUTE_EXCHANGE, "exchange API"
    return _choose_protocol(type_, sample)


cdef tuple _choose_torch(object torch, object type_):
    require_torch()
    if issubclass(type_, torch.nn.parameter.UninitializedTensorMixin):
        return ROUTE_REFUSED, "uninitialized"
    if not _torch_gate.is_plain_type(type_):
        return ROUTE_REFUSED, "wrapper subclass"
    return ROUTE_TORCH, ": ".join(_torch.route())


cdef tuple _choose_known(object type_):
    if issubclass(type_, np.ma.MaskedArray):
        return ROUTE_REFUSED, "masked"
    if _derives(type_, "cuda", "StridedMemoryView"):
        return ROUTE_MEMORY_VIEW, "its fields"
    if _derives(type_, "cuda", "Buffer"):
        return ROUTE_BUFFER, "its fields"
    if _derives(type_, "cupy", "ndarray"):
        return ROUTE_CUPY, "its attributes"
    if _derives(type_, "jaxlib", "ArrayImpl"):
        return ROUTE_JAX, "DLPack capsule, read-only"
    # The simulator's arrays say so too, but have no address on a device.
    if getattr(type_, "__cuda_ndarray__", False) and (
        hasattr(type_, "device_ctypes_pointer")
    ):
        return ROUTE_NUMBA, "its attributes"
    if issubclass(type_, (np.ndarray, np.void)):
        return ROUTE_HOST, "array interface"
    return None


cdef bint _derives(object type_, str package, str name) except -1:
    # By name, so that no package is imported to ask; a class's module may be anything.
    for base in type_.__mro__:
        if base.__name__ == name and isinstance(base.__module__, str) and (
            base.__module__.partition(".")[0] == package
        ):
            return True
    return False


cdef tuple _choose_protocol(object type_, object sample):
    # A scalar of NumPy's has an array interface but is a number here; a class has the
    # attributes of its instances, and is no array.
    if issubclass(type_, (np.generic, type)):
        return ROUTE_NONE, ""
    if _has(type_, sample, "__cuda_array_interface__"):
        return ROUTE_CAI, "CUDA array interface"
    if _has(type_, sample, "__dlpack__"):
        return ROUTE_DLPACK, "DLPack capsule"
    if _has(type_, sample, "__array_interface__"):
        return ROUTE_HOST, "array interface"
    return ROUTE_NONE, ""


cdef bint _has(object type_, object sample, str name) except -1:
    # A class says with None that it does not speak a protocol of its base. Some frameworks
    # raise from the property for arrays of the other kind: then the class has it.
    try:
        return getattr(type_, name, None) is not None or (
            getattr(sample, name, None) is not None)
    except (BufferError, RuntimeError, TypeError, ValueError):
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
        return cuda_interface_source(producer, source)
    if route == ROUTE_DLPACK:
        return dlpack_source(producer, source)
    if route == ROUTE_JAX:
        dlpack_source(producer, source)
        # Its arrays are immutable, which its capsules of the old form cannot say.
        source.is_readonly = True
        return 0
    if route == ROUTE_MEMORY_VIEW:
        return _from_memory_view(producer, source)
    if route == ROUTE_BUFFER:
        return _from_buffer(producer, source)
    if route == ROUTE_HOST:
        return host_interface_source(producer, source)
    _refuse(producer)
    raise TypeError(not_an_array(producer))


cdef int _refuse(object producer) except -1:
    if isinstance(producer, np.ma.MaskedArray):
        raise TypeError(
            "masked arrays are not supported; pass x.filled() or x.data and x.mask")
    torch = sys.modules.get("torch")
    tensor_type = getattr(torch, "Tensor", None)
    if isinstance(tensor_type, type) and isinstance(producer, tensor_type):
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


cdef int _from_cupy(object array, Source* source) except -1:
    # CuPy keeps whether an array is contiguous; its tuples are made anew at each look.
    data = array.data
    source.dtype = dtype_id_of(array.dtype)
    read_shape(source, array.shape, None if array._c_contiguous else array.strides)
    source.data = <void*><uintptr_t>data.ptr
    source.device_type = kDLCUDA
    source.device_id = data.device_id
    source.family = FAMILY_CUPY
    return check_source(source)


cdef int _from_numba(object array, Source* source) except -1:
    # A mapped or managed array is a NumPy array; its memory may be an owner's, or nobody's.
    owner = array
    is_mapped = PyObject_TypeCheck(array, _ndarray)
    if is_mapped:
        owner = _mapped_owner(array)
        if owner is None:
            return host_interface_source(array, source)
    memory = owner.gpu_data
    # What counts references to memory hands every attribute on by Python code.
    memory = getattr(memory, "_view", memory)
    pointer = int(memory.device_pointer)
    source.dtype = dtype_id_of(array.dtype)
    read_shape(source, array.shape, array.strides)
    source.data = <void*><uintptr_t>pointer
    source.device_type = kDLCUDA
    if is_mapped:
        _place_mapped(array, owner, pointer, source)
    source.device_id = _device_of_context(memory.context)
    source.family = FAMILY_NUMBA
    stream = owner.stream
    if isinstance(stream, int):
        source.stream = stream if stream else NO_STREAM
    elif stream is not None:
        source.stream = _stream_handle(stream)
    return check_source(source)


# The context that was asked for last, and its device, which stays one.
cdef object _context = None
cdef int32_t _context_device = 0


cdef int32_t _device_of_context(object context) except -1:
    global _context, _context_device
    cdef int32_t device
    if context is _context:
        return _context_device
    device = context.device.id
    _context_device = device
    _context = context
    return device


cdef object _mapped_owner(object array):
    # A part of such an array is of the same class but knows no device, and a result of
    # arithmetic is ordinary memory.
    while isinstance(array, np.ndarray):
        if hasattr(array, "gpu_data"):
            return array
        array = array.base
    return None


cdef int _place_mapped(object array, object owner, object pointer, Source* source) except -1:
    # The host's address is the device's wherever the driver could arrange it.
    pointer += array.ctypes.data - owner.ctypes.data
    source.data = <void*><uintptr_t>pointer
    if array.ctypes.data == pointer:
        is_managed = _derives(type(array), "numba", "ManagedNDArray")
        source.device_type = kDLCUDAManaged if is_managed else kDLCUDAHost
    return 0


cdef intptr_t _stream_handle(object stream) except? -1:
    handle = stream.handle
    # Numba's stream objects hold an int, or a driver object for the named default streams.
    handle = int(handle) if handle is not None else 0
    return <intptr_t>handle if handle else NO_STREAM


cdef int _from_exchange(object producer, Source* source) except -1:
    cdef DLPackExchangeAPI* api = _exchange_of(type(producer))
    source.family = exchange_family(api)
    return exchange_import(api, <PyObject*>producer, source)


cdef int _from_memory_view(object view, Source* source) except -1:
    cdef DLPackExchangeAPI* api = _exchange_of(type(view))
    if api is not NULL:
        try:
            exchange_import(api, <PyObject*>view, source)
        except (BufferError, TypeError):
            pass        # a structured dtype, which DLPack cannot say: read its fields
        else:
            return 0
    return _from_memory_view_fields(view, source)


cdef int _from_memory_view_fields(object view, Source* source) except -1:
    dtype = view.dtype
    strides = view.strides
    source.dtype = dtype_id_of(dtype)
    read_shape(source, view.shape, strides)
    source.unit = dtype_facts[source.dtype].itemsize
    source.data = <void*><uintptr_t>view.ptr
    source.device_type = kDLCUDA if view.is_device_accessible else kDLCPU
    source.device_id = max(view.device_id, 0)
    source.is_readonly = view.readonly
    return check_source(source)


cdef int _from_buffer(object buffer, Source* source) except -1:
    device_type, device_id = buffer.__dlpack_device__()
    source.dtype = dtype_id_of(np.dtype("u1"))
    read_shape(source, (buffer.size,), None)
    # A closed one has neither handle nor size.
    source.data = <void*><uintptr_t>int(buffer.handle or 0)
    source.device_type = device_type
    source.device_id = max(device_id, 0)
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
    cdef int route = route_of(Py_TYPE(<PyObject*>producer), <PyObject*>producer)
    if route == ROUTE_TORCH:
        return _view_of_tensor(producer)
    if route == ROUTE_VIEW:
        return <StridedView>producer
    return _view_of_foreign(route, producer)


cdef StridedView _view_of_tensor(object tensor):
    cdef Source source
    cdef Layout layout
    torch_source(<PyObject*>tensor, &source)
    layout = checked_layout(&source)
    torch_check_storage(<PyObject*>tensor, layout)
    check_place(&source, layout.size != 0)
    return make_view(
        source.data, layout, source.dtype, source.device_type, source.device_id,
        source.is_readonly, tensor, source.family, source.stream)


cdef StridedView _view_of_foreign(int route, object producer):
    cdef Source source
    if route == ROUTE_NONE:
        raise TypeError(not_an_array(producer))
    source.keep = NULL
    try:
        import_source(route, <PyObject*>producer, &source)
        return view_from_source(&source, producer)
    finally:
        release(&source)


def check_storage(obj):
    """Refuse a torch tensor that reaches beyond its storage; others are not asked.

    Raises
    ------
    BufferError
        If the storage was freed or shrunk.
    """
    cdef Source source
    if route_of(Py_TYPE(<PyObject*>obj), <PyObject*>obj) == ROUTE_TORCH:
        torch_source(<PyObject*>obj, &source)
        torch_check_storage(<PyObject*>obj, checked_layout(&source))


# Of Cython's own kind, though Python calls a builtin function 5 ns faster: torch.compile
# would run a builtin one while it traces, on fake tensors.
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
    # First of all a list, so that an error of the iterable's own is not taken for an item's.
    cdef list producers = objs if type(objs) is list else list(objs)
    try:
        for index in range(len(producers)):
            views.append(as_view(producers[index]))
    except _REFUSALS as error:
        # The plain class: those derived from it may want other arguments.
        kind = next(kind for kind in _REFUSALS if isinstance(error, kind))
        raise kind(f"item {index}: {error}") from error
    if stream is not None:
        _order_many(views, stream)
    return views


_REFUSALS = (BufferError, TypeError, ValueError, OverflowError)


cdef int _order_many(list views, object stream) except -1:
    cdef StridedView view
    cdef set ordered = set()
    for view in views:
        source = (view.device_type, view.device_id, view.family, view.stream_handle)
        if source not in ordered:
            ordered.add(source)
            _order(view, stream)
    return 0


# Set by _stream, which stands above this module.
cdef object _order_hook = None


def set_order_hook(hook):
    """Install the function that puts a stream behind a view's producer."""
    global _order_hook
    _order_hook = hook


cdef int _order(StridedView view, object stream) except -1:
    if _order_hook is None:
        importlib.import_module("stridedview._stream")
    _order_hook(view, stream)
    return 0


_ROUTE_NAMES = {
    ROUTE_NONE: "not an array", ROUTE_REFUSED: "refused", ROUTE_TORCH: "torch",
    ROUTE_VIEW: "own", ROUTE_MEMORY_VIEW: "StridedMemoryView", ROUTE_BUFFER: "Buffer",
    ROUTE_CUPY: "CuPy", ROUTE_NUMBA: "Numba device array", ROUTE_EXCHANGE: "exchange API",
    ROUTE_DLPACK: "DLPack", ROUTE_JAX: "JAX", ROUTE_CAI: "CUDA array interface",
    ROUTE_HOST: "host",
}


def route(obj):
    """Return (name, reason) of the route by which an object is imported."""
    cdef int found = route_of(Py_TYPE(<PyObject*>obj), <PyObject*>obj)
    return _ROUTE_NAMES[found], _reasons.get(type(obj), "")


def routes():
    """Return how each type seen so far is imported.

    Returns
    -------
    list of dict
        "producer" (the type's full name), "route" and "reason".
    """
    return [
        {
            "producer": f"{kind.__module__}.{kind.__qualname__}",
            "route": _ROUTE_NAMES[route],
            "reason": _reasons.get(kind, ""),
        }
        for kind, route in list(_routes.items())
        if route != ROUTE_NONE
    ]
