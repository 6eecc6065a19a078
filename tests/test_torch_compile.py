"""Launches and operators within torch.compile and torch.export, on the stand-in driver.

Kernels do not run there; `torch_op_cases.py` compares results, in the simulator and on a
GPU.
"""

import pytest

torch = pytest.importorskip("torch")

import stridedview as sv  # noqa: E402
from tests.standin.helpers import run_child  # noqa: E402

cuda = pytest.importorskip("numba.cuda")

pytestmark = pytest.mark.standin


@cuda.jit
def scale(x: torch.Tensor, factor: float):
    i = cuda.grid(1)
    if i < x.size:
        x[i] *= factor


def tensor(driver, *shape, dtype=torch.float32, **options):
    return driver.torch_tensor(shape, dtype, **options)


@pytest.fixture
def dynamo():
    """Reset torch.compile around a test."""
    torch._dynamo.reset()
    yield torch._dynamo
    torch._dynamo.reset()


def test_operator_when_compiled_whole_then_it_is_launched(enabled, dynamo):
    op = sv.torch_op(scale[1, 32], name="sv_compile::scale", mutates="x")

    def compute(x):
        op(x, 2.0)
        op(x, factor=3.0)
        return x

    x = tensor(enabled, 3)
    assert torch.compile(compute, backend="eager", fullgraph=True)(x) is x
    assert len(enabled.launches()) == 2
    assert x._version == 2


def test_operator_when_called_from_compiled_code_that_is_not_whole_then_it_is_not_traced(
    dynamo,
):
    def store(x: torch.Tensor, out: torch.Tensor) -> None:
        out.copy_(x)

    sv.torch_op(store, name="sv_compile::hidden", mutates="out")

    def compute(x, out):
        # Dynamo gives up a sort, and looks at every frame that begins in it.
        sorted([out], key=lambda one: torch.ops.sv_compile.hidden.default._op(x, one) or 1)
        return out

    seen = []
    hook = dynamo.convert_frame.register_bytecode_hook(
        lambda code, _: seen.append(code.co_filename)
    )
    try:
        x = torch.ones(3)
        found = torch.compile(compute, backend="eager")(x, torch.zeros(3))
    finally:
        hook.remove()
    assert torch.equal(found, x)
    assert set(seen) == {__file__}


# The function's own, what follows each break of the graph, and what hides the rest of ours:
# without that Dynamo follows Numba through thousands, or until the recursion limit.
FRAMES = 8
PLAIN = {
    "configured": lambda kernel: kernel[1, 32],
    "forall": lambda kernel: kernel.forall(3),
    "written out": lambda kernel: lambda *args: kernel[1, 32](*args),
    "by configure": lambda kernel: lambda *args: kernel.configure(1, 32)(*args),
    "prepared": lambda kernel: None,
}


def plain_launch(driver, how):
    """Return a fresh kernel's launch and its argument."""

    @cuda.jit
    def kernel(x, factor):
        x[0] *= factor

    x = tensor(driver, 3)
    if how == "prepared":
        prepared = sv.prepare(kernel[1, 32], x, 2.0)
        return lambda *args: prepared(), x
    return PLAIN[how](kernel), x


@pytest.mark.parametrize("how", PLAIN)
def test_plain_launch_when_compiled_then_it_breaks_the_graph_and_runs(enabled, how, dynamo):
    launch, x = plain_launch(enabled, how)

    def compute(x):
        launch(x, 2.0)
        return x

    dynamo.utils.counters.clear()
    compiled = torch.compile(compute, backend="eager")
    for _ in range(2):
        enabled.clear()
        assert compiled(x) is x
        assert len(enabled.launches()) == 1
    assert dynamo.utils.counters["frames"]["total"] <= FRAMES


@pytest.mark.parametrize("how", PLAIN)
def test_plain_launch_when_the_graph_must_be_whole_then_torch_op_is_named(
    enabled, how, dynamo
):
    launch, x = plain_launch(enabled, how)

    def compute(x):
        launch(x, 2.0)
        return x

    with pytest.raises(dynamo.exc.Unsupported, match=r"stridedview\.torch_op\(kernel"):
        torch.compile(compute, backend="eager", fullgraph=True)(x)
    assert enabled.launches() == []


LATE = """
import os
from tests import standin
standin.load()
import stridedview
stridedview.enable()
from numba import cuda

@cuda.jit
def kernel(x, factor):
    x[0] *= factor

import torch
assert torch.__name__ == "torch"
x = {kind}(standin.torch_tensor((3,), torch.float32))

def compute(x):
    kernel{how}(x, 2.0)
    return x

torch.compile(compute, backend="eager")(x)
frames = torch._dynamo.utils.counters["frames"]["total"]
print(len(standin.launches()), frames, flush=True)
os._exit(0)  # the memory of what Dynamo still holds is the stand-in's
"""


# A view is read without asking torch; then nothing hides frames before the first miss.
@pytest.mark.parametrize("kind", ["", "stridedview.from_any"])
@pytest.mark.parametrize("how", ["[1, 32]", ".forall(3)", ".configure(1, 32)"])
def test_plain_launch_when_torch_is_imported_after_enable_then_nothing_is_traced(how, kind):
    done = run_child(LATE.replace("{how}", how).replace("{kind}", kind))
    assert done.returncode == 0, done.stderr
    launches, frames = map(int, done.stdout.split())
    assert launches == 1
    assert frames <= 5 * FRAMES  # a few are looked at and skipped, once in a process


@pytest.mark.parametrize("strict", [True, False])
def test_plain_launch_when_exported_then_torch_op_is_named(enabled, strict, dynamo):
    class Module(torch.nn.Module):
        def forward(self, x):
            scale[1, 32](x, 2.0)
            return x

    with pytest.raises(Exception, match=r"stridedview\.torch_op\(kernel"):
        torch.export.export(Module(), (torch.ones(3),), strict=strict)
