"""Where a launch goes, and what it is put behind."""

import numpy as np
import pytest
from cuda.core import Device
from numba import cuda

import stridedview
from tests.launching import HIT, Foreign, calls_of, caught, pointer_of, producer, recorded
from tests.launching import tensor as torch_tensor
from tests.standin.helpers import words_of

pytestmark = pytest.mark.standin


@cuda.jit
def take(a):
    pass


@cuda.jit
def take_two(a, b):
    pass


@pytest.fixture
def work_stream(enabled):
    """Give the stream (int) on which the exchange producers say they work."""
    module, stream = enabled.producers(), cuda.stream()
    module.set_work_stream(int(stream.handle))
    yield int(stream.handle)
    module.set_work_stream(0)


@pytest.fixture
def array(driver):
    return cuda.to_device(np.zeros(4, np.float32))


@pytest.fixture
def side(driver):
    """Give a stream of Numba's that no producer works on."""
    return cuda.stream()


def stream_id(handle):
    from cuda.bindings import driver as cu

    from tests.standin.helpers import good

    return good(cu.cuStreamGetId(cu.CUstream(handle)))


def orderings(driver):
    """Return (waiting stream, stream waited for) of each wait so far."""
    return [(wait.waiting, wait.recorded_on) for wait in driver.orderings()]


# ---- not named ----

UNNAMED = {
    "no stream": lambda kernel: kernel[1, 1],
    "0": lambda kernel: kernel[1, 1, 0],
    "None": lambda kernel: kernel[1, 1, None],
    "0 and shared memory": lambda kernel: kernel[1, 1, 0, 64],
    "None and shared memory": lambda kernel: kernel[1, 1, None, 64],
    "configure": lambda kernel: kernel.configure(1, 1),
    "configure with 0": lambda kernel: kernel.configure(1, 1, 0, 64),
    "configure by name": lambda kernel: kernel.configure(1, 1, stream=0, sharedmem=64),
    "forall": lambda kernel: kernel.forall(1),
    "forall with 0": lambda kernel: kernel.forall(1, 1, 0, 64),
}


@pytest.mark.parametrize("form", UNNAMED)
def test_launch_when_no_stream_is_named_then_it_goes_to_the_producers_current_one(
    enabled, work_stream, array, form
):
    exported = producer(array)
    for _ in range(2):
        UNNAMED[form](take)(exported)
        assert enabled.launches()[-1].stream == work_stream
    assert orderings(enabled) == []


def test_launch_when_the_producers_stream_changes_then_the_next_launch_follows(
    enabled, work_stream, array
):
    exported, other = producer(array), cuda.stream()
    assert recorded(take, (exported,)).stream == work_stream
    enabled.producers().set_work_stream(int(other.handle))
    assert recorded(take, (exported,)).stream == int(other.handle)
    view = stridedview.from_any(exported)
    assert recorded(take, (view,)).stream == int(other.handle)
    enabled.producers().set_work_stream(work_stream)
    # The family's stream is asked at the launch, not when the view is made.
    assert recorded(take, (view,)).stream == work_stream
    assert recorded(take, ((view, 1),)).stream == work_stream


@pytest.mark.parametrize("kind", ["device array", "torch", "number", "interface"])
def test_launch_when_no_producer_has_a_stream_then_it_goes_to_the_default_one(
    enabled, array, kind
):
    value = {
        "device array": array,
        "torch": torch_tensor(array),
        "number": 7,
        "interface": Foreign(pointer_of(array), (4,), np.float32, owner=array),
    }[kind]
    for _ in range(2):
        assert recorded(take, (value,)).stream == 0
    assert orderings(enabled) == []


def test_launch_when_the_option_is_numba_then_it_goes_to_numbas_and_waits(
    driver, array, side
):
    driver.producers().set_work_stream(int(side.handle))
    try:
        with stridedview.enabled(stream="numba"):
            for _ in range(2):
                assert recorded(take, (producer(array),)).stream == 0
                assert orderings(driver) == [(1, int(side.handle))]
    finally:
        driver.producers().set_work_stream(0)


def test_launch_when_a_numba_array_is_beside_a_side_stream_then_it_waits_for_numbas(
    enabled, work_stream, array
):
    for args in ((producer(array), array), (array, producer(array))):
        for _ in range(2):
            assert recorded(take_two, args).stream == work_stream
            assert orderings(enabled) == [(work_stream, 1)]


def test_launch_when_a_numba_array_has_its_own_stream_then_it_waits_for_that(
    enabled, work_stream, side
):
    array = cuda.to_device(np.zeros(4, np.float32), stream=side)
    exported = producer(array)
    recorded(take_two, (exported, array))
    assert (work_stream, int(side.handle)) in orderings(enabled)


def test_launch_when_two_producers_differ_then_the_first_leads_and_waits(
    enabled, work_stream, array
):
    # torch works on the legacy stream here, the producer on a side stream.
    tensor, exported = torch_tensor(array), producer(array)
    assert recorded(take_two, (tensor, exported)).stream == 0
    assert orderings(enabled) == [(1, work_stream)]
    assert recorded(take_two, (exported, tensor)).stream == work_stream
    assert orderings(enabled) == [(work_stream, 1)]


def test_launch_when_two_producers_agree_then_nothing_waits(enabled, array):
    assert recorded(take_two, (torch_tensor(array), producer(array))).stream == 0
    assert orderings(enabled) == []


# ---- named ----


class WithProtocol:
    """A stream by ``__cuda_stream__`` alone."""

    def __init__(self, handle):
        self._handle = handle

    def __cuda_stream__(self):
        return (0, self._handle)


class WithAttribute:
    """A stream whose ``__cuda_stream__`` is the pair itself."""

    def __init__(self, handle):
        self.__cuda_stream__ = (0, handle)


class LikeTorch:
    def __init__(self, handle):
        self.cuda_stream = handle


class LikeCupy:
    def __init__(self, handle):
        self.ptr = handle


NAMED = {
    "Numba's": lambda: (cuda.stream(), None),
    "Numba's external": lambda: (cuda.external_stream(int(KEPT[0].handle)), KEPT[0]),
    "Numba's default": lambda: (cuda.default_stream(), 0),
    "Numba's legacy default": lambda: (cuda.legacy_default_stream(), 1),
    "Numba's per-thread default": lambda: (cuda.per_thread_default_stream(), 2),
    "cuda.core's": lambda: (Device().create_stream(), None),
    "an int": lambda: (int(KEPT[0].handle), KEPT[0]),
    "the int 1": lambda: (1, 1),
    "the int 2": lambda: (2, 2),
    "protocol": lambda: (WithProtocol(int(KEPT[0].handle)), KEPT[0]),
    "attribute": lambda: (WithAttribute(int(KEPT[0].handle)), KEPT[0]),
    "like torch's": lambda: (LikeTorch(int(KEPT[0].handle)), KEPT[0]),
    "torch's default": lambda: (LikeTorch(0), 0),
    "like CuPy's": lambda: (LikeCupy(int(KEPT[0].handle)), KEPT[0]),
}
KEPT = []


@pytest.mark.parametrize("kind", NAMED)
def test_launch_when_a_stream_is_named_then_it_goes_there(
    enabled, work_stream, array, kind
):
    KEPT[:] = [cuda.stream()]
    stream, expected = NAMED[kind]()
    if not isinstance(expected, int):
        expected = int((stream if expected is None else expected).handle)
    exported = producer(array)
    forms = (
        lambda: take[1, 1, stream](exported),
        lambda: take[1, 1, stream, 64](exported),
        lambda: take.configure(1, 1, stream=stream)(exported),
        lambda: take.forall(1, stream=stream)(exported),
        lambda: take.forall(1, 1, stream, 64)(exported),
    )
    for form in forms:
        enabled.clear()
        form()
        (record,) = enabled.launches()
        assert record.stream == expected
        assert orderings(enabled) == [(record.stream or 1, work_stream)]
    assert int(take[1, 1, stream].stream.handle) == expected


@pytest.mark.parametrize("kind", ["plan", "host array"])
def test_launch_when_a_graph_builder_is_named_then_it_is_captured_there(
    enabled, array, kind
):
    take[1, 1](array)
    builder = Device().create_graph_builder().begin_building()
    stream = builder.stream if hasattr(builder, "stream") else builder
    take[1, 1, builder](array)
    (record,) = [found for found in enabled.launches() if found.captured]
    assert (record.stream, record.words) == (int(stream.handle), words_of(array))
    if kind == "host array":
        with caught(RuntimeError, "captures a graph"):
            take[1, 1, builder](np.zeros(4, np.float32))
    builder.end_building()


@pytest.mark.parametrize(
    "stream", ["1", 1.5, object(), True], ids=lambda given: type(given).__name__
)
def test_configuration_when_the_stream_is_none_of_these_then_it_is_a_type_error(
    enabled, stream
):
    with pytest.raises(TypeError, match="stream"):
        take[1, 1, stream]


def test_configuration_when_the_stream_is_negative_then_it_is_a_value_error(enabled):
    with pytest.raises(ValueError, match="-1"):
        take[1, 1, -1]


def test_launch_when_the_named_stream_is_the_producers_then_nothing_waits(
    enabled, work_stream, array
):
    exported = producer(array)
    take[1, 1, work_stream](exported)
    enabled.clear()
    assert calls_of(lambda: take[1, 1, work_stream](exported)) == HIT
    assert orderings(enabled) == []
    # 0 and 1 are one stream.
    enabled.producers().set_work_stream(1)
    assert recorded(take, (exported,), (1, 1, cuda.default_stream())).stream == 0
    assert orderings(enabled) == []


def test_launch_when_a_stream_is_named_then_it_is_behind_every_producer(
    enabled, work_stream, array, side
):
    since = enabled.sequence()
    tensor, exported = torch_tensor(array), producer(array)
    record = recorded(take_two, (tensor, exported), (1, 1, side))
    for behind in (work_stream, 1):
        assert enabled.is_behind(record.stream_id, stream_id(behind), since - 1)
    assert {wait.waiting for wait in enabled.orderings()} == {int(side.handle)}
    assert all(wait.waited_at < record.sequence for wait in enabled.orderings())


# ---- what no plan takes goes to the same streams ----

SLOW = {
    "debug": lambda: cuda.jit(debug=True, opt=False)(take_two.py_func),
    "extensions": lambda: cuda.jit(extensions=[Nothing()])(take_two.py_func),
    "callbacks": lambda: cuda.jit(take_two.py_func),
}


class Nothing:
    """An extension that leaves all arguments as they are."""

    def prepare_args(self, ty, val, **_):
        return ty, val


@pytest.mark.parametrize("case", SLOW)
@pytest.mark.parametrize("named", [False, True], ids=["unnamed", "named"])
def test_launch_when_it_goes_through_numba_then_stream_and_order_are_the_same(
    enabled, work_stream, array, side, case, named
):
    kernel = SLOW[case]()
    exported, target = producer(array), int(side.handle) if named else work_stream
    configuration = kernel[1, 1, side] if named else kernel[1, 1]
    if case == "callbacks":
        configuration.pre_launch_callbacks.append(lambda *_: None)
    expected = [(target, 1), (target, work_stream)] if named else [(target, 1)]
    for args in ((exported, array), ((exported, array), 1)):
        for _ in range(2):
            enabled.clear()
            configuration(*args)
            (record,) = enabled.launches()
            assert record.stream == target
            assert record.words[:7] == words_of(array)
            assert sorted(orderings(enabled)) == sorted(expected)


def test_launch_when_a_host_array_is_beside_a_producer_then_it_goes_to_its_stream(
    enabled, work_stream, array
):
    host = np.arange(4, dtype=np.float32)
    with pytest.warns(Warning, match="copy overhead"):
        record = recorded(take_two, (host, producer(array)))
    assert record.stream == work_stream
    assert record.words[7:] == words_of(array)


# ---- streams that single arrays name ----


@pytest.mark.parametrize("named", [1, 2, "handle"])
def test_launch_when_an_interface_names_a_stream_then_it_waits_for_that(
    enabled, array, side, named
):
    handle = int(side.handle) if named == "handle" else named
    made = Foreign(pointer_of(array), (4,), np.float32, owner=array, stream=handle)
    for value in (made, stridedview.from_any(made), (made, 1)):
        for _ in range(2):
            record = recorded(take, (value,))
            assert record.stream == 0
            # 1 is the default stream itself.
            assert orderings(enabled) == ([] if named == 1 else [(1, handle)])
    recorded(take, (made,), (1, 1, cuda.external_stream(handle)))
    assert orderings(enabled) == []


def test_launch_when_an_interface_names_stream_0_then_it_is_refused(enabled, array):
    made = Foreign(pointer_of(array), (4,), np.float32, owner=array, stream=0)
    with caught(ValueError, "argument 1 'a'.*stream 0"):
        take[1, 1](made)
    take[1, 1](array)


def test_launch_when_several_arrays_name_one_stream_then_it_waits_once(
    enabled, array, side
):
    made = [
        Foreign(pointer_of(array), (4,), np.float32, owner=array, stream=int(side.handle))
        for _ in range(2)
    ]
    take_two[1, 1](*made)
    recorded(take_two, made)
    assert orderings(enabled) == [(1, int(side.handle))]


# ---- what is no stream ----


class Self:
    """Its own stream, without end."""

    @property
    def stream(self):
        return self


def stream_like(**attributes):
    return type("Stream", (), attributes)()


NO_STREAMS = {
    "itself": (Self(), TypeError, r"expected a stream, got .*Self"),
    "text": ("s", TypeError, r"expected a stream, got builtins\.str"),
    "a bool": (True, TypeError, r"expected a stream, got builtins\.bool"),
    "a handle that is text": (stream_like(ptr="x"), TypeError, "ptr of .*Stream is 'x'"),
    "negative": (-5, ValueError, "stream -5 is no handle"),
    "shared memory": (1024, ValueError, r"1024 .*kernel\[grid, block, 0, shared\]"),
    "beyond 64 bits": (1 << 70, ValueError, "is no handle"),
    "a negative handle": (stream_like(cuda_stream=-7), ValueError, "stream -7"),
}


@pytest.mark.parametrize("kind", NO_STREAMS)
def test_stream_when_it_is_none_then_it_is_refused_before_the_launch(enabled, kind):
    value, error, message = NO_STREAMS[kind]
    array = cuda.to_device(np.zeros(4, np.float32))
    with pytest.raises(error, match=message):
        take[1, 1, value](array)
    with pytest.raises(error, match=message):
        stridedview.from_any(array, stream=value)
    assert enabled.launches() == []


@pytest.mark.parametrize("kind", [int, np.int64, np.uint64])
def test_stream_when_a_handle_of_any_integer_type_then_it_is_taken(enabled, kind):
    stream, array = cuda.stream(), cuda.to_device(np.zeros(4, np.float32))
    handle = int(stream.handle)
    assert recorded(take, (array,), (1, 1, kind(handle))).stream == handle
    assert recorded(take, (array,), (1, 1, kind(0))).stream == 0
