"""Launches that are interrupted: nothing is half done, and the next one is right."""

import contextlib
import os
import random
import signal
import sys
import threading
import time
import warnings

import numpy as np
import pytest
from cuda.bindings import driver as cu
from numba import cuda
from numba.cuda.core.errors import NumbaPerformanceWarning
from numba.cuda.core.rewrites import Rewrite, rewrite_registry

import stridedview
from tests.launching import Capture, capture_mode, foreign, recorded, rests_as, tensor
from tests.standin.helpers import good, words_of

pytestmark = pytest.mark.standin


def fresh(**options):
    """Return a kernel of one argument without overloads."""

    @cuda.jit(**options)
    def kernel(a):
        pass

    return kernel


def vector(size=4, dtype=np.float32):
    return cuda.to_device(np.zeros(size, dtype))


class Interrupted(Rewrite):
    """Interrupts the compilation of kernels named ``interrupted``, once."""

    left = 1

    def match(self, func_ir, block, typemap, calltypes):
        if func_ir.func_id.func_name == "interrupted" and Interrupted.left:
            Interrupted.left -= 1
            raise KeyboardInterrupt
        return False


@pytest.fixture
def interrupted():
    """Give a kernel whose first compilation is interrupted."""
    rewrites = rewrite_registry.rewrites["after-inference"]
    Interrupted.left = 1
    rewrites.append(Interrupted)

    @cuda.jit
    def interrupted(a):
        pass

    yield interrupted
    rewrites.remove(Interrupted)


def test_compilation_when_interrupted_then_the_next_launch_is_right(enabled, interrupted):
    array = vector()
    before = rests_as(interrupted[1, 1])
    with pytest.raises(KeyboardInterrupt):
        interrupted[1, 1](array)
    assert rests_as(interrupted[1, 1]) == before
    assert interrupted.overloads == {}
    for _ in range(2):
        assert recorded(interrupted, (array,)).words == words_of(array)


def test_forall_when_its_compilation_is_interrupted_then_the_next_is_right(
    enabled, interrupted
):
    array = vector()
    with pytest.raises(KeyboardInterrupt):
        interrupted.forall(8)(array)
    assert capture_mode() == 0
    interrupted.forall(8)(array)
    assert enabled.launches()[-1].words == words_of(array)


def test_prepare_when_its_compilation_is_interrupted_then_the_next_is_right(
    enabled, interrupted
):
    array = vector()
    with pytest.raises(KeyboardInterrupt):
        stridedview.prepare(interrupted[1, 1], array)
    stridedview.prepare(interrupted[1, 1], array)()
    assert enabled.launches()[-1].words == words_of(array)


def interrupting_callback(configuration):
    def callback(*_):
        configuration.pre_launch_callbacks.clear()
        raise KeyboardInterrupt

    configuration.pre_launch_callbacks.append(callback)


@pytest.mark.parametrize("argument", ["device", "host", "record"])
def test_callback_when_it_is_interrupted_then_nothing_is_launched(enabled, argument):
    value = {
        "device": vector(),
        "host": np.zeros(4, np.float32),
        "record": np.zeros(1, [("a", "i4")])[0],
    }[argument]
    configuration = fresh()[1, 1]
    before = rests_as(configuration)
    interrupting_callback(configuration)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NumbaPerformanceWarning)
        with pytest.raises(KeyboardInterrupt):
            configuration(value)
        assert enabled.launches() == []
        assert rests_as(configuration) == before
        configuration(value)
    assert len(enabled.launches()) == 1


def test_capture_when_a_callback_in_it_is_interrupted_then_it_goes_on(enabled):
    stream, array = int(good(cu.cuStreamCreate(1))), vector()
    configuration = fresh()[1, 1, stream]
    configuration(array)
    interrupting_callback(configuration)
    with Capture(stream) as capture:
        with pytest.raises(KeyboardInterrupt):
            configuration(array)
        configuration(array)
    assert capture.nodes == 1


@pytest.fixture
def interruptible():
    """Have SIGINT raise KeyboardInterrupt, which it does not in a job of the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("way", ["plan", "prepared", "callback"])
def test_launch_when_a_signal_comes_while_the_driver_works_then_it_is_launched_once(
    enabled, interruptible, way
):
    kernel, array = fresh(), vector()
    configuration = kernel[1, 1]
    configuration(array)
    launch = {
        "plan": lambda: configuration(array),
        "prepared": stridedview.prepare(configuration, array),
        "callback": lambda: configuration(array),
    }[way]
    if way == "callback":
        configuration.pre_launch_callbacks.append(lambda *_: None)
    before = rests_as(configuration)
    enabled.clear()
    enabled.on_launch(lambda _: os.kill(os.getpid(), signal.SIGINT), other_thread=True)

    def launch_and_go_on():
        launch()
        for _ in range(1000):  # the interpreter looks for signals between two lines
            pass

    with pytest.raises(KeyboardInterrupt):
        launch_and_go_on()
    enabled.on_launch(None)
    assert len(enabled.launches()) == 1
    assert rests_as(configuration) == before
    launch()
    assert [record.words for record in enabled.launches()] == 2 * [words_of(array)]


def test_launches_when_signals_come_all_the_time_then_each_is_whole(enabled):
    kernel, arrays = fresh(), [vector(size) for size in (1, 2, 3)]
    values = [arrays[0], tensor(arrays[1]), foreign(arrays[2]), 7]
    for value in values:
        kernel[1, 1](value)
    before = rests_as(kernel[1, 1])
    enabled.clear()
    with signals() as may_interrupt:
        done = interrupts = 0
        while done < 4000 or not interrupts:
            try:
                may_interrupt[0] = True
                kernel[1, 1](values[done % 4])
                may_interrupt[0] = False
                done += 1
            except KeyboardInterrupt:  # noqa: PERF203
                may_interrupt[0] = False
                interrupts += 1
    assert rests_as(kernel[1, 1]) == before
    expected = {*map(words_of, arrays), (7,)}
    assert {record.words for record in enabled.launches()} == expected


@contextlib.contextmanager
def interruptible_callbacks():
    """Let interrupts come in callbacks of the garbage collector, where Python drops them.

    Hypothesis, for one, has such a callback.
    """
    report = sys.unraisablehook

    def report_others(unraisable):
        if unraisable.exc_type is not KeyboardInterrupt:
            report(unraisable)

    sys.unraisablehook = report_others
    try:
        yield
    finally:
        sys.unraisablehook = report


@contextlib.contextmanager
def signals():
    """Let signals come all the time; they interrupt while the list it gives says so."""
    may_interrupt, over = [False], threading.Event()

    def interrupt(*_):
        if may_interrupt[0]:
            raise KeyboardInterrupt

    def pester():
        while not over.wait(0.0005):
            os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, interrupt)
    thread = threading.Thread(target=pester)
    thread.start()
    try:
        with interruptible_callbacks():
            yield may_interrupt
    finally:
        over.set()
        thread.join()
        signal.signal(signal.SIGINT, before)


def test_launch_through_numba_when_interrupted_anywhere_then_the_thread_is_as_before(
    enabled,
):
    kernel, host = fresh(), np.zeros(6, np.float32)
    configuration = kernel[1, 1]
    chance = random.Random(0)
    with warnings.catch_warnings(), interruptible_callbacks():
        warnings.simplefilter("ignore", NumbaPerformanceWarning)
        configuration(host)
        start = time.perf_counter()
        configuration(host)
        duration = time.perf_counter() - start
        before = rests_as(configuration)
        enabled.recording(False)
        previous = signal.signal(signal.SIGALRM, signal.default_int_handler)
        try:
            for _ in range(1500):
                # What Numba's own C code makes of an interrupt is not ours.
                with contextlib.suppress(KeyboardInterrupt, KeyError, SystemError):
                    signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-6, duration))
                    configuration(host)
                    signal.setitimer(signal.ITIMER_REAL, 0)
                with contextlib.suppress(KeyboardInterrupt):
                    signal.setitimer(signal.ITIMER_REAL, 0)
                assert rests_as(configuration) == before
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, previous)
            enabled.recording(True)
