"""The patch of numba-cuda: one table of every attribute replaced.

Owns the replacements, the probes that say an attribute is as expected, and putting the
very same objects back. Nothing is replaced at import.
"""

from __future__ import annotations

import inspect
import operator
import weakref

from numba.cuda import args as numba_args
from numba.cuda import dispatcher as numba_dispatcher
from numba.cuda.cext import _dispatcher
from numba.cuda.core import sigutils
from numba.cuda.errors import normalize_kernel_dimensions

from stridedview import _configuration, _launch, _prepared, _torch_gate
from stridedview._dynamo import Undisturbed
from stridedview.numba_cuda import (
    _arrays,
    _checks,
    _closures,
    _contexts,
    _fallback,
    _forall,
    _hosts,
    _plans,
    _routes,
    _types,
)

CUDADispatcher = numba_dispatcher.CUDADispatcher
NumbaConfiguration = numba_dispatcher._LaunchConfiguration
NumbaForAll = numba_dispatcher.ForAll

_numba_call = NumbaConfiguration.__call__
# Numba's configuration -> (ours, what Numba's had when ours was made)
_adopted = weakref.WeakKeyDictionary()


def configure(self, griddim, blockdim, stream=0, sharedmem=0):
    """Return the launch configuration for a grid and block; see Numba's."""
    return _configuration.configured(self, (griddim, blockdim, stream, sharedmem))


def subscript(self, args, /, *, _face=None):
    """Return the launch configuration ``kernel[args]``."""
    # Seen by torch.compile; calls go to `getitem` at once. The parameter that nobody gives
    # keeps the interpreter from calling this in place of the slot.
    return _configuration.getitem(self, args)


def call(self, *args):
    """Launch the kernel."""
    return self(*args)  # as above: this is what is seen, not what is called


def make_configuration(dispatcher, args):
    """Make a configuration; Numba's own is made beside it for its checks and warnings."""
    griddim, blockdim, *rest = args
    stream, sharedmem = (*rest, 0, 0)[:2] if len(rest) < 2 else rest
    for name, sizes in (("griddim", griddim), ("blockdim", blockdim)):
        if type(sizes).__hash__ is None and not isinstance(sizes, list):
            # An array, most likely, which Numba would compare.
            raise TypeError(
                f"{name} must be an integer or a tuple of up to three, got {sizes!r}; pass "
                "tuple(map(int, x))"
            )
    griddim, blockdim = normalize_kernel_dimensions(griddim, blockdim)
    NumbaConfiguration(dispatcher, griddim, blockdim, 0, sharedmem)
    return _configuration.LaunchConfiguration(
        dispatcher, griddim, blockdim, stream, sharedmem
    )


def call_adopted(self, *args):
    """Launch a configuration that Numba made before the patch."""
    found = _adopted.get(self)
    state = (
        self.griddim,
        self.blockdim,
        self.stream,
        self.sharedmem,
        self.pre_launch_callbacks,
    )
    if found is None or not all(map(operator.is_, found[1], state)):
        found = _adopted[self] = (_adopt(self), state)
    return found[0](*args)


def _adopt(configuration):
    """Return one of ours like one of Numba's; they share their callbacks."""
    ours = _configuration.LaunchConfiguration(
        configuration.dispatcher,
        configuration.griddim,
        configuration.blockdim,
        int(configuration.stream.handle),
        configuration.sharedmem,
    )
    ours.pre_launch_callbacks = configuration.pre_launch_callbacks
    return ours


def unpatched(configuration, args):
    """Launch one of our configurations through Numba's code, after ``disable()``."""
    return configuration.dispatcher.call(args, configuration)


def typeof_pyval(self, val):  # noqa: ARG001 - as Numba calls it
    """Return Numba's type of an argument."""
    return _types.type_of(val)


def typeof_hint(value, purpose=None):  # noqa: ARG001 - as Numba calls it
    """Return Numba's type of what an argument hint holds."""
    return _types.type_of(value)


def _invalidating(name):
    original = getattr(CUDADispatcher, name)

    def wrapper(self, *args, **kwargs):
        try:
            return original(self, *args, **kwargs)
        finally:
            state = self.__dict__.get("_stridedview_state")
            if state is not None:
                state.invalidate()

    wrapper.__name__ = name
    wrapper.__doc__ = original.__doc__
    wrapper.__wrapped__ = original
    return wrapper


_numba_compile = CUDADispatcher.compile


def compile_within_limits(self, sig):
    """Compile for a signature; see Numba's. Too many bytes of parameters are refused."""
    argtypes, _ = sigutils.normalize_signature(sig)
    _checks.check_parameters(self, argtypes)
    return _numba_compile(self, sig)


def _parameters(*names):
    def probe(function):
        function = getattr(function, "__wrapped__", function)
        found = tuple(inspect.signature(function).parameters)
        return "" if found == names else f"takes {found}, expected {names}"

    return probe


def table():
    """Return the rows (owner, attribute, replacement, probe) of the patch.

    A probe takes the attribute as it is and returns "" or what is unexpected about it.
    """
    return [
        (
            CUDADispatcher,
            "configure",
            configure,
            _parameters("self", "griddim", "blockdim", "stream", "sharedmem"),
        ),
        (
            CUDADispatcher,
            "__getitem__",
            subscript,
            _parameters("self", "args"),
        ),
        (CUDADispatcher, "typeof_pyval", typeof_pyval, _parameters("self", "val")),
        (
            CUDADispatcher,
            "add_overload",
            _invalidating("add_overload"),
            _parameters("self", "kernel", "argtypes"),
        ),
        (
            CUDADispatcher,
            "_reset_overloads",
            _invalidating("_reset_overloads"),
            _parameters("self"),
        ),
        (CUDADispatcher, "recompile", _invalidating("recompile"), _parameters("self")),
        (
            CUDADispatcher,
            "disable_compile",
            _invalidating("disable_compile"),
            _parameters("self", "val"),
        ),
        (
            CUDADispatcher,
            "compile",
            compile_within_limits,
            _parameters("self", "sig"),
        ),
        (NumbaConfiguration, "__call__", call_adopted, _parameters("self", "args")),
        (NumbaForAll, "__call__", _forall.call, _parameters("self", "args")),
        (numba_dispatcher, "wrap_arg", _hosts.wrap_arg, _parameters("value", "default")),
        (numba_args, "typeof", typeof_hint, _parameters("val", "purpose")),
        (
            _closures.Interpreter,
            "get_global_value",
            _closures.get_global_value,
            _parameters("self", "name"),
        ),
        (
            _closures.Interpreter,
            "get_closure_value",
            _closures.get_closure_value,
            _parameters("self", "index"),
        ),
        (
            _closures.TypingContext,
            "resolve_module_constants",
            _closures.resolve_module_constants,
            _parameters("self", "typ", "attr"),
        ),
        (
            _closures.TargetContext,
            "get_getattr",
            _closures.get_getattr,
            _parameters("self", "typ", "attr"),
        ),
    ]


for _face in (configure, subscript, call, call_adopted, _forall.call):
    _torch_gate.mark_untraceable(_face)
for _type in (_configuration.LaunchConfiguration, _prepared.PreparedLaunch):
    _configuration.show_call(_type, call)
# Whatever a launch calls that is not compiled, from a frame that torch.compile looks at.
_torch_gate.hide_from_dynamo(
    call,
    call_adopted,
    configure,
    subscript,
    _forall.call,
    _fallback.core_stream,
)

_MISSING = object()
_saved = []  # (owner, attribute, the object that stood there or _MISSING)
_saved_arrays = []


def probe():
    """Return what is unexpected about numba-cuda, a list of messages.

    Checks every attribute that will be replaced, and those that the launch path reads.
    """
    problems = []
    for owner, name, _, check in table():
        found = getattr(owner, name, None)
        if found is None:
            problems.append(f"{owner.__name__} has no {name}")
        elif check(found):
            problems.append(f"{owner.__name__}.{name} {check(found)}")
    for owner, name in (
        (_dispatcher.Dispatcher, "_cuda_call"),
        (_dispatcher, "swap_current_launch_args"),
        (_dispatcher, "get_current_launch_args"),
        (numba_dispatcher, "_LAUNCH_CONFIG_KW"),
        (CUDADispatcher, "_select_launch_config_dispatcher"),
        (CUDADispatcher, "_update_launch_config_sensitivity"),
        (numba_dispatcher._Kernel, "launch"),
        (numba_dispatcher._Kernel, "bind"),
    ):
        if not hasattr(owner, name):
            problems.append(f"{owner.__name__} has no {name}")
    return problems


def apply():
    """Replace every attribute of the table; all or none."""
    _launch.install(
        miss=Undisturbed(_plans.miss),
        plan=Undisturbed(_plans.plan),
        ready=Undisturbed(_plans.make_ready),
        unpatched=Undisturbed(unpatched),
        error=Undisturbed(_contexts.failed_launch),
        slow=Undisturbed(_routes.check_argument),
    )
    _configuration.install(
        configure=Undisturbed(make_configuration),
        core_stream=_fallback.core_stream,
        swap_args=_dispatcher.swap_current_launch_args,
        current_args=_dispatcher.get_current_launch_args,
    )
    _replace(table(), _saved)
    try:
        _configuration.set_subscript(CUDADispatcher)
        _configuration.set_call(NumbaForAll, _forall.call)
    except BaseException:
        restore()
        raise


def apply_arrays():
    """Replace the functions that make device arrays, unless they are replaced already.

    Raises
    ------
    ImportError
        If one of them is not as expected; none is replaced then.
    """
    if _saved_arrays:
        return
    rows = _arrays.table()
    problems = [
        f"{owner.__name__}.{name} {check(getattr(owner, name))}"
        for owner, name, _, check in rows
        if check(getattr(owner, name))
    ]
    if problems:
        raise ImportError(
            "this numba-cuda's array functions are not as expected: " + "; ".join(problems)
        )
    _replace(rows, _saved_arrays)


def _replace(rows, saved):
    """Replace the attributes of rows; all or none."""
    try:
        for owner, name, replacement, _ in rows:
            # An attribute inherited from a base class is deleted again, not written back.
            saved.append((owner, name, vars(owner).get(name, _MISSING)))
            setattr(owner, name, replacement)
    except BaseException:
        _put_back(saved)
        raise


def restore():
    """Put back the very same objects."""
    restore_arrays()
    _put_back(_saved)


def restore_arrays():
    """Put back Numba's own array functions."""
    _put_back(_saved_arrays)


def _put_back(saved):
    while saved:
        owner, name, original = saved.pop()
        if vars(owner).get(name, _MISSING) is original:
            continue  # setting it was what failed
        if original is _MISSING:
            delattr(owner, name)
        else:
            setattr(owner, name, original)
