"""What an operator returns, and what stands for it while a graph is traced.

Owns the fake implementation, and the refusal of results that are not new: torch takes an
operator's results for tensors that share memory with nothing else.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from stridedview._op_schema import Schema

Function = Callable[..., Any]
Results = tuple[Any, ...]
# Takes results, arguments and those by keyword; raises.
Check = Callable[[Results, tuple[Any, ...], Mapping[str, Any]], None]


def fake_of(makers: Mapping[str, Function], schema: Schema) -> Function:
    """Return the fake implementation: the outputs made, and nothing launched."""
    check = checking_outputs(schema, list(makers))
    functions = list(makers.values())

    def fake(*inputs: Any, **_: Any) -> Any:
        if not functions:
            return None
        inputs = schema.fill(inputs)
        made = tuple([make(*inputs) for make in functions])
        check(made, inputs, {})
        return made[0] if len(made) == 1 else made

    return fake


def checking_outputs(schema: Schema, names: Sequence[str]) -> Check:
    """Return what refuses made outputs that are no tensors, or share memory."""
    torch = schema.torch
    may_share = _asking_torch(schema)

    def check(made: Results, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        for place, one in enumerate(made):
            if not isinstance(one, torch.Tensor):
                raise TypeError(
                    f"operator {schema.name!r}: outputs= must make tensors, but what makes "
                    f"{names[place]!r} gave a {type(one).__qualname__}"
                )
        if not may_share(args, kwargs, made):
            return
        given = _named_arguments(schema, args, kwargs)
        pair = _find_shared(torch, zip(names, made, strict=True), given)
        if pair is not None:
            raise ValueError(
                f"operator {schema.name!r}: what outputs= made for {pair[0]!r} has the "
                f"memory of {pair[1]!r}, which the kernel would overwrite; make a new "
                "tensor, as torch.empty_like(x) is, or name an argument that is to be "
                "written to in mutates="
            )

    return check


def returning_new(function: Function, schema: Schema, *, is_fake: bool = False) -> Function:
    """Return a function that refuses to return what it was given, or the same twice.

    torch takes an operator's results for new tensors, and would be silently wrong.
    """
    torch = schema.torch
    # Fake tensors are asked in Python: torch's own question is for real ones.
    may_share = _always if is_fake else _asking_torch(schema)
    what = "the fake implementation of operator" if is_fake else "operator"

    def work(*args: Any, **kwargs: Any) -> Any:
        found = function(*args, **kwargs)
        results = found if type(found) is tuple else (found,)
        if may_share(args, kwargs, results):
            named = [(f"result {place}", one) for place, one in enumerate(results)]
            given = _named_arguments(schema, args, kwargs)
            pair = _find_shared(torch, named, given)
            if pair is not None:
                raise RuntimeError(
                    f"{what} {schema.name!r} returned one of its arguments, a view of one, "
                    f"or the same twice: {pair[0]} has the memory of {pair[1]!r}. torch "
                    "takes results for new tensors: return a copy, or return nothing and "
                    "name the argument in mutates="
                )
        return found

    return work


def of_one_kind(fake: Function, schema: Schema) -> Function:
    """Return a fake implementation that refuses meta tensors beside real ones.

    torch calls it for them instead of the implementation, and nothing would be launched.
    """
    torch = schema.torch
    kinds = importlib.import_module("torch._subclasses.fake_tensor")

    def checked(*args: Any, **kwargs: Any) -> Any:
        given = list(_tensors(torch, _named_arguments(schema, args, kwargs)))
        metas = [name for name, one in given if one.is_meta]
        # A number in a tensor may be anywhere, as for operators of torch's own.
        others = [(name, one) for name, one in given if not one.is_meta and one.dim()]
        if (
            metas
            and others
            and not any(isinstance(one, kinds.FakeTensor) for _, one in given)
        ):
            name, other = others[0]
            raise TypeError(
                f"operator {schema.name!r}: {metas[0]!r} is a meta tensor, which has no "
                f"memory, but {name!r} is on {other.device}; make both on one device"
            )
        return fake(*args, **kwargs)

    return checked


def _always(*_: Any) -> bool:
    return True


def _asking_torch(schema: Schema) -> Callable[[Any, Any, Results], bool]:
    """Return torch's quick answer to whether results share memory, where it has one.

    It takes (args, kwargs, results), and calls two tensors of no items in one storage
    shared, too.
    """
    name = "_any_output_is_alias_to_input_or_output"
    ask: Callable[[Any, Any, Results], bool] = getattr(schema.torch._C, name, _always)
    if not schema.lists:
        return ask

    def ask_of_lists(args: Any, kwargs: Any, results: Results) -> bool:
        # It looks into lists alone, and they were made tuples for the kernel.
        args = tuple([list(one) if isinstance(one, tuple) else one for one in args])
        return ask(args, kwargs, results)

    return ask_of_lists


def _named_arguments(
    schema: Schema, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> list[tuple[str, Any]]:
    names = [one.name for one in schema.positional]
    return [*zip(names, args, strict=False), *kwargs.items()]


def _find_shared(
    torch: Any, results: Iterable[tuple[str, Any]], arguments: Iterable[tuple[str, Any]]
) -> tuple[str, str] | None:
    """Return the names of a result and of what has the same storage, if there are any."""
    seen: dict[int, str] = {}
    for name, one in _tensors(torch, arguments):
        storage = _storage(one)
        if storage:
            seen.setdefault(storage, name)
    for name, one in _tensors(torch, results):
        storage = _storage(one)
        if storage in seen and one.numel():
            return name, seen[storage]
        if storage:
            seen[storage] = name
    return None


def _tensors(torch: Any, named: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    for name, value in named:
        if isinstance(value, torch.Tensor):
            yield name, value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(
                torch, [(f"{name}[{place}]", one) for place, one in enumerate(value)]
            )


def _storage(tensor: Any) -> int:
    """Return what tells a tensor's storage from others, or 0 if it has none."""
    try:
        return int(tensor.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError):
        return 0  # a sparse one
