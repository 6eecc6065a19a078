"""Launches in torch's CUDA graphs: recorded, replayed, and no capture is spoilt."""

import gc
import threading

import pytest

import stridedview as sv
from tests.gpu.helpers import Capsule, cupy_on

pytestmark = pytest.mark.gpu
torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

cuda = pytest.importorskip("numba.cuda")

SIZE = 1024
SHAPE = 4, 256


@pytest.fixture(autouse=True)
def enabled():
    with sv.enabled():
        yield


def fresh_add_one():
    """Return a kernel that nothing has compiled yet."""

    @cuda.jit
    def add_one(x):
        i = cuda.grid(1)
        if i < x.size:
            x[i] += 1

    return add_one


@pytest.fixture
def x():
    made = torch.zeros(SIZE, device="cuda")
    torch.cuda.synchronize()
    return made


def assert_replays(graph, x, each):
    """Replay three times from zero; each replay must add ``each``."""
    x.zero_()
    for _ in range(3):
        graph.replay()
    torch.cuda.synchronize()
    assert torch.all(x == 3 * each), x[:4]


MODES = ["global", "thread_local", "relaxed"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("is_first", [True, False], ids=["first inside", "compiled"])
@pytest.mark.parametrize("count", [1, 200])
def test_graph_when_launches_are_captured_then_each_replay_runs_them(
    x, mode, is_first, count
):
    add_one = fresh_add_one()
    if not is_first:
        add_one[SHAPE](x)
        torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode=mode):
        for _ in range(count):
            add_one[SHAPE](x)
    assert_replays(graph, x, count)


def test_graph_when_every_sort_of_first_launch_is_inside_then_it_works(x):
    plain, by_forall, prepared = (fresh_add_one() for _ in range(3))

    @cuda.jit("void(float32[::1])")
    def explicit(x):
        i = cuda.grid(1)
        if i < x.size:
            x[i] += 1

    @cuda.jit
    def from_tuple(pair):
        i = cuda.grid(1)
        if i < pair[0].size:
            pair[0][i] += pair[1]

    view = sv.from_any(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        plain[SHAPE](x)
        plain[SHAPE](view)
        by_forall.forall(SIZE)(x)
        sv.prepare(prepared[SHAPE], x)()
        explicit[SHAPE](x)
        from_tuple[SHAPE]((x, 1.0))
    assert_replays(graph, x, 6)


def test_graph_when_the_first_launch_opts_in_to_shared_memory_then_it_works(x):
    add_one, graph = fresh_add_one(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        add_one[(*SHAPE, 0, 100_000)](x)
    assert_replays(graph, x, 1)


def test_graph_when_a_dlpack_object_is_captured_then_the_capture_is_not_spoilt(x):
    add_one, graph = fresh_add_one(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        add_one[(*SHAPE, torch.cuda.current_stream())](Capsule(x))
    assert_replays(graph, x, 1)


def test_graph_when_its_arrays_come_from_its_own_pool_then_results_are_torchs(x):
    add_one = fresh_add_one()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        copy = x * 2
        like = sv.empty(SIZE, "f4", like=x)
        tensor = like.to_torch()
        tensor.copy_(copy)
        add_one[SHAPE](like)
    x.fill_(4)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.all(tensor == 9)


def test_graph_when_what_is_captured_forks_then_both_streams_are_in_it(x):
    add_one, side = fresh_add_one(), torch.cuda.Stream()
    y = torch.zeros(SIZE, device="cuda")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        main = torch.cuda.current_stream()
        side.wait_stream(main)
        with torch.cuda.stream(side):
            add_one[SHAPE](y)
            torch.cuda._sleep(1_000_000)
            add_one[SHAPE](y)
        add_one[SHAPE](x)
        add_one[(*SHAPE, side)](x)  # named, behind torch's current stream
        main.wait_stream(side)
        x += y
    y.zero_()
    x.zero_()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.all(x == 4)
    assert torch.all(y == 2)


def test_graph_when_cupys_array_is_captured_then_the_launch_is_in_it(x):
    cupy = pytest.importorskip("cupy")
    add_one = fresh_add_one()
    array = cupy.asarray(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), cupy_on(torch.cuda.current_stream()):
        add_one[SHAPE](array)
    assert_replays(graph, x, 1)


# ---- what else happens while a capture runs -------------------------------------------


def disturb(x, y, stream):
    """Do all that a program may do beside a capture, and drop all that it made."""
    add_one = fresh_add_one()
    add_one[SHAPE](x)
    for _ in range(20):  # more events than were made ahead
        add_one[(*SHAPE, stream)](y)
    views = [sv.from_any(x)[index::2] for index in range(2)]
    del add_one, views
    gc.collect()


def test_capture_when_another_thread_compiles_launches_and_drops_then_it_is_not_spoilt(x):
    add_one, side, named = fresh_add_one(), torch.cuda.Stream(), torch.cuda.Stream()
    y, z = torch.zeros(SIZE, device="cuda"), torch.zeros(SIZE, device="cuda")
    mine = [sv.zeros(SIZE, "f4") for _ in range(4)]
    add_one[SHAPE](x)
    torch.cuda.synchronize()
    failed = []

    def work():
        try:
            with torch.cuda.stream(side):
                for _ in range(3):
                    disturb(y, z, named)
            mine.clear()
            gc.collect()
        except Exception as error:  # noqa: BLE001 (told to the main thread)
            failed.append(error)

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        thread = threading.Thread(target=work)
        thread.start()
        for _ in range(50):
            add_one[SHAPE](x)
        thread.join()
        add_one[SHAPE](x)
    assert not failed, failed
    assert_replays(graph, x, 51)
    assert torch.all(y == 3)
    assert torch.all(z == 60)


def test_capture_when_this_thread_drops_kernels_views_and_memory_then_it_is_not_spoilt(x):
    add_one, dropped = fresh_add_one(), fresh_add_one()
    mine, view = sv.zeros(SIZE, "f4"), sv.from_any(x)[::2]
    numba_array = cuda.device_array(SIZE, "f4")
    for array in (x, mine, view, numba_array):
        add_one[SHAPE](array)
    dropped[SHAPE](x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        add_one[SHAPE](x)
        del mine, view, numba_array, dropped
        gc.collect()
        add_one[SHAPE](x)
    assert_replays(graph, x, 2)


def test_capture_when_kept_arrays_are_done_meanwhile_then_it_is_not_spoilt(x):
    add_one, side = fresh_add_one(), torch.cuda.Stream()
    y = torch.zeros(SIZE, device="cuda")
    add_one[(*SHAPE, side)](cuda.as_cuda_array(y))
    for _ in range(5):
        add_one[(*SHAPE, side)](torch.zeros(1 << 20, device="cuda"))
        add_one[(*SHAPE, side)](sv.zeros(1 << 20, "f4"))
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        add_one[SHAPE](x)
        # Outside the capture: looks which are done, and drops them.
        add_one[(*SHAPE, side)](cuda.as_cuda_array(y))
        add_one[SHAPE](x)
    assert_replays(graph, x, 2)


# ---- what is refused -------------------------------------------------------------------


def test_capture_when_a_launch_would_wait_then_it_is_refused_and_the_capture_lives(x):
    add_one = fresh_add_one()

    @cuda.jit(debug=True, opt=False)
    def debugged(x):
        x[0] = 1

    @cuda.jit
    def from_host(x, host):
        x[0] = host[0]

    host, pinned = torch.zeros(SIZE), torch.zeros(SIZE).pin_memory()
    add_one[SHAPE](x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        add_one[SHAPE](x)
        for value in (host, host.numpy(), pinned):
            with pytest.raises(RuntimeError, match="captures a graph"):
                from_host[1, 1](x, value)
        with pytest.raises(RuntimeError, match="debug"):
            debugged[1, 1](x)
        with pytest.raises(TypeError, match="argument 1 'x'"):
            add_one[SHAPE](torch._neg_view(x))
        add_one[SHAPE](x)
    assert_replays(graph, x, 2)


# ---- make_graphed_callables ------------------------------------------------------------


@cuda.jit
def scale_into(out, x, factor):
    i = cuda.grid(1)
    if i < x.size:
        out[i] = x[i] * factor[0]


@cuda.jit
def multiply_into(out, x, y):
    i = cuda.grid(1)
    if i < x.size:
        out[i] = x[i] * y[i]


class Scale(torch.autograd.Function):
    """x * factor, forward and backward by kernels."""

    @staticmethod
    def forward(ctx, x, factor):
        ctx.save_for_backward(x, factor)
        out = torch.empty_like(x)
        scale_into[SHAPE](out, x, factor)
        return out

    @staticmethod
    def backward(ctx, grad):
        x, factor = ctx.saved_tensors
        grad, of_x, of_factor = grad.contiguous(), torch.empty_like(x), torch.empty_like(x)
        scale_into[SHAPE](of_x, grad, factor)
        multiply_into[SHAPE](of_factor, grad, x)
        return of_x, of_factor.sum().reshape(1)


class Scaling(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.factor = torch.nn.Parameter(torch.tensor([3.0], device="cuda"))

    def forward(self, x):
        return Scale.apply(x, self.factor).square()


# torch's own warm-up is on another stream than the gradients' accumulation.
@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream does not match")
def test_graphed_callable_when_a_module_launches_a_kernel_then_gradients_are_right():
    module = Scaling()
    sample = torch.randn(SIZE, device="cuda", requires_grad=True)
    graphed = torch.cuda.make_graphed_callables(module, (sample,))
    for _ in range(3):
        x = torch.randn(SIZE, device="cuda", requires_grad=True)
        module.factor.grad = None
        result = graphed(x)
        result.sum().backward()
        factor = module.factor.detach()
        torch.testing.assert_close(result.detach(), (x.detach() * factor).square())
        torch.testing.assert_close(x.grad, 2 * factor**2 * x.detach())
        torch.testing.assert_close(
            module.factor.grad,
            (2 * factor * x.detach() ** 2).sum().reshape(1),
            rtol=1e-5,
            atol=1e-5,
        )


def test_graph_when_a_backward_is_captured_then_it_replays_with_the_forward():
    x = torch.randn(SIZE, device="cuda", requires_grad=True)
    factor = torch.tensor([2.0], device="cuda", requires_grad=True)

    def step():
        return torch.autograd.grad(Scale.apply(x, factor).square().sum(), (x, factor))

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # autograd's own state, as torch's documentation asks
        step()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        of_x, of_factor = step()
    with torch.no_grad():
        x.copy_(torch.arange(SIZE, device="cuda") / SIZE)
    graph.replay()
    torch.cuda.synchronize()
    torch.testing.assert_close(of_x, 8 * x.detach())
    torch.testing.assert_close(
        of_factor, (4 * x.detach() ** 2).sum().reshape(1), rtol=1e-5, atol=1e-5
    )
