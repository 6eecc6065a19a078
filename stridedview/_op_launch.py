"""How an operator launches its kernel: grid and block, fixed or from the arguments.

Owns the reading of what ``torch_op`` is given as a kernel and its configuration. The
launches are those of a user: ``kernel[grid, block](...)``, on torch's current stream.
"""

from __future__ import annotations

import inspect
import numbers
from collections.abc import Callable, Sequence
from typing import Any

from stridedview import _switch

Launch = Callable[..., Any]


class Kernel:
    """A kernel as ``torch_op`` was given it, and its parameters.

    Parameters
    ----------
    target : kernel or configured kernel
        ``kernel`` or ``kernel[grid, block]``.
    """

    def __init__(self, target: Any) -> None:
        self.configuration = target if hasattr(target, "griddim") else None
        self.kernel = target.dispatcher if hasattr(target, "griddim") else target
        self.function = self.kernel.py_func
        self.what = f"kernel {self.function.__name__!r}"
        options = getattr(self.kernel, "targetoptions", {})
        if options.get("device") or getattr(self.kernel, "_device", False):
            raise TypeError(f"{self.what} is a device function; only kernels are launched")

    def check_parameters(self, signature: inspect.Signature) -> None:
        """Refuse parameters that a launch cannot fill."""
        for one in signature.parameters.values():
            if one.kind is not inspect.Parameter.POSITIONAL_OR_KEYWORD:
                raise TypeError(
                    f"{self.what} takes {one}: an operator fills positional parameters, "
                    "each with a name"
                )

    def launcher(
        self, grid: Any, block: Any, forall: Any, shared: int, names: Sequence[str]
    ) -> Launch:
        """Return a function that launches the kernel on its arguments.

        Parameters
        ----------
        grid, block, forall, shared
            As for ``torch_op``.
        names : sequence of str
            The kernel's parameters, in order.

        Raises
        ------
        TypeError, ValueError
            If these are too many, too few or of the wrong kind.
        """
        is_given = (grid, block, forall, shared) != (None, None, None, 0)
        if self.configuration is None and not is_given and _is_configured(self.kernel):
            return self._as_it_was_configured()
        if self.configuration is not None:
            if is_given:
                raise TypeError(
                    f"{self.what} is configured already; give kernel[grid, block] or "
                    "grid=, block=, forall= and shared=, not both"
                )
            return self._configured()
        if not isinstance(shared, int) or shared < 0:
            raise TypeError(f"{self.what}: shared= takes a number of bytes, got {shared!r}")
        if not (grid is None or callable(grid) or _is_size(grid)):
            raise TypeError(
                f"{self.what}: grid= takes a number of blocks, a tuple of up to three, or "
                f"a callable that gives one of the kernel's arguments; got {grid!r}"
            )
        if (grid is None) == (forall is None):
            raise TypeError(
                f"{self.what}: give either grid=, with block=, or forall='x', the tensor "
                "whose elements are counted"
            )
        if forall is not None:
            return self._over(_counter(forall, names, self.what), block, shared)
        if block is None:
            raise TypeError(f"{self.what}: grid= needs block=, the threads of a block")
        if callable(grid):
            return self._on(grid, block, shared)
        return self._fixed(grid, block, shared)

    def _configured(self) -> Launch:
        configuration: Any = self.configuration
        if getattr(configuration, "named_stream", None) is not None:
            raise ValueError(
                f"{self.what} is configured with a stream; an operator runs on torch's "
                "current one, so that what comes after it is in order: name none"
            )

        def launch(*args: Any) -> None:
            require_enabled()
            configuration(*args)

        return launch

    def _as_it_was_configured(self) -> Launch:
        kernel = self.kernel
        return self._fixed(kernel.grid_dim, kernel.block_dim, kernel.dynshared_size)

    def _fixed(self, grid: Any, block: Any, shared: int) -> Launch:
        kernel = self.kernel
        configuration: Any = None

        def launch(*args: Any) -> None:
            nonlocal configuration
            require_enabled()
            if configuration is None or configuration is kernel:
                configuration = kernel[grid, block, 0, shared]
            configuration(*args)

        return launch

    def _on(self, grid: Callable[..., Any], block: Any, shared: int) -> Launch:
        kernel, what = self.kernel, self.what

        def launch(*args: Any) -> None:
            require_enabled()
            blocks = grid(*args)
            if not _is_size(blocks):
                raise TypeError(
                    f"{what}: grid= gave {blocks!r}, which is no number of blocks and no "
                    "tuple of up to three"
                )
            # Of no elements there is nothing to do; a grid of 0 blocks is an error.
            if blocks != 0 and not (isinstance(blocks, (tuple, list)) and 0 in blocks):
                kernel[blocks, block, 0, shared](*args)

        return launch

    def _over(self, count: Callable[..., int], block: Any, shared: int) -> Launch:
        kernel = self.kernel
        if block is None:

            def launch(*args: Any) -> None:
                require_enabled()
                kernel.forall(count(*args), sharedmem=shared)(*args)

            return launch
        if not isinstance(block, int) or block < 1:
            raise TypeError(f"{self.what}: with forall=, block must be a positive integer")
        return self._on(lambda *args: -(-count(*args) // block), block, shared)


def _is_size(blocks: Any) -> bool:
    if isinstance(blocks, (tuple, list)):
        return 1 <= len(blocks) <= 3 and all(
            isinstance(n, numbers.Integral) for n in blocks
        )
    return isinstance(blocks, numbers.Integral)


def _counter(forall: Any, names: Sequence[str], what: str) -> Callable[..., int]:
    if callable(forall):
        return forall  # type: ignore[no-any-return]
    if forall not in names:
        raise ValueError(
            f"forall={forall!r} is no parameter of {what}, which takes {', '.join(names)}"
        )
    place = list(names).index(forall)
    return lambda *args: args[place].numel()


def is_kernel(target: Any) -> bool:
    """Whether something is a kernel of Numba's, configured or not, or of its simulator."""
    kernel = target.dispatcher if hasattr(target, "griddim") else target
    return hasattr(kernel, "py_func") and hasattr(kernel, "forall")


def _is_configured(kernel: Any) -> bool:
    # Only the simulator's kernels hold a configuration: kernel[...] gives the kernel, and
    # so does any launch before. It counts where nothing else says the grid.
    return getattr(kernel, "grid_dim", None) is not None


def require_enabled() -> None:
    """Raise if kernels do not take tensors as they are, on torch's stream."""
    options = _switch.options()
    if options is None:
        raise RuntimeError(
            "stridedview is not enabled, so Numba would launch beside torch's stream; call "
            "stridedview.enable() before the operator is used"
        )
    if options and options.get("stream") == "numba":
        raise RuntimeError(
            "enable(stream='numba') puts launches on Numba's stream, but an operator has "
            "to run on torch's; call stridedview.enable() without it"
        )
