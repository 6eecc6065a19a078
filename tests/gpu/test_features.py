"""numba-cuda's features and our refusals on a GPU: values are right, contexts live on."""

import json
import os
import pickle
import subprocess
import sys
import textwrap
import threading
import warnings

import numpy as np
import pytest

import stridedview as sv
from stridedview import _driver

pytestmark = pytest.mark.gpu
torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

cuda = pytest.importorskip("numba.cuda")


@pytest.fixture(autouse=True)
def enabled():
    with sv.enabled():
        yield


def scale_by(x, factor):
    i = cuda.grid(1)
    if i < x.size:
        x[i] *= factor


@cuda.jit
def pickled_scale(x, factor):
    i = cuda.grid(1)
    if i < x.size:
        x[i] *= factor


@pytest.fixture
def scale():
    """Give a kernel without overloads that multiplies an array."""
    return cuda.jit(scale_by)


class Foreign:
    """An object with the CUDA array interface over a tensor's memory."""

    def __init__(self, tensor, offset=0, **more):
        self.tensor = tensor
        whole = tensor.__cuda_array_interface__
        data = (whole["data"][0] + offset, more.pop("readonly", False))
        self.__cuda_array_interface__ = {**whole, "data": data, "version": 3, **more}


def on_gpu(values, dtype=None):
    return torch.tensor(values, dtype=dtype, device="cuda")


# ---- refusals: the context lives on ----


@cuda.jit("void(float32[::1], int8)")
def signed(x, factor):
    x[0] = factor


def freed():
    x = torch.zeros(1000, device="cuda")
    part = x[500:]
    x.untyped_storage().resize_(0)
    return part


REFUSED = {
    "read-only": lambda k, x: k[1, 32](Foreign(x, readonly=True), 2),
    "misaligned": lambda k, x: k[1, 32](Foreign(x, offset=2), 2),
    "freed": lambda k, x: k[1, 32](freed(), 2),
    "conj": lambda k, x: k[1, 32](x.to(torch.complex64).conj(), 2),
    "dtype": lambda k, x: k[1, 32](x.view(torch.uint8).view(torch.bits8), 2),
    "too few": lambda k, x: k[1, 32](x),
    "None": lambda k, x: k[1, 32](None, 2),
    "beyond 64 bits": lambda k, x: k[1, 32](x, 2**64),
    "beyond int8": lambda k, x: signed[1, 1](x, 300),
    "another dtype": lambda k, x: signed[1, 1](x.double(), 3),
    "strided": lambda k, x: signed[1, 1](x[::2], 3),
    "no blocks": lambda k, x: k[0, 32](x, 2),
    "large block": lambda k, x: k[1, 2048](x, 2),
    "large grid": lambda k, x: k[(1, 70_000), 32](x, 2),
    "much shared memory": lambda k, x: k[1, 32, 0, 1 << 20](x, 2),
    "many parameters": lambda k, x: k[1, 32]((x,) * 700, 2),
    "bounds": lambda k, x: cuda.jit(launch_bounds=64)(scale_by)[1, 128](x, 2),
}
MESSAGES = {
    "read-only": "readonly",
    "misaligned": "not aligned",
    "freed": "freed or",
    "conj": "resolve_conj",
    "dtype": "bits8",
    "too few": "takes 2 arguments",
    "None": "cannot take None",
    "beyond 64 bits": "does not fit 64 bits",
    "beyond int8": "300 does not fit.*int8",
    "another dtype": "expected 1-d float32",
    "strided": "contiguous",
    "no blocks": "grid x is 0",
    "large block": "2048",
    "large grid": "70000",
    "much shared memory": "1048576",
    "many parameters": "limit is 32764",
    "bounds": "128 threads; this kernel's limit is 64",
}


@pytest.mark.parametrize("kind", REFUSED)
@pytest.mark.parametrize("warm", [False, True], ids=["first", "after a good launch"])
def test_refusal_when_raised_then_it_says_why_and_the_context_lives(scale, kind, warm):
    x = torch.ones(32, device="cuda")
    factor = 1
    if warm:
        scale[1, 32](x, 3)
        factor = 3
    with pytest.raises(Exception, match=MESSAGES[kind]):
        REFUSED[kind](scale, x)
    scale[1, 32](x, 2)
    torch.cuda.synchronize()
    assert torch.all(x == 2 * factor)


# ---- kinds of kernels and launches ----


def check(x, y):
    i = cuda.grid(1)
    if x[i] < 0:
        raise ValueError("negative")
    y[i] = x[i]


def test_debug_kernel_when_it_raises_then_message_thread_and_block_are_numbas():
    x = torch.ones(64, device="cuda")
    x[2 * 16 + 5] = -1
    numbas = cuda.as_cuda_array(x)
    y = cuda.device_array(64, np.float32)
    messages = []
    for ours in (False, True):
        kernel = cuda.jit(debug=True, opt=False)(check)
        if not ours:
            sv.disable()
        try:
            with pytest.raises(ValueError, match="negative") as raised:
                kernel[4, 16](x if ours else numbas, y)
        finally:
            sv.enable()
        messages.append(str(raised.value))
    assert messages[0] == messages[1]
    assert "tid=[0, 0, 5] ctaid=[0, 0, 2]" in messages[1]
    x.abs_()
    kernel[4, 16](x, y)
    assert np.array_equal(y.copy_to_host(), np.ones(64, np.float32))


def test_overloads_when_several_then_each_computes_its_own(scale):
    for dtype in (torch.float32, torch.int64, torch.float64, torch.int32):
        x = torch.full((10,), 3, device="cuda").to(dtype)
        for _ in range(2):
            scale[1, 32](x, 2)
        assert torch.all(x == 12)
    assert len(scale.overloads) == 4


def test_forall_and_specialize_when_launched_then_every_item_is_done(scale):
    x = torch.ones(100_001, device="cuda")
    for _ in range(3):
        scale.forall(x.numel())(x, 2)
    scale.specialize(x, 2)[400, 256](x, 2)
    assert torch.all(x == 16)


def test_callbacks_and_extensions_when_there_are_some_then_they_run(scale):
    class Doubling:
        def prepare_args(self, ty, val, **_):
            return ty, val * 2 if isinstance(val, int) else val

    x, seen = torch.ones(8, device="cuda"), []
    configuration = scale[1, 32]
    configuration.pre_launch_callbacks.append(lambda *found: seen.append(found[1].args))
    configuration(x, 2)
    assert seen[0][0] is x
    configuration.pre_launch_callbacks.clear()
    cuda.jit(extensions=[Doubling()])(scale_by)[1, 32](x, 3)
    assert torch.all(x == 12)


@pytest.mark.parametrize("hint", [cuda.In, cuda.Out, cuda.InOut], ids=str)
def test_hint_when_given_then_it_says_what_is_copied(scale, hint):
    host = np.ones(16, np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scale[1, 32](hint(host[::-2]), 2)
    if hint is cuda.InOut:
        assert host.tolist() == [1, 2] * 8
    elif hint is cuda.In:
        assert (host == 1).all()
    assert (host[::2] == 1).all()


VALUE = 1


def test_kernel_when_recompiled_then_no_launch_uses_the_old_one():
    global VALUE

    @cuda.jit
    def store(x):
        x[0] = VALUE

    x = torch.zeros(1, device="cuda")
    VALUE = 1
    store[1, 1](x)
    prepared = sv.prepare(store[1, 1], x)
    for value, off in ((2, False), (3, True)):
        VALUE = value
        if off:
            sv.disable()
        store.recompile()
        sv.enable()
        for launch in (prepared, lambda: store[1, 1](x)):
            x.zero_()
            launch()
            assert float(x) == value


def test_kernel_when_pickled_then_its_copy_computes_the_same():
    x = torch.ones(8, device="cuda")
    pickled_scale[1, 32](x, 2)
    pickle.loads(pickle.dumps(pickled_scale))[1, 32](x, 2)
    pickle.loads(pickle.dumps(pickled_scale[1, 32]))(x, 2)
    assert torch.all(x == 8)


def test_module_callback_when_given_then_it_has_run_before_the_first_launch():
    from cuda.bindings import driver as cu

    source = """
    __device__ int num = 0;
    extern "C" __device__ int get_num(int &retval) { retval = num; return 0; }
    """
    calls = []

    def setup(module):
        calls.append(module)
        code, address, size = cu.cuLibraryGetGlobal(
            cu.CUlibrary(int(module.handle)), b"num"
        )
        assert int(code) == 0
        value = np.array([42], np.int32)
        cu.cuMemcpyHtoD(address, value.ctypes.data, size)

    linked = cuda.CUSource(source, setup_callback=setup)
    get_num = cuda.declare_device("get_num", "int32()", link=[linked])

    @cuda.jit
    def read(x):
        x[0] = get_num()

    x = torch.zeros(1, device="cuda")
    for _ in range(2):
        read[1, 1](x)
    assert float(x) == 42
    assert len(calls) == 1


def test_carveout_when_asked_for_then_the_launched_function_has_it():
    kernel = cuda.jit(shared_memory_carveout="MaxShared")(scale_by)
    x = torch.ones(8, device="cuda")
    for _ in range(2):
        kernel[1, 32](x, 2)
    assert torch.all(x == 4)
    function = kernel[1, 32].last_plan.function_handle
    assert _driver.function_attribute(function, 9) == 100  # PREFERRED_SHARED_..._CARVEOUT


def test_configuration_when_shared_by_threads_then_each_gets_its_own_arguments(scale):
    configuration = scale[4, 64]
    tensors = [torch.ones(256, device="cuda") for _ in range(8)]
    views = [sv.from_any(tensor) for tensor in tensors]
    torch.cuda.synchronize()

    def work(index):
        for turn in range(50):
            configuration(tensors[index] if turn % 2 else views[index], -1)
        configuration(tensors[index], index)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.cuda.synchronize()
    assert [float(tensor.min()) for tensor in tensors] == list(range(8))
    assert [float(tensor.max()) for tensor in tensors] == list(range(8))


def test_producer_when_it_changes_its_dtype_then_each_launch_reads_what_is_there(scale):
    floats, doubles = torch.ones(8, device="cuda"), on_gpu([1.0] * 8, torch.float64)
    made = Foreign(floats)
    for tensor in (floats, doubles, floats, doubles):
        made.__cuda_array_interface__ = Foreign(tensor).__cuda_array_interface__
        scale[1, 32](made, 2)
    torch.cuda.synchronize()
    assert torch.all(floats == 4)
    assert torch.all(doubles == 4)


@pytest.mark.parametrize("count", [3, 20])
def test_arrays_when_each_names_its_stream_then_the_launch_is_behind_all(count):
    names = ", ".join(f"a{index}" for index in range(count))
    total = " + ".join(f"a{index}[0]" for index in range(count))
    scope = {}
    exec(f"def add(out, {names}):\n    out[0] = {total}\n", scope)
    add = cuda.jit(scope["add"])
    out = torch.zeros(1, device="cuda")
    sources = [torch.zeros(1, device="cuda") for _ in range(count)]
    streams = [torch.cuda.Stream() for _ in range(count)]
    torch.cuda.synchronize()
    for turn in (1, 2):
        made = []
        for source, stream in zip(sources, streams, strict=True):
            with torch.cuda.stream(stream):
                torch.cuda._sleep(20_000_000)
                source.fill_(turn)
            made.append(Foreign(source, stream=stream.cuda_stream))
        add[1, 1](out, *made)
        assert float(out) == turn * count


def test_explain_when_a_graph_is_captured_then_it_tells_and_the_graph_runs(scale):
    x = torch.ones(8, device="cuda")
    scale[1, 32](x, 1)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        told = sv.explain(scale[1, 32], x, 2).to_dict()["launch"]
        named = scale[1, 32, torch.cuda.current_stream()]
        refused = sv.explain(named, np.ones(3), 2).to_dict()["launch"]["refused"]
        scale[1, 32](x, 2)
    assert (told["capturing"], told["hit"], told["refused"]) == (True, True, "")
    assert told["stream"] != 0
    assert "host array cannot be copied" in refused
    for _ in range(3):
        graph.replay()
    assert torch.all(x == 8)


def test_prepared_launch_when_updated_then_the_new_argument_is_used(scale):
    x, y = torch.ones(8, device="cuda"), torch.ones(8, device="cuda")
    prepared = sv.prepare(scale[1, 32], x, 2)
    with sv.profile() as found:
        prepared()
        prepared.update(0, y)
        prepared()
        prepared.update(1, 5)
        prepared()
    assert torch.all(x == 2)
    assert torch.all(y == 10)
    (facts,) = json.loads(found.to_json())
    assert facts["launches"] == 3
    assert facts["microseconds"] > 0


# ---- several devices ----


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_devices_when_two_alternate_then_each_launch_is_on_its_arrays(scale):
    arrays = [torch.ones(8, device=f"cuda:{index}") for index in (0, 1)]
    for _ in range(3):
        for array in arrays:
            scale[1, 32](array, 2)
            assert sv.explain(scale[1, 32], array, 2).to_dict()["launch"]["hit"]
    for device in (1, 0):
        cuda.select_device(device)
        for array in arrays:
            scale[1, 32](array, 2)
        assert cuda.current_context().device.id == device
    with pytest.raises(ValueError, match=r"device 1.*device 0"):
        cuda.jit(lambda a, b: None)[1, 1](*arrays)
    for array in arrays:
        assert torch.all(array == 32)


# ---- processes of their own ----


def run(body, **variables):
    """Run Python in a child that uses the GPU, and return the words that it printed."""
    child = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(body)],
        env={**os.environ, "NUMBA_CUDA_LOW_OCCUPANCY_WARNINGS": "0", **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert child.returncode == 0, child.stderr[-3000:]
    return child.stdout.split()


RESETS = {
    "closed": "cuda.close(); cu.cuDevicePrimaryCtxRetain(0); cuda.current_context()",
    "emptied": "cuda.current_context().reset()",
}


@pytest.mark.parametrize("reset", RESETS)
def test_kernel_when_its_context_was_reset_then_it_is_launched_anew(reset):
    found = run(
        f"""
import numpy as np
from cuda.bindings import driver as cu
from numba import cuda
import stridedview
stridedview.enable()

@cuda.jit
def scale(x, factor):
    i = cuda.grid(1)
    if i < x.size:
        x[i] *= factor

for _ in range(2):
    x = cuda.to_device(np.ones(8))
    for _ in range(2):
        scale[1, 32](x, 3)
    print(x.copy_to_host().sum())
    del x
    {RESETS[reset]}
"""
    )
    assert found == ["72.0", "72.0"]


def test_kernel_when_cached_on_disk_then_a_second_process_loads_it(tmp_path):
    (tmp_path / "cached_kernel.py").write_text(
        "from numba import cuda\n\n\n@cuda.jit(cache=True)\ndef put(x, n):\n    x[0] = n\n"
    )
    body = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
import torch
import cached_kernel
import stridedview
stridedview.enable()
x = torch.zeros(1, device="cuda")
for n in (3, 4):
    cached_kernel.put[1, 1](x, n)
    print(int(x))
kernel = cached_kernel.put
print(sum(kernel.stats.cache_hits.values()), sum(kernel.stats.cache_misses.values()))
print(stridedview.stats()["launches"])
"""
    assert run(body) == ["3", "4", "0", "1", "2"]
    assert run(body) == ["3", "4", "1", "0", "2"]


STATISTICS = """
import numpy as np
from numba import cuda
import stridedview
if {ours}:
    stridedview.enable()

@cuda.jit
def allocating(x):
    b = np.empty(3, np.float32)
    b[0] = 5
    x[0] = b[0]

from numba.cuda.memory_management.nrt import rtsys
x = cuda.to_device(np.zeros(1, np.float32))
for _ in range(3):
    allocating[1, 1](x)
    cuda.synchronize()
    found = rtsys.get_allocation_stats()
    print(found.alloc, found.free, found.mi_alloc, found.mi_free)
print(x.copy_to_host()[0])
"""


def test_statistics_of_the_runtime_when_switched_on_then_they_are_numbas():
    switches = {"NUMBA_CUDA_ENABLE_NRT": "1", "NUMBA_CUDA_NRT_STATS": "1"}
    found = [run(STATISTICS.format(ours=ours), **switches) for ours in (False, True)]
    assert found[0] == found[1]
    assert found[1][-1] == "5.0"
