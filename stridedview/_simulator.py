"""Let Numba's CUDA simulator take CPU torch tensors.

Owns the patch of the simulator (``NUMBA_ENABLE_CUDASIM=1``), the conversion of a CPU
tensor to the simulator's own array, and what stands there for a prepared launch. It does
not import torch: a program that passes a tensor has done so already.
"""

from __future__ import annotations

import copy
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator
from time import perf_counter_ns
from typing import Any, NamedTuple

from stridedview import _prepared, _stats
from stridedview._dtype import dtype as find_dtype

_KERNEL_MODULE = "numba.cuda.simulator.kernel"

# A torch dtype that NumPy lacks is carried by the integers of its width, in bytes.
_CARRIERS = {1: "uint8", 2: "int16"}

Observer = Callable[[Any, tuple[Any, ...], int], None]


class _Replacement(NamedTuple):
    """One attribute that `enable` replaces, and the parameters it must have."""

    module: str
    owner: str
    attribute: str
    parameters: tuple[str, ...]
    make: Callable[[Callable[..., Any]], Callable[..., Any]]


def enable(**_options: Any) -> None:
    """Make simulated kernels take CPU torch tensors, sharing their memory.

    Does nothing if they do already. The options, which the caller has checked, choose
    among routes and streams, and here there are none.

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
    _prepared.set_simulator(_prepare)


def disable() -> None:
    """Put back the objects that `enable` replaced; do nothing if there are none."""
    while _originals:
        entry, original = _originals.pop()
        setattr(_owner(entry), entry.attribute, original)
    _prepared.set_simulator(None)


def is_enabled() -> bool:
    """Return whether the simulator is patched."""
    return bool(_originals)


def is_kernel(value: Any) -> bool:
    """Whether a value is a simulated kernel, which is its own configuration too."""
    simulator: Any = sys.modules.get(_KERNEL_MODULE)
    return simulator is not None and isinstance(value, simulator.FakeCUDAKernel)


def add_observer(observer: Observer) -> None:
    """Call ``observer(kernel, args, nanoseconds)`` after each simulated launch."""
    _observers.append(observer)


def remove_observer(observer: Observer) -> None:
    """Call an observer no more."""
    _observers.remove(observer)


class SimulatedLaunch:
    """What ``prepare`` gives in the simulator: a launch kept, with nothing packed.

    It has the methods of :class:`stridedview.PreparedLaunch`.
    """

    def __init__(self, kernel: Any, args: tuple[Any, ...]) -> None:
        # A simulated kernel is its own configuration; the next one would change it.
        self.configuration = copy.copy(kernel)
        self._args = args

    @property
    def args(self) -> tuple[Any, ...]:
        """The arguments, a tuple."""
        return self._args

    def launch(self) -> None:
        """Run the kernel."""
        self.configuration(*self._args)

    __call__ = launch

    def update(self, index: int, argument: Any) -> None:
        """Replace one argument.

        Raises
        ------
        IndexError
            If there is no such argument.
        """
        if not 0 <= index < len(self._args):
            raise IndexError(
                f"there is no argument {index}; this launch has {len(self._args)}, counted "
                "from 0"
            )
        self._args = (*self._args[:index], argument, *self._args[index + 1 :])

    def __repr__(self) -> str:
        kernel = self.configuration
        return (
            f"<simulated launch of {kernel.__name__}: grid {tuple(kernel.grid_dim)}, block "
            f"{tuple(kernel.block_dim)}, {len(self._args)} arguments>"
        )


def _prepare(configuration: Any, args: tuple[Any, ...]) -> SimulatedLaunch | None:
    """Return a launch of a simulated kernel, or None if it is not one with a grid."""
    if is_kernel(configuration) and configuration.grid_dim is not None:
        return SimulatedLaunch(configuration, args)
    return None


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

    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
        # Within a kernel this is a call of a device function: nothing new comes in there.
        if self._device or simulator._get_kernel_context():
            return original(self, *args, **kwargs)
        if kwargs:
            raise TypeError(f"kernels take no keyword arguments, got {sorted(kwargs)}")
        _check_count(self.fn, args)
        taken = _converted(self.fn, args)
        _stats.note_fallback("simulator")
        start = perf_counter_ns()
        original(self, *taken)
        duration = perf_counter_ns() - start
        for observer in tuple(_observers):
            observer(self, args, duration)
        return None

    return __call__


def _check_count(function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    """Refuse a wrong number of arguments before the first thread of the kernel does."""
    signature = inspect.signature(function)
    try:
        signature.bind(*args)
    except TypeError:
        wanted = ", ".join(signature.parameters)
        raise TypeError(
            f"kernel '{function.__name__}' takes {len(signature.parameters)} arguments "
            f"({wanted}), got {len(args)}"
        ) from None


def _converted(function: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Any, ...]:
    torch = sys.modules.get("torch")
    if torch is None:
        return args
    return tuple(
        _convert(torch, arg, f"argument {position}{name}")
        for position, (arg, name) in enumerate(
            _zip_names(args, _parameter_names(function)), start=1
        )
    )


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
    entry = find_dtype(tensor.dtype)
    detached = tensor.detach()
    if entry.typestr:
        return detached.numpy()
    carrier = _CARRIERS[entry.itemsize]
    extension = _ml_dtype(entry.name)
    if extension is None:
        raise TypeError(
            f"{where}: NumPy has no dtype for {tensor.dtype}; install ml_dtypes, "
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
    try:
        entry = find_dtype(tensor.dtype)
    except TypeError as error:
        return f"{error}; pass a view as an integer type of the same width"
    if not entry.kernel:
        return f"a kernel cannot take {tensor.dtype}; {entry.advice}"
    return None


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
_observers: list[Observer] = []
