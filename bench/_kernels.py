"""The empty kernels, written out because Triton and Numba read their source."""

# ruff: noqa: ARG001, E741 - an empty kernel uses none of its 26 letters

import string

NUMBERS = (1, 3, 26)


def empty_1(a):
    return


def empty_2(a, b):
    return


def empty_3(a, b, c):
    return


def empty_26(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t, u, v, w, x, y, z):
    return


EMPTY = {1: empty_1, 3: empty_3, 26: empty_26}


def cuda_source(number):
    """Return the same kernel in CUDA C++, taking pointers."""
    parameters = ", ".join(f"float *{name}" for name in string.ascii_lowercase[:number])
    return f'extern "C" __global__ void empty_{number}({parameters}) {{}}'
