"""Native torch tensors in Numba CUDA kernels: layouts, views, and a fast launch."""

__version__ = "0.1.0"
