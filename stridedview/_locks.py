"""Locks that a forked child finds open.

A thread that held one in the parent is not there in the child, which would wait for ever.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from typing import Any


class Lock:
    """A lock for ``with``, made anew in a forked child.

    Parameters
    ----------
    make : callable
        ``threading.Lock`` or ``threading.RLock``.
    """

    def __init__(self, make: Callable[[], Any] = threading.Lock) -> None:
        self._make = make
        self._lock = make()
        _locks.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def renew(self) -> None:
        """Be open, whoever held it."""
        self._lock = self._make()


_locks: weakref.WeakSet[Lock] = weakref.WeakSet()


def _renew_all() -> None:
    for lock in list(_locks):
        lock.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_all)
