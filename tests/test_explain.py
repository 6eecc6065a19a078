"""What `explain` and `profile` tell of launches."""

import json
import sys

import numpy as np
import pytest
from numba import cuda

import stridedview
from stridedview import _launch
from tests.launching import HIT, Foreign, calls_of, foreign, pointer_of, producer, tensor
from tests.standin.helpers import run_child

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


def launch_of(configuration, *args):
    return stridedview.explain(configuration, *args).to_dict()["launch"]


# ---- the launch ----


def test_explain_when_called_then_nothing_is_compiled_or_launched(enabled, kernel):
    array = vector()
    enabled.clear()
    found = launch_of(kernel[1, 1], array, 1)
    assert not kernel.overloads
    assert not enabled.launches()
    assert found["compiles"]
    assert found["differences"] == ["no launch of this kernel has a plan yet"]


def test_explain_when_the_signature_was_seen_then_the_plan_is_hit(enabled, kernel):
    array, other = vector(), vector(4, np.float64)
    kernel[1, 1](other, 1)
    kernel[1, 1](array, 1)
    assert launch_of(kernel[1, 1], array, 2)["plan"] == "hit, the last one"
    kernel[1, 1](other, 1)
    found = launch_of(kernel[1, 1], array, 2)
    assert found["plan"] == "hit, looked up"
    assert (found["hit"], found["compiles"], found["differences"]) == (True, False, [])


CHANGES = {
    "dtype": (
        lambda: (vector(4, np.float64), 1),
        ["argument 1 'x': dtype float32 -> float64"],
    ),
    "rank": (
        lambda: (cuda.device_array((2, 2), np.float32), 1),
        ["argument 1 'x': ndim 1 -> 2"],
    ),
    "layout": (lambda: (vector(8)[::2], 1), ["argument 1 'x': layout C -> A"]),
    "producer": (
        lambda: (tensor(vector()), 1),
        ["argument 1 'x': stream of Numba -> torch"],
    ),
    "kind": (lambda: (vector(), 1.0), ["argument 2 'y': int -> float"]),
    "two": (
        lambda: (vector(4, np.int32), (1, 2)),
        ["argument 1 'x': dtype float32 -> int32", "argument 2 'y': int -> tuple 2 0"],
    ),
}


@pytest.mark.parametrize("case", CHANGES.values(), ids=CHANGES)
def test_explain_when_no_plan_is_hit_then_it_says_what_differs(enabled, kernel, case):
    make, expected = case
    kernel[1, 1](vector(), 1)
    assert launch_of(kernel[1, 1], *make())["differences"] == expected


def test_explain_when_the_array_is_read_only_then_that_differs(enabled, kernel):
    array = vector()
    kernel[1, 1](foreign(array), 1)
    frozen = Foreign(pointer_of(array), (4,), np.float32, owner=array, readonly=True)
    found = launch_of(kernel[1, 1], frozen, 1)
    assert found["differences"] == ["argument 1 'x': readonly False -> True"]
    assert found["compiles"]


def test_explain_when_only_the_producer_differs_then_nothing_compiles(enabled, kernel):
    kernel[1, 1](vector(), 1)
    found = launch_of(kernel[1, 1], tensor(vector()), 1)
    assert (found["hit"], found["compiles"]) == (False, False)


def test_explain_when_a_host_array_comes_then_numbas_code_launches(enabled, kernel):
    report = stridedview.explain(kernel[1, 1], np.zeros(3), 1)
    found = report.to_dict()
    assert found["launch"]["through_numba"] == "host array"
    assert found["arguments"][0]["copies"] == "in and back"
    assert found["arguments"][0]["slow"]


def test_explain_when_a_stream_is_named_then_orderings_are_told_and_not_made(
    enabled, kernel
):
    side, named, array = cuda.stream(), cuda.stream(), vector()
    made = Foreign(
        pointer_of(array), (4,), np.float32, owner=array, stream=int(side.handle)
    )
    enabled.clear()
    found = launch_of(kernel[1, 1, named], made, 1)
    assert (found["stream"], found["stream_of"]) == (int(named.handle), "named")
    (ordering,) = found["orderings"]
    assert ordering.startswith(f"behind stream {int(side.handle)}, by an event")
    assert not enabled.orderings()


# ---- the arguments ----

ARGUMENTS = {
    "torch": (lambda: tensor(vector()), "torch", "1-d float32 [C]", False),
    "view": (lambda: stridedview.from_any(vector()), "own", "1-d float32 [C]", False),
    "device array": (vector, "Numba device array", "1-d float32 [C]", False),
    "exchange": (lambda: producer(vector()), "exchange API", "1-d float32 [C]", False),
    "DLPack": (lambda: producer(vector(), "Plain"), "DLPack", "1-d float32 [C]", True),
    "interface": (
        lambda: foreign(vector()),
        "CUDA array interface",
        "1-d float32 [C]",
        True,
    ),
    "number": (lambda: 3, "number", "int64", False),
    "hint": (lambda: cuda.In(np.zeros(2)), "host copy", "1-d float64 [C]", True),
}


@pytest.mark.parametrize("case", ARGUMENTS.values(), ids=ARGUMENTS)
def test_explain_when_it_tells_an_argument_then_route_and_type_are_right(
    enabled, kernel, case
):
    make, route, numba_type, slow = case
    made = make()
    facts = stridedview.explain(kernel[1, 1], vector(), made).to_dict()["arguments"][1]
    assert (facts["name"], facts["route"], facts["type"]) == ("y", route, numba_type)
    assert facts["slow"] is slow
    assert bool(facts["why"]) is slow
    assert facts["producer"] == f"{type(made).__module__}.{type(made).__qualname__}"


def test_explanation_when_shown_then_it_can_be_read_and_kept(enabled, kernel):
    report = stridedview.explain(kernel[1, 1], foreign(vector()), 1)
    text = repr(report)
    assert "argument 1 'x': tests.launching.Foreign -> 1-d float32 [C]" in text
    assert "SLOW" in text
    json.dumps(report.to_dict())


def test_explain_when_it_is_given_no_configuration_then_it_says_what_it_wants(enabled):
    with pytest.raises(TypeError, match=r"expected kernel\[grid, block\]"):
        stridedview.explain(3)


# ---- profile ----


def test_profile_when_kernels_are_launched_then_each_is_told(enabled, kernel):
    @cuda.jit
    def other(x):
        pass

    with stridedview.profile() as found:
        for _ in range(3):
            kernel[1, 1](tensor(vector()), 1)
        other[1, 1](foreign(vector()))
    kernel[1, 1](tensor(vector()), 1)
    slow, fast = json.loads(found.to_json())
    assert slow["kernel"].endswith("other")
    assert slow["arguments"][0]["routes"] == {"CUDA array interface": 1}
    assert fast["launches"] == 3
    assert fast["microseconds"] >= fast["longest"] > 0
    assert [each["routes"] for each in fast["arguments"]] == [{"torch": 3}, {"number": 3}]
    assert "SLOW 1: CUDA array interface" in found.table()


def test_profile_when_forall_launches_then_it_is_its_kernels_compile_time_included(
    enabled, kernel
):
    array = vector()
    stridedview.reset_stats()
    with stridedview.profile() as found:
        for tasks in (10, 1000):
            kernel.forall(tasks)(array, 1)
        kernel.forall(0)(array, 1)
        kernel[1, 1](array, 1)
        kernel.specialize(array, 1)[1, 1](array, 1)
    (told,) = found.to_list()
    assert told["launches"] == 4
    assert told["arguments"][0]["routes"] == {"Numba device array": 4}
    # Both compilations: the specialised one, and that of the kernel itself.
    assert stridedview.stats()["compiles"] == 2
    assert told["microseconds"] >= 1e6 * stridedview.stats()["compile_seconds"]


def test_profile_when_forall_raises_then_nothing_is_counted(enabled, kernel):
    with stridedview.profile() as found, pytest.raises(TypeError, match="argument 2 'y'"):
        kernel.forall(10)(vector(), None)
    assert found.to_list() == []


class Once:
    """A producer whose interface can be had once, as of memory that is handed over."""

    def __init__(self, array):
        self.interface = foreign(array).__cuda_array_interface__

    @property
    def __cuda_array_interface__(self):
        found, self.interface = self.interface, None
        if found is None:
            raise RuntimeError("read once too often")
        return found


def test_profile_when_a_producer_can_be_read_once_then_it_is_not_read_again(
    enabled, kernel
):
    array = vector()
    kernel[1, 1](foreign(array), 1)
    kernel[1, 1]((foreign(array), 1), 1)
    with stridedview.profile() as found:
        kernel[1, 1]((foreign(array), 1), 1)
        kernel[1, 1]((Once(array), 1), 1)
        kernel[1, 1](foreign(array), 1)
        kernel[1, 1](Once(array), 1)
    (told,) = found.to_list()
    assert told["launches"] == 4
    assert told["arguments"][0]["routes"] == {"CUDA array interface": 4}


def test_observer_when_it_raises_then_the_launch_does_not(enabled, kernel, monkeypatch):
    told = []
    monkeypatch.setattr(sys, "unraisablehook", lambda found: told.append(found.exc_value))

    def observer(*_):
        raise KeyError("no")

    _launch.add_observer(observer)
    try:
        with stridedview.profile() as found:
            kernel[1, 1](1, 2)
    finally:
        _launch.remove_observer(observer)
    assert [type(error) for error in told] == [KeyError]
    assert found.to_list()[0]["launches"] == 1


def test_profile_when_left_open_at_exit_then_nothing_is_said():
    child = run_child("""
        from tests import standin
        standin.load()
        from numba import cuda
        import stridedview
        stridedview.enable()

        @cuda.jit
        def take(a):
            pass

        profile = stridedview.profile()
        profile.__enter__()
        take[1, 1](1)
    """)
    assert (child.returncode, child.stderr) == (0, "")


def test_profile_when_it_is_over_then_a_launch_calls_the_driver_only(enabled, kernel):
    array = tensor(vector())
    kernel[1, 1](array, 1)
    with stridedview.profile():
        assert calls_of(lambda: kernel[1, 1](array, 1)) == HIT
    assert calls_of(lambda: kernel[1, 1](array, 1)) == HIT


def test_profile_when_a_prepared_launch_is_called_then_it_is_counted(enabled, kernel):
    prepared = stridedview.prepare(kernel[1, 1], vector(), 1)
    with stridedview.profile() as outer, stridedview.profile() as inner:
        prepared()
        kernel.recompile()
        prepared()
    for found in (outer, inner):
        assert found.to_list()[0]["launches"] == 2


def test_profile_when_enabled_within_it_then_launches_are_seen(driver, kernel):
    with stridedview.profile() as found:
        with stridedview.enabled():
            kernel[1, 1](vector(), 1)
        assert found.to_list()[0]["launches"] == 1
    with stridedview.enabled():
        assert calls_of(lambda: kernel[1, 1](1, 1)).get("cuLaunchKernel") == 1


@pytest.mark.filterwarnings("ignore:Host array")
def test_profile_when_numbas_code_launches_then_it_is_counted(enabled, kernel):
    with stridedview.profile() as found:
        kernel[1, 1](np.zeros(3), 1)
    assert found.to_list()[0]["arguments"][0]["routes"] == {"host copy": 1}
