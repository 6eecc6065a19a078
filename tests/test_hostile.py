"""Hostile and unlucky inputs: what no caller should do, and what must not crash for it.

What once crashed the process runs in a child.
"""

import collections
import copy
import functools
import pickle
import sys
import threading
import unittest.mock

import numpy as np
import pytest
from numba import cuda

import stridedview
from stridedview import _configuration, _stream
from tests import standin
from tests.launching import foreign, producer, tensor
from tests.standin.helpers import run_child

pytestmark = pytest.mark.standin


def fresh():
    """Return a kernel of one argument without overloads."""

    @cuda.jit
    def kernel(a):
        pass

    return kernel


def vector(size=4):
    return cuda.to_device(np.zeros(size, np.float32))


class Meddling:
    """A producer whose interface does something when it is asked for the `at`-th time."""

    def __init__(self, array, act, at):
        self.inner, self.act, self.at, self.asked = foreign(array), act, at, 0

    @property
    def __cuda_array_interface__(self):
        self.asked += 1
        if self.asked == self.at:
            self.act()
        return self.inner.__cuda_array_interface__


BEGIN = """
import collections, numpy as np
from tests import standin
standin.load()
from numba import cuda
import stridedview
from stridedview import _configuration
stridedview.enable()
@cuda.jit
def kernel(a):
    pass
array = cuda.to_device(np.zeros(4, np.float32))
"""


def survives(body):
    """Run code in a child, and return what it printed; fail if it crashed."""
    child = run_child(BEGIN + body)
    assert child.returncode == 0, (child.returncode, child.stderr[-2000:])
    return child.stdout.strip()


def raised_in_child(statement):
    """Return the name of what a statement raises in a child that must survive it."""
    return survives(
        "try:\n"
        f"    {statement}\n"
        "except Exception as error:\n"
        "    print(type(error).__name__)\n"
    )


# ---- objects without their parts ----


def test_view_when_made_past_its_constructor_then_it_is_refused():
    found = raised_in_child(
        "print(stridedview.StridedView.__new__(stridedview.StridedView).shape)"
    )
    assert found == "TypeError"


def test_configuration_when_made_past_its_constructor_then_a_launch_raises():
    assert raised_in_child(
        "kind = _configuration.LaunchConfiguration; made = kind.__new__(kind); "
        "made.pre_launch_callbacks = []; made(1)"
    ) in ("TypeError", "RuntimeError")


# ---- what stands in the brackets ----


def test_configuration_when_a_dimension_contains_itself_then_it_is_refused():
    found = raised_in_child("grid = [1]; grid[0] = grid; kernel[grid, 1]")
    assert found in ("TypeError", "ValueError", "RecursionError")


def test_configuration_when_a_dimension_is_nested_deeply_then_it_is_refused():
    found = raised_in_child(
        "kernel[__import__('functools').reduce(lambda a, _: (a,), range(200000), 1), 1]"
    )
    assert found in ("TypeError", "ValueError", "RecursionError")


def test_configuration_when_a_list_in_the_same_tuple_changed_then_it_is_another(enabled):
    kernel, key = fresh(), ([1, 1], [1, 1])
    assert kernel[key].griddim == (1, 1, 1)
    key[0][0] = 7
    assert kernel[key].griddim == (7, 1, 1)


@pytest.mark.parametrize(
    "value", [(5, -1, 1), (5, None, 1), (5, 1), (5, 1, 2**40), 5, None]
)
@pytest.mark.parametrize("name", ["griddim", "blockdim"])
def test_configuration_when_a_dimension_is_refused_then_the_old_one_stays(
    enabled, name, value
):
    configuration = fresh()[2, 3]
    before = getattr(configuration, name)
    with pytest.raises((TypeError, ValueError, IndexError)):
        setattr(configuration, name, value)
    configuration(1)
    record = enabled.launches()[-1]
    assert getattr(configuration, name) == before
    assert (record.grid, record.block) == ((2, 1, 1), (3, 1, 1))


@pytest.mark.parametrize(
    "value", [(2.7, 1, 1), (1, 2, 3, 4), {0: 1, 1: 1, 2: 1}], ids=["float", "four", "dict"]
)
def test_configuration_when_dimensions_are_no_three_integers_then_they_are_refused(
    enabled, value
):
    configuration = fresh()[1, 1]
    with pytest.raises((TypeError, ValueError)):
        configuration.griddim = value


def test_configuration_when_its_list_of_dimensions_changes_then_it_does_not(enabled):
    configuration, grid = fresh()[1, 1], [2, 1, 1]
    configuration.griddim = grid
    grid[0] = 9
    configuration(1)
    assert enabled.launches()[-1].grid == tuple(configuration.griddim) == (2, 1, 1)


def test_configuration_when_a_stream_is_refused_then_the_old_one_stays(enabled):
    configuration = fresh()[1, 1]
    with pytest.raises(TypeError, match="stream"):
        configuration.stream = object()
    assert configuration.named_stream is None


def test_configuration_when_initialized_for_another_kernel_then_that_one_is_launched(
    enabled,
):
    first, second = fresh(), fresh()
    configuration = first[1, 1]
    second[1, 1](1)
    configuration(1)
    configuration.__init__(second, (1, 1, 1), (1, 1, 1), 0, 0)
    configuration(1)
    handles = [record.handle for record in enabled.launches()]
    assert handles[0] == handles[2] != handles[1]


def test_configuration_when_pickled_then_the_named_default_stream_stays_named(enabled):
    configuration = pickled_kernel[1, 1, cuda.default_stream()]
    again = pickle.loads(pickle.dumps(configuration))
    assert configuration.named_stream is not None
    assert again.named_stream is not None


@cuda.jit
def pickled_kernel(a):
    pass


def test_kernel_when_its_function_wraps_another_kernel_then_it_is_its_own(enabled):
    kernel = fresh()
    kernel[1, 1](1)

    @cuda.jit
    @functools.wraps(kernel)
    def other(a):
        pass

    other[1, 1](1)
    # Numba copies the wrapped kernel's table of overloads too; plans at least stay apart.
    assert other._stridedview_state is not kernel._stridedview_state


# ---- tuples that lie about their items ----


class Longer(collections.namedtuple("Pair", "a b")):
    """A named tuple that has two items and iterates over more."""

    asked = 0
    from_turn = 1
    items = (1, 2, 3)

    def __iter__(self):
        type(self).asked += 1
        if type(self).asked >= self.from_turn:
            return iter(self.items)
        return super().__iter__()


def test_tuple_when_it_iterates_over_more_items_then_nothing_else_is_passed(enabled):
    # Numba passes what it iterates over; what is not there must not be made up.
    Longer.asked = 0
    try:
        fresh()[1, 1](Longer(1, 2))
    except (TypeError, ValueError, RuntimeError):
        return
    assert [record.words for record in enabled.launches()] == [(1, 2, 3)]


def test_tuple_when_it_grows_between_two_readings_then_no_memory_is_overrun():
    found = survives("""
from tests.test_hostile import Longer
Longer.items = (1,) * 100_000
for turn in range(9, 13):
    Longer.asked, Longer.from_turn = 0, turn
    try:
        cuda.jit(lambda a: None)[1, 1](Longer(1, 2))
    except Exception as error:
        print(error)
""")
    # What one reads behind the end of a plan's slots, if one gets that far.
    assert "not iterable" not in found


# ---- producers that meddle ----


def test_launch_when_its_producer_launches_it_again_then_the_recursion_ends():
    found = survives("""
class Recursive:
    @property
    def __cuda_array_interface__(self):
        kernel[1, 1](self)
        return array.__cuda_array_interface__
try:
    kernel[1, 1](Recursive())
except RecursionError:
    print("RecursionError")
""")
    assert found == "RecursionError"


@pytest.mark.parametrize("at", range(1, 12))
def test_launch_when_recompiled_by_its_own_producer_then_later_ones_use_the_new_kernel(
    enabled, at
):
    kernel, array = fresh(), vector()
    configuration = kernel[1, 1]
    meddling = Meddling(array, kernel.recompile, at)
    while meddling.asked < at:
        configuration(meddling)
    configuration(meddling)
    assert configuration.last_plan.kernel in kernel.overloads.values()


def test_launch_when_recompiled_while_the_driver_blocks_then_later_ones_use_the_new_kernel(
    enabled,
):
    kernel, array = fresh(), vector()
    kernel[1, 1](array)
    configuration = kernel[2, 1]
    enabled.hold_launches()
    thread = threading.Thread(target=configuration, args=(array,))
    thread.start()
    while not enabled.waiting():
        pass
    kernel.recompile()
    enabled.release()
    thread.join()
    configuration(array)
    assert configuration.last_plan.kernel in kernel.overloads.values()


@pytest.mark.parametrize("kind", [RuntimeError, KeyError, UnicodeError, MemoryError])
def test_error_when_a_producer_raises_it_then_it_is_not_its_own_cause(enabled, kind):
    class Raising:
        @property
        def __cuda_array_interface__(self):
            raise kind("no")

    with pytest.raises(kind) as caught:
        fresh()[1, 1](Raising())
    assert caught.value.__cause__ is not caught.value


@pytest.mark.parametrize("device", [65536, 2**31 - 1])
def test_launch_when_a_device_id_is_huge_then_it_is_not_taken_for_another(enabled, device):
    kernel, array = fresh(), vector()
    kernel[1, 1](producer(array))
    with pytest.raises(BufferError, match=f"device id {device}"):
        kernel[1, 1](producer(array, device_id=device))
    assert len(enabled.launches()) == 1


def test_launch_when_there_is_no_such_device_then_the_error_says_so(enabled):
    with pytest.raises(ValueError, match="device 7; this process sees 1"):
        fresh()[1, 1](producer(vector(), device_id=7))


def test_import_when_torch_is_a_mock_then_other_arrays_are_taken(enabled, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", unittest.mock.MagicMock())

    class Array:
        __array_interface__ = np.zeros(3).__array_interface__

    assert stridedview.from_any(Array()).shape == (3,)
    with pytest.raises(TypeError, match="is not an array"):
        stridedview.from_any(object())


def test_launch_when_the_driver_has_no_event_left_then_the_owner_outlives_it(enabled):
    kernel, stream = fresh(), cuda.stream()
    array = tensor(vector())
    kernel[1, 1, stream](array)
    enabled.clear()
    enabled.reset_calls()
    enabled.fail_next("cuEventRecord", 2, after=1)  # the first is that of the ordering
    kept = _stream.kept_count()
    kernel[1, 1, stream](array)
    assert len(enabled.launches()) == 1
    assert enabled.calls()["cuStreamSynchronize"] == 1 and _stream.kept_count() <= kept  # noqa: PT018


# ---- views and errors ----


def test_iteration_when_an_axis_is_very_long_then_it_begins_at_once(driver):
    view = stridedview.from_any(np.zeros(1)).as_strided((2**40, 2), (0, 8))
    assert next(iter(view)).shape == (2,)


def made_errors():
    from stridedview import LaunchError

    return {
        "driver": stridedview.DriverError("cuFoo failed", 2),
        "memory": stridedview.OutOfMemoryError("out of memory", 40),
        "launch": LaunchError("no", 1),
    }


@pytest.mark.parametrize("case", ["driver", "memory", "launch"])
def test_error_when_pickled_then_it_arrives_whole(driver, case):
    # A process pool that cannot unpickle an error breaks.
    error = made_errors()[case]
    for again in (
        pickle.loads(pickle.dumps(error)),
        copy.copy(error),
        copy.deepcopy(error),
    ):
        assert type(again) is type(error) and str(again) == str(error)  # noqa: PT018
        assert vars(again) == vars(error)


# ---- what held ----


@pytest.mark.parametrize(
    "kind", [KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError, StopIteration]
)
def test_launch_when_a_producer_raises_anything_then_it_passes_and_launches_nothing(
    enabled, kind
):
    array = vector()

    class Producer:
        fails = False

        def __dlpack_device__(self):
            return 2, 0

        def __dlpack__(self, **options):
            if self.fails:
                raise kind("no")
            return producer(array, "Plain").__dlpack__(**options)

    kernel, given = fresh(), Producer()
    kernel[1, 1](given)
    given.fails = True
    with pytest.raises(kind):
        kernel[1, 1](given)
    given.fails = False
    kernel[1, 1](given)
    assert len(enabled.launches()) == 2


def test_launch_when_its_producer_disables_the_patch_then_it_still_launches(driver):
    array = vector()
    for at in range(1, 5):
        stridedview.enable()
        try:
            kernel = fresh()
            kernel[1, 1](Meddling(array, stridedview.disable, at))
        finally:
            stridedview.disable()
    assert len(driver.launches()) == 4


def test_capsule_when_consumed_twice_then_the_second_is_refused(driver):
    capsule = stridedview.from_any(vector()).__dlpack__()

    class Again:
        def __dlpack_device__(self):
            return 2, 0

        def __dlpack__(self, **options):
            return capsule

    stridedview.from_any(Again())
    with pytest.raises(BufferError, match="unused"):
        stridedview.from_any(Again())


def test_process_when_forked_after_use_then_the_child_gets_an_error_and_not_a_crash():
    found = survives("""
import os
kernel[1, 1](array)
child = os.fork()
if child == 0:
    try:
        kernel[1, 1](array)
    except RuntimeError:
        os._exit(7)
    os._exit(8)
print(os.WEXITSTATUS(os.waitpid(child, 0)[1]))
""")
    assert found in ("7", "8")


def test_process_when_it_ends_with_kept_owners_and_live_plans_then_it_ends_well():
    survives("""
import atexit, sys
from tests.launching import producer
stream = cuda.stream()
standin.hold_events(True)
kernel[1, 1, stream](producer(array))
class Late:
    def __del__(self):
        kernel[1, 1](array)
sys.modules["late"] = kernel.late = Late()
atexit.register(kernel[2, 1], array)
atexit.register(stridedview.disable)
""")


def test_configuration_when_its_kernel_is_dropped_then_it_still_launches(enabled):
    configuration = fresh()[1, 1]
    configuration(1)
    configuration(1)
    assert len(enabled.launches()) == 2
    assert _configuration.dispatcher_state(configuration.dispatcher).plans
    assert standin.launches()[-1].words == (1,)
