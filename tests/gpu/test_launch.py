"""Launches on a GPU: the right result on every dtype, layout, stream and graph."""

import subprocess
import sys
import threading

import numpy as np
import pytest

import stridedview as sv

pytestmark = pytest.mark.gpu
torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

cuda = pytest.importorskip("numba.cuda")

# A read-modify-write that every type supports: the items are moved, not computed with.
NUMBERS = {
    "bool": torch.bool,
    "int8": torch.int8,
    "int16": torch.int16,
    "int32": torch.int32,
    "int64": torch.int64,
    "uint8": torch.uint8,
    "uint16": torch.uint16,
    "uint32": torch.uint32,
    "uint64": torch.uint64,
    "float16": torch.float16,
    "float32": torch.float32,
    "float64": torch.float64,
    "complex64": torch.complex64,
    "complex128": torch.complex128,
    "bfloat16": torch.bfloat16,
    "float8_e4m3fn": torch.float8_e4m3fn,
    "float8_e5m2": torch.float8_e5m2,
    "float8_e8m0fnu": torch.float8_e8m0fnu,
}

# From a base of shape (6, 8): the layouts that programs make.
LAYOUTS = {
    "C": lambda x: x,
    "F": lambda x: x.T.contiguous().T,
    "strided": lambda x: x[::2, ::3],
    "offset": lambda x: x[1:, 2:],
    "transposed": lambda x: x.T,
    "column": lambda x: x[:, 3],
    "row": lambda x: x[2],
    "expanded": lambda x: x[:, :1].expand(6, 5),
    "one-axis": lambda x: x[:, 2:3],
    "empty": lambda x: x[6:],
    "0-d": lambda x: x[3, 4],
}


@pytest.fixture(autouse=True)
def enabled():
    with sv.enabled():
        yield


@pytest.fixture(scope="module")
def copy():
    @cuda.jit
    def copy1(out, x):
        i = cuda.grid(1)
        if i < x.size:
            out[i] = x[i]

    @cuda.jit
    def copy2(out, x):
        i = cuda.grid(1)
        if i < x.size:
            out[i // x.shape[1], i % x.shape[1]] = x[i // x.shape[1], i % x.shape[1]]

    @cuda.jit
    def copy0(out, x):
        out[()] = x[()]

    return {0: copy0, 1: copy1, 2: copy2}


def bits(tensor):
    """Return a tensor's items as bytes on the host, so that every dtype compares."""
    dense = tensor.contiguous()
    return dense.reshape(-1).view(torch.uint8).cpu().numpy().tobytes()


def base(dtype):
    raw = torch.randint(
        0,
        2 if dtype is torch.bool else 256,
        (6, 8 * dtype.itemsize),
        dtype=torch.uint8,
        device="cuda",
    )
    return raw.view(dtype)


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("dtype", NUMBERS.values(), ids=NUMBERS)
def test_kernel_when_given_any_dtype_and_layout_then_moves_every_item(copy, dtype, layout):
    x = layout(base(dtype))
    raw = torch.zeros(x.numel() * dtype.itemsize, dtype=torch.uint8, device="cuda")
    out = raw.view(dtype).reshape(x.shape)
    copy[x.dim()][1, 64](out, x)
    assert bits(out) == bits(x)


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_kernel_when_it_writes_then_changes_only_the_items_of_the_view(copy, layout):
    whole = torch.arange(48, dtype=torch.float32, device="cuda").reshape(6, 8)
    if layout is LAYOUTS["expanded"] or layout is LAYOUTS["F"]:
        pytest.skip("writes through shared items, or to a copy of the base")
    expected = whole.clone()
    layout(expected).fill_(-1.0)
    part = layout(whole)
    copy[part.dim()][1, 64](part, torch.full(part.shape, -1.0, device="cuda"))
    assert torch.equal(whole, expected)


def test_kernel_when_the_tensor_is_a_parameter_then_it_is_taken(copy):
    x = torch.nn.Parameter(torch.randn(10, device="cuda"))
    out = torch.zeros(10, device="cuda")
    copy[1][1, 32](out, x)
    assert torch.equal(out, x.detach())


def test_kernel_when_made_in_inference_mode_then_it_is_taken(copy):
    with torch.inference_mode():
        x = torch.randn(10, device="cuda")
        out = torch.zeros(10, device="cuda")
        copy[1][1, 32](out, x)
        assert torch.equal(out, x)


def test_kernel_when_items_exceed_32_bits_then_reaches_the_last():
    @cuda.jit
    def mark(x, at):
        x[at] = 7
        x[0] = 5

    size = 2**31 + 100
    x = torch.zeros(size, dtype=torch.int8, device="cuda")
    mark[1, 1](x, size - 1)
    assert (int(x[-1]), int(x[0]), int(x[size // 2])) == (7, 5, 0)
    x = torch.zeros(2, 2**31 + 8, dtype=torch.int8, device="cuda")[:, 3:]

    @cuda.jit
    def mark2(x):
        x[1, x.shape[1] - 1] = 9

    mark2[1, 1](x)
    assert int(x[1, -1]) == 9


def test_float8_when_computed_with_then_gives_torchs_values():
    from numba import float32

    @cuda.jit
    def widen(out, x):
        i = cuda.grid(1)
        if i < x.size:
            out[i] = float32(x[i])

    x = torch.randn(100, device="cuda").to(torch.float8_e4m3fn)
    out = torch.empty(100, device="cuda")
    widen[4, 32](out, x)
    assert torch.equal(out, x.float())


def test_bfloat16_when_computed_with_then_gives_torchs_values():
    @cuda.jit
    def double(x):
        i = cuda.grid(1)
        if i < x.size:
            x[i] = x[i] + x[i]

    x = torch.randn(100, device="cuda").to(torch.bfloat16)
    expected = x + x
    double[4, 32](x)
    assert torch.equal(x, expected)


# ---- streams and graphs ----------------------------------------------------------------


@pytest.fixture(scope="module")
def add_one():
    @cuda.jit
    def add_one(x):
        i = cuda.grid(1)
        if i < x.size:
            x[i] += 1

    return add_one


SIZE = 1 << 22


def slow_fill(x, value):
    """Queue work, then the fill: a launch that does not wait reads too early."""
    torch.cuda._sleep(20_000_000)
    x.fill_(value)


def test_unnamed_stream_when_torch_is_on_a_side_stream_then_no_race(add_one):
    side = torch.cuda.Stream()
    for value in range(5):
        x = torch.zeros(SIZE, device="cuda")
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            slow_fill(x, value)
            add_one[SIZE // 256, 256](x)
        side.synchronize()
        assert torch.all(x == value + 1)


@pytest.mark.parametrize("name", ["torch", "numba", "int", "cuda.core"])
def test_named_stream_when_the_producer_is_on_another_then_is_behind_it(add_one, name):
    target = torch.cuda.Stream()
    numba_stream = cuda.stream()
    stream = {
        "torch": target,
        "int": target.cuda_stream,
        "numba": numba_stream,
        "cuda.core": __import__("cuda.core", fromlist=["Stream"]).Stream.from_handle(
            target.cuda_stream
        ),
    }[name]
    side = torch.cuda.Stream()
    x = torch.zeros(SIZE, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        slow_fill(x, 3)
        add_one[SIZE // 256, 256, stream](x)
    torch.cuda.synchronize()
    assert torch.all(x == 4)


def test_launch_when_a_long_kernel_is_in_flight_then_returns_at_once(add_one):
    import time

    side = torch.cuda.Stream()
    x = torch.zeros(SIZE, device="cuda")
    add_one[SIZE // 256, 256, side](x)
    torch.cuda.synchronize()
    torch.cuda._sleep(2_000_000_000)
    begin = time.perf_counter()
    add_one[SIZE // 256, 256, side](x)
    add_one[SIZE // 256, 256](x)
    taken = time.perf_counter() - begin
    still_busy = not torch.cuda.current_stream().query()
    torch.cuda.synchronize()
    assert still_busy
    assert taken < 0.5
    assert torch.all(x == 3)


def test_tensor_when_freed_while_a_named_stream_uses_it_then_is_kept(add_one):
    side = torch.cuda.Stream()
    out = torch.zeros(SIZE, device="cuda")

    @cuda.jit
    def copy(out, x):
        i = cuda.grid(1)
        if i < x.size:
            out[i] = x[i]

    for value in range(1, 6):
        x = torch.full((SIZE,), float(value), device="cuda")
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            torch.cuda._sleep(20_000_000)
        copy[SIZE // 256, 256, side](out, x)
        del x
        y = torch.full((SIZE,), -1.0, device="cuda")  # would take the freed block
        torch.cuda.synchronize()
        assert torch.all(out == value)
        del y


def test_graph_when_captured_and_replayed_then_runs_each_time(add_one):
    x = torch.zeros(1024, device="cuda")
    add_one[4, 256](x)
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        for _ in range(10):
            add_one[4, 256](x)
    x.zero_()
    for _ in range(3):
        graph.replay()
    torch.cuda.synchronize()
    assert torch.all(x == 30)


def test_graph_when_the_first_launch_is_inside_then_it_works():
    @cuda.jit
    def fresh(x, y):
        i = cuda.grid(1)
        if i < x.size:
            y[i] = x[i] * 2

    x = torch.arange(1024, dtype=torch.float32, device="cuda")
    y = torch.zeros_like(x)
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        fresh[4, 256](x, y)
    y.zero_()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(y, x * 2)


def test_graph_when_a_host_array_is_given_then_refused_and_the_capture_survives(add_one):
    x = torch.zeros(1024, device="cuda")
    host = np.zeros(1024, np.float32)
    add_one[4, 256](x)
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()

    @cuda.jit
    def both(x, h):
        x[0] = h[0]

    with torch.cuda.graph(graph):
        add_one[4, 256](x)
        with pytest.raises(RuntimeError, match="captur"):
            both[1, 1](x, host)
    x.zero_()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.all(x == 1)


def test_graph_when_another_thread_compiles_then_the_capture_survives(add_one):
    x = torch.zeros(1024, device="cuda")
    other = torch.zeros(1024, device="cuda")
    add_one[4, 256](x)
    torch.cuda.synchronize()
    failed = []

    def compile_and_launch():
        @cuda.jit
        def fresh(y):
            y[0] = 5

        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                fresh[1, 1](other)
        except Exception as error:  # noqa: BLE001 (told to the main thread)
            failed.append(error)

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        add_one[4, 256](x)
        thread = threading.Thread(target=compile_and_launch)
        thread.start()
        thread.join()
        add_one[4, 256](x)
    assert not failed
    x.zero_()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.all(x == 2)
    assert int(other[0]) == 5


# ---- Numba's features ------------------------------------------------------------------


def test_host_arrays_when_strided_or_reversed_then_are_copied_in_and_back(add_one):
    for part in (np.s_[::2], np.s_[::-1], np.s_[1:20:3]):
        host = np.arange(40, dtype=np.float32)
        expected = host.copy()
        expected[part] += 1
        with pytest.warns(Warning, match="copy overhead"):
            add_one[1, 64](host[part])
        assert np.array_equal(host, expected)


def test_cpu_tensor_when_given_then_is_copied_in_and_back(add_one):
    x = torch.arange(40, dtype=torch.float32)
    with pytest.warns(Warning, match="copy overhead"):
        add_one[1, 64](x[::2])
    assert torch.equal(x[::2], torch.arange(40.0)[::2] + 1)
    assert torch.equal(x[1::2], torch.arange(40.0)[1::2])


def test_pinned_tensor_when_given_then_is_used_in_place(add_one):
    x = torch.arange(40, dtype=torch.float32).pin_memory()
    with pytest.warns(Warning, match="host synchronization, though no copy"):
        add_one[1, 64](x)
    assert torch.equal(x, torch.arange(40.0) + 1)


def test_shared_memory_when_over_48_kilobytes_then_is_opted_in():
    @cuda.jit
    def last(x, n):
        shared = cuda.shared.array(0, np.float32)
        shared[n - 1] = 3
        x[0] = shared[n - 1]

    x = torch.zeros(1, device="cuda")
    last[1, 1, 0, 200_000](x, 50_000)
    assert float(x) == 3


def test_cooperative_kernel_when_launched_then_synchronizes_the_grid():
    @cuda.jit
    def steps(x):
        grid = cuda.cg.this_grid()
        i = cuda.grid(1)
        for step in range(1, x.shape[0]):
            if i < x.shape[1]:
                x[step, i] = x[step - 1, x.shape[1] - 1 - i] + 1
            grid.sync()

    x = torch.zeros(10, 4096, device="cuda")
    steps[32, 128](x)
    assert torch.all(x[9] == 9)


def test_error_when_a_block_is_too_large_then_the_context_lives(add_one):
    x = torch.zeros(10, device="cuda")
    with pytest.raises(Exception, match="1024"):
        add_one[1, 2048](x)
    add_one[1, 32](x)
    assert torch.all(x == 1)


@pytest.mark.parametrize("kind", ["conj", "neg", "sparse", "meta", "signature"])
def test_refusal_when_raised_then_the_context_lives(add_one, kind):
    x = torch.zeros(10, device="cuda")

    @cuda.jit("void(float32[::1])")
    def explicit(x):
        x[0] = 1

    bad = {
        "conj": lambda: torch.ones(3, dtype=torch.complex64, device="cuda").conj(),
        "neg": lambda: torch._neg_view(x),
        "sparse": lambda: torch.eye(3, device="cuda").to_sparse(),
        "meta": lambda: torch.empty(3, device="meta"),
        "signature": lambda: x[::2],
    }[kind]()
    kernel = explicit if kind == "signature" else add_one
    with pytest.raises((TypeError, BufferError), match="argument 1 'x'"):
        kernel[1, 32](bad)
    add_one[1, 32](x)
    assert torch.all(x == 1)


def test_thread_when_fresh_then_launches_on_the_tensors_device(add_one):
    x = torch.zeros(10, device="cuda")
    thread = threading.Thread(target=lambda: add_one[1, 32](x))
    thread.start()
    thread.join()
    torch.cuda.synchronize()
    assert torch.all(x == 1)


def test_memory_when_launched_many_times_then_is_flat(add_one):
    x = torch.zeros(256, device="cuda")
    side = torch.cuda.Stream()
    add_one[1, 256](x)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    for _ in range(20_000):
        add_one[1, 256](x)
        sv.from_any(x)
    for _ in range(5_000):
        add_one[1, 256, side](x + 0)
    torch.cuda.synchronize()
    add_one[1, 256, side](x)
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() <= before + 4096
    assert torch.all(x >= 20_001)


def test_demo_when_run_then_the_result_is_right_and_the_costs_are_told():
    done = subprocess.run(
        [sys.executable, "-m", "stridedview", "demo"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "matches torch.softmax" in done.stdout
    for row in ("raw cuLaunchKernel", "stridedview", "numba-cuda, unpatched"):
        assert row in done.stdout
