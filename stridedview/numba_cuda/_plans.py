"""What happens when no plan covers a launch: Numba is asked, and a plan is made.

Owns the resolution of a call through Numba's own typing and overloads, the layout of the
packed parameters for a compiled kernel, and the launch through Numba's own code of what
no plan can take (host arrays, records, debug kernels, callbacks, extensions).
"""

from __future__ import annotations

import contextlib
import weakref

import numpy as np
from cuda.core import Stream as CoreStream
from numba.cuda import dispatcher as numba_dispatcher
from numba.cuda import types
from numba.cuda.cext import _dispatcher
from numba.cuda.cudadrv import driver as numba_driver

from stridedview import (
    _configuration,
    _driver,
    _ingest,
    _launch,
    _pack,
    _plan,
    _scalars,
    _stats,
    _stream,
)
from stridedview.numba_cuda import _checks, _closures, _contexts, _routes, _types

RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED
HOST = 1  # DLPack's kDLCPU

_strict = False
# Dispatchers with plans that a strict check would have refused.
_loose = weakref.WeakSet()


def set_strict(value):
    """Set whether signedness must match a signature's; see ``enable``."""
    global _strict
    _strict = value
    if value:
        for dispatcher in list(_loose):
            _configuration.dispatcher_state(dispatcher).invalidate()
        _loose.clear()


@contextlib.contextmanager
def relaxed_capture():
    """Let this thread load modules and allocate while any thread captures a graph."""
    numba_driver.driver.ensure_initialized()
    before = _driver.exchange_capture_mode(RELAXED)
    try:
        yield
    finally:
        _driver.exchange_capture_mode(before)


def miss(configuration, args, words, device):
    """Resolve a launch; return a Plan for it, or None after launching through Numba.

    Parameters
    ----------
    configuration : LaunchConfiguration
    args : tuple
    words : bytes or None
        The signature words; None if no plan can take these arguments.
    device : int
        The device of the arrays, -1 if there are none on a device.
    """
    with _launching(args, device):
        kernel, plan, obstacle = _resolve_and_plan(configuration, args, words)
        if plan is None:
            _stats.note_fallback(obstacle)
            for callback in configuration.pre_launch_callbacks:
                callback(kernel, configuration)
            through_numba(kernel, configuration, args)
        return plan


def plan(configuration, args, words, device):
    """Resolve a launch as :func:`miss` does, and return a Plan; launch nothing.

    Raises
    ------
    TypeError
        If no plan can take the launch, with the reason.
    """
    name = configuration.dispatcher.py_func.__name__
    with _launching(args, device):
        obstacle = _routes.obstacle(None, configuration, args, words)
        found = None
        if not obstacle:
            _, found, obstacle = _resolve_and_plan(configuration, args, words)
    if found is None:
        raise TypeError(
            f"kernel '{name}' cannot be prepared: {obstacle}; such a launch goes through "
            "Numba's own code, call it as it is"
        )
    return found


@contextlib.contextmanager
def _launching(args, device):
    with relaxed_capture(), _contexts.on_device(device):
        previous = _dispatcher.swap_current_launch_args(args)
        try:
            yield
        finally:
            _dispatcher.swap_current_launch_args(previous)


def _resolve_and_plan(configuration, args, words):
    """Return (Numba's kernel, a Plan or None, why there is none)."""
    target = configuration.dispatcher._select_launch_config_dispatcher(configuration)
    with _stats.compiling(target):
        kernel = resolve(target, configuration, args)
    _closures.check_device(kernel)
    state = _configuration.dispatcher_state(configuration.dispatcher)
    # A recompilation from here on, by another thread or a producer, is seen in it.
    generation = state.generation
    is_current = any(kernel is known for known in target.overloads.values())
    target._update_launch_config_sensitivity(kernel, configuration)
    if target._launch_config_sensitive:
        state.is_config_sensitive = True
    obstacle = _routes.obstacle(kernel, configuration, args, words)
    if obstacle:
        return kernel, None, obstacle
    _stats.note("misses")
    made = build(kernel, args, words)
    if made is None:
        return kernel, None, "parameter type"
    _stream.prepare_events()
    _launch.remember(configuration, made, generation, is_current)
    _stats.note("plans")
    return kernel, made, ""


def make_ready(configuration, plan):
    """Refuse a launch beyond the device's limits; opt in to the shared memory it asks for.

    Raises
    ------
    LaunchError
        Naming the number and the limit.
    """
    with relaxed_capture(), _contexts.on_device(plan.device):
        # After a reset of its context the function is gone, which the launch notices.
        if plan.context_id == _driver.current_context_id():
            _contexts.make_ready(configuration, plan)


def resolve(dispatcher, configuration, args):
    """Return Numba's compiled kernel for a call, compiled now if there is none.

    Raises
    ------
    TypeError
        If the arguments do not fit an explicit signature, or cannot be passed at all.
    ValueError
        If the parameters exceed the limit.
    """
    if dispatcher.specialized:
        kernel = next(iter(dispatcher.overloads.values()))
        if not _checks.check_signature(dispatcher, kernel.argument_types, args, _strict):
            _loose.add(dispatcher)
        return kernel
    _checks.check_count(dispatcher, args)
    if not dispatcher.extensions:
        numba_types = _checks.types_of(dispatcher, args)
        _checks.check_passable(dispatcher, numba_types)
        _checks.check_parameters(dispatcher, numba_types)
    standing = [_types.stand_in(value) for value in args]
    options = {numba_dispatcher._LAUNCH_CONFIG_KW: configuration}
    return _dispatcher.Dispatcher._cuda_call(dispatcher, *standing, **options)


def compiled(dispatcher, numba_types):
    """Return the compiled kernel that a call of these types takes, or None if it compiles.

    As Numba's dispatcher resolves: an overload of these very types, else one that they
    convert to safely; any, if compiling is switched off.
    """
    overloads = dispatcher.overloads
    if dispatcher.specialized:
        return next(iter(overloads.values()))
    signature = tuple(numba_types)
    if signature in overloads:
        return overloads[signature]
    choices = [each for each in overloads if len(each) == len(signature)]
    try:
        chosen = dispatcher._tm.select_overload(
            signature, choices, not dispatcher._can_compile, False
        )
    except TypeError:  # none, or several that are as good
        return None
    return overloads[choices[chosen]]


# -- the packed parameters ----------------------------------------------------------------

_SCALARS = {
    types.boolean: ("boolean", 1),
    types.float16: ("float16", 2),
    types.float32: ("float32", 4),
    types.float64: ("float64", 8),
    types.complex64: ("complex64", 4),
    types.complex128: ("complex128", 8),
}


class _Parameters:
    """The flattened parameters of a kernel, laid out with natural alignment."""

    def __init__(self):
        self.slots = []
        self.expected = []  # (offset, size) of each parameter, bytes
        self.size = 0

    def add(self, formal, value):
        """Add one argument; return whether a plan can take it."""
        if isinstance(formal, types.Array):
            return self._place("array", 8, [8] * (5 + 2 * formal.ndim))
        if isinstance(formal, types.BaseTuple):
            return self._add_tuple(formal, value)
        if isinstance(formal, types.EnumMember):
            return self.add(formal.dtype, value)
        if isinstance(formal, types.CPointer):
            return self._place("pointer", 8, [8])
        if isinstance(formal, (types.NPDatetime, types.NPTimedelta)):
            return self._place("time", 8, [8])
        if isinstance(formal, types.Integer):
            width = formal.bitwidth // 8
            return self._place(str(_plain(formal)), width, [width])
        if formal in _SCALARS:
            name, width = _SCALARS[formal]
            parts = 2 if name.startswith("complex") else 1
            return self._place(name, width, [width] * parts)
        return False

    def _place(self, setter, alignment, sizes):
        offset = -(-self.size // alignment) * alignment
        self.slots.append((_scalars.SETTERS[setter], offset, 0))
        self.size = offset
        for size in sizes:
            self.expected.append((self.size, size))
            self.size += size
        return True

    def _add_tuple(self, formal, value):
        place = len(self.slots)
        self.slots.append(None)
        for item_type, item in zip(formal, tuple.__iter__(value), strict=True):
            if not self.add(item_type, item):
                return False
        self.slots[place] = (_scalars.SETTERS["tuple"], 0, len(self.slots) - place - 1)
        return True


def _plain(formal):
    # A literal integer type is packed as its own width of integer.
    return getattr(formal, "literal_type", formal)


def build(kernel, args, words):
    """Return a Plan for a compiled kernel in the current context, or None.

    None if an argument's formal type has no setter, or if the compiled kernel's own
    parameter table differs from the layout computed here.
    """
    _contexts.refresh(kernel)
    kernel.bind()
    parameters = _Parameters()
    for formal, value in zip(kernel.argument_types, args, strict=True):
        if not parameters.add(formal, value):
            return None
    if 8 * len(parameters.slots) != len(words):
        return None  # a tuple that shows Numba other items than it has
    handle = int(kernel._codelibrary.get_cufunc().handle)
    if _driver.kernel_parameters(handle) != parameters.expected:
        return None
    return _plan.make_plan(
        words,
        parameters.slots,
        kernel=kernel,
        extensions=kernel.extensions,
        function=_driver.kernel_function(handle),
        context=_driver.current_context(),
        context_id=_driver.current_context_id(),
        device=_device_of(args),
        size=parameters.size,
        cooperative=bool(kernel.cooperative),
        args=args,
    )


def _device_of(args):
    _, device = _launch.signature_words(None, args)
    return device


# -- Numba's own code ---------------------------------------------------------------------


def view_of(value):
    """Return a view of an array."""
    return _ingest.from_any(value)


def views_in(args):
    """Yield a view of every array on a device among the arguments, within tuples too."""
    for value in args:
        inner = getattr(value, "value", value) if _types.is_hint(value) else value
        kind = _pack.kind_name(inner)
        if kind == "tuple":
            yield from views_in(inner)
        elif kind == "array":
            view = _ingest.from_any(inner)
            if view.device[0] != HOST:
                yield view


def through_numba(kernel, configuration, args):
    """Launch through ``_Kernel.launch`` on the right stream, behind the producers."""
    views = list(views_in(args))
    handle = launch_stream(configuration, views)
    if _stream.capturing(handle):
        _refuse_records(args)
        if kernel.debug:
            raise RuntimeError(
                "a debug kernel copies its error code to the host and cannot be captured "
                "in a graph; compile it without debug=True"
            )
    _contexts.refresh(kernel)
    kernel.bind()
    foreign = order_behind_producers(handle, views)
    kernel.launch(
        args,
        configuration.griddim,
        configuration.blockdim,
        core_stream(handle),
        configuration.sharedmem,
    )
    if foreign:
        _stream.keep((args, views), handle, foreign)


def _refuse_records(args):
    """Refuse structured scalars: Numba copies them to the device for the launch."""
    for value in args:
        if isinstance(value, np.void):
            raise RuntimeError(
                "a record of the host cannot be copied while its stream captures a graph; "
                "pass one on the device, or an array of one"
            )
        if isinstance(value, tuple):
            _refuse_records(value)


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
