"""Contexts, devices and errors: what a launch needs of them from Numba.

Owns making a device's primary context current around a slow launch, noticing that a
compiled kernel's module went with its context, and the error of a failed launch.
"""

from __future__ import annotations

import math
import weakref

from cuda.core import ObjectCode
from numba.cuda.cudadrv import devices

from stridedview import _driver
from stridedview._errors import LaunchError
from stridedview.numba_cuda import _checks

INVALID_VALUE = 1
OUT_OF_RESOURCES = 701
COOPERATIVE_TOO_LARGE = 720
NAMES = {
    INVALID_VALUE: "CUDA_ERROR_INVALID_VALUE",
    OUT_OF_RESOURCES: "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES",
    COOPERATIVE_TOO_LARGE: "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE",
}
DEFAULT_SHARED = 49152  # bytes of shared memory that need no opting in
SHARED_SIZE = 1  # CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES
MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
SHARED_OPTIN = 97  # CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN


def on_device(device):
    """Return a context that makes a device's primary context current, and puts it back.

    Parameters
    ----------
    device : int
        -1 for the current one; Numba then makes one if this thread has none.
    """
    if device < 0 or device == _driver.current_device():
        devices.get_context()
        return _driver.CurrentContext(0, None, True)
    had_context = _driver.current_context() != 0
    primary = device_of(device).get_primary_context()
    return _driver.CurrentContext(
        int(primary.handle), primary.prepare_for_use, not had_context
    )


def device_of(number):
    """Return Numba's object of a device.

    Raises
    ------
    ValueError
        If this process sees none of this number.
    """
    if number >= len(devices.gpus):
        raise ValueError(
            f"the arrays are on device {number}; this process sees {len(devices.gpus)} "
            "(CUDA_VISIBLE_DEVICES says which)"
        )
    return devices.gpus[number]


def refresh(kernel):
    """Make a compiled kernel load anew if its module went with a context.

    Numba keeps the function per device and does not forget it when it empties the
    context; the module's proxy is then dead, and its library, which all devices of a
    compute capability share, is unloaded.
    """
    library = kernel._codelibrary
    function = library._cufunc_cache.get(devices.get_context().device.id)
    if function is None:
        return
    try:
        function.module.handle  # noqa: B018 - a dead proxy raises
    except ReferenceError:
        _bound.pop(kernel, None)
        library._cufunc_cache.clear()
        for capability, image in library._cubin_cache.items():
            library._cubin_cache[capability] = ObjectCode.from_cubin(
                image.code, name=image.name
            )


# Compiled kernel -> its functions that were bound, one for each context.
_bound = weakref.WeakKeyDictionary()


def bind(kernel):
    """Load a compiled kernel in the current context, and set up its module and function.

    As ``_Kernel.bind`` does it (the module's callback, the carveout, the runtime's
    counters), which Numba itself only calls after a fresh compile. Once for a function: to
    set up the counters launches a kernel of Numba's and waits for it.
    """
    refresh(kernel)
    function = kernel._codelibrary.get_cufunc()
    bound = _bound.setdefault(kernel, [])
    if not any(function is other for other in bound):
        kernel.bind()
        bound.append(function)


class LimitError(LaunchError, ValueError):
    """A grid, block or amount of shared memory that the device does not have."""

    def __init__(self, text, code):
        super().__init__(f"{NAMES[code]}: {text}", code)


def make_ready(configuration, kernel, function):
    """Do in the current context what a launch needs before the driver is called.

    Parameters
    ----------
    configuration : LaunchConfiguration
    kernel : _Kernel
    function : int
        Its CUfunction.

    Raises
    ------
    LimitError
        If the driver would refuse the launch, naming the number and the limit.
    """
    problem = _problem(configuration, kernel, function)
    if problem:
        raise LimitError(problem, INVALID_VALUE)
    if configuration.sharedmem:
        _opt_in(configuration, function)
    # The shared memory has to be allowed before blocks that take it are counted.
    problem = _cooperative_problem(configuration, kernel)
    if problem:
        raise LimitError(problem, COOPERATIVE_TOO_LARGE)


def failed_launch(configuration, plan, code, final):
    """Return the error of a failed launch, or None if it is worth another try.

    A launch that asks for more dynamic shared memory than the default is given it, if the
    device has it; Numba itself never asks.
    """
    function = plan.function_handle
    if code == INVALID_VALUE and not final and _opt_in(configuration, function):
        return None
    problem = ""
    if code in (INVALID_VALUE, OUT_OF_RESOURCES):
        problem = _problem(configuration, plan.kernel, function)
    elif code == COOPERATIVE_TOO_LARGE:
        problem = _cooperative_problem(configuration, plan.kernel)
    if problem:
        return LimitError(problem, code)
    error = _driver.error(code, "cuLaunchKernel")
    return LaunchError(str(error), code)


def _opt_in(configuration, function):
    wanted = configuration.sharedmem
    static = _driver.function_attribute(function, SHARED_SIZE)
    limit = _shared_limit()
    if wanted + static <= DEFAULT_SHARED or wanted + static > limit:
        return False
    _driver.set_function_attribute(function, MAX_DYNAMIC_SHARED, limit - static)
    return True


def _shared_limit():
    return _driver.device_attribute(max(_driver.current_device(), 0), SHARED_OPTIN)


def _problem(configuration, kernel, function):
    device = devices.get_context().device
    problem = _checks.check_dimensions(configuration, device)
    if problem:
        return problem
    threads = math.prod(configuration.blockdim)
    most = kernel.max_threads_per_block
    if threads > most:
        return f"the block has {threads} threads; this kernel's limit is {most}"
    static = _driver.function_attribute(function, SHARED_SIZE)
    return shared_problem(configuration, _shared_limit(), static)


def _cooperative_problem(configuration, kernel):
    if not kernel.cooperative:
        return ""
    blocks = math.prod(configuration.griddim)
    threads = math.prod(configuration.blockdim)
    most = kernel.max_cooperative_grid_blocks(threads, configuration.sharedmem)
    if blocks <= most:
        return ""
    x, y, z = configuration.griddim
    return (
        f"the grid has {blocks} blocks ({x} x {y} x {z}) of {threads} threads; a "
        "cooperative kernel has all of them on the device at once, and the limit of this "
        f"one is {most}"
    )


def shared_problem(configuration, limit, static=0):
    """Return why there is too little shared memory for a launch, or "".

    Parameters
    ----------
    configuration : LaunchConfiguration
    limit : int
        Bytes that the device has a block.
    static : int
        Bytes that the kernel itself has, if it is known.
    """
    wanted = configuration.sharedmem
    if wanted + static <= limit:
        return ""
    return (
        f"the launch asks for {wanted} bytes of dynamic shared memory; the device has "
        f"{limit} a block"
        + (f", and the kernel has {static} static ones" if static else "")
    )


def limit_problem(configuration, device, plan):
    """Return which limit of the device a launch exceeds, or "", as far as it is known.

    Nothing is loaded: what a kernel itself takes is known where a plan of the current
    context is given.

    Parameters
    ----------
    configuration : LaunchConfiguration
    device : Device
    plan : Plan or None
    """
    if plan is not None and plan.context_id == _driver.current_context_id():
        return _problem(
            configuration, plan.kernel, plan.function_handle
        ) or _cooperative_problem(configuration, plan.kernel)
    limit = _driver.device_attribute(device.id, SHARED_OPTIN)
    return _checks.check_dimensions(configuration, device) or shared_problem(
        configuration, limit
    )
