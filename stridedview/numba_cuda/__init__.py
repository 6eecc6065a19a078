"""numba-cuda made to take arrays natively: the patch and its switch.

The only place that imports numba-cuda. ``enable`` replaces the attributes in ``_patch``'s
table, after checking that each is as expected, and ``disable`` puts the same objects back.
"""

from __future__ import annotations

from stridedview import _autograd, _configuration, _launch, _locks, _view
from stridedview.numba_cuda import _patch, _plans, _routes, _types

__all__ = ["disable", "enable", "is_enabled"]

_lock = _locks.rlock()
_is_enabled = False

_view.set_numba_typer(_types.view_type)


def _bump(_configuration, args, _duration):
    _autograd.bump_arguments(args, _types.ArgHint)


def enable(
    *, stream="producer", strict=False, arrays=False, slow="allow", bump_version=False
):
    """Patch numba-cuda; see ``stridedview.enable`` for the options and the errors."""
    global _is_enabled
    if stream not in ("producer", "numba"):
        raise ValueError(f"stream is 'producer' or 'numba', not {stream!r}")
    if slow not in _routes.POLICIES:
        raise ValueError(f"slow is 'allow', 'warn' or 'error', not {slow!r}")
    with _lock:
        if not _is_enabled:
            problems = _patch.probe()
            if problems:
                raise ImportError(
                    "this numba-cuda is not as expected, nothing was patched: "
                    + "; ".join(problems)
                )
        if arrays:
            _patch.apply_arrays()  # raises before anything else is replaced
        else:
            _patch.restore_arrays()
        if not _is_enabled:
            _configuration.invalidate_all()
            try:
                _patch.apply()
            except BaseException:
                _patch.restore_arrays()
                raise
            _is_enabled = True
        _plans.set_strict(strict)
        _routes.set_policy(slow)
        _launch.remove_observer(_bump)
        if bump_version:
            _launch.add_observer(_bump)
        _launch.set_enabled(
            True, follow_producers=stream == "producer", watch_slow=slow != "allow"
        )


def disable():
    """Put numba-cuda's own objects back. Can be called again."""
    global _is_enabled
    with _lock:
        if _is_enabled:
            _launch.set_enabled(False)
            _launch.remove_observer(_bump)
            _patch.restore()
            _is_enabled = False


def is_enabled():
    """Whether numba-cuda is patched."""
    return _is_enabled
