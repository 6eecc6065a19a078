"""What the examples share: where they run, what a call costs, the table of the two ways.

Without a GPU an example runs in Numba's CUDA simulator, on CPU tensors of a few items.
"""

import argparse
import datetime
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch
from numba import cuda

import stridedview

SIMULATED = bool(cuda.config.ENABLE_CUDASIM)
DEVICE = "cpu" if SIMULATED else "cuda"
DTYPES = {"float32": torch.float32}
if not SIMULATED:
    DTYPES["float16"] = torch.float16

ROUNDS = 1 if SIMULATED else 20
BURST_SECONDS = 0.005  # long enough to time, short enough not to fill the launch queue

COLUMNS = ("ours", "torch", "torch/ours", "host: ours", "torch", "kernels: ours", "torch")
PACKAGES = ("numba-cuda", "cuda-core", "torch", "numpy")

# How far from torch's a result may be, as a share of its largest item.
TOLERANCES = {torch.float32: 2e-5, torch.float16: 4e-3}


def run(main):
    """Run an example: ``main(table)`` checks its results and adds its rows to the table."""
    parser = argparse.ArgumentParser(description=sys.modules[main.__module__].__doc__)
    parser.add_argument("--json", metavar="PATH", help="also write the figures there")
    options = parser.parse_args()
    if not SIMULATED and not torch.cuda.is_available():
        print("No GPU: running in Numba's CUDA simulator instead.", flush=True)
        sys.exit(_run_in_simulator())
    cuda.config.CUDA_LOW_OCCUPANCY_WARNINGS = 0  # a check may be small
    stridedview.enable()
    torch.manual_seed(0)
    table = Table(Path(sys.argv[0]).stem)
    main(table)
    table.count_kernels()
    print(table)
    if options.json:
        Path(options.json).write_text(json.dumps(table.to_dict(), indent=1) + "\n")


def check(found, expected):
    """Raise AssertionError unless tensors, or sequences of them, are as torch's."""
    for ours, torchs in zip(_sequence(found), _sequence(expected), strict=True):
        limit = TOLERANCES[torchs.dtype] * float(torchs.detach().abs().max())
        torch.testing.assert_close(ours, torchs, rtol=0, atol=limit)


def _sequence(tensors):
    return [tensors] if isinstance(tensors, torch.Tensor) else tensors


def _run_in_simulator():
    # Numba reads the variable once, when it is imported: hence another process.
    environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": "1"}
    command = [sys.executable, *sys.argv]
    return subprocess.run(command, env=environment, check=False).returncode


class Table:
    """The rows of an example: the same work done by our kernels and by torch."""

    def __init__(self, name):
        self.name = name
        self.sizes = {}
        self.rows = []
        self._calls = []

    def add(self, case, ours, torchs):
        """Time two callables that do the same, in turns, and keep them as a row."""
        row = {"case": case}
        found = _times(ours, torchs)
        for side, (whole, host) in zip(("ours", "torch"), found, strict=True):
            row[f"{side}_us"] = whole
            row[f"{side}_host_us"] = host
            row[f"{side}_kernels"] = None
        self.rows.append(row)
        self._calls.append((ours, torchs))

    def add_operation(self, name, ours, torchs, inputs):
        """Check an operation's value and gradients against torch's, and time both."""
        results = ours(*inputs), torchs(*inputs)
        check(*results)
        slope = torch.randn_like(results[1])

        def gradients(result):
            return torch.autograd.grad(result, inputs, slope, retain_graph=True)

        check(*map(gradients, results))
        self.add(f"{name} forward", lambda: ours(*inputs), lambda: torchs(*inputs))
        backwards = (lambda result=result: gradients(result) for result in results)
        self.add(f"{name} backward", *backwards)

    def count_kernels(self):
        """Count the kernels of each call; after all timing, since a profiler slows it."""
        if SIMULATED:
            return
        for row, (ours, torchs) in zip(self.rows, self._calls, strict=True):
            row["ours_kernels"] = _kernels(ours)
            row["torch_kernels"] = _kernels(torchs)

    def to_dict(self):
        """Return the rows with what they depend on, for JSON."""
        now = datetime.datetime.now(datetime.timezone.utc)
        return {
            "example": self.name,
            "date": now.isoformat(timespec="seconds"),
            "machine": {
                "device": _device_name(),
                "system": f"{platform.system()} {platform.machine()}",
                "python": platform.python_version(),
            },
            "versions": {
                "stridedview": stridedview.__version__,
                "cuda": torch.version.cuda,
                **{name: importlib.metadata.version(name) for name in PACKAGES},
            },
            "sizes": self.sizes,
            "rows": self.rows,
        }

    def __str__(self):
        title = f"{self.name} on {_device_name()}, microseconds an iteration:"
        lines = [("", *COLUMNS), *map(_cells, self.rows)]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        return "\n".join([title, *(_line(cells, widths) for cells in lines)])


def _cells(row):
    def pair(suffix, form):
        values = (row[f"{side}_{suffix}"] for side in ("ours", "torch"))
        return ["-" if value is None else format(value, form) for value in values]

    ratio = f"{row['torch_us'] / row['ours_us']:.2f}x"
    return (
        row["case"],
        *pair("us", ",.1f"),
        ratio,
        *pair("host_us", ",.1f"),
        *pair("kernels", "d"),
    )


def _line(cells, widths):
    first, *others = map(str.rjust, cells, widths)
    return "  ".join([first.strip().ljust(widths[0]), *others]).rstrip()


def _device_name():
    if SIMULATED:
        return "the simulator (no measure of a GPU)"
    return torch.cuda.get_device_name()


def _times(*calls):
    """Return each call's median microseconds: till the GPU is done, and on the host."""
    sizes = [_burst_size(call) for call in calls]
    samples = [[] for _ in calls]
    for _ in range(ROUNDS):
        for call, size, sample in zip(calls, sizes, samples, strict=True):
            sample.append(_burst(call, size))
    return [
        tuple(statistics.median(column) for column in zip(*sample, strict=True))
        for sample in samples
    ]


def _burst_size(call):
    if SIMULATED:
        return 1
    call()  # compiles, fills caches
    whole, _ = min(_burst(call, 1) for _ in range(3))
    return max(1, min(100, int(BURST_SECONDS * 1e6 / whole)))


def _burst(call, size):
    synchronize()
    start = time.perf_counter_ns()
    for _ in range(size):
        call()
    issued = time.perf_counter_ns()
    synchronize()
    done = time.perf_counter_ns()
    return (done - start) / size / 1000, (issued - start) / size / 1000


def synchronize():
    """Wait for the GPU, if there is one."""
    if not SIMULATED:
        torch.cuda.synchronize()


def _kernels(call):
    """Return how many kernels the GPU runs for a call, or None if nobody can tell."""
    activity = torch.profiler.ProfilerActivity.CUDA
    if activity not in torch.profiler.supported_activities():
        return None
    with torch.profiler.profile(activities=[activity], acc_events=True) as profile:
        call()
        synchronize()
    names = [
        event.name
        for event in profile.events()
        if event.device_type == torch.autograd.DeviceType.CUDA
    ]
    # Nothing at all means that the profiler may not look at this GPU.
    return sum(not name.startswith(("Memcpy", "Memset")) for name in names) or None
