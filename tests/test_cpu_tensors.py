"""CPU tensors in a launch, beyond what they share with NumPy's arrays."""

import numpy as np
import pytest
import torch
from numba import cuda
from numba.cuda.core.errors import NumbaPerformanceWarning

from tests import standin
from tests.launching import caught

pytestmark = pytest.mark.standin


@cuda.jit
def take(a):
    pass


def raw(tensor):
    """Return the bytes of a tensor's items."""
    return bytes(tensor.contiguous().view(torch.uint8).tolist())


WIDTHS = {"bfloat16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1, "bool": 1, "complex64": 8}


@pytest.mark.parametrize("name", WIDTHS)
def test_cpu_tensor_when_of_any_dtype_then_its_bytes_are_copied_in_and_back(enabled, name):
    whole = torch.arange(8).to(getattr(torch, name))
    part, width = whole[::2], WIDTHS[name]
    before, between, seen = raw(part), raw(whole[1::2]), []

    def body(launch):
        assert launch.words[2:4] == (4, width)
        seen.append(standin.read(launch.words[4], 4 * width))
        standin.write(launch.words[4], b"\0" * 4 * width)

    standin.on_launch(body)
    with pytest.warns(NumbaPerformanceWarning):
        take[1, 1](part)
    standin.on_launch(None)
    assert seen == [before]
    assert raw(part) == b"\0" * 4 * width
    assert raw(whole[1::2]) == between


def test_cpu_tensor_when_it_is_a_parameter_then_it_is_taken_as_one_of_a_gpu_is(enabled):
    parameter = torch.nn.Parameter(torch.arange(4.0))
    enabled.on_launch(lambda launch: enabled.write(launch.words[4], b"\0" * 16))
    with pytest.warns(NumbaPerformanceWarning):
        take[1, 1](parameter)
    enabled.on_launch(None)
    assert not parameter.any()


KINDS = {"conj": "resolve_conj", "neg": "resolve_neg", "sparse": "to_dense"}


@pytest.mark.parametrize("kind", KINDS)
def test_cpu_tensor_when_its_memory_is_not_what_it_seems_then_it_is_refused(enabled, kind):
    bad = {
        "conj": lambda: torch.ones(3, dtype=torch.complex64).conj(),
        "neg": lambda: torch._neg_view(torch.ones(3)),
        "sparse": lambda: torch.eye(3).to_sparse(),
    }[kind]()
    with caught(TypeError, f"argument 1 'a'.*{KINDS[kind]}"):
        take[1, 1](bad)


def test_cpu_tensor_when_its_storage_was_freed_then_it_is_refused(enabled):
    freed = torch.ones(20)
    freed.untyped_storage().resize_(8)
    with caught(BufferError, "argument 1 'a': its storage holds 8 bytes.*freed or shrunk"):
        take[1, 1](freed)


def test_pinned_tensor_when_launched_then_it_is_used_in_place(enabled):
    pinned = torch.from_numpy(cuda.pinned_array(8, np.float32))[::2]
    with pytest.warns(NumbaPerformanceWarning, match="though no copy"):
        take[1, 1](pinned)
    words = enabled.launches()[-1].words
    assert words[2:] == (4, 4, pinned.data_ptr(), 4, 8)
