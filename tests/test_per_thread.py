"""Per-thread default streams: Numba's side and torch's each have their own default."""

import pytest

from tests.standin.helpers import run_child

pytest.importorskip("torch")
pytestmark = pytest.mark.standin

SOURCE = """
import numpy as np
from tests import standin
standin.load()
from numba import cuda
import stridedview as sv
from tests.launching import Foreign, pointer_of, producer, recorded, tensor
sv.enable()

@cuda.jit
def take(a):
    pass

@cuda.jit
def take_two(a, b):
    pass

array = cuda.to_device(np.zeros(4, np.float32))
on_torch, side = tensor(array), cuda.stream()

def waits():
    return [(wait.waiting, wait.recorded_on) for wait in standin.orderings()]

def check(kernel, args, stream, expected, configuration=(1, 1)):
    for _ in range(2):
        record = recorded(kernel, args, configuration)
        assert record.stream in stream, (args, record.stream)
        assert waits() == expected, (args, waits())

LEGACY, PER_THREAD = (0, 1), (2,)
# Each side alone: nobody waits.
check(take, (array,), PER_THREAD, [])
check(take, (7,), PER_THREAD, [])
check(take, (on_torch,), LEGACY, [])
check(take, (sv.from_any(on_torch),), LEGACY, [])
# Both: torch leads, and waits for Numba's.
check(take_two, (on_torch, array), LEGACY, [(1, 2)])
check(take_two, (array, on_torch), LEGACY, [(1, 2)])
# Named.
check(take, (on_torch,), PER_THREAD, [(2, 1)], (1, 1, cuda.default_stream()))
check(take, (on_torch,), PER_THREAD, [(2, 1)], (1, 1, 2))
check(take, (array,), PER_THREAD, [], (1, 1, cuda.per_thread_default_stream()))
check(take, (array,), LEGACY, [(1, 2)], (1, 1, cuda.legacy_default_stream()))
# What an interface says is meant as it is said.
for named, expected in ((1, [(2, 1)]), (2, [])):
    made = Foreign(pointer_of(array), (4,), np.float32, owner=array, stream=named)
    check(take, (made,), PER_THREAD, expected)
# Own memory comes from the default stream of cuda.core, which is Numba's here.
check(take, (sv.empty(4, "f4"),), PER_THREAD, [])
with sv.enabled(stream="numba"):
    check(take, (on_torch,), PER_THREAD, [(2, 1)])
print("done")
"""


def test_launch_when_default_streams_are_per_thread_then_each_side_has_its_own(
    monkeypatch,
):
    monkeypatch.setenv("CUDA_PYTHON_CUDA_PER_THREAD_DEFAULT_STREAM", "1")
    done = run_child(SOURCE)
    assert done.stdout.split() == ["done"], done.stdout + done.stderr[-3000:]
