"""Operators made of kernels on a GPU: the common cases, and what only a GPU has."""

import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

cuda = pytest.importorskip("numba.cuda")

import stridedview as sv  # noqa: E402
from tests import torch_op_cases as cases  # noqa: E402
from tests.torch_op_cases import *  # noqa: E402, F403 - their tests are run here
from tests.torch_op_tool_cases import *  # noqa: E402, F403

pytestmark = [pytest.mark.gpu, cases.pytestmark]
SIZE = 1 << 22


@cuda.jit
def increment_kernel(x: torch.Tensor):
    i = cuda.grid(1)
    if i < x.size:
        x[i] += 1


increment = sv.torch_op(increment_kernel, name="sv_gpu::increment", forall="x", block=256,
                        mutates="x")  # fmt: skip


class Block(torch.nn.Module):
    """A module with torch's own operators around ours."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.linspace(0.5, 1.5, 1000))

    def forward(self, x):
        y = cases.square(x * self.weight)
        z = y.detach() + 1
        cases.scale(z, 0.5)
        return y.sin() + z.relu()


# ---- compiled, with CUDA graphs ----


@pytest.fixture
def counters():
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    return torch._dynamo.utils.counters


def recorded():
    """Return how many CUDA graphs Inductor holds that begin a step, on this device."""
    from torch._inductor import cudagraph_trees

    device = torch.cuda.current_device()
    manager = cudagraph_trees.get_manager(device, create_if_none_exists=False)
    if manager is None:
        return 0
    if not hasattr(manager, "roots"):
        pytest.skip("this torch does not say which graphs it recorded")
    return sum(len(graphs) for graphs in manager.roots.values())


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_module_when_compiled_for_inference_then_it_is_as_in_eager(mode, counters):
    block = Block().cuda()
    compiled = torch.compile(block, mode=mode, fullgraph=True)
    with torch.no_grad():
        for seed in range(5):
            torch.manual_seed(seed)
            x = torch.randn(1000, device="cuda")
            torch.compiler.cudagraph_mark_step_begin()
            torch.testing.assert_close(compiled(x), block(x), rtol=1e-4, atol=1e-4)
    assert counters["inductor"]["cudagraph_skips"] == 0
    assert (recorded() > 0) == (mode == "reduce-overhead")


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_module_when_compiled_for_training_then_its_gradients_are_as_in_eager(
    mode, counters
):
    block, eager = Block().cuda(), Block().cuda()
    compiled = torch.compile(block, mode=mode, fullgraph=True)
    for seed in range(5):
        torch.manual_seed(seed)
        x = torch.randn(1000, device="cuda")
        torch.compiler.cudagraph_mark_step_begin()
        compiled(x).sum().backward()
        eager(x).sum().backward()
        torch.testing.assert_close(
            block.weight.grad, eager.weight.grad, rtol=1e-3, atol=1e-3
        )
        with torch.no_grad():
            for one in (block, eager):
                one.weight -= 1e-3 * one.weight.grad
                one.weight.grad = None
    assert counters["inductor"]["cudagraph_skips"] == 0
    assert (recorded() > 0) == (mode == "reduce-overhead")


def test_module_when_its_input_is_mutated_under_cuda_graphs_then_the_caller_sees_it(
    counters,
):
    def compute(x):
        y = x * 2
        increment(x)
        return y + x

    compiled = torch.compile(compute, mode="reduce-overhead", fullgraph=True)
    for number in range(5):
        x = torch.full((1000,), float(number), device="cuda")
        found = compiled(x)
        assert torch.all(found == 3 * number + 1)
        assert torch.all(x == number + 1)


def test_compiled_when_the_argument_is_transposed_then_its_strides_are_kept():
    def compute(x):
        low, high = cases.minmax((x * 2).t())
        return low + high

    x = torch.randn(7, 50, device="cuda")
    found = torch.compile(compute, fullgraph=True)(x)
    torch.testing.assert_close(found, 2 * (x.min(0).values + x.max(0).values))


@cuda.jit
def fresh_kernel(x):
    i = cuda.grid(1)
    if i < x.size:
        x[i] *= 3


def test_plain_launch_when_compiled_then_the_graph_breaks_and_the_result_is_right(counters):
    def compute(x):
        y = x + 1
        fresh_kernel[4, 256](y)
        return y * 2

    compiled = torch.compile(compute)
    for _ in range(3):
        x = torch.randn(1000, device="cuda")
        torch.testing.assert_close(compiled(x), (x + 1) * 6)
    assert counters["graph_break"]
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported, match=r"stridedview\.torch_op"):
        torch.compile(compute, fullgraph=True)(x)


# ---- streams and graphs ----


def test_operator_when_torch_is_on_a_side_stream_then_no_race():
    side = torch.cuda.Stream()
    for value in range(5):
        x = torch.zeros(SIZE, device="cuda")
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            torch.cuda._sleep(20_000_000)
            x.fill_(value)
            increment(x)
        side.synchronize()
        assert torch.all(x == value + 1)


def test_operator_when_captured_and_replayed_then_runs_each_time():
    x = torch.zeros(1024, device="cuda")
    increment(x)
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        for _ in range(10):
            increment(x)
        y = cases.square(x)
    x.zero_()
    for _ in range(3):
        graph.replay()
    torch.cuda.synchronize()
    assert torch.all(x == 30)
    assert torch.all(y == 900)


def test_operator_when_first_called_in_a_capture_then_it_works():
    @cuda.jit
    def kernel(x: torch.Tensor, out: torch.Tensor):
        i = cuda.grid(1)
        if i < x.size:
            out[i] = x[i] * 2

    op = sv.torch_op(kernel, name="sv_gpu::fresh", forall="x", block=128,
                     outputs={"out": "x"})  # fmt: skip
    x = torch.arange(1024.0, device="cuda")
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        y = op(x)
    y.zero_()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(y, x * 2)


# ---- mixed precision, CPU tensors ----


def test_training_when_in_mixed_precision_then_the_operator_is_in_half():
    model = torch.nn.Linear(64, 64, device="cuda")
    scaler = torch.amp.GradScaler("cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(10):
        torch.manual_seed(0)
        x = torch.randn(32, 64, device="cuda")
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            y = cases.square(model(x).reshape(-1))
            assert y.dtype is torch.float16
            loss = y.float().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


def test_operator_when_given_cpu_tensors_then_they_are_copied_in_and_back():
    x = torch.arange(20.0)
    with pytest.warns(Warning, match="copy overhead"):
        increment(x)
    assert torch.equal(x, torch.arange(20.0) + 1)
    with pytest.warns(Warning, match="copy overhead"):
        assert torch.equal(cases.axpy(x, x), 3 * x)
