"""What `explain` tells of captures, of several devices, and of what would be refused."""

import warnings

import numpy as np
import pytest
from cuda.bindings import driver as cu
from numba import cuda

import stridedview
from tests.launching import (
    Capture,
    calls_of,
    foreign,
    producer,
    sensitive_kernels,
    tensor,
)  # fmt: skip
from tests.standin.helpers import good, run_child

pytestmark = pytest.mark.standin


@pytest.fixture
def enabled(driver):
    """Enable for a test, and give the stand-in."""
    with stridedview.enabled():
        yield driver
    driver.producers().set_work_stream(0)


def fresh(**options):
    """Return a kernel of two arguments without overloads."""

    @cuda.jit(**options)
    def take(x, y):
        pass

    return take


def vector(size=4, dtype=np.float32):
    return cuda.to_device(np.zeros(size, dtype))


def launch_of(configuration, *args):
    return stridedview.explain(configuration, *args).to_dict()["launch"]


@pytest.fixture
def stream(driver):
    """Give the handle of a stream that does not wait for the legacy one."""
    return int(good(cu.cuStreamCreate(1)))


# ---- captures ----


@pytest.mark.parametrize("warm", [False, True], ids=["first", "seen"])
@pytest.mark.parametrize("named", [False, True], ids=["unnamed", "named"])
def test_explain_when_the_stream_captures_then_it_tells_and_the_capture_goes_on(
    enabled, stream, named, warm
):
    kernel, array = fresh(), vector()
    made = producer(array)
    configuration = kernel[1, 1, stream] if named else kernel[1, 1]
    if warm:
        configuration(made, 1)
    enabled.producers().set_work_stream(stream)
    enabled.clear()
    with Capture(stream) as capture:
        report = stridedview.explain(configuration, made, 1)
        configuration(made, 1)
    found = report.to_dict()["launch"]
    assert (found["stream"], found["capturing"], found["hit"]) == (stream, True, warm)
    assert (found["refused"], found["orderings"]) == ("", [])
    assert ", in a capture)" in repr(report)
    assert capture.nodes == 1
    assert not launch_of(configuration, made, 1)["capturing"]


def test_explain_when_a_producer_is_outside_the_capture_then_no_wait_is_told(
    enabled, stream
):
    kernel, array = fresh(), vector()
    with Capture(stream):
        found = launch_of(kernel[1, 1, stream], tensor(array), 1)
    (ordering,) = found["orderings"]
    assert ordering == "not behind stream 0: one of the two is in a capture"
    assert enabled.orderings() == []


RECORD = np.zeros(1, [("a", "i4")])[0]
NOT_CAPTURED = {
    "host array": (lambda: np.zeros(4, np.float32), {}, "host array cannot be copied"),
    "hint": (lambda: cuda.In(np.zeros(4, np.float32)), {}, "host array cannot be copied"),
    "in a tuple": (lambda: (1, np.zeros(4, np.float32)), {}, "host array cannot"),
    "pinned": (lambda: cuda.pinned_array(4), {}, "host array cannot be copied"),
    "record": (lambda: RECORD, {}, "record of the host cannot be copied"),
    "debug": (lambda: 1, {"debug": True, "opt": False}, "compile it without debug=True"),
}


@pytest.mark.filterwarnings("ignore:Host array")
@pytest.mark.parametrize("case", NOT_CAPTURED)
def test_explain_when_a_capture_does_not_allow_the_launch_then_it_tells_the_error(
    enabled, stream, case
):
    make, options, message = NOT_CAPTURED[case]
    kernel, array, value = fresh(**options), vector(), make()
    kernel[1, 1](array, value)
    configuration = kernel[1, 1, stream]
    assert launch_of(configuration, array, value)["refused"] == ""
    enabled.clear()
    with Capture(stream) as capture:
        report = stridedview.explain(configuration, array, value)
        with pytest.raises(RuntimeError, match=message) as raised:
            configuration(array, value)
    assert report.to_dict()["launch"]["refused"] == str(raised.value)
    assert f"REFUSED: {raised.value}" in repr(report)
    assert enabled.launches() == []
    assert capture.nodes == 0


def test_explain_when_a_debug_kernel_is_not_compiled_then_a_capture_refuses_it_too(
    enabled, stream
):
    configuration = fresh(debug=True, opt=False)[1, 1, stream]
    with Capture(stream) as capture:
        told = launch_of(configuration, 1, 2)["refused"]
        with pytest.raises(RuntimeError, match="compile it without debug=True") as raised:
            configuration(1, 2)
    assert told == str(raised.value)
    assert capture.nodes == 0


# ---- what would be refused ----


@cuda.jit("void(float32[::1], int32)")
def signed(x, y):
    pass


@cuda.jit("void(int8, boolean)")
def narrow(x, y):
    pass


@cuda.jit("void(float32[::1, :])")
def fortran(x):
    pass


def matrix():
    return cuda.to_device(np.zeros((3, 4), np.float32))


def tiled():
    """Return a compiled kernel with 4,096 bytes of static shared memory."""

    @cuda.jit
    def take(x, y):
        tile = cuda.shared.array(1024, np.float32)
        tile[cuda.threadIdx.x] = x
        cuda.syncthreads()
        y[0] = tile[1023 - cuda.threadIdx.x]

    take[1, 1](1.5, vector())
    return take


REFUSED = {
    "shared memory": (fresh, (1, 1, 0, 300_000), lambda: (1, 2)),
    "shared memory beside static": (tiled, (1, 1, 0, 230_000), lambda: (1.5, vector())),
    "value beyond a formal": (lambda: narrow, (1, 1), lambda: (300, True)),
    "NumPy's value beyond it": (lambda: narrow, (1, 1), lambda: (np.int64(-129), 1)),
    "float for an int": (lambda: narrow, (1, 1), lambda: (2.5, True)),
    "C into F": (lambda: fortran, (1, 1), lambda: (matrix(),)),
    "too few": (fresh, (1, 1), lambda: (1,)),
    "too many": (fresh, (1, 1), lambda: (1, 2, 3)),
    "None": (fresh, (1, 1), lambda: (None, 2)),
    "too many bytes": (fresh, (1, 1), lambda: (1, (vector(),) * 700)),
    "block": (fresh, (1, 2000), lambda: (1, 2)),
    "grid": (fresh, (0, 1), lambda: (vector(), 2)),
    "signature": (lambda: signed, (1, 1), lambda: (vector(8)[::2], 2)),
    "count of a signature": (lambda: signed, (1, 1), lambda: (vector(),)),
}


@pytest.mark.parametrize("case", REFUSED)
def test_explain_when_a_launch_is_refused_then_it_tells_the_error_and_raises_nothing(
    enabled, case
):
    make, grid, arguments = REFUSED[case]
    kernel, args = make(), arguments()
    report = stridedview.explain(kernel[grid], *args)
    with pytest.raises((TypeError, ValueError, OverflowError, RuntimeError)) as raised:
        kernel[grid](*args)
    told = report.to_dict()["launch"]["refused"]
    assert told
    assert told in str(raised.value)
    assert "REFUSED" in repr(report)


def test_explain_when_a_kernel_cannot_take_an_argument_then_no_route_is_told(enabled):
    kernel = fresh()
    for value, name in (
        (None, "None"),
        ("text", "str"),
        ([1], "list"),
        ((1, None), "None"),
    ):
        report = stridedview.explain(kernel[1, 1], value, 1)
        found = report.to_dict()
        assert found["launch"]["through_numba"] == ""
        assert f"a kernel cannot take {name}" in found["launch"]["refused"]
        facts = found["arguments"][0]
        assert (facts["route"], facts["slow"], facts["why"]) == ("refused", False, "")
        assert "SLOW" not in repr(report)


def test_explain_when_the_values_fit_then_nothing_is_refused(enabled):
    for args in ((-128, True), (np.int8(3), 2.5)):
        assert launch_of(narrow[1, 1], *args)["refused"] == ""
    assert launch_of(tiled()[1, 1, 0, 220_000], 1.5, vector())["refused"] == ""
    column = cuda.to_device(np.zeros((4, 1), np.float32))
    fortran[1, 1](column)
    assert launch_of(fortran[1, 1], column)["refused"] == ""
    assert launch_of(fortran[1, 1], matrix())["refused"]


class Swapping:
    """An extension that does nothing."""

    def prepare_args(self, ty, val, **_):
        return ty, val


UNCOMPILED = {
    "debug": ({"debug": True, "opt": False}, "debug kernel"),
    "extension": ({"extensions": [Swapping()]}, "extension"),
    "plain": ({}, ""),
}


@pytest.mark.parametrize("case", UNCOMPILED)
def test_explain_when_the_kernel_is_not_compiled_then_its_way_is_known_from_its_options(
    enabled, case
):
    options, reason = UNCOMPILED[case]
    kernel, array = fresh(**options), vector()
    assert launch_of(kernel[1, 1], array, 1)["through_numba"] == reason
    stridedview.reset_stats()
    kernel[1, 1](array, 1)
    assert list(stridedview.stats()["fallbacks"]) == [reason] * bool(reason)
    assert launch_of(kernel[1, 1], array, 1)["through_numba"] == reason


def test_explain_when_a_signature_fits_but_for_signedness_then_it_does_not_warn(enabled):
    kernel = cuda.jit("void(uint32[:])")(lambda x: None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert launch_of(kernel[1, 1], vector(4, np.int32))["refused"] == ""
    with stridedview.enabled(strict=True):
        assert "uint32" in launch_of(kernel[1, 1], vector(4, np.int32))["refused"]


def test_explain_when_the_kernel_depends_on_its_configuration_then_another_compiles(
    enabled,
):
    with sensitive_kernels():

        @cuda.jit
        def sensitive(x):
            pass

        sensitive[1, 32](7)
        assert not launch_of(sensitive[1, 32], 8)["compiles"]
        found = launch_of(sensitive[1, 64], 8)
        assert found["compiles"]
        assert found["differences"] == [
            "the kernel was compiled for its grid, block or shared memory, which differ"
        ]
        assert sensitive._launch_config_specializations == {}
        sensitive[1, 64](7)
        assert launch_of(sensitive[1, 64], 8)["hit"]


def test_explain_when_asked_of_slow_producers_then_the_driver_is_not_asked_to_do_anything(
    enabled,
):
    kernel, array = fresh(), vector()
    args = producer(array, "Plain"), foreign(array)
    done = calls_of(lambda: stridedview.explain(kernel[1, 1], *args))
    asking = ("cuCtxGet", "cuPointerGet", "cuStreamGet", "cuStreamIs", "cuDeviceGet")
    assert [name for name in done if not name.startswith(asking)] == []


# ---- devices ----

TWO = """
import numpy as np
from tests import standin
standin.load()
from cuda.bindings import driver as cu
from numba import cuda
import stridedview
from tests.launching import producer
from tests.standin.helpers import good
stridedview.enable()

@cuda.jit
def take(x, y):
    pass

arrays = []
for device in (1, 0):
    cuda.select_device(device)
    arrays.append(cuda.to_device(np.zeros(4, np.float32)))
second, first = arrays

def current():
    return int(good(cu.cuCtxGetCurrent()))

def launch_of(*args):
    return stridedview.explain(take[1, 1], *args).to_dict()["launch"]

before = current()
"""


def run(body):
    child = run_child(TWO + body + "\nprint('done')\n", devices=2)
    assert child.stdout.split() == ["done"], child.stderr[-3000:]


def test_explain_when_the_arrays_device_is_not_current_then_its_plan_is_found():
    run(
        """
assert launch_of(second, 1)["compiles"]
take[1, 1](second, 1)
found = launch_of(second, 1)
assert found["hit"] and not found["compiles"] and not found["refused"], found
report = stridedview.explain(take[1, 1], second, 1).to_dict()
assert report["arguments"][0]["device"] == "cuda:1"
found = launch_of(first, 1)
assert found["differences"] == ["argument 1 'x': device cuda:0 -> cuda:1"] or (
    found["differences"] == ["argument 1 'x': device cuda:1 -> cuda:0"]), found
assert not found["compiles"], "both devices are of one compute capability"
assert current() == before
assert len(standin.launches()) == 1
"""
    )


def test_explain_when_only_numbers_come_then_the_context_is_what_differs():
    run(
        """
take[1, 1](1, 2)
cuda.select_device(1)
(change,) = launch_of(1, 2)["differences"]
assert change.startswith("the context: "), change
take[1, 1](1, 2)
assert launch_of(1, 2)["hit"]
cuda.select_device(0)
assert launch_of(1, 2)["hit"]
"""
    )


def test_explain_when_arrays_are_on_two_devices_then_it_raises_as_the_launch_does():
    run(
        """
for call in (take[1, 1], lambda *args: stridedview.explain(take[1, 1], *args)):
    try:
        call(first, second)
    except ValueError as error:
        assert "device 0" in str(error) and "device 1" in str(error), error
    else:
        raise AssertionError("no error")
assert current() == before
"""
    )


def test_explain_when_a_producer_has_a_stream_on_another_device_then_that_one_is_told():
    run(
        """
producers = standin.producers()
cuda.select_device(1)
side = cuda.stream()
cuda.select_device(0)
producers.set_work_stream(int(side.handle))
made = producer(second, device_id=1)
found = launch_of(made, 1)
assert found["stream"] == int(side.handle), found
take[1, 1](made, 1)
record = standin.launches()[-1]
assert (record.device, record.stream) == (1, int(side.handle))
"""
    )


def test_explain_when_there_is_no_such_device_then_it_says_what_the_launch_would():
    run(
        """
made = producer(first, device_id=5)
told = launch_of(made, 1)["refused"]
try:
    take[1, 1](made, 1)
except ValueError as error:
    assert told and told in str(error), (told, error)
else:
    raise AssertionError("no error")
"""
    )
