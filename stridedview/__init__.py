"""Native torch tensors in Numba CUDA kernels: layouts, views, and a fast launch."""

from stridedview._layout import Layout

__all__ = ["Layout"]
__version__ = "0.1.0"
