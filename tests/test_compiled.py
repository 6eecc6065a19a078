"""Launches within functions that torch.compile compiles: a graph break, a right result."""

import warnings

import numpy as np
import pytest
from numba import cuda

import stridedview as sv
from stridedview._dynamo import Undisturbed

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.standin,
    pytest.mark.filterwarnings("default"),  # what torch says while it compiles
]


@pytest.fixture
def enabled(driver):
    """Enable for a test, with nothing compiled before, and give the stand-in."""
    import torch._dynamo

    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    with sv.enabled(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the tensors are on the host, and copied
        yield driver
    torch._dynamo.reset()


def fresh():
    """Return a kernel that nothing has compiled yet."""

    @cuda.jit
    def add_one(x):
        x[0] += 1

    return add_one


def add_one_to_memory(launch):
    """Do what the kernel would do to the device's copy of four floats."""
    from tests import standin

    pointer = launch.words[4]
    values = np.frombuffer(standin.read(pointer, 16), np.float32)
    standin.write(pointer, (values + 1).tobytes())


def frames():
    from torch._dynamo.utils import counters

    return counters["frames"]["total"]


def breaks():
    from torch._dynamo.utils import counters

    return counters["graph_break"]


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_function_when_it_launches_then_the_graph_breaks_and_the_result_is_right(
    enabled, backend
):
    kernel = fresh()

    @torch.compile(backend=backend)
    def compute(x):
        y = torch.sin(x) * 2
        kernel[1, 4](y)
        return y * 3

    enabled.on_launch(add_one_to_memory)
    for _ in range(3):  # the first one compiles the kernel
        x = torch.rand(4)
        torch.testing.assert_close(compute(x), (torch.sin(x) * 2 + 1) * 3)
    assert breaks()
    assert len(enabled.launches()) == 3


SPELLINGS = {
    "subscript": lambda kernel, x: kernel[1, 4](x),
    "configure": lambda kernel, x: kernel.configure(1, 4)(x),
    "forall": lambda kernel, x: kernel.forall(4)(x),
    "a stream named": lambda kernel, x: kernel[1, 4, 1](x),
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_function_when_its_launch_is_the_first_then_numbas_compiler_is_not_traced(
    enabled, spelling
):
    kernel, launch = fresh(), SPELLINGS[spelling]
    device = enabled.torch_tensor((4,), torch.float32)

    @torch.compile(backend="eager")
    def compute(x):
        y = x * 2
        launch(kernel, device)
        return y + 1

    for _ in range(2):
        assert compute(torch.ones(4)).tolist() == [3] * 4
    assert len(enabled.launches()) == 2
    assert len(kernel.overloads) + len(kernel.specializations) == 1
    assert frames() <= 16  # the function's own and, for forall, some of its call


def test_function_when_a_launch_is_refused_then_its_error_comes_out(enabled):
    kernel = fresh()

    @torch.compile(backend="eager")
    def compute(x):
        y = x * 2
        try:
            kernel[1, 4](torch._neg_view(y))
        except TypeError as error:
            return str(error)

    assert "argument 1 'x': the tensor's negation is pending" in compute(torch.ones(4))


def test_undisturbed_when_the_function_raises_then_dynamo_goes_on(enabled):
    @Undisturbed
    def fail():
        raise KeyError("inner")

    @torch.compile(backend="eager")
    def compute(x):
        y = x + 1
        try:
            fail()
        except KeyError:
            y = y * 2
        return y

    assert compute(torch.ones(2)).tolist() == [4, 4]
    before = frames()
    torch.compile(lambda x: x - 1, backend="eager")(torch.ones(2))
    assert frames() == before + 1


def test_undisturbed_when_it_is_a_method_then_it_is_bound():
    class Counter:
        count = 3

        @Undisturbed
        def add(self, number, *, more=0):
            """Add to it."""
            return self.count + number + more

    assert Counter().add(1, more=2) == 6
    assert Counter.add.__doc__ == "Add to it."
