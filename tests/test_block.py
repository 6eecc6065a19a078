"""Blocks of the default pool: taken by the driver's own call, given back once and rightly.

What changes contexts or devices runs in a process of its own.
"""

import gc
import threading
import weakref

import cuda.core
import pytest
from cuda.bindings import driver as cu
from cuda.core import Device, DeviceMemoryResource, DeviceMemoryResourceOptions

import stridedview as sv
from stridedview import _block
from stridedview._driver import DriverError
from tests import standin
from tests.standin.helpers import good, run_child

pytestmark = pytest.mark.standin

TAKE, GIVE = "cuMemAllocFromPoolAsync", "cuMemFreeAsync"
OUT_OF_MEMORY, NOT_SUPPORTED, LAUNCH_TIMEOUT = 2, 801, 702
ACTIVE = 1


@pytest.fixture(autouse=True)
def device(driver):
    """Make the device current, and have whatever waits given back."""
    device = Device(0)
    device.set_current()
    sv.empty(1)
    gc.collect()
    assert _block.waiting() == 0
    standin.reset_calls()
    return device


def kind(view):
    return type(view.owner).__name__


def in_thread(work):
    """Run work in a thread without a context, and return what it gives."""
    answers = []
    thread = threading.Thread(target=lambda: answers.append(work()))
    thread.start()
    thread.join()
    return answers[0]


# ---- the route ---------------------------------------------------------------------------


def test_empty_takes_a_block_and_gives_it_back_when_the_last_view_has_gone():
    before = standin.regions()
    with standin.traced() as taken:
        view = sv.empty((4, 6), "float32")
    assert kind(view) == "Block"
    assert taken.count(TAKE) == 1
    assert f"{view.ptr:#x}" in repr(view.owner)
    part = view[1:].T
    del view
    assert standin.regions() == before + 1
    with standin.traced() as given:
        del part
    assert given.count(GIVE) == 1
    assert standin.regions() == before


def test_empty_when_it_has_no_items_then_asks_for_no_memory():
    with standin.traced() as names:
        assert sv.empty((0, 3)).owner is None
    assert TAKE not in names


def test_empty_many_shares_one_block():
    before = standin.regions()
    one, other = sv.empty_many([(3, "f4"), (5, "f8")])
    assert one.owner is other.owner
    assert kind(one) == "Block"
    del one
    assert standin.regions() == before + 1
    del other
    assert standin.regions() == before


def test_block_outlives_the_view_for_as_long_as_another_library_uses_it():
    torch = pytest.importorskip("torch")
    before = standin.regions()
    tensor = sv.empty(8, "f4").to_torch()
    assert isinstance(tensor, torch.Tensor)
    assert standin.regions() == before + 1
    memory = sv.empty(8, "f4").smv
    del tensor
    gc.collect()
    assert standin.regions() == before + 1
    del memory
    gc.collect()
    assert standin.regions() == before


def test_empty_when_the_user_has_another_resource_then_takes_its_memory(device):
    default = device.memory_resource
    own = DeviceMemoryResource(device, DeviceMemoryResourceOptions(max_size=0))
    try:
        device.memory_resource = own
        view = sv.empty(3)
        assert kind(view) == "Loan"
        assert view.owner.buffer.memory_resource is own
        assert kind(sv.empty(3)) == "Loan"
    finally:
        device.memory_resource = default
    assert kind(sv.empty(3)) == "Block"


@pytest.mark.skipif(
    cuda.core.__version__.startswith(("1.0", "1.1")),
    reason="allocate() of a closed resource crashes before cuda-core 1.2",
)
def test_empty_when_the_resource_is_closed_then_cuda_core_refuses(device):
    default = device.memory_resource
    closed = DeviceMemoryResource(device)
    closed.close()
    try:
        device.memory_resource = closed
        with pytest.raises(RuntimeError, match="closed"):
            sv.empty(3)
    finally:
        device.memory_resource = default
    assert kind(sv.empty(3)) == "Block"


def test_empty_when_first_used_in_another_thread_then_takes_this_threads_resource(device):
    # cuda.core's Device objects, and the resources on them, are a thread's own.
    kinds = []
    thread = threading.Thread(target=lambda: kinds.append(kind(sv.empty(3))))
    thread.start()
    thread.join()
    default = device.memory_resource
    try:
        device.memory_resource = DeviceMemoryResource(
            device, DeviceMemoryResourceOptions(max_size=0)
        )
        kinds.append(kind(sv.empty(3)))
        thread = threading.Thread(target=lambda: kinds.append(kind(sv.empty(3))))
        thread.start()
        thread.join()
    finally:
        device.memory_resource = default
    assert kinds == ["Block", "Loan", "Block"]


class ForeignStream:
    """A stream of another library: it has the protocol, and owns what it stands for."""

    def __init__(self, stream):
        self.stream = stream

    def __cuda_stream__(self):
        return self.stream.__cuda_stream__()


def test_empty_when_the_user_has_another_resource_then_takes_any_librarys_stream(device):
    default = device.memory_resource
    own = DeviceMemoryResource(device, DeviceMemoryResourceOptions(max_size=0))
    stream = ForeignStream(device.create_stream())
    alive = weakref.ref(stream)
    try:
        device.memory_resource = own
        view = sv.empty(3, stream=stream)
    finally:
        device.memory_resource = default
    assert kind(view) == "Loan"
    assert view.stream is stream
    owner = view.owner
    del stream, view
    gc.collect()
    assert alive() is not None
    with standin.traced() as names:
        del owner
        gc.collect()
    assert alive() is None
    assert names.index(GIVE) < names.index("cuStreamDestroy_v2")


def test_empty_when_the_driver_has_another_current_pool_then_takes_from_that(device):
    default = device.memory_resource
    own = DeviceMemoryResource(device, DeviceMemoryResourceOptions(max_size=0))
    try:
        good(cu.cuDeviceSetMemPool(0, own.handle))
        current = DeviceMemoryResource(device)  # the pool that is current now
        assert not current.is_handle_owned
        device.memory_resource = current
        view = sv.empty(3)
        assert view.owner.buffer.memory_resource is current
    finally:
        device.memory_resource = default
        good(cu.cuDeviceSetMemPool(0, default.handle))
    assert kind(sv.empty(3)) == "Block"


# ---- streams -----------------------------------------------------------------------------


def test_block_goes_back_on_its_own_stream_which_it_keeps(device):
    stream = device.create_stream()
    alive = weakref.ref(stream)
    view = sv.empty(3, stream=stream)
    assert kind(view) == "Block"
    assert view.stream is stream
    owner = view.owner
    del stream, view
    gc.collect()
    assert alive() is not None
    with standin.traced() as names:
        del owner
        gc.collect()
    assert alive() is None
    assert names.index(GIVE) < names.index("cuStreamDestroy_v2")


def test_block_takes_a_streams_handle(device):
    stream = device.create_stream()
    view = sv.empty(3, stream=int(stream.handle))
    assert kind(view) == "Block"
    assert view.stream == int(stream.handle)
    assert kind(sv.empty(3, stream=1)) == "Block"


def test_empty_on_the_per_thread_stream_is_cuda_cores():
    # It is another stream in each thread, and a block may go back in any.
    assert kind(sv.empty(3, stream=2)) == "Loan"


def test_empty_when_numbas_default_is_the_per_thread_stream_then_it_is_cuda_cores(
    monkeypatch,
):
    monkeypatch.setenv("CUDA_PYTHON_CUDA_PER_THREAD_DEFAULT_STREAM", "1")
    run("assert kind(sv.empty(3)) == 'Loan'")


def test_block_in_a_cycle_with_its_stream_never_goes_back_on_a_dead_stream(device):
    before = standin.regions()
    stream = ForeignStream(device.create_stream())
    stream.view = sv.empty(3, stream=stream)
    alive = weakref.ref(stream)
    assert kind(stream.view) == "Block"
    del stream
    gc.collect()
    assert standin.regions() == before + 1
    with standin.traced() as names:
        alive().view = None
        gc.collect()
    assert standin.regions() == before
    assert names.index(GIVE) < names.index("cuStreamDestroy_v2")


# ---- errors ------------------------------------------------------------------------------


def test_empty_when_the_pool_has_no_memory_then_says_how_much_was_asked():
    standin.fail_next(TAKE, OUT_OF_MEMORY)
    with pytest.raises(
        sv.OutOfMemoryError, match=r"cuda:0: 24 bytes asked for float32 \(2, 3\)"
    ) as caught:
        sv.empty((2, 3), "float32")
    assert caught.value.nbytes == 24
    assert isinstance(caught.value.__cause__, DriverError)
    assert caught.value.__cause__.code == OUT_OF_MEMORY
    assert kind(sv.empty(3)) == "Block"


def test_empty_when_the_driver_refuses_for_another_reason_then_cuda_core_is_asked():
    standin.fail_next(TAKE, NOT_SUPPORTED)
    assert kind(sv.empty(3)) == "Loan"
    standin.fail_next(TAKE, NOT_SUPPORTED, times=2)
    # cuda-core 1.0 does not tell the reason.
    with pytest.raises(Exception, match=r"NOT_SUPPORTED|Failed to allocate") as caught:
        sv.empty(3)
    assert not isinstance(caught.value, MemoryError)
    assert kind(sv.empty(3)) == "Block"


def test_block_when_the_driver_does_not_take_it_back_then_nothing_is_raised():
    view = sv.empty(3)
    standin.fail_next(GIVE, LAUNCH_TIMEOUT)
    del view  # an unraisable exception would be a warning, and so an error here
    assert _block.waiting() == 0


# ---- captures ----------------------------------------------------------------------------


def begin(flags):
    stream = good(cu.cuStreamCreate(flags))
    mode = cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL
    good(cu.cuStreamBeginCapture(stream, mode))
    return stream


def is_capturing(stream):
    return int(good(cu.cuStreamIsCapturing(stream))) == ACTIVE


def end(stream):
    """End a capture, which must still be whole, and return nothing of it."""
    graph = good(cu.cuStreamEndCapture(stream))
    good(cu.cuGraphDestroy(graph))
    good(cu.cuStreamDestroy(stream))


BLOCKING, NON_BLOCKING = 0, 1


def test_empty_on_a_stream_that_captures_is_refused_and_the_capture_goes_on():
    stream = begin(NON_BLOCKING)
    with pytest.raises(RuntimeError, match="captur"):
        sv.empty(3, stream=int(stream))
    assert TAKE not in standin.calls()
    assert is_capturing(stream)
    end(stream)


def test_empty_when_a_stream_that_the_legacy_one_waits_for_captures_then_is_refused():
    stream = begin(BLOCKING)
    with pytest.raises(Exception, match="CAPTURE_IMPLICIT"):
        sv.empty(3)
    assert TAKE not in standin.calls()
    assert is_capturing(stream)
    end(stream)


def test_empty_when_another_stream_captures_then_takes_a_block():
    stream = begin(NON_BLOCKING)
    view = sv.empty(3)
    assert kind(view) == "Block"
    del view
    assert _block.waiting() == 0
    assert is_capturing(stream)
    end(stream)


def test_empty_when_first_used_in_a_thread_while_another_captures_then_both_go_on(device):
    # A thread's own resource reads and sets what the pool keeps, which a capture forbids.
    context = good(cu.cuCtxGetCurrent())
    stream = begin(NON_BLOCKING)

    def work():
        good(cu.cuCtxSetCurrent(context))
        return kind(sv.empty(3))

    assert in_thread(work) == "Block"
    end(stream)


def test_block_of_a_stream_that_captures_waits_for_the_end():
    stream = good(cu.cuStreamCreate(NON_BLOCKING))
    before = standin.regions()
    view = sv.empty(3, stream=int(stream))
    mode = cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL
    good(cu.cuStreamBeginCapture(stream, mode))
    del view
    assert (GIVE not in standin.calls(), _block.waiting()) == (True, 1)
    sv.empty(1)  # tries again, and has to wait again
    assert (standin.regions(), _block.waiting()) == (before + 1, 1)
    assert is_capturing(stream)
    good(cu.cuGraphDestroy(good(cu.cuStreamEndCapture(stream))))
    sv.empty(1)
    assert (standin.regions(), _block.waiting()) == (before, 0)
    good(cu.cuStreamDestroy(stream))


@pytest.mark.parametrize("where", ["same thread", "other thread"])
def test_block_of_the_legacy_stream_does_not_spoil_a_blocking_streams_capture(where):
    before = standin.regions()
    views = [sv.empty(3) for _ in range(3)]
    stream = begin(BLOCKING)
    views.clear() if where == "same thread" else in_thread(views.clear)
    assert _block.waiting() == 3
    assert is_capturing(stream)
    end(stream)
    sv.empty(1)
    assert (standin.regions(), _block.waiting()) == (before, 0)


def test_block_that_waits_goes_back_at_the_next_allocation_of_any_kind():
    before, view = standin.regions(), sv.empty(3)
    stream = begin(BLOCKING)
    del view
    assert _block.waiting() == 1
    end(stream)
    pinned = sv.pinned(1)
    assert (standin.regions(), _block.waiting()) == (before + 1, 0)
    del pinned


def test_block_that_waits_keeps_its_stream(device):
    stream = device.create_stream()
    handle, alive = stream.handle, weakref.ref(stream)
    view = sv.empty(3, stream=stream)
    mode = cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL
    good(cu.cuStreamBeginCapture(handle, mode))
    del view, stream
    gc.collect()
    assert alive() is not None
    good(cu.cuGraphDestroy(good(cu.cuStreamEndCapture(handle))))
    sv.empty(1)
    gc.collect()
    assert alive() is None


EXCHANGE = "cuThreadExchangeStreamCaptureMode"


@pytest.mark.parametrize("source", ["block", "loan", "pinned"])
def test_memory_is_taken_and_given_back_in_relaxed_mode(device, source):
    # While any thread captures in global mode, the calls count as unsafe otherwise.
    default = device.memory_resource
    take, give = {
        "block": (TAKE, GIVE),
        "loan": (TAKE, GIVE),
        "pinned": ("cuMemAllocHost_v2", "cuMemFreeHost"),
    }[source]
    try:
        if source == "loan":
            options = DeviceMemoryResourceOptions(max_size=0)
            device.memory_resource = DeviceMemoryResource(device, options)
        stream = begin(NON_BLOCKING)
        with standin.traced() as names:
            view = sv.pinned(3) if source == "pinned" else sv.empty(3)
            del view
            gc.collect()
    finally:
        device.memory_resource = default
    for name in (take, give):
        before, after = names[: names.index(name)], names[names.index(name) :]
        # An odd number of exchanges before it says that it runs between a pair of them.
        assert before.count(EXCHANGE) % 2 == after.count(EXCHANGE) % 2 == 1
    assert is_capturing(stream)
    end(stream)


# ---- threads -----------------------------------------------------------------------------


def test_block_goes_back_in_a_thread_without_a_context():
    before, views = standin.regions(), [sv.empty(3)]

    def work():
        views.clear()
        return int(good(cu.cuCtxGetCurrent()) or 0)

    assert in_thread(work) == 0
    assert standin.regions() == before
    # The context was retained for it, and released: nothing is left of that.
    calls = standin.calls()
    assert calls["cuDevicePrimaryCtxRetain"] == calls["cuDevicePrimaryCtxRelease_v2"]


def test_empty_in_a_thread_without_a_context_takes_a_block():
    assert in_thread(lambda: kind(sv.empty(3))) == "Block"


def test_blocks_taken_and_given_back_by_many_threads_are_all_settled(device):
    before, shared = standin.regions(), []

    def work():
        Device(0).set_current()
        for number in range(300):
            shared.append(sv.empty(1 + number % 7, "u1"))
            if number % 3:
                shared.pop()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({view.ptr for view in shared}) == len(shared) == 400
    shared.clear()
    gc.collect()
    assert standin.regions() == before


# ---- contexts and devices ----------------------------------------------------------------

PROLOGUE = """
import gc, sys, threading
from tests import standin
standin.load()
from cuda.bindings import driver as cu
from cuda.core import Device
import stridedview as sv
from tests.standin.helpers import good, make_context
def kind(view):
    return type(view.owner).__name__
def given():
    return standin.calls().get("cuMemFreeAsync", 0)
"""


def run(body, devices=1):
    """Run a body after the prologue in a child, which must say nothing on its way out."""
    child = run_child(PROLOGUE + body + "\nprint('done')\n", devices)
    assert child.stdout.split() == ["done"], child.stderr[-3000:]
    assert child.returncode == 0, child.stderr[-3000:]
    assert child.stderr == ""


@pytest.mark.parametrize("current", ["the new one", "none"])
def test_block_when_the_context_was_reset_then_its_address_is_not_given_back(current):
    run(f"""
view = sv.empty(3)
assert kind(view) == "Block"
good(cu.cuDevicePrimaryCtxReset(0))
if {current == "the new one"}:
    good(cu.cuDevicePrimaryCtxRetain(0))
    fresh = sv.empty(3)
    assert kind(fresh) == "Block", kind(fresh)
else:
    good(cu.cuCtxSetCurrent(0))
standin.reset_calls()
del view
assert given() == 0
assert "cuDevicePrimaryCtxRetain" not in standin.calls() or {current == "the new one"}
if {current == "the new one"}:
    del fresh
    assert given() == 1
""")


def test_block_when_another_context_is_current_then_goes_back_in_its_own():
    run(
        """
before = standin.regions()
views = [sv.empty(3, device=0), sv.empty(3, device=1)]
assert [kind(view) for view in views] == ["Block"] * 2
assert [view.device for view in views] == [(2, 0), (2, 1)]
current = int(good(cu.cuCtxGetCurrent()))
while views:
    views.pop(0)
    assert int(good(cu.cuCtxGetCurrent())) == current
assert standin.regions() == before
# Each device keeps its own home, whichever is current.
for number in (0, 1, 1, 0):
    Device(number).set_current()
    view = sv.empty(3)
    assert (view.device, kind(view)) == ((2, number), "Block")
""",
        devices=2,
    )


def test_empty_when_the_current_context_is_not_the_primary_one_then_is_cuda_cores():
    run("""
mine = sv.empty(3)
context = make_context()
assert kind(sv.empty(3)) == "Loan"
assert int(good(cu.cuCtxGetCurrent())) == int(context)
del mine            # goes back in the primary context
assert given() == 2
assert int(good(cu.cuCtxGetCurrent())) == int(context)
good(cu.cuCtxPopCurrent())
assert kind(sv.empty(3)) == "Block"
""")


def test_block_at_the_end_of_the_process_is_given_back_or_left_without_a_word():
    run("""
views = [sv.empty(3) for _ in range(5)]
sys.views = views
class Late:
    def __del__(self):
        self.views.clear()
late = Late()
late.views = [sv.empty(3)]
late.itself = late
""")


def test_block_in_a_forked_child_is_left_to_the_parent():
    run("""
import os
view = sv.empty(3)
child = os.fork()
if child == 0:
    del view
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
standin.reset_calls()
del view
assert given() == 1
""")
