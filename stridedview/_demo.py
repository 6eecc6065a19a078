"""The main job in small: a softmax kernel on torch tensors, checked and timed.

Owns what ``python -m stridedview demo`` runs. With a GPU it launches on CUDA tensors and
prints what a launch costs beside its peers. Without one it starts itself again in Numba's
CUDA simulator and runs the same kernel on CPU tensors.
"""

from __future__ import annotations

import ctypes
import functools
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from numba import cuda, float32

import stridedview
from stridedview import _status, _switch

THREADS = 64  # a power of two: the reductions halve it
BURST = 150  # launches that surely fit the driver's queue, so that none has to wait
BURSTS = 30

_SIMULATOR = {"NUMBA_ENABLE_CUDASIM": "1"}


@cuda.jit  # type: ignore[untyped-decorator,unused-ignore]
def softmax_rows(x, out):  # type: ignore[no-untyped-def]
    """Write the softmax of each row of `x` to `out`; a block takes a row."""
    row = cuda.blockIdx.x
    lane = cuda.threadIdx.x
    partial = cuda.shared.array(THREADS, float32)

    largest = float32(-math.inf)
    for column in range(lane, x.shape[1], THREADS):
        largest = max(largest, x[row, column])
    partial[lane] = largest
    cuda.syncthreads()
    step = THREADS // 2
    while step > 0:
        if lane < step:
            partial[lane] = max(partial[lane], partial[lane + step])
        cuda.syncthreads()
        step //= 2
    largest = partial[0]
    # Every thread has to have read it before the buffer is used again.
    cuda.syncthreads()

    total = float32(0)
    for column in range(lane, x.shape[1], THREADS):
        total += math.exp(x[row, column] - largest)
    partial[lane] = total
    cuda.syncthreads()
    step = THREADS // 2
    while step > 0:
        if lane < step:
            partial[lane] += partial[lane + step]
        cuda.syncthreads()
        step //= 2
    total = partial[0]

    for column in range(lane, x.shape[1], THREADS):
        out[row, column] = math.exp(x[row, column] - largest) / total


def main() -> int:
    """Run the demo and return the exit status: 0 if the result is right."""
    if os.environ.get("NUMBA_ENABLE_CUDASIM") == "1":
        return _report(_check("cpu", rows=8, columns=100))
    reason = _no_gpu_reason()
    if reason:
        print(f"No GPU: {reason}.")
        print("Running the kernel on CPU tensors in Numba's CUDA simulator instead.")
        return _rerun_in_simulator()
    print(f"GPU: {torch.cuda.get_device_name()}")
    status = _report(_check("cuda", rows=512, columns=1000))
    _print_costs()
    return status


def _no_gpu_reason() -> str:
    """Return why the demo cannot run on a GPU, or "" if it can."""
    facts = _status.driver_facts()
    if facts["reason"]:
        return str(facts["reason"])
    if not torch.cuda.is_available():
        return f"torch {torch.__version__} cannot use the one that the driver sees"
    return ""


def _rerun_in_simulator() -> int:
    # Numba reads the variable once, when it is imported: hence another process.
    sys.stdout.flush()
    command = [sys.executable, "-m", "stridedview", "demo"]
    return subprocess.run(command, env={**os.environ, **_SIMULATOR}, check=False).returncode


def _check(device: str, rows: int, columns: int) -> float:
    """Run the kernel on a strided tensor and return its largest error against torch."""
    # Transposed, so that a kernel that took it for contiguous would give a wrong result.
    x = torch.randn(columns, rows, device=device).T
    out = torch.empty(rows, columns, device=device)
    with stridedview.enabled():
        softmax_rows[rows, THREADS](x, out)
    return float((out - torch.softmax(x, dim=1)).abs().max())


def _report(error: float) -> int:
    right = error < 1e-6
    verdict = "matches" if right else "DIFFERS FROM"
    print(f"softmax of a strided torch tensor {verdict} torch.softmax: {error:.1e} off")
    return 0 if right else 1


def _print_costs() -> None:
    """Print what a launch costs with us, without us, and by the bare driver call."""
    x = torch.randn(64, 128, device="cuda")
    out = torch.empty_like(x)

    def launch() -> None:
        softmax_rows[len(x), THREADS](x, out)

    with stridedview.enabled():
        ours = _microseconds(launch)
    # Also where stridedview is enabled for the whole process.
    options = _switch.options()
    stridedview.disable()
    try:
        unpatched = _microseconds(launch)
        raw = _microseconds(_raw_launch(x, out))
    finally:
        if options is not None:
            stridedview.enable(**options)
    print(f"Host cost of a launch, median of {BURSTS} bursts of {BURST}, 2 torch tensors:")
    rows = (
        ("raw cuLaunchKernel (through ctypes)", raw),
        ("stridedview", ours),
        ("numba-cuda, unpatched", unpatched),
    )
    for name, cost in rows:
        print(f"  {name:<36}{cost:8.2f} us")


def _microseconds(launch: Callable[[], object]) -> float:
    """Return the median host time of a launch in microseconds."""
    launch()
    costs = []
    for _ in range(BURSTS):
        torch.cuda.synchronize()
        start = time.perf_counter_ns()
        for _ in range(BURST):
            launch()
        costs.append((time.perf_counter_ns() - start) / BURST / 1000)
    torch.cuda.synchronize()
    return statistics.median(costs)


def _raw_launch(x: Any, out: Any) -> Callable[[], object]:
    """Return a call of the driver with the bytes that Numba's launch would pass.

    Takes the overload that was compiled last, so a launch with the same tensors has to
    come before it.
    """
    from cuda.bindings import driver

    overload = list(softmax_rows.overloads.values())[-1]
    handle = overload._codelibrary.get_cufunc().kernel.handle
    code, function = driver.cuKernelGetFunction(driver.CUkernel(int(handle)))
    _require_success(driver, code)
    code, address, _ = driver.cuGetProcAddress(b"cuLaunchKernel", 12000, 0)
    _require_success(driver, code)
    # CUDA's calling convention on Windows is that of WINFUNCTYPE.
    prototype = getattr(ctypes, "WINFUNCTYPE", ctypes.CFUNCTYPE)
    call = prototype(
        ctypes.c_int, ctypes.c_void_p, *[ctypes.c_uint] * 7, *[ctypes.c_void_p] * 3
    )(int(address))
    parameters = _array_words(x) + _array_words(out)
    words = (ctypes.c_int64 * len(parameters))(*parameters)
    size = ctypes.c_size_t(ctypes.sizeof(words))
    # CU_LAUNCH_PARAM_BUFFER_POINTER, _BUFFER_SIZE, _END
    extra = (ctypes.c_void_p * 5)(1, ctypes.addressof(words), 2, ctypes.addressof(size), 0)
    arguments = (int(function), len(x), 1, 1, THREADS, 1, 1, 0, None, None, extra)
    launch = functools.partial(call, *arguments)
    # The driver reads these at each call: they have to live as long as it may be made.
    launch.buffers = (words, size)  # type: ignore[attr-defined]
    if launch():
        raise RuntimeError("the driver refused the raw launch")
    return launch


def _require_success(driver: Any, code: Any) -> None:
    if code != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"the driver answered {code.name}")


def _array_words(tensor: Any) -> list[int]:
    """Return an array parameter as Numba lays it out: 5 + 2 * ndim words."""
    itemsize = tensor.element_size()
    strides = [stride * itemsize for stride in tensor.stride()]
    return [0, 0, tensor.numel(), itemsize, tensor.data_ptr(), *tensor.shape, *strides]
