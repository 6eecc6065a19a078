"""Launches that are nested, switched off or bereft in the middle."""

import gc
import threading
import warnings
import weakref

import numpy as np
import pytest
from numba import cuda
from numba.cuda.core.errors import NumbaPerformanceWarning

import stridedview
from stridedview import _driver
from tests.launching import (
    HIT,
    calls_of,
    foreign,
    pointer_of,
    producer,
    recorded,
    rests_as,
    tensor,
)
from tests.standin.helpers import words_of

pytestmark = pytest.mark.standin


def fresh(**options):
    """Return a kernel of one argument without overloads."""

    @cuda.jit(**options)
    def kernel(a):
        pass

    return kernel


def vector(size=4, dtype=np.float32):
    return cuda.to_device(np.zeros(size, dtype))


# ---- nested launches ----


def test_callback_when_it_launches_other_kernels_then_all_are_launched_in_order(enabled):
    outer, inner, array = fresh(), fresh(), vector()
    configuration, seen = outer[1, 1], []

    def callback(_, found):
        inner[2, 1](tensor(array))
        inner[3, 1](7)
        seen.append(found.args)

    configuration.pre_launch_callbacks.append(callback)
    for value in (array, 5):
        enabled.clear()
        configuration(value)
        assert [record.grid[0] for record in enabled.launches()] == [2, 3, 1]
        # The launches within have not changed what this one shows of its own.
        assert seen.pop() == (value,)
    assert rests_as(configuration) == (None, 0, _driver.current_context())


def test_callback_when_it_launches_its_own_kernel_then_the_recursion_ends(enabled):
    kernel, array = fresh(), vector()
    configuration = kernel[1, 1]
    before = rests_as(configuration)
    configuration.pre_launch_callbacks.append(lambda *_: configuration(array))
    with pytest.raises(RecursionError):
        configuration(array)
    assert rests_as(configuration) == before
    configuration.pre_launch_callbacks.clear()
    assert recorded(kernel, (array,)).words == words_of(array)


def test_callback_when_it_empties_the_list_of_callbacks_then_the_launch_ends_well(enabled):
    configuration, array = fresh()[1, 1], vector()
    configuration.pre_launch_callbacks.append(
        lambda _, found: found.pre_launch_callbacks.clear()
    )
    configuration(array)
    configuration(array)
    assert calls_of(lambda: configuration(array)) == HIT


def test_extension_when_it_launches_then_both_are_launched(enabled):
    inner, array = fresh(), vector()

    class Launching:
        def prepare_args(self, ty, val, **_):
            inner[2, 1](array)
            return ty, val

    kernel = fresh(extensions=[Launching()])
    for _ in range(2):
        enabled.clear()
        kernel[1, 1](array)
        assert [record.grid[0] for record in enabled.launches()] == [2, 1]


def test_producer_when_it_launches_another_kernel_then_neither_disturbs_the_other(enabled):
    inner, array = fresh(), vector()

    class Launching:
        @property
        def __cuda_array_interface__(self):
            inner[2, 1](tensor(array), *())
            return foreign(array).__cuda_array_interface__

    kernel, made = fresh(), Launching()
    for _ in range(3):
        enabled.clear()
        kernel[1, 1](made)
        assert enabled.launches()[-1].words == words_of(array)
        assert enabled.launches()[-1].grid[0] == 1


# ---- switched off in the middle ----


def test_launch_when_another_thread_disables_while_the_driver_works_then_it_ends_well(
    driver,
):
    kernel, array = fresh(), vector()
    stridedview.enable()
    configuration = kernel[1, 1]
    configuration(array)
    prepared = stridedview.prepare(configuration, array)
    driver.hold_launches()
    threads = [threading.Thread(target=each) for each in (prepared, prepared.launch)]
    threads.append(threading.Thread(target=configuration, args=(array,)))
    for thread in threads:
        thread.start()
    while driver.waiting() < len(threads):
        pass
    stridedview.disable()
    driver.release()
    for thread in threads:
        thread.join()
    for launch in (prepared, lambda: configuration(array)):
        driver.clear()
        launch()
        (record,) = driver.launches()
        assert (record.entry, record.words) == ("cuLaunchKernelEx", words_of(array))
    with stridedview.enabled():
        configuration(array)
        assert calls_of(lambda: configuration(array)) == HIT


HOSTS = {
    "strided": lambda: np.arange(8, dtype=np.float32)[::2],
    "reversed": lambda: np.arange(4, dtype=np.float32)[::-1],
    "in a tuple": lambda: (np.arange(4, dtype=np.float32)[::-1], 1),
    "hint": lambda: cuda.InOut(np.arange(8, dtype=np.float32)[::2]),
    "producer": lambda: producer(vector(), "Plain"),
    "tensor": lambda: tensor(vector()),
}


@pytest.mark.parametrize("case", HOSTS)
def test_launch_when_disabled_by_its_own_callback_then_its_arguments_arrive_all_the_same(
    driver, case
):
    value = HOSTS[case]()
    stridedview.enable()
    try:
        configuration = fresh()[1, 1]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NumbaPerformanceWarning)
            configuration.pre_launch_callbacks.append(lambda *_: None)
            configuration(value)
            configuration.pre_launch_callbacks[:] = [lambda *_: stridedview.disable()]
            configuration(value)
    finally:
        stridedview.disable()
    first, second = driver.launches()
    assert [first.words[2:4], first.words[5:]] == [second.words[2:4], second.words[5:]]


def test_first_launches_when_switched_on_and_off_all_the_time_then_all_are_launched(driver):
    array, over, errors = vector(), threading.Event(), []

    def switch():
        while not over.is_set():
            stridedview.enable()
            stridedview.disable()

    def launch():
        try:
            for _ in range(5):
                kernel = fresh()
                for _ in range(3):
                    kernel[1, 1](array)
        except BaseException as error:  # noqa: BLE001
            errors.append(error)

    switcher = threading.Thread(target=switch)
    launchers = [threading.Thread(target=launch) for _ in range(3)]
    for thread in (switcher, *launchers):
        thread.start()
    for thread in launchers:
        thread.join()
    over.set()
    switcher.join()
    assert errors == []
    assert len(driver.launches()) == 3 * 5 * 3
    assert {record.words for record in driver.launches()} == {words_of(array)}


CHANGES = {
    "recompile": lambda kernel: kernel.recompile(),
    "add an overload": lambda kernel: kernel.compile((cuda.types.int64,)),
    "reset": lambda kernel: kernel._reset_overloads(),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("way", ["launch", "prepared"])
def test_kernel_when_changed_while_disabled_then_no_plan_of_before_is_used(
    driver, way, change
):
    kernel, array = fresh(), vector()
    with stridedview.enabled():
        launch = {
            "launch": lambda: kernel[1, 1](array),
            "prepared": stridedview.prepare(kernel[1, 1], array),
        }[way]
        launch()
    CHANGES[change](kernel)
    with stridedview.enabled():
        driver.clear()
        launch()
        (record,) = driver.launches()
    (used,) = [
        compiled
        for compiled in kernel.overloads.values()
        if compiled.argument_types != (cuda.types.int64,)
    ]
    assert record.handle == function_of(used)
    assert record.words == words_of(array)


def function_of(compiled):
    """Return the handle of a compiled kernel's function, as a launch of ours uses it."""
    return _driver.kernel_function(int(compiled._codelibrary.get_cufunc().handle))


# ---- what is dropped in the middle ----


def test_plan_when_its_kernel_and_overloads_are_dropped_then_the_launch_still_works(
    enabled,
):
    kernel, array = fresh(), vector()
    configuration = kernel[1, 1]
    prepared = stridedview.prepare(configuration, array)
    configuration(array)
    overloads = kernel.overloads
    del kernel
    overloads.clear()
    gc.collect()
    for launch in (prepared, lambda: configuration(array)):
        enabled.clear()
        launch()
        assert enabled.launches()[-1].words == words_of(array)


def test_kernel_when_it_is_dropped_while_the_driver_works_then_the_launch_ends_well(
    enabled,
):
    array = vector()

    def launches():
        kernel = fresh()
        kernel[1, 1](array)
        prepared = stridedview.prepare(kernel[1, 1], array)
        return [
            threading.Thread(target=kernel[1, 1], args=(array,)),
            threading.Thread(target=prepared),
        ]

    threads = launches()
    enabled.hold_launches()
    for thread in threads:
        thread.start()
    while enabled.waiting() < 2:
        pass
    gc.collect()
    enabled.release()
    for thread in threads:
        thread.join()
    assert [record.words for record in enabled.launches()] == 3 * [words_of(array)]


def test_kernel_when_its_configurations_and_prepared_launches_go_then_it_goes(enabled):
    kernel, array = fresh(), vector()
    configuration = kernel[1, 1]
    prepared = stridedview.prepare(configuration, array, *())
    configuration(array)
    kernel.forall(4)(array)
    gone = [weakref.ref(each) for each in (kernel, configuration)]
    compiled = weakref.ref(next(iter(kernel.overloads.values())))
    del kernel, configuration
    gc.collect()
    assert gone[0]() is not None  # the prepared launch still needs it
    prepared()
    del prepared
    gc.collect()
    assert [each() for each in gone] == [None, None]
    assert compiled() is None


def test_prepared_launch_when_it_is_among_its_own_arguments_holder_then_it_is_collected(
    enabled,
):
    array = vector()
    made = foreign(array)
    prepared = stridedview.prepare(fresh()[1, 1], made)
    made.prepared = prepared  # a cycle
    gone = weakref.ref(made)
    del made, prepared
    gc.collect()
    assert gone() is None


def test_argument_when_it_is_a_tuple_and_an_array_then_it_is_taken_as_one_of_them(enabled):
    array = vector()

    class Both(tuple):
        __slots__ = ()

        @property
        def __cuda_array_interface__(self):
            return foreign(array).__cuda_array_interface__

    kernel = fresh()
    for items in ((), (1, 2), (1, (2, 3))):
        for _ in range(2):
            assert recorded(kernel, (Both(items),)).words == words_of(array)
    assert pointer_of(array)
    assert len(kernel.overloads) == 1
