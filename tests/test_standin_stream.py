"""Streams and events of the stand-in driver, the orderings it logs, held work."""

import ctypes
import threading
import time

import numpy as np
import pytest
from cuda.bindings import driver as cu
from numba import cuda

from tests.standin.helpers import code, good, kernel_of, run_child

pytestmark = pytest.mark.standin


@cuda.jit("void(int32)")
def nothing(i):
    pass


@pytest.fixture
def current(driver):
    return cuda.current_context()


@pytest.fixture
def streams(current):
    return [good(cu.cuStreamCreate(1)) for _ in range(3)]


@pytest.fixture
def event(current):
    return good(cu.cuEventCreate(2))


def stream_id(stream) -> int:
    return int(good(cu.cuStreamGetId(stream)))


def test_stream_ids_when_of_different_streams_then_they_differ(streams):
    handles = [0, 2, *streams]
    assert len({stream_id(handle) for handle in handles}) == len(handles)
    assert stream_id(0) == stream_id(1)


def test_per_thread_stream_when_asked_in_two_threads_then_it_is_two_streams(current):
    seen = []

    def ask():
        context = good(cu.cuDevicePrimaryCtxRetain(0))
        good(cu.cuCtxSetCurrent(context))
        seen.append(stream_id(2))
        good(cu.cuDevicePrimaryCtxRelease(0))

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    assert seen[0] != stream_id(2)


def test_stream_context_when_asked_then_it_is_the_current_one(streams):
    context = good(cu.cuCtxGetCurrent())
    assert int(good(cu.cuStreamGetCtx(streams[0]))) == int(context)
    assert int(good(cu.cuStreamGetCtx_v2(streams[0]))[0]) == int(context)
    assert good(cu.cuStreamGetFlags(streams[0])) == 1


def test_stream_when_destroyed_then_its_handle_is_invalid(streams):
    good(cu.cuStreamDestroy(streams[0]))
    assert code(cu.cuStreamQuery(streams[0])) == 400


def test_numba_streams_and_events_when_used_then_work_and_time_pass(driver):
    stream = cuda.stream()
    start, end = cuda.event(), cuda.event()
    start.record(stream)
    nothing[1, 1, stream](1)
    end.record(stream)
    end.synchronize()
    assert end.query()
    assert start.elapsed_time(end) >= 0
    stream.synchronize()


def test_ordering_when_a_stream_waits_then_it_is_logged_with_both_streams(
    driver, streams, event
):
    good(cu.cuEventRecord(event, streams[0]))
    good(cu.cuStreamWaitEvent(streams[1], event, 0))
    (wait,) = driver.orderings()
    assert (wait.event, wait.recorded_on, wait.waiting) == (
        int(event),
        int(streams[0]),
        int(streams[1]),
    )
    assert (wait.recorded_id, wait.waiting_id) == (
        stream_id(streams[0]),
        stream_id(streams[1]),
    )


def test_ordering_when_the_event_was_not_recorded_then_nothing_is_logged(
    driver, streams, event
):
    good(cu.cuStreamWaitEvent(streams[1], event, 0))
    assert driver.orderings() == []


def test_ordering_when_streams_are_0_and_2_then_they_are_logged_as_1_and_2(driver, event):
    good(cu.cuEventRecord(event, 0))
    good(cu.cuStreamWaitEvent(2, event, 0))
    assert [(wait.recorded_on, wait.waiting) for wait in driver.orderings()] == [(1, 2)]


def test_is_behind_when_waits_chain_then_the_last_stream_is_behind_the_first(
    driver, streams
):
    first, _, third = map(stream_id, streams)
    nothing[1, 1, cuda.external_stream(int(streams[0]))](1)
    launched = driver.launches()[-1].sequence
    for source, target in ((streams[0], streams[1]), (streams[1], streams[2])):
        event = good(cu.cuEventCreate(2))
        good(cu.cuEventRecord(event, source))
        good(cu.cuStreamWaitEvent(target, event, 0))
    assert driver.is_behind(third, first, launched)
    assert not driver.is_behind(first, third)


def test_is_behind_when_the_event_came_before_the_work_then_it_is_not(
    driver, streams, event
):
    good(cu.cuEventRecord(event, streams[0]))
    nothing[1, 1, cuda.external_stream(int(streams[0]))](1)
    good(cu.cuStreamWaitEvent(streams[1], event, 0))
    assert not driver.is_behind(
        stream_id(streams[1]), stream_id(streams[0]), driver.launches()[-1].sequence
    )


def test_events_when_held_then_they_are_not_ready_until_released(driver, streams, event):
    driver.hold_events(True)
    assert code(cu.cuEventQuery(event)) == 0  # never recorded
    good(cu.cuEventRecord(event, streams[0]))
    assert code(cu.cuEventQuery(event)) == 600
    assert code(cu.cuStreamQuery(streams[0])) == 600
    driver.hold_events(False)
    assert code(cu.cuEventQuery(event)) == 0


def test_events_when_held_and_waited_for_then_they_are_done(driver, streams, event):
    driver.hold_events(True)
    good(cu.cuEventRecord(event, streams[0]))
    good(cu.cuEventSynchronize(event))
    assert code(cu.cuEventQuery(event)) == 0
    good(cu.cuEventRecord(event, streams[0]))
    assert code(cu.cuEventQuery(event)) == 600
    good(cu.cuStreamSynchronize(streams[0]))
    assert code(cu.cuEventQuery(event)) == 0


def test_host_function_when_put_on_a_stream_then_it_runs(driver, streams):
    done = []
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(done.append)
    handle = ctypes.c_void_p(int(streams[0]))
    assert driver.library().cuLaunchHostFunc(handle, function, ctypes.c_void_p(7)) == 0
    assert done == [7]


def test_callback_when_added_to_a_stream_then_it_runs_with_stream_and_status(
    driver, streams
):
    done = []
    kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)
    function = kind(lambda *arguments: done.append(arguments))
    handle = ctypes.c_void_p(int(streams[0]))
    assert (
        driver.library().cuStreamAddCallback(handle, function, ctypes.c_void_p(7), 0) == 0
    )
    assert done == [(int(streams[0]), 0, 7)]


def test_launches_when_held_then_one_waits_and_others_may_run_python(driver):
    nothing[1, 1](1)
    driver.clear()
    driver.hold_launches()
    thread = threading.Thread(target=lambda: nothing[1, 1](2))
    thread.start()
    deadline = time.monotonic() + 5
    while not driver.waiting() and time.monotonic() < deadline:
        time.sleep(0.001)
    assert driver.waiting() == 1
    assert driver.launches() == []
    driver.release()
    thread.join(5)
    assert driver.launches()[-1].words == (2,)


def test_launches_when_held_for_too_long_then_they_time_out(driver):
    nothing[1, 1](1)
    driver.hold_launches(patience=0.05)
    with pytest.raises(Exception, match=r"702|LAUNCH_TIMEOUT"):
        nothing[1, 1](1)


@pytest.mark.parametrize("other_thread", [False, True])
def test_hook_when_a_launch_runs_then_it_sees_the_record(driver, other_thread):
    seen = []
    driver.on_launch(seen.append, other_thread=other_thread)
    nothing[3, 1](4)
    driver.on_launch(None)
    nothing[3, 1](5)
    assert [(record.grid[0], record.words) for record in seen] == [(3, (4,))]


def test_hook_when_in_another_thread_and_the_gil_is_kept_then_the_launch_times_out(driver):
    function = good(cu.cuKernelGetFunction(kernel_of(nothing)))
    pointers = (ctypes.c_void_p * 1)(ctypes.addressof(value := ctypes.c_int32(1)))
    keeps_gil = ctypes.PyDLL(driver.library()._name).cuLaunchKernel
    arguments = [
        ctypes.c_void_p(int(function)),
        *[1] * 6,
        0,
        None,
        ctypes.byref(pointers),
        None,
    ]
    driver.hold_launches(patience=0.2)
    driver.release()
    driver.on_launch(lambda record: None, other_thread=True)
    assert keeps_gil(*arguments) == 702
    assert value.value == 1


def test_numba_when_it_copies_on_a_stream_then_the_calls_name_it(driver):
    stream = cuda.stream()
    with driver.traced() as names:
        cuda.to_device(np.ones(3), stream=stream)
    assert "cuMemcpyHtoDAsync_v2" in names


def test_per_thread_default_streams_when_chosen_then_numbas_stream_0_is_the_per_thread_one(
    monkeypatch,
):
    monkeypatch.setenv("CUDA_PYTHON_CUDA_PER_THREAD_DEFAULT_STREAM", "1")
    child = run_child(
        """
        from tests import standin
        standin.load()
        from numba import cuda
        from cuda.bindings import driver as cu
        @cuda.jit("void(int32)")
        def nothing(i):
            pass
        nothing[1, 1](1)
        record = standin.launches()[-1]
        own = cu.cuStreamGetId(2)[1]
        print(record.stream, record.stream_id == own, cu.cuStreamGetId(0)[1] == own)
        """
    )
    assert child.stdout.split() == ["2", "True", "True"], child.stderr
