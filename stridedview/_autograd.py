"""Telling autograd that a kernel wrote to a tensor.

Owns the version counters: a kernel's write is invisible to autograd, so that a backward
through a tensor that was saved and then mutated gives wrong gradients silently. Bumping
the version makes torch raise instead.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any


def mark_written(*tensors: Any) -> None:
    """Bump the version of tensors that a kernel wrote to.

    A backward through one of them that autograd saved before then raises, as it does
    after an in-place operation of torch's own.

    Parameters
    ----------
    *tensors : torch.Tensor

    Raises
    ------
    TypeError
        If an argument is no torch tensor.
    """
    torch = sys.modules.get("torch")
    for position, tensor in enumerate(tensors, start=1):
        if torch is None or not isinstance(tensor, torch.Tensor):
            raise TypeError(
                f"argument {position} is no torch tensor but a {type(tensor).__qualname__}"
            )
        # Tensors made in inference mode have no version: autograd never saved them.
        if not tensor.is_inference():
            torch.autograd.graph.increment_version(tensor)


def bump_arguments(args: Iterable[Any], hint: Any) -> None:
    """Bump the version of every torch tensor among a launch's arguments.

    Parameters
    ----------
    args : iterable
        Tensors in tuples and hints count, too.
    hint : type
        What Numba's ``In``, ``Out`` and ``InOut`` are.
    """
    torch = sys.modules.get("torch")
    for value in args:
        if isinstance(value, tuple):
            # By its own items: a subclass may iterate over others.
            bump_arguments(tuple.__iter__(value), hint)
        elif torch is not None and isinstance(value, torch.Tensor):
            mark_written(value)
        elif isinstance(value, hint):
            bump_arguments((value.value,), hint)
