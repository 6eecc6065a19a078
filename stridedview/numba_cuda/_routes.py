"""By which route an argument comes, whether that is slow, and what is done about it.

Owns the names of the routes as users read them, and the policy ``enable(slow=...)``. A
slow route is one that runs Python code at every launch beyond reading attributes: a copy
of a host array, a capsule or a dict of a protocol, Numba's own launch code.
"""

from __future__ import annotations

import functools
import warnings
import weakref
from typing import NamedTuple

from stridedview import _driver, _ingest, _launch, _pack, _stream
from stridedview.numba_cuda import _checks, _types

POLICIES = ("allow", "warn", "error")
HOST = 1  # DLPack's kDLCPU
CUDA = 2  # kDLCUDA
PAGE_LOCKED = 1  # CU_MEMORYTYPE_HOST
STREAMS_PLANNED = 16  # WAITS of _pack.pxd

_policy = "allow"
_warned = weakref.WeakKeyDictionary()  # dispatcher -> {(argument index, route name)}


class Route(NamedTuple):
    """How an argument comes into a launch."""

    name: str
    how: str = ""
    why_slow: str = ""
    faster: str = ""
    copies: str = "none"


_ONCE = "pass a view made once, stridedview.from_any(x)"
_SLOW_PROTOCOLS = {
    "DLPack": Route("DLPack", "DLPack capsule", "a capsule is made at every launch", _ONCE),
    "CUDA array interface": Route(
        "CUDA array interface",
        "a dict of Python objects",
        "a dict is made and read at every launch",
        _ONCE,
    ),
    "JAX": Route("JAX", "DLPack capsule", "JAX waits for the array at every launch", _ONCE),
}
_HOST = Route(
    "host copy",
    "Numba's own code",
    "it is copied to the device and back at every launch",
    "move it once: cuda.to_device(x), x.cuda() or stridedview.to_device(x)",
    "in and back",
)
_PINNED = Route(
    "pinned memory",
    "used in place, through Numba's own code",
    "the host waits for the kernel at every launch",
    "pass stridedview.from_any(x) of an array that the device can reach",
)
_RECORD = Route(
    "record",
    "Numba's own code",
    "Numba's own code packs it at every launch",
    "pass an array of one record on the device",
    "in and back",
)
_OTHER = Route(
    "Numba's own code",
    "Numba's typing and packing",
    "Numba's own code takes it at every launch",
    "pass an array or a number",
)
_NUMBER = Route("number", "by value")


def route_of(value, *, reading=True):
    """Return the Route of an argument; of a tuple that of its slowest item.

    Unless ``reading``, what takes Python code to be read goes by its type alone.

    Raises
    ------
    TypeError, BufferError, ValueError
        If it is an array that cannot be taken.
    """
    inner = value.value if _types.is_hint(value) else value
    kind = _pack.kind_name(inner)
    if _types.is_record(inner):
        return _RECORD
    if kind == "tuple":
        items = tuple.__iter__(inner)
        routes = [route_of(item, reading=reading) for item in items]
        slow = [route for route in routes if route.why_slow]
        return slow[0] if slow else Route("tuple", "each item by its own route")
    if kind == "other":
        return _OTHER
    return _array_route(inner, value, reading) if kind == "array" else _NUMBER


def _array_route(inner, value, reading):
    name, how = _ingest.route(inner)
    if name in _SLOW_PROTOCOLS and not reading:
        return _SLOW_PROTOCOLS[name]
    if name in _SLOW_PROTOCOLS and not _types.is_hint(value):
        route = _SLOW_PROTOCOLS[name]
    else:
        route = Route(name, how)
    # A plain device tensor is the common case, and is asked with the least.
    view = _ingest.from_any(inner)
    if view.device[0] != HOST:
        return route
    if view.size and _is_pinned(view.ptr):
        return _PINNED
    copies = {"In": "in", "Out": "back"}.get(type(value).__name__, "in and back")
    return _HOST._replace(copies="in" if view.readonly else copies)


def _is_pinned(pointer):
    return _driver.current_context() != 0 and _driver.memory_type(pointer) == PAGE_LOCKED


# -- the policy ---------------------------------------------------------------------------


def set_policy(policy):
    """Set what a slow route leads to, and forget what was warned of."""
    global _policy
    _policy = policy
    _warned.clear()


def check_argument(dispatcher, index, value):
    """Warn of an argument's slow route, or refuse it, as the policy says.

    Raises
    ------
    TypeError
        Under ``slow="error"``, with the route and the faster way; always, if no kernel
        takes such an argument.
    """
    route = route_of(value)
    if not route.why_slow:
        return
    if route is _OTHER and not dispatcher.extensions:
        problem = _checks.passing_problem(_types.type_of(value), value)
        if problem:
            raise TypeError(problem)
    text = f"it takes a slow route, {route.name}: {route.why_slow}; {route.faster}"
    if _policy == "error":
        raise TypeError(text)
    seen = _warned.setdefault(dispatcher, set())
    if _policy == "warn" and (index, route.name) not in seen:
        seen.add((index, route.name))
        warnings.warn(
            f"argument {index + 1}{_name_of(dispatcher, index)} of kernel "
            f"'{dispatcher.py_func.__name__}': {text}",
            _checks.StridedviewWarning,
            stacklevel=2,
        )


def _name_of(dispatcher, index):
    names = parameter_names(dispatcher.py_func)
    return f" '{names[index]}'" if index < len(names) else ""


@functools.lru_cache(maxsize=1024)
def _names(code):
    return code.co_varnames[: code.co_argcount]


def parameter_names(function):
    """Return the names of a function's parameters."""
    return _names(function.__code__)


def _streams_in(args):
    """Return how many streams the arrays among the arguments name."""
    handles = {_stream.handle_of(view.stream) for view in views_in(args)}
    return len(handles - {0})


def views_in(args):
    """Yield a view of every array on a device among the arguments, within tuples too."""
    for value in args:
        inner = value.value if _types.is_hint(value) else value
        kind = _pack.kind_name(inner)
        if kind == "tuple":
            # By its own items: a subclass may iterate over others.
            yield from views_in(tuple.__iter__(inner))
        elif kind == "array":
            view = _ingest.from_any(inner)
            if view.device[0] != HOST:
                yield view


def device_of(dispatcher, args):
    """Return the device of the arrays among the arguments, -1 if there is none on one.

    As the signature words have it, and of arrays within hints too.

    Raises
    ------
    ValueError
        If they are on several devices, naming both.
    TypeError, BufferError, ValueError
        If one is an array that cannot be taken.
    """
    device, first = -1, 0
    found = _checks.each_named(dispatcher, args, _devices_of)
    for index, number in ((i, number) for i, each in enumerate(found) for number in each):
        if device < 0:
            device, first = number, index
        elif number != device:
            text = _pack.other_device(number, first, device)
            raise ValueError(f"{_launch.argument_name(dispatcher, index)}: {text}")
    return device


def _devices_of(value):
    # Pinned and managed memory is every device's.
    devices = (view.device for view in views_in((value,)))
    return [number for kind, number in devices if kind == CUDA]


def obstacle(kernel, configuration, args, words):
    """Return why no plan can take a launch, as :func:`stridedview.stats` has it, or "".

    ``kernel`` may be None where it is not known.
    """
    if configuration.pre_launch_callbacks:
        return "pre-launch callback"
    if words is None:
        for value in args:
            if _types.is_hint(value):
                return "argument hint"
            route = route_of(value)
            if route in (_PINNED, _RECORD, _OTHER) or route.name == _HOST.name:
                return "host array" if route.name == _HOST.name else route.name
        return (
            "too many streams"
            if _streams_in(args) > STREAMS_PLANNED
            else ("too many arguments")
        )
    if kernel is not None and kernel.extensions:
        return "extension"
    if kernel is not None and kernel.debug:
        return "debug kernel"
    return ""
