"""Every feature of numba-cuda's launches, unpatched and through us: the same happens.

Each scenario runs twice on kernels of its own, and what the driver recorded, what Numba
told and what was called back must be equal.
"""

import concurrent.futures
import pickle
import threading
import warnings

import numpy as np
import pytest
from cuda.core._utils.cuda_utils import CUDAError
from numba import cuda, float32, float64, int32, types
from numba.cuda.core.errors import NumbaPerformanceWarning

import stridedview
from tests import standin
from tests.launching import sensitive_kernels

pytestmark = pytest.mark.standin


def take_one(a):
    pass


def take_two(a, b):
    pass


def write(a, b):
    a[0] = b


@cuda.jit
def at_top_level(a, b):
    a[0] = b


ARRAYS = {}  # and a stream: what must be the same object in both runs


def array(dtype=np.float32, size=4):
    """Return a device array, the same in both runs, so that pointers are equal."""
    key = np.dtype(dtype).str, size
    if key not in ARRAYS:
        ARRAYS[key] = cuda.to_device(np.zeros(size, dtype))
    return ARRAYS[key]


def facts(record):
    """Return what a launch asked of the driver, but for the handle and the call."""
    names = ("grid", "block", "shared", "stream", "attributes", "parameters", "device")
    return {name: getattr(record, name) for name in names}


def recorded(launch):
    """Return the facts of every launch that a call leads to."""
    standin.clear()
    launch()
    return [facts(record) for record in standin.launches()]


def raised(launch):
    """Return (class, message) of what a call raises."""
    try:
        launch()
    except Exception as error:  # noqa: BLE001
        return type(error), str(error)
    return None


# ---- overloads ----


def several_overloads():
    kernel = cuda.jit(write)
    values = [(array(), 1), (array(np.int16), 2), (array(), 2.5), (array(), np.int8(3))]
    found = recorded(lambda: [kernel[1, 1](*pair) for pair in values + values[::-1]])
    return found, list(kernel.overloads)


def casts():
    kernel = cuda.jit([(float32[:], float64), (float32[:], int32)])(write)
    kernel.disable_compile()
    values = (1, np.int16(2), np.float32(2.5), 2.5)
    return [recorded(lambda value=value: kernel[1, 1](array(), value)) for value in values]


def ambiguous_casts():
    kernel = cuda.jit([(float32[:], float64), (float32[:], int32)])(write)
    kernel.disable_compile()
    found = [raised(lambda n=n: kernel[1, 1](array(), n)) for n in (True, np.uint8(3))]
    return [(kind, "Ambiguous overloading" in text) for kind, text in found]


def specialized():
    kernel = cuda.jit(write).specialize(array(), 1)
    return recorded(lambda: [kernel[2, 3](array(), value) for value in (1, 2)])


def for_all():
    kernel = cuda.jit(write)
    found = recorded(lambda: [kernel.forall(n)(array(), n) for n in (1, 1000, 7)])
    return found, recorded(lambda: kernel.forall(10, tpb=3, sharedmem=64)(array(), 1))


def recompiled():
    kernel = cuda.jit(write)
    kernel[1, 1](array(), 1)
    before = list(kernel.overloads.values())
    kernel.recompile()
    found = recorded(lambda: kernel[1, 1](array(), 2))
    return found, [new is old for new, old in zip(kernel.overloads.values(), before)]  # noqa: B905


def compiling_switched_off():
    kernel = cuda.jit(write)
    kernel[1, 1](array(), 1)
    kernel.disable_compile()
    found = recorded(lambda: kernel[1, 1](array(), 2))
    kernel.disable_compile(False)
    return found, recorded(lambda: kernel[1, 1](array(np.int8), 2))


# ---- host arrays and hints ----


def hints():
    """Copies in and back, by what the kernel sees and what is left."""
    kernel, found = cuda.jit(take_one), []
    for hint in (cuda.In, cuda.Out, cuda.InOut, lambda host: host):
        host = np.arange(4, dtype=np.float32)
        seen = []

        def body(launch, seen=seen):
            seen.append(standin.read(launch.words[4], 16))
            standin.write(launch.words[4], np.full(4, 7, np.float32).tobytes())

        standin.on_launch(body)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always", NumbaPerformanceWarning)
            kernel[1, 1](hint(host))
        standin.on_launch(None)
        # What `Out` hands in is whatever memory held.
        values = None if hint is cuda.Out else seen
        found.append((values, host.tolist(), [str(each.message) for each in told]))
    return found


# ---- what is called around a launch ----


class Doubling:
    """An extension that passes twice each number, and notes what it was given."""

    def __init__(self):
        self.seen = []

    def prepare_args(self, ty, val, stream, retr):
        self.seen.append((str(ty), type(val).__name__))
        retr.append(lambda: self.seen.append("after"))
        return ty, val * 2 if isinstance(val, int) else val


def extensions():
    extension = Doubling()
    kernel = cuda.jit(extensions=[extension])(write)
    return recorded(lambda: [kernel[1, 1](array(), n) for n in (1, 2)]), extension.seen


def callbacks():
    kernel, seen = cuda.jit(write), []
    configuration = kernel[1, 1]
    configuration.pre_launch_callbacks += [
        lambda made, found: seen.append((made.argument_types, found is configuration)),
        lambda _, found: seen.append([found.args[1], len(standin.launches())]),
    ]
    found = recorded(lambda: [configuration(array(), n) for n in (1, 2)])
    configuration.pre_launch_callbacks.append(lambda *_: 1 / 0)
    failed = raised(lambda: configuration(array(), 3)), configuration.args
    configuration.pre_launch_callbacks.clear()
    return found, seen, failed, recorded(lambda: configuration(array(), 4))


# ---- kinds of kernels ----


def cooperative():
    @cuda.jit
    def together(a):
        cuda.cg.this_grid().sync()

    return recorded(lambda: [together[n, 32](array()) for n in (1, 2)])


def debug():
    kernel = cuda.jit(debug=True, opt=False)(write)
    return recorded(lambda: [kernel[1, 1](array(), n) for n in (1, 2)])


def sensitive():
    found = []
    with sensitive_kernels():

        @cuda.jit
        def sensitive(a):
            pass

        for block in (32, 64, 32):
            found += recorded(lambda block=block: sensitive[1, block](array()))
    return found, len(sensitive._launch_config_specializations)


def method():
    class Owner:
        kernel = cuda.jit(write)

    bound = raised(lambda: Owner().kernel[1, 1](array(), 1))
    return bound, recorded(lambda: [Owner.kernel[1, 1](array(), n) for n in (1, 2)])


def pickled():
    at_top_level[1, 1](array(), 1)
    kernel = pickle.loads(pickle.dumps(at_top_level))
    configuration = pickle.loads(pickle.dumps(at_top_level[(2, 3), 5, 0, 16]))
    return recorded(lambda: [kernel[1, 1](array(), 2), configuration(array(), 3)])


def shared_memory():
    kernel = cuda.jit(write)
    return recorded(lambda: [kernel[1, 1, 0, size](array(), 1) for size in (0, 16, 49152)])


def carveout():
    names, found = [], []
    for value in ("MaxShared", "MaxL1", 50):
        kernel = cuda.jit(shared_memory_carveout=value)(write)
        with standin.traced() as called:
            found += recorded(lambda kernel=kernel: kernel[1, 1](array(), 1))
        # Once for each compiled kernel at least, before it is launched.
        names.append("cuKernelSetAttribute" in called)
    return names, found


def launch_bounds():
    kernel = cuda.jit("void(float32[:], int64)", launch_bounds=64)(write)
    found = recorded(lambda: kernel[1, 64](array(), 1))
    failed = raised(lambda: kernel[1, 65](array(), 1))
    return found, issubclass(failed[0], CUDAError), "INVALID_VALUE" in failed[1]


def line_information():
    kernel = cuda.jit(lineinfo=True)(write)
    found = recorded(lambda: [kernel[1, 1](array(), n) for n in (1, 2)])
    (signature,) = kernel.overloads
    asm = kernel.inspect_asm(signature)
    return (
        found,
        ".loc" in asm,
        asm.count(".entry"),
        "define" in kernel.inspect_llvm(signature),
        list(kernel.get_regs_per_thread().values()),
        kernel.overloads[signature].max_cooperative_grid_blocks(32),
    )


def threads():
    kernel = cuda.jit(write)
    configuration, ready = kernel[1, 1], threading.Barrier(8)
    array()

    def work(number):
        ready.wait()
        for turn in range(20):
            configuration(array(), number if turn % 2 else number + 0.5)

    def launch():
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            list(pool.map(work, range(8)))

    return sorted(found["parameters"] for found in recorded(launch)), len(kernel.overloads)


def streams():
    kernel, found = cuda.jit(write), []
    stream = ARRAYS.setdefault("stream", cuda.stream())
    for given in (0, stream, cuda.default_stream(), cuda.legacy_default_stream()):
        found += recorded(lambda given=given: kernel[1, 1, given](array(), 1))
    return found


def wrong_configurations():
    kernel = cuda.jit(write)
    return [
        raised(lambda key=key: kernel[key])
        for key in ((1,), (1, 1, 0, 0, 0), ((1, 1, 1, 1), 1), (1, ()), (1, "x"))
    ]


def unconfigured():
    return raised(lambda: cuda.jit(write)(1, 2))


SCENARIOS = [
    several_overloads, casts, ambiguous_casts, specialized, for_all, recompiled,
    compiling_switched_off, hints, extensions, callbacks, cooperative, debug, sensitive,
    method, pickled, shared_memory, carveout, launch_bounds, line_information, threads,
    streams, wrong_configurations, unconfigured,
]  # fmt: skip


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_feature_when_used_through_us_then_it_is_as_in_numba(driver, scenario):
    ARRAYS.clear()
    theirs = scenario()
    assert theirs
    with stridedview.enabled():
        ours = scenario()
    assert ours == theirs


def test_types_when_a_kernel_is_compiled_by_us_then_they_are_the_types_of_numba(driver):
    values = (array(), 1, 2.5, (1, array()), np.int8(1), True)
    kernels = []
    for ours in (False, True):
        kernels.append(cuda.jit(take_one))
        for value in values:
            if ours:
                with stridedview.enabled():
                    kernels[-1][1, 1](value)
            else:
                kernels[-1][1, 1](value)
    assert list(kernels[0].overloads) == list(kernels[1].overloads)
    assert all(isinstance(each[0], types.Type) for each in kernels[1].overloads)
