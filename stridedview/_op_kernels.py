"""What torch's dispatcher calls for an operator.

Owns the functions of each operator: the implementation, the fake implementation, and what
stands at the keys for autograd and lazy bits. The dispatcher's way to a Python function is
most of an operator's cost, so an eager call goes it once: what stands at the Autograd key
does the work itself, in place of dispatching again, where nothing has to be differentiated
and no mode, transform or lazy bit is in play.
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


# -- the implementation -------------------------------------------------------------------


def with_outputs(
    launch: Function,
    makers: Mapping[str, Function],
    order: Sequence[int],
    check: Check | None,
) -> Function:
    """Return a function that makes the outputs, launches, and returns them.

    Parameters
    ----------
    launch : callable
        Takes inputs and outputs in the kernel's order.
    makers : mapping of str to callable
        For each output, what makes it of the inputs.
    order : sequence of int
        For each of the kernel's parameters, its place among inputs and then outputs.
    check : callable, optional
        Takes what was made and the inputs, before the launch writes to the former.
    """
    is_sorted = list(order) == sorted(order)
    functions = list(makers.values())

    def work(*inputs: Any) -> Any:
        made = tuple([make(*inputs) for make in functions])
        if check is not None:
            check(made, inputs, {})
        if is_sorted:
            launch(*inputs, *made)
        else:
            given = (*inputs, *made)
            launch(*[given[place] for place in order])
        return made[0] if len(made) == 1 else made

    return work


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


def implementation(work: Function, schema: Schema) -> Function:
    """Return what is called with the tensors themselves.

    The versions of mutated tensors are bumped here, below all keys, as what torch calls in
    inference mode comes by no other way. A copy that torch makes on the way is written
    back by torch, which bumps the version of the original.
    """
    count = len(schema.positional)
    lists = schema.lists
    bump = schema.torch._C._increment_version
    written = schema.written() if schema.mutated else None

    def run(*args: Any, **kwargs: Any) -> Any:
        if len(args) != count or lists:
            args = _completed(schema, args, lists)
        if written is not None:
            bump(written(args, kwargs))
        return work(*args, **kwargs)

    return run


def _completed(
    schema: Schema, args: tuple[Any, ...], lists: Sequence[int]
) -> tuple[Any, ...]:
    """Return arguments with defaults filled in and lists made tuples, as kernels take."""
    changed = list(schema.fill(args))
    for place in lists:
        if isinstance(changed[place], list):
            changed[place] = tuple(changed[place])
    return tuple(changed)


# -- at other keys ------------------------------------------------------------------------


def autograd(
    overload: Any,
    run: Function,
    schema: Schema,
    backward: Function | None,
    setup_context: Function | None,
) -> Function:
    """Return the function for the Autograd key; it is called with the key set first."""
    torch = schema.torch
    is_mutating = bool(schema.mutated)
    plain = _plain_words(torch)
    differentiate = _recording(overload, schema, backward, setup_context)
    if is_mutating:
        differentiate = _refusing(overload, schema, differentiate, plain)
    written = schema.written()
    bump = torch._C._increment_version
    is_grad_enabled, any_requires_grad = torch.is_grad_enabled, torch._C._any_requires_grad
    below = torch._C._after_autograd_keyset
    forward_ad = importlib.import_module("torch.autograd.forward_ad")

    def at_autograd(keys: Any, *args: Any, **kwargs: Any) -> Any:
        if forward_ad._current_level >= 0:
            _check_tangents(forward_ad, schema, (*args, *kwargs.values()))
        if any_requires_grad(*args, **kwargs) and is_grad_enabled():
            return differentiate(keys, *args, **kwargs)
        if keys.raw_repr() in plain:
            return run(*args, **kwargs)
        if is_mutating:
            # These may be wrappers whose inner tensors are mutated, when a graph is traced;
            # what autograd saved is the wrapper.
            bump(written(args, kwargs))
        return overload.redispatch(keys & below, *args, **kwargs)

    return at_autograd


def _check_tangents(forward_ad: Any, schema: Schema, values: Sequence[Any]) -> None:
    """Refuse forward-mode differentiation; torch would take the tangent for zero."""
    for value in values:
        if isinstance(value, (list, tuple)):
            _check_tangents(forward_ad, schema, value)
            continue
        is_tensor = isinstance(value, schema.torch.Tensor)
        if is_tensor and forward_ad.unpack_dual(value).tangent is not None:
            raise NotImplementedError(
                f"operator {schema.name!r} has no derivative in forward mode (jvp); pass "
                "x.detach(), or differentiate it backwards"
            )


def _recording(
    overload: Any,
    schema: Schema,
    backward: Function | None,
    setup_context: Function | None,
) -> Function:
    from torch._library.autograd import Info, make_autograd_impl

    def missing(_ctx: Any, *_grads: Any) -> Any:
        raise RuntimeError(
            f"operator {schema.name!r} has no backward; give stridedview.torch_op "
            "backward=, or detach its arguments"
        )

    info = Info(backward or missing, setup_context)
    return make_autograd_impl(overload, info)  # type: ignore[no-any-return]


def _refusing(
    overload: Any, schema: Schema, record: Function, plain: frozenset[int]
) -> Function:
    """Return what refuses to write to what requires grad, and records what is returned."""
    torch = schema.torch
    written = schema.written()
    below = torch._C._after_autograd_keyset

    def differentiate(keys: Any, *args: Any, **kwargs: Any) -> Any:
        changed = written(args, kwargs)
        if torch._C._any_requires_grad(*changed):
            raise RuntimeError(
                f"operator {schema.name!r} writes to {', '.join(schema.mutated)}, of which "
                "one requires grad: autograd could not follow. Call it within "
                "torch.no_grad() or pass x.detach(), or make an operator that returns a "
                "new tensor (outputs=) and has a backward"
            )
        if keys.raw_repr() not in plain:  # else the implementation bumps it
            torch._C._increment_version(changed)
        if schema.returns:
            return record(keys, *args, **kwargs)
        # What the work does with torch is not to be recorded: it has no backward.
        with torch._C._AutoDispatchBelowAutograd():
            return overload.redispatch(keys & below, *args, **kwargs)

    return differentiate


def _plain_words(torch: Any) -> frozenset[int]:
    """Return the key sets of calls in which nothing but the implementation is left."""
    keys, key_set = torch._C.DispatchKey, torch._C.DispatchKeySet
    return frozenset(
        int((key_set(one) | key_set(other)).raw_repr())
        for one, other in ((keys.CPU, keys.AutogradCPU), (keys.CUDA, keys.AutogradCUDA))
    )


def resolving(overload: Any, schema: Schema, bit: str) -> Function:
    """Return the function for the key "Conjugate" or "Negative".

    torch's own resolves what is read, but fails after the write to a copy where an operator
    that returns nothing writes to such a tensor.
    """
    torch = schema.torch
    above = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, bit))
    what, cure = {
        "Conjugate": ("conjugation", "resolve_conj"),
        "Negative": ("negation", "resolve_neg"),
    }[bit]

    def resolve(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return getattr(value, cure)()
        return [resolve(one) for one in value] if isinstance(value, list) else value

    def at_key(keys: Any, *args: Any, **kwargs: Any) -> Any:
        for one in schema.written()(args, kwargs):
            if getattr(one, f"is_{cure[8:]}")():
                raise TypeError(
                    f"operator {schema.name!r} writes to a tensor whose {what} is pending; "
                    f"pass x.{cure}()"
                )
        args = tuple(resolve(one) for one in args)
        kwargs = {name: resolve(one) for name, one in kwargs.items()}
        return overload.redispatch(keys - above, *args, **kwargs)

    return at_key
