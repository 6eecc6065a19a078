"""The demo's half for a GPU, on the stand-in driver with a torch that seems to have it."""

import re

import pytest

from tests.standin.helpers import run_child

pytest.importorskip("torch")

# What a CPU build of torch lacks, and what the unpatched launch asks of torch's DLPack.
CUDA_TORCH = """
import torch
from tests import standin
standin.load()


class Event:
    def record(self, *_):
        pass

    wait = record


class Stream:
    cuda_stream = 0

    def wait_event(self, *_):
        pass

    record_event = wait_event


def tensor(*shape, device=None):
    return standin.torch_tensor(shape, torch.float32)


face = torch.cuda
face.is_available = lambda: True
face.current_device = lambda: 0
face.synchronize = lambda: None
face.Event = Event
face.current_stream = face.default_stream = face.ExternalStream = lambda *_, **__: Stream()
torch.randn = tensor
torch.empty_like = lambda like: tensor(*like.shape)
"""


@pytest.mark.standin
def test_demo_when_there_is_a_gpu_then_three_costs_stand_side_by_side(driver):
    child = run_child(
        CUDA_TORCH
        + """
from stridedview import _demo, is_enabled
print(repr(_demo._no_gpu_reason()))
_demo.BURSTS = 2
_demo._print_costs()
print("enabled" if is_enabled() else "as it was")
print("bytes", len({launch.packed for launch in standin.launches() if launch.packed}))
"""
    )
    assert child.returncode == 0, child.stderr[-2000:]
    lines = child.stdout.splitlines()
    assert lines[0] == "''"
    assert "2 torch tensors" in lines[1]
    rows = [re.fullmatch(r"  (.+?) +\d+\.\d\d us", line)[1] for line in lines[2:5]]
    assert rows == [
        "raw cuLaunchKernel (through ctypes)",
        "stridedview",
        "numba-cuda, unpatched",
    ]
    # Ours and the raw launch pass the same bytes.
    assert lines[5:] == ["as it was", "bytes 1"]


@pytest.mark.standin
def test_demo_when_enabled_with_options_then_they_are_in_force_again(driver):
    child = run_child(
        CUDA_TORCH
        + """
import stridedview
from stridedview import _demo, _switch
stridedview.enable(strict=True)
_demo.BURSTS = 2
_demo._print_costs()
print(_switch.options()["strict"])
"""
    )
    assert child.returncode == 0, child.stderr[-2000:]
    assert child.stdout.splitlines()[-1] == "True"
