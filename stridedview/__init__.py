"""Native torch tensors in Numba CUDA kernels: layouts, views, and a fast launch."""

import stridedview._export  # noqa: F401 (adds its members to StridedView)
from stridedview._layout import Layout
from stridedview._view import StridedView

__all__ = ["Layout", "StridedView"]
__version__ = "0.1.0"
