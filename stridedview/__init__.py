"""Native torch tensors in Numba CUDA kernels: layouts, views, and a fast launch.

Importing this package imports no framework, touches no driver and patches nothing. The
public names are loaded from their modules when they are first asked for.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

# Public name -> the module of this package that defines it.
_HOMES = {
    "DType": "_dtype",
    "DriverError": "_driver",
    "Layout": "_layout",
    "StridedView": "_export",
    "disable": "_switch",
    "dtype": "_dtype",
    "enable": "_switch",
    "enabled": "_switch",
    "from_any": "_ingest",
    "from_many": "_ingest",
    "is_enabled": "_switch",
}

__all__ = ["__version__", *_HOMES]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
