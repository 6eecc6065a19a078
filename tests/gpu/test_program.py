"""Kernels inside PyTorch programs: autograd, compile, distributed, and back to torch."""

import shutil
import threading

import pytest

import stridedview as sv
from tests.gpu.helpers import run_child

pytestmark = pytest.mark.gpu
torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

cuda = pytest.importorskip("numba.cuda")

SIZE = 1000
SHAPE = 4, 256


@pytest.fixture(autouse=True)
def enabled():
    with sv.enabled():
        yield


@cuda.jit
def add_one(x):
    i = cuda.grid(1)
    if i < x.size:
        x[i] += 1


@cuda.jit
def double_into(out, x):
    i = cuda.grid(1)
    if i < x.size:
        out[i] = x[i] + x[i]


@cuda.jit
def cube_into(out, x):
    i = cuda.grid(1)
    if i < x.size:
        out[i] = x[i] * x[i] * x[i]


@cuda.jit
def cube_gradient_into(out, grad, x):
    i = cuda.grid(1)
    if i < x.size:
        out[i] = grad[i] * 3 * x[i] * x[i]


backward_threads = set()


class Cube(torch.autograd.Function):
    """x**3, forward and backward by kernels."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        out = torch.empty_like(x)
        cube_into[SHAPE](out, x)
        return out

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        backward_threads.add(threading.get_ident())
        out = torch.empty_like(x)
        cube_gradient_into[SHAPE](out, grad, x)
        return out


def assert_close(got, expected):
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


def numbers(dtype=torch.float32, **options):
    return torch.randn(SIZE, dtype=dtype, device="cuda", **options)


# ---- autograd ----------------------------------------------------------------------


def test_function_when_both_ways_are_kernels_then_gradcheck_passes():
    x = torch.randn(50, dtype=torch.float64, device="cuda", requires_grad=True)
    assert torch.autograd.gradcheck(Cube.apply, (x,))


def test_backward_when_on_autograds_thread_then_gradients_are_right():
    backward_threads.clear()
    x = numbers(requires_grad=True)
    (Cube.apply(x) * 2).sum().backward()  # an expanded gradient times 2
    assert_close(x.grad, 6 * x.detach() ** 2)
    assert backward_threads
    assert threading.get_ident() not in backward_threads


def test_backward_when_the_forward_was_on_a_side_stream_then_it_is_on_it_too():
    side = torch.cuda.Stream()
    x = numbers(requires_grad=True)
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(20_000_000)
        result = Cube.apply(x * 2)
        torch.cuda._sleep(20_000_000)
    side.synchronize()
    result.sum().backward()
    assert_close(x.grad, 24 * x.detach() ** 2)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpoint_when_a_function_launches_then_it_runs_again_and_is_right(use_reentrant):
    from torch.utils.checkpoint import checkpoint

    x = numbers(requires_grad=True)
    result = checkpoint(
        lambda y: Cube.apply(y + 1).square(), x, use_reentrant=use_reentrant
    )
    result.sum().backward()
    assert_close(x.grad, 6 * (x.detach() + 1) ** 5)


def test_training_when_the_layer_is_a_kernel_then_it_goes_as_torchs_own():
    def train(cube):
        torch.manual_seed(0)
        layer = torch.nn.Linear(32, SIZE, device="cuda")
        optimizer = torch.optim.SGD(layer.parameters(), lr=1e-3)
        data = torch.randn(8, 32, device="cuda")
        for _ in range(5):
            optimizer.zero_grad()
            sum(cube(row).mean() for row in layer(data)).backward()
            optimizer.step()
        return layer.weight.detach()

    assert_close(train(Cube.apply), train(lambda x: x**3))


GRAD_MODES = {
    "grad": torch.enable_grad,
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
}


@pytest.mark.parametrize("mode", GRAD_MODES)
@pytest.mark.parametrize("kind", ["tensor", "requires_grad", "parameter", "buffer"])
def test_kernel_when_autograd_is_in_any_mode_then_reads_and_writes_in_place(mode, kind):
    with GRAD_MODES[mode]():
        x = {
            "tensor": lambda: numbers(),
            "requires_grad": lambda: numbers(requires_grad=True),
            "parameter": lambda: torch.nn.Parameter(numbers()),
            "buffer": lambda: torch.nn.Buffer(numbers()),
        }[kind]()
        out, expected = torch.empty_like(x), x.detach() * 2 + 1
        double_into[SHAPE](out, x)
        add_one[SHAPE](out)
        assert torch.equal(out.detach(), expected)
        pointer = x.data_ptr()
        double_into[SHAPE](x, x)
        assert x.data_ptr() == pointer
        assert torch.equal(x.detach() + 1, expected)


def test_write_when_marked_then_a_backward_through_what_was_saved_raises():
    leaf = numbers(requires_grad=True)
    middle = leaf * 2
    result = (middle * middle).sum()
    add_one[SHAPE](middle)
    sv.mark_written(middle)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.backward()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast_when_it_gives_small_floats_then_a_kernel_takes_them(dtype):
    layer = torch.nn.Linear(SIZE, SIZE, device="cuda")
    with torch.autocast("cuda", dtype):
        hidden = layer(numbers())
        out = torch.empty_like(hidden)
        double_into[SHAPE](out, hidden)
        result = torch.nn.functional.linear(out, layer.weight)
    assert hidden.dtype == out.dtype == result.dtype == dtype
    assert torch.equal(out, (hidden + hidden).detach())


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2"])
def test_float8_when_a_kernel_reads_and_writes_it_then_values_are_torchs(name):
    from numba import float32
    from numba.cuda._internal import cuda_fp8

    to_fp8 = {"float8_e4m3fn": cuda_fp8.fp8_e4m3, "float8_e5m2": cuda_fp8.fp8_e5m2}[name]

    @cuda.jit
    def halve(out, x):
        i = cuda.grid(1)
        if i < x.size:
            out[i] = to_fp8(float32(x[i]) * float32(0.5))

    dtype = getattr(torch, name)
    x = numbers().to(dtype)
    out = torch.zeros(SIZE, dtype=dtype, device="cuda")
    halve[SHAPE](out, x)
    assert torch.equal(out.float(), (x.float() * 0.5).to(dtype).float())


# ---- compile, profile, transform -----------------------------------------------------


def launching(x):
    y = torch.sin(x) * 2
    add_one[SHAPE](y)
    return y * 3


BACKENDS = ["eager", "aot_eager", "inductor"]


@pytest.mark.filterwarnings("default")  # what torch says while it compiles
@pytest.mark.parametrize("backend", BACKENDS)
def test_compiled_function_when_it_launches_then_the_graph_breaks_and_it_is_right(backend):
    if backend == "inductor" and not (shutil.which("cc") or shutil.which("gcc")):
        pytest.skip("inductor needs a C compiler")
    import torch._dynamo
    import torch._inductor.config

    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    with torch._inductor.config.patch(compile_threads=1):
        compiled = torch.compile(launching, backend=backend)
        for _ in range(3):
            x = numbers()
            assert_close(compiled(x), (torch.sin(x) * 2 + 1) * 3)
    assert torch._dynamo.utils.counters["graph_break"]
    torch._dynamo.reset()


@pytest.mark.filterwarnings("default")
def test_compiled_module_when_a_function_with_kernels_is_in_it_then_gradients_are_right():
    import torch._dynamo

    torch._dynamo.reset()
    compiled = torch.compile(
        lambda x: (Cube.apply(x * 2) + 1).square(), backend="aot_eager"
    )
    x = numbers(requires_grad=True)
    compiled(x).sum().backward()
    z = x.detach()
    assert_close(x.grad, 2 * (8 * z**3 + 1) * 24 * z**2)
    torch._dynamo.reset()


@pytest.mark.filterwarnings("default")
def test_profiler_when_it_traces_a_launch_then_the_kernel_is_there_by_name():
    from torch.profiler import ProfilerActivity, profile

    x = numbers()
    add_one[SHAPE](x)
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as found:
        add_one[SHAPE](x)
        torch.sin(x)
        torch.cuda.synchronize()
    on_device = torch.autograd.DeviceType.CUDA
    names = [event.name for event in found.events() if event.device_type == on_device]
    if not any("sin" in name for name in names):
        pytest.skip("the profiler shows no kernels on this machine, torch's neither")
    assert any("add_one" in name for name in names), names


def test_subclass_when_plain_then_it_is_a_tensor():
    x = numbers().as_subclass(type("Plain", (torch.Tensor,), {}))
    expected = x.as_subclass(torch.Tensor) + 1
    add_one[SHAPE](x)
    assert torch.equal(x.as_subclass(torch.Tensor), expected)


class Wrapper(torch.Tensor):
    """A subclass that wraps a tensor, and has no memory itself."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, dtype=inner.dtype, device=inner.device
        )

    @classmethod
    def __torch_dispatch__(cls, function, kinds, arguments=(), options=None):
        raise NotImplementedError(function)


def test_subclass_when_it_wraps_then_it_is_refused_by_name():
    x = numbers()
    with pytest.raises(TypeError, match=r"argument 1 'x'.*Wrapper is a wrapper subclass"):
        add_one[SHAPE](Wrapper(x))
    add_one[SHAPE](x)


def in_vmap(x):
    torch.vmap(lambda row: add_one[SHAPE](row) or row)(x.reshape(10, -1))


def in_grad(x):
    torch.func.grad(lambda y: (add_one[SHAPE](y) or y).sum())(x)


def in_functionalize(x):
    torch.func.functionalize(lambda y: add_one[SHAPE](y) or y)(x)


@pytest.mark.parametrize("transform", [in_vmap, in_grad, in_functionalize])
def test_transform_when_a_function_launches_then_it_is_refused_by_name(transform):
    x = numbers()
    before = x.clone()
    with pytest.raises(TypeError, match=r"argument 1 'x'.*torch\.func transform"):
        transform(x)
    assert torch.equal(x, before)


# ---- back to torch, and what kernels hold ----------------------------------------------


@pytest.mark.parametrize("memory", ["torch's", "own"])
def test_result_when_allocated_for_a_kernel_then_it_is_a_tensor_without_a_copy(memory):
    x = numbers()
    out = sv.empty(SIZE, "f4", like=x) if memory == "torch's" else sv.empty(SIZE, "f4")
    double_into[SHAPE](out, x)
    tensor, pointer = out.to_torch(), out.ptr
    del out
    overwriting = [sv.zeros(SIZE, "f4") for _ in range(4)]
    assert tensor.data_ptr() == pointer
    assert sv.from_any(tensor).ptr == pointer
    assert torch.equal(tensor, x * 2)
    add_one[SHAPE](tensor)
    assert torch.equal(tensor, x * 2 + 1)
    del overwriting


def test_result_when_in_torchs_memory_then_it_lives_with_the_tensor():
    x = numbers()
    before = torch.cuda.memory_allocated()
    tensor = sv.empty((1 << 20,), "f4", like=x).to_torch()
    assert torch.cuda.memory_allocated() == before + (4 << 20)
    part = tensor[::2]
    del tensor
    assert torch.cuda.memory_allocated() == before + (4 << 20)
    del part
    assert torch.cuda.memory_allocated() == before


def test_result_when_made_in_a_memory_pool_of_the_users_then_it_is_right():
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        x = numbers()
        out = sv.empty(SIZE, "f4", like=x)
        double_into[SHAPE](out, x)
        result = out.to_torch()
        assert torch.equal(result, x * 2)
    segments = {segment["address"]: segment["total_size"] for segment in pool.snapshot()}
    for pointer in (x.data_ptr(), out.ptr):
        assert any(start <= pointer < start + size for start, size in segments.items())
    del x, out, result


EXPANDABLE = """
import torch
import stridedview as sv
from tests.gpu.test_program import add_one, double_into, SHAPE, SIZE, numbers

sv.enable()
kept = []
for size in (1000, 3_000_000, 50_000_000):
    x = torch.full((size,), 2.0, device="cuda")
    out = sv.empty(size, "f4", like=x)
    double_into[-(-size // 256), 256](out, x)
    assert torch.all(out.to_torch() == 4)
    kept.append((x, out))
del kept, x, out
torch.cuda.empty_cache()
x = torch.zeros(SIZE, device="cuda")
add_one[SHAPE](x)
assert torch.all(x == 1)
print("done")
"""


def test_expandable_segments_when_used_then_launches_are_right():
    settings = "expandable_segments:True"
    run_child(EXPANDABLE, PYTORCH_CUDA_ALLOC_CONF=settings, PYTORCH_ALLOC_CONF=settings)


def test_closure_when_a_kernel_holds_a_tensor_then_it_is_by_reference():
    from numba import float32

    weights = numbers()
    grown = torch.nn.Parameter(torch.ones(SIZE, dtype=torch.bfloat16, device="cuda"))
    scratch, table = torch.zeros(SIZE, device="cuda"), numbers()[::2]

    @cuda.jit
    def mix(out):
        i = cuda.grid(1)
        if i < out.size:
            out[i] = weights[i] + float32(grown[i]) + table[i // 2]
            scratch[i] = out[i]

    out = torch.zeros(SIZE, device="cuda")
    for _ in range(2):
        mix[SHAPE](out)
        expected = weights + grown.detach().float() + table.repeat_interleave(2)
        assert_close(out, expected)
        assert torch.equal(scratch, out)
        weights.add_(1)  # seen by the next launch, which compiles nothing
    assert len(mix.overloads) == 1


def test_closure_when_a_kernel_holds_a_tensor_then_its_memory_lives_as_long():
    held = torch.full((1 << 20,), 5.0, device="cuda")
    parameter = torch.nn.Parameter(torch.full((SIZE,), 2.0, device="cuda"))

    def make(held, parameter):
        @cuda.jit
        def read(out):
            out[0] = held[7] + parameter[8]

        return read

    read = make(held, parameter)
    out = torch.zeros(1, device="cuda")
    read[1, 1](out)
    parameter.data = torch.zeros(SIZE, device="cuda")  # as nn.Module.to() does
    del held
    torch.full((1 << 20,), -1.0, device="cuda")
    torch.full((SIZE,), -1.0, device="cuda")
    read[1, 1](out)
    assert float(out) == 7


# ---- torch.distributed ---------------------------------------------------------------

DISTRIBUTED = """
import os, sys, tempfile, warnings
warnings.simplefilter("ignore")
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
import stridedview as sv
from tests.gpu.test_program import (
    SHAPE, SIZE, Cube, add_one, assert_close, double_into, numbers)

sv.enable()
torch.cuda.set_device(0)
store = "file://" + os.path.join(tempfile.mkdtemp(), "store")
dist.init_process_group("nccl", init_method=store, rank=0, world_size=1,
                        device_id=torch.device("cuda", 0))
{body}
dist.destroy_process_group()
print("done")
"""

# A hook on the gradients' bucket, and a kernel in the model's forward and backward.
DDP = """
from torch.nn.parallel import DistributedDataParallel

torch.manual_seed(0)
model = torch.nn.Linear(16, SIZE, device="cuda")
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = model
    def forward(self, x):
        return Cube.apply(self.inner(x).reshape(-1))

launched = []
def hook(state, bucket):
    future = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
    def then(future):
        buffer = future.value()[0]
        add_one[buffer.numel() // 256 + 1, 256](buffer)
        launched.append(buffer.numel())
        return buffer
    return future.then(then)

x = torch.randn(1, 16, device="cuda")
net = Net()
net(x).sum().backward()
expected = [parameter.grad + 1 for parameter in net.parameters()]
net.zero_grad()
wrapped = DistributedDataParallel(net, device_ids=[0])
wrapped.register_comm_hook(None, hook)
wrapped(x).sum().backward()
torch.cuda.synchronize()
assert sum(launched) == sum(p.numel() for p in net.parameters()), launched
for parameter, want in zip(net.parameters(), expected):
    assert_close(parameter.grad, want)
"""

FSDP = """
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

class Scaled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(numbers())
    def forward(self, x):
        assert not isinstance(self.weight, DTensor)
        return Cube.apply(self.weight) * x

net = torch.nn.Sequential(Scaled(), Scaled())
first, second = (module.weight.detach().clone() for module in net)
mesh = init_device_mesh("cuda", (1,))
for module in net:
    fully_shard(module, mesh=mesh)
fully_shard(net, mesh=mesh)
seen = []
def after(parameter):
    gradient = parameter.grad.to_local()
    add_one[gradient.numel() // 256 + 1, 256](gradient)
    seen.append(gradient.numel())
for parameter in net.parameters():
    parameter.register_post_accumulate_grad_hook(after)
net(torch.ones(SIZE, device="cuda")).sum().backward()
torch.cuda.synchronize()
assert len(seen) == 2, seen
got = [parameter.grad.to_local() for parameter in net.parameters()]
assert_close(got[0], 3 * first**2 * second**3 + 1)
assert_close(got[1], 3 * second**2 * first**3 + 1)

weight = net[0].weight
assert isinstance(weight, DTensor)
try:
    add_one[SHAPE](weight)
except TypeError as error:
    assert "argument 1 'x'" in str(error) and "to_local" in str(error), error
else:
    raise AssertionError("a DTensor was taken")
"""

# A collective, then a kernel on the current stream, and the other way round.
COLLECTIVE = """
for stream in (torch.cuda.current_stream(), torch.cuda.Stream()):
    with torch.cuda.stream(stream):
        for value in range(20):
            x = torch.zeros(1 << 20, device="cuda")
            torch.cuda._sleep(2_000_000)
            x.fill_(value)
            work = dist.all_reduce(x, async_op=True)
            work.wait()
            add_one[1 << 12, 256](x)
            dist.all_reduce(x)
            out = torch.empty_like(x)
            double_into[1 << 12, 256](out, x)
            assert torch.all(out == 2 * (value + 1)), (value, out[:4])
"""


@pytest.mark.parametrize("body", [DDP, FSDP, COLLECTIVE], ids=["DDP", "FSDP2", "NCCL"])
def test_distributed_when_of_one_process_then_kernels_are_in_order(body):
    if not torch.distributed.is_nccl_available():
        pytest.skip("this torch has no NCCL")
    run_child(DISTRIBUTED.replace("{body}", body), NCCL_SOCKET_IFNAME="lo")
