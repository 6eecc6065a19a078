"""Kernels as operators of torch's: what they launch, autograd, and how long they live.

On the stand-in driver kernels do not run, so results are checked where they do: by
`torch_op_cases.py`, in a process of its own in Numba's simulator.
"""

import copy
import gc
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import stridedview as sv  # noqa: E402
from tests.launching import caught  # noqa: E402

cuda = pytest.importorskip("numba.cuda")

CASES = ("torch_op_cases.py", "torch_op_tool_cases.py")
pytestmark = pytest.mark.standin


@cuda.jit
def scale(x: torch.Tensor, factor: float):
    i = cuda.grid(1)
    if i < x.size:
        x[i] *= factor


@cuda.jit
def add(x: torch.Tensor, y: torch.Tensor, out: torch.Tensor):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x[i] + y[i]


def tensor(driver, *shape, dtype=torch.float32, **options):
    return driver.torch_tensor(shape, dtype, **options)


# ---- results, in the simulator ----


def test_cases_when_run_in_the_simulator_then_all_pass(tmp_path):
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-n", "0"]
    done = subprocess.run(
        [*command, *(str(Path(__file__).with_name(one)) for one in CASES)],
        capture_output=True,
        text=True,
        check=False,
        env={
            **os.environ,
            "NUMBA_ENABLE_CUDASIM": "1",
            "PYTEST_ADDOPTS": "",
            "TORCHINDUCTOR_CACHE_DIR": str(tmp_path),
        },
    )
    assert done.returncode == 0, done.stdout + done.stderr


# ---- launches ----


def test_kernel_when_called_then_it_is_launched_as_it_is(enabled, name):
    op = sv.torch_op(scale, name=name, grid=(2, 3), block=(8, 4), shared=64, mutates="x")
    x = tensor(enabled, 20)
    for _ in range(2):
        enabled.clear()
        assert op(x, 2) is None
        (launch,) = enabled.launches()
        assert launch.grid == (2, 3, 1)
        assert launch.block == (8, 4, 1)
        assert launch.shared == 64
        assert launch.words[4] == x.data_ptr()
        assert launch.parameters[-1] == b"\0" * 6 + b"\0@"


def test_kernel_when_configured_then_it_is_launched_so(enabled, name):
    op = sv.torch_op(scale[3, 64, 0, 128], name=name, mutates="x")
    op(tensor(enabled, 4), 1.0)
    launch = enabled.launches()[-1]
    assert (launch.grid, launch.block, launch.shared) == ((3, 1, 1), (64, 1, 1), 128)


GRIDS = {
    "callable": ({"grid": lambda x, factor: x.numel() // 8, "block": 8}, 3, 8),
    "callable giving a tuple": (
        {"grid": lambda x, factor: (x.shape[0] // 12, 1), "block": 8}, 2, 8),
    "forall": ({"forall": "x", "block": 16}, 2, 16),
    "forall counting": ({"forall": lambda x, factor: 3 * x.numel(), "block": 24}, 3, 24),
}  # fmt: skip


@pytest.mark.parametrize("case", GRIDS.values(), ids=GRIDS)
def test_grid_when_computed_then_of_the_arguments(enabled, name, case):
    options, blocks, threads = case
    op = sv.torch_op(scale, name=name, mutates="x", **options)
    op(tensor(enabled, 24), 2.0)
    (launch,) = enabled.launches()
    assert (launch.grid, launch.block) == ((blocks, 1, 1), (threads, 1, 1))
    op(tensor(enabled, 0), 2.0)
    assert len(enabled.launches()) == 1


def test_forall_when_no_block_is_given_then_it_is_the_recommended_one(enabled, name):
    op = sv.torch_op(scale, name=name, forall="x", mutates="x")
    x = tensor(enabled, 1000)
    op(x, 2.0)
    scale.forall(1000)(x, 2.0)
    ours, numbas = enabled.launches()
    assert (ours.grid, ours.block) == (numbas.grid, numbas.block)
    op(tensor(enabled, 0), 2.0)
    assert len(enabled.launches()) == 2


def test_outputs_when_made_then_the_kernel_gets_them_in_its_own_order(enabled, name):
    made = []

    def make(y, x):
        made.append(tensor(enabled, *x.shape))
        return made[-1]

    @cuda.jit
    def kernel(out, y: torch.Tensor, more, x: torch.Tensor):
        pass

    op = sv.torch_op(kernel[1, 32], name=name, outputs={"more": make, "out": make})
    x, y = tensor(enabled, 3), tensor(enabled, 5)
    more, out = op(y, x)
    assert [more.data_ptr(), out.data_ptr()] == [one.data_ptr() for one in made]
    words = enabled.launches()[-1].words
    assert [words[4 + 7 * index] for index in range(4)] == [
        one.data_ptr() for one in (out, y, more, x)
    ]


def test_defaults_when_left_out_then_the_kernel_gets_them(enabled, name):
    @cuda.jit
    def kernel(x: torch.Tensor, n: int = 5, m: int = 6):
        pass

    op = sv.torch_op(kernel[1, 32], name=name, mutates="x")
    x = tensor(enabled, 3)
    for given, expected in (((), (5, 6)), ((5,), (5, 6)), ((1, 6), (1, 6))):
        op(x, *given)
        assert tuple(enabled.launches()[-1].words[-2:]) == expected
    op(x, m=9)
    assert tuple(enabled.launches()[-1].words[-2:]) == (5, 9)


def test_list_when_given_then_the_kernel_gets_a_tuple(enabled, name):
    @cuda.jit
    def kernel(parts: list[torch.Tensor]):
        pass

    op = sv.torch_op(kernel[1, 32], name=name, mutates="parts")
    parts = [tensor(enabled, 3), tensor(enabled, 4)]
    op(parts)
    words = enabled.launches()[-1].words
    assert [words[4], words[11]] == [one.data_ptr() for one in parts]
    assert [one._version for one in parts] == [1, 1]


@pytest.mark.filterwarnings("ignore:Host array used")
def test_cpu_tensor_when_given_then_it_is_copied_in_and_back(enabled, name):
    op = sv.torch_op(scale[1, 32], name=name, mutates="x")
    seen = []

    def double(launch):
        seen.append(enabled.read(launch.words[4], 8))
        enabled.write(launch.words[4], torch.tensor([9.0, 8.0]).numpy().tobytes())

    enabled.on_launch(double)
    x = torch.tensor([1.0, 2.0])
    op(x, 2.0)
    assert seen == [torch.tensor([1.0, 2.0]).numpy().tobytes()]
    assert x.tolist() == [9.0, 8.0]
    assert x._version == 1


def test_operator_when_stridedview_is_not_enabled_then_it_says_so(driver, name):
    op = sv.torch_op(scale, name=name, grid=1, block=32, mutates="x")
    x = tensor(driver, 3)
    with caught(RuntimeError, "call stridedview.enable"):
        op(x, 2.0)
    with sv.enabled():
        op(x, 2.0)
    with caught(RuntimeError, "call stridedview.enable"):
        op(x, 2.0)


def test_operator_when_launches_go_to_numbas_stream_then_it_is_refused(driver, name):
    op = sv.torch_op(scale, name=name, grid=1, block=32, mutates="x")
    x = tensor(driver, 3)
    with sv.enabled(stream="numba"), caught(RuntimeError, "has to run on torch's"):
        op(x, 2.0)
    with sv.enabled(stream="producer", strict=True):
        op(x, 2.0)


def test_operator_when_torch_is_on_a_stream_then_it_is_launched_there(enabled, name):
    op = sv.torch_op(scale[1, 32], name=name, mutates="x")
    x = tensor(enabled, 3)
    op(x, 2.0)
    scale[1, 32](x, 2.0)
    ours, plain = enabled.launches()
    assert ours.stream_id == plain.stream_id


def test_operator_when_called_wrongly_then_torch_says_so(enabled, name):
    op = sv.torch_op(scale[1, 32], name=name, mutates="x")
    with caught(RuntimeError, "missing value for argument 'factor'"):
        op(tensor(enabled, 3))
    with caught(RuntimeError, "Expected a value of type 'Tensor'"):
        op([1.0], 2.0)
    with caught(TypeError, r"argument 1 'x': .*sparse"):
        op(torch.eye(3).to_sparse(), 2.0)


# ---- autograd ----


def test_versions_when_called_then_only_the_mutated_ones_change(enabled, name):
    @cuda.jit
    def kernel(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor):
        pass

    op = sv.torch_op(kernel[1, 32], name=name, mutates=("a", "c"))
    arrays = [tensor(enabled, 3) for _ in range(3)]
    op(*arrays)
    assert [one._version for one in arrays] == [1, 0, 1]


def test_version_when_given_by_keyword_or_absent_then_it_is_bumped_where_there_is_one(name):
    op = sv.torch_op(
        lambda x, *, y, z: None,
        name=name,
        schema="(Tensor(a!)? x, *, Tensor(b!) y, Tensor(c!)[]? z) -> ()",
    )
    x, y, z = torch.ones(3), torch.ones(3), [torch.ones(2), torch.ones(2)]
    op(x, y=y, z=z)
    op(None, y=y, z=None)
    assert (x._version, y._version, z[0]._version, z[1]._version) == (1, 2, 1, 1)


def test_version_when_an_optional_tensor_is_left_out_then_the_others_are_bumped(name):
    op = sv.torch_op(
        lambda x, y=None: None, name=name, schema="(Tensor(a!) x, Tensor(b!)? y=None) -> ()"
    )
    x, y = torch.ones(3), torch.ones(3)
    op(x)
    op(x, y)
    op(y=y, x=x)
    assert (x._version, y._version) == (3, 2)


def test_kernel_when_it_mutates_a_saved_tensor_then_its_backward_raises(enabled, name):
    op = sv.torch_op(scale[1, 32], name=name, mutates="x")
    x = tensor(enabled, 3, fill=1.0)

    class Save(torch.autograd.Function):
        @staticmethod
        def forward(ctx, weight, x):
            ctx.save_for_backward(x)
            return weight.clone()

        @staticmethod
        def backward(ctx, grad):
            return grad, ctx.saved_tensors[0]

    result = Save.apply(torch.ones(3, requires_grad=True), x).sum()
    op(x, 2.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.backward()


def test_function_when_it_mutates_beside_what_requires_grad_then_nothing_is_recorded(name):
    @sv.torch_op(name=name, mutates="out")
    def store(x: torch.Tensor, out: torch.Tensor) -> None:
        out.copy_(x * 2)

    def store_plainly(x: torch.Tensor, out: torch.Tensor) -> None:
        out.copy_(x * 2)

    torchs = torch.library.custom_op(name + "_2", store_plainly, mutates_args=("out",))
    # torch is as silent: statistics of what requires grad are kept by such operators.
    for op in (store, torchs):
        x, out = torch.ones(3, requires_grad=True), torch.zeros(3)
        op(x, out)
        assert out.tolist() == [2.0] * 3
        assert not out.requires_grad
        (out * x).sum().backward()
        assert x.grad.tolist() == [2.0] * 3
    with pytest.raises(RuntimeError, match=r"writes to out, of which one requires grad"):
        store(torch.ones(3), x)


def test_function_when_it_mutates_and_returns_then_only_the_result_is_recorded(name):
    @sv.torch_op(name=name, mutates="state", fake=lambda x, state: torch.empty_like(x))
    def accumulate(x: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        state += x
        return state * 2

    x, state = torch.ones(3, requires_grad=True), torch.ones(3)
    found = accumulate(x, state)
    assert state.tolist() == [2.0] * 3
    assert found.tolist() == [4.0] * 3
    assert (found.requires_grad, state.requires_grad) == (True, False)
    with pytest.raises(RuntimeError, match="has no backward"):
        found.sum().backward()
    assert not accumulate(x.detach(), state).requires_grad
    checked = torch.library.opcheck(accumulate.overload, (torch.ones(3), torch.ones(3)))
    assert set(checked.values()) == {"SUCCESS"}


def test_function_when_it_has_a_backward_then_gradcheck_passes(name):
    def keep(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])
        ctx.power = inputs[1]

    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * ctx.power * x ** (ctx.power - 1), None

    power = sv.torch_op(
        lambda x, n: x**n,
        name=name,
        schema="(Tensor x, int n=3) -> Tensor",
        fake=lambda x, n=3: torch.empty_like(x),
        backward=backward,
        setup_context=keep,
    )
    x = torch.rand(4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(power, (x,))
    assert torch.autograd.gradgradcheck(power, (x, 4))
    found = torch.library.opcheck(power.overload, (x, 2))
    assert set(found.values()) == {"SUCCESS"}


# ---- life ----


def plain_function(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


def test_name_when_defined_again_then_the_new_one_counts(name):
    def define(number):
        return sv.torch_op(
            lambda x: x + number, name=name, schema="(Tensor x) -> Tensor",
            fake=torch.empty_like,
        )  # fmt: skip

    first = define(1)
    assert first(torch.zeros(1)).item() == 1
    second = define(2)
    assert second(torch.zeros(1)).item() == 2
    with pytest.raises(RuntimeError, match="was defined again; this one is gone"):
        first(torch.zeros(1))
    assert torch.library.opcheck(second.overload, (torch.zeros(1),))
    namespace, _, short = name.partition("::")
    assert getattr(getattr(torch.ops, namespace), short)(torch.zeros(1)).item() == 2


FAILING = {
    "define": (torch.library.Library, "define"),
    "impl": (torch.library.Library, "impl"),
    "fake": (torch.library, "register_fake"),
    "autocast": (torch.library, "register_autocast"),
}


@pytest.mark.parametrize("case", FAILING.values(), ids=FAILING)
def test_name_when_the_new_definition_fails_then_the_old_one_stays(name, case, monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("made to fail")

    options = {"name": name, "fake": torch.empty_like, "autocast": torch.float16}
    op = sv.torch_op(plain_function, **options)
    for _ in range(2):
        with monkeypatch.context() as patch:
            patch.setattr(*case, fail)
            with pytest.raises(RuntimeError, match="made to fail"):
                sv.torch_op(lambda x: x * 7, schema="(Tensor x) -> Tensor", **options)
        assert op(torch.ones(1)).item() == 1
        assert pickle.loads(pickle.dumps(op)) is op
        namespace, _, short = name.partition("::")
        assert getattr(getattr(torch.ops, namespace), short)(torch.ones(1)).item() == 1
    new = sv.torch_op(lambda x: x * 7, schema="(Tensor x) -> Tensor", **options)
    assert new(torch.ones(1)).item() == 7


def test_operator_when_nobody_holds_it_then_torch_still_has_it(name):
    sv.torch_op(plain_function, name=name, fake=torch.empty_like)
    gc.collect()
    namespace, _, short = name.partition("::")
    assert getattr(getattr(torch.ops, namespace), short)(torch.ones(1)).item() == 1


def test_operator_when_pickled_or_copied_then_it_is_found_by_name(name):
    op = sv.torch_op(plain_function, name=name, fake=torch.empty_like)
    assert pickle.loads(pickle.dumps(op)) is op
    assert copy.deepcopy({"op": op})["op"] is op
    assert copy.copy(op) is op
    unknown = pickle.dumps(op).replace(name[-4:].encode(), b"else")
    with pytest.raises(RuntimeError, match="import the module that defines it"):
        pickle.loads(unknown)
