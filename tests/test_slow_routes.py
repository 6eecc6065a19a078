"""What `enable(slow=...)` says of slow routes, what `stats` counts of them."""

import re
import warnings

import numpy as np
import pytest
from numba import cuda

import stridedview
from stridedview.numba_cuda._checks import StridedviewWarning
from tests.launching import (
    HIT,
    calls_of,
    caught,
    foreign,
    producer,
    tensor,
)

pytestmark = pytest.mark.standin


@pytest.fixture
def kernel():
    """Give a kernel of two arguments without overloads."""

    @cuda.jit
    def take(x, y):
        pass

    return take


def vector(size=4, dtype=np.float32):
    return cuda.to_device(np.zeros(size, dtype))


@pytest.fixture
def array(driver):
    return vector()


RECORD = np.zeros(1, [("a", "i4")])[0]
SLOW = {
    "host array": (lambda array: np.zeros(4, np.float32), "host copy.*cuda.to_device"),
    "argument hint": (lambda array: cuda.In(np.zeros(4, np.float32)), "host copy"),
    "interface": (foreign, "CUDA array interface.*from_any"),
    "DLPack": (lambda array: producer(array, "Plain"), "DLPack.*from_any"),
    "in a tuple": (lambda array: (array, foreign(array)), "CUDA array interface"),
    "record": (lambda array: RECORD, "record.*an array of one"),
}
FAST = {
    "torch": tensor,
    "view": stridedview.from_any,
    "view of an interface": lambda array: stridedview.from_any(foreign(array)),
    "device array": lambda array: array,
    "exchange": producer,
    "tuple": lambda array: (array, 1, tensor(array)),
    "number": lambda array: np.float32(2),
}


@pytest.mark.parametrize("case", SLOW.values(), ids=SLOW)
def test_slow_route_when_it_is_an_error_then_nothing_is_compiled_or_launched(
    array, kernel, case
):
    make, message = case
    with stridedview.enabled(slow="error"):
        with caught(TypeError, rf"argument 2 'y': it takes a slow route, .*{message}"):
            kernel[1, 1](array, make(array))
        assert not kernel.overloads


@pytest.mark.parametrize("make", FAST.values(), ids=FAST)
def test_fast_route_when_slow_ones_are_an_error_then_it_is_launched(
    driver, array, kernel, make
):
    with stridedview.enabled(slow="error"):
        kernel[1, 1](array, make(array))
        kernel[1, 1](array, make(array))
    assert len(driver.launches()) == 2


@pytest.mark.parametrize("kind", ["interface", "DLPack", "in a tuple"])
def test_slow_route_when_a_plan_of_a_fast_one_fits_it_then_it_is_refused_all_the_same(
    array, kernel, kind
):
    make = SLOW[kind][0]

    def fast(value):
        if isinstance(value, tuple):
            return tuple(map(fast, value))
        return stridedview.from_any(value)

    with stridedview.enabled(slow="error"):
        kernel[1, 1](array, fast(make(array)))
        with caught(TypeError, "argument 2 'y': it takes a slow route"):
            kernel[1, 1](array, make(array))


@pytest.mark.filterwarnings("ignore:Host array")
@pytest.mark.parametrize("case", SLOW.values(), ids=SLOW)
def test_slow_route_when_it_is_warned_of_then_once_for_each_argument(array, kernel, case):
    make, message = case
    with stridedview.enabled(slow="warn"), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", StridedviewWarning)
        for _ in range(3):
            kernel[1, 1](array, make(array))
        kernel[1, 1](make(array), array)
    found = [str(each.message) for each in caught if each.category is StridedviewWarning]
    assert [text.split(" of kernel")[0] for text in found] == [
        "argument 2 'y'",
        "argument 1 'x'",
    ]
    assert all(re.search(message, text) for text in found)


def test_slow_route_when_allowed_then_nothing_is_said(array, kernel):
    with stridedview.enabled():
        kernel[1, 1](array, foreign(array))


def test_launch_when_slow_routes_are_refused_then_a_hit_calls_the_driver_only(
    array, kernel
):
    with stridedview.enabled(slow="error"):
        kernel[1, 1](tensor(array), tensor(array))
        assert calls_of(lambda: kernel[1, 1](tensor(array), tensor(array))) == HIT


def test_prepare_when_a_route_is_slow_and_refused_then_it_is_refused(array, kernel):
    with stridedview.enabled(slow="error"), caught(TypeError, "argument 1 'x': it takes"):
        stridedview.prepare(kernel[1, 1], foreign(array), array)


def test_enable_when_slow_is_unknown_then_value_error(driver):
    with pytest.raises(ValueError, match="'allow', 'warn' or 'error'"):
        stridedview.enable(slow="no")
    assert not stridedview.is_enabled()


# ---- stats ----


@pytest.fixture
def counted(driver):
    """Enable with every counter at 0; give `stats`."""
    with stridedview.enabled():
        stridedview.reset_stats()
        yield stridedview.stats


def test_stats_when_reset_then_all_is_zero(counted):
    found = counted()
    assert found.pop("fallbacks") == {}
    assert set(found.values()) == {0}


def test_stats_when_a_kernel_is_launched_again_then_the_first_is_a_miss(counted, kernel):
    for _ in range(4):
        kernel[1, 1](vector(), 1)
    found = counted()
    assert found.pop("compile_seconds") > 0
    assert found == {
        "launches": 4,
        "hits": 3,
        "misses": 1,
        "plans": 1,
        "compiles": 1,
        "loads": 0,
        "fallbacks": {},
    }


def test_stats_when_an_overload_fits_another_plan_then_nothing_is_compiled(counted, kernel):
    kernel[1, 1](vector(), 1)
    kernel[1, 1](tensor(vector()), 1)
    assert (counted()["plans"], counted()["compiles"]) == (2, 1)


def test_stats_when_a_launch_is_prepared_then_its_calls_are_hits(counted, kernel):
    prepared = stridedview.prepare(kernel[1, 1], vector(), 1)
    assert (counted()["misses"], counted()["plans"]) == (0, 1)  # nothing was launched yet
    prepared()
    prepared()
    found = counted()
    assert [found[name] for name in ("launches", "hits", "misses", "plans")] == [2, 2, 0, 1]
    kernel.recompile()
    prepared()
    kernel[1, 1](vector(), 2.5)
    found = counted()
    assert [found[name] for name in ("launches", "hits", "misses", "plans")] == [4, 3, 1, 3]


def test_stats_when_forall_specializes_then_the_compile_is_counted(counted, kernel):
    kernel.forall(10)(vector(), 1)
    kernel.forall(10)(vector(), 1)
    assert (counted()["launches"], counted()["compiles"], counted()["plans"]) == (2, 1, 1)


FALLBACKS = {
    "host array": (lambda: np.zeros(4, np.float32), {}),
    "argument hint": (lambda: cuda.Out(np.zeros(4, np.float32)), {}),
    "record": (lambda: RECORD, {}),
    "debug kernel": (vector, {"debug": True, "opt": False}),
}


@pytest.mark.filterwarnings("ignore:Host array")
@pytest.mark.parametrize("reason", FALLBACKS)
def test_stats_when_a_launch_goes_through_numba_then_the_reason_is_counted(counted, reason):
    make, options = FALLBACKS[reason]

    @cuda.jit(**options)
    def take(x):
        pass

    take[1, 1](make())
    found = counted()
    assert found["fallbacks"] == {reason: 1}
    assert (found["launches"], found["plans"], found["misses"]) == (0, 0, 0)


def test_stats_when_there_is_a_callback_then_it_is_the_reason(counted, kernel):
    configuration = kernel[1, 1]
    configuration.pre_launch_callbacks.append(lambda *args: None)
    configuration(vector(), 1)
    assert counted()["fallbacks"] == {"pre-launch callback": 1}
