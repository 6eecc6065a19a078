# Protocols out: the C face. See _export.pyx for what it owns.

from stridedview._dlpack cimport DLManagedTensorVersioned
from stridedview._view cimport StridedView


# Return a view that owns a managed tensor; on an error the caller still owns it.
cdef StridedView view_of_managed(DLManagedTensorVersioned* managed)
