"""What is replaced in numba-cuda, put back, and how configurations live through it."""

import gc
import pickle
import sys
import weakref

import numpy as np
import pytest
from numba import cuda
from numba.cuda import args as numba_args
from numba.cuda import dispatcher as numba_dispatcher

import stridedview
from stridedview import _configuration, _peers
from stridedview.numba_cuda import _arrays, _patch
from tests.launching import HIT, calls_of, recorded, tensor
from tests.standin.helpers import run_child, words_of

pytestmark = pytest.mark.standin

NUMBA_CONFIGURATION = numba_dispatcher._LaunchConfiguration


@cuda.jit
def take(a):
    pass


def fresh():
    """Return a kernel of one argument without overloads."""

    @cuda.jit
    def kernel(a):
        pass

    return kernel


def vector(size=4):
    return cuda.to_device(np.zeros(size, np.float32))


def replaced():
    """Return what stands in each place of the patch's table, absent ones included."""
    return [vars(owner).get(name, _patch) for owner, name, *_ in _patch.table()]


def public():
    """Return every attribute of the owners that the table names, by name."""
    owners = {owner for owner, *_ in _patch.table()}
    return {(owner.__name__, name): value for owner in owners
            for name, value in vars(owner).items() if name != "__doc__"}  # fmt: skip


def test_disable_when_enabled_once_or_twice_then_the_very_same_objects_are_back(driver):
    before, all_before = replaced(), public()
    for _ in range(2):
        stridedview.enable()
        stridedview.enable(stream="numba")
        changed = [one is not two for one, two in zip(before, replaced(), strict=True)]
        assert all(changed)
        stridedview.disable()
        stridedview.disable()
        assert all(one is two for one, two in zip(before, replaced(), strict=True))
        after = public()
        assert after.keys() == all_before.keys()
        assert all(after[key] is value for key, value in all_before.items())


def test_enabled_when_nested_then_the_outer_options_come_back(driver):
    made = driver.producers()
    stream = cuda.stream()  # kept: Numba destroys it when it is let go
    side = int(stream.handle)
    array = vector()
    from tests.launching import producer

    exported = producer(array)
    made.set_work_stream(side)
    try:
        with stridedview.enabled():
            assert recorded(take, (exported,)).stream == side
            with stridedview.enabled(stream="numba"):
                assert recorded(take, (exported,)).stream == 0
            assert recorded(take, (exported,)).stream == side
        assert not stridedview.is_enabled()
    finally:
        made.set_work_stream(0)


def test_enabled_when_the_block_raises_then_it_is_disabled(driver):
    with pytest.raises(KeyError), stridedview.enabled():
        raise KeyError
    assert not stridedview.is_enabled()
    assert type(fresh()[1, 1]) is NUMBA_CONFIGURATION


@pytest.mark.parametrize(
    "options", [{"stream": "mine"}, {"strictly": True}], ids=["value", "name"]
)
@pytest.mark.parametrize("was_enabled", [False, True])
def test_enable_when_an_option_is_wrong_then_nothing_changes(driver, options, was_enabled):
    if was_enabled:
        stridedview.enable()
    before = replaced()
    try:
        with pytest.raises((TypeError, ValueError)):
            stridedview.enable(**options)
        assert all(one is two for one, two in zip(before, replaced(), strict=True))
        assert stridedview.is_enabled() is was_enabled
    finally:
        stridedview.disable()


def test_enable_when_numba_is_not_as_expected_then_nothing_is_patched(driver, monkeypatch):
    monkeypatch.setattr(numba_args, "typeof", lambda value: value)
    before = replaced()
    with pytest.raises(ImportError, match="typeof"):
        stridedview.enable()
    assert all(one is two for one, two in zip(before, replaced(), strict=True))
    assert not stridedview.is_enabled()


class Fault(Exception):
    """What no code of ours catches."""


class Refusing:
    """An owner whose attribute cannot be set."""

    __name__ = "Refusing"
    attribute = 0

    def __setattr__(self, name, value):
        raise Fault


@pytest.mark.parametrize("place", ["first", "middle", "last", "slot"])
@pytest.mark.parametrize("arrays", [False, True], ids=["launches", "arrays"])
def test_enable_when_a_replacement_fails_in_between_then_all_is_as_before(
    driver, monkeypatch, place, arrays
):
    module = _arrays if arrays else _patch
    rows = module.table()
    index = {"first": 0, "middle": len(rows) // 2, "last": len(rows)}.get(place)
    before, all_before = replaced(), public()
    arrays_before = [vars(owner)[name] for owner, name, *_ in _arrays.table()]
    with monkeypatch.context() as patched:
        if index is None:  # after every attribute has been set
            patched.setattr(_configuration, "set_call", Refusing().__setattr__)
        else:
            fault = (Refusing(), "attribute", 1, lambda found: "")
            patched.setattr(module, "table", lambda: [*rows[:index], fault, *rows[index:]])
        with pytest.raises(Fault):
            stridedview.enable(arrays=arrays)
    assert not stridedview.is_enabled()
    assert all(one is two for one, two in zip(before, replaced(), strict=True))
    assert all(public()[key] is value for key, value in all_before.items())
    assert arrays_before == [vars(owner)[name] for owner, name, *_ in _arrays.table()]
    assert type(fresh()[1, 1]) is NUMBA_CONFIGURATION
    with stridedview.enabled(arrays=arrays):
        assert recorded(fresh(), (7,)).words == (7,)
    assert all(one is two for one, two in zip(before, replaced(), strict=True))


def test_enable_when_arrays_fail_while_enabled_then_launches_stay_enabled(
    enabled, monkeypatch
):
    rows = _arrays.table()
    before = [vars(owner)[name] for owner, name, *_ in rows]
    with monkeypatch.context() as patched:
        fault = (Refusing(), "attribute", 1, lambda found: "")
        patched.setattr(_arrays, "table", lambda: [*rows, fault])
        with pytest.raises(Fault):
            stridedview.enable(arrays=True)
    assert before == [vars(owner)[name] for owner, name, *_ in rows]
    assert type(fresh()[1, 1]) is not NUMBA_CONFIGURATION


def test_enable_when_numba_cuda_is_out_of_range_then_a_process_is_as_without_us():
    for version in ("0.30.1", "0.30.5", "0.31.0", "1.0"):
        child = run_child(f"""
            from tests import standin
            standin.load()
            import importlib.metadata
            real = importlib.metadata.version
            importlib.metadata.version = lambda name: (
                {version!r} if name == "numba-cuda" else real(name))
            from numba import cuda
            from numba.cuda import dispatcher
            places = [dispatcher.CUDADispatcher, dispatcher._LaunchConfiguration,
                      dispatcher.ForAll, dispatcher._Kernel, dispatcher, cuda]
            before = [dict(vars(place)) for place in places]
            import stridedview
            try:
                stridedview.enable(arrays=True)
            except ImportError as error:
                assert "numba-cuda {version}" in str(error), error
                assert "tested: 0.30.2 to 0.30.4" in str(error), error
                assert "STRIDEDVIEW_FORCE=1" in str(error), error
            else:
                raise AssertionError("it was enabled")
            assert not stridedview.is_enabled()
            for place, was in zip(places, before, strict=True):
                now = dict(vars(place))
                assert now.keys() == was.keys(), place
                assert all(now[name] is value for name, value in was.items()), place

            @cuda.jit
            def take(a):
                pass

            take[1, 1](7)
            (launch,) = standin.launches()
            assert launch.entry == "cuLaunchKernelEx", launch.entry  # Numba's own code
            print("done")
        """)
        assert child.stdout == "done\n", child.stderr[-3000:]


OUT_OF_RANGE = {
    "numba-cuda too old": ("numba-cuda", "0.30.1", "0.30.2 to 0.30.4"),
    "numba-cuda too new": ("numba-cuda", "0.31.0", "0.30.2 to 0.30.4"),
    "cuda-core too old": ("cuda-core", "0.7.0", "1.0 to 1.2"),
    "cuda-core too new": ("cuda-core", "2.0.0", "1.0 to 1.2"),
    "cuda-bindings too old": ("cuda-bindings", "12.8.0", "12.9 to 13.5"),
    "cuda-bindings too new": ("cuda-bindings", "14.0.0", "12.9 to 13.5"),
}


@pytest.fixture
def installed(monkeypatch):
    """Return a function that makes a distribution seem to have another version."""
    versions = {}
    real = _peers.version
    monkeypatch.setattr(_peers, "version", lambda name: versions.get(name) or real(name))
    monkeypatch.delenv(_peers.FORCE_VARIABLE, raising=False)
    return versions.__setitem__


@pytest.mark.parametrize("case", OUT_OF_RANGE.values(), ids=OUT_OF_RANGE)
def test_enable_when_a_peer_is_out_of_range_then_nothing_is_patched_and_force_is_named(
    driver, installed, monkeypatch, case
):
    name, version, tested = case
    installed(name, version)
    before = replaced()
    with pytest.raises(ImportError) as error:
        stridedview.enable(arrays=True)
    for part in (f"found {name} {version}", f"tested: {tested}", "STRIDEDVIEW_FORCE=1"):
        assert part in str(error.value)
    assert all(one is two for one, two in zip(before, replaced(), strict=True))
    assert not stridedview.is_enabled()
    monkeypatch.setenv("STRIDEDVIEW_FORCE", "1")
    with stridedview.enabled():
        assert stridedview.is_enabled()


# ---- configurations ----


def test_configuration_when_made_before_then_it_takes_our_way_and_then_numbas(driver):
    kernel, array = fresh(), vector()
    made_before = kernel[2, 32]
    with stridedview.enabled():
        made_before(tensor(array))
        assert calls_of(lambda: made_before(tensor(array))) == HIT
        record = driver.launches()[-1]
        assert (record.grid, record.block) == ((2, 1, 1), (32, 1, 1))
        assert record.words == words_of(array)
    made_before(array)
    assert driver.launches()[-1].entry == "cuLaunchKernelEx"


def test_configuration_when_made_before_then_its_callbacks_are_heard(driver):
    kernel, array = fresh(), vector()
    made_before = kernel[1, 1]
    seen = []
    with stridedview.enabled():
        made_before(array)
        made_before.pre_launch_callbacks.append(lambda *found: seen.append(found))
        made_before(array)
    assert len(seen) == 1


@pytest.mark.parametrize("attribute", ["griddim", "blockdim", "sharedmem", "callbacks"])
def test_configuration_when_made_before_and_changed_while_enabled_then_it_is_heard(
    driver, attribute
):
    kernel, array = fresh(), vector()
    made_before = kernel[1, 1]
    seen = []
    with stridedview.enabled():
        made_before(array)
        made_before.griddim = (3, 1, 1)
        made_before.blockdim = (5, 1, 1)
        made_before.sharedmem = 64
        made_before.pre_launch_callbacks = [lambda *found: seen.append(found)]
        made_before(array)
    record = driver.launches()[-1]
    found = {
        "griddim": record.grid == (3, 1, 1),
        "blockdim": record.block == (5, 1, 1),
        "sharedmem": record.shared == 64,
        "callbacks": len(seen) == 1,
    }
    assert found[attribute]


def test_configuration_when_used_after_disabling_then_it_launches_through_numba(driver):
    kernel, array, stream = fresh(), vector(), cuda.stream()
    with stridedview.enabled():
        ours = kernel[(2, 3), (4, 5), stream, 256]
        ours(array)
        first = driver.launches()[-1]
    ours(array)
    record = driver.launches()[-1]
    assert record.entry == "cuLaunchKernelEx"
    for name in ("grid", "block", "shared", "stream", "parameters", "handle"):
        if name != "handle":
            assert getattr(record, name) == getattr(first, name), name
    assert record.stream == int(stream.handle)


def test_configuration_when_asked_then_it_has_what_numbas_has(driver):
    kernel, stream = fresh(), cuda.stream()
    theirs = kernel[(2, 3), 32, stream, 128]
    with stridedview.enabled():
        ours = kernel[(2, 3), 32, stream, 128]
    assert type(ours) is not type(theirs)
    for name in ("dispatcher", "griddim", "blockdim", "sharedmem", "pre_launch_callbacks",
                 "args", "_kernel_launch_config_sensitive"):  # fmt: skip
        assert getattr(ours, name) == getattr(theirs, name), name
    assert int(ours.stream.handle) == int(theirs.stream.handle)
    missing = {name for name in dir(theirs) if not name.startswith("__")} - set(dir(ours))
    assert missing == set()


def test_configuration_when_asked_for_again_then_it_is_the_same_object(driver):
    kernel = fresh()
    with stridedview.enabled():
        first = kernel[1, 1]
        assert kernel[1, 1] is first
        others = [kernel[1, block] for block in range(2, 302)]
        assert kernel[1, 1] is first
        assert [kernel[1, block] for block in range(2, 302)] == others
        assert kernel.configure(1, 1) is not None
        assert kernel[[1, 2], (1,)] is kernel[[1, 2], (1,)]


@pytest.mark.parametrize("alias", [True, np.int64(1)], ids=["bool", "NumPy"])
def test_configuration_when_sizes_are_equal_but_not_ints_then_they_do_not_alias(
    driver, alias
):
    kernel = fresh()
    with stridedview.enabled():
        plain = kernel[1, 1]
        seen = []
        other = kernel[1, 1, 0, alias]
        other.pre_launch_callbacks.append(lambda *found: seen.append(found))
        assert kernel[1, 1] is plain
        assert kernel[1, 1, 0, 1] is not other
        plain(vector())
        assert seen == []


def test_configuration_when_a_size_is_a_float_then_it_is_refused_whatever_came_before(
    driver,
):
    kernel = fresh()
    with stridedview.enabled():
        kernel[1, 1](vector())
        with pytest.raises(TypeError):
            kernel[1.0, 1]
        with pytest.raises(TypeError):
            kernel[1, 1.0]


class Reentrant:
    """A stream whose comparison lets another thread's work in between."""

    cuda_stream = 0

    def __init__(self, meanwhile):
        self.meanwhile = meanwhile

    def __hash__(self):
        return 1

    def __eq__(self, other):
        self.meanwhile()
        return isinstance(other, Reentrant)


def test_configuration_when_another_is_made_while_streams_compare_then_none_is_mixed_up(
    driver,
):
    kernel = fresh()
    with stridedview.enabled():
        streams = [Reentrant(lambda: kernel[7, 7]) for _ in range(2)]
        for stream in streams:
            assert kernel[1, 1, stream].griddim == (1, 1, 1)


@pytest.mark.parametrize("args", [(1,), (1, 1, 0, 0, 0), ()], ids=len)
def test_configuration_when_it_has_too_few_or_many_parts_then_the_error_is_numbas(
    driver, args
):
    kernel = fresh()
    with pytest.raises(ValueError, match="griddim and blockdim") as theirs:
        kernel[args]
    with (
        stridedview.enabled(),
        pytest.raises(ValueError, match="griddim and blockdim") as ours,
    ):
        kernel[args]
    assert str(ours.value) == str(theirs.value)


def test_configuration_when_pickled_then_it_launches_as_before(driver):
    stream = cuda.default_stream()
    with stridedview.enabled():
        copied = pickle.loads(pickle.dumps(take[(2, 3), 32, stream, 128]))
        array = vector()
        copied(array)
        record = driver.launches()[-1]
        assert (record.grid, record.block, record.shared) == ((2, 3, 1), (32, 1, 1), 128)
        assert record.words == words_of(array)


def test_configuration_when_pickled_with_callbacks_then_it_is_refused_as_numba_does(driver):
    kernel = fresh()
    with stridedview.enabled():
        kernel[1, 1].pre_launch_callbacks.append(print)
        with pytest.raises(pickle.PicklingError, match="callbacks"):
            pickle.dumps(kernel[1, 1])


def test_dispatcher_when_pickled_after_a_launch_then_its_copy_launches(driver):
    with stridedview.enabled():
        take[1, 1](vector())
        copied = pickle.loads(pickle.dumps(take))
        array = vector()
        copied[1, 1](array)
        assert driver.launches()[-1].words == words_of(array)


def test_dispatcher_when_dropped_then_its_plans_and_configurations_go_with_it(driver):
    import gc
    import weakref

    with stridedview.enabled():
        kernel = fresh()
        kernel[1, 1](vector())
        kernel[1, 1](vector())
        dropped = weakref.ref(kernel)
        del kernel
        gc.collect()
        assert dropped() is None


# ---- the disk cache ----

CACHED = """
import numpy as np
from tests import standin
standin.load()
from cuda.bindings import driver as cu
import sys
sys.path.insert(0, {folder!r})
import cached_kernel
from numba import cuda
import stridedview
with stridedview.enabled():
    array = cuda.to_device(np.zeros(4, np.float32))
    for _ in range(2):
        cached_kernel.take[1, 1](array, 3)
    assert cached_kernel.take[1, 1].last_plan is not None
    kernel = cached_kernel.take
    print(sum(kernel.stats.cache_hits.values()), sum(kernel.stats.cache_misses.values()),
          standin.launches()[-1].entry, len(standin.launches()))
"""


def test_kernel_when_cached_on_disk_then_a_second_process_launches_it(driver, tmp_path):
    (tmp_path / "cached_kernel.py").write_text(
        "from numba import cuda\n\n\n@cuda.jit(cache=True)\ndef take(a, b):\n    a[0] = b\n"
    )
    found = [run_child(CACHED.format(folder=str(tmp_path))) for _ in range(2)]
    assert found[0].stdout.split() == ["0", "1", "cuLaunchKernel", "2"], found[0].stderr
    assert found[1].stdout.split() == ["1", "0", "cuLaunchKernel", "2"], found[1].stderr


def test_getitem_when_replaced_after_us_then_theirs_is_called(enabled, monkeypatch):
    asked = []
    ours = vars(numba_dispatcher.CUDADispatcher)["__getitem__"]

    def theirs(self, args):
        asked.append(args)
        return ours(self, args)

    monkeypatch.setattr(numba_dispatcher.CUDADispatcher, "__getitem__", theirs)
    assert take[1, 2].blockdim == (2, 1, 1)
    assert asked == [(1, 2)]


def test_getitem_when_a_subclass_has_its_own_then_it_is_called(enabled):
    class Other(numba_dispatcher.CUDADispatcher):
        def __getitem__(self, args):
            return super().__getitem__((args, args))

    class Plain(numba_dispatcher.CUDADispatcher):
        pass

    assert Other(take.py_func, take.targetoptions)[3].griddim == (3, 1, 1)
    assert Plain(take.py_func, take.targetoptions)[3, 4].griddim == (3, 1, 1)
    for wrong in (3, (3,), [3, 4], (1, 2, 3, 4, 5)):
        with pytest.raises(ValueError, match="griddim and blockdim"):
            take[wrong]


def test_configurations_when_kernels_come_and_go_then_each_gets_its_own(enabled):
    # More of them than there is room for the states found by address.
    for _ in range(3):
        kernels = [fresh() for _ in range(200)]
        for _ in range(2):
            for number, kernel in enumerate(kernels):
                assert kernel[number + 1, 1].dispatcher is kernel
        del kernels, kernel
        gc.collect()


def test_configurations_when_each_names_a_stream_of_its_own_then_few_streams_are_kept(
    enabled,
):
    kernel, alive = fresh(), []
    for _ in range(300):
        stream = cuda.stream()
        alive.append(weakref.ref(stream))
        assert kernel[1, 1, stream] is kernel[1, 1, stream]
    del stream
    gc.collect()
    assert 1 <= sum(one() is not None for one in alive) <= 130
    assert kernel[1, 1] is kernel[1, 1]


# ---- what torch.compile sees ----


def test_calls_when_patched_then_no_python_function_is_entered(driver):
    kernel, array = fresh(), vector()
    entered = []

    def note(frame, event, _):
        if event == "call":
            entered.append(frame.f_code.co_name)

    def launch():
        for _ in range(200):  # often enough for the interpreter to specialize the line
            kernel[1, 32](array)

    with stridedview.enabled():
        launch()
        sys.setprofile(note)
        try:
            launch()
        finally:
            sys.setprofile(None)
        # Numba's device array is read through Python properties.
        assert not {"subscript", "call", "configure"} & set(entered)
        assert kernel.__getitem__((1, 32)) is kernel[1, 32]
        driver.clear()
        kernel[1, 32].__call__(array)
        assert len(driver.launches()) == 1


def test_subscript_when_disabled_then_it_is_numbas_again(driver):
    kernel = fresh()
    with stridedview.enabled():
        assert type(kernel[1, 32]) is not NUMBA_CONFIGURATION
    assert type(kernel[1, 32]) is NUMBA_CONFIGURATION
    with stridedview.enabled():
        assert type(kernel[1, 32]) is not NUMBA_CONFIGURATION
