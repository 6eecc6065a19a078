"""Keeping torch.compile out of what a launch runs in Python.

Owns a pause of Dynamo. Within a compiled function Dynamo looks at every Python frame that
begins, and so at Numba's compiler when a launch is the first of its signature: it would
compile thousands of frames that hold no tensor, and fails in some of them. Imports no
torch: what is not imported traces nothing.
"""

import functools
import sys


cdef object _set_eval_frame = None


cdef object _find():
    """Return Dynamo's switch, or None as long as torch is not there or has none."""
    global _set_eval_frame
    if _set_eval_frame is None:
        found = sys.modules.get("torch")
        for name in ("_C", "_dynamo", "eval_frame", "set_eval_frame"):
            found = getattr(found, name, None)
        _set_eval_frame = found
    return _set_eval_frame


cdef class Undisturbed:
    """A function that runs with Dynamo paused in this thread; a method where it is one.

    Parameters
    ----------
    function : callable
    """
    # No Python frame of its own, at which Dynamo could look.
    cdef object function
    cdef dict __dict__

    def __init__(self, function):
        self.function = function
        functools.update_wrapper(self, function)

    def __call__(self, *args, **kwargs):
        switch = _find()
        if switch is None:
            return self.function(*args, **kwargs)
        before = switch(None)
        try:
            return self.function(*args, **kwargs)
        finally:
            switch(before)

    def __get__(self, instance, owner):
        return self if instance is None else functools.partial(self, instance)
