"""DLPack structs that own what they show, and the capsules around them.

Owns the memory of the struct and the reference in it. Whoever takes a struct calls
its deleter once, from any thread and without the GIL; a capsule that nobody took
calls it when it goes.
Source: https://dmlc.github.io/dlpack/latest/python_spec.html
"""

from cpython.object cimport PyObject
from cpython.pycapsule cimport PyCapsule_New
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport int32_t, int64_t, uint64_t
from libc.stdlib cimport free, malloc

from stridedview._dlpack cimport (
    DLPACK_MAJOR,
    DLPACK_MINOR,
    DLManagedTensor,
    DLManagedTensorVersioned,
    DLTensor,
)
from stridedview._dtype cimport DTypeFacts, dtype_by_id, dtype_facts, dtype_lanes
from stridedview._layout cimport WORDS_BEFORE_SHAPE, Layout, item_strides

cdef extern from "Python.h":
    bint Py_IsInitialized() nogil
    # Taken as PyObject*: a destructor's capsule has no references left, so Cython must
    # not count one up and down.
    bint PyCapsule_IsValid(PyObject* capsule, const char* name)
    void* PyCapsule_GetPointer(PyObject* capsule, const char* name) noexcept

cdef const char* VERSIONED = "dltensor_versioned"
cdef const char* LEGACY = "dltensor"


cdef int fill_dltensor(
        DLTensor* out, void* data, Layout layout, int dtype_id, int32_t device_type,
        int32_t device_id) except -1:
    cdef DTypeFacts* facts = &dtype_facts[dtype_id]
    if facts.bits == 0:
        raise BufferError(
            f"DLPack has no type for {dtype_by_id(dtype_id).name}; export .view('uint8')")
    out.data = data
    out.device.device_type = device_type
    out.device.device_id = device_id
    out.ndim = layout.ndim
    out.dtype.code = facts.code
    out.dtype.bits = facts.bits
    out.dtype.lanes = dtype_lanes(dtype_id)
    # Never written by a consumer: the ABI merely has no const.
    out.shape = <int64_t*>&layout.words[WORDS_BEFORE_SHAPE]
    out.strides = <int64_t*>item_strides(layout)
    out.byte_offset = 0
    return 0


cdef void _release(PyObject* keep) noexcept with gil:
    Py_DECREF(<object>keep)


cdef void _delete_versioned(DLManagedTensorVersioned* managed) noexcept nogil:
    # After the interpreter has gone there is nothing to give the reference back to.
    if Py_IsInitialized():
        _release(<PyObject*>managed.manager_ctx)
    free(managed)


cdef void _delete_legacy(DLManagedTensor* managed) noexcept nogil:
    if Py_IsInitialized():
        _release(<PyObject*>managed.manager_ctx)
    free(managed)


cdef DLManagedTensorVersioned* new_managed(
        const DLTensor* tensor, object keep, uint64_t flags) except NULL:
    cdef DLManagedTensorVersioned* managed = <DLManagedTensorVersioned*>malloc(
        sizeof(DLManagedTensorVersioned))
    if managed == NULL:
        raise MemoryError("no memory for a DLPack tensor")
    managed.version.major = DLPACK_MAJOR
    managed.version.minor = DLPACK_MINOR
    # The reference that the deleter gives back.
    Py_INCREF(keep)
    managed.manager_ctx = <void*>keep
    managed.deleter = _delete_versioned
    managed.flags = flags
    managed.dl_tensor = tensor[0]
    return managed


cdef void _drop_versioned(PyObject* capsule) noexcept:
    # A consumer renames the capsule when it takes the tensor.
    cdef DLManagedTensorVersioned* managed
    if PyCapsule_IsValid(capsule, VERSIONED):
        managed = <DLManagedTensorVersioned*>PyCapsule_GetPointer(capsule, VERSIONED)
        managed.deleter(managed)


cdef void _drop_legacy(PyObject* capsule) noexcept:
    cdef DLManagedTensor* managed
    if PyCapsule_IsValid(capsule, LEGACY):
        managed = <DLManagedTensor*>PyCapsule_GetPointer(capsule, LEGACY)
        managed.deleter(managed)


cdef object versioned_capsule(const DLTensor* tensor, object keep, uint64_t flags):
    cdef DLManagedTensorVersioned* managed = new_managed(tensor, keep, flags)
    try:
        return PyCapsule_New(managed, VERSIONED, <void(*)(object) noexcept>_drop_versioned)
    except MemoryError:
        managed.deleter(managed)
        raise


cdef object legacy_capsule(const DLTensor* tensor, object keep):
    cdef DLManagedTensor* managed = <DLManagedTensor*>malloc(sizeof(DLManagedTensor))
    if managed == NULL:
        raise MemoryError("no memory for a DLPack tensor")
    Py_INCREF(keep)
    managed.manager_ctx = <void*>keep
    managed.deleter = _delete_legacy
    managed.dl_tensor = tensor[0]
    try:
        return PyCapsule_New(managed, LEGACY, <void(*)(object) noexcept>_drop_legacy)
    except MemoryError:
        managed.deleter(managed)
        raise
