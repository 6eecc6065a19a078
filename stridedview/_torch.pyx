"""The torch route: what a tensor is, read through torch's C ABI behind a gate.

Owns the gate and the two ways behind it. The gate is the tensor's dispatch-key word: it
alone tells a plain tensor from one with a pending conjugation or negation, a sparse,
nested, quantized, fake or wrapped one, whose pointer would be read wrongly. Behind the
gate the facts come from ``aoti_torch_get_*`` if this torch passes the self-check, else
from torch's DLPack exchange API. Which one was chosen, and why, is in ``route()``.

The C ABI takes the address of the ``at::Tensor`` that stands right behind the object
header from torch 2.10 on; ``_cdata`` tells, without following any pointer of torch's,
whether it stands there.
"""

from cpython.object cimport PyObject
from libc.stdint cimport int32_t, int64_t, uint64_t, uintptr_t

from stridedview._dlpack cimport DLPackExchangeAPI, kDLCPU, kDLCUDA, kDLInt, kDLUInt
from stridedview._dtype cimport DTYPE_NONE, DTypeFacts, dtype_facts
from stridedview._exchange cimport (
    exchange_borrow, exchange_stream, find_exchange, set_exchange_family,
)
from stridedview._geometry cimport add_overflows, mul_overflows
from stridedview._layout cimport MAX_NDIM, Layout
from stridedview._source cimport Source
from stridedview._view cimport FAMILY_TORCH, NO_STREAM

import ctypes
import os
import sys

from stridedview import _dtype, _torch_gate

cdef enum:
    ROUTE_UNSET = 0
    ROUTE_C_ABI = 1
    ROUTE_EXCHANGE = 2

cdef DLPackExchangeAPI* exchange = NULL
cdef int route_taken = ROUTE_UNSET
cdef str route_reason = "torch is not imported"
cdef str ROUTE_VARIABLE = "STRIDEDVIEW_TORCH_ROUTE"

torch_route.key_offset = -1


cdef int torch_source(PyObject* tensor, Source* source) except -1:
    cdef void* handle
    cdef uint64_t key
    if route_taken == ROUTE_UNSET:
        require_torch()
    handle = <char*>tensor + torch_route.tensor_offset
    if torch_route.key_offset < 0:
        return _ask(tensor, source)
    # A tensor whose Python object was made without one (Tensor.__new__ alone) has none.
    if (<void**>handle)[0] is NULL:
        raise TypeError("the tensor is not initialized")
    key = (<uint64_t*>((<char**>handle)[0] + torch_route.key_offset))[0] & ~torch_route.key_ignored
    if key == torch_route.key_cuda:
        source.device_type = kDLCUDA
    elif key == torch_route.key_cpu:
        source.device_type = kDLCPU
    else:
        return _ask(tensor, source)
    if route_taken != ROUTE_C_ABI:
        return _by_exchange(tensor, source)
    return _by_c_abi(handle, source)


cdef int _by_c_abi(void* handle, Source* source) except -1:
    cdef int64_t ndim
    cdef int32_t scalar_type
    cdef int32_t code
    source.family = FAMILY_TORCH
    source.stream = NO_STREAM
    source.is_readonly = False
    code = torch_route.api.get_dim(handle, &ndim)
    code |= torch_route.api.get_dtype(handle, &scalar_type)
    code |= torch_route.api.get_sizes(handle, <int64_t**>&source.shape)
    code |= torch_route.api.get_strides(handle, <int64_t**>&source.strides)
    code |= torch_route.api.get_device_index(handle, &source.device_id)
    code |= torch_route.api.get_data_ptr(handle, &source.data)
    if code != 0:
        raise BufferError("torch could not tell the tensor's memory")
    if source.device_id < 0:
        source.device_id = 0        # CPU tensors have index -1
    source.ndim = <int32_t>ndim
    source.dtype = torch_route.dtype_ids[scalar_type & 127]
    if source.dtype == DTYPE_NONE or ndim > MAX_NDIM:
        _refuse_dtype(<char*>handle - torch_route.tensor_offset, ndim)
    source.unit = dtype_facts[source.dtype].itemsize
    return 0


cdef int _check_dtype(object tensor) except -1:
    cdef str name = _torch_gate.dtype_name(tensor)
    if not _dtype.is_static(name):
        raise TypeError(
            f"its dtype torch.{name} has no counterpart in Numba; "
            "view it as an integer type of the same width")
    return 0


cdef int _refuse_dtype(void* tensor, int64_t ndim) except -1:
    if ndim > MAX_NDIM:
        raise BufferError(f"a tensor of {ndim} axes is not supported; the most is {MAX_NDIM}")
    _check_dtype(<object>tensor)
    raise TypeError("its dtype is one of another torch, and has no counterpart in Numba")


cdef int _by_exchange(PyObject* tensor, Source* source) except -1:
    cdef DTypeFacts* facts
    try:
        exchange_borrow(exchange, tensor, source)
    except (BufferError, RuntimeError):
        # DLPack has no word for some dtypes, and torch's of it come with a C++ backtrace.
        _check_dtype(<object>tensor)
        raise
    facts = &dtype_facts[source.dtype]
    if facts.bits == 8 and (facts.code == kDLInt or facts.code == kDLUInt):
        # So torch calls its integers of fewer bits, too.
        _check_dtype(<object>tensor)
    source.family = FAMILY_TORCH
    return 0


cdef int _ask(PyObject* tensor, Source* source) except -1:
    # The slow route: Python is asked what kind of tensor this is; it raises for each kind
    # whose pointer cannot be used, and returns for one that can.
    _torch_gate.check(<object>tensor)
    if route_taken == ROUTE_C_ABI:
        source.device_type = kDLCUDA if (<object>tensor).is_cuda else kDLCPU
        return _by_c_abi(<char*>tensor + torch_route.tensor_offset, source)
    return _by_exchange(tensor, source)


cdef int torch_stream(int32_t device_id, void** stream) except -1:
    if torch_route.api.get_current_cuda_stream is not NULL:
        if torch_route.api.get_current_cuda_stream(device_id, stream) == 0:
            return 0
    return exchange_stream(FAMILY_TORCH, device_id, stream)


cdef int torch_check_storage(PyObject* tensor, Layout layout) except -1:
    cdef void* handle
    cdef int64_t nbytes = 0
    cdef int64_t offset = 0
    cdef int64_t reach
    cdef int32_t code = 0
    if layout.size == 0:
        return 0
    if route_taken == ROUTE_C_ABI:
        handle = <char*>tensor + torch_route.tensor_offset
        code |= torch_route.api.get_storage_size(handle, &nbytes)
        code |= torch_route.api.get_storage_offset(handle, &offset)
    else:
        nbytes, offset = _torch_gate.storage_facts(<object>tensor)
    if code != 0:
        raise BufferError("torch could not tell the tensor's storage")
    if mul_overflows(offset, layout.itemsize, &reach) or (
            add_overflows(reach, layout.last_byte, &reach)) or reach > nbytes:
        raise BufferError(
            f"its storage holds {nbytes} bytes, fewer than the tensor reaches: it was "
            "freed or shrunk (untyped_storage().resize_)")
    return 0


cdef int require_torch() except -1:
    """Choose the route, once, for the torch that is imported."""
    global route_taken, route_reason, exchange
    cdef int route = ROUTE_EXCHANGE
    if route_taken != ROUTE_UNSET:
        return 0
    torch = sys.modules["torch"]
    _torch_gate.hide_from_dynamo()      # what follows, if torch was not there before
    _torch_gate.check_version(torch)
    exchange = find_exchange(torch.Tensor)
    if exchange is not NULL:
        set_exchange_family(FAMILY_TORCH, exchange)
    _learn_keys(torch)
    asked = os.environ.get(ROUTE_VARIABLE, "")
    if asked == "exchange":
        route_reason = f"asked for by {ROUTE_VARIABLE}"
    else:
        route_reason = _prepare_c_abi(torch)
        if route_reason == "":
            route = ROUTE_C_ABI
            route_reason = "self-check passed"
        if asked:
            route_reason += f"; {ROUTE_VARIABLE}={asked} is ignored: only exchange counts"
    if route == ROUTE_EXCHANGE and exchange is NULL:
        raise ImportError(
            f"torch {torch.__version__} offers neither a C ABI that passes the self-check "
            f"({route_reason}) nor the DLPack exchange API; install "
            f"{_torch_gate.TORCH.requirement}")
    torch_route.is_c_abi = route == ROUTE_C_ABI
    route_taken = route
    return 0


cdef int torch_scalar_type(int dtype) noexcept:
    cdef int number
    for number in range(128):
        if torch_route.dtype_ids[number] == dtype:
            return number
    return -1


cdef int _learn_keys(object torch) except -1:
    words = _torch_gate.key_words(torch)
    torch_route.key_ignored = words["ignored"]
    torch_route.key_cuda = words["cuda"]
    torch_route.key_cpu = words["cpu"]
    torch_route.tensor_offset = object.__basicsize__
    # Where the tensor stands elsewhere nothing can be read: then every tensor is asked.
    torch_route.key_offset = -1
    if _torch_gate.stands_behind_header(torch.empty((2, 3))):
        torch_route.key_offset = _torch_gate.find_key_offset(torch)
    return 0


cdef str _prepare_c_abi(object torch):
    """Look up torch's C ABI and check it; return "" or why it is not used."""
    if _torch_gate.is_newer_than_tested(torch):
        return f"torch {torch.__version__} is newer than those tested (STRIDEDVIEW_FORCE=1 tries)"
    if not _torch_gate.stands_behind_header(torch.empty((2, 3))):
        return "the tensor does not stand behind the object header"
    if torch_route.key_offset < 0:
        return "the dispatch-key word was not found"
    try:
        library = _torch_gate.library(torch, "torch_cpu")
        _look_up(library)
    except (OSError, AttributeError) as error:
        return f"torch's C ABI is not found: {error}"
    _look_up_stream(torch)
    _learn_dtypes(torch, library)
    return _torch_gate.compare(torch, _facts)


cdef int _look_up(object library) except -1:
    cdef void** slot = <void**>&torch_route.api
    cdef int index = 0
    for name in (
        "get_data_ptr", "get_dim", "get_sizes", "get_strides", "get_dtype",
        "get_device_index", "get_storage_size", "get_storage_offset",
    ):
        function = getattr(library, f"aoti_torch_{name}")
        slot[index] = <void*><uintptr_t>ctypes.cast(function, ctypes.c_void_p).value
        index += 1
    return 0


cdef int _look_up_stream(object torch) except -1:
    # In torch's CUDA library; a CPU build has none and the exchange API answers.
    torch_route.api.get_current_cuda_stream = NULL
    try:
        function = _torch_gate.library(torch, "torch_cuda").aoti_torch_get_current_cuda_stream
    except (OSError, AttributeError):
        return 0
    (<void**>&torch_route.api.get_current_cuda_stream)[0] = (
        <void*><uintptr_t>ctypes.cast(function, ctypes.c_void_p).value)
    return 0


cdef int _learn_dtypes(object torch, object library) except -1:
    # torch's own numbers for its scalar types: asked by name, or read off a sample where
    # this torch has no such function for a type that it has.
    cdef int32_t number
    for entry in _dtype.entries():
        torch_dtype = getattr(torch, entry.torch_name, None) if entry.torch_name else None
        if torch_dtype is None:
            continue
        function = getattr(library, f"aoti_torch_dtype_{entry.torch_name}", None)
        if function is not None:
            number = function()
        else:
            sample = torch.empty(0, dtype=torch_dtype)
            if torch_route.api.get_dtype(
                    <char*><PyObject*>sample + torch_route.tensor_offset, &number) != 0:
                continue
        if 0 <= number < 128:
            torch_route.dtype_ids[number] = entry.id
    return 0


def _facts(object tensor):
    """Return (pointer, shape, strides in items, dtype name) as the C ABI tells them."""
    cdef Source source
    _by_c_abi(<char*><PyObject*>tensor + torch_route.tensor_offset, &source)
    return (
        <uintptr_t>source.data,
        tuple([source.shape[axis] for axis in range(source.ndim)]),
        tuple([source.strides[axis] for axis in range(source.ndim)]),
        _dtype.entries()[source.dtype - 1].name,
    )


def route():
    """Return (route, reason) of the torch route: "C ABI", "exchange API" or "none"."""
    if route_taken == ROUTE_UNSET and "torch" in sys.modules:
        require_torch()
    name = {ROUTE_C_ABI: "C ABI", ROUTE_EXCHANGE: "exchange API"}.get(route_taken, "none")
    return name, route_reason
