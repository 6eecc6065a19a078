"""Counters of the launch path: ``stats()`` and ``reset_stats()``.

Owns what is counted off the fast path, where a count costs nothing that matters, and the
sum with the two counters that ``_launch`` keeps in C.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

from stridedview import _launch, _locks

_lock = _locks.lock()
_counts: Counter[str] = Counter()
_fallbacks: Counter[str] = Counter()
_seconds = 0.0
_base = (0, 0)  # the launches with a plan and the misses among them at the last reset


def note(what: str) -> None:
    """Count one "misses", "plans", "compiles" or "loads"."""
    with _lock:
        _counts[what] += 1


def note_fallback(reason: str) -> None:
    """Count one launch through Numba's own code."""
    with _lock:
        _fallbacks[reason] += 1


@contextlib.contextmanager
def compiling(dispatcher: Any) -> Iterator[None]:
    """Count what a dispatcher compiles, or loads from its disk cache, within a block."""
    global _seconds
    before = _compiled(dispatcher)
    start = time.perf_counter()
    try:
        yield
    finally:
        seconds = time.perf_counter() - start
        after = _compiled(dispatcher)
        with _lock:
            _counts["compiles"] += after[0] - before[0]
            _counts["loads"] += after[1] - before[1]
            if after[0] != before[0]:
                _seconds += seconds


def _compiled(dispatcher: Any) -> tuple[int, int]:
    # What forall() specializes is a dispatcher of its own, kept in this one.
    each = [dispatcher.stats, *(one.stats for one in dispatcher.specializations.values())]
    return (
        sum(sum(found.cache_misses.values()) for found in each),
        sum(sum(found.cache_hits.values()) for found in each),
    )


def stats() -> dict[str, Any]:
    """Return what the launches of this process came to, since the last reset.

    Counting a hit costs one instruction; where Python runs without the GIL and several
    threads launch at once, some hits may go uncounted.

    Returns
    -------
    dict
        "launches": those that used a plan, so no fallbacks; "hits": those of them that
        found it, and those that were prepared; "misses": launches for whose signature a
        plan was made; "plans": plans made, for launches and by ``prepare``;
        "compiles": kernels compiled for a launch, failed ones included;
        "compile_seconds"; "loads": kernels loaded from the disk cache; "fallbacks":
        launches through Numba's own code by reason; all of them, "simulator", in
        Numba's CUDA simulator.
    """
    launches, missed = _launch.launch_counts()
    with _lock:
        launches -= _base[0]
        return {
            "launches": launches,
            "hits": launches - (missed - _base[1]),
            "misses": _counts["misses"],
            "plans": _counts["plans"],
            "compiles": _counts["compiles"],
            "compile_seconds": _seconds,
            "loads": _counts["loads"],
            "fallbacks": dict(_fallbacks),
        }


def reset_stats() -> None:
    """Set every counter of :func:`stats` to 0."""
    global _seconds, _base
    with _lock:
        _counts.clear()
        _fallbacks.clear()
        _seconds = 0.0
        _base = _launch.launch_counts()
