"""What torch's dispatcher calls for an operator.

Owns the functions of each operator: the implementation, and what stands at the keys for
autograd and lazy bits. The dispatcher's way to a Python function is most of an operator's
cost, so an eager call goes it once: what stands at the Autograd key does the work itself,
in place of dispatching again, where nothing has to be differentiated and no mode,
transform or lazy bit is in play.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from stridedview._op_results import Check
from stridedview._op_schema import Schema

Function = Callable[..., Any]


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
            try:
                bump(written(args, kwargs))
            except RuntimeError:
                _check_written(schema, written(args, kwargs))
                raise
        return work(*args, **kwargs)

    return run


def _check_written(schema: Schema, changed: Iterable[Any]) -> None:
    """Refuse what torch takes for a tensor and gives on: None."""
    for one in changed:
        if not isinstance(one, schema.torch.Tensor):
            raise TypeError(
                f"operator {schema.name!r} writes to {', '.join(schema.mutated)}: a tensor "
                f"is wanted, got {type(one).__name__}"
            )


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
            changed = written(args, kwargs)
            _check_written(schema, changed)
            bump(changed)
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

    record = make_autograd_impl(overload, Info(backward or missing, setup_context))
    transform = schema.torch._C._functorch.peek_interpreter_stack

    def recording(keys: Any, *args: Any, **kwargs: Any) -> Any:
        if transform() is not None:
            raise NotImplementedError(
                f"operator {schema.name!r} is not differentiated by torch.func (grad, vjp, "
                "jacrev), as no operator of torch.library is; use torch.autograd.grad, or "
                "call it in the forward of a torch.autograd.Function with setup_context "
                "and backward"
            )
        return record(keys, *args, **kwargs)

    return recording


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
