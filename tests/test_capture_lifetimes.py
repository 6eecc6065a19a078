"""What is made and dropped while a stream captures, by any thread: no capture is spoilt."""

import gc
import threading

import numpy as np
import pytest
from cuda.bindings import driver as cu
from numba import cuda

import stridedview as sv
from tests.launching import producer
from tests.standin.helpers import code, good

pytestmark = pytest.mark.standin


def fresh():
    """Return a kernel of one argument without overloads."""

    @cuda.jit
    def kernel(a):
        pass

    return kernel


@pytest.fixture
def capture(enabled):
    """Give a function that runs another in a global capture, which must end well."""
    array = cuda.to_device(np.zeros(4, np.float32))
    launched = fresh()
    launched[1, 1](array)
    stream = good(cu.cuStreamCreate(1))

    def run(work, strict):
        enabled.strict_capture(strict)
        good(cu.cuStreamBeginCapture(stream, cu.CUstreamCaptureMode(0)))
        try:
            work(stream)
            gc.collect()
            launched[1, 1, int(stream)](array)
        finally:
            result = cu.cuStreamEndCapture(stream)
        assert code(result) == 0, "the capture was spoilt"
        assert good(cu.cuGraphGetNodes(result[1], 0))[1] == 1

    return run


def launched_kernel():
    kernel = fresh()
    kernel[1, 1](sv.zeros(4, "f4"))
    return kernel


MADE = {
    "own memory": lambda: sv.zeros(4, "f4"),
    "own memory of a stream": lambda: sv.empty(4, "f4", stream=cuda.stream()),
    "a slab": lambda: sv.empty_many([(4, "f4"), (4, "f8")]),
    "pinned memory": lambda: sv.pinned(4, "f4"),
    "a view of a view": lambda: sv.from_any(sv.zeros(4, "f4"))[::2],
    "a kernel": launched_kernel,
    "a prepared launch": lambda: sv.prepare(launched_kernel()[1, 1], sv.zeros(4, "f4")),
}
STRICT = pytest.mark.parametrize("strict", [False, True], ids=["as hardware", "strict"])


@STRICT
@pytest.mark.parametrize("kind", MADE)
def test_dropped_when_a_stream_captures_then_the_capture_lives(capture, kind, strict):
    box = [MADE[kind]()]
    capture(lambda _: box.clear(), strict)


@STRICT
@pytest.mark.parametrize("kind", MADE)
def test_dropped_by_another_thread_when_a_stream_captures_then_the_capture_lives(
    capture, kind, strict
):
    box = [MADE[kind]()]

    def work(_):
        thread = threading.Thread(target=box.clear)
        thread.start()
        thread.join()

    capture(work, strict)


@pytest.mark.parametrize("kind", ["own memory", "pinned memory"])
def test_dropped_when_a_stream_captures_then_its_memory_is_given_back(
    enabled, capture, kind
):
    before = enabled.regions()
    box = [MADE[kind]()]
    assert enabled.regions() > before
    capture(lambda _: box.clear(), False)
    assert enabled.regions() == before


@STRICT
@pytest.mark.parametrize("kind", ["own memory of a stream", "a slab", "pinned memory"])
def test_allocated_when_a_stream_captures_then_the_capture_lives(capture, kind, strict):
    MADE[kind]()
    box = []
    capture(lambda _: box.append(MADE[kind]()), strict)


COPIES = {
    "copy_to_host": lambda view, _: view.copy_to_host(),
    "an item": lambda view, _: view[1],
    "gaps to the host": lambda view, _: view[::2].copy_to_host(),
    "fill": lambda view, _: view.fill(3),
    "from the host": lambda view, _: view.copy_to_device(np.ones(4, "f4")),
    "from pinned memory": lambda view, pinned: view.copy_to_device(pinned),
    "on the device": lambda view, _: view[::2].copy_to_device(view[1::2]),
    "to_device": lambda *_: sv.to_device(np.ones(4, "f4")),
    "zeros": lambda *_: sv.zeros(4, "f4"),
}


@STRICT
@pytest.mark.parametrize("kind", COPIES)
def test_copy_when_another_stream_captures_then_the_capture_lives(capture, kind, strict):
    view, pinned = sv.zeros(4, "f4"), sv.pinned(4, "f4")
    COPIES[kind](view, pinned)
    capture(lambda _: COPIES[kind](view, pinned), strict)


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("way", ["up", "down"])
def test_copy_when_its_own_stream_captures_and_memory_is_pinned_then_it_is_captured(
    enabled, way, named
):
    stream = good(cu.cuStreamCreate(1))
    view, pinned = sv.empty(4, "f4", stream=int(stream)), sv.pinned(4, "f4")
    options = {"stream": int(stream)} if named else {}
    good(cu.cuStreamBeginCapture(stream, cu.CUstreamCaptureMode(0)))
    if way == "up":
        view.copy_to_device(pinned, **options)
    else:
        view.copy_to_host(pinned, **options)
    result = cu.cuStreamEndCapture(stream)
    assert code(result) == 0, "the capture was spoilt"
    assert good(cu.cuGraphGetNodes(result[1], 0))[1] == 1


# ---- DLPack objects: asked for an order that would draw the legacy stream in -------------


@pytest.mark.parametrize("is_capturing", [False, True])
def test_dlpack_when_torchs_stream_captures_then_no_order_is_asked_for(
    enabled, monkeypatch, is_capturing
):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: is_capturing)
    array, kernel, side = cuda.to_device(np.zeros(4, "f4")), fresh(), cuda.stream()
    made = producer(array, "Plain")
    for _ in range(2):
        enabled.clear()
        kernel[1, 1, side](made)
        assert made.asked_stream == (-1 if is_capturing else 1)
        waits = [(wait.waiting, wait.recorded_on) for wait in enabled.orderings()]
        assert waits == ([] if is_capturing else [(int(side.handle), 1)])
    assert sv.from_any(made).stream == (0 if is_capturing else 1)


# ---- launches that the driver would refuse ----


@STRICT
@pytest.mark.parametrize("is_first", [True, False], ids=["not compiled", "compiled"])
@pytest.mark.parametrize("way", ["launch", "prepared"])
def test_shared_memory_when_opted_in_to_in_a_capture_then_the_capture_lives(
    enabled, strict, is_first, way
):
    kernel, array = fresh(), sv.zeros(4, "f4")
    if not is_first:
        kernel[1, 1](array)
    stream = good(cu.cuStreamCreate(1))
    enabled.strict_capture(strict)
    good(cu.cuStreamBeginCapture(stream, cu.CUstreamCaptureMode(0)))
    configuration = kernel[1, 1, int(stream), 100_000]
    if way == "prepared":
        sv.prepare(configuration, array)()
    else:
        configuration(array)
    result = cu.cuStreamEndCapture(stream)
    assert code(result) == 0, "the capture was spoilt"
    assert enabled.launches()[-1].shared == 100_000


TOO_LARGE = {
    "block": ((1, 2048), "2048"),
    "grid": ((0, 1), "grid x is 0"),
    "shared memory": ((1, 1, 300_000), "300000 bytes of dynamic shared memory"),
}


@STRICT
@pytest.mark.parametrize("kind", TOO_LARGE)
@pytest.mark.parametrize("is_first", [True, False], ids=["not compiled", "compiled"])
def test_launch_when_beyond_the_device_in_a_capture_then_the_capture_lives(
    enabled, capture, kind, is_first, strict
):
    (grid, block, *shared), match = TOO_LARGE[kind]
    kernel, array = fresh(), sv.zeros(4, "f4")
    if not is_first:
        kernel[1, 1](array)

    def work(stream):
        for _ in range(2):
            enabled.reset_calls()
            with pytest.raises(RuntimeError, match=match):
                kernel[(grid, block, int(stream), *shared)](array)
            assert "cuLaunchKernel" not in enabled.calls()

    capture(work, strict)
