"""Launches through Numba's own code: refused, limited and placed as the fast ones are."""

import collections
import enum

import numpy as np
import pytest
from numba import cuda, types

import stridedview
from tests.launching import Foreign, caught, pointer_of, recorded
from tests.standin.helpers import run_child, words_of

pytestmark = [
    pytest.mark.standin,
    pytest.mark.filterwarnings("ignore::numba.cuda.core.errors.NumbaPerformanceWarning"),
]


def vector(size=4, dtype=np.float32):
    return cuda.to_device(np.zeros(size, dtype))


def take_two(a, x):
    pass


class Nothing:
    """An extension that leaves every argument as it is."""

    def prepare_args(self, ty, val, **_):
        return ty, val


def with_callback(configuration):
    configuration.pre_launch_callbacks.append(lambda *_: None)
    return configuration


# How a launch comes to Numba's own code: (options of the kernel, the second argument, what
# is done to the configuration).
WAYS = {
    "host array": ({}, lambda: np.zeros(4, np.float32), None),
    "hint": ({}, lambda: cuda.In(np.zeros(4, np.float32)), None),
    "hint of a device array": ({}, lambda: cuda.InOut(vector()), None),
    "debug kernel": ({"debug": True, "opt": False}, vector, None),
    "callback": ({}, vector, with_callback),
}
WAYS_OF_LIMITS = WAYS | {"extension": ({"extensions": [Nothing()]}, vector, None)}


def launcher(way, signature=None, grid=(1, 1)):
    """Return a function that launches a kernel of `signature` that way over one value."""
    options, make, change = WAYS_OF_LIMITS[way]
    given = () if signature is None else (signature,)
    kernel = cuda.jit(*given, **options)(take_two)

    def launch(value):
        configuration = kernel[grid]
        if change:
            change(configuration)
        configuration(value, make())

    return launch


# ---- values that do not fit ----

Pair = collections.namedtuple("Pair", "one other")
Level = enum.Enum("Level", {"high": 300, "low": 3})

UNFIT = {
    "int into int8": ("int8", 300, OverflowError, "300 does not fit.*int8"),
    "negative int into uint8": ("uint8", -129, OverflowError, "-129 does not fit.*uint8"),
    "NumPy int into int8": ("int8", np.int64(-129), OverflowError, "-129 does not fit"),
    "enum into int8": ("int8", Level.high, OverflowError, "300 does not fit"),
    "uint64 into int64": ("int64", 2**63, OverflowError, "does not fit.*int64"),
    "float into int8": ("int8", 2.5, TypeError, r"float cannot.*int8; pass int\(x\)"),
    "complex into float64": ("float64", 1j, TypeError, r"complex.*float64; pass x\.real"),
    "float into a pointer": ("CPointer(float32)", 1.5, TypeError, "float cannot.*pointer"),
    "negative pointer": ("CPointer(float32)", -1, OverflowError, "not fit.*pointer"),
    "in a tuple": ("Tuple((int8, boolean))", (300, 1), OverflowError, "300 does not fit"),
    "in a tuple in one": (
        "Tuple((int8, Tuple((float32, int8))))", (3, (1, 300)), OverflowError, "300 does",
    ),
}  # fmt: skip


@pytest.mark.parametrize("way", ["fast", *WAYS])
@pytest.mark.parametrize("case", UNFIT)
def test_value_when_it_does_not_fit_its_formal_then_it_is_refused(enabled, case, way):
    formal, value, error, message = UNFIT[case]
    if way == "fast":
        kernel = cuda.jit(f"void({formal}, float32[::1])")(take_two)
        launch = lambda value: kernel[1, 1](value, vector())  # noqa: E731
    else:
        launch = launcher(way, f"void({formal}, float32[::1])")
    with caught(error, f"argument 1 'a': .*{message}"):
        launch(value)


def test_value_when_it_does_not_fit_then_explain_says_so(enabled):
    kernel = cuda.jit("void(int8, float32[::1])")(take_two)
    found = str(stridedview.explain(kernel[1, 1], 300, np.zeros(4, np.float32)))
    assert "REFUSED: argument 1 'a': 300 does not fit" in found
    assert "REFUSED" not in str(stridedview.explain(kernel[1, 1], 3, cuda.In(vector())))


FITTING = {
    "boolean of 256": ("boolean", 256),
    "boolean of 2.5": ("boolean", 2.5),
    "boolean of 0.0": ("boolean", 0.0),
    "boolean of a NumPy int": ("boolean", np.int64(512)),
    "boolean of complex": ("boolean", 1j),
    "boolean beyond int64": ("boolean", 2**63),
    "bool into int32": ("int32", True),
    "int into int8": ("int8", -7),
    "enum into int8": ("int8", Level.low),
    "int into float16": ("float16", 7),
    "float into float32": ("float32", 0.1),
    "NumPy float into float64": ("float64", np.float32(0.1)),
    "int into complex64": ("complex64", 7),
    "complex": ("complex128", 1 + 2j),
    "time": ("NPDatetime('s')", np.datetime64("2020-01-01", "s")),
    "pointer": ("CPointer(float32)", 4096),
    "tuple": ("Tuple((int8, boolean, float32))", (1, 256, 2)),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("case", FITTING)
def test_value_when_it_fits_then_it_is_passed_as_on_the_fast_path(enabled, case, way):
    formal, value = FITTING[case]
    if formal.startswith("NPDatetime"):
        signature = types.void(types.NPDatetime("s"), types.float32[::1])
    else:
        signature = f"void({formal}, float32[::1])"
    count = len(recorded(cuda.jit(signature)(take_two), (value, vector())).parameters) - 7
    expected = enabled.launches()[-1].parameters[:count]
    launcher(way, signature)(value)
    assert enabled.launches()[-1].parameters[:count] == expected


def test_named_tuple_when_beside_a_host_array_then_each_item_is_packed(enabled):
    kernel = cuda.jit(take_two)
    kernel[1, 1](Pair(3, 4.5), np.zeros(4, np.float32))
    expected = recorded(kernel, (Pair(3, 4.5), vector())).parameters[:2]
    kernel[1, 1](Pair(3, 4.5), np.zeros(4, np.float32))
    assert enabled.launches()[-1].parameters[:2] == expected


class Elsewhere(tuple):
    """A tuple that shows others than its items."""

    def __iter__(self):
        return iter((300, 300))


def test_tuple_when_it_iterates_over_other_items_then_its_own_are_passed(enabled):
    kernel = cuda.jit("void(Tuple((float32[::1], int8)), float32[::1])")(take_two)
    array = vector()
    kernel[1, 1](Elsewhere((array, 4)), np.zeros(4, np.float32))
    assert enabled.launches()[-1].words[:8] == (*words_of(array), 4)
    with caught(OverflowError, "argument 1 'a': 300 does not fit"):
        kernel[1, 1](Elsewhere((array, 300)), np.zeros(4, np.float32))


def test_tuple_when_it_iterates_over_other_items_then_its_own_arrays_are_ordered(enabled):
    array, side = vector(), cuda.stream()
    foreign = Foreign(
        pointer_of(array), (4,), np.float32, owner=array, stream=int(side.handle)
    )
    held = Elsewhere((stridedview.from_any(foreign), 4))
    cuda.jit(take_two)[1, 1](held, np.zeros(4, np.float32))
    assert [order.recorded_on for order in enabled.orderings()] == [int(side.handle)]
    found = str(stridedview.explain(cuda.jit(take_two)[1, 1], held, 1))
    assert f"behind stream {int(side.handle)}" in found


def test_tuple_when_it_iterates_over_other_items_then_its_own_routes_are_told(driver):
    array = vector()
    held = Elsewhere((Foreign(pointer_of(array), (4,), np.float32, owner=array), 4))
    with stridedview.enabled(slow="error"), caught(TypeError, "CUDA array interface"):
        cuda.jit(take_two)[1, 1](held, 1)


# ---- arguments that no kernel takes ----

WRONG_HINTS = {
    "number": (lambda: cuda.In(3), r"cuda\.In takes an array, got int; pass it as it is"),
    "tuple": (
        lambda: cuda.InOut((np.zeros(4), 1)),
        r"cuda\.InOut takes an array, got tuple; pass a tuple of hints",
    ),
    "hint": (lambda: cuda.Out(cuda.In(np.zeros(4))), r"cuda\.Out takes an array, got In"),
    "None": (lambda: cuda.In(None), "cannot take none|takes an array"),
    "in a tuple": (lambda: (cuda.In(3), 1), r"cuda\.In takes an array, got int"),
}


@pytest.mark.parametrize("case", WRONG_HINTS)
@pytest.mark.parametrize("signature", [None, "void(int64, float32[::1])"])
def test_hint_when_it_holds_no_array_then_it_is_refused(enabled, case, signature):
    make, message = WRONG_HINTS[case]
    given = () if signature is None else (signature,)
    kernel = cuda.jit(*given)(take_two)
    compiled = len(kernel.overloads)
    with caught(TypeError, f"argument 1 'a': .*({message})"):
        kernel[1, 1](make(), vector())
    assert len(kernel.overloads) == compiled


@pytest.mark.parametrize("value", [None, (1, None)], ids=["alone", "in a tuple"])
def test_none_when_an_extension_leaves_it_then_the_argument_is_named(enabled, value):
    kernel = cuda.jit(extensions=[Nothing()])(take_two)
    with caught(TypeError, "argument 2 'x': a kernel cannot take None; pass an array"):
        kernel[1, 1](vector(), value)


@pytest.mark.parametrize("policy", ["warn", "error"])
@pytest.mark.parametrize("value", [None, (1, None)], ids=["alone", "in a tuple"])
def test_none_when_slow_routes_are_told_of_then_it_is_refused_as_what_it_is(
    driver, value, policy
):
    kernel = cuda.jit(take_two)
    with (
        stridedview.enabled(slow=policy),
        caught(TypeError, "'x': .*a kernel cannot take None"),
    ):
        kernel[1, 1](vector(), value)


@pytest.mark.parametrize("signature", [None, "void(float32[::1], float32[::1])"])
def test_none_when_prepared_then_no_other_way_is_advised(enabled, signature):
    given = () if signature is None else (signature,)
    kernel = cuda.jit(*given)(take_two)
    with caught(TypeError, "argument 2 'x': .*None") as raised:
        stridedview.prepare(kernel[1, 1], vector(), None)
    assert raised is None


# ---- bytes of parameters ----

LARGE = types.UniTuple(types.int64, 5000)


def take_one(a):
    pass


TOO_LARGE = {
    "extension": lambda: cuda.jit(extensions=[Nothing()])(take_one)[1, 1]((7,) * 5000),
    "specialize": lambda: cuda.jit(take_one).specialize((7,) * 5000),
    "compile": lambda: cuda.jit(take_one).compile((LARGE,)),
    "signature": lambda: cuda.jit(types.void(LARGE))(take_one),
    "signatures": lambda: cuda.jit([types.void(LARGE), types.void(types.int64)])(take_one),
}


@pytest.mark.parametrize("case", TOO_LARGE)
def test_parameters_when_over_the_limit_then_no_compiler_is_asked(enabled, case):
    message = "'take_one' take 40000 bytes of parameters, the limit is 32764"
    with caught(ValueError, message):
        TOO_LARGE[case]()


# ---- limits of the device ----


@pytest.mark.parametrize("way", WAYS_OF_LIMITS)
def test_shared_memory_when_over_48_kb_then_it_is_opted_in(enabled, way):
    launcher(way, grid=(1, 1, 0, 100_000))(1)
    assert enabled.launches()[-1].shared == 100_000


LIMITS = {
    "shared memory": ((1, 1, 0, 300_000), "300000 bytes.*232448"),
    "threads": ((1, 2000), "block x is 2000.*1024"),
    "threads in all": ((1, (32, 33)), "1056 threads.*1024"),
    "no blocks": ((0, 1), "grid x is 0"),
}


@pytest.mark.parametrize("case", LIMITS)
@pytest.mark.parametrize("way", WAYS_OF_LIMITS)
def test_launch_when_beyond_the_device_then_the_number_and_limit_are_told(
    enabled, way, case
):
    from cuda.core._utils.cuda_utils import CUDAError

    grid, message = LIMITS[case]
    launch = launcher(way, grid=grid)
    for kind in (stridedview.DriverError, CUDAError, ValueError):
        with caught(kind, message):
            launch(1)


def together(a, x):
    cuda.cg.this_grid().sync()


@pytest.mark.parametrize("way", ["fast", *WAYS_OF_LIMITS])
def test_cooperative_grid_when_too_large_then_both_numbers_are_told(enabled, way):
    options, make, change = ({}, vector, None) if way == "fast" else WAYS_OF_LIMITS[way]
    kernel = cuda.jit(**options)(together)
    most = None
    for blocks in (1, 1_000_000):
        configuration = kernel[blocks, 32]
        if change:
            change(configuration)
        if most is None:
            configuration(1, make())
            (compiled,) = kernel.overloads.values()
            most = compiled.max_cooperative_grid_blocks(32)
            continue
        message = rf"1000000 blocks \(1000000 x 1 x 1\).*limit.* {most}\b"
        with caught(ValueError, message):
            configuration(1, make())


def test_cooperative_grid_when_it_grows_after_a_launch_then_the_driver_is_explained(
    enabled,
):
    kernel = cuda.jit(together)
    configuration = kernel[1, 32]
    configuration(1, vector())
    configuration.griddim = (1_000_000, 1, 1)
    with pytest.raises(ValueError, match=r"1000000 blocks.*limit") as raised:
        configuration(1, vector())
    assert isinstance(raised.value, stridedview.DriverError)
    assert raised.value.code == 720


# ---- devices ----

DEVICES = """
import numpy as np
from tests import standin
standin.load()
from numba import cuda
import stridedview
from tests.launching import recorded
from tests.standin.helpers import run_child, words_of
stridedview.enable()

def vector():
    return cuda.to_device(np.zeros(4, np.float32))

def take_two(a, x):
    pass

class Nothing:
    def prepare_args(self, ty, val, **_):
        return ty, val

cuda.select_device(1)
there = vector()
cuda.select_device(0)
here = vector()
HELD = {
    "In": cuda.In,
    "InOut": cuda.InOut,
    "Out": cuda.Out,
    "in a tuple": lambda array: (cuda.In(array), 1),
}
"""

LAUNCHED_THERE = """
for name, hold in HELD.items():
    kernel = cuda.jit(take_two)
    record = recorded(kernel, (hold(there), 1))
    assert (record.device, record.words[:7]) == (1, words_of(there)), name
    assert cuda.current_context().device.id == 0
    kernel.forall(4)(hold(there), 1)
    assert standin.launches()[-1].device == 1, name
print("done")
"""

REFUSED = """
for name, hold in HELD.items():
    for options in ({}, {"extensions": [Nothing()]}):
        kernel = cuda.jit(**options)(take_two)
        for args, one, other in (((hold(there), here), 0, 1), ((here, hold(there)), 1, 0)):
            message = (
                f"argument 2 'x': it is on device {one} but argument 1 is on device {other}"
            )
            standin.clear()
            for launch in (kernel[1, 1], kernel.forall(4)):
                try:
                    launch(*args)
                except ValueError as error:
                    assert message in str(error), error
                else:
                    raise AssertionError(name)
            assert standin.launches() == [], name
            assert message in str(stridedview.explain(kernel[1, 1], *args)), name
print("done")
"""


@pytest.mark.parametrize("body", [LAUNCHED_THERE, REFUSED], ids=["there", "both"])
def test_hint_when_its_array_is_on_another_device_then_the_rules_of_devices_hold(body):
    child = run_child(DEVICES + body, devices=2)
    assert child.stdout == "done\n", child.stderr
