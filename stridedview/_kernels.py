"""The CUDA C++ source of the copy kernels, and their compilation.

Owns the source and one compiled library per compute capability and item width.
NVRTC is asked only when the first copy needs a kernel; without it the caller has
another, slower way.
"""

import functools
from typing import Any

# Every address is computed in bytes; T is the widest type that all of them are aligned to.
# Four items are in flight per thread, as one 4-byte load per thread is too little to keep
# the memory busy.
SOURCE = r"""
typedef TYPE T;
typedef long long i64;
typedef unsigned int u32;

struct Axes { i64 extent[ROOM]; i64 dst[ROOM]; i64 src[ROOM]; };

// Move both pointers to row `row` of the outer axes; the outermost needs no division.
__device__ __forceinline__ void seek(
    const Axes& axes, int count, i64 row, char*& dst, const char*& src)
{
    for (int i = count - 1; i > 0; --i) {
        i64 at;
        if (row <= 0xffffffffll && axes.extent[i] <= 0xffffffffll) {
            u32 quotient = (u32)row / (u32)axes.extent[i];
            at = (u32)row - quotient * (u32)axes.extent[i];
            row = quotient;
        } else {
            i64 quotient = row / axes.extent[i];
            at = row - quotient * axes.extent[i];
            row = quotient;
        }
        dst += at * axes.dst[i];
        src += at * axes.src[i];
    }
    if (count) { dst += row * axes.dst[0]; src += row * axes.src[0]; }
}

// One long inner axis: a block walks a piece of it.
extern "C" __global__ void copy_long_WIDTH(
    char* dst, const char* src, Axes outer, int count, i64 inner, i64 dst_step,
    i64 src_step, i64 pieces)
{
    i64 row = blockIdx.x / pieces;
    i64 first = (blockIdx.x - row * pieces) * (4ll * blockDim.x) + threadIdx.x;
    seek(outer, count, row, dst, src);
    T held[4];
    #pragma unroll
    for (int k = 0; k < 4; ++k) {
        i64 i = first + k * (i64)blockDim.x;
        if (i < inner) held[k] = *(const T*)(src + i * src_step);
    }
    #pragma unroll
    for (int k = 0; k < 4; ++k) {
        i64 i = first + k * (i64)blockDim.x;
        if (i < inner) *(T*)(dst + i * dst_step) = held[k];
    }
}

// A short inner axis: threadIdx.x covers it, and each thread takes four rows.
extern "C" __global__ void copy_short_WIDTH(
    char* dst, const char* src, Axes outer, int count, i64 inner, i64 dst_step,
    i64 src_step, i64 rows)
{
    if (threadIdx.x >= inner) return;
    i64 first = (i64)blockIdx.x * (4 * blockDim.y) + threadIdx.y;
    T held[4];
    char* to[4];
    #pragma unroll
    for (int k = 0; k < 4; ++k) {
        i64 row = first + k * blockDim.y;
        to[k] = dst + threadIdx.x * dst_step;
        if (row < rows) {
            const char* from = src + threadIdx.x * src_step;
            seek(outer, count, row, to[k], from);
            held[k] = *(const T*)from;
        }
    }
    #pragma unroll
    for (int k = 0; k < 4; ++k)
        if (first + k * blockDim.y < rows) *(T*)to[k] = held[k];
}

// The two sides run fastest along different axes: tiles go through shared memory, read
// along b and written along a.
extern "C" __global__ void copy_tiled_WIDTH(
    char* dst, const char* src, Axes outer, int count, i64 a, i64 a_dst, i64 a_src,
    i64 b, i64 b_dst, i64 b_src, i64 a_tiles, i64 b_tiles)
{
    __shared__ T tile[32][33];
    i64 block = blockIdx.x;
    i64 row = block / (a_tiles * b_tiles);
    block -= row * a_tiles * b_tiles;
    i64 a_first = (block / b_tiles) * 32, b_first = (block % b_tiles) * 32;
    seek(outer, count, row, dst, src);
    #pragma unroll
    for (int k = 0; k < 32; k += 8) {
        i64 i = a_first + threadIdx.y + k, j = b_first + threadIdx.x;
        if (i < a && j < b)
            tile[threadIdx.y + k][threadIdx.x] = *(const T*)(src + i * a_src + j * b_src);
    }
    __syncthreads();
    #pragma unroll
    for (int k = 0; k < 32; k += 8) {
        i64 i = a_first + threadIdx.x, j = b_first + threadIdx.y + k;
        if (i < a && j < b)
            *(T*)(dst + i * a_dst + j * b_dst) = tile[threadIdx.x][threadIdx.y + k];
    }
}
"""

ROOM = 8  # outer axes that one launch can take
TYPES = {
    1: "unsigned char",
    2: "unsigned short",
    4: "unsigned int",
    8: "unsigned long long",
    16: "uint4",
}


class CompilerMissingError(RuntimeError):
    """NVRTC is not there, or cannot compile for the device; trying again is no use."""


@functools.cache
def compiled(capability: tuple[int, int], width: int) -> Any:
    """Return the compiled library for items of ``width`` bytes.

    Raises
    ------
    CompilerMissingError
        If NVRTC is not there or refuses; the result is not remembered then.
    """
    source = SOURCE
    for word, text in (("TYPE", TYPES[width]), ("ROOM", str(ROOM)), ("WIDTH", str(width))):
        source = source.replace(word, text)
    try:
        from cuda.core import Program, ProgramOptions

        options = ProgramOptions(arch=f"sm_{capability[0]}{capability[1]}")
        return Program(source, "c++", options=options).compile("cubin")
    except (ImportError, OSError, RuntimeError) as error:
        # NVRTC's alone: the driver has no part in it before the kernel is loaded.
        raise CompilerMissingError(str(error)) from error


@functools.cache
def kernel_handle(capability: tuple[int, int], width: int, name: str) -> int:
    """Return the handle (CUkernel) of ``copy_long``, ``copy_short`` or ``copy_tiled``.

    Raises
    ------
    CompilerMissingError
        As :func:`compiled`. What the driver refuses when it loads the kernel is cuda.core's
        error and not this one.
    """
    return int(compiled(capability, width).get_kernel(f"{name}_{width}").handle)
