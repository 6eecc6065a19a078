"""The heat equation on a square: 100 steps of a stencil, captured in one CUDA graph.

Two buffers take turns. A launch goes to torch's current stream, so ``torch.cuda.graph``
captures it as it does torch's own operations; the graph is then launched as a whole.
"""

import torch
from numba import cuda, float32
from torch.nn.functional import conv2d

from common import DEVICE, SIMULATED, check, run

SIDE, STEPS = (9, 4) if SIMULATED else (2048, 100)
BLOCK = (4, 2) if SIMULATED else (32, 8)
GRID = tuple((SIDE + extent - 1) // extent for extent in BLOCK)
RATE = 0.2  # of what flows to the neighbours in a step; up to 0.25 is stable


@cuda.jit
def diffuse(heat, out, rate):
    """Write the next step to `out`; the edge stays as it is."""
    column, row = cuda.grid(2)
    if 0 < row < heat.shape[0] - 1 and 0 < column < heat.shape[1] - 1:
        here = heat[row, column]
        around = (
            heat[row - 1, column]
            + heat[row + 1, column]
            + heat[row, column - 1]
            + heat[row, column + 1]
        )
        out[row, column] = here + float32(rate) * (around - float32(4) * here)


def by_kernel(heat, out):
    diffuse[GRID, BLOCK](heat, out, RATE)


def by_slices(heat, out):
    here = heat[1:-1, 1:-1]
    around = heat[:-2, 1:-1] + heat[2:, 1:-1] + heat[1:-1, :-2] + heat[1:-1, 2:]
    out[1:-1, 1:-1] = here + RATE * (around - 4 * here)


def by_convolution(weights):
    """Return a step that is a convolution with these weights."""

    def step(heat, out):
        out[1:-1, 1:-1] = conv2d(heat[None, None], weights)[0, 0]

    return step


def simulation(step, start):
    """Return a function that runs all the steps from `start` and returns the last."""
    buffers = torch.stack((start, start))

    def simulate():
        buffers.copy_(start)
        for number in range(STEPS):
            step(buffers[number % 2], buffers[1 - number % 2])
        return buffers[STEPS % 2]

    return simulate


def captured(simulate):
    """Return a function that does the same by replaying a graph."""
    simulate()  # compiles, and allocates what a capture must not
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = simulate()
    result.zero_()  # so that nothing but a replay makes it right

    def replay():
        graph.replay()
        return result

    # The kernels' arguments have to live as long as the graph; our launches keep none.
    replay.simulate = simulate
    return replay


def main(table):
    table.sizes = {"side": SIDE, "steps": STEPS, "block": BLOCK}
    # Convolutions would otherwise round to 10 bits.
    torch.backends.cudnn.allow_tf32 = False
    start = torch.rand(SIDE, SIDE, device=DEVICE)
    weights = torch.tensor([[0, 1, 0], [1, -4, 1], [0, 1, 0]], device=DEVICE) * RATE
    weights[1, 1] += 1
    steps = {"slices": by_slices, "conv2d": by_convolution(weights[None, None])}

    ours = simulation(by_kernel, start)
    theirs = {name: simulation(step, start) for name, step in steps.items()}
    add_rows(table, "launch by launch", ours, theirs)
    if SIMULATED:
        print("The simulator has no graphs: the steps are run one by one only.")
        return
    graphs = {name: captured(simulate) for name, simulate in theirs.items()}
    add_rows(table, "one graph", captured(ours), graphs)


def add_rows(table, case, ours, theirs):
    """Check and time our way beside each of torch's."""
    for name, simulate in theirs.items():
        check(ours(), simulate())
        table.add(f"{case}; {name}", ours, simulate)


if __name__ == "__main__":
    run(main)
