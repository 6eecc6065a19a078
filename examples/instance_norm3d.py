"""InstanceNorm3d, forward and backward, in one Numba kernel each, beside torch's.

A block takes one channel of one sample and reads it twice, for the sums and for the result.
"""

import math

import torch
from numba import cuda, uint64
from torch.autograd.function import once_differentiable
from torch.nn.functional import instance_norm

from common import DEVICE, DTYPES, SIMULATED, run

SHAPE = (2, 2, 2, 3, 3) if SIMULATED else (8, 32, 64, 64, 64)
THREADS = 4 if SIMULATED else 512  # a power of two: the sums halve it
ITEMS = 2 if SIMULATED else 8  # that a thread has in flight
TILE = THREADS * ITEMS
EPS = 1e-5


@cuda.jit(device=True)
def block_sum(value, partial):
    """Return the sum of `value` over the block, to each of its threads."""
    lane = cuda.threadIdx.x
    cuda.syncthreads()  # `partial` may still be read for the sum before
    partial[lane] = value
    cuda.syncthreads()
    step = THREADS // 2
    while step > 0:
        if lane < step:
            partial[lane] += partial[lane + step]
        cuda.syncthreads()
        step //= 2
    return partial[0]


@cuda.jit
def normalize(x, weight, bias, eps, out, mean, rstd):
    """Normalize a channel; keep its mean and 1 / standard deviation."""
    n, c, lane = cuda.blockIdx.y, cuda.blockIdx.x, cuda.threadIdx.x
    row, result = x[n, c], out[n, c]
    size = uint64(row.size)
    real = mean.dtype.type  # what the sums are kept in: float32 for halves
    partial = cuda.shared.array(THREADS, mean.dtype)

    # Sums of distances from the first value that the thread sees. It is one of the values,
    # so that a large mean cannot cancel the digits of the variance.
    count = total = squares = first = real(0)
    if lane < row.size:
        first = real(row[lane])
    for start in range(lane, row.size, TILE):
        for item in range(ITEMS):
            i = uint64(start + item * THREADS)  # unsigned: not counted from the end
            if i < size:
                distance = real(row[i]) - first
                count += real(1)
                total += distance
                squares += distance * distance
    centre = block_sum(count * first + total, partial) / real(row.size)
    if count > 0:
        distance = first + total / count - centre
        squares += count * distance * distance - total * total / count
    variance = block_sum(squares, partial) / real(row.size)

    scale = real(1) / math.sqrt(variance + real(eps))
    if lane == 0:
        mean[n, c] = centre
        rstd[n, c] = scale
    scale *= real(weight[c])
    shift = real(bias[c]) - centre * scale
    values = cuda.local.array(ITEMS, mean.dtype)
    for start in range(lane, row.size, TILE):
        # All loads before the stores, which might change what is loaded for all that the
        # compiler knows.
        for item in range(ITEMS):
            i = uint64(start + item * THREADS)
            if i < size:
                values[item] = real(row[i])
        for item in range(ITEMS):
            i = uint64(start + item * THREADS)
            if i < size:
                result[i] = values[item] * scale + shift


@cuda.jit
def differentiate(grad, x, weight, mean, rstd, grad_x, grad_weight, grad_bias):
    """Write a channel's gradients, those of weight and bias for its sample alone."""
    n, c, lane = cuda.blockIdx.y, cuda.blockIdx.x, cuda.threadIdx.x
    row, slope, result = x[n, c], grad[n, c], grad_x[n, c]
    size = uint64(row.size)
    real = mean.dtype.type
    partial = cuda.shared.array(THREADS, mean.dtype)
    centre, scale = mean[n, c], rstd[n, c]

    total = products = real(0)
    for start in range(lane, row.size, TILE):
        for item in range(ITEMS):
            i = uint64(start + item * THREADS)
            if i < size:
                total += real(slope[i])
                products += real(slope[i]) * (real(row[i]) - centre)
    total = block_sum(total, partial)
    products = block_sum(products, partial) * scale
    if lane == 0:
        grad_bias[n, c] = total
        grad_weight[n, c] = products

    # grad_x = weight * rstd * (slope - mean(slope) - normalized * mean(slope * normalized))
    factor = real(weight[c]) * scale
    tilt = -factor * scale * products / real(row.size)
    shift = -factor * total / real(row.size) - tilt * centre
    values = cuda.local.array(ITEMS, mean.dtype)
    for start in range(lane, row.size, TILE):
        for item in range(ITEMS):
            i = uint64(start + item * THREADS)
            if i < size:
                values[item] = factor * real(slope[i]) + tilt * real(row[i]) + shift
        for item in range(ITEMS):
            i = uint64(start + item * THREADS)
            if i < size:
                result[i] = values[item]


class InstanceNorm(torch.autograd.Function):
    """The two kernels as one operation of autograd."""

    @staticmethod
    def forward(ctx, x, weight, bias, eps):
        samples, channels = x.shape[:2]
        real = torch.promote_types(x.dtype, torch.float32)
        mean, rstd = torch.empty(2, samples, channels, dtype=real, device=x.device)
        out = torch.empty_like(x, memory_format=torch.contiguous_format)
        normalize[(channels, samples), THREADS](
            x.flatten(2), weight, bias, eps, out.flatten(2), mean, rstd
        )
        ctx.save_for_backward(x, weight, mean, rstd)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        x, weight, mean, rstd = ctx.saved_tensors
        samples, channels = x.shape[:2]
        grad_x = torch.empty_like(x, memory_format=torch.contiguous_format)
        by_sample = mean.new_empty(2, samples, channels)
        differentiate[(channels, samples), THREADS](
            grad.flatten(2), x.flatten(2), weight, mean, rstd, grad_x.flatten(2), *by_sample
        )
        grad_weight, grad_bias = by_sample.sum(1).to(weight.dtype)
        return grad_x, grad_weight, grad_bias, None


def ours(x, weight, bias):
    return InstanceNorm.apply(x, weight, bias, EPS)


def torchs(x, weight, bias):
    return instance_norm(x, weight=weight, bias=bias, eps=EPS)


def inputs(shape, dtype):
    """Return x, weight and bias; those of halves are float32, as under autocast."""
    x = torch.randn(shape, device=DEVICE).to(dtype) * 2 + 5
    parameters = torch.rand(2, shape[1], dtype=torch.promote_types(dtype, torch.float32))
    weight, bias = parameters.to(DEVICE)
    return [tensor.requires_grad_() for tensor in (x, weight, bias)]


def main(table):
    table.sizes = {"shape": SHAPE, "threads": THREADS}
    small = inputs((1, 2, 2, 3, 2), torch.float64)
    torch.autograd.gradcheck(ours, small, fast_mode=SIMULATED)
    for name, dtype in DTYPES.items():
        table.add_operation(name, ours, torchs, inputs(SHAPE, dtype))


if __name__ == "__main__":
    run(main)
