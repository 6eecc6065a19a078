"""Launches into graphs: captured, never spoiling the capture."""

import warnings

import numpy as np
import pytest
from cuda.bindings import driver as cu
from numba import cuda

import stridedview
from stridedview import _stream
from tests.launching import (
    HIT,
    Capture,
    Foreign,
    calls_of,
    pointer_of,
    producer,
    tensor,
)
from tests.standin.helpers import good, words_of

pytestmark = pytest.mark.standin
MODES = {"global": 0, "thread-local": 1, "relaxed": 2}


def fresh(**options):
    """Return a kernel of one argument without overloads."""

    @cuda.jit(**options)
    def kernel(a):
        pass

    return kernel


@cuda.jit
def take(a):
    pass


@cuda.jit
def take_two(a, b):
    pass


@pytest.fixture
def enabled(driver):
    """Enable for a test, and give the stand-in."""
    with stridedview.enabled():
        yield driver
    driver.producers().set_work_stream(0)


@pytest.fixture
def array(driver):
    return cuda.to_device(np.zeros(4, np.float32))


@pytest.fixture
def streams(driver):
    """Give three streams that do not wait for the legacy one."""
    made = [good(cu.cuStreamCreate(1)) for _ in range(3)]
    return [int(stream) for stream in made]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("named", [False, True], ids=["unnamed", "named"])
@pytest.mark.parametrize("kind", ["exchange", "view", "tuple"])
def test_launch_when_the_stream_captures_then_it_is_captured(
    enabled, array, streams, mode, named, kind
):
    exported = producer(array)
    value = {
        "exchange": exported,
        "view": stridedview.from_any(exported),
        "tuple": (exported, 1),
    }[kind]
    take[1, 1](value)
    enabled.producers().set_work_stream(streams[0])
    enabled.clear()
    configuration = take[1, 1, streams[0]] if named else take[1, 1]
    with Capture(streams[0], MODES[mode]) as capture:
        configuration(value)
        configuration(value)
    assert capture.nodes == 2
    for record in enabled.launches():
        assert record.captured
        assert record.stream == streams[0]
        assert record.words[:7] == words_of(array)
    assert enabled.orderings() == []


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["another stream", "torch", "numba", "interface"])
def test_launch_when_the_producer_is_outside_the_capture_then_no_wait_crosses_its_border(
    enabled, array, streams, mode, kind
):
    value = {
        "another stream": producer(array),
        "torch": tensor(array),
        "numba": array,
        "interface": Foreign(pointer_of(array), (4,), np.float32, owner=array,
                             stream=streams[1]),
    }[kind]  # fmt: skip
    enabled.producers().set_work_stream(streams[1])
    take[1, 1, streams[0]](value)
    enabled.clear()
    kept = _stream.kept_count()
    with Capture(streams[0], MODES[mode]) as capture:
        for _ in range(2):
            take[1, 1, streams[0]](value)
    assert capture.nodes == 2
    assert enabled.orderings() == []
    # The graph's owner keeps what the graph uses; no event of it may be asked.
    assert _stream.kept_count() <= kept


def test_launch_when_another_stream_captures_then_ordering_goes_on_outside(
    enabled, array, streams
):
    exported = producer(array)
    enabled.producers().set_work_stream(streams[1])
    take[1, 1, streams[2]](exported)
    enabled.clear()
    with Capture(streams[0]) as capture:
        take[1, 1, streams[2]](exported)
        take[1, 1, streams[0]](array)
    assert capture.nodes == 1
    waits = [(wait.waiting, wait.recorded_on) for wait in enabled.orderings()]
    assert waits == [(streams[2], streams[1])]


@pytest.mark.parametrize("done", [True, False], ids=["done", "not done"])
def test_owners_when_asked_for_while_another_stream_captures_then_it_is_not_spoilt(
    enabled, array, streams, done
):
    exported = producer(array)
    enabled.producers().set_work_stream(streams[1])
    enabled.hold_events(True)
    take[1, 1, streams[2]](exported)
    take[1, 1, streams[2]](exported)
    assert _stream.kept_count() >= 2
    enabled.hold_events(not done)
    with Capture(streams[0]) as capture:
        take[1, 1, streams[2]](exported)
        take[1, 1, streams[0]](array)
    assert capture.nodes == 1
    enabled.hold_events(False)
    _stream.release_done()
    assert _stream.kept_count() == 0


def test_events_when_the_pool_is_empty_then_a_capture_is_not_spoilt_by_making_one(
    enabled, array, streams
):
    exported = producer(array)
    enabled.producers().set_work_stream(streams[1])
    take[1, 1, streams[2]](exported)
    enabled.hold_events(True)
    with Capture(streams[0]) as capture:
        for _ in range(20):
            take[1, 1, streams[2]](exported)
        take[1, 1, streams[0]](array)
    assert capture.nodes == 1
    enabled.hold_events(False)
    _stream.release_done()


def test_launch_when_both_streams_are_in_one_capture_then_they_are_ordered(
    enabled, array, streams
):
    event = good(cu.cuEventCreate(2))
    exported = producer(array)
    enabled.producers().set_work_stream(streams[1])
    take[1, 1, streams[0]](exported)
    enabled.clear()
    with Capture(streams[0]) as capture:
        good(cu.cuEventRecord(event, cu.CUstream(streams[0])))
        good(cu.cuStreamWaitEvent(cu.CUstream(streams[1]), event, 0))
        take[1, 1, streams[1]](exported)
        take[1, 1, streams[0]](exported)
    assert capture.nodes == 2
    waits = [(wait.waiting, wait.recorded_on) for wait in enabled.orderings()]
    assert waits[-1] == (streams[0], streams[1])


@pytest.mark.parametrize("strict", [False, True], ids=["as hardware", "strict"])
@pytest.mark.parametrize("mode", MODES)
def test_launch_when_it_is_the_first_within_a_capture_then_it_compiles_there(
    enabled, array, streams, mode, strict
):
    exported = producer(array)
    enabled.producers().set_work_stream(streams[0])
    kernel, forall = fresh(), fresh()
    enabled.strict_capture(strict)
    with Capture(streams[0], MODES[mode]) as capture:
        kernel[1, 1](exported)
        kernel[1, 1](exported)
        kernel[1, 1, streams[0]](7)
        forall.forall(4)(exported)
    assert capture.nodes == 4
    assert all(record.captured for record in enabled.launches())
    enabled.producers().set_work_stream(0)
    kernel[1, 1](exported)
    assert calls_of(lambda: kernel[1, 1](exported)) == HIT


HOST = {
    "NumPy": lambda: np.zeros(4, np.float32),
    "In": lambda: cuda.In(np.zeros(4, np.float32)),
    "Out": lambda: cuda.Out(np.zeros(4, np.float32)),
    "in a tuple": lambda: (1, np.zeros(4, np.float32)),
    "strided": lambda: np.zeros(8, np.float32)[::2],
    "record": lambda: np.zeros(1, [("x", np.int32)])[0],
}


@pytest.mark.parametrize("kind", HOST)
@pytest.mark.parametrize("strict", [False, True], ids=["as hardware", "strict"])
def test_host_array_when_the_stream_captures_then_it_is_refused_and_the_capture_lives(
    enabled, array, streams, kind, strict
):
    value = HOST[kind]()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        take[1, 1](value)
    enabled.clear()
    enabled.strict_capture(strict)
    with Capture(streams[0]) as capture:
        take[1, 1, streams[0]](array)
        enabled.reset_calls()
        with pytest.raises(RuntimeError, match="captures a graph"):
            take[1, 1, streams[0]](value)
        forbidden = ("cuMem", "cuLaunch", "cuEvent")
        assert [name for name in enabled.calls() if name.startswith(forbidden)] == []
        take[1, 1, streams[0]](array)
    assert capture.nodes == 2


def test_pinned_array_when_the_stream_captures_then_the_launch_cannot_wait_and_is_refused(
    enabled, array, streams
):
    pinned = cuda.pinned_array(4, np.float32)
    with pytest.warns(Warning, match="host synchronization"):
        take[1, 1](pinned)
    with Capture(streams[0]) as capture:
        with pytest.raises(RuntimeError, match="captures a graph"):
            take[1, 1, streams[0]](pinned)
        take[1, 1, streams[0]](array)
    assert capture.nodes == 1


@pytest.mark.parametrize("first", [True, False], ids=["not compiled", "compiled"])
def test_debug_kernel_when_the_stream_captures_then_it_is_refused_and_the_capture_lives(
    enabled, array, streams, first
):
    kernel = fresh(debug=True, opt=False)
    if not first:
        kernel[1, 1](array)
    take[1, 1](array)
    with Capture(streams[0]) as capture:
        with pytest.raises(RuntimeError, match="debug"):
            kernel[1, 1, streams[0]](array)
        take[1, 1, streams[0]](array)
    assert capture.nodes == 1
    kernel[1, 1](array)


@pytest.mark.parametrize(
    "value", ["text", None, 2**64, np.zeros(4, np.float32)[1:].view("V2")], ids=type
)
def test_bad_argument_when_the_stream_captures_then_the_capture_lives(
    enabled, array, streams, value
):
    take[1, 1](array)
    with Capture(streams[0]) as capture:
        with pytest.raises((TypeError, OverflowError, RuntimeError)):
            take[1, 1, streams[0]](value)
        take[1, 1, streams[0]](array)
    assert capture.nodes == 1


def test_callbacks_when_the_stream_captures_then_they_run_once(enabled, array, streams):
    kernel = fresh()
    seen = []
    configuration = kernel[1, 1, streams[0]]
    configuration(array)
    configuration.pre_launch_callbacks.append(lambda *found: seen.append(found))
    with Capture(streams[0]) as capture:
        configuration(array)
    assert capture.nodes == 1
    assert len(seen) == 1
