"""A prepared launch does what the launch does, with parameters packed before."""

import gc
import threading
import weakref

import numpy as np
import pytest
from numba import cuda

import stridedview
from stridedview import _stream
from tests.launching import (
    HIT,
    PRODUCERS,
    Foreign,
    calls_of,
    caught,
    pointer_of,
    producer,
    recorded,
    tensor,
)
from tests.standin.helpers import run_child

pytestmark = pytest.mark.standin


@pytest.fixture
def kernel():
    """Give a kernel of three arguments without overloads."""

    @cuda.jit
    def take(x, y, n):
        pass

    return take


def vector(size=4, dtype=np.float32):
    return cuda.to_device(np.zeros(size, dtype))


def launched(driver, prepared):
    """Launch, and return the one record of it."""
    driver.clear()
    prepared()
    (found,) = driver.launches()
    return found


def facts(record):
    return (
        record.function, record.grid, record.block, record.shared, record.parameters,
        record.stream_id, record.packed, record.entry,
    )  # fmt: skip


# ---- the launch ----


@pytest.mark.parametrize("make", PRODUCERS.values(), ids=PRODUCERS)
def test_prepared_launch_when_called_then_the_driver_sees_the_ordinary_launch(
    enabled, kernel, make
):
    args = (make(vector()), (vector(7), 2.5), 3)
    kernel[2, 3](*args)
    expected = recorded(kernel, args, grid=(2, 3))
    prepared = stridedview.prepare(kernel[2, 3], *args)
    for _ in range(2):
        assert facts(launched(enabled, prepared)) == facts(expected)


def test_prepare_when_called_then_nothing_is_launched(enabled, kernel):
    enabled.clear()
    stridedview.prepare(kernel[1, 1], vector(), vector(), 1)
    assert enabled.launches() == []


def test_prepared_launch_when_called_then_only_the_driver_is_called(enabled, kernel):
    prepared = stridedview.prepare(kernel[1, 1], tensor(vector()), tensor(vector()), 1)
    assert calls_of(prepared) == HIT
    assert calls_of(prepared.launch) == HIT


def test_prepared_launch_when_it_has_many_parameters_then_all_are_packed(enabled):
    names = ", ".join(f"a{index}" for index in range(100))
    scope = {}
    exec(f"def take({names}):\n    pass\n", scope)
    kernel, args = cuda.jit(scope["take"]), [vector(index + 1) for index in range(100)]
    prepared = stridedview.prepare(kernel[1, 1], *args)
    assert launched(enabled, prepared).parameters == recorded(kernel, args).parameters


def test_prepared_launch_when_it_has_no_parameters_then_it_is_launched(enabled):
    @cuda.jit
    def nothing():
        pass

    assert launched(enabled, stridedview.prepare(nothing[3, 1])).grid == (3, 1, 1)


CALLS = {
    "an argument": lambda prepared: prepared(1),
    "a keyword": lambda prepared: prepared(x=1),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_prepared_launch_when_it_is_given_arguments_then_it_refuses(enabled, kernel, call):
    prepared = stridedview.prepare(kernel[1, 1], vector(), vector(), 1)
    with caught(TypeError, "takes no arguments"):
        call(prepared)


def test_prepared_launch_when_the_configuration_is_changed_then_it_follows(enabled, kernel):
    configuration = kernel[1, 1]
    prepared = stridedview.prepare(configuration, vector(), vector(), 1)
    configuration.griddim = (5, 1, 1)
    assert launched(enabled, prepared).grid == (5, 1, 1)


def test_prepared_launch_when_the_driver_waits_then_the_gil_is_free(enabled, kernel):
    prepared = stridedview.prepare(kernel[1, 1], vector(), vector(), 1)
    enabled.hold_launches()
    thread = threading.Thread(target=prepared)
    thread.start()
    while not enabled.waiting():
        pass
    first, other = prepared.args[0], vector()
    # Renewed while the driver holds the old parameters: that launch keeps them.
    prepared.update(0, other)
    enabled.release()
    thread.join()
    assert enabled.launches()[-1].words[4] == pointer_of(first)
    assert launched(enabled, prepared).words[4] == pointer_of(other)


# ---- arguments ----


def test_update_when_the_signature_is_the_same_then_that_argument_is_packed(
    enabled, kernel
):
    x, y, other = tensor(vector()), tensor(vector(5)), tensor(vector(9))
    prepared = stridedview.prepare(kernel[1, 1], x, y, 1)
    prepared.update(1, other)
    prepared.update(2, 8)
    assert prepared.args == (x, other, 8)
    assert (
        launched(enabled, prepared).parameters == recorded(kernel, (x, other, 8)).parameters
    )


def test_update_when_a_tuple_is_among_the_arguments_then_the_right_one_is_packed(
    enabled, kernel
):
    x, pair, other = (
        tensor(vector()),
        (tensor(vector(5)), (1, 2.0)),
        (tensor(vector(3)), (4, 5.0)),
    )
    prepared = stridedview.prepare(kernel[1, 1], pair, x, 1)
    prepared.update(0, other)
    prepared.update(1, pair[0])
    expected = recorded(kernel, (other, pair[0], 1)).parameters
    assert launched(enabled, prepared).parameters == expected


OTHERS = {
    "dtype": (lambda: vector(4, np.float64), "dtype float32 -> float64"),
    "rank": (lambda: cuda.device_array((2, 2), np.float32), "ndim 1 -> 2"),
    "layout": (lambda: vector(8)[::2], "layout C -> A"),
    "kind": (lambda: 1, "1-d float32 .C. on cuda:0 -> int"),
    "host array": (lambda: np.zeros(4, np.float32), "it cannot be packed"),
}


@pytest.mark.parametrize("case", OTHERS.values(), ids=OTHERS)
def test_update_when_the_signature_differs_then_it_says_how(enabled, kernel, case):
    make, message = case
    prepared = stridedview.prepare(kernel[1, 1], vector(), vector(), 1)
    before = prepared.args
    with caught(TypeError, rf"argument 2 'y': {message}.*prepare it anew"):
        prepared.update(1, make())
    assert prepared.args is before


@pytest.mark.parametrize("index", [-1, 3])
def test_update_when_there_is_no_such_argument_then_index_error(enabled, kernel, index):
    prepared = stridedview.prepare(kernel[1, 1], vector(), vector(), 1)
    with pytest.raises(IndexError, match="has 3, counted from 0"):
        prepared.update(index, 1)


class Lying(int):
    """An int that says yes to every comparison."""

    __lt__ = __le__ = __gt__ = __ge__ = lambda self, other: True


class Position:
    def __index__(self):
        return 2


@pytest.mark.parametrize("index", [Lying(10**7), Lying(-1), 2**100, -(2**100)])
def test_update_when_the_index_lies_then_what_it_is_counts(enabled, kernel, index):
    prepared = stridedview.prepare(kernel[1, 1], vector(), vector(), 1)
    with pytest.raises(IndexError, match="has 3, counted from 0"):
        prepared.update(index, 1)
    prepared.update(Position(), 5)
    assert launched(enabled, prepared).words[-1] == 5


@pytest.mark.parametrize("index", ["a", None, 0.0, (0,)], ids=str)
def test_update_when_the_index_is_none_then_it_says_what_it_wants(enabled, kernel, index):
    prepared = stridedview.prepare(kernel[1, 1], vector(), vector(), 1)
    name = type(index).__name__
    with pytest.raises(TypeError, match=f"index is an argument's position.*not .*{name}"):
        prepared.update(index, 1)


def test_update_when_the_producer_changes_at_each_reading_then_it_says_so(enabled, kernel):
    array, readings = vector(), []

    class Changing:
        @property
        def __cuda_array_interface__(self):
            readings.append(1)
            dtype = np.int32 if len(readings) % 2 else np.float32
            return Foreign(pointer_of(array), (4,), dtype).__cuda_array_interface__

    same = Foreign(pointer_of(array), (4,), np.float32, owner=array)
    prepared = stridedview.prepare(kernel[1, 1], same, same, 1)
    with caught(TypeError, "argument 2 'y': it changes from one reading to the next; the"):
        prepared.update(1, Changing())


def test_prepared_launch_when_made_by_new_then_it_is_refused(driver):
    kind = stridedview.PreparedLaunch
    for make in (kind, lambda: kind.__new__(kind), lambda: object.__new__(kind)):
        with pytest.raises(TypeError, match=r"prepare\(\) makes prepared|is not safe"):
            make()


def test_update_when_the_value_does_not_fit_then_the_launch_stays(enabled):
    @cuda.jit("void(int8)")
    def take(n):
        pass

    prepared = stridedview.prepare(take[1, 1], 5)
    with caught(OverflowError, "argument 1 'n'"):
        prepared.update(0, 1000)
    assert launched(enabled, prepared).words == (5,)


REFUSED_VALUES = {
    "number": (2, 2**64, OverflowError),
    "number in a tuple": (1, (1, (2, 2**64)), OverflowError),
    "freed memory": (0, Foreign(8, (4,), np.float32), BufferError),
}


@pytest.mark.parametrize("case", REFUSED_VALUES)
def test_update_when_a_value_cannot_be_passed_then_its_argument_is_named(
    enabled, kernel, case
):
    index, value, error = REFUSED_VALUES[case]
    prepared = stridedview.prepare(kernel[1, 1], vector(), (1, (2, 3)), 4)
    with caught(error, f"argument {index + 1} '{'xyn'[index]}': "):
        prepared.update(index, value)
    assert launched(enabled, prepared).words[-4:] == (1, 2, 3, 4)


def test_arguments_when_only_the_prepared_launch_holds_them_then_they_live(enabled, kernel):
    array = vector()
    made = producer(array, "Plain")
    made_foreign = Foreign(pointer_of(array), (4,), np.float32)
    view = weakref.ref(made_foreign)
    prepared = stridedview.prepare(kernel[1, 1], made_foreign, made, 1)
    del made_foreign
    gc.collect()
    assert view() is not None
    prepared.update(0, Foreign(pointer_of(array), (4,), np.float32))
    gc.collect()
    assert view() is None


REFUSED = {
    "host array": (lambda: (np.zeros(4), 1, 1), {}, "host array"),
    "record": (lambda: (np.zeros(1, [("a", "i4")])[0], 1, 1), {}, "record"),
    "debug": (lambda: (vector(), 1, 1), {"debug": True, "opt": False}, "debug kernel"),
}


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_prepare_when_no_plan_can_take_the_launch_then_it_says_why(enabled, case):
    make, options, reason = case

    @cuda.jit(**options)
    def take(x, y, n):
        pass

    with caught(TypeError, f"cannot be prepared: {reason}"):
        stridedview.prepare(take[1, 1], *make())


def test_prepare_when_it_is_given_no_configuration_then_it_says_what_it_wants(enabled):
    with pytest.raises(TypeError, match=r"expected kernel\[grid, block\], got int"):
        stridedview.prepare(1)


NO_CONFIGURATIONS = {
    "forall": (
        lambda kernel: kernel.forall(10),
        r"forall\(\) chooses .*kernel\[blocks, th",
    ),
    "kernel": (lambda kernel: kernel, r"name the grid and the block"),
}


@pytest.mark.parametrize("ask", [stridedview.prepare, stridedview.explain])
@pytest.mark.parametrize("case", NO_CONFIGURATIONS)
def test_configuration_when_it_is_none_yet_then_it_is_told_how_to_make_one(
    enabled, kernel, ask, case
):
    make, match = NO_CONFIGURATIONS[case]
    with pytest.raises(TypeError, match=match) as error:
        ask(make(kernel), 1, 2, 3)
    assert "enable()" not in str(error.value)


def test_configuration_when_numba_made_it_then_it_is_told_to_enable_before(driver, kernel):
    configuration = kernel[1, 1]
    with stridedview.enabled():
        for ask in (stridedview.prepare, stridedview.explain):
            with pytest.raises(TypeError, match=r"enable\(\) must come before"):
                ask(configuration, 1, 2, 3)


# ---- staleness ----


def test_prepared_launch_when_the_kernel_is_recompiled_then_it_is_packed_anew(
    enabled, kernel
):
    prepared = stridedview.prepare(kernel[1, 1], vector(), vector(), 1)
    before = launched(enabled, prepared)
    kernel.recompile()
    after = launched(enabled, prepared)
    assert after.handle != before.handle
    assert after.parameters == before.parameters
    assert calls_of(prepared) == HIT


def test_prepared_launch_when_the_context_was_reset_then_a_fresh_plan_is_made(driver):
    child = run_child("""
        from tests import standin
        standin.load()
        from cuda.bindings import driver as cu
        from numba import cuda
        import stridedview
        from tests.standin.helpers import good
        stridedview.enable()

        @cuda.jit
        def take(n):
            pass

        prepared = stridedview.prepare(take[1, 1], 3)
        prepared()
        cuda.close()
        good(cu.cuDevicePrimaryCtxRetain(0))
        cuda.current_context()
        prepared()
        first, second = standin.launches()
        assert first.context_id != second.context_id, "one context"
        assert first.handle != second.handle, "a stale function"
        assert second.words == (3,), second.words
        print("done")
    """)
    assert child.stdout.split() == ["done"], child.stderr[-3000:]


def test_prepared_launch_when_a_callback_comes_then_it_is_called(enabled, kernel):
    configuration = kernel[1, 1]
    prepared = stridedview.prepare(configuration, vector(), vector(), 1)
    seen = []
    configuration.pre_launch_callbacks.append(lambda *args: seen.append(args))
    launched(enabled, prepared)
    assert len(seen) == 1
    configuration.pre_launch_callbacks.clear()
    assert calls_of(prepared) == HIT


def test_prepared_launch_when_disabled_then_numba_launches(enabled, kernel):
    prepared = stridedview.prepare(kernel[1, 1], vector(), vector(), 1)
    expected = launched(enabled, prepared).parameters
    stridedview.disable()
    try:
        assert launched(enabled, prepared).parameters == expected
        with pytest.raises(TypeError, match="while stridedview is disabled"):
            stridedview.prepare(prepared.configuration, vector(), vector(), 1)
    finally:
        stridedview.enable()


# ---- streams ----


@pytest.fixture
def work_stream(enabled):
    """Give a function that sets where the exchange producers say they work."""
    yield enabled.producers().set_work_stream
    enabled.producers().set_work_stream(0)


def test_prepared_launch_when_the_producer_moves_to_another_stream_then_it_follows(
    enabled, kernel, work_stream
):
    array = vector()
    prepared = stridedview.prepare(kernel[1, 1], producer(array), producer(array), 1)
    for stream in (cuda.stream(), cuda.stream()):
        work_stream(int(stream.handle))
        assert launched(enabled, prepared).stream == int(stream.handle)


def test_prepared_launch_when_a_stream_is_named_then_it_is_ordered_and_owners_are_kept(
    enabled, kernel, work_stream
):
    _stream.release_done()
    array, named, side = vector(), cuda.stream(), cuda.stream()
    work_stream(int(side.handle))
    before = _stream.kept_count()
    made = producer(array)
    prepared = stridedview.prepare(kernel[1, 1, named], made, made, 1)
    enabled.hold_events(True)
    assert launched(enabled, prepared).stream == int(named.handle)
    assert enabled.orderings()
    assert _stream.kept_count() == before + 1
    enabled.hold_events(False)
    _stream.release_done()


def test_prepared_launch_when_an_array_names_its_stream_then_it_is_behind_it(
    enabled, kernel
):
    side, other, array = cuda.stream(), cuda.stream(), vector()
    made = [
        Foreign(pointer_of(array), (4,), np.float32, owner=array, stream=int(stream.handle))
        for stream in (side, other)
    ]
    prepared = stridedview.prepare(kernel[1, 1], made[0], made[0], 1)
    prepared.update(1, made[1])
    launched(enabled, prepared)
    assert len(enabled.orderings()) == 2
