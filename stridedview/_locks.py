"""Locks that a forked child finds open.

A thread that held one in the parent is not there in the child, which would wait for ever.
They are Python's own, not wrapped: what is entered and left by C cannot be interrupted
between taking the lock and the block that it is for.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any

_locks: weakref.WeakSet[Any] = weakref.WeakSet()


def lock() -> Any:
    """Return a ``threading.Lock`` that a forked child finds open."""
    return _renewed(threading.Lock())


def rlock() -> Any:
    """Return a ``threading.RLock`` that a forked child finds open."""
    return _renewed(threading.RLock())


def _renewed(made: Any) -> Any:
    _locks.add(made)
    return made


def _renew_all() -> None:
    for each in list(_locks):
        each._at_fork_reinit()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_all)
