"""A kernel as an operator of torch's: ``torch_op``.

Owns the public function, and the reading of what it is given. What an operator's schema is,
how it launches, what it returns, what the dispatcher calls and where it is kept stand in
``_op_schema``, ``_op_launch``, ``_op_results``, ``_op_kernels`` and ``_op_registry``.
torch is imported when the first operator is defined.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from stridedview import (
    _op_kernels,
    _op_launch,
    _op_registry,
    _op_results,
    _op_schema,
    _torch_gate,
)


def torch_op(
    kernel: Any = None,
    /,
    *,
    name: str,
    schema: str | None = None,
    grid: Any = None,
    block: Any = None,
    forall: Any = None,
    shared: int = 0,
    mutates: str | Iterable[str] = (),
    outputs: Mapping[str, Any] | None = None,
    fake: Callable[..., Any] | None = None,
    backward: Callable[..., Any] | None = None,
    setup_context: Callable[..., Any] | None = None,
    autocast: Any = None,
) -> Any:
    """Make a kernel, or a function that launches kernels, an operator of torch's.

    An operator can be called as before, and ``torch.compile(fullgraph=True)``,
    ``torch.export``, CUDA graphs of compiled modules, autograd and autocast know what it
    reads, writes and returns. It is registered for tensors on every device; CPU tensors
    are copied to the GPU and back, as a launch does it.

    Without ``kernel`` it is a decorator.

    Parameters
    ----------
    kernel : kernel, configured kernel or function
        A ``@cuda.jit`` kernel, ``kernel[grid, block]``, or a function that launches
        kernels. Its parameters' annotations (``torch.Tensor``, ``int``, ``float``,
        ``bool``, lists of them, ``| None``; a tuple of equal items counts as a list) are
        the schema. A list of tensors arrives as a tuple.
    name : str
        With a namespace: "mylib::scale". Defining a name again replaces the operator.
    schema : str, optional
        In place of annotations and ``mutates``, as torch writes it:
        "(Tensor(a!) x, float factor) -> ()".
    grid : int, tuple or callable
        Blocks of the grid. A callable is given the kernel's arguments at each call; a grid
        of 0 blocks, which it may give for empty tensors, launches nothing.
    block : int or tuple
        Threads of a block.
    forall : str or callable
        In place of ``grid``: a thread for each element of the parameter of that name, or as
        many as a callable says of the kernel's arguments. Without ``block`` its size is
        the driver's recommendation, as with ``kernel.forall(n)``.
    shared : int
        Bytes of dynamic shared memory of a block.
    mutates : str or iterable of str
        Parameters that are written to. All others are taken to stay as they are.
    outputs : mapping
        Parameters of the kernel that are results, not arguments, of the operator. Each has
        a callable, which is given the operator's arguments and makes the tensor, or the
        name of an argument, for ``torch.empty_like`` of it. The fake implementation, which
        tracing needs, is the same callables without the launch. The results are in the
        mapping's order; one alone is returned as it is, several as a tuple.
    fake : callable, optional
        For a function that returns what it made: the same for tensors without memory, a
        function of the arguments that returns empty tensors of the right shapes.
    backward, setup_context : callable, optional
        As for ``torch.library.register_autograd``: ``setup_context(ctx, inputs, output)``
        keeps what ``backward(ctx, *grads)`` needs. Only for operators that mutate nothing.
    autocast : torch.dtype or (str, torch.dtype), optional
        Under ``torch.autocast`` floating-point tensors are converted to this dtype first:
        those on "cuda", or on the device type named. Not with ``mutates``: what is written
        to a converted copy is lost.

    Returns
    -------
    TorchOp
        Or, without ``kernel``, a decorator that gives one.

    Raises
    ------
    TypeError
        If an annotation is absent or of no type that a schema has; if the kernel's
        configuration is absent, given twice or of the wrong kind; if ``fake`` is needed.
    ValueError
        If a name has no namespace or belongs to another's operator, a parameter is unknown
        or used twice, a schema is wrong, or ``backward`` or ``autocast`` do not go with
        ``mutates``.
    ImportError
        If torch is older than 2.10.

    Notes
    -----
    Called while something requires grad, an operator without ``backward`` that returns
    tensors gives results whose backward raises; one that writes to a tensor that requires
    grad raises at once. Through what is written no gradient comes back to what was read,
    and no error says so, as with ``torch.library.custom_op``. The version of every mutated
    tensor is bumped at each call, so that a backward through one that was saved before
    raises. Forward mode (``torch.func.jvp``) is refused.

    Examples
    --------
    In place, a thread for each element::

        @cuda.jit
        def scale(x: torch.Tensor, factor: float):
            i = cuda.grid(1)
            if i < x.size:
                x[i] *= factor

        op = stridedview.torch_op(
            scale, name="mylib::scale", forall="x", block=256, mutates="x"
        )
        op(x, 2.0)

    With a result, from a kernel ``add(x, y, out)``::

        op = stridedview.torch_op(
            add, name="mylib::add", forall="out", block=256, outputs={"out": "x"}
        )
        out = op(x, y)
    """
    if kernel is None:
        return functools.partial(
            torch_op, name=name, schema=schema, grid=grid, block=block, forall=forall,
            shared=shared, mutates=mutates, outputs=outputs, fake=fake, backward=backward,
            setup_context=setup_context, autocast=autocast,
        )  # fmt: skip
    _op_schema.check_name(name)
    torch = importlib.import_module("torch")
    _torch_gate.check_version(torch)
    _check_kinds(
        name, schema=(schema, str), mutates=(mutates, (str, Iterable)),
        outputs=(outputs, Mapping), fake=(fake, Callable),
        backward=(backward, Callable), setup_context=(setup_context, Callable),
    )  # fmt: skip
    mutates = (mutates,) if isinstance(mutates, str) else tuple(mutates)
    outputs = dict(outputs or {})
    target = _Target(kernel, name, grid, block, forall, shared, fake)
    inputs = target.inputs(mutates, outputs)
    found = target.schema(torch, schema, inputs, mutates, outputs)
    _op_registry.check_options(found, backward, setup_context, autocast)
    work, made_up = target.work(torch, found, inputs, outputs)
    run = _op_kernels.implementation(work, found)
    made_up = _op_results.of_one_kind(made_up, found)
    op = _op_registry.register(found, run, made_up, backward, setup_context, autocast)
    op.kernel = target.made_of
    op.__doc__ = target.function.__doc__
    return op


_WANTED = {
    "schema": "a text as '(Tensor x) -> Tensor'",
    "mutates": "a parameter's name or several",
    "outputs": "a dict of parameters to what makes them",
    "fake": "a function",
    "backward": "a function",
    "setup_context": "a function",
}


def _check_kinds(name: str, **options: tuple[Any, Any]) -> None:
    """Refuse an option that is of another kind than it takes; None is every one's."""
    for what, (given, kinds) in options.items():
        if given is not None and not isinstance(given, kinds):
            raise TypeError(
                f"operator {name!r}: {what}= takes {_WANTED[what]}, got {given!r}"
            )


class _Target:
    """What an operator is made of: a kernel with its configuration, or a function."""

    def __init__(
        self, target: Any, name: str, grid: Any, block: Any, forall: Any, shared: int,
        fake: Any,
    ) -> None:  # fmt: skip
        self.name = name
        self.fake = fake
        self.forall = forall
        self.is_kernel = _op_launch.is_kernel(target)
        if self.is_kernel:
            kernel = _op_launch.Kernel(target)
            self.made_of, self.function = kernel.kernel, kernel.function
            self.signature = _op_schema.signature(self.function, name, kernel.what)
            kernel.check_parameters(self.signature)
            if fake is not None:
                raise TypeError(
                    f"operator {name!r}: the fake implementation of a kernel follows from "
                    "outputs=; leave fake= out"
                )
            names = list(self.signature.parameters)
            self.call = kernel.launcher(grid, block, forall, shared, names)
            return
        if hasattr(target, "ntasks"):
            raise TypeError(
                "kernel.forall(n) is for n tasks, always; give torch_op the kernel and "
                "forall='x', the tensor whose elements are counted"
            )
        if not callable(target) or inspect.isclass(target):
            raise TypeError(
                f"torch_op takes a kernel or a function, got a {type(target).__qualname__}"
            )
        if (grid, block, forall, shared) != (None, None, None, 0):
            raise TypeError(
                f"operator {name!r}: a function launches its kernels itself; grid=, "
                "block=, forall= and shared= are for kernels"
            )
        self.made_of = self.function = self.call = target
        self.signature = _op_schema.signature(target, name, "the function")

    def inputs(
        self, mutates: tuple[str, ...], outputs: dict[str, Any]
    ) -> list[inspect.Parameter]:
        """Return the parameters that are arguments of the operator."""
        names = list(self.signature.parameters)
        for what, given in (("mutates", mutates), ("outputs", outputs)):
            for one in given:
                if one not in names:
                    raise ValueError(
                        f"operator {self.name!r}: {what}= names {one!r}, but the "
                        f"parameters are {', '.join(names)}"
                    )
        both = [one for one in mutates if one in outputs]
        if both:
            raise ValueError(
                f"operator {self.name!r}: {both[0]!r} is in mutates= and in outputs=; an "
                "output is no argument of the operator"
            )
        return [self.signature.parameters[one] for one in names if one not in outputs]

    def schema(
        self, torch: Any, text: str | None, inputs: list[inspect.Parameter],
        mutates: tuple[str, ...], outputs: dict[str, Any],
    ) -> _op_schema.Schema:  # fmt: skip
        """Return the schema, from the text or the annotations."""
        if text is None:
            returns = self._returned(torch, outputs)
            text = _op_schema.from_annotations(torch, self.name, inputs, returns, mutates)
        elif mutates:
            raise ValueError(
                f"operator {self.name!r}: a schema says itself what is mutated, as in "
                "'(Tensor(a!) x) -> ()'; leave mutates= out"
            )
        elif not text.lstrip().startswith("("):
            raise ValueError(
                f"operator {self.name!r}: a schema begins with its arguments, as in "
                f"'(Tensor x) -> Tensor', got {text!r}"
            )
        found = _op_schema.Schema(torch, self.name, text)
        self._compare(found, inputs, outputs)
        return found

    def _returned(self, torch: Any, outputs: dict[str, Any]) -> Any:
        if len(outputs) == 1:
            return torch.Tensor
        if outputs:
            return tuple[(torch.Tensor,) * len(outputs)]  # type: ignore[misc]
        return None if self.is_kernel else self.signature.return_annotation

    def _compare(
        self, found: _op_schema.Schema, inputs: list[Any], outputs: dict[str, Any]
    ) -> None:
        count = len(found.positional) + len(found.keyword)
        if count != len(inputs):
            raise ValueError(
                f"operator {self.name!r}: its schema has {count} arguments, but there are "
                f"{len(inputs)} parameters ({', '.join(one.name for one in inputs)}) "
                "beside the outputs"
            )
        self._check_counted(found, [one.name for one in inputs])
        if found.keyword and (self.is_kernel or outputs):
            raise ValueError(
                f"operator {self.name!r}: arguments by keyword only are for functions that "
                "make their results themselves"
            )
        if outputs and found.returns != len(outputs):
            raise ValueError(
                f"operator {self.name!r}: its schema returns {found.returns} values, "
                f"outputs= has {len(outputs)}"
            )
        if found.returns and not outputs and self.is_kernel:
            raise ValueError(
                f"operator {self.name!r}: a kernel returns nothing; name the parameters "
                "that are results in outputs="
            )
        if found.returns and not outputs and self.fake is None:
            raise TypeError(
                f"operator {self.name!r} returns tensors, and tracing needs to know their "
                "shapes: give fake=, or let the function take its results as parameters "
                "and give outputs="
            )

    def _check_counted(self, found: _op_schema.Schema, names: list[str]) -> None:
        """Refuse a forall= that names what has no elements to be counted."""
        if not isinstance(self.forall, str) or self.forall not in names:
            return
        kind = str([*found.positional, *found.keyword][names.index(self.forall)].type)
        if kind != "Tensor":
            raise TypeError(
                f"operator {self.name!r}: forall={self.forall!r} names an argument of type "
                f"{kind}, which has no elements to count; name a tensor, or give a "
                f"callable of the kernel's arguments: forall=lambda "
                f"{', '.join(self.signature.parameters)}: n"
            )

    def work(
        self, torch: Any, found: _op_schema.Schema, inputs: list[Any],
        outputs: dict[str, Any],
    ) -> tuple[Any, Any]:  # fmt: skip
        """Return what does the work, and the fake implementation."""
        makers = {
            name: self._maker(torch, name, one, inputs) for name, one in outputs.items()
        }
        if not makers:
            work, made_up = self.call, self.fake or _op_results.fake_of({}, found)
            if found.returns:
                work = _op_results.returning_new(work, found)
                made_up = _op_results.returning_new(made_up, found, is_fake=True)
            return work, made_up
        pool = [*(one.name for one in inputs), *outputs]
        order = [pool.index(one) for one in self.signature.parameters]
        # What torch.empty_like makes is new.
        is_new = not any(callable(one) for one in outputs.values())
        check = None if is_new else _op_results.checking_outputs(found, list(makers))
        work = _op_kernels.with_outputs(self.call, makers, order, check)
        return work, _op_results.fake_of(makers, found)

    def _maker(self, torch: Any, output: str, given: Any, inputs: list[Any]) -> Any:
        if callable(given):
            return given
        names = [one.name for one in inputs]
        if given not in names:
            raise ValueError(
                f"operator {self.name!r}: outputs= makes {output!r} like {given!r}, which "
                f"is no argument; they are {', '.join(names)}. Or give a callable"
            )
        place = names.index(given)
        return lambda *args: torch.empty_like(args[place])
