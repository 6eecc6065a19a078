"""What is refused before anything is compiled or launched, and with what words.

Owns the checks of a launch against an explicit signature, the limits of the device, and
the size of the parameters. Numba itself checks none of these for a kernel with one
explicit signature: a strided array is then read as if contiguous, and too few arguments
end in a crash.
"""

from __future__ import annotations

import inspect

from numba.cuda import types
from numba.cuda.core.errors import NumbaWarning
from numba.cuda.cudadrv import devices
from numba.cuda.cudadrv.driver import driver

from stridedview import _launch
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


def _named(dispatcher, index, function, value):
    try:
        return function(value)
    except (TypeError, ValueError, BufferError, OverflowError) as error:
        named = _launch.named_error(dispatcher, index, error)
        if named is error:
            raise  # not from itself: whoever follows the causes would never end
        raise named from error


def check_passable(dispatcher, numba_types):
    """Refuse arguments of a type that Numba compiles for but cannot pass.

    Raises
    ------
    TypeError
        Naming the argument and its type.
    """
    each_named(dispatcher, numba_types, _types.check_passable)


def _refuse(dispatcher, index, text):
    raise _launch.named_error(dispatcher, index, TypeError(text))


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
        check_passable(dispatcher, numba_types)
        if device is not None:
            check_parameters(dispatcher, numba_types, device)
    return standing


def check_signature(dispatcher, formals, args, words, strict):
    """Check arguments against a kernel's one explicit signature.

    C and F arrays fit a formal of layout A, scalars convert, integers go to pointers, and
    arrays of the same width but another signedness fit with a warning unless ``strict``.

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
    if not dispatcher.extensions:
        each_named(dispatcher, args, _types.check_hint)
    warned = []
    actuals = types_of(dispatcher, stand_ins(dispatcher, args, words))
    for index, (formal, actual) in enumerate(zip(formals, actuals, strict=True)):
        problem = _mismatch(formal, actual, strict)
        if problem:
            _refuse(dispatcher, index, _wanted(formal, actual, args[index], problem))
        if problem is None:
            warned.append(
                f"argument {index + 1}: {_types.describe(actual)} is taken as "
                f"{_types.describe(formal)}, the signature's type of the same width"
            )
    return warned


def _mismatch(formal, actual, strict):
    """Return "" if it fits, None if it fits with a warning, else what is wrong."""
    if isinstance(formal, types.Array):
        return _array_mismatch(formal, actual, strict)
    if isinstance(formal, types.BaseTuple):
        return _tuple_mismatch(formal, actual, strict)
    if isinstance(actual, (types.Array, types.BaseTuple)):
        return "kind"
    if isinstance(formal, types.Record):
        return "" if isinstance(actual, types.Record) else "kind"
    if isinstance(actual, types.Record) or not _types.can_be_passed(actual):
        return "kind"
    return ""


def _tuple_mismatch(formal, actual, strict):
    if not isinstance(actual, types.BaseTuple) or len(formal) != len(actual):
        return "kind"
    found = [_mismatch(*pair, strict) for pair in zip(formal, actual, strict=True)]
    problems = [problem for problem in found if problem]
    if problems:
        return problems[0]
    return None if None in found else ""


def _array_mismatch(formal, actual, strict):
    if not isinstance(actual, types.Array):
        return "kind"
    if formal.ndim != actual.ndim:
        return "ndim"
    if formal.layout not in ("A", actual.layout) and not _fits_both(actual):
        return "layout"
    if formal.mutable and not actual.mutable:
        return "read-only"
    if formal.dtype == actual.dtype:
        return ""
    same_width = (
        isinstance(formal.dtype, types.Integer)
        and isinstance(actual.dtype, types.Integer)
        and formal.dtype.bitwidth == actual.dtype.bitwidth
    )
    return None if same_width and not strict else "dtype"


def _fits_both(actual):
    # A 0-d or 1-d C array is F as well; view_type says C for arrays that are both.
    return actual.layout == "C" and actual.ndim <= 1


def _wanted(formal, actual, value, problem):
    advice = {
        "kind": "pass a value of that kind",
        "ndim": "reshape it",
        "layout": f"pass x.contiguous(), or declare {formal}'s layout as A",
        "read-only": "pass a writable copy",
        "dtype": "convert it, or declare the signature for its type",
    }[problem]
    strides = getattr(value, "strides", None)
    if callable(getattr(value, "stride", None)):
        strides = value.stride()
    where = f" with strides {tuple(strides)}" if problem == "layout" and strides else ""
    return (
        f"expected {_types.describe(formal)} for this signature, got "
        f"{_types.describe(actual)}{where}; {advice}"
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
