"""Native torch tensors in Numba CUDA kernels: layouts, views, and a fast launch.

Importing this package imports no framework, touches no driver and patches nothing. The
public names are loaded from their modules when they are first asked for.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

# Public name -> the module of this package that has it. Whatever gives out views comes from
# `_sharing`, the last of the modules that add members to StridedView.
_HOMES = {
    "DType": "_dtype",
    "DriverError": "_driver",
    "Explanation": "_explain",
    "LaunchError": "_errors",
    "Layout": "_layout",
    "OutOfMemoryError": "_sharing",
    "PreparedLaunch": "_prepared",
    "Profile": "_profile",
    "StridedView": "_sharing",
    "TorchOp": "_op_registry",
    "disable": "_switch",
    "dtype": "_dtype",
    "empty": "_sharing",
    "empty_like": "_sharing",
    "empty_many": "_sharing",
    "enable": "_switch",
    "enabled": "_switch",
    "explain": "_explain",
    "from_any": "_sharing",
    "from_many": "_sharing",
    "full": "_sharing",
    "is_enabled": "_switch",
    "mark_written": "_autograd",
    "pinned": "_sharing",
    "prepare": "_prepared",
    "profile": "_profile",
    "reset_stats": "_stats",
    "stats": "_stats",
    "to_device": "_sharing",
    "torch_op": "_torch_op",
    "zeros": "_sharing",
}

__all__ = ["__version__", *_HOMES]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    own = {name for name in globals() if name.startswith("__")}
    return sorted({*own, *_HOMES})
