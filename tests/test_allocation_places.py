"""Where memory is taken: on whose stream, on which device, and what is current after it."""

import pytest
from cuda.core import Device
from numba import cuda

import stridedview as sv
from tests.standin.helpers import run_child

pytestmark = pytest.mark.standin


class LikeTorch:
    """A stream as torch's: an attribute, and the protocol that cuda.core does not take."""

    def __init__(self, handle):
        self.cuda_stream = handle

    def __cuda_stream__(self):
        return (0, self.cuda_stream)


class LikeCupy:
    def __init__(self, handle):
        self.ptr = handle


STREAMS = {
    "Numba's": lambda stream: stream,
    "cuda.core's": lambda stream: Device().create_stream(),
    "torch's": lambda stream: LikeTorch(int(stream.handle)),
    "CuPy's": lambda stream: LikeCupy(int(stream.handle)),
    "an int": lambda stream: int(stream.handle),
    "legacy": lambda _: 1,
}


@pytest.mark.parametrize("kind", STREAMS)
@pytest.mark.parametrize("function", [sv.empty, sv.zeros])
def test_memory_when_a_stream_of_any_kind_is_named_then_it_is_taken_there(
    driver, kind, function
):
    numbas = cuda.stream()
    stream = STREAMS[kind](numbas)
    view = function(4, "f4", stream=stream)
    assert view.stream is stream or view.stream == stream
    before = driver.regions()
    del view
    assert driver.regions() == before - 1


PUT_BACK = """
import numpy as np
from tests import standin
standin.load()
from cuda.bindings import driver as cu
from numba import cuda
import stridedview as sv
from tests.standin.helpers import good

def current():
    return int(good(cu.cuCtxGetCurrent()) or 0)

for device in (1, 0):
    cuda.select_device(device)
    cuda.to_device(np.zeros(1))
before = current()
on_other = sv.zeros(4, "f4", device=1)
assert current() == before, "after the first"
makers = {
    "empty": lambda: sv.empty(4, "f4", device=1),
    "zeros": lambda: sv.zeros(4, "f4", device="cuda:1"),
    "full": lambda: sv.full(4, 2.0, "f4", device=1),
    "empty_like": lambda: sv.empty_like(on_other),
    "like a view": lambda: sv.empty(4, "f4", like=on_other),
    "a slab": lambda: sv.empty_many([(4, "f4"), (3, "u1")], device=1)[1],
    "to_device": lambda: sv.to_device(np.ones(4), device=1),
}
for name, make in makers.items():
    made = make()
    assert made.device == (2, 1), name
    assert current() == before, name
    made.copy_to_host()
    assert current() == before, name
    with standin.traced() as names:
        del made
    assert current() == before, name
    free = names.index("cuMemFreeAsync")
    assert "cuCtxPushCurrent_v2" in names[:free], (name, names)
try:
    sv.empty(1 << 50, "u1", device=1)
except MemoryError:
    assert current() == before, "after a failure"
else:
    raise AssertionError("no error")
print("done")
"""


def test_memory_when_of_a_device_that_is_not_current_then_the_current_one_is_put_back():
    done = run_child(PUT_BACK, devices=2)
    assert done.stdout.split() == ["done"], done.stderr[-3000:]
