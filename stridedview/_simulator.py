"""Let Numba's CUDA simulator take CPU torch tensors.

Owns the patch of the simulator (``NUMBA_ENABLE_CUDASIM=1``) and the conversion of a CPU
tensor to the simulator's own array. It does not import torch: a program that passes a
tensor has done so already.
"""

from __future__ import annotations

import copy
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

_KERNEL_MODULE = "numba.cuda.simulator.kernel"

# torch dtypes that NumPy lacks: torch name -> (carrier of the same width, ml_dtypes name).
_CARRIED = {
    "bfloat16": ("int16", "bfloat16"),
    "float8_e4m3fn": ("uint8", "float8_e4m3fn"),
    "float8_e5m2": ("uint8", "float8_e5m2"),
    "float8_e8m0fnu": ("uint8", "float8_e8m0fnu"),
}
_REFUSED_DTYPES = (
    "complex32",
    "float4_e2m1fn_x2",
    "float8_e4m3fnuz",
    "float8_e5m2fnuz",
)


class _Replacement(NamedTuple):
    """One attribute that `enable` replaces, and the parameters it must have."""

    module: str
    owner: str
    attribute: str
    parameters: tuple[str, ...]
    make: Callable[[Callable[..., Any]], Callable[..., Any]]


def enable(**_options: Any) -> None:
    """Make simulated kernels take CPU torch tensors, sharing their memory.

    Does nothing if they do already.

    Raises
    ------
    RuntimeError
        If Numba's CUDA simulator is not in use.
    ImportError
        If the simulator is not built as the tested version is. Nothing is patched then.
    """
    if _originals:
        return
    _require_simulator()
    probed = [(entry, _probe(entry)) for entry in _REPLACED]
    for entry, original in probed:
        setattr(_owner(entry), entry.attribute, entry.make(original))
        _originals.append((entry, original))


def disable() -> None:
    """Put back the objects that `enable` replaced; do nothing if there are none."""
    while _originals:
        entry, original = _originals.pop()
        setattr(_owner(entry), entry.attribute, original)


def is_enabled() -> bool:
    """Return whether the simulator is patched."""
    return bool(_originals)


@contextmanager
def enabled() -> Iterator[None]:
    """Enable within a ``with`` block; leave things on the way out as they were before."""
    was_enabled = is_enabled()
    enable()
    try:
        yield
    finally:
        if not was_enabled:
            disable()


def _require_simulator() -> None:
    config = importlib.import_module("numba.cuda").config
    if not config.ENABLE_CUDASIM:
        raise RuntimeError(
            "Numba's CUDA simulator is not in use; set NUMBA_ENABLE_CUDASIM=1 "
            "before numba.cuda is imported"
        )


def _owner(entry: _Replacement) -> Any:
    return getattr(importlib.import_module(entry.module), entry.owner)


def _probe(entry: _Replacement) -> Callable[..., Any]:
    """Return the attribute to replace, or raise if it is not what was tested."""
    original = vars(_owner(entry)).get(entry.attribute)
    found = tuple(inspect.signature(original).parameters) if callable(original) else None
    if original is None or found != entry.parameters:
        raise ImportError(
            f"{entry.module}.{entry.owner}.{entry.attribute} takes {found}, expected "
            f"{entry.parameters}: this numba-cuda is not one that was tested "
            f"(`python -m stridedview status` lists them)"
        )
    return original  # type: ignore[no-any-return]


def _taking_tensors(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a ``FakeCUDAKernel.__call__`` that converts tensors, then calls `original`."""
    simulator = importlib.import_module(_KERNEL_MODULE)

    def __call__(self: Any, *args: Any) -> Any:  # noqa: N807
        torch = sys.modules.get("torch")
        # Within a kernel this is a call of a device function: nothing new comes in there.
        if torch is None or self._device or simulator._get_kernel_context():
            return original(self, *args)
        names = _parameter_names(self.fn)
        return original(
            self,
            *(
                _convert(torch, arg, f"argument {position}{name}")
                for position, (arg, name) in enumerate(_zip_names(args, names), start=1)
            ),
        )

    return __call__


def _parameter_names(function: Callable[..., Any]) -> tuple[str, ...]:
    return tuple(inspect.signature(function).parameters)


def _zip_names(args: tuple[Any, ...], names: tuple[str, ...]) -> Iterator[tuple[Any, str]]:
    """Yield each argument with its quoted name, or an empty one where there is none."""
    for index, arg in enumerate(args):
        yield arg, f" {names[index]!r}" if index < len(names) else ""


def _convert(torch: Any, value: Any, where: str) -> Any:
    """Return `value` with every tensor in it replaced by a simulator array."""
    if isinstance(value, torch.Tensor):
        return _fake_array(_host_array(torch, value, where))
    if isinstance(value, tuple):
        items = [_convert(torch, item, where) for item in value]
        # A named tuple's constructor takes its fields one by one.
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    if isinstance(value, _simulator_args().ArgHint):
        return _convert_hint(torch, value, where)
    return value


def _convert_hint(torch: Any, hint: Any, where: str) -> Any:
    if not isinstance(hint.value, torch.Tensor):
        return hint
    array = _host_array(torch, hint.value, where)
    # What a kernel writes to an In() argument never comes back from a GPU.
    if isinstance(hint, _simulator_args().In):
        array = array.copy()
    converted = copy.copy(hint)
    converted.value = _fake_array(array)
    return converted


def _simulator_args() -> Any:
    return importlib.import_module("numba.cuda.simulator.args")


def _fake_array(array: Any) -> Any:
    return importlib.import_module(_KERNEL_MODULE).FakeCUDAArray(array)


def _host_array(torch: Any, tensor: Any, where: str) -> Any:
    """Return a NumPy array over the memory of a CPU `tensor`.

    Raises
    ------
    TypeError
        If the tensor is of a kind that a kernel cannot take.
    """
    reason = _refusal(torch, tensor)
    if reason:
        raise TypeError(f"{where}: {type(tensor).__name__}: {reason}")
    detached = tensor.detach()
    name = _dtype_name(tensor)
    if name not in _CARRIED:
        return detached.numpy()
    carrier, extension_name = _CARRIED[name]
    extension = _ml_dtype(extension_name)
    if extension is None:
        raise TypeError(
            f"{where}: NumPy has no dtype for torch.{name}; install ml_dtypes, "
            f"or pass a view such as t.view(torch.{carrier})"
        )
    return detached.view(getattr(torch, carrier)).numpy().view(extension)


def _refusal(torch: Any, tensor: Any) -> str | None:
    """Return why the simulator cannot take `tensor`, with what to do, or None."""
    plain = torch._C._disabled_torch_dispatch_impl
    if type(tensor).__torch_dispatch__ is not plain:
        return "this subclass has no memory of its own; pass the tensor inside it"
    if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_quantized:
        return "a sparse, nested or quantized tensor has no plain memory; convert it first"
    if tensor.device.type != "cpu":
        return f"the simulator has no memory on {tensor.device}; pass t.cpu()"
    if tensor.is_conj():
        return "its conjugate bit is set and would be ignored; pass t.resolve_conj()"
    if tensor.is_neg():
        return "its negative bit is set and would be ignored; pass t.resolve_neg()"
    if _dtype_name(tensor) in _REFUSED_DTYPES:
        return f"a kernel cannot take {tensor.dtype}; pass t.view(torch.uint8)"
    return None


def _dtype_name(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _ml_dtype(name: str) -> Any:
    """Return the ml_dtypes type called `name`, or None without a package that has it."""
    try:
        return getattr(importlib.import_module("ml_dtypes"), name, None)
    except ImportError:
        return None


_REPLACED = (
    _Replacement(
        _KERNEL_MODULE, "FakeCUDAKernel", "__call__", ("self", "args"), _taking_tensors
    ),
)
_originals: list[tuple[_Replacement, Callable[..., Any]]] = []
