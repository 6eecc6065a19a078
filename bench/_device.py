"""Where the arrays of a measurement live: the GPU, the stand-in driver, or the host.

Owns the making of arrays, so that a topic asks for "three torch tensors" and need
not know which driver is underneath.
"""

import functools
import importlib
import os

import numpy

from bench import _floor
from bench._harness import UnavailableError, reason

EXTENT = 128
DTYPE = "float32"


class Device:
    """The device of one run.

    Parameters
    ----------
    options : Options
        ``standin`` puts the stand-in driver of the tests in the driver's place.
    """

    def __init__(self, options):
        self.standin = None
        self.missing = None
        try:
            if options.standin:
                self.standin = importlib.import_module("tests.standin")
                self.standin.load()
                self.standin.recording(False)
            self._probe()
        except Exception as error:  # noqa: BLE001 - no driver, no device: all are "not here"
            self.missing = reason(error)

    @staticmethod
    def _probe():
        _floor.loaded()
        # One block is meant: Numba need not warn of it.
        os.environ.setdefault("NUMBA_CUDA_LOW_OCCUPANCY_WARNINGS", "0")
        from numba import cuda

        if not cuda.is_available():
            raise UnavailableError("Numba finds no CUDA device")
        cuda.current_context()

    @property
    def present(self):
        return self.missing is None

    def require(self):
        """Raise if there is no device."""
        if self.missing:
            raise UnavailableError(f"no CUDA device ({self.missing})")

    def sync(self):
        """Wait for the device, if there is one."""
        if self.present:
            _floor.module().synchronize()

    def torch_tensor(self, shape=(EXTENT,), dtype=DTYPE):
        """Return a torch tensor on the device; its values are not set."""
        self.require()
        torch = peer("torch")
        if self.standin:
            return self.standin.torch_tensor(shape, getattr(torch, dtype))
        return torch.empty(shape, dtype=getattr(torch, dtype), device="cuda:0")

    def any_torch_tensor(self, shape=(EXTENT,), dtype=DTYPE):
        """Return a torch tensor on the device, or on the host if there is none."""
        if self.present:
            return self.torch_tensor(shape, dtype)
        torch = peer("torch")
        return torch.empty(shape, dtype=getattr(torch, dtype))

    def device_array(self, shape=(EXTENT,), dtype=DTYPE):
        """Return a DeviceNDArray; its values are not set."""
        self.require()
        return peer("numba.cuda").device_array(shape, numpy.dtype(dtype))

    def cupy_array(self, shape=(EXTENT,), dtype=DTYPE):
        """Return a CuPy array; its values are not set."""
        self.require()
        return peer("cupy").empty(shape, dtype)


@functools.cache
def peer(name):
    """Import a peer; UnavailableError if it is not installed."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and name.split(".")[0] == error.name.split(".")[0]:
            raise UnavailableError(f"{name} is not installed") from error
        raise
