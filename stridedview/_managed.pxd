# DLPack structs that own what they show. See _managed.pyx for what it owns.

from libc.stdint cimport int32_t, uint64_t

from stridedview._dlpack cimport DLManagedTensorVersioned, DLTensor
from stridedview._layout cimport Layout


# Fill a borrowed DLTensor: its shape and strides point into `layout`.
cdef int fill_dltensor(
    DLTensor* out, void* data, Layout layout, int dtype_id, int32_t device_type,
    int32_t device_id) except -1
# Return a managed tensor that holds `keep`, which must hold the layout and the memory.
cdef DLManagedTensorVersioned* new_managed(
    const DLTensor* tensor, object keep, uint64_t flags) except NULL
# Return a capsule of the form since 1.0, or of the one before.
cdef object versioned_capsule(const DLTensor* tensor, object keep, uint64_t flags)
cdef object legacy_capsule(const DLTensor* tensor, object keep)
