"""The public switch: ``enable``, ``disable``, ``enabled``, ``is_enabled``.

Owns which patch is meant, that of numba-cuda or that of its simulator, and the options in
force. It imports neither until it is asked to switch something.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from types import ModuleType
from typing import Any, Literal

from stridedview import _locks, _peers

_lock = _locks.rlock()
# The options that are words; the others are True or False.
_WORDS = {"stream": ("producer", "numba"), "slow": ("allow", "warn", "error")}
_options: dict[str, Any] | None = None  # in force, None while disabled
_patched: ModuleType | None = None
_blocks: list[_Block] = []  # those that have not ended, in the order they began


def _patch() -> ModuleType:
    """Return the module that patches the numba-cuda in use, its peers checked."""
    if _patched is not None:
        return _patched
    _peers.check("numba-cuda")
    if importlib.import_module("numba.cuda").config.ENABLE_CUDASIM:
        return importlib.import_module("stridedview._simulator")
    _peers.check("cuda-core")
    _peers.check("cuda-bindings")
    return importlib.import_module("stridedview.numba_cuda")


def enable(
    *,
    stream: Literal["producer", "numba"] = "producer",
    strict: bool = False,
    arrays: bool = False,
    slow: Literal["allow", "warn", "error"] = "allow",
    bump_version: bool = False,
) -> None:
    """Make ``@cuda.jit`` kernels take torch tensors and every other array.

    Can be called again, to change the options: those not given are then at their default.
    In Numba's CUDA simulator, CPU tensors are taken and the options, checked there too,
    have no effect. No driver is needed before the first launch.

    Parameters
    ----------
    stream : {"producer", "numba"}
        Where a launch goes that names no stream: the current stream of torch, or of the
        first producer among the arguments that has one; or always Numba's default stream.
    strict : bool
        Refuse, for an explicit signature, arrays whose items have the right width but the
        other signedness, which are otherwise taken with a warning.
    arrays : bool
        Make ``cuda.device_array``, ``to_device``, ``as_cuda_array`` and their like give
        StridedViews instead of DeviceNDArrays.
    slow : {"allow", "warn", "error"}
        What to do when an argument takes a slow route: a host array that is copied, a
        protocol that makes Python objects (DLPack capsule, ``__cuda_array_interface__``),
        Numba's own code. "warn" warns once for a kernel, argument and route.
    bump_version : bool
        Bump the version of every torch tensor that a launch takes, so that a backward
        through one that autograd saved raises instead of using what the kernel left.
        Launches then cost more; ``mark_written`` does it for single tensors.

    Raises
    ------
    ImportError
        If numba-cuda, cuda-core or cuda-bindings is absent or of a version out of range,
        or numba-cuda is not as expected; nothing is patched then.
    TypeError, ValueError
        If an option is unknown or has no such value; nothing is changed then.
    """
    global _options, _patched
    options = {
        "stream": stream,
        "strict": strict,
        "arrays": arrays,
        "slow": slow,
        "bump_version": bump_version,
    }
    _check(options)
    with _lock:
        patch = _patch()
        patch.enable(**options)
        _patched = patch
        _options = options


def _check(options: dict[str, Any]) -> None:
    """Raise if an option has a value that it cannot have."""
    for name, value in options.items():
        words = _WORDS.get(name)
        # "yes", "false" and 0 would be taken for what they are not meant as.
        if words is None and not isinstance(value, bool):
            raise TypeError(f"{name} is True or False, not {value!r}")
        if words is not None and value not in words:
            *others, last = map(repr, words)
            raise ValueError(f"{name} is {', '.join(others)} or {last}, not {value!r}")


def disable() -> None:
    """Put numba-cuda's own objects back. Can be called again."""
    global _options, _patched
    with _lock:
        if _patched is not None:
            _patched.disable()
        _options = None
        _patched = None


def is_enabled() -> bool:
    """Whether numba-cuda is patched."""
    return _options is not None


def options() -> dict[str, Any] | None:
    """Return the options in force, all of them, or None while disabled."""
    return _options


class _Block:
    """A ``with enabled()`` block: the options to go back to when it ends."""

    def __init__(self, before: dict[str, Any] | None) -> None:
        self.before = before


@contextlib.contextmanager
def enabled(**options: Any) -> Iterator[None]:
    """Enable within a block; afterwards it is as before, options included.

    The switch is one for all threads. Where blocks of several threads overlap, the options
    are those of the block that began last and has not ended; Numba stays patched until the
    last one ends, and is then as it was before the first.

    Parameters
    ----------
    **options
        As for :func:`enable`.
    """
    with _lock:
        block = _Block(_options)
        enable(**options)
        _blocks.append(block)
    try:
        yield
    finally:
        with _lock:
            _leave(block)


def _leave(block: _Block) -> None:
    place = _blocks.index(block)
    del _blocks[place]
    if place < len(_blocks):
        # A block that began later is still in force, and goes back where this one would.
        _blocks[place].before = block.before
    elif block.before is None:
        disable()
    else:
        enable(**block.before)
