"""Stream capture on the stand-in driver: what it records, forbids and reports."""

import threading

import pytest
from cuda.bindings import driver as cu
from numba import cuda

from tests.standin.helpers import code, good

pytestmark = pytest.mark.standin
GLOBAL, THREAD_LOCAL, RELAXED = (
    cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL,
    cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
    cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED,
)
MODES = {"global": GLOBAL, "thread-local": THREAD_LOCAL, "relaxed": RELAXED}
UNSUPPORTED, INVALIDATED, UNMATCHED, UNJOINED, ISOLATION, IMPLICIT, WRONG_THREAD = (
    900, 901, 903, 904, 905, 906, 908,
)  # fmt: skip


@cuda.jit("void(int32)")
def nothing(i):
    pass


@pytest.fixture
def current(driver):
    nothing[1, 1](0)  # bound and loaded before any capture
    driver.clear()
    return cuda.current_context()


@pytest.fixture
def stream(current):
    handle = good(cu.cuStreamCreate(1))
    yield handle
    good(cu.cuStreamDestroy(handle))


@pytest.fixture
def other(current):
    return good(cu.cuStreamCreate(1))


@pytest.fixture
def event(current):
    return good(cu.cuEventCreate(2))


def begin(stream, mode=GLOBAL):
    good(cu.cuStreamBeginCapture(stream, mode))


def end(stream):
    return cu.cuStreamEndCapture(stream)


def launch_on(stream, value=1):
    nothing[1, 1, cuda.external_stream(int(stream))](value)


def status(stream) -> int:
    return int(good(cu.cuStreamIsCapturing(stream)))


def in_thread(work):
    """Return what work gives in a thread that has the primary context current."""
    answers = []

    def body():
        good(cu.cuCtxSetCurrent(good(cu.cuDevicePrimaryCtxRetain(0))))
        answers.append(work())
        good(cu.cuDevicePrimaryCtxRelease(0))

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    return answers[0]


def test_capture_when_launches_are_made_then_they_are_nodes_and_replayed_by_the_graph(
    driver, stream, other
):
    begin(stream)
    launch_on(stream, 1)
    launch_on(stream, 2)
    graph = good(end(stream))
    assert [(record.words, record.captured) for record in driver.launches()] == [
        ((1,), True),
        ((2,), True),
    ]
    assert good(cu.cuGraphGetNodes(graph, 0))[1] == 2
    executable = good(cu.cuGraphInstantiate(graph, 0))
    good(cu.cuGraphDestroy(graph))
    driver.clear()
    good(cu.cuGraphLaunch(executable, other))
    good(cu.cuGraphLaunch(executable, other))
    records = driver.launches()
    assert [record.words for record in records] == [(1,), (2,)] * 2
    assert {(record.stream, record.captured, record.replayed) for record in records} == {
        (int(other), False, True)
    }
    good(cu.cuGraphExecDestroy(executable))


def test_capture_when_memory_is_set_and_copied_then_only_the_replay_does_it(driver, stream):
    memory = driver.allocate(16)
    driver.write(memory, bytes(16))
    begin(stream)
    good(cu.cuMemsetD8Async(memory, 7, 8, stream))
    good(cu.cuMemcpyDtoDAsync(memory + 8, memory, 8, stream))
    graph = good(end(stream))
    assert driver.read(memory, 16) == bytes(16)
    executable = good(cu.cuGraphInstantiate(graph, 0))
    good(cu.cuGraphLaunch(executable, stream))
    assert driver.read(memory, 16) == bytes([7] * 16)
    driver.free(memory)


def test_capture_when_it_goes_on_then_stream_and_info_say_so(driver, stream, other):
    assert status(stream) == 0
    begin(stream)
    assert (status(stream), status(other)) == (1, 0)
    info = good(cu.cuStreamGetCaptureInfo(stream))
    assert int(info[0]) == 1
    assert int(info[1]) > 0
    good(end(stream))
    assert status(stream) == 0


def test_unsafe_call_when_it_spoils_a_capture_then_launches_and_the_end_say_so(
    driver, stream
):
    begin(stream)
    assert code(cu.cuMemAlloc(512)) == UNSUPPORTED
    assert status(stream) == 2
    with pytest.raises(Exception, match=r"901|INVALIDATED"):
        launch_on(stream)
    assert code(end(stream)) == INVALIDATED
    assert status(stream) == 0


def test_unsafe_call_when_the_thread_mode_is_relaxed_then_it_is_allowed(driver, stream):
    begin(stream)
    before = good(cu.cuThreadExchangeStreamCaptureMode(RELAXED))
    good(cu.cuMemFree(good(cu.cuMemAlloc(512))))
    assert int(good(cu.cuThreadExchangeStreamCaptureMode(before))) == int(RELAXED)
    assert int(before) == int(GLOBAL)
    good(end(stream))


STRICT = {
    "event-creation": lambda event: cu.cuEventCreate(2),
    "event-destruction": cu.cuEventDestroy,
    "library": lambda event: cu.cuLibraryLoadData(b"", [], [], 0, [], [], 0),
}


@pytest.mark.parametrize("name", STRICT)
def test_strict_capture_when_on_then_events_and_libraries_spoil_a_capture_too(
    driver, stream, event, name
):
    driver.strict_capture(True)
    begin(stream)
    assert code(STRICT[name](event)) == UNSUPPORTED
    assert code(end(stream)) == INVALIDATED


def test_first_launch_when_in_a_capture_then_it_works_unless_strict(driver, stream):
    def fresh():
        @cuda.jit
        def never_launched(i):
            pass

        return never_launched[1, 1, cuda.external_stream(int(stream))]

    begin(stream)
    fresh()(1)
    good(end(stream))
    driver.strict_capture(True)
    begin(stream)
    with pytest.raises(Exception, match=r"900|UNSUPPORTED"):
        fresh()(1)
    end(stream)


def test_wait_when_the_event_is_from_outside_the_capture_then_it_is_isolation(
    driver, stream, other, event
):
    good(cu.cuEventRecord(event, other))
    begin(stream)
    assert code(cu.cuStreamWaitEvent(stream, event, 0)) == ISOLATION
    assert code(end(stream)) == INVALIDATED


def test_wait_when_the_event_is_of_the_capture_then_the_stream_joins_it(
    driver, stream, other
):
    fork, join = good(cu.cuEventCreate(2)), good(cu.cuEventCreate(2))
    begin(stream)
    launch_on(stream, 1)
    good(cu.cuEventRecord(fork, stream))
    good(cu.cuStreamWaitEvent(other, fork, 0))
    assert status(other) == 1
    launch_on(other, 2)
    good(cu.cuEventRecord(join, other))
    good(cu.cuStreamWaitEvent(stream, join, 0))
    launch_on(stream, 3)
    graph = good(end(stream))
    assert good(cu.cuGraphGetNodes(graph, 0))[1] == 3
    assert status(other) == 0


def test_end_when_a_stream_was_not_joined_then_it_is_unjoined(driver, stream, other, event):
    begin(stream)
    good(cu.cuEventRecord(event, stream))
    good(cu.cuStreamWaitEvent(other, event, 0))
    launch_on(other, 2)
    assert code(end(stream)) == UNJOINED
    assert status(other) == 0


def test_end_when_called_on_a_joined_stream_then_it_is_unmatched(
    driver, stream, other, event
):
    begin(stream)
    good(cu.cuEventRecord(event, stream))
    good(cu.cuStreamWaitEvent(other, event, 0))
    assert code(end(other)) == UNMATCHED
    assert code(end(stream)) == INVALIDATED


@pytest.mark.parametrize("name", MODES)
def test_end_when_called_in_another_thread_then_only_relaxed_gives_the_graph(
    driver, stream, name
):
    begin(stream, MODES[name])
    assert in_thread(lambda: code(end(stream))) == (
        0 if name == "relaxed" else WRONG_THREAD
    )
    assert status(stream) == 0


def test_launch_when_a_blocking_stream_captures_then_the_legacy_stream_is_implicit(
    driver, current
):
    blocking = good(cu.cuStreamCreate(0))
    begin(blocking)
    assert code(cu.cuStreamIsCapturing(0)) == IMPLICIT
    assert status(blocking) == 1
    with pytest.raises(Exception, match=r"906|IMPLICIT"):
        nothing[1, 1](1)
    assert code(end(blocking)) == INVALIDATED


def test_legacy_stream_when_a_non_blocking_stream_captures_then_launches_there_run(
    driver, stream
):
    begin(stream)
    nothing[1, 1](1)
    assert not driver.launches()[-1].captured
    good(end(stream))


def test_begin_when_on_the_legacy_stream_then_it_is_unsupported(driver, current):
    assert code(cu.cuStreamBeginCapture(0, GLOBAL)) == UNSUPPORTED
    assert code(end(0)) == 401


def test_synchronize_when_the_stream_captures_then_it_spoils_it(driver, stream):
    begin(stream, RELAXED)
    assert code(cu.cuStreamSynchronize(stream)) == UNSUPPORTED
    assert code(end(stream)) == INVALIDATED
