"""Small scenarios of driver calls, to compare the stand-in with hardware.

Runs on whatever ``libcuda.so.1`` the process finds, with ctypes and nothing else, so that
it also runs on a bare GPU machine: ``python tests/standin/conformance.py IMAGE KERNEL``
prints
one JSON object, scenario -> what each step gave. ``hardware.json`` keeps what a GPU said,
and a test holds the stand-in to it.

IMAGE is a cubin (on a GPU also PTX) whose KERNEL takes (int32, float64) and does nothing.
"""

import ctypes
import json
import sys
import threading
from ctypes import byref, c_int, c_size_t, c_uint, c_ulonglong, c_void_p

GLOBAL, THREAD_LOCAL, RELAXED = 0, 1, 2
MODES = {"global": GLOBAL, "thread_local": THREAD_LOCAL, "relaxed": RELAXED}
SCENARIOS = {}


class Driver:
    """The driver with the calls that scenarios need; handles are ints."""

    def __init__(self, image: bytes, name: str):
        self.name = name.encode()
        self.cu = ctypes.CDLL("libcuda.so.1")
        assert self.cu.cuInit(0) == 0
        self.image = ctypes.create_string_buffer(image, len(image) + 1)
        self.context = self.out("cuDevicePrimaryCtxRetain", c_void_p, 0)
        self("cuCtxSetCurrent", self.context)
        self.library, self.kernel = self.load()

    def __call__(self, name, *arguments) -> int:
        wide = [
            c_void_p(value) if isinstance(value, int) and abs(value) > 0xFFFF else value
            for value in arguments
        ]
        return getattr(self.cu, name)(*wide)

    def out(self, name, kind, *arguments):
        """Return what a call stores through its first argument."""
        value = kind()
        assert self(name, byref(value), *arguments) == 0, name
        return value.value

    def context_id(self):
        value = c_ulonglong()
        return [self("cuCtxGetId", self.context, byref(value)), value.value]

    def load(self):
        library = self.out(
            "cuLibraryLoadData", c_void_p, self.image, None, None, 0, None, None, 0
        )
        return library, self.out("cuLibraryGetKernel", c_void_p, library, self.name)

    def stream(self, flags=1):
        return self.out("cuStreamCreate", c_void_p, flags)

    def event(self):
        return self.out("cuEventCreate", c_void_p, 2)

    def function(self):
        return self.out("cuKernelGetFunction", c_void_p, self.kernel)

    def launch(self, function, stream=None, shared=0) -> int:
        i, x = c_int(1), ctypes.c_double(2)
        pointers = (c_void_p * 2)(ctypes.addressof(i), ctypes.addressof(x))
        return self(
            "cuLaunchKernel", function, *[1] * 6, shared, stream, byref(pointers), None
        )

    def packed(self, function, size) -> int:
        data, count = ctypes.create_string_buffer(64), c_size_t(size)
        extra = (c_void_p * 5)(1, ctypes.addressof(data), 2, ctypes.addressof(count), None)
        return self("cuLaunchKernel", function, *[1] * 6, 0, None, None, byref(extra))

    def status(self, stream):
        value = c_int(-1)
        return self("cuStreamIsCapturing", stream, byref(value)), value.value

    def begin(self, stream, mode=GLOBAL) -> int:
        return self("cuStreamBeginCapture_v2", stream, mode)

    def end(self, stream) -> int:
        return self("cuStreamEndCapture", stream, byref(c_void_p()))

    def elsewhere(self, work):
        """Run work in another thread that has the context current."""
        answers = []

        def body():
            self("cuCtxSetCurrent", self.context)
            answers.append(work())

        thread = threading.Thread(target=body)
        thread.start()
        thread.join()
        return answers[0]


def scenario(function):
    SCENARIOS[function.__name__] = function
    return function


# ---- launches ----


@scenario
def launch_packed_sizes(d):
    f = d.function()
    return [d.packed(f, size) for size in (16, 17, 24, 15, 8, 0)]


@scenario
def launch_shared_memory(d):
    f = d.function()
    steps = [
        d.launch(f, shared=49152),
        d.launch(f, shared=49153),
        d("cuFuncSetAttribute", f, 8, 100000),
    ]
    steps += [d.launch(f, shared=100000), d.launch(f, shared=100001)]
    steps += [d("cuKernelSetAttribute", 8, 49152, d.kernel, 0), d.launch(f, shared=100000)]
    return [*steps, d("cuFuncSetAttribute", f, 8, 300000)]


@scenario
def launch_without_pointers(d):
    return [d("cuLaunchKernel", d.function(), *[1] * 6, 0, None, None, None)]


@scenario
def launch_in_another_context(d):
    f, stream, event, made = d.function(), d.stream(), d.event(), c_void_p()
    steps = [
        d("cuCtxCreate_v2", byref(made), 0, 0),
        d.launch(f),
        d.launch(d.kernel),
        d.launch(d.kernel, stream),
    ]
    steps += [d("cuEventRecord", event, stream), d("cuEventRecord", event, None)]
    steps += [
        d("cuStreamWaitEvent", None, event, 0),
        d("cuCtxDestroy_v2", made.value),
        d.launch(f),
    ]
    return steps


# ---- memory ----


@scenario
def memory_errors(d):
    host = ctypes.create_string_buffer(64)
    pointer = d.out("cuMemAlloc_v2", c_void_p, c_size_t(512))
    steps = [
        d(
            "cuMemGetAddressRange_v2",
            byref(c_void_p()),
            byref(c_size_t()),
            ctypes.addressof(host),
        )
    ]
    return [
        *steps,
        d("cuMemFree_v2", c_void_p(pointer + 8)),
        d("cuMemcpyHtoD_v2", c_void_p(16), host, c_size_t(8)),
    ]


@scenario
def pointer_attributes_of_host_memory(d):
    host, kinds, kind, ordinal = (
        ctypes.create_string_buffer(64),
        (c_int * 2)(2, 9),
        c_int(5),
        c_int(5),
    )
    data = (c_void_p * 2)(ctypes.addressof(kind), ctypes.addressof(ordinal))
    return [
        d("cuPointerGetAttributes", 2, kinds, data, ctypes.addressof(host)),
        kind.value,
        ordinal.value,
    ]


# ---- capture ----

UNSAFE = {
    "alloc": lambda d: d("cuMemAlloc_v2", byref(c_void_p()), c_size_t(512)),
    "host_alloc": lambda d: d("cuMemHostAlloc", byref(c_void_p()), c_size_t(64), 0),
    "event_create": lambda d: d("cuEventCreate", byref(c_void_p()), 2),
    "event_destroy": lambda d: d("cuEventDestroy_v2", d.spare_events.pop()),
    "event_query": lambda d: d("cuEventQuery", d.spare_event),
    "event_synchronize": lambda d: d("cuEventSynchronize", d.spare_event),
    "stream_create": lambda d: d("cuStreamCreate", byref(c_void_p()), 1),
    "stream_query": lambda d: d("cuStreamQuery", d.spare_stream),
    "stream_synchronize": lambda d: d("cuStreamSynchronize", d.spare_stream),
    "context_synchronize": lambda d: d("cuCtxSynchronize"),
    "library_load": lambda d: d(
        "cuLibraryLoadData", byref(c_void_p()), d.image, None, None, 0, None, None, 0
    ),
    "function_attribute": lambda d: d("cuFuncSetAttribute", d.function(), 9, 50),
    "copy": lambda d: d(
        "cuMemcpyHtoD_v2",
        c_void_p(d.spare_memory),
        ctypes.create_string_buffer(8),
        c_size_t(8),
    ),
    "set": lambda d: d("cuMemsetD8_v2", c_void_p(d.spare_memory), 1, c_size_t(8)),
    "free_of_nothing": lambda d: d("cuMemFree_v2", c_void_p(0)),
    "legacy_launch": lambda d: d.launch(d.function()),
    "legacy_copy_async": lambda d: d(
        "cuMemcpyHtoDAsync_v2",
        c_void_p(d.spare_memory),
        ctypes.create_string_buffer(8),
        c_size_t(8),
        None,
    ),
}


def _prepare(d):
    d.spare_events, d.spare_event, d.spare_stream = (
        [d.event() for _ in range(64)],
        d.event(),
        d.stream(),
    )
    d.spare_memory = d.out("cuMemAlloc_v2", c_void_p, c_size_t(512))
    d("cuEventRecord", d.spare_event, d.spare_stream)
    d.launch(d.function())
    d("cuCtxSynchronize")


def _unsafe(d, name, flags, elsewhere):
    _prepare(d)
    steps = {}
    for mode, number in MODES.items():
        stream = d.stream(flags)
        began = d.begin(stream, number)
        code = d.elsewhere(lambda: UNSAFE[name](d)) if elsewhere else UNSAFE[name](d)
        after = d.status(stream)
        steps[mode] = [began, code, *after, d.end(stream)]
        d("cuStreamDestroy_v2", stream)
    return steps


for _name in UNSAFE:
    for _flags, _kind in ((1, "non_blocking"), (0, "blocking")):
        for _where in (False, True):
            SCENARIOS[f"capture_{_kind}_{_name}{'_elsewhere' if _where else ''}"] = (
                lambda d, name=_name, flags=_flags, where=_where: _unsafe(
                    d, name, flags, where
                )
            )


@scenario
def capture_waits_outside(d):
    stream, other, event = d.stream(), d.stream(), d.event()
    d("cuEventRecord", event, other)
    d.begin(stream)
    return [
        d("cuStreamWaitEvent", stream, event, 0),
        d.status(stream),
        d.launch(d.function(), stream),
        d.end(stream),
    ]


@scenario
def capture_waits_for_an_event_never_recorded(d):
    stream, event = d.stream(), d.event()
    d.begin(stream)
    return [d("cuStreamWaitEvent", stream, event, 0), d.status(stream), d.end(stream)]


def _forked(d, mode=GLOBAL):
    """Return a capturing stream, one drawn in that has a launch, and the event between."""
    stream, other, fork = d.stream(), d.stream(), d.event()
    d.begin(stream, mode)
    d("cuEventRecord", fork, stream)
    d("cuStreamWaitEvent", other, fork, 0)
    d.launch(d.function(), other)
    return stream, other, fork


@scenario
def capture_forked_and_joined(d):
    join = d.event()
    stream, other, fork = _forked(d)
    d("cuEventRecord", join, other)
    steps = [
        d.status(other),
        d("cuStreamWaitEvent", stream, join, 0),
        d.end(stream),
        d("cuEventQuery", fork),
    ]
    return [*steps, d("cuStreamWaitEvent", other, fork, 0), d("cuEventSynchronize", fork)]


@scenario
def capture_event_queried(d):
    stream, event = d.stream(), d.event()
    d.begin(stream, RELAXED)
    d.launch(d.function(), stream)
    d("cuEventRecord", event, stream)
    return [d("cuEventQuery", event), d.status(stream), d.end(stream)]


@scenario
def capture_not_joined(d):
    stream, other, _ = _forked(d)
    return [d.end(other), d.status(stream), d.end(stream), d.status(other)]


@scenario
def capture_left_unjoined(d):
    stream, other, _ = _forked(d)
    return [d.end(stream), d.status(other)]


@scenario
def capture_drawn_onto_legacy(d):
    stream, fork = d.stream(), d.event()
    d.begin(stream)
    steps = [d("cuEventRecord", fork, stream), d("cuStreamWaitEvent", None, fork, 0)]
    return [*steps, d.status(stream), d.end(stream)]


@scenario
def capture_merged(d):
    first, second, event = d.stream(), d.stream(), d.event()
    d.begin(first)
    d.begin(second)
    d.launch(d.function(), first)
    d("cuEventRecord", event, first)
    steps = [d("cuStreamWaitEvent", second, event, 0), d.status(first), d.status(second)]
    return [*steps, d.end(first), d.end(second)]


@scenario
def capture_ended_wrongly(d):
    stream, steps = d.stream(), [d.begin(None), d.end(None)]
    steps += [d.end(stream), d.begin(stream), d.begin(stream), d.status(stream)]
    steps += [d.elsewhere(lambda: d.end(stream)), d.status(stream), d.end(stream)]
    return [*steps, d.begin(2), d.status(2), d.end(2)]


@scenario
def capture_ended_elsewhere_when_relaxed(d):
    stream = d.stream()
    d.begin(stream, RELAXED)
    return [d.elsewhere(lambda: d.end(stream))]


@scenario
def capture_of_the_stream_itself(d):
    steps = []
    for call in ("cuStreamQuery", "cuStreamSynchronize"):
        stream = d.stream()
        d.begin(stream, RELAXED)
        steps += [d(call, stream), d.status(stream), d.end(stream)]
    stream = d.stream()
    d.begin(stream, RELAXED)
    return [*steps, d("cuStreamDestroy_v2", stream)]


@scenario
def capture_asked_of_legacy(d):
    steps = []
    for flags in (1, 0):
        for mode in MODES.values():
            stream = d.stream(flags)
            d.begin(stream, mode)
            steps.append([d.status(None)[0], *d.status(stream), d.end(stream)])
    return steps


# ---- contexts: last, since they break what came before ----


def _while_gone(d, function):
    """Return what calls give while the primary context is gone, but current."""
    current, active = c_void_p(), c_int()
    steps = [d("cuCtxGetCurrent", byref(current)), current.value == d.context]
    steps += [
        d("cuDevicePrimaryCtxGetState", 0, byref(c_uint()), byref(active)),
        active.value,
    ]
    steps += [
        d("cuCtxGetId", d.context, byref(c_ulonglong())),
        d("cuCtxGetDevice", byref(c_int())),
    ]
    steps += [
        d("cuMemGetInfo_v2", byref(c_size_t()), byref(c_size_t())),
        d.launch(function),
        d.launch(d.kernel),
    ]
    steps += [
        d("cuKernelGetFunction", byref(c_void_p()), d.kernel),
        d("cuCtxSynchronize"),
        d("cuStreamQuery", None),
    ]
    return [
        *steps,
        d("cuCtxSetCurrent", d.context),
        d("cuMemAlloc_v2", byref(c_void_p()), c_size_t(8)),
    ]


@scenario
def zz_context_released_and_retained(d):
    f, pointer, first = (
        d.function(),
        d.out("cuMemAlloc_v2", c_void_p, c_size_t(64)),
        d.context_id(),
    )
    steps = [d("cuDevicePrimaryCtxRelease_v2", 0), _while_gone(d, f)]
    steps += [
        d.out("cuDevicePrimaryCtxRetain", c_void_p, 0) == d.context,
        d.context_id() != first,
    ]
    return [*steps, d.launch(f), d.launch(d.kernel), d("cuMemFree_v2", c_void_p(pointer))]


@scenario
def zz_context_reset(d):
    f, first = d.function(), d.context_id()
    steps = [d("cuDevicePrimaryCtxReset_v2", 0), _while_gone(d, f), d.context_id()[0]]
    steps += [
        d("cuDevicePrimaryCtxRelease_v2", 0),
        d.out("cuDevicePrimaryCtxRetain", c_void_p, 0) == d.context,
    ]
    return [*steps, d.context_id() != first, d.launch(f), d.launch(d.function())]


def _renewed(d):
    d("cuDevicePrimaryCtxRelease_v2", 0)
    d.out("cuDevicePrimaryCtxRetain", c_void_p, 0)


@scenario
def stale_stream(d):
    stream = d.stream()
    _renewed(d)
    return [d("cuStreamQuery", stream)]


@scenario
def stale_event(d):
    event = d.event()
    _renewed(d)
    return [d("cuEventQuery", event)]


@scenario
def zzz_without_a_context(d):
    f, popped = d.function(), []
    while d.out("cuCtxGetCurrent", c_void_p):
        popped.append(d.out("cuCtxPopCurrent_v2", c_void_p))
    steps = [
        d.launch(f),
        d.launch(d.kernel),
        d("cuCtxPopCurrent_v2", byref(c_void_p())),
        d("cuCtxSynchronize"),
    ]
    steps += [
        d("cuStreamIsCapturing", None, byref(c_int())),
        d("cuKernelGetFunction", byref(c_void_p()), d.kernel),
    ]
    for context in reversed(popped):
        d("cuCtxPushCurrent_v2", context)
    return steps


def run(image: bytes, name: str, only=None) -> dict:
    """Return what every scenario (or those of `only`) gave on the process's driver."""
    driver = Driver(image, name)
    chosen = sorted(SCENARIOS if only is None else SCENARIOS.keys() & set(only))
    return json.loads(
        json.dumps(
            {scenario_name: SCENARIOS[scenario_name](driver) for scenario_name in chosen}
        )
    )


if __name__ == "__main__":
    path, kernel_name = sys.argv[1:3]
    with open(path, "rb") as file:
        print(json.dumps(run(file.read(), kernel_name), indent=1))
