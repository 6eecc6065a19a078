"""Bias, GELU, a scale a column and the residual, fused into one kernel each way.

``residual + gamma * gelu(x + bias)`` is four kernels in eager torch, and each of them reads
and writes everything again; its backward is more.
"""

import math

import torch
from numba import cuda, float32, uint64
from torch.autograd.function import once_differentiable
from torch.nn.functional import gelu

from common import DEVICE, DTYPES, SIMULATED, run

ROWS, COLUMNS = (10, 6) if SIMULATED else (8192, 4096)
THREADS = 4 if SIMULATED else 256  # a block's columns
ITEMS = 4  # rows of its column that a thread has in flight
STRIPS = 2 if SIMULATED else 128  # parts of the rows, in the backward

SQRT_HALF = float32(math.sqrt(0.5))
DENSITY = float32(1 / math.sqrt(2 * math.pi))  # of the normal distribution, at 0


@cuda.jit(device=True, fastmath=True)
def normal_cdf(x):
    """Return the share of a normal distribution below x: GELU is ``x * normal_cdf(x)``."""
    return float32(0.5) * (float32(1) + math.erf(x * SQRT_HALF))


@cuda.jit(fastmath=True)
def fused_forward(x, bias, gamma, residual, out):
    """Write ``residual + gamma * gelu(x + bias)``, a thread ITEMS rows of a column."""
    column, strip = cuda.grid(2)
    if column >= x.shape[1]:
        return
    rows = uint64(x.shape[0])
    shift, scale = float32(bias[column]), float32(gamma[column])
    inputs, bases = cuda.local.array(ITEMS, float32), cuda.local.array(ITEMS, float32)
    # All loads come before the stores, which for all that the compiler knows might change
    # what is loaded. Unsigned indices are not counted from the end.
    for item in range(ITEMS):
        row = uint64(strip * ITEMS + item)
        if row < rows:
            inputs[item] = float32(x[row, column])
            bases[item] = float32(residual[row, column])
    for item in range(ITEMS):
        row = uint64(strip * ITEMS + item)
        if row < rows:
            z = inputs[item] + shift
            out[row, column] = bases[item] + scale * z * normal_cdf(z)


@cuda.jit(fastmath=True)
def fused_backward(grad, x, bias, gamma, grad_x, grad_bias, grad_gamma):
    """Write the gradient of x, and those of bias and gamma for the thread's strip alone."""
    column, strip = cuda.grid(2)
    if column >= x.shape[1]:
        return
    rows = uint64(x.shape[0])
    shift, scale = float32(bias[column]), float32(gamma[column])
    inputs, slopes = cuda.local.array(ITEMS, float32), cuda.local.array(ITEMS, float32)
    bias_sum = gamma_sum = float32(0)
    for start in range(strip * ITEMS, x.shape[0], STRIPS * ITEMS):
        for item in range(ITEMS):
            row = uint64(start + item)
            if row < rows:
                inputs[item] = float32(x[row, column])
                slopes[item] = float32(grad[row, column])
        for item in range(ITEMS):
            row = uint64(start + item)
            if row < rows:
                z = inputs[item] + shift
                below = normal_cdf(z)
                density = DENSITY * math.exp(float32(-0.5) * z * z)
                slope = slopes[item] * scale * (below + z * density)
                grad_x[row, column] = slope
                bias_sum += slope
                gamma_sum += slopes[item] * z * below
    grad_bias[strip, column] = bias_sum
    grad_gamma[strip, column] = gamma_sum


def blocks(items, size):
    """Return how many blocks of a size it takes for so many items."""
    return (items + size - 1) // size


class FusedLayer(torch.autograd.Function):
    """The two kernels as one operation of autograd."""

    @staticmethod
    def forward(ctx, x, bias, gamma, residual):
        out = torch.empty_like(residual)
        rows, columns = x.shape
        grid = blocks(columns, THREADS), blocks(rows, ITEMS)
        fused_forward[grid, (THREADS, 1)](x, bias, gamma, residual, out)
        ctx.save_for_backward(x, bias, gamma)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        x, bias, gamma = ctx.saved_tensors
        grad_x = torch.empty_like(x)
        sums = torch.empty(2, STRIPS, x.shape[1], dtype=torch.float32, device=x.device)
        grid = blocks(x.shape[1], THREADS), STRIPS
        fused_backward[grid, (THREADS, 1)](grad, x, bias, gamma, grad_x, *sums)
        grad_bias, grad_gamma = sums.sum(1).to(x.dtype)
        return grad_x, grad_bias, grad_gamma, grad


def eager(x, bias, gamma, residual):
    return residual + gamma * gelu(x + bias)


def main(table):
    table.sizes = {"rows": ROWS, "columns": COLUMNS, "threads": THREADS}
    shapes = (ROWS, COLUMNS), (COLUMNS,), (COLUMNS,), (ROWS, COLUMNS)
    for name, dtype in DTYPES.items():
        inputs = [
            torch.randn(shape, device=DEVICE).to(dtype).requires_grad_() for shape in shapes
        ]
        table.add_operation(name, FusedLayer.apply, eager, inputs)


if __name__ == "__main__":
    run(main)
