"""Blocks of the default pool on a GPU: what the stand-in driver cannot vouch for.

That is: the pool is the device's default one, captures of real streams survive, and what
the driver says of a context that was reset. The other cases are in tests/test_block.py.
"""

import gc
import subprocess
import sys
import threading

import numpy as np
import pytest

import stridedview as sv
from stridedview import _block

pytestmark = pytest.mark.gpu
torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

from cuda.bindings import driver as cu  # noqa: E402
from cuda.core import Device  # noqa: E402

MEGABYTE = 1 << 20
NON_BLOCKING, BLOCKING = 1, 0
GLOBAL = cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL


@pytest.fixture(autouse=True)
def device():
    """Make the device current, and have whatever waits given back."""
    device = Device(0)
    device.set_current()
    sv.empty(1)
    gc.collect()
    device.sync()
    return device


def good(result):
    assert int(result[0]) == 0, result[0]
    return result[1] if len(result) > 1 else None


def kind(view):
    return type(view.owner).__name__


def used(device):
    """Return the bytes of the default pool in use, once all that was queued is done."""
    device.sync()
    return device.memory_resource.attributes.used_mem_current


def begin(flags):
    stream = good(cu.cuStreamCreate(flags))
    good(cu.cuStreamBeginCapture(stream, GLOBAL))
    return stream


def end_capture(stream):
    """End a capture, which must still be whole."""
    good(cu.cuGraphDestroy(good(cu.cuStreamEndCapture(stream))))


def end(stream):
    """End a capture, which must still be whole, and its stream."""
    end_capture(stream)
    good(cu.cuStreamDestroy(stream))


def in_thread(work):
    answers = []
    thread = threading.Thread(target=lambda: answers.append(work()))
    thread.start()
    thread.join()
    return answers[0]


def test_block_comes_from_the_default_pool_and_goes_back(device):
    before = used(device)
    view = sv.empty(MEGABYTE, "u1")
    assert kind(view) == "Block"
    assert used(device) >= before + MEGABYTE
    view.fill(7)
    assert (view.copy_to_host() == 7).all()
    del view
    assert used(device) == before


def test_block_goes_back_in_a_thread_without_a_context(device):
    before, views = used(device), [sv.empty(MEGABYTE, "u1")]
    in_thread(views.clear)
    assert used(device) == before


def test_block_of_a_named_stream_goes_back_there(device):
    before = used(device)
    stream = device.create_stream()
    view = sv.empty(MEGABYTE, "u1", stream=stream)
    assert kind(view) == "Block"
    view.fill(3, stream)
    part = view[: MEGABYTE // 2]
    del view, stream
    assert (part.copy_to_host() == 3).all()
    del part
    gc.collect()
    assert used(device) == before


def test_blocks_that_follow_each_other_on_a_stream_do_not_mix(device):
    # The second takes the memory that the first gave back while it is still being filled.
    for value in range(1, 30):
        view = sv.full(16 * MEGABYTE, value, "u1")
        copy = sv.empty_like(view)
        copy.copy_to_device(view)
        del view
        other = sv.full(16 * MEGABYTE, 0, "u1")
        assert (copy.copy_to_host() == value).all()
        assert not other.copy_to_host().any()


def test_block_taken_and_dropped_while_torch_captures_leaves_the_graph_whole(device):
    source = torch.arange(8.0, device="cuda")
    target = torch.zeros(8, device="cuda")
    torch.cuda.synchronize()
    dropped = sv.empty(MEGABYTE, "u1")
    graph = torch.cuda.CUDAGraph()
    # torch's own default is one stream for all devices, on whichever was current first.
    with torch.cuda.graph(graph, stream=torch.cuda.Stream()):
        del dropped
        assert kind(sv.empty(3)) == "Block"
        target.copy_(source * 2)
    graph.replay()
    torch.cuda.synchronize()
    np.testing.assert_array_equal(target.cpu().numpy(), np.arange(8.0) * 2)


def test_blocks_of_another_thread_leave_a_global_capture_whole(device):
    context = good(cu.cuCtxGetCurrent())
    stream = begin(NON_BLOCKING)

    def work():
        good(cu.cuCtxSetCurrent(context))
        views = [sv.empty(MEGABYTE * number, "u1") for number in range(1, 40)]
        return {kind(view) for view in views}

    assert in_thread(work) == {"Block"}
    end(stream)


def test_block_of_the_legacy_stream_waits_for_a_blocking_streams_capture(device):
    before = used(device)
    view = sv.empty(MEGABYTE, "u1")
    stream = begin(BLOCKING)
    del view
    assert _block.waiting() == 1
    with pytest.raises(Exception, match="CAPTURE"):
        sv.empty(3)
    end(stream)
    sv.empty(1)
    assert _block.waiting() == 0
    assert used(device) == before


def test_block_of_a_stream_that_captures_waits_and_taking_one_there_is_refused(device):
    before = used(device)
    stream = good(cu.cuStreamCreate(NON_BLOCKING))
    view = sv.empty(MEGABYTE, "u1", stream=int(stream))
    good(cu.cuStreamBeginCapture(stream, GLOBAL))
    del view
    assert _block.waiting() == 1
    with pytest.raises(RuntimeError, match="captur"):
        sv.empty(3, stream=int(stream))
    end_capture(stream)
    sv.empty(1)
    assert _block.waiting() == 0
    assert used(device) == before
    good(cu.cuStreamDestroy(stream))  # given by its handle: it has to outlive the memory


CHILDREN = {
    "a reset": """
view = sv.empty(1 << 20, "u1")
assert type(view.owner).__name__ == "Block"
assert int(cu.cuDevicePrimaryCtxReset(0)[0]) == 0
code, context = cu.cuDevicePrimaryCtxRetain(0)
assert int(code) == 0
assert int(cu.cuCtxSetCurrent(context)[0]) == 0
del view
again = sv.full(1000, 7, "u1")
assert (again.copy_to_host() == 7).all()
""",
    "a reset, and no context": """
view = sv.empty(1 << 20, "u1")
assert int(cu.cuDevicePrimaryCtxReset(0)[0]) == 0
assert int(cu.cuCtxSetCurrent(0)[0]) == 0
del view
""",
    "the end": """
import sys
sys.views = [sv.empty(1 << 20, "u1") for _ in range(5)]
""",
}


@pytest.mark.parametrize("body", CHILDREN.values(), ids=CHILDREN)
def test_block_after(body):
    source = "from cuda.bindings import driver as cu\nimport stridedview as sv\n" + body
    child = subprocess.run(
        [sys.executable, "-c", source],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (child.returncode, child.stderr) == (0, "")


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_blocks_of_two_devices_go_back_whichever_is_current():
    views = [sv.empty(MEGABYTE, "u1", device=number) for number in (0, 1)]
    assert [(view.device, kind(view)) for view in views] == [
        ((2, 0), "Block"),
        ((2, 1), "Block"),
    ]
    views.clear()
    for number in (1, 0):
        Device(number).set_current()
        assert kind(sv.empty(3)) == "Block"
