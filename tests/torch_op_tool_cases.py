"""Operators made of kernels within torch.compile, export and opcheck: more cases.

Run as those of `torch_op_cases.py` are, whose operators they use.
"""

import copy
import pickle

import pytest
import torch

from tests.torch_op_cases import (  # noqa: F401 - for pytest
    DEVICE,
    add_pair,
    axpy,
    centred,
    copy_scaled,
    enabled,
    minmax,
    numbers,
    pytestmark,
    scale,
    scale_forall,
    square,
)

CHECKED = {
    "scale": (scale, lambda: (numbers(), 2.0)),
    "scale forall": (scale_forall, lambda: (numbers(), 2.0)),
    "scale strided": (scale, lambda: (numbers()[::2], 2.0)),
    "axpy": (axpy, lambda: (numbers(), numbers())),
    "axpy empty": (axpy, lambda: (numbers(0), numbers(0), 3.0)),
    "minmax": (minmax, lambda: (numbers().reshape(4, 5),)),
    "minmax transposed": (minmax, lambda: (numbers().reshape(4, 5).T,)),
    "square": (square, lambda: (numbers(),)),
    "square with grad": (square, lambda: (numbers(requires_grad=True),)),
    "add_pair": (add_pair, lambda: ([numbers(), numbers()],)),
    "centred": (centred, lambda: (numbers(),)),
}


@pytest.mark.parametrize("case", CHECKED.values(), ids=CHECKED)
def test_operator_when_checked_by_torch_then_it_passes(case):
    op, make = case
    found = torch.library.opcheck(op.overload, make())
    # Of operators that cannot be differentiated there is nothing to check there.
    assert set(found.values()) <= {"SUCCESS"}, found


# Inductor's C++ takes seconds a graph, so without a GPU it is tried where it matters most.
BACKENDS = ["aot_eager", "inductor"]
FEWER = BACKENDS if DEVICE == "cuda" else ["aot_eager"]


@pytest.mark.parametrize("backend", BACKENDS)
def test_compiled_when_the_whole_graph_holds_operators_then_the_result_is_right(backend):
    def compute(x, y):
        z = axpy(x.sin(), y) + 1
        scale(z, 2.0)
        low, high = minmax(z.reshape(4, 5))
        return z, low + high

    x, y = numbers(), numbers() / 3
    found = torch.compile(compute, backend=backend, fullgraph=True)(x, y)
    for one, other in zip(found, compute(x, y), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("backend", FEWER)
def test_compiled_when_an_input_is_mutated_then_the_caller_sees_it(backend):
    def compute(x):
        y = x * 2
        scale(x, 3.0)
        return y + x

    x = numbers()
    found = torch.compile(compute, backend=backend, fullgraph=True)(x)
    assert torch.equal(x, 3 * numbers())
    assert torch.equal(found, 5 * numbers())


@pytest.mark.parametrize("backend", FEWER)
def test_compiled_when_sizes_change_then_they_are_symbols(backend):
    compiled = torch.compile(
        lambda x: axpy(x, x) + square(x), backend=backend, fullgraph=True, dynamic=True
    )
    for count in (3, 8, 21):
        x = numbers(count)
        assert torch.equal(compiled(x), 3 * x + x * x)


@pytest.mark.parametrize("backend", BACKENDS)
def test_compiled_when_differentiated_then_the_gradient_is_right(backend):
    x = numbers(requires_grad=True)
    torch.compile(lambda x: square(x).sin().sum(), backend=backend, fullgraph=True)(
        x
    ).backward()
    expected = 2 * numbers() * (numbers() ** 2).cos()
    torch.testing.assert_close(x.grad, expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("backend", FEWER)
def test_compiled_when_a_saved_tensor_is_mutated_then_it_raises(backend):
    def compute(weight, x):
        y = x + 1
        product = weight * y
        scale(y, 2.0)
        return (product + y).sum()

    compiled = torch.compile(compute, backend=backend, fullgraph=True)
    for call in (compute, compiled):
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            call(numbers(requires_grad=True), numbers()).backward()


@pytest.mark.parametrize("backend", FEWER)
def test_compiled_when_one_argument_requires_grad_and_a_saved_one_is_mutated_then_it_raises(
    backend,
):
    def compute(weight, x):
        y = x + 1
        product = weight * y
        copy_scaled(weight, y)
        return (product + y).sum()

    compiled = torch.compile(compute, backend=backend, fullgraph=True)
    for call in (compute, compiled):
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            call(numbers(requires_grad=True), numbers()).backward()


@pytest.mark.parametrize("backend", FEWER)
def test_compiled_when_it_mutates_what_autograd_does_not_need_then_it_differentiates(
    backend,
):
    def compute(weight, x):
        y = x + 1
        product = weight * y.clone()
        scale(y, 2.0)
        return (product + y).sum()

    weight = numbers(requires_grad=True)
    torch.compile(compute, backend=backend, fullgraph=True)(weight, numbers()).backward()
    assert torch.equal(weight.grad, numbers() + 1)


def test_compiled_when_it_writes_to_what_requires_grad_then_it_is_refused():
    def compute(x):
        y = x * 2
        scale(y, 2.0)
        return y.sum()

    with pytest.raises(Exception, match="requires grad"):
        torch.compile(compute, backend="aot_eager", fullgraph=True)(
            numbers(requires_grad=True)
        )


def test_module_when_exported_then_the_operator_is_in_the_graph():
    class Module(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.op = axpy

        def forward(self, x):
            return self.op(x, x) + 1

    program = torch.export.export(Module(), (numbers(),))
    assert "sv_cases.axpy" in str(program.graph)
    assert torch.equal(program.module()(numbers()), 3 * numbers() + 1)
    assert torch.equal(copy.deepcopy(Module())(numbers()), 3 * numbers() + 1)


def test_operator_when_traced_then_it_is_a_node():
    from torch.fx.experimental.proxy_tensor import make_fx

    graph = make_fx(lambda x: axpy(x, x))(numbers())
    assert "sv_cases.axpy" in str(graph.graph)
    assert torch.equal(graph(2 * numbers()), 6 * numbers())


def test_operator_when_pickled_or_copied_then_it_is_itself():
    assert pickle.loads(pickle.dumps(axpy)) is axpy
    assert copy.deepcopy([axpy])[0] is axpy
    assert copy.copy(axpy) is axpy


def test_operator_when_given_a_rule_for_vmap_then_it_maps():
    def rule(info, dims, x):
        return square(x.reshape(-1)).reshape(x.shape), dims[0]

    torch.library.register_vmap(square.overload, rule)
    x = numbers().reshape(4, 5)
    assert torch.equal(torch.vmap(square)(x), x * x)
