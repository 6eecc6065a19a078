"""The errors of a launch, which programs catch without importing Numba.

Owns the class that a refused launch raises. It imports cuda.core, whose error it also is,
so it is not imported before a launch failed or somebody asked for the class.
"""

from __future__ import annotations

from stridedview._driver import DriverError

try:
    # Numba's users catch what cuda.core raises from a launch.
    from cuda.core._utils.cuda_utils import CUDAError
except ImportError:
    CUDAError = RuntimeError


class LaunchError(DriverError, CUDAError):  # type: ignore[misc,unused-ignore]
    """The driver refused a launch, or would: its limits are known to be exceeded.

    It is a :class:`stridedview.DriverError`, with the driver's ``code``, and cuda.core's
    CUDAError. Where the launch itself asks for too much it is a ValueError too.
    """
