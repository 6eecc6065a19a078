"""An LSTM cell unrolled over 100 steps: launches so small that the host sets the pace.

Each step is two matrix products of torch's and one kernel for all that is pointwise, in
place of ten of torch's, or of those that torch has fused for nn.LSTMCell.
"""

import math

import torch
from numba import cuda, float32
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear

import stridedview
from common import DEVICE, SIMULATED, check, run

STEPS, BATCH, INPUTS, HIDDEN = (3, 2, 3, 4) if SIMULATED else (100, 64, 256, 256)
THREADS = 4 if SIMULATED else 128
GRID = (HIDDEN + THREADS - 1) // THREADS, BATCH


@cuda.jit(device=True)
def sigmoid(x):
    return float32(1) / (float32(1) + math.exp(-x))


@cuda.jit
def cell_forward(from_x, from_h, c, new_h, new_c, gates):
    """Write the next state, and the gates' values for the backward: i, f, g, o."""
    column, row = cuda.grid(2)
    width = c.shape[1]
    if column >= width:
        return
    at_f, at_g, at_o = column + width, column + 2 * width, column + 3 * width
    i = sigmoid(from_x[row, column] + from_h[row, column])
    f = sigmoid(from_x[row, at_f] + from_h[row, at_f])
    g = math.tanh(from_x[row, at_g] + from_h[row, at_g])
    o = sigmoid(from_x[row, at_o] + from_h[row, at_o])
    state = f * c[row, column] + i * g
    new_c[row, column] = state
    new_h[row, column] = o * math.tanh(state)
    gates[row, column] = i
    gates[row, at_f] = f
    gates[row, at_g] = g
    gates[row, at_o] = o


@cuda.jit
def cell_backward(grad_h, grad_c, gates, c, new_c, grad_gates, grad_old_c):
    """Write the gradients of the gates' inputs and of the old state."""
    column, row = cuda.grid(2)
    width = c.shape[1]
    if column >= width:
        return
    at_f, at_g, at_o = column + width, column + 2 * width, column + 3 * width
    i, f = gates[row, column], gates[row, at_f]
    g, o = gates[row, at_g], gates[row, at_o]
    one, squashed = float32(1), math.tanh(new_c[row, column])
    slope = grad_c[row, column] + grad_h[row, column] * o * (one - squashed * squashed)
    grad_gates[row, column] = slope * g * i * (one - i)
    grad_gates[row, at_f] = slope * c[row, column] * f * (one - f)
    grad_gates[row, at_g] = slope * i * (one - g * g)
    grad_gates[row, at_o] = grad_h[row, column] * squashed * o * (one - o)
    grad_old_c[row, column] = slope * f


def launch(from_x, from_h, c):
    """Return h and c after a step, and the gates' values."""
    new_h, new_c, gates = torch.empty_like(c), torch.empty_like(c), torch.empty_like(from_x)
    cell_forward[GRID, THREADS](from_x, from_h, c, new_h, new_c, gates)
    return new_h, new_c, gates


class Cell(torch.autograd.Function):
    """What is pointwise in a step, as one operation of autograd."""

    @staticmethod
    def forward(ctx, from_x, from_h, c):
        new_h, new_c, gates = launch(from_x, from_h, c)
        ctx.save_for_backward(gates, c, new_c)
        return new_h, new_c

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_h, grad_c):
        gates, c, new_c = ctx.saved_tensors
        grad_gates, grad_old_c = torch.empty_like(gates), torch.empty_like(c)
        written = grad_gates, grad_old_c
        cell_backward[GRID, THREADS](grad_h, grad_c, gates, c, new_c, *written)
        return grad_gates, grad_gates, grad_old_c


def fused(from_x, from_h, c):
    if torch.is_grad_enabled():
        return Cell.apply(from_x, from_h, c)
    return launch(from_x, from_h, c)[:2]


def pointwise(from_x, from_h, c):
    i, f, g, o = (from_x + from_h).chunk(4, dim=1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def unroll(cell, weights, xs, h, c):
    """Run the steps, with a function for what is pointwise in them; return the last h."""
    w_x, w_h, b_x, b_h = weights
    for x in xs:
        h, c = cell(linear(x, w_x, b_x), linear(h, w_h, b_h), c)
    return h


def unroll_module(module, xs, h, c):
    """Run the steps with nn.LSTMCell; return the last h."""
    for x in xs:
        h, c = module(x, (h, c))
    return h


def prepare(weights, xs, h, c):
    """Return a function that runs the steps in buffers, with all its launches packed."""
    w_x, w_h, b_x, b_h = weights
    w_x, w_h = w_x.T, w_h.T
    from_x, from_h, gates = h.new_empty(3, BATCH, 4 * HIDDEN)
    hs, cs = [h, *h.new_empty(STEPS, *h.shape)], [c, *c.new_empty(STEPS, *c.shape)]
    cell = cell_forward[GRID, THREADS]
    launches = [
        stridedview.prepare(cell, from_x, from_h, cs[t], hs[t + 1], cs[t + 1], gates)
        for t in range(STEPS)
    ]

    @torch.no_grad()
    def unroll_prepared():
        for x, old_h, launch_cell in zip(xs, hs, launches, strict=False):
            torch.addmm(b_x, x, w_x, out=from_x)
            torch.addmm(b_h, old_h, w_h, out=from_h)
            launch_cell()
        return hs[-1]

    return unroll_prepared


def main(table):
    table.sizes = {"steps": STEPS, "batch": BATCH, "inputs": INPUTS, "hidden": HIDDEN}
    module = torch.nn.LSTMCell(INPUTS, HIDDEN, device=DEVICE)
    weights = list(module.parameters())
    xs = torch.randn(STEPS, BATCH, INPUTS, device=DEVICE).unbind()
    h, c = torch.randn(2, BATCH, HIDDEN, device=DEVICE)
    forward = {
        "ours": lambda: unroll(fused, weights, xs, h, c),
        "pointwise": lambda: unroll(pointwise, weights, xs, h, c),
        "nn.LSTMCell": lambda: unroll_module(module, xs, h, c),
    }
    slope = torch.randn(BATCH, HIDDEN, device=DEVICE)
    both = {
        name: lambda way=way: torch.autograd.grad(way(), weights, slope)
        for name, way in forward.items()
    }
    forward = {name: torch.no_grad()(way) for name, way in forward.items()}
    add_rows(table, "forward", forward)
    if SIMULATED:
        print("The simulator has no prepared launches: their rows are left out.")
    else:
        prepared = prepare(weights, xs, h, c)
        add_rows(table, "forward, prepared", {**forward, "ours": prepared})
    add_rows(table, "forward and backward", both)


def add_rows(table, case, ways):
    """Check and time our way beside torch's two."""
    for other in ("pointwise", "nn.LSTMCell"):
        check(ways["ours"](), ways[other]())
        table.add(f"{case}; {other}", ways["ours"], ways[other])


if __name__ == "__main__":
    run(main)
