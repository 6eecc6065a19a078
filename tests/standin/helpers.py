"""What several tests need to speak to numba-cuda and to the driver directly."""

import ctypes
import subprocess
import sys
import textwrap
from pathlib import Path

from cuda.bindings import driver as cu

from tests import standin

ROOT = Path(__file__).resolve().parents[2]


def array_words(pointer: int, shape, strides, itemsize: int) -> tuple[int, ...]:
    """Return the words numba-cuda packs for an array: 5 + 2 * ndim, strides in bytes."""
    size = 1
    for extent in shape:
        size *= extent
    signed = (0, 0, size, itemsize, pointer, *shape, *strides)
    return tuple(word % (1 << 64) for word in signed)


def words_of(array) -> tuple[int, ...]:
    """Return the words for a device array of numba-cuda."""
    pointer = array.device_ctypes_pointer.value or 0
    return array_words(pointer, array.shape, array.strides, array.dtype.itemsize)


def code(result) -> int:
    """Return a binding's error code as an int."""
    return int(result[0])


def good(result):
    """Return what a binding gave, checked: nothing, one value or a tuple."""
    assert int(result[0]) == 0, result[0]
    values = result[1:]
    return values[0] if len(values) == 1 else values or None


def make_context(device=0):
    """Make a context, current on this thread; before CUDA 13 it takes no parameters."""
    parameters = (None,) if cu.CUDA_VERSION >= 13000 else ()
    return good(cu.cuCtxCreate(*parameters, 0, device))


def kernel_of(dispatcher, signature=None):
    """Return the CUkernel of a compiled dispatcher's one overload (or of `signature`)."""
    overload = (
        dispatcher.overloads[signature]
        if signature
        else next(iter(dispatcher.overloads.values()))
    )
    return cu.CUkernel(int(overload._codelibrary.get_cufunc().kernel.handle))


def launch(function, values, grid=(1, 1, 1), block=(1, 1, 1), shared=0, stream=0) -> int:
    """Call cuLaunchKernel with ctypes values, and return its error code."""
    pointers = (ctypes.c_void_p * max(len(values), 1))(
        *(ctypes.addressof(value) for value in values)
    )
    return code(
        cu.cuLaunchKernel(
            function, *grid, *block, shared, stream, ctypes.addressof(pointers), 0
        )
    )


def launch_packed(function, data: bytes, grid=(1, 1, 1), block=(1, 1, 1), stream=0) -> int:
    """Call cuLaunchKernel with one packed buffer, and return its error code."""
    buffer, size = (
        ctypes.create_string_buffer(data, max(len(data), 1)),
        ctypes.c_size_t(len(data)),
    )
    extra = (ctypes.c_void_p * 5)(1, ctypes.addressof(buffer), 2, ctypes.addressof(size), 0)
    return code(
        cu.cuLaunchKernel(function, *grid, *block, 0, stream, 0, ctypes.addressof(extra))
    )


def run_child(
    source: str, devices: int = 1, variables=None, **settings
) -> subprocess.CompletedProcess:
    """Run Python source on the stand-in in a process that can import the repository.

    `variables` are further ones of its environment, `settings` those of the stand-in.
    """
    environment = {**standin.environment(devices, **settings), **(variables or {})}
    environment["NUMBA_CUDA_LOW_OCCUPANCY_WARNINGS"] = "0"
    command = [sys.executable, "-c", textwrap.dedent(source)]
    return subprocess.run(
        command,
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
