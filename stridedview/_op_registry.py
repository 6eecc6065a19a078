"""The operators that were made: in torch.library, and by name.

Owns their registration, which options go together, and what becomes of an operator whose
name is used again.
"""

from __future__ import annotations

import functools
from typing import Any

from stridedview import _locks, _op_kernels, _torch_gate
from stridedview._op_schema import Schema

# Every operator defined, by name: what keeps it in torch, and what unpickling finds.
_defined: dict[str, TorchOp] = {}
_lock = _locks.rlock()
# Where a definition is tried that is to take another's place.
TRIAL = "stridedview_trial::operator"


class TorchOp:
    """An operator of torch's; made by :func:`torch_op`. Calling it runs it.

    ``torch.ops.namespace.name`` is the same operator. A copy is the operator itself, and
    pickling writes its name, so that it has to be defined where it is read.

    Attributes
    ----------
    name : str
        With its namespace: "mylib::scale".
    schema : str
        Its schema, "mylib::scale(Tensor(a0!) x, float factor) -> ()".
    overload : torch._ops.OpOverload
        What ``torch.library`` takes: ``torch.library.opcheck(op.overload, args)``.
    kernel : kernel or callable
        What it was made of.
    """

    def __init__(self, schema: Schema, overload: Any, library: Any) -> None:
        self.name = schema.name
        self.schema = schema.name + schema.text
        self.overload = overload
        self.kernel: Any = None
        self._library = library  # torch forgets the operator without it

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the operator; arguments can be given by keyword."""
        return self.overload(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<torch operator {self.schema}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return _find, (self.name,)

    def __copy__(self) -> TorchOp:
        return self

    def __deepcopy__(self, memo: Any) -> TorchOp:
        return self


def _find(name: str) -> TorchOp:
    """Return the operator of a name; what unpickling calls."""
    if name not in _defined:
        raise RuntimeError(
            f"operator {name!r} is not defined in this process; import the module that "
            "defines it first"
        )
    return _defined[name]


def check_options(schema: Schema, backward: Any, setup_context: Any, autocast: Any) -> None:
    """Refuse options that do not go with the schema, or with each other."""
    if schema.mutated and (backward is not None or autocast is not None):
        what, why = (
            ("backward", "autograd cannot follow a write")
            if backward is not None
            else ("autocast", "what is written to a converted copy is lost")
        )
        raise ValueError(
            f"operator {schema.name!r} mutates {', '.join(schema.mutated)}, and {why}: "
            f"{what}= is for operators that return new tensors (outputs=)"
        )
    if setup_context is not None and backward is None:
        raise TypeError(f"operator {schema.name!r}: setup_context= needs backward=")
    if autocast is not None and schema.keyword:
        raise ValueError(
            f"operator {schema.name!r}: torch's autocast takes no arguments by keyword only"
        )
    if autocast is not None:
        _autocast_pair(schema, autocast)


def _autocast_pair(schema: Schema, autocast: Any) -> tuple[str, Any]:
    pair = autocast if isinstance(autocast, tuple) else ("cuda", autocast)
    if len(pair) != 2 or not isinstance(pair[1], schema.torch.dtype):
        raise TypeError(
            f"operator {schema.name!r}: autocast= takes a torch.dtype or (device type, "
            f"torch.dtype), got {autocast!r}"
        )
    if not pair[1].is_floating_point:
        raise ValueError(
            f"operator {schema.name!r}: autocast= is for floating dtypes, not {pair[1]}"
        )
    if pair[0] not in ("cuda", "cpu"):
        raise ValueError(
            f"operator {schema.name!r}: autocast= is for 'cuda' or 'cpu', not {pair[0]!r}"
        )
    return pair


def register(
    schema: Schema, run: Any, fake: Any, backward: Any, setup_context: Any, autocast: Any
) -> TorchOp:
    """Define an operator, all of it or nothing, and return it.

    One of ours that has the name makes room only when the new one is known to go.
    """
    options = (schema, run, fake, backward, setup_context, autocast)
    if schema.name == TRIAL:
        raise ValueError(f"operator name {TRIAL!r} is taken; choose another")
    with _lock:
        before = _defined.get(schema.name)
        if before is None:
            _check_free(schema.torch, schema.name)
        else:
            _define(TRIAL, *options)[0]._destroy()
            _defined.pop(schema.name)
            before._library._destroy()
            before.overload = functools.partial(_replaced, schema.name)
        library, overload, functions = _define(schema.name, *options)
        _torch_gate.hide_from_dynamo(*functions)
        op = _defined[schema.name] = TorchOp(schema, overload, library)
    return op


def _define(
    full_name: str, schema: Schema, run: Any, fake: Any, backward: Any, setup_context: Any,
    autocast: Any,
) -> tuple[Any, Any, list[Any]]:  # fmt: skip
    """Return the library and overload of what is defined, and what torch then calls."""
    torch = schema.torch
    namespace, _, name = full_name.partition("::")
    library = torch.library.Library(namespace, "FRAGMENT")
    try:
        # Its results have the strides that the fake ones had, so its arguments must, too.
        tags = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_exact_strides)
        library.define(name + schema.text, tags=tags)
        overload = getattr(getattr(torch.ops, namespace), name).default
        library.impl(name, run, "CompositeExplicitAutograd")
        at_keys = _at_keys(overload, run, schema, backward, setup_context)
        for key, function in at_keys.items():
            library.impl(name, function, key, with_keyset=True)
        torch.library.register_fake(full_name, fake, lib=library)
        if autocast is not None:
            pair = _autocast_pair(schema, autocast)
            torch.library.register_autocast(full_name, *pair, lib=library)
    except BaseException:
        library._destroy()
        raise
    return library, overload, [run, *at_keys.values()]


def _at_keys(
    overload: Any, run: Any, schema: Schema, backward: Any, setup_context: Any
) -> dict[str, Any]:
    found = {
        "Autograd": _op_kernels.autograd(overload, run, schema, backward, setup_context)
    }
    if schema.mutated:
        for key in ("Conjugate", "Negative"):
            found[key] = _op_kernels.resolving(overload, schema, key)
    return found


def _check_free(torch: Any, name: str) -> None:
    """Refuse a name that another's operator has."""
    namespace, _, short = name.partition("::")
    if hasattr(getattr(torch.ops, namespace), short):
        raise ValueError(
            f"operator {name!r} is defined already, and not by stridedview.torch_op; "
            "choose another name"
        )


def _replaced(name: str, *_args: Any, **_kwargs: Any) -> Any:
    raise RuntimeError(
        f"operator {name!r} was defined again; this one is gone, use the new one"
    )
