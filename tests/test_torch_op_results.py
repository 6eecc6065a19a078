"""What operators return: new tensors, and what is refused as none."""

import pytest

torch = pytest.importorskip("torch")

import stridedview as sv  # noqa: E402
from tests.launching import caught  # noqa: E402

cuda = pytest.importorskip("numba.cuda")

pytestmark = pytest.mark.standin


@cuda.jit
def add(x: torch.Tensor, y: torch.Tensor, out: torch.Tensor):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x[i] + y[i]


SHARING = {
    "the argument": lambda x, parts: x,
    "a view": lambda x, parts: x.view(-1),
    "a part": lambda x, parts: x[1:],
    "reshaped": lambda x, parts: x.reshape(-1),
    "contiguous already": lambda x, parts: x.contiguous(),
    "of a list": lambda x, parts: parts[1],
    "a view of one of a list": lambda x, parts: parts[1][:2],
}


@pytest.mark.parametrize("case", SHARING.values(), ids=SHARING)
def test_function_when_it_returns_an_argument_then_it_is_refused(name, case):
    is_honest = True
    op = sv.torch_op(
        lambda x, parts: x.clone() if is_honest else case(x, parts),
        name=name,
        schema="(Tensor x, Tensor[] parts) -> Tensor",
        fake=lambda x, parts: torch.empty_like(x) if is_honest else case(x, parts),
    )
    x, parts = torch.ones(3), [torch.ones(3), torch.ones(3)]
    assert op(x, parts).tolist() == [1.0] * 3
    is_honest = False
    for _ in range(2):
        with pytest.raises(
            RuntimeError, match=r"returned one of .* memory of '(x|parts\[1\])"
        ):
            op(x, parts)
    metas = [torch.empty(3, device="meta") for _ in range(3)]
    with pytest.raises(RuntimeError, match="the fake implementation of operator"):
        op(metas[0], metas[1:])


RETURNED = {
    "the same twice": ("(Tensor x) -> (Tensor, Tensor)", lambda x: (x + 1,) * 2),
    "two views of one": ("(Tensor x) -> (Tensor, Tensor)", lambda x: (x + 1).split(2)),
    "in a list": ("(Tensor x) -> Tensor[]", lambda x: [x + 1, x]),
    "twice in a list": ("(Tensor x) -> Tensor[]", lambda x: list((x + 1).split(2))),
}


@pytest.mark.parametrize("case", RETURNED.values(), ids=RETURNED)
def test_function_when_results_share_memory_then_it_is_refused(name, case):
    schema, function = case
    op = sv.torch_op(function, name=name, schema=schema, fake=function)
    with pytest.raises(RuntimeError, match=r"or the same twice: result [01]"):
        op(torch.ones(4))


def test_function_when_results_are_new_or_of_no_items_then_they_are_taken(name):
    op = sv.torch_op(
        lambda x: [x + 1, x[:0], x * 2],
        name=name,
        schema="(Tensor x) -> Tensor[]",
        fake=lambda x: [x + 1, x[:0], x * 2],
    )
    assert [one.tolist() for one in op(torch.ones(1))] == [[2.0], [], [2.0]]
    sparse = sv.torch_op(
        lambda x: x.clone(), name=name + "2", schema="(Tensor x) -> Tensor",
        fake=torch.empty_like,
    )  # fmt: skip
    assert sparse(torch.eye(3).to_sparse()).is_sparse


@pytest.mark.filterwarnings("ignore:Host array used")
@pytest.mark.parametrize("case", SHARING.values(), ids=SHARING)
def test_outputs_when_they_are_no_new_tensors_then_nothing_is_launched(enabled, name, case):
    @cuda.jit
    def kernel(x: torch.Tensor, parts: list[torch.Tensor], out: torch.Tensor):
        pass

    is_honest = True

    def make(x, parts):
        return torch.empty_like(x) if is_honest else case(x, parts)

    op = sv.torch_op(kernel[1, 32], name=name, outputs={"out": make})
    # On the CPU, where slicing works without a GPU.
    x, parts = torch.ones(3), [torch.ones(3), torch.ones(3)]
    op(x, parts)
    is_honest = False
    what = r"outputs= made for 'out' has the memory of '(x|parts\[1\])"
    for _ in range(2):
        with caught(ValueError, what):
            op(x, parts)
    metas = [torch.empty(3, device="meta") for _ in range(3)]
    with caught(ValueError, what):
        op(metas[0], metas[1:])


def test_outputs_when_they_are_one_tensor_then_refused(enabled, name):
    whole = torch.ones(6)
    halves = {"y": lambda x: whole[:3], "out": lambda x: whole[3:]}
    op = sv.torch_op(add[1, 32], name=name, outputs=halves)
    with caught(ValueError, "outputs= made for 'out' has the memory of 'y'"):
        op(torch.ones(3))


def test_outputs_when_one_is_a_number_then_refused(enabled, name):
    op = sv.torch_op(add[1, 32], name=name, outputs={"out": lambda x, y: 3})
    x = torch.ones(3)
    for given in (x, torch.empty(3, device="meta")):
        with caught(TypeError, "outputs= must make tensors, but .* 'out' gave a int"):
            op(given, given)


def test_meta_tensor_when_beside_a_real_one_then_refused_and_not_taken_for_traced(name):
    @sv.torch_op(name=name, mutates="out")
    def store(x: torch.Tensor, out: torch.Tensor, parts: list[torch.Tensor]) -> None:
        out.copy_(x)

    meta, real = torch.empty(3, device="meta"), torch.zeros(3)
    for args, match in (
        ((real, meta, []), "'out' is a meta tensor, .* but 'x' is on cpu"),
        ((meta, real, []), "'x' is a meta tensor, .* but 'out' is on cpu"),
        ((real, real, [meta]), r"'parts\[0\]' is a meta tensor"),
    ):
        with pytest.raises(TypeError, match=match):
            store(*args)
    store(meta, meta, [torch.tensor(3.0)])
    store(real, real, [])
    function = torch.compile(lambda x, y: store(x, y, [x]), backend="eager", fullgraph=True)
    function(torch.ones(3), real)
    assert real.tolist() == [1.0] * 3
