"""What is refused before anything is compiled or launched, and with what words.

Owns the checks of a launch against an explicit signature, the limits of the device, and
the size of the parameters. Numba itself checks none of these for a kernel with one
explicit signature: a strided array is then read as if contiguous, and too few arguments
end in a crash.
"""

from __future__ import annotations

import inspect
from typing import Any, NamedTuple

from numba.cuda import types
from numba.cuda.core.errors import NumbaWarning
from numba.cuda.cudadrv import devices
from numba.cuda.cudadrv.driver import driver

from stridedview import _ingest, _launch, _pack
from stridedview.numba_cuda import _parameters, _types

# Bytes of kernel parameters, with a driver of CUDA 12.1 on compute capability 7.0 and
# newer, and elsewhere.
PARAMETER_LIMIT = 32764
OLD_PARAMETER_LIMIT = 4096


class StridedviewWarning(NumbaWarning):
    """A launch that is right but probably not what was meant."""


def check_count(dispatcher, args):
    """Refuse a wrong number of arguments.

    Raises
    ------
    TypeError
        Naming the kernel, the wanted and the given number.
    """
    parameters = inspect.signature(dispatcher.py_func).parameters.values()
    if any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters):
        raise TypeError(
            f"kernel '{dispatcher.py_func.__name__}' takes *args, which a CUDA kernel "
            "cannot; pass a tuple"
        )
    if len(args) != len(parameters):
        wanted = ", ".join(parameter.name for parameter in parameters)
        raise TypeError(
            f"kernel '{dispatcher.py_func.__name__}' takes {len(parameters)} arguments "
            f"({wanted}), got {len(args)}"
        )


def types_of(dispatcher, args):
    """Return Numba's types of the arguments.

    Raises
    ------
    TypeError, ValueError, BufferError, OverflowError
        Naming the argument that has no type, or whose memory cannot be taken.
    """
    return each_named(dispatcher, args, _types.type_of)


def stand_ins(dispatcher, args, words=None):
    """Return what Numba resolves in place of the arguments.

    Parameters
    ----------
    dispatcher : CUDADispatcher
    args : tuple
    words : bytes, optional
        The arguments' signature words, if they are known: arrays are not imported then.

    Raises
    ------
    TypeError, ValueError, BufferError, OverflowError
        Naming the argument that cannot be taken.
    """
    if words is None:
        return each_named(dispatcher, args, _types.stand_in)
    rest = _types.word_iterator(words)
    return each_named(dispatcher, args, lambda value: _types.stand_in_of_words(value, rest))


def each_named(dispatcher, args, function):
    """Return ``function(value)`` of each argument; its errors name the argument."""
    return [_named(dispatcher, index, function, value) for index, value in enumerate(args)]


def _named(dispatcher, index, function, *values):
    try:
        return function(*values)
    except (TypeError, ValueError, BufferError, OverflowError) as error:
        return _launch.raise_named(dispatcher, index, error)


def check_passable(dispatcher, numba_types, args):
    """Refuse arguments of a type that Numba compiles for but cannot pass.

    Raises
    ------
    TypeError
        Naming the argument and its type.
    """
    for index, pair in enumerate(zip(numba_types, args, strict=True)):
        text = passing_problem(*pair)
        if text:
            _refuse(dispatcher, index, text)


def passing_problem(numba_type, value):
    """Return why a kernel cannot take a value of a type, or ""."""
    if _types.can_be_passed(numba_type):
        return ""
    place, what = _unpassable(numba_type, value)
    return f"{place}a kernel cannot take {what}; pass an array or a number"


def _unpassable(numba_type, value, place=""):
    """Return where in a tuple the first item is that cannot be passed, and what it is."""
    if isinstance(numba_type, types.BaseTuple) and isinstance(value, tuple):
        for index, pair in enumerate(zip(numba_type, tuple.__iter__(value), strict=True)):
            if not _types.can_be_passed(pair[0]):
                return _unpassable(*pair, f"{place}item {index + 1}: ")
    return place, described(numba_type, value)


def described(numba_type, value):
    """Return what a value is, as messages say it."""
    # What no kernel takes has a type of Numba's that its users have not seen.
    if _types.can_be_passed(numba_type):
        return _types.describe(numba_type)
    return "None" if value is None else type(value).__name__


def _refuse(dispatcher, index, text):
    raise TypeError(f"{_launch.argument_name(dispatcher, index)}: {text}")


def checked(dispatcher, args, words, device):
    """Return stand-ins for arguments that a kernel can be compiled for and launched with.

    With extensions only the count is checked: they say what the arguments are.

    Parameters
    ----------
    dispatcher : CUDADispatcher
    args : tuple
    words : bytes or None
    device : Device or None
        Whose limit of parameters holds; None checks none.

    Raises
    ------
    TypeError
        If their number is wrong, or one cannot be passed.
    ValueError
        If the parameters exceed the limit.
    """
    check_count(dispatcher, args)
    standing = stand_ins(dispatcher, args, words)
    if not dispatcher.extensions:
        each_named(dispatcher, args, _types.check_hint)
        numba_types = types_of(dispatcher, standing)
        check_passable(dispatcher, numba_types, args)
        if device is not None:
            check_parameters(dispatcher, numba_types, device)
    return standing


def check_signature(dispatcher, formals, args, words, strict):
    """Check arguments against a kernel's one explicit signature.

    Arrays that are contiguous as the signature wants fit it, C and F ones also a formal of
    layout A; scalars convert, but for times; integers go to pointers; and arrays of the
    same width but another signedness fit with a warning unless ``strict``. With extensions
    only the count is checked: they say what the arguments are.

    Returns
    -------
    list of str
        The warnings.

    Raises
    ------
    TypeError
        Naming the argument, what the signature wants and what came.
    """
    if len(args) != len(formals):
        raise TypeError(
            f"kernel '{dispatcher.py_func.__name__}' has a signature of {len(formals)} "
            f"arguments, got {len(args)}"
        )
    if dispatcher.extensions:
        return []
    each_named(dispatcher, args, _types.check_hint)
    warned = []
    actuals = types_of(dispatcher, stand_ins(dispatcher, args, words))
    for index, parts in enumerate(zip(formals, actuals, args, strict=True)):
        for misfit in _named(dispatcher, index, _misfits, *parts, strict):
            if misfit.what:
                _refuse(dispatcher, index, _wanted(misfit))
            warned.append(
                f"{_launch.argument_name(dispatcher, index)}: {misfit.place}"
                f"{_types.describe(misfit.actual)} is taken as "
                f"{_types.describe(misfit.formal)}, the signature's type of the same width"
            )
    return warned


class _Misfit(NamedTuple):
    what: str  # a key of _ADVICE; "" if it fits with a warning
    formal: Any
    actual: Any
    value: Any
    place: str  # within tuples: "item 2: "


def _misfits(formal, actual, value, strict, place=""):
    """Return what does not fit, or with a warning only, of an argument and its items."""
    value = value.value if _types.is_hint(value) else value
    if (
        isinstance(formal, types.BaseTuple)
        and isinstance(actual, types.BaseTuple)
        and isinstance(value, tuple)
        and len(formal) == len(actual)
    ):
        found = []
        for index, parts in enumerate(zip(formal, actual, tuple.__iter__(value))):  # noqa: B905
            found += _misfits(*parts, strict, f"{place}item {index + 1}: ")
        return found
    if isinstance(formal, types.Array) and isinstance(actual, types.Array):
        what = _array_misfit(formal, actual, value, strict)
    else:
        what = None if _fits_scalar(formal, actual) else "kind"
    return [] if what is None else [_Misfit(what, formal, actual, value, place)]


def _fits_scalar(formal, actual):
    if isinstance(formal, (types.Array, types.BaseTuple)):
        return False
    if isinstance(formal, types.Record):
        return isinstance(actual, types.Record) and _begins_with(actual, formal)
    if isinstance(actual, (types.Array, types.BaseTuple, types.Record)):
        return False
    times = (types.NPDatetime, types.NPTimedelta)
    if isinstance(formal, times) or isinstance(actual, times):
        # A NaT, and a number of no unit, are the same in every unit.
        return type(formal) is type(actual) and actual.unit in ("", formal.unit)
    return _types.can_be_passed(actual)


def _begins_with(actual, formal):
    """Whether a record has another's fields in the same places, and maybe more behind."""
    leading = list(actual.fields.items())[: len(formal.fields)]
    return actual.size >= formal.size and all(
        name == other_name and field.type == other.type and field.offset == other.offset
        for (name, field), (other_name, other) in zip(
            leading, formal.fields.items(), strict=False
        )
    )


def _array_misfit(formal, actual, value, strict):
    """Return None if it fits, "" if it fits with a warning, else what is wrong."""
    if formal.ndim != actual.ndim:
        return "ndim"
    if formal.layout not in ("A", actual.layout) and not _is_both(formal, actual, value):
        return "layout"
    if formal.mutable and not actual.mutable:
        return "read-only"
    if formal.dtype == actual.dtype:
        return None
    same_width = (
        isinstance(formal.dtype, types.Integer)
        and isinstance(actual.dtype, types.Integer)
        and formal.dtype.bitwidth == actual.dtype.bitwidth
    )
    return "" if same_width and not strict else "dtype"


def _is_both(formal, actual, value):
    """Whether an array of layout C, as those are that are both, is F as well."""
    if (formal.layout, actual.layout) != ("F", "C"):
        return False
    if actual.ndim <= 1:
        return True
    return _pack.kind_name(value) == "array" and (
        _ingest.from_any(value).layout.is_f_contiguous
    )


_ADVICE = {
    "kind": "pass a value of that kind",
    "ndim": "reshape it",
    "read-only": "pass a writable copy",
    "dtype": "convert it, or declare the signature for its type",
}
_LAYOUT_ADVICE = {
    "C": "pass x.contiguous()",
    "F": "pass an F-contiguous copy, x.T.contiguous().T",
}


def _wanted(misfit):
    advice, where = _ADVICE.get(misfit.what), ""
    if misfit.what == "layout":
        formal = misfit.formal
        advice = f"{_LAYOUT_ADVICE[formal.layout]}, or declare {formal}'s layout as A"
        strides = getattr(misfit.value, "strides", None)
        if callable(getattr(misfit.value, "stride", None)):
            strides = misfit.value.stride()
        where = f" with strides {tuple(strides)}" if strides else ""
    return (
        f"{misfit.place}expected {_types.describe(misfit.formal)} for this signature, got "
        f"{described(misfit.actual, misfit.value)}{where}; {advice}"
    )


def parameter_limit(compute_capability, driver_version):
    """Return how many bytes of parameters a kernel can have.

    Parameters
    ----------
    compute_capability : tuple of int
    driver_version : tuple of int
        The newest CUDA that the driver knows.
    """
    if tuple(compute_capability) >= (7, 0) and tuple(driver_version) >= (12, 1):
        return PARAMETER_LIMIT
    return OLD_PARAMETER_LIMIT


def check_parameters(dispatcher, numba_types, device=None):
    """Refuse more parameter bytes than a kernel can have, before the compile.

    Parameters
    ----------
    dispatcher : CUDADispatcher
    numba_types : sequence of Type
    device : Device, optional
        By default that of the current context, asked only where the limit is near.

    Raises
    ------
    ValueError
        Naming the size, the limit and where it comes from, and the largest arguments.
    """
    packed = _parameters.packed_size(numba_types)
    if packed <= OLD_PARAMETER_LIMIT:
        return
    device = devices.get_context().device if device is None else device
    capability, version = device.compute_capability, driver.get_version()
    limit = parameter_limit(capability, version)
    if packed <= limit:
        return
    sizes = [sum(_parameters.parameter_sizes(numba_type)) for numba_type in numba_types]
    largest = sorted(range(len(sizes)), key=lambda index: -sizes[index])[:3]
    named = ", ".join(f"argument {index + 1} ({sizes[index]} bytes)" for index in largest)
    raise ValueError(
        f"the arguments of kernel '{dispatcher.py_func.__name__}' take {packed} bytes "
        f"of parameters, the limit is {limit} (compute capability {_dotted(capability)}, "
        f"driver of CUDA {_dotted(version)}); the largest: {named}. Pass fewer arrays, or "
        "pack them into one"
    )


def _dotted(version):
    return ".".join(map(str, version))


def check_dimensions(configuration, device):
    """Compare a grid and block with the device's limits.

    Returns
    -------
    str
        "" if they are within, else what is not, naming the number and the limit.
    """
    names = "xyz"
    for what, sizes, limits in (
        ("grid", configuration.griddim, _limits(device, "GRID")),
        ("block", configuration.blockdim, _limits(device, "BLOCK")),
    ):
        for axis, (size, limit) in enumerate(zip(sizes, limits, strict=True)):
            if not 1 <= size <= limit:
                return f"{what} {names[axis]} is {size}; it must be 1 to {limit}"
    x, y, z = configuration.blockdim
    if x * y * z > device.MAX_THREADS_PER_BLOCK:
        return (
            f"the block has {x * y * z} threads ({x} x {y} x {z}); the limit of the device "
            f"is {device.MAX_THREADS_PER_BLOCK}"
        )
    return ""


def _limits(device, what):
    return [getattr(device, f"MAX_{what}_DIM_{axis}") for axis in "XYZ"]
