"""What a launch on a foreign stream keeps alive, and how long."""

import gc
import weakref

import numpy as np
import pytest
from numba import cuda

import stridedview
from stridedview import _stream
from tests.launching import Foreign, pointer_of, producer

pytestmark = pytest.mark.standin


@cuda.jit
def take(a):
    pass


@cuda.jit
def take_two(a, b):
    pass


@pytest.fixture
def enabled(driver):
    """Enable for a test, and give the stand-in."""
    _stream.release_done()
    with stridedview.enabled():
        yield driver


@pytest.fixture
def array(driver):
    return cuda.to_device(np.zeros(4, np.float32))


@pytest.fixture
def side(driver):
    """Give the stream that the producers name."""
    return cuda.stream()


def orderings(driver):
    """Return (waiting stream, stream waited for) of each wait so far."""
    return [(wait.waiting, wait.recorded_on) for wait in driver.orderings()]


def kept(array, stream, *, on):
    """Launch on a stream over an object that names another; return a weak reference."""
    made = Foreign(
        pointer_of(array), (4,), np.float32, owner=array, stream=int(stream.handle)
    )
    take[1, 1, on](made)
    return weakref.ref(made)


def test_owner_when_its_launch_on_another_stream_is_not_done_then_it_is_kept(
    enabled, array, side
):
    target = cuda.stream()
    enabled.hold_events(True)
    first = kept(array, side, on=target)
    gc.collect()
    assert first() is not None
    second = kept(array, side, on=target)
    assert first() is not None
    enabled.hold_events(False)
    third = kept(array, side, on=target)
    gc.collect()
    assert first() is None
    assert second() is None
    _stream.release_done()
    assert third() is None
    assert _stream.kept_count() == 0


def test_owner_when_launched_on_its_own_stream_then_it_is_not_kept(enabled, array, side):
    kept(array, side, on=side)
    before = _stream.kept_count()
    enabled.hold_events(True)
    found = kept(array, side, on=side)
    gc.collect()
    assert found() is None
    assert _stream.kept_count() == before


def test_owner_when_there_are_very_many_then_the_producers_stream_waits_instead(
    enabled, array, side
):
    target = cuda.stream()
    enabled.hold_events(True)
    for _ in range(1024):
        kept(array, side, on=target)
    assert _stream.kept_count() == 1024
    enabled.clear()
    found = kept(array, side, on=target)
    assert (int(side.handle), int(target.handle)) in orderings(enabled)
    assert _stream.kept_count() == 1024
    assert found() is None
    enabled.hold_events(False)
    _stream.release_done()
    assert _stream.kept_count() == 0


def test_owner_when_the_launch_fails_then_it_is_not_kept(enabled, array, side):
    target = cuda.stream()
    kept(array, side, on=target)
    _stream.release_done()
    enabled.fail_next("cuLaunchKernel", 700)
    with pytest.raises(RuntimeError, match="700"):
        kept(array, side, on=target)
    gc.collect()
    assert _stream.kept_count() == 0


def test_owner_when_there_are_very_many_then_every_producers_stream_waits(
    enabled, array, side
):
    target, other = cuda.stream(), cuda.stream()
    pair = [
        Foreign(pointer_of(array), (4,), "f4", owner=array, stream=int(stream.handle))
        for stream in (side, other)
    ]
    slow = cuda.jit(debug=True, opt=False)(take_two.py_func)
    enabled.hold_events(True)
    for _ in range(1024):
        kept(array, side, on=target)
    expected = {(int(stream.handle), int(target.handle)) for stream in (side, other)}
    for kernel in (take_two, slow):
        enabled.clear()
        kernel[1, 1, target](*pair)
        assert expected <= set(orderings(enabled)), kernel
    enabled.hold_events(False)
    _stream.release_done()
    assert _stream.kept_count() == 0


# A producer hands out a managed tensor, which may own memory that the producer does not.
HANDED_OUT = {
    "DLPack": "Plain",
    "exchange": "WithoutBorrow",
    "exchange, borrowed": "Producer",
}


def launch_prepared(value, on):
    stridedview.prepare(take[1, 1, on], value)()


LAUNCHES = {
    "launch": lambda value, on: take[1, 1, on](value),
    "tuple": lambda value, on: take[1, 1, on]((value, 1)),
    "prepared": launch_prepared,
    "through Numba": lambda value, on: cuda.jit(debug=True, opt=False)(take.py_func)[
        1, 1, on
    ](value),
}


@pytest.mark.parametrize("way", LAUNCHES)
@pytest.mark.parametrize("kind", HANDED_OUT)
def test_handed_out_memory_when_its_launch_is_not_done_then_it_is_kept(
    enabled, array, side, kind, way
):
    made = producer(array, HANDED_OUT[kind])
    LAUNCHES[way](made, side)
    enabled.producers().set_work_stream(2)
    try:
        enabled.hold_events(True)
        LAUNCHES[way](made, side)
        gc.collect()
        # What was borrowed is the producer's own, and goes with the argument.
        assert made.exports >= (HANDED_OUT[kind] != "Producer")
        enabled.hold_events(False)
        _stream.release_done()
        gc.collect()
        assert made.exports == 0
    finally:
        enabled.producers().set_work_stream(0)


def test_owner_when_its_launch_is_done_then_later_launches_of_any_sort_let_it_go(
    enabled, array, side
):
    take[1, 1](array)
    found = kept(array, side, on=cuda.stream())
    assert found() is not None
    for _ in range(64):
        take[1, 1](array)
    assert found() is None


def test_owner_when_its_launch_is_done_then_a_garbage_collection_lets_it_go(
    enabled, array, side
):
    enabled.hold_events(True)
    found = kept(array, side, on=cuda.stream())
    gc.collect()
    assert found() is not None
    enabled.hold_events(False)
    gc.collect()
    assert found() is None


def upload(stream):
    view, host = stridedview.zeros(4, "f4"), stridedview.pinned(4, "f4")
    view.copy_to_device(host, stream=stream)
    return [weakref.ref(view), weakref.ref(host)]


def download(stream):
    view, host = stridedview.zeros(4, "f4"), stridedview.pinned(4, "f4")
    view.copy_to_host(host, stream=stream)
    return [weakref.ref(view), weakref.ref(host)]


def copy_on_device(stream):
    view, other = stridedview.zeros(4, "f4"), stridedview.zeros(4, "f4")
    view.copy_to_device(other, stream=stream)
    return [weakref.ref(view), weakref.ref(other)]


def fill(stream):
    view = stridedview.zeros(4, "f4")
    view.fill(1, stream=stream)
    return [weakref.ref(view)]


@pytest.mark.parametrize("copy", [upload, download, copy_on_device, fill])
def test_copy_when_it_is_on_a_named_stream_then_both_sides_are_kept_until_done(
    enabled, side, copy
):
    enabled.hold_events(True)
    watched = copy(side)
    gc.collect()
    assert all(watch() is not None for watch in watched)
    enabled.hold_events(False)
    _stream.release_done()
    assert all(watch() is None for watch in watched)
