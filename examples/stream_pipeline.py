"""Chunks of host data go through the GPU on several streams: copies overlap with kernels.

The work is Kepler's equation, ``E - e * sin(E) = M``, solved by Newton's method for a chunk
of M at a time. A launch goes to torch's current stream, behind the copy that fills its
chunk and before the one that fetches it: ``with torch.cuda.stream(...)`` is all it takes.
"""

import itertools
import math

import torch
from numba import cuda, float32

from common import DEVICE, SIMULATED, check, run, synchronize

CHUNKS, CHUNK = (4, 6) if SIMULATED else (16, 1 << 22)
STREAMS = 4
THREADS = 4 if SIMULATED else 256
GRID = (CHUNK + THREADS - 1) // THREADS
ECCENTRICITY = 0.6
ITERATIONS = 8


@cuda.jit(fastmath=True)  # its sine is good to 7 digits for the angles that occur
def solve(mean, eccentric, eccentricity):
    """Write the eccentric anomaly of each mean anomaly."""
    i = cuda.grid(1)
    if i < mean.size:
        m, e, one = mean[i], float32(eccentricity), float32(1)
        x = m + e * math.sin(m)
        for _ in range(ITERATIONS):
            x -= (x - e * math.sin(x) - m) / (one - e * math.cos(x))
        eccentric[i] = x


def by_kernel(mean, eccentric):
    solve[GRID, THREADS](mean, eccentric, ECCENTRICITY)


def by_torch(mean, eccentric):
    e = ECCENTRICITY
    x = mean + e * mean.sin()
    for _ in range(ITERATIONS):
        x -= (x - e * x.sin() - mean) / (1 - e * x.cos())
    eccentric.copy_(x)


class Pipeline:
    """Solves chunk after chunk, on a number of streams in turns.

    Each stream has device buffers of its own, for one of its chunks after the other: its
    order is all the order there has to be. The host has to wait for the result.
    """

    def __init__(self, work, count, mean):
        self.work = work
        self.mean = mean
        self.result = on_host(torch.empty_like(mean))
        buffers = torch.empty(count, 2, CHUNK, device=DEVICE)
        self.lanes = [(stream(), *pair) for pair in buffers]
        synchronize()  # with whatever used the memory of the buffers before

    def __call__(self):
        chunks = zip(self.mean, self.result, itertools.cycle(self.lanes), strict=False)
        for source, target, (lane, mean, eccentric) in chunks:
            with torch.cuda.stream(lane):
                mean.copy_(source, non_blocking=True)
                self.work(mean, eccentric)
                target.copy_(eccentric, non_blocking=True)


def stream():
    """Return a new stream; None, which ``torch.cuda.stream`` ignores, in the simulator."""
    return None if SIMULATED else torch.cuda.Stream()


def on_host(tensor):
    """Return a tensor in page-locked memory: only that is copied while the host goes on."""
    return tensor if SIMULATED else tensor.pin_memory()


def main(table):
    table.sizes = {"chunks": CHUNKS, "chunk": CHUNK, "iterations": ITERATIONS}
    if SIMULATED:
        print("The simulator has no streams: the chunks are solved one after the other.")
    mean = on_host(torch.empty(CHUNKS, CHUNK))
    pipelines = {
        f"{count} stream{'s' * (count > 1)}": [
            Pipeline(work, count, mean) for work in (by_kernel, by_torch)
        ]
        for count in (1, STREAMS)
    }
    for case, pair in pipelines.items():
        for pipeline in pair:
            check_for_races(pipeline, mean)
        table.add(case, *pair)


def check_for_races(pipeline, mean):
    """Solve other numbers each time, so that a chunk read too early is an old one."""
    for _ in range(3):
        mean.uniform_(-math.pi, math.pi)
        at_once = torch.empty(mean.shape, device=DEVICE)
        by_torch(mean.to(DEVICE), at_once)
        pipeline()
        synchronize()
        check(pipeline.result, at_once.to("cpu"))


if __name__ == "__main__":
    run(main)
