"""What an operator can be defined of, the schema that it gets, and what is refused."""

import functools
import threading
import typing

import pytest

torch = pytest.importorskip("torch")

import stridedview as sv  # noqa: E402

cuda = pytest.importorskip("numba.cuda")

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


@cuda.jit
def bare(x, n):
    x[0] = n


# ---- schema ----


def plain_function(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


def everything(
    x: torch.Tensor, y: "torch.Tensor | None", parts: list[torch.Tensor],
    pair: tuple[torch.Tensor, torch.Tensor], n: int, f: float = 1.5, b: bool = True,
    sizes: list[int] = (), word: str = "a", kind: "torch.dtype" = torch.float32,
) -> None:  # fmt: skip
    pass


def local_annotation():
    tensors = torch.Tensor

    def function(x: "tensors", n: int = 3) -> None:
        return tensors

    return function


def with_keyword(x: torch.Tensor, *, out: torch.Tensor) -> None:
    pass


def with_parameter(
    x: torch.nn.Parameter, parts: list[torch.nn.Parameter],
    y: typing.Annotated[torch.Tensor, "rows"],
    z: typing.Annotated[torch.Tensor, "rows"] | None,
    n: typing.Annotated[int, "items"] = 3,
) -> typing.Annotated[torch.Tensor, "rows"]:  # fmt: skip
    pass


SCHEMAS = {
    "annotated and parameters": (
        with_parameter, {"fake": torch.empty_like},
        "(Tensor x, Tensor[] parts, Tensor y, Tensor? z, SymInt n=3) -> Tensor"),
    "text evaluated": (
        local_annotation(), {"mutates": "x"}, "(Tensor(a0!) x, SymInt n=3) -> ()"),
    "keyword only": (
        with_keyword, {"mutates": ["out"]}, "(Tensor x, *, Tensor(a1!) out) -> ()"),
    "given": (
        lambda x, n: None, {"schema": "(Tensor(b!) x, int n=7) -> ()"},
        "(Tensor(b!) x, int n=7) -> ()"),
    "a list is mutated": (
        lambda x: None, {"schema": "(Tensor(a!)[] x) -> ()"}, "(Tensor(a!)[] x) -> ()"),
}  # fmt: skip


@pytest.mark.parametrize("case", SCHEMAS.values(), ids=SCHEMAS)
def test_schema_when_inferred_or_given_then_it_is_torchs(name, case):
    function, options, expected = case
    op = sv.torch_op(function, name=name, **options)
    assert op.schema == name + expected
    assert op.name == name
    assert op.kernel is function
    assert repr(op) == f"<torch operator {op.schema}>"
    namespace, _, short = name.partition("::")
    assert getattr(getattr(torch.ops, namespace), short).default is op.overload
    # Its kernel is compiled for strides, and its fake results have those of the arguments.
    tags = {torch.Tag.pt2_compliant_tag, torch.Tag.needs_exact_strides}
    assert tags <= set(op.overload.tags)


class Adding:
    """A callable that is no function."""

    def __init__(self, number):
        self.number = number

    def __call__(self, x: "torch.Tensor") -> None:
        x.add_(self.number)


@pytest.mark.parametrize("number", [2, 3])
def test_definition_when_a_callable_is_given_then_it_is_called(name, number):
    op = sv.torch_op(Adding(number), name=name, mutates="x")
    x = torch.zeros(1)
    op(x)
    assert x.item() == number


def test_schema_when_every_type_is_used_then_all_are_there(name):
    everything.__defaults__ = (1.5, True, None, "a", torch.float32)
    everything.__annotations__["sizes"] = list[int] | None
    op = sv.torch_op(everything, name=name, mutates=("x", "parts"))
    assert op.schema == (
        f"{name}(Tensor(a0!) x, Tensor? y, Tensor(a2!)[] parts, Tensor[] pair, SymInt n, "
        'float f=1.5, bool b=True, SymInt[]? sizes=None, str word="a", '
        "ScalarType kind=float32) -> ()"
    )


def test_schema_when_a_kernel_has_outputs_then_they_are_results(name):
    op = sv.torch_op(add[1, 32], name=name, outputs={"out": "x"})
    assert op.schema == f"{name}(Tensor x, Tensor y) -> Tensor"
    op = sv.torch_op(add[1, 32], name=name + "2", outputs={"out": "x", "y": "x"})
    assert op.schema == f"{name}2(Tensor x) -> (Tensor, Tensor)"
    assert op.kernel is add


def test_decorator_when_used_then_it_gives_the_operator(name):
    @sv.torch_op(name=name, mutates="x")
    def fill(x: torch.Tensor) -> None:
        """Set every item."""
        x.fill_(7)

    assert isinstance(fill, sv.TorchOp)
    assert fill.__doc__ == "Set every item."
    x = torch.zeros(3)
    fill(x)
    assert x.tolist() == [7.0] * 3


# ---- definitions that are refused ----


def unannotated(x, n: int) -> None:
    pass


def without_result(x: torch.Tensor):
    pass


def odd_type(x: torch.Tensor, n: complex) -> None:
    pass


def odd_default(x: torch.Tensor, n: "list[int]" = [1]) -> None:  # noqa: B006
    pass


def odd_result(x: torch.Tensor) -> dict:
    pass


def unknown_text(x: "Tensro") -> None:  # noqa: F821
    pass


def failing_text(x: torch.Tensor, n: "1 / 0") -> None:
    pass


def failing_result(x: torch.Tensor) -> "{}[3]":
    pass


def no_type(x: torch.Tensor, n: 3) -> None:
    pass


def no_type_that_is_hashed(x: torch.Tensor, n: [int]) -> None:
    pass


def literal(x: torch.Tensor, n: typing.Literal[3]) -> None:
    pass


def no_result(x: torch.Tensor) -> 3:
    pass


def optional_result(x: torch.Tensor) -> torch.Tensor | None:
    pass


@cuda.jit(device=True)
def device_function(x):
    return x


@cuda.jit
def listing(parts: list[torch.Tensor]):
    pass


@cuda.jit
def many(*args):
    pass


REFUSED = {
    "no namespace": (
        scale, {"name": "scale"}, ValueError, "has no namespace; write 'mylib::scale'"),
    "odd name": (scale, {"name": "a::b c"}, ValueError, "not of the form"),
    "name of no text": (scale, {"name": 3}, TypeError, "must be a string"),
    "another's name": (
        scale, {"name": "aten::add", "mutates": "x", "grid": 1, "block": 1}, ValueError,
        "defined already, and not by stridedview"),
    "no kernel": (3, {}, TypeError, "takes a kernel or a function, got a int"),
    "a class": (dict, {}, TypeError, "takes a kernel or a function"),
    "forall of a number": (
        lambda: scale.forall(3), {"mutates": "x"}, TypeError, "give torch_op the kernel"),
    "device function": (
        device_function, {"grid": 1, "block": 1}, TypeError, "is a device function"),
    "many arguments": (many, {"grid": 1, "block": 1}, TypeError, r"takes \*args"),
    "no grid": (scale, {"mutates": "x"}, TypeError, "give either grid=, with block="),
    "grid and forall": (
        scale, {"grid": 1, "forall": "x"}, TypeError, "give either grid=, with block="),
    "no block": (scale, {"grid": 1}, TypeError, "grid= needs block="),
    "forall of nothing": (
        scale, {"forall": "z"}, ValueError, "no parameter of kernel 'scale'.*x, factor"),
    "forall with axes": (
        scale, {"forall": "x", "block": (8, 8)}, TypeError, "must be a positive integer"),
    "configured twice": (
        lambda: scale[1, 32], {"grid": 1, "block": 1}, TypeError, "configured already"),
    "on a stream": (
        lambda: scale[1, 32, 1], {"mutates": "x"}, ValueError, "runs on torch's current"),
    "grid of a function": (
        plain_function, {"grid": 1}, TypeError, "launches its kernels itself"),
    "fake of a kernel": (
        scale, {"grid": 1, "block": 1, "fake": torch.empty_like}, TypeError,
        "follows from outputs="),
    "no annotation": (unannotated, {"mutates": "x"}, TypeError, "'x' has no annotation"),
    "no annotation in a kernel": (
        bare, {"grid": 1, "block": 1, "mutates": "x"}, TypeError, "'x' has no annotation"),
    "no result": (without_result, {"mutates": "x"}, TypeError, "write -> None"),
    "odd type": (
        odd_type, {"mutates": "x"}, TypeError, "'n' is annotated complex, .* has no type"),
    "odd default": (odd_default, {"mutates": "x"}, TypeError, r"'n' has the default \[1\]"),
    "odd result": (
        odd_result, {"mutates": "x"}, TypeError, "returns dict, .* has no type"),
    "unknown text": (
        unknown_text, {"mutates": "x"}, TypeError,
        "'Tensro' of parameter 'x' of the function cannot be evaluated .NameError"),
    "text that fails": (
        failing_text, {"mutates": "x"}, TypeError,
        ("test_torch_op_definition::.* '1 / 0' of parameter 'n' "
         ".* .ZeroDivisionError: division")),
    "result that fails": (
        failing_result, {"mutates": "x"}, TypeError, "of the result .* .KeyError"),
    "no type": (no_type, {"mutates": "x"}, TypeError, "'n' is annotated 3, .* no type"),
    "no type that is hashed": (
        no_type_that_is_hashed, {"mutates": "x"}, TypeError, r"'n' is annotated \[<class"),
    "literal": (literal, {"mutates": "x"}, TypeError, "'n' is annotated .*Literal"),
    "no type returned": (
        no_result, {"mutates": "x"}, TypeError, "returns 3, .* has no type"),
    "optional result": (
        optional_result, {"mutates": "x"}, TypeError, "returns .*None, .* has no type"),
    "forall of a float": (
        scale, {"forall": "factor", "mutates": "x"}, TypeError,
        "forall='factor' names an argument of type float"),
    "forall of a float in a schema": (
        bare, {"forall": "n", "block": 8, "schema": "(Tensor(a!) y, float x) -> ()"},
        TypeError, "forall='n' names an argument of type float"),
    "forall of a list": (
        listing, {"forall": "parts", "block": 8, "mutates": "parts"}, TypeError,
        r"forall='parts' names an argument of type List\[Tensor\]"),
    "mutates a number": (
        scale, {"grid": 1, "block": 1, "mutates": "factor"}, TypeError,
        "names 'factor', which is annotated float; only tensors"),
    "mutates nothing there": (
        scale, {"grid": 1, "block": 1, "mutates": "y"}, ValueError,
        "mutates= names 'y', but the parameters are x, factor"),
    "outputs nothing there": (
        add, {"grid": 1, "block": 1, "outputs": {"z": "x"}}, ValueError,
        "outputs= names 'z'"),
    "output like nothing there": (
        add, {"grid": 1, "block": 1, "outputs": {"out": "z"}}, ValueError,
        "makes 'out' like 'z', which is no argument; they are x, y"),
    "both": (
        add, {"grid": 1, "block": 1, "outputs": {"out": "x"}, "mutates": "out"}, ValueError,
        "in mutates= and in outputs="),
    "neither": (scale, {"grid": 1, "block": 1}, ValueError, "neither returns nor mutates"),
    "no fake": (plain_function, {}, TypeError, "give fake=, or"),
    "schema and mutates": (
        bare, {"grid": 1, "block": 1, "mutates": "x", "schema": "(Tensor(a!) x) -> ()"},
        ValueError, "leave mutates= out"),
    "schema with a name": (
        bare, {"grid": 1, "block": 1, "schema": "f(Tensor(a!) x, int n) -> ()"}, ValueError,
        "begins with its arguments"),
    "schema that is none": (
        bare, {"grid": 1, "block": 1, "schema": "(Tnsr(a!) x, int n) -> ()"}, ValueError,
        "Tnsr"),
    "schema of others": (
        bare, {"grid": 1, "block": 1, "schema": "(Tensor(a!) x) -> ()"}, ValueError,
        r"has 1 arguments, but there are 2 parameters \(x, n\)"),
    "schema that returns an argument": (
        bare, {"grid": 1, "block": 1, "schema": "(Tensor(a!) x, int n) -> Tensor(a!)"},
        ValueError, "returns an argument or a view of one"),
    "schema with results": (
        bare, {"grid": 1, "block": 1, "schema": "(Tensor(a!) x, int n) -> Tensor"},
        ValueError, "a kernel returns nothing"),
    "schema with other results": (
        add, {"grid": 1, "block": 1, "outputs": {"out": "x"},
              "schema": "(Tensor x, Tensor y) -> (Tensor, Tensor)"},
        ValueError, "returns 2 values, outputs= has 1"),
    "schema with keywords": (
        bare, {"grid": 1, "block": 1, "schema": "(Tensor(a!) x, *, int n) -> ()"},
        ValueError, "arguments by keyword only are for functions"),
    "keyword tensors": (
        lambda x, y: x, {"schema": "(Tensor x, *, Tensor y) -> Tensor",
                         "fake": torch.empty_like},
        ValueError, "takes some by keyword only"),
    "backward of a mutation": (
        scale, {"grid": 1, "block": 1, "mutates": "x", "backward": print}, ValueError,
        r"mutates x, .*backward= is for operators that return new tensors"),
    "autocast of a mutation": (
        scale, {"grid": 1, "block": 1, "mutates": "x", "autocast": torch.float16},
        ValueError, "autocast= is for operators that return new tensors"),
    "context without backward": (
        plain_function, {"fake": torch.empty_like, "setup_context": print}, TypeError,
        "setup_context= needs backward="),
    "autocast to nothing": (
        plain_function, {"fake": torch.empty_like, "autocast": "float16"}, TypeError,
        "takes a torch.dtype or"),
    "autocast elsewhere": (
        plain_function, {"fake": torch.empty_like, "autocast": ("mps", torch.float16)},
        ValueError, "'cuda' or 'cpu', not 'mps'"),
    "autocast to integers": (
        plain_function, {"fake": torch.empty_like, "autocast": torch.int32}, ValueError,
        "floating dtypes, not torch.int32"),
    "grid as text": (
        bare, {"grid": "5", "block": 1}, TypeError, "grid= takes a number .* got '5'"),
    "grid of four": (
        bare, {"grid": (1, 1, 1, 1), "block": 1}, TypeError, "tuple of up to three"),
    "shared below zero": (
        bare, {"grid": 1, "block": 1, "shared": -1}, TypeError, "bytes, got -1"),
    "mutates what is no name": (
        scale, {"grid": 1, "block": 1, "mutates": 5}, TypeError, "mutates= takes .* got 5"),
    "outputs as text": (
        add, {"grid": 1, "block": 1, "outputs": "out"}, TypeError,
        "outputs= takes a dict .* got 'out'"),
    "schema as a number": (
        bare, {"grid": 1, "block": 1, "schema": 5}, TypeError, "schema= takes a text"),
    "fake as a number": (plain_function, {"fake": 5}, TypeError, "fake= takes a function"),
    "backward as a number": (
        plain_function, {"fake": torch.empty_like, "backward": 5}, TypeError,
        "backward= takes a function"),
    "autocast with keywords": (
        lambda x, n: x, {"schema": "(Tensor x, *, int n) -> Tensor",
                         "fake": torch.empty_like, "autocast": torch.float16},
        ValueError, "no arguments by keyword only"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_definition_when_it_cannot_be_then_it_is_refused(
    enabled, name, case, caplog, capfd
):
    target, options, error, match = case
    if options.get("schema") is None and getattr(target, "__name__", "") == "<lambda>":
        target = target()
    with pytest.raises(error, match=match):
        sv.torch_op(target, **{"name": name, **options})
    namespace, _, short = name.partition("::")
    assert not hasattr(getattr(torch.ops, namespace), short)
    assert not caplog.records
    assert not capfd.readouterr().err


def test_definition_when_threads_define_one_name_at_once_then_the_last_stays(name):
    errors, made = [], []

    def define():
        try:
            for _ in range(5):
                op = sv.torch_op(plain_function, name=name, fake=torch.empty_like)
                made.append(op)
        except (RuntimeError, ValueError) as error:
            errors.append(error)

    threads = [threading.Thread(target=define) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    alive = [op for op in made if not isinstance(op.overload, functools.partial)]
    assert len(alive) == 1
    assert alive[0](torch.ones(2)).tolist() == [1.0, 1.0]


def test_operator_when_given_none_for_a_tensor_that_it_writes_to_then_says_so(name):
    @sv.torch_op(name=name, mutates="x")
    def write(x: torch.Tensor, n: int) -> None:
        x += n

    with pytest.raises(TypeError, match="writes to x: a tensor is wanted, got NoneType"):
        write(None, 1)


def test_definition_when_it_fails_halfway_then_the_name_is_free(name, monkeypatch):
    options = {"name": name, "fake": torch.empty_like}
    with monkeypatch.context() as patch:
        patch.setattr(torch.library, "register_fake", None)
        with pytest.raises(TypeError, match="not callable"):
            sv.torch_op(plain_function, **options)
    op = sv.torch_op(plain_function, **options)
    assert op(torch.ones(2)).tolist() == [1.0, 1.0]
