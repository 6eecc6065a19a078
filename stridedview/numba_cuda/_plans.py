"""What happens when no plan covers a launch: Numba is asked, and a plan is made.

Owns the resolution of a call through Numba's own typing and overloads, and the layout of
the packed parameters for a compiled kernel. What no plan can take (host arrays, records,
debug kernels, callbacks, extensions) goes on to ``_fallback``.
"""

from __future__ import annotations

import warnings
import weakref

from numba.cuda import dispatcher as numba_dispatcher
from numba.cuda.cext import _dispatcher
from numba.cuda.cudadrv import devices
from numba.cuda.cudadrv import driver as numba_driver

from stridedview import (
    _configuration,
    _driver,
    _launch,
    _plan,
    _prepared,
    _scalars,
    _stats,
    _stream,
)
from stridedview.numba_cuda import (
    _checks,
    _closures,
    _contexts,
    _fallback,
    _hosts,
    _parameters,
    _routes,
)

RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED
_strict = False
# Dispatchers with plans that a strict check would have refused.
_loose = weakref.WeakSet()


def set_strict(value):
    """Set whether signedness must match a signature's; see ``enable``."""
    global _strict
    _strict = value
    _scalars.set_strict(value)
    if value:
        for dispatcher in list(_loose):
            _configuration.dispatcher_state(dispatcher).invalidate()
        _loose.clear()


def relaxed_capture():
    """Return a context in which this thread loads and allocates while any captures."""
    numba_driver.driver.ensure_initialized()
    return _driver.CaptureMode(RELAXED)


def miss(configuration, args, words, device):
    """Resolve a launch; return a Plan for it, or None after launching through Numba.

    Parameters
    ----------
    configuration : LaunchConfiguration
    args : tuple
    words : bytes or None
        The signature words; None if no plan can take these arguments.
    device : int
        The device of the arrays, -1 if there are none on a device; of those outside hints
        if there are no words.
    """
    taken = args
    if words is None:
        with relaxed_capture():
            taken = _taken(configuration.dispatcher, args)
            device = _routes.device_of(configuration.dispatcher, taken)
    arguments = _configuration.LaunchArguments(args)
    with relaxed_capture(), _contexts.on_device(device), arguments:
        kernel, plan, obstacle = _resolve_and_plan(configuration, taken, words, device)
        if plan is None:
            _stats.note_fallback(obstacle)
            if words is not None:
                taken = _taken_as(configuration.dispatcher, args, words)
            for callback in configuration.pre_launch_callbacks:
                callback(kernel, configuration)
            _fallback.launch(kernel, configuration, taken)
        else:
            _stats.note("misses")
        return plan


def _taken(dispatcher, args):
    """Return the arguments with a view for each array, as Numba's own code gets them.

    A producer is imported once, so that what is typed is what is ordered and packed.
    Extensions are given the arguments as they are.
    """
    if dispatcher.extensions:
        return args
    return tuple(_checks.each_named(dispatcher, args, _hosts.viewed))


def _taken_as(dispatcher, args, words):
    """Return :func:`_taken` of arguments that were typed by their signature words."""
    taken = _taken(dispatcher, args)
    if _launch.signature_words(dispatcher, taken)[0] != words:
        raise RuntimeError("an argument changed during the launch")
    return taken


def plan(configuration, args, words, device):
    """Resolve a launch as :func:`miss` does, and return a Plan; launch nothing.

    Raises
    ------
    TypeError
        If no plan can take the launch, with the reason.
    """
    name = configuration.dispatcher.py_func.__name__
    arguments = _configuration.LaunchArguments(args)
    with relaxed_capture(), _contexts.on_device(device), arguments:
        obstacle = _routes.obstacle(None, configuration, args, words)
        if obstacle:
            # Whoever is told to launch another way must be able to.
            limits = devices.get_context().device
            _check(configuration.dispatcher, args, words, limits)
        found = None
        if not obstacle:
            _, found, obstacle = _resolve_and_plan(configuration, args, words, device)
    if found is None:
        raise TypeError(
            f"kernel '{name}' cannot be prepared: {obstacle}; such a launch goes through "
            "Numba's own code, call it as it is"
        )
    return found


def _resolve_and_plan(configuration, args, words, device):
    """Return (Numba's kernel, a Plan or None, why there is none)."""
    target = configuration.dispatcher._select_launch_config_dispatcher(configuration)
    with _stats.compiling(target):
        kernel = resolve(target, configuration, args, words)
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
    made = build(kernel, args, words, device)
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
            _contexts.make_ready(configuration, plan.kernel, plan.function_handle)


def resolve(dispatcher, configuration, args, words):
    """Return Numba's compiled kernel for a call, compiled now if there is none.

    Arrays are typed by their signature words, where there are any.

    Raises
    ------
    TypeError
        If the arguments do not fit an explicit signature, or cannot be passed at all.
    ValueError
        If the parameters exceed the limit.
    """
    if dispatcher.specialized:
        kernel = next(iter(dispatcher.overloads.values()))
        formals = kernel.argument_types
        for text in _checks.check_signature(dispatcher, formals, args, words, _strict):
            _loose.add(dispatcher)
            warnings.warn(text, _checks.StridedviewWarning, stacklevel=2)
        return kernel
    standing = _checks.checked(dispatcher, args, words, devices.get_context().device)
    options = {numba_dispatcher._LAUNCH_CONFIG_KW: configuration}
    return _dispatcher.Dispatcher._cuda_call(dispatcher, *standing, **options)


def _check(dispatcher, args, words, device):
    if dispatcher.specialized:
        formals = next(iter(dispatcher.overloads.values())).argument_types
        _checks.check_signature(dispatcher, formals, args, words, _strict)
    else:
        _checks.checked(dispatcher, args, words, device)


def refusal(configuration, kernel, args, words, device, found):
    """Return what the error of a launch would say that is refused, or "".

    Of the limits of the device nothing is told where this thread has no context.

    Parameters
    ----------
    configuration, args, words, device
        As for :func:`miss`; no words if Numba's own code launches.
    kernel : _Kernel or None
        None if it is not compiled yet.
    found : Plan or None
        What the launch would use.
    """
    dispatcher = configuration.dispatcher
    limits = None
    try:
        if _driver.current_context():
            number = device if device >= 0 else _driver.current_device()
            limits = _contexts.device_of(number)
        _check(dispatcher, args, words, limits)
        if words is None:
            _routes.device_of(dispatcher, args)
        if kernel is not None and words is not None:
            _check_values(configuration, kernel, args, words)
        elif kernel is not None:
            _fallback.given(dispatcher, kernel, args)
    except (TypeError, ValueError, BufferError, OverflowError) as error:
        return str(error)
    if limits is None:
        return ""
    return _contexts.limit_problem(configuration, limits, found)


def _check_values(configuration, kernel, args, words):
    """Raise if a value does not fit its formal type; nothing is loaded or launched."""
    parameters = _laid_out(kernel, args, words)
    if parameters is None:
        return
    unloaded = _plan.make_plan(
        words,
        parameters.slots,
        kernel=kernel,
        extensions=[],
        function=0,
        context=0,
        context_id=0,
        device=0,
        size=parameters.size,
        cooperative=False,
        args=args,
    )
    _prepared.check_values(configuration, unloaded, args)


def expected_obstacle(dispatcher):
    """Return why no plan will take a kernel that is not compiled yet, or ""."""
    if dispatcher.extensions:
        return "extension"
    return "debug kernel" if dispatcher.targetoptions.get("debug") else ""


def compiled(configuration, numba_types):
    """Return the compiled kernel that a call of these types takes, or None if it compiles.

    As Numba's dispatcher resolves: an overload of these very types, else one that they
    convert to safely; any, if compiling is switched off.
    """
    dispatcher = configuration.dispatcher
    if dispatcher._launch_config_sensitive:
        key = dispatcher._launch_config_key(configuration)
        if key != dispatcher._launch_config_default_key:
            dispatcher = dispatcher._launch_config_specializations.get(key)
        if dispatcher is None:
            return None
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


# -- making a plan ------------------------------------------------------------------------


def build(kernel, args, words, device):
    """Return a Plan for a compiled kernel in the current context, or None.

    None if an argument's formal type has no setter, or if the compiled kernel's own
    parameter table differs from the layout computed here.
    """
    _contexts.bind(kernel)
    parameters = _laid_out(kernel, args, words)
    if parameters is None:
        return None
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
        device=device,
        size=parameters.size,
        cooperative=bool(kernel.cooperative),
        args=args,
    )


def _laid_out(kernel, args, words):
    """Return the Parameters of a compiled kernel, or None if there is no setter for one."""
    parameters = _parameters.Parameters(words)
    for formal, value in zip(kernel.argument_types, args, strict=True):
        if not parameters.add(formal, value):
            return None
    if 8 * len(parameters.slots) != len(words):
        return None  # a tuple that shows Numba other items than it has
    return parameters
