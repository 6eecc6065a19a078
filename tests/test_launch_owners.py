"""What a launch on a foreign stream keeps alive, and how long."""

import gc
import weakref

import numpy as np
import pytest
from numba import cuda

import stridedview
from stridedview import _stream
from tests.launching import Foreign, pointer_of

pytestmark = pytest.mark.standin


@cuda.jit
def take(a):
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
