"""No plan outlives its context, and each device has its own; in processes of their own.

What ends a context here: Numba's own ways, and one that Numba learns nothing of. After
`cuda.close()` in the main thread numba-cuda itself gets no new primary context, because
cuda.core keeps the old one in a cache; somebody must retain it again.
"""

import pytest

from tests.standin.helpers import run_child

pytestmark = pytest.mark.standin

PROLOGUE = """
import threading
import numpy as np
from tests import standin
standin.load()
from cuda.bindings import driver as cu
from numba import cuda
import stridedview
from tests.launching import HIT, calls_of, pointer_of, producer, recorded
from tests.standin.helpers import good, words_of
stridedview.enable()

@cuda.jit
def take(a):
    pass

def vector(size=4):
    return cuda.to_device(np.zeros(size, np.float32))

def current():
    return int(good(cu.cuCtxGetCurrent()) or 0)

def context_id():
    return good(cu.cuCtxGetId(good(cu.cuCtxGetCurrent())))
"""


def run(body, devices=1):
    """Run a body after the prologue in a child; it fails if an assertion there does."""
    child = run_child(PROLOGUE + body + "\nprint('done')\n", devices)
    assert child.stdout.split() == ["done"], child.stderr[-3000:]


RESETS = {
    "closed": "cuda.close(); good(cu.cuDevicePrimaryCtxRetain(0))",
    "reset by another library": (
        "good(cu.cuDevicePrimaryCtxReset(0)); good(cu.cuDevicePrimaryCtxRetain(0))"
    ),
}
LAUNCHES = {"array": "vector()", "number": "7", "tuple": "(vector(), 3)"}


@pytest.mark.parametrize("argument", LAUNCHES)
@pytest.mark.parametrize("reset", RESETS)
def test_launch_when_the_context_was_reset_then_its_functions_are_not_used(reset, argument):
    run(
        f"""
before = recorded(take, ({LAUNCHES[argument]},))
configuration = take[1, 1]
stale = configuration.last_plan
assert stale.function_handle == before.handle
{RESETS[reset]}
cuda.current_context()
value = {LAUNCHES[argument]}
after = recorded(take, (value,))
assert after.context_id == context_id() != before.context_id
assert after.handle != before.handle
assert configuration.last_plan is not stale
assert configuration.last_plan.function_handle == after.handle
assert take[1, 1] is configuration
standin.reset_calls()
take[1, 1](value)
assert standin.calls() == HIT
"""
    )


def test_launch_when_numbas_context_was_emptied_then_the_kernel_is_loaded_again():
    # Numba keeps the function of a module that it has unloaded, and fails.
    run(
        """
before = recorded(take, (vector(),))
cuda.current_context().reset()
array = vector()
after = recorded(take, (array,))
assert after.words == words_of(array)
stridedview.disable()
try:
    take[1, 1](array)
except ReferenceError as error:
    raise AssertionError("left as it was") from error
"""
    )


def test_events_when_the_context_was_reset_then_none_of_the_old_is_used():
    run(
        """
producers = standin.producers()
side = cuda.stream()
made = producer(vector())
producers.set_work_stream(int(side.handle))
take[1, 1, cuda.default_stream()](made)
assert len(standin.orderings()) == 1
cuda.close()
good(cu.cuDevicePrimaryCtxRetain(0))
cuda.current_context()
side = cuda.stream()
producers.set_work_stream(int(side.handle))
made = producer(vector())
standin.clear()
take[1, 1, cuda.default_stream()](made)
take[1, 1, cuda.default_stream()](made)
assert len(standin.orderings()) == 2
"""
    )


def test_launch_when_another_thread_has_no_context_then_it_is_launched_there():
    run(
        """
array = vector()
take[1, 1](array)
found = []
def work():
    assert current() == 0
    found.append(recorded(take, (array,)))
    found.append(current())
for _ in range(2):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
assert len(found) == 4
assert found[0].words == found[2].words == words_of(array)
"""
    )


TWO = """
for device in (0, 1):
    cuda.select_device(device)
    cuda.to_device(np.zeros(1))
cuda.select_device(1)
second = vector()
cuda.select_device(0)
first = vector()
before = current()
"""


def test_launch_when_the_device_is_not_current_then_the_current_one_is_put_back():
    run(
        TWO
        + """
for _ in range(3):
    record = recorded(take, (second,))
    assert (record.device, record.words) == (1, words_of(second))
    assert current() == before
configuration = take[1, 1]
assert calls_of(lambda: configuration(second)) == {
    "cuCtxGetId": 2, "cuCtxPushCurrent_v2": 1, "cuCtxPopCurrent_v2": 1, "cuLaunchKernel": 1}
standin.fail_next("cuLaunchKernel", 700)
try:
    configuration(second)
except RuntimeError:
    pass
else:
    raise AssertionError("no error")
assert current() == before
record = recorded(take, (first,))
assert (record.device, record.words) == (0, words_of(first))
""",
        devices=2,
    )


def test_launch_when_the_device_is_not_current_then_every_producer_is_launched_there():
    run(
        TWO
        + """
from tests.launching import PRODUCERS
for name, make in PRODUCERS.items():
    if not name.startswith(("torch", "parameter", "view of", "exchange", "DLPack")):
        record = recorded(take, (make(second),))
        assert (record.device, record.words) == (1, words_of(second)), name
for kind in ("Producer", "Plain", "OnlyExchange"):
    record = recorded(take, (producer(second, kind, device_id=1),))
    assert (record.device, record.words) == (1, words_of(second)), kind
assert current() == before
""",
        devices=2,
    )


def test_launch_when_the_device_is_not_current_then_the_slow_way_is_there_too():
    run(
        TWO
        + """
import warnings
@cuda.jit
def both(a, b):
    pass
host = np.arange(4, dtype=np.float32)
seen = []
standin.on_launch(lambda launch: standin.write(launch.words[11], b"\\1" * 16))
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    both[1, 1](second, host)
standin.on_launch(None)
record = standin.launches()[-1]
assert (record.device, record.words[:7]) == (1, words_of(second))
assert host.tobytes() == b"\\1" * 16
assert current() == before
""",
        devices=2,
    )


def test_launch_when_a_thread_has_no_context_then_the_arrays_device_is_taken():
    run(
        TWO
        + """
take[1, 1](second)
found = []
def work():
    found.append(recorded(take, (second,)).device)
    found.append(current())
thread = threading.Thread(target=work)
thread.start()
thread.join()
assert found[0] == 1
""",
        devices=2,
    )


ALTERNATING = """
take[1, 1](first)
take[1, 1](second)
for array in (first, second, first, second):
    counts = calls_of(lambda: take[1, 1](array))
    assert counts["cuLaunchKernel"] == 1
    assert counts.get("cuKernelGetParamInfo", 0) == 0, "a plan was made anew"
"""


def test_launch_when_devices_alternate_then_plans_are_hit():
    run(TWO + ALTERNATING, devices=2)


ONCE = """
stridedview.reset_stats()
standin.reset_calls()
for array in (first, second, first, second, first):
    take[1, 1](array)
loads = {name: n for name, n in standin.calls().items() if "Load" in name and n}
# One library serves both; the driver loads it into each context where it is first used.
assert loads == {"cuLibraryLoadData": 1}, loads
counted = stridedview.stats()
assert (counted["compiles"], counted["misses"]) == (1, 2), counted
assert len(take.overloads) == 1
"""


def test_launch_when_devices_alternate_then_it_is_compiled_and_loaded_once():
    run(TWO + ONCE, devices=2)


def test_launch_when_devices_alternate_and_are_selected_then_plans_are_hit():
    run(
        TWO
        + """
for array, device in 2 * [(first, 0), (second, 1)]:
    cuda.select_device(device)
    take[1, 1](array)
for array, device in 2 * [(first, 0), (second, 1)]:
    cuda.select_device(device)
    counts = calls_of(lambda: take[1, 1](array))
    assert counts["cuLaunchKernel"] == 1
    assert counts.get("cuKernelGetParamInfo", 0) == 0, "a plan was made anew"
    assert standin.launches()[-1].device == device
for value, device in 2 * [(7, 0), (8, 1)]:
    cuda.select_device(device)
    assert recorded(take, (value,)).device == device
""",
        devices=2,
    )


def test_launch_when_arrays_are_on_two_devices_then_it_is_refused_naming_both():
    run(
        TWO
        + """
@cuda.jit
def both(a, b):
    pass
both[1, 1](first, first)
for args, number in (((first, second), 2), ((second, first), 2)):
    standin.reset_calls()
    try:
        both[1, 1](*args)
    except ValueError as error:
        assert f"argument {number} 'b'" in str(error), error
        assert "device 0" in str(error) and "device 1" in str(error), error
    else:
        raise AssertionError("no error")
    assert "cuLaunchKernel" not in standin.calls()
try:
    take[1, 1]((first, (second,)))
except ValueError as error:
    assert "argument 1" in str(error) and "device 1" in str(error), error
else:
    raise AssertionError("no error")
both[1, 1](first, first)
""",
        devices=2,
    )


def test_module_when_loaded_on_another_device_or_again_then_its_callback_runs_each_time():
    # Numba itself calls it after a fresh compile only, and then never for this module.
    run(
        """
log = []
code = cuda.CUSource("", setup_callback=lambda module: log.append(current()))
kernel = cuda.jit(link=[code])(take.py_func)
contexts = []
for device in (0, 1, 0, 1):
    cuda.select_device(device)
    contexts.append(current())
    for _ in range(2):
        kernel[1, 1](7)
assert log == contexts[:2], (log, contexts)
cuda.current_context().reset()
kernel[1, 1](7)
kernel[1, 1](7)
assert log == [*contexts[:2], contexts[1]], (log, contexts)
""",
        devices=2,
    )


def test_carveout_when_loaded_on_another_device_or_again_then_it_is_set_before_the_launch():
    run(
        """
kernel = cuda.jit(shared_memory_carveout="MaxShared")(take.py_func)
for turn, device in enumerate((0, 1, 0, 1)):
    cuda.select_device(device)
    with standin.traced() as names:
        kernel[1, 1](7)
    if turn < 2:
        assert names.index("cuKernelSetAttribute") < names.index("cuKernelGetFunction")
    else:
        assert "cuKernelSetAttribute" not in names
with standin.traced() as names:
    kernel[2, 1](7)
assert "cuKernelSetAttribute" not in names
""",
        devices=2,
    )
