"""What the launch tests share: producers over one memory, and what a launch recorded."""

import contextlib

import numpy as np
import pytest
from cuda.bindings import driver as cu
from cuda.core.utils import StridedMemoryView
from numba import cuda
from numba.cuda import launchconfig
from numba.cuda.core.rewrites import Rewrite, rewrite_registry

import stridedview
from stridedview import _driver, _stream
from tests import standin
from tests.standin.helpers import code, good

# DLPack's code of each NumPy kind.
_CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}


class Foreign:
    """An object that has ``__cuda_array_interface__`` and nothing else."""

    def __init__(self, pointer, shape, dtype, strides=None, owner=None, **more):
        dtype = np.dtype(dtype)
        self.owner = owner
        self.__cuda_array_interface__ = {
            "shape": tuple(shape),
            "typestr": dtype.str,
            "descr": dtype.descr,
            "data": (pointer, more.pop("readonly", False)),
            "strides": strides,
            "version": 3,
            **more,
        }


def pointer_of(array):
    """Return the address (int) of a device array of Numba's, 0 if it has none."""
    return array.device_ctypes_pointer.value or 0


def items(array):
    """Return the strides of a device array in items."""
    return tuple(stride // array.dtype.itemsize for stride in array.strides)


def producer(array, kind="Producer", **more):
    """Return one of the stand-in's DLPack producers over a device array."""
    kinds = getattr(standin.producers(), kind)
    return kinds(
        pointer_of(array),
        array.shape,
        strides=items(array),
        code=_CODES[array.dtype.kind],
        bits=array.dtype.itemsize * 8,
        **more,
    )


def tensor(array):
    """Return a real torch tensor over a device array with no negative stride."""
    import torch

    dtype = getattr(torch, array.dtype.name)
    return standin.torch_tensor(
        array.shape, dtype, strides=items(array), pointer=pointer_of(array) or 4096
    )


def parameter(array):
    """Return a torch parameter over a device array."""
    import torch

    return torch.nn.Parameter(tensor(array), requires_grad=False)


def foreign(array):
    """Return an object with the CUDA array interface over a device array."""
    return Foreign(pointer_of(array), array.shape, array.dtype, array.strides, array)


def memory_view(array):
    """Return a StridedMemoryView over a device array."""
    # Not of the array itself: Numba's own interface tells no strides of a broadcast one.
    return StridedMemoryView.from_any_interface(foreign(array), stream_ptr=-1)


# How one device array of Numba's is seen through each kind of producer.
PRODUCERS = {
    "device array": lambda array: array,
    "view": stridedview.from_any,
    "view of a tensor": lambda array: stridedview.from_any(tensor(array)),
    "torch": tensor,
    "parameter": parameter,
    "interface": foreign,
    "exchange": producer,
    "exchange without borrowing": lambda array: producer(array, "WithoutBorrow"),
    "exchange only": lambda array: producer(array, "OnlyExchange"),
    "exchange of a newer version": lambda array: producer(array, "NewerChained"),
    "DLPack only": lambda array: producer(array, "Plain"),
}


def recorded(kernel, args, grid=(1, 1), before=None):
    """Launch, and return what the driver recorded of the one launch that came of it."""
    standin.clear()
    kernel[grid](*args)
    found = standin.launches()
    assert len(found) == 1, found
    return found[0]


def parameters(kernel, args):
    """Launch, and return the parameters recorded, one bytes each."""
    return recorded(kernel, args).parameters


def twins(arity, **options):
    """Return two kernels of `arity` arguments that do nothing: for Numba, and for us.

    They share no overload, so that ours are typed and compiled by us alone.
    """
    names = ", ".join("abcdefgh"[index] for index in range(arity))
    made = []
    for _ in range(2):
        scope = {}
        exec(f"def take({names}):\n    pass\n", scope)
        made.append(cuda.jit(**options)(scope["take"]))
    return made


class _Sensitive(Rewrite):
    """Marks kernels named ``sensitive`` as compiled for their configuration."""

    def match(self, func_ir, block, typemap, calltypes):
        self.block = block
        return func_ir.func_id.func_name == "sensitive" and not hasattr(self, "done")

    def __init__(self, state):
        super().__init__(state)

    def apply(self):
        self.done = True
        launchconfig.ensure_current_launch_config().dispatcher.mark_launch_config_sensitive()
        return self.block


@contextlib.contextmanager
def sensitive_kernels():
    """Let kernels named ``sensitive`` be compiled anew for each configuration."""
    rewrites = rewrite_registry.rewrites["after-inference"]
    rewrites.append(_Sensitive)
    try:
        yield
    finally:
        rewrites.remove(_Sensitive)


@contextlib.contextmanager
def caught(error, match):
    """Expect an error that is raised before the driver is asked to launch anything."""
    standin.reset_calls()
    with pytest.raises(error, match=match):
        yield
    launched = {name for name in standin.calls() if name.startswith("cuLaunch")}
    assert not launched, launched


class Capture:
    """A capture that must end well; leaves the nodes of its graph."""

    def __init__(self, stream, mode=0):
        self.stream, self.mode = cu.CUstream(stream), cu.CUstreamCaptureMode(mode)
        self.nodes = None

    def __enter__(self):
        good(cu.cuStreamBeginCapture(self.stream, self.mode))
        return self

    def __exit__(self, kind, *_):
        result = cu.cuStreamEndCapture(self.stream)
        if kind is None:
            assert code(result) == 0, "the capture was spoilt"
            _, self.nodes = good(cu.cuGraphGetNodes(result[1], 0))


def capture_mode():
    """Return this thread's capture mode, 0 unless somebody forgot to put it back."""
    mode = _driver.exchange_capture_mode(0)
    _driver.exchange_capture_mode(mode)
    return mode


def rests_as(configuration):
    """Return what a launch must leave as it was, whatever happens in it."""
    return configuration.args, capture_mode(), _driver.current_context()


# What a launch costs that hits a plan: which context is current, and the launch.
HIT = {"cuCtxGetId": 1, "cuLaunchKernel": 1}


def calls_of(launch):
    """Return the driver calls that a launch makes, by name."""
    # What tests before this one kept is let go now, not at whichever launch is the 64th.
    _stream.release_done()
    standin.reset_calls()
    launch()
    return standin.calls()
