"""Enable stridedview when the program itself imports ``numba.cuda``.

``stridedview_enable.pth`` calls `install` at the start of the interpreter, and only if
``STRIDEDVIEW_ENABLE`` is set. This module owns the import hook and nothing else: it
imports the standard library alone, so that a program that never touches Numba pays for
one small finder on ``sys.meta_path``.
"""

from __future__ import annotations

import importlib
import os
import sys
from importlib.abc import Loader, MetaPathFinder
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

VARIABLE = "STRIDEDVIEW_ENABLE"

# The package and not its dispatcher module: when the dispatcher is imported the package
# is still half made, and enable() needs it whole. Nobody can launch before that.
TARGET = "numba.cuda"


def requested() -> bool:
    """Return whether the environment asks for stridedview in unchanged scripts."""
    return os.environ.get(VARIABLE, "").lower() in ("1", "true")


def install() -> None:
    """Call ``stridedview.enable()`` as soon as ``numba.cuda`` has been imported.

    Does nothing the second time. A failure to enable is reported on stderr and leaves
    Numba as it is: a variable in the environment must not stop unrelated programs.
    """
    if TARGET in sys.modules:
        _enable_or_warn()
    elif not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder(MetaPathFinder):
    """Wrap the loader that the other finders give for `TARGET`."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        if fullname != TARGET:
            return None
        spec = self._ask_others(path, target)
        # numba-cuda's own finder, which redirects this name to numba-cuda's package,
        # asks every finder in turn, this one too: the spec may be wrapped already.
        if spec and spec.loader and not isinstance(spec.loader, _EnablingLoader):
            spec.loader = _EnablingLoader(spec.loader, self)
        return spec

    def _ask_others(
        self, path: Sequence[str] | None, target: ModuleType | None
    ) -> ModuleSpec | None:
        for finder in list(sys.meta_path):
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(TARGET, path, target)
            if spec is not None:
                return spec
        return None


class _EnablingLoader(Loader):
    """Execute the module with its own loader, then enable."""

    def __init__(self, loader: Loader, finder: _Finder) -> None:
        self._loader = loader
        self._finder = finder

    def __getattr__(self, name: str) -> object:
        # Tools ask a loader for its source, resources and so on before it has run.
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        # The module must not show that it was loaded through us.
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        # Only after success: a failed import may be tried again.
        if self._finder in sys.meta_path:
            sys.meta_path.remove(self._finder)
        _enable_or_warn()


def _enable_or_warn() -> None:
    # This runs inside somebody else's import statement, which had no part in asking for
    # us: whatever goes wrong is told in full and the import goes on, with Numba unpatched.
    try:
        importlib.import_module("stridedview").enable()
    except Exception as error:  # noqa: BLE001
        print(
            f"stridedview: {VARIABLE}={os.environ.get(VARIABLE, '')} had no effect, "
            f"Numba stays unpatched: {type(error).__name__}: {error}",
            file=sys.stderr,
        )
