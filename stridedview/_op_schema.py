"""The schema of an operator: what torch is told of its arguments and results.

Owns the way from a function's annotations, or from a text, to a schema that
``torch.library`` takes, and the questions that the operator's own code asks of it. It is
handed the torch module and imports none.
"""

from __future__ import annotations

import importlib
import inspect
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

NAME = re.compile(r"[A-Za-z_]\w*::[A-Za-z_]\w*")
TYPES = (
    "torch.Tensor, int, float, bool, str, torch.dtype, torch.device, list[...] of these "
    "or one of these | None"
)


def check_name(name: Any) -> None:
    """Refuse a name that has no namespace or is none at all."""
    if not isinstance(name, str):
        raise TypeError(f"name must be a string such as 'mylib::scale', got {name!r}")
    if "::" not in name:
        raise ValueError(f"name {name!r} has no namespace; write 'mylib::{name}'")
    if not NAME.fullmatch(name):
        raise ValueError(f"name {name!r} is not of the form 'namespace::operator'")


class Schema:
    """A parsed schema.

    Parameters
    ----------
    torch : module
    name : str
        With its namespace.
    text : str
        Arguments and results: "(Tensor(a!) x, float f) -> ()".

    Attributes
    ----------
    mutated : tuple of str
        Names of the arguments that are written to.
    positional, keyword : list
        torch's descriptions of the arguments, those that only a keyword can give apart.
    returns : int
        Number of results.
    """

    def __init__(self, torch: Any, name: str, text: str) -> None:
        try:
            parsed = torch._C.parse_schema(name + text)
        except RuntimeError as error:
            reason = str(error).strip().splitlines()[0]
            raise ValueError(f"operator {name!r}: schema {text!r}: {reason}") from None
        self.torch = torch
        self.name = name
        self.text = text
        self.positional = [one for one in parsed.arguments if not one.kwarg_only]
        self.keyword = [one for one in parsed.arguments if one.kwarg_only]
        self.mutated = tuple(one.name for one in parsed.arguments if _is_written(one))
        self.returns = len(parsed.returns)
        self._check(parsed)

    def _check(self, parsed: Any) -> None:
        if any(one.alias_info is not None for one in parsed.returns):
            raise ValueError(
                f"operator {self.name!r} returns an argument or a view of one "
                f"({self.text}): torch allows no such operator of a program's own; let it "
                "return nothing and use the argument"
            )
        if not self.mutated and not self.returns:
            raise ValueError(
                f"operator {self.name!r} neither returns nor mutates anything, so torch "
                "may leave it out; name what it writes to: mutates='out' for arguments, "
                "outputs={'out': 'x'} for new tensors"
            )
        if not self.mutated and any(self.is_tensor(one) for one in self.keyword):
            raise ValueError(
                f"operator {self.name!r} returns tensors and takes some by keyword only, "
                "which autograd does not see; make them positional"
            )

    def is_tensor(self, argument: Any) -> bool:
        """Whether an argument is a tensor, an optional one, or a list of them."""
        return "Tensor" in str(argument.type)

    @property
    def lists(self) -> tuple[int, ...]:
        """Positions of the arguments that torch hands over as lists."""
        return tuple(
            index
            for index, one in enumerate(self.positional)
            if "List[" in str(one.type) or "[]" in str(one.type)
        )

    def fill(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return positional arguments with the defaults that torch leaves out."""
        rest = self.positional[len(args) :]
        return (*args, *(one.default_value for one in rest))

    def written(self) -> Callable[..., Iterable[Any]]:
        """Return a function that takes (args, kwargs) and gives the tensors written to."""
        places = [index for index, one in enumerate(self.positional) if _is_written(one)]
        names = [one.name for one in self.keyword if _is_written(one)]
        kinds = {str(one.type) for one in [*self.positional, *self.keyword]
                 if _is_written(one)}  # fmt: skip
        if not names and kinds == {"Tensor"}:
            if len(places) == 1:
                place = places[0]
                return lambda args, _: (args[place],)
            return lambda args, _: [args[place] for place in places]

        def every(args: Any, kwargs: Any) -> Iterable[Any]:
            # torch leaves out what is at its default.
            found = [args[place] for place in places if place < len(args)]
            found += [kwargs.get(name) for name in names]
            return [one for value in found for one in _flat(value)]

        return every


def _is_written(argument: Any) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write


def _flat(value: Any) -> Sequence[Any]:
    if isinstance(value, (list, tuple)):
        return [one for one in value if one is not None]
    return () if value is None else (value,)


# -- from annotations ---------------------------------------------------------------------


def signature(function: Any, name: str, what: str) -> inspect.Signature:
    """Return a function's signature, with annotations that are text evaluated.

    Parameters
    ----------
    name : str
        Of the operator.
    what : str
        How messages call the function.

    Raises
    ------
    TypeError
        If an annotation's text cannot be evaluated.
    """
    is_function = inspect.isfunction(function)
    closed = dict(inspect.getclosurevars(function).nonlocals) if is_function else None
    try:
        return inspect.signature(function, eval_str=True, locals=closed)
    except Exception as error:  # the text is a program, which raises anything
        raise TypeError(
            f"operator {name!r}: {_unevaluated(function, closed)} of {what} cannot be "
            f"evaluated ({type(error).__name__}: {error}); use names of its module, or "
            "give schema='(Tensor x, ...) -> ...'"
        ) from error


def _unevaluated(function: Any, closed: Mapping[str, Any] | None) -> str:
    """Return how to call the first annotation whose text cannot be evaluated."""
    for name, text in getattr(function, "__annotations__", {}).items():
        single = types.FunctionType((lambda: None).__code__, function.__globals__)
        single.__annotations__ = {name: text}
        try:
            inspect.get_annotations(single, eval_str=True, locals=closed)
        except Exception:  # noqa: BLE001 - as above
            if name == "return":
                return f"the annotation {text!r} of the result"
            return f"the annotation {text!r} of parameter {name!r}"
    return "an annotation"


def from_annotations(
    torch: Any,
    name: str,
    parameters: Sequence[inspect.Parameter],
    returns: Any,
    mutates: Sequence[str],
) -> str:
    """Return the schema's text of a function's parameters and result.

    Raises
    ------
    TypeError
        If one has no annotation, or one that torch.library has no type for.
    """
    for one in parameters:
        if one.annotation is inspect.Parameter.empty:
            raise TypeError(
                f"operator {name!r}: parameter {one.name!r} has no annotation; give it one "
                f"({TYPES}), or give schema='(Tensor x, ...) -> ...'"
            )
    if returns is inspect.Signature.empty:
        raise TypeError(
            f"operator {name!r}: the function does not say what it returns; write -> None, "
            "-> torch.Tensor or -> tuple[torch.Tensor, ...], or give schema="
        )
    parameters = [
        one.replace(annotation=_as_list(_as_known(torch, one.annotation)))
        for one in parameters
    ]
    returns = _as_known(torch, returns)
    _check_types(name, parameters, returns)
    try:
        return _infer(torch, parameters, returns, mutates)
    except ValueError as error:
        what = _culprit(torch, parameters, returns, mutates)
        raise TypeError(f"operator {name!r}: {what or error}") from error


def _as_known(torch: Any, annotation: Any) -> Any:
    """Return an annotation without what says nothing of the schema.

    A Parameter is a tensor, and Annotated[T, ...] a T; within lists and optionals too.
    """
    if annotation is torch.nn.Parameter:
        return torch.Tensor
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return _as_known(torch, args[0])
    if origin not in (list, tuple, Sequence, typing.Union, types.UnionType):
        return annotation
    known = tuple([_as_known(torch, one) for one in args])
    if all(new is old for new, old in zip(known, args, strict=True)):
        return annotation
    kinds: dict[Any, Any] = {Sequence: typing.Sequence, types.UnionType: typing.Union}
    return kinds.get(origin, origin)[known]


def _check_types(name: str, parameters: Sequence[Any], returns: Any) -> None:
    """Refuse what is no type. torch would log each, or raise what does not name it."""
    inference = importlib.import_module("torch._library.infer_schema")

    def is_type(annotation: Any, known: Any) -> bool:
        try:
            return isinstance(annotation, type) or annotation in known
        except TypeError:  # not hashable
            return False

    for one in parameters:
        if not is_type(one.annotation, inference.SUPPORTED_PARAM_TYPES):
            raise TypeError(f"operator {name!r}: {_no_type(one)}")
    returned: tuple[Any, ...] = (returns,)
    if typing.get_origin(returns) in (tuple, list):
        returned = typing.get_args(returns)
    known = inference.SUPPORTED_RETURN_TYPES
    if not all(one is None or is_type(one, known) for one in returned):
        raise TypeError(f"operator {name!r}: {_no_result(returns)}")


def _no_type(parameter: inspect.Parameter) -> str:
    return (
        f"parameter {parameter.name!r} is annotated {_spelt(parameter.annotation)}, which "
        f"torch.library has no type for; use {TYPES}, or give "
        "schema='(Tensor x, ...) -> ...'"
    )


def _no_result(returns: Any) -> str:
    return (
        f"it returns {_spelt(returns)}, which torch.library has no type for; return "
        "None, a tensor, a number, or a tuple or list of tensors"
    )


def _as_list(annotation: Any) -> Any:
    # torch has lists only; kernels and functions are handed tuples all the same.
    items = set(typing.get_args(annotation)) - {Ellipsis}
    if typing.get_origin(annotation) is tuple and len(items) == 1:
        return typing.Sequence[items.pop()]  # type: ignore[misc]
    return annotation


def _infer(
    torch: Any, parameters: Sequence[Any], returns: Any, mutates: Sequence[str]
) -> str:
    def stub() -> None:
        pass

    stub.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        parameters, return_annotation=returns
    )
    return str(torch.library.infer_schema(stub, mutates_args=tuple(mutates)))


def _culprit(
    torch: Any, parameters: Sequence[Any], returns: Any, mutates: Sequence[str]
) -> str:
    """Return what torch does not take of a function, or "" if that is not found."""

    def is_taken(parameters: Sequence[Any], returns: Any, mutates: Sequence[str]) -> bool:
        try:
            _infer(torch, parameters, returns, mutates)
        except ValueError:
            return False
        return True

    for one in parameters:
        if not is_taken([one.replace(default=one.empty)], None, ()):
            return _no_type(one)
        if not is_taken([one], None, ()):
            return (
                f"parameter {one.name!r} has the default {one.default!r}, which a schema "
                "cannot hold; give a number, text, None, a torch.dtype or a torch.device"
            )
        if one.name in mutates and not is_taken([one], None, (one.name,)):
            return (
                f"mutates= names {one.name!r}, which is annotated "
                f"{_spelt(one.annotation)}; only tensors can be written to"
            )
    if not is_taken([], returns, ()):
        return _no_result(returns)
    return ""


def _spelt(annotation: Any) -> str:
    return getattr(annotation, "__name__", None) or repr(annotation)
