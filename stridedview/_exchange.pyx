"""The DLPack C exchange API and capsules, as a consumer.

Owns finding a type's API, reading DLTensors into ``Source``, and the numbers (families)
under which the current stream of such a type is asked. A DLTensor handed out by the API
is borrowed: it is good until control returns to Python, so it is copied into ``scratch``
before anything else happens. A managed tensor is owned and given back once.
"""

from cpython.object cimport PyObject
from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_IsValid, PyCapsule_SetName
from cpython.ref cimport Py_INCREF
from libc.stdint cimport int32_t, int64_t, uintptr_t
from libc.string cimport memcpy

from stridedview._dlpack cimport (
    DLPACK_FLAG_BITMASK_READ_ONLY, DLPACK_MAJOR, DLManagedTensor,
    DLManagedTensorVersioned, DLPackExchangeAPI, DLPackExchangeAPIHeader, DLTensor, kDLCPU,
    kDLCUDA, kDLCUDAHost, kDLCUDAManaged,
)
from stridedview._dtype cimport dtype_facts, dtype_from_dlpack
from stridedview._layout cimport MAX_NDIM
from stridedview._source cimport Source, check_source
from stridedview._view cimport FAMILY_EXCHANGE, NO_STREAM

cdef enum:
    # Majors that a type chains: there is one so far, and a chain that does not end would
    # be followed for ever.
    APIS_WALKED = 16

cdef const char* EXCHANGE = "dlpack_exchange_api"
cdef const char* VERSIONED = "dltensor_versioned"
cdef const char* LEGACY = "dltensor"

# The API structs by family; they are static in their producers by the specification.
cdef DLPackExchangeAPI* _families[256]
cdef int _family_count = FAMILY_EXCHANGE


cdef class Managed:
    """One managed tensor, given back to its producer when this object goes."""

    def __dealloc__(self):
        if self.tensor is not NULL and self.tensor.deleter is not NULL:
            self.tensor.deleter(self.tensor)


cdef DLPackExchangeAPI* find_exchange(object type_) except? NULL:
    """Return the newest API of ``type_`` that we speak, or NULL.

    A type may publish a newer major version and chain older ones behind it.
    """
    cdef DLPackExchangeAPIHeader* header
    cdef int _walked
    capsule = getattr(type_, "__dlpack_c_exchange_api__", None)
    if capsule is None or not PyCapsule_IsValid(capsule, EXCHANGE):
        return NULL
    header = <DLPackExchangeAPIHeader*>PyCapsule_GetPointer(capsule, EXCHANGE)
    for _walked in range(APIS_WALKED):
        if header is NULL or header.version.major == DLPACK_MAJOR:
            return <DLPackExchangeAPI*>header
        header = header.prev_api
    return NULL


cdef int set_exchange_family(int family, DLPackExchangeAPI* api) except -1:
    _families[family] = api
    return 0


cdef int exchange_family(DLPackExchangeAPI* api) except -1:
    global _family_count
    cdef int family
    for family in range(FAMILY_EXCHANGE, _family_count):
        if _families[family] is api:
            return family
    if _family_count == 256:
        raise OverflowError("more than 248 types with an exchange API")
    _families[_family_count] = api
    _family_count += 1
    return _family_count - 1


cdef int exchange_stream(int family, int32_t device_id, void** stream) except -1:
    cdef DLPackExchangeAPI* api = _families[family]
    stream[0] = NULL
    if api is NULL or api.current_work_stream is NULL:
        return 0
    return _call(api.current_work_stream(kDLCUDA, device_id, stream), "current_work_stream")


cdef int _call(int result, str what) except -1:
    # The specification says that a failing function sets an error; not all do.
    if result != 0:
        raise_set_error()
        raise BufferError(f"the producer's {what} failed without saying why")
    return 0


cdef extern from "Python.h":
    PyObject* PyErr_Occurred()


cdef int raise_set_error() except *:
    """Raise the Python error that a C call left, if it left one."""
    return -1 if PyErr_Occurred() is not NULL else 0


cdef int _check_device(int32_t device_type, int32_t device_id) except -1:
    if device_type not in (kDLCPU, kDLCUDA, kDLCUDAHost, kDLCUDAManaged):
        raise BufferError(
            f"its memory is of DLPack device type {device_type}, which CUDA cannot "
            "address; copy it to the host or to a CUDA device")
    if device_id < 0 and device_type != kDLCPU:
        raise BufferError(f"its device id {device_id} is negative")
    return 0


cdef void* _pointer(const DLTensor* tensor) except? NULL:
    # NULL stays NULL, wherever the producer says that the data begins.
    cdef uintptr_t address = <uintptr_t>tensor.data
    if address == 0:
        return NULL
    if tensor.byte_offset > ~<uintptr_t>0 - address:
        raise BufferError(
            f"its byte_offset {tensor.byte_offset} leads beyond the end of memory")
    return <void*>(address + <uintptr_t>tensor.byte_offset)


cdef int source_from_dltensor(Source* source, const DLTensor* tensor) except -1:
    source.dtype = dtype_from_dlpack(
        tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes)
    _check_device(tensor.device.device_type, tensor.device.device_id)
    source.data = _pointer(tensor)
    source.ndim = tensor.ndim
    source.shape = tensor.shape
    source.strides = tensor.strides
    source.unit = dtype_facts[source.dtype].itemsize
    source.device_type = tensor.device.device_type
    # There is one host.
    source.device_id = (
        0 if tensor.device.device_type == kDLCPU else tensor.device.device_id)
    source.stream = NO_STREAM
    source.is_readonly = False
    return check_source(source)


cdef void _copy_shape(Source* source) noexcept:
    cdef size_t width = source.ndim * sizeof(int64_t)
    memcpy(source.scratch, source.shape, width)
    source.shape = source.scratch
    if source.strides is not NULL:
        memcpy(&source.scratch[MAX_NDIM], source.strides, width)
        source.strides = &source.scratch[MAX_NDIM]


cdef int exchange_borrow(
        DLPackExchangeAPI* api, PyObject* producer, Source* source) except -1:
    cdef DLTensor tensor
    if api.dltensor_from_py_object_no_sync is NULL:
        return exchange_import(api, producer, source)
    _call(api.dltensor_from_py_object_no_sync(producer, &tensor),
          "dltensor_from_py_object_no_sync")
    # Rank is checked before the copy; the error paths of the check run Python only
    # once they no longer read the DLTensor.
    source_from_dltensor(source, &tensor)
    _copy_shape(source)
    return 0


cdef int exchange_import(
        DLPackExchangeAPI* api, PyObject* producer, Source* source) except -1:
    cdef DLManagedTensorVersioned* tensor = NULL
    if api.managed_tensor_from_py_object_no_sync is NULL:
        if api.dltensor_from_py_object_no_sync is NULL:
            raise BufferError("its exchange API exports nothing")
        return exchange_borrow(api, producer, source)
    _call(api.managed_tensor_from_py_object_no_sync(producer, &tensor),
          "managed_tensor_from_py_object_no_sync")
    if tensor is NULL:
        raise BufferError(
            "the producer's managed_tensor_from_py_object_no_sync gave nothing")
    return _own(source, tensor)


cdef int _check_version(const DLManagedTensorVersioned* tensor) except -1:
    if tensor.version.major != DLPACK_MAJOR:
        raise BufferError(
            f"its tensor has DLPack version {tensor.version.major}."
            f"{tensor.version.minor}; version {DLPACK_MAJOR} is understood")
    return 0


cdef int source_from_managed(
        Source* source, const DLManagedTensorVersioned* tensor) except -1:
    _check_version(tensor)
    source_from_dltensor(source, &tensor.dl_tensor)
    source.is_readonly = (tensor.flags & DLPACK_FLAG_BITMASK_READ_ONLY) != 0
    return 0


cdef int _own(Source* source, DLManagedTensorVersioned* tensor) except -1:
    cdef Managed managed = Managed.__new__(Managed)
    # Owned first: the deleter stands at the same place in every version, so that a tensor
    # that is refused is given back too.
    managed.tensor = tensor
    source_from_managed(source, tensor)
    Py_INCREF(managed)
    source.keep = <PyObject*>managed
    return 0


cdef int capsule_import(object capsule, Source* source) except -1:
    """Take over the tensor in a capsule of either form."""
    cdef DLManagedTensorVersioned* versioned
    if PyCapsule_IsValid(capsule, VERSIONED):
        versioned = <DLManagedTensorVersioned*>PyCapsule_GetPointer(capsule, VERSIONED)
        PyCapsule_SetName(capsule, "used_dltensor_versioned")
        return _own(source, versioned)
    if not PyCapsule_IsValid(capsule, LEGACY):
        raise BufferError("its __dlpack__ did not return an unused DLPack capsule")
    return _own_legacy(source, capsule)


cdef class _LegacyManaged:
    cdef DLManagedTensor* tensor

    def __dealloc__(self):
        if self.tensor is not NULL and self.tensor.deleter is not NULL:
            self.tensor.deleter(self.tensor)


cdef int _own_legacy(Source* source, object capsule) except -1:
    cdef _LegacyManaged managed = _LegacyManaged.__new__(_LegacyManaged)
    managed.tensor = <DLManagedTensor*>PyCapsule_GetPointer(capsule, LEGACY)
    PyCapsule_SetName(capsule, "used_dltensor")
    source_from_dltensor(source, &managed.tensor.dl_tensor)
    Py_INCREF(managed)
    source.keep = <PyObject*>managed
    return 0
