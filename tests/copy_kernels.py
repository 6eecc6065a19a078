"""The copy kernels acted out on the stand-in driver, thread by thread.

The stand-in runs no kernel; its device memory is host memory. What each thread of a
recorded launch would read and write is worked out here from the kernel's source, so
that the grid, the arguments and the thread's own arithmetic are tested without a GPU.
"""

import ctypes

import numpy as np

ROOM = 8


def act_out(launch):
    """Do what a recorded launch of one of the copy kernels does; ignore other kernels."""
    name, _, width = launch.function.rpartition("_")
    if name not in _KERNELS:
        return
    grid, block = launch.grid, launch.block
    assert grid[1:] == (1, 1)
    assert block[2] == 1
    assert block[0] * block[1] <= 1024
    axes = np.frombuffer(launch.parameters[2], np.int64).reshape(3, ROOM)
    signed = [int.from_bytes(raw, "little", signed=True) for raw in launch.parameters]
    moves = _KERNELS[name](grid[0], block, axes, *signed[3:])
    _move(launch.words[0], launch.words[1], moves, int(width))


def _move(dst, src, moves, width):
    # A kernel reads before it writes, and writes no place twice.
    targets = [target for target, _ in moves]
    assert len(set(targets)) == len(targets), "a place is written twice"
    held = [ctypes.string_at(src + source, width) for _, source in moves]
    for target, data in zip(targets, held, strict=True):
        ctypes.memmove(dst + target, data, width)


def _seek(axes, count, row):
    to = source = 0
    for i in range(count - 1, 0, -1):
        row, at = divmod(row, int(axes[0][i]))
        to += at * int(axes[1][i])
        source += at * int(axes[2][i])
    if count:
        to += row * int(axes[1][0])
        source += row * int(axes[2][0])
    return to, source


def _long(blocks, block, axes, count, inner, dst_step, src_step, pieces):
    moves = []
    for index in range(blocks):
        row, piece = divmod(index, pieces)
        to, source = _seek(axes, count, row)
        first = piece * 4 * block[0]
        moves += [
            (to + i * dst_step, source + i * src_step)
            for i in range(first, min(first + 4 * block[0], inner))
        ]
    return moves


def _short(blocks, block, axes, count, inner, dst_step, src_step, rows):
    assert inner <= block[0]
    moves = []
    for index in range(blocks):
        for y in range(4 * block[1]):
            row = index * 4 * block[1] + y
            if row < rows:
                to, source = _seek(axes, count, row)
                moves += [(to + x * dst_step, source + x * src_step) for x in range(inner)]
    return moves


def _tiled(blocks, block, axes, count, a, a_dst, a_src, b, b_dst, b_src, a_tiles, b_tiles):
    assert block[:2] == (32, 8)
    moves = []
    for index in range(blocks):
        row, rest = divmod(index, a_tiles * b_tiles)
        to, source = _seek(axes, count, row)
        a_first, b_first = rest // b_tiles * 32, rest % b_tiles * 32
        moves += [
            (to + i * a_dst + j * b_dst, source + i * a_src + j * b_src)
            for i in range(a_first, min(a_first + 32, a))
            for j in range(b_first, min(b_first + 32, b))
        ]
    return moves


_KERNELS = {"copy_long": _long, "copy_short": _short, "copy_tiled": _tiled}
