"""Managed memory, for cuda.core.

Owns the resource that new memory beside a managed array comes from; _alloc asks it.
"""

from typing import Any

from cuda.bindings import driver
from cuda.core import Buffer, MemoryResource


class ManagedResource(MemoryResource):  # type: ignore[misc]  # not typed
    """Memory that every device and the host can use, and that moves between them."""

    def allocate(self, size: int, stream: Any = None) -> Buffer:  # noqa: ARG002
        """Return a buffer; MemoryError if there is no room for it."""
        flag = driver.CUmemAttach_flags.CU_MEM_ATTACH_GLOBAL
        code, pointer = driver.cuMemAllocManaged(size, flag)
        if code == driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
            raise MemoryError(f"cuMemAllocManaged: {size} bytes")
        if code != driver.CUresult.CUDA_SUCCESS:
            raise RuntimeError(f"cuMemAllocManaged failed: {code.name}")
        return Buffer.from_handle(int(pointer), size, mr=self)

    def deallocate(self, ptr: Any, size: int, stream: Any = None) -> None:  # noqa: ARG002
        """Give a buffer's memory back, after the work that uses it."""
        driver.cuMemFree(int(ptr))

    @property
    def is_device_accessible(self) -> bool:
        return True

    @property
    def is_host_accessible(self) -> bool:
        return True

    @property
    def device_id(self) -> int:
        return -1
