"""Operators made of kernels, with the kernels really run: the cases.

Not collected by its name. `test_torch_op.py` runs it in Numba's simulator, in a process of
its own and on CPU tensors; `gpu/test_torch_op.py` imports the same cases for a GPU.
"""

import pytest
import torch
from numba import cuda

import stridedview as sv

# Inductor uses what torch itself deprecates.
pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning:torch"
)

DEVICE = "cpu" if cuda.config.ENABLE_CUDASIM else "cuda"
BLOCK = 8  # the simulator starts a thread for each


@cuda.jit
def scale_kernel(x: torch.Tensor, factor: float):
    i = cuda.grid(1)
    if i < x.size:
        x[i] *= factor


@cuda.jit
def axpy_kernel(x: torch.Tensor, y: torch.Tensor, out: torch.Tensor, a: float = 2.0):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = a * x[i] + y[i]


@cuda.jit
def minmax_kernel(x: torch.Tensor, low: torch.Tensor, high: torch.Tensor):
    i = cuda.grid(1)
    if i < x.shape[0]:
        small = large = x[i, 0]
        for j in range(1, x.shape[1]):
            small = min(small, x[i, j])
            large = max(large, x[i, j])
        low[i] = small
        high[i] = large


@cuda.jit
def square_kernel(x: torch.Tensor, out: torch.Tensor):
    i = cuda.grid(1)
    if i < x.size:
        out[i] = x[i] * x[i]


@cuda.jit
def square_grad_kernel(x: torch.Tensor, grad: torch.Tensor, out: torch.Tensor):
    i = cuda.grid(1)
    if i < x.size:
        out[i] = 2 * x[i] * grad[i]


@cuda.jit
def sum_kernel(parts: list[torch.Tensor], out: torch.Tensor):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = parts[0][i] + parts[1][i]


@cuda.jit
def copy_kernel(x: torch.Tensor, out: torch.Tensor):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = 2 * x[i]


copy_scaled = sv.torch_op(copy_kernel, name="sv_cases::copy_scaled", forall="x",
                          block=BLOCK, mutates="out")  # fmt: skip
scale = sv.torch_op(scale_kernel, name="sv_cases::scale", forall="x", block=BLOCK,
                    mutates="x")  # fmt: skip
scale_forall = sv.torch_op(scale_kernel, name="sv_cases::scale_forall",
                           forall=lambda x, factor: x.numel(), mutates="x")  # fmt: skip
scale_fixed = sv.torch_op(scale_kernel, name="sv_cases::scale_fixed", grid=2, block=BLOCK,
                          mutates="x")  # fmt: skip
axpy = sv.torch_op(
    axpy_kernel,
    name="sv_cases::axpy",
    grid=lambda x, y, out, a: (-(-out.numel() // BLOCK),),
    block=BLOCK,
    outputs={"out": "x"},
)
minmax = sv.torch_op(
    minmax_kernel,
    name="sv_cases::minmax",
    forall="low",
    block=BLOCK,
    outputs={
        "low": lambda x: x.new_empty(x.shape[0]),
        "high": lambda x: x.new_empty(x.shape[0]),
    },
)
square_grad = sv.torch_op(square_grad_kernel, name="sv_cases::square_grad", forall="x",
                          block=BLOCK, outputs={"out": "x"})  # fmt: skip
add_pair = sv.torch_op(
    sum_kernel,
    name="sv_cases::add_pair",
    forall="out",
    block=BLOCK,
    outputs={"out": lambda parts: torch.empty_like(parts[0])},
)


def keep(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def square_backward(ctx, grad):
    return square_grad(ctx.saved_tensors[0], grad.contiguous())


square = sv.torch_op(
    square_kernel,
    name="sv_cases::square",
    forall="x",
    block=BLOCK,
    outputs={"out": "x"},
    backward=square_backward,
    setup_context=keep,
    autocast=(DEVICE, torch.bfloat16 if DEVICE == "cpu" else torch.float16),
)


@sv.torch_op(name="sv_cases::centred", fake=lambda x: torch.empty_like(x))
def centred(x: torch.Tensor) -> torch.Tensor:
    """Subtract the mean, then double in place."""
    out = x - x.mean()
    blocks = -(-out.numel() // BLOCK)
    if blocks:
        scale_kernel[blocks, BLOCK](out, 2.0)
    return out


@pytest.fixture(autouse=True)
def enabled():
    with sv.enabled():
        yield
    torch._dynamo.reset()


def numbers(count=20, **options):
    return torch.arange(1.0, count + 1, device=DEVICE, **options)


# ---- eager ----


@pytest.mark.parametrize("op", [scale, scale_forall], ids=["block", "forall"])
@pytest.mark.parametrize("count", [0, 1, 20, 1001])
def test_scale_when_called_then_every_item_is_scaled(op, count):
    if count > 100 and DEVICE == "cpu":
        count = 40
    x = numbers(count)
    assert op(x, 3.0) is None
    assert torch.equal(x, numbers(count) * 3)


def test_scale_when_arguments_are_named_or_integers_then_torch_takes_them():
    x = numbers()
    scale(factor=2, x=x)
    torch.ops.sv_cases.scale(x, 0.5)
    assert torch.equal(x, numbers())


def test_scale_when_the_grid_is_fixed_then_only_its_threads_run():
    x = numbers()
    scale_fixed(x, 0.0)
    assert x.tolist() == [0.0] * 16 + [17.0, 18.0, 19.0, 20.0]


def test_scale_when_the_tensor_is_strided_then_only_its_items_change():
    whole = numbers()
    scale(whole[1::3], 0.0)
    expected = numbers()
    expected[1::3] = 0
    assert torch.equal(whole, expected)


def test_axpy_when_a_default_is_left_out_then_the_kernel_has_it():
    x = numbers()
    assert torch.equal(axpy(x, x), 3 * x)
    assert torch.equal(axpy(x, x, 2.0), 3 * x)
    assert torch.equal(axpy(x, x, a=5.0), 6 * x)
    assert torch.equal(axpy(x[:0], x[:0]), x[:0])


def test_minmax_when_two_outputs_are_made_then_both_are_returned():
    x = torch.stack([numbers(), -numbers(), numbers() / 2])
    low, high = minmax(x)
    assert torch.equal(low, x.min(1).values)
    assert torch.equal(high, x.max(1).values)


def test_add_pair_when_given_a_list_then_the_kernel_gets_a_tuple():
    x = numbers()
    assert torch.equal(add_pair([x, x]), 2 * x)
    assert torch.equal(add_pair((x, 2 * x)), 3 * x)


def test_function_when_it_launches_then_its_result_is_the_operators():
    assert torch.equal(centred(numbers()), 2 * (numbers() - numbers().mean()))


def test_axpy_when_an_input_is_a_lazy_conjugate_then_it_is_resolved():
    z = torch.complex(numbers(), numbers())
    assert torch.equal(axpy(z.conj(), z), 2 * z.conj() + z)
    with pytest.raises(TypeError, match=r"conjugation is pending; pass x\.resolve_conj"):
        scale(z.conj(), 2.0)
    with pytest.raises(TypeError, match=r"negation is pending; pass x\.resolve_neg"):
        scale(torch._neg_view(numbers()), 2.0)


def test_kernel_when_launched_or_an_operator_before_then_it_can_be_one_again():
    @cuda.jit
    def kernel(x: torch.Tensor, factor: float):
        i = cuda.grid(1)
        if i < x.size:
            x[i] *= factor

    def define(target, **options):
        return sv.torch_op(target, name="sv_cases::again", mutates="x", **options)

    x = numbers()
    kernel[1, BLOCK](x, 0.0)
    for options in ({"grid": 3, "block": BLOCK}, {"forall": "x", "block": BLOCK}):
        for _ in range(2):
            op, x = define(kernel, **options), numbers()
            op(x, 2.0)
            assert torch.equal(x, 2 * numbers())
    op, x = define(kernel[1, BLOCK]), numbers()
    kernel[3, BLOCK](numbers(), 0.0)
    op(x, 0.0)
    assert torch.equal(x[:BLOCK], 0 * x[:BLOCK])
    assert torch.equal(x[BLOCK:], numbers()[BLOCK:])


# ---- autograd ----


def test_scale_when_a_saved_tensor_is_mutated_then_its_backward_raises():
    weight, x = numbers(requires_grad=True), numbers()
    loss = (weight * x).sum()
    scale(x, 2.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_scale_when_the_tensor_requires_grad_then_only_without_grad():
    x = numbers(requires_grad=True)
    with pytest.raises(RuntimeError, match=r"requires grad.*torch.no_grad"):
        scale(x, 2.0)
    assert torch.equal(x.detach(), numbers())
    with torch.no_grad():
        scale(x, 2.0)
    scale(x.detach(), 2.0)
    assert torch.equal(x.detach(), 4 * numbers())
    assert x._version == 2


def test_copy_when_what_it_reads_requires_grad_then_the_version_goes_up_by_one():
    x, out = numbers(requires_grad=True), numbers()
    copy_scaled(x, out)
    assert torch.equal(out, 2 * numbers())
    assert (out._version, out.requires_grad) == (1, False)


def test_square_when_differentiated_then_the_gradient_is_right():
    x = numbers(5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(square, (x,))
    square(x).sum().backward()
    assert torch.equal(x.grad, 2 * x.detach())


def test_axpy_when_it_has_no_backward_then_backward_raises():
    x = numbers(requires_grad=True)
    out = axpy(x, x)
    assert out.requires_grad
    with pytest.raises(RuntimeError, match=r"sv_cases::axpy' has no backward; give"):
        out.sum().backward()
    with torch.no_grad():
        assert not axpy(x, x).requires_grad


@pytest.mark.filterwarnings("ignore")  # the first use of jvp compiles something of torch's
def test_operators_when_differentiated_forwards_then_they_are_refused():
    x = numbers()
    calls = (square, lambda x: axpy(x, x), lambda x: add_pair([x, x]))
    for call in calls:
        with pytest.raises(NotImplementedError, match="no derivative in forward mode"):
            torch.func.jvp(call, (x,), (x,))
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, x)
        with pytest.raises(NotImplementedError, match="no derivative in forward mode"):
            scale(dual, 2.0)
        assert torch.equal(axpy(x, x), 3 * x)


def test_operators_when_in_inference_mode_then_they_run():
    with torch.inference_mode():
        x = numbers()
        scale(x, 2.0)
        assert torch.equal(square(x), 4 * numbers() ** 2)
    assert torch.equal(square(x), 4 * numbers() ** 2)
    plain = numbers()
    before = plain._version
    with torch.inference_mode():
        scale(plain, 2.0)
    assert plain._version == before + 1


def test_square_when_under_autocast_then_its_input_is_converted():
    x = numbers()
    low = torch.bfloat16 if DEVICE == "cpu" else torch.float16
    if DEVICE == "cpu":
        pytest.importorskip("ml_dtypes")
    with torch.autocast(DEVICE, dtype=low):
        found = square(x)
    assert found.dtype is low
    assert torch.equal(found, x.to(low) ** 2)
    assert square(x).dtype is torch.float32
