"""Launches through Numba's own code: what no plan can take.

Owns such a launch around ``_Kernel.launch``: its stream, the ordering behind the producers,
what a capture does not allow, and that numbers are passed as a plan would pack them.
"""

from __future__ import annotations

import numpy as np
from cuda.core import Stream as CoreStream
from numba.cuda import types

from stridedview import _driver, _ingest, _launch, _pack, _stream
from stridedview.numba_cuda import _checks, _contexts, _hosts, _routes, _types

HOST = 1  # DLPack's kDLCPU
DEBUG_NOT_CAPTURED = (
    "a debug kernel copies its error code to the host and cannot be captured in a graph; "
    "compile it without debug=True"
)


def launch(kernel, configuration, args):
    """Launch through ``_Kernel.launch`` on the right stream, behind the producers."""
    views = list(_routes.views_in(args))
    handle = launch_stream(configuration, views)
    refusal = capture_refusal(kernel, args) if _stream.capturing(handle) else ""
    if refusal:
        raise RuntimeError(refusal)
    _contexts.bind(kernel)
    needs_asking = configuration.sharedmem or kernel.cooperative
    if needs_asking or not _launch.is_modest(configuration):
        function = _driver.kernel_function(int(kernel._codelibrary.get_cufunc().handle))
        _contexts.make_ready(configuration, kernel, function)
    foreign = order_behind_producers(handle, views)
    try:
        kernel.launch(
            given(configuration.dispatcher, kernel, args),
            configuration.griddim,
            configuration.blockdim,
            core_stream(handle),
            configuration.sharedmem,
        )
    except NotImplementedError as error:
        refused = _not_passed(configuration.dispatcher, args, error)
        if refused is None:
            raise
        raise refused from error
    if foreign:
        _stream.keep((args, views), handle, foreign)


def given(dispatcher, kernel, args):
    """Return the arguments as ``_Kernel.launch`` takes them.

    Raises
    ------
    TypeError, BufferError, OverflowError
        Naming the argument that does not fit its formal type.
    """
    if kernel.extensions:
        return args  # as they are; what the extensions return is wrapped then
    formals = iter(kernel.argument_types)
    return _checks.each_named(
        dispatcher, args, lambda value: _hosts.wrapped(next(formals), value)
    )


def _not_passed(dispatcher, args, error):
    """Return the error of an argument that Numba's packing has no way to pass, or None.

    Which it is, is known only then where extensions decide what the arguments are.
    """
    if len(error.args) != 2 or not isinstance(error.args[0], types.Type):
        return None
    numba_type, value = error.args
    text = _checks.passing_problem(numba_type, value)
    if not text:
        return None
    for index, arg in enumerate(args):
        if _holds(arg, value):
            return TypeError(f"{_launch.argument_name(dispatcher, index)}: {text}")
    return TypeError(f"{text}; an extension made it of an argument")


def _holds(arg, value):
    if _pack.kind_name(arg) == "tuple":
        return any(_holds(item, value) for item in tuple.__iter__(arg))
    return arg is value


def capture_refusal(kernel, args):
    """Return why a launch cannot become part of a graph, or "".

    Parameters
    ----------
    kernel : _Kernel or None
        None if it is not compiled yet.
    args : iterable
    """
    if kernel is not None and kernel.debug:
        return DEBUG_NOT_CAPTURED
    found = (_argument_refusal(value) for value in args)
    return next(filter(None, found), "")


def _argument_refusal(value):
    inner = value.value if _types.is_hint(value) else value
    if isinstance(inner, np.void):
        # Numba copies it to the device for the launch.
        return (
            "a record of the host cannot be copied while its stream captures a graph; "
            "pass one on the device, or an array of one"
        )
    kind = _pack.kind_name(inner)
    if kind == "tuple":
        return capture_refusal(None, tuple.__iter__(inner))
    if kind != "array":
        return ""
    view = _ingest.from_any(inner)
    return _hosts.NOT_CAPTURED if view.device[0] == HOST and view.size else ""


def launch_stream(configuration, views):
    """Return the handle of the stream that a launch goes to; see ``_launch``."""
    if configuration.named_stream is not None:
        return configuration.named_stream
    if _launch.follows_producers():
        for view in views:
            if _stream.leads(view):
                return _stream.producer_streams(view)[0]
    return _stream.default_stream()


def order_behind_producers(handle, views):
    """Order a stream behind every producer's; return those that differ."""
    foreign = []
    for view in views:
        for behind in _stream.producer_streams(view):
            if not _stream.same(behind, handle):
                _stream.order(handle, behind)
                foreign.append(behind)
    return foreign


def core_stream(stream):
    """Return a cuda.core Stream of a stream as a user gives it, or of a handle."""
    if isinstance(stream, CoreStream):
        return stream
    return CoreStream.from_handle(_stream.handle_of(stream))
