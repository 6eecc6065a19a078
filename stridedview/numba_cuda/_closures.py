"""Arrays that a kernel holds: variables that it reads, and attributes of modules.

Owns what Numba's interpreter, typing and lowering see in place of them. Numba embeds the
address of a device array of its own kind, and the values of a NumPy array, when it
compiles; here every producer's array is held so, with its own layout, and what cannot be
used is refused by name. What the kernel holds is kept alive with it.
"""

from __future__ import annotations

import sys
from types import BuiltinFunctionType, FunctionType, ModuleType

import numpy as np
from numba.cuda import types
from numba.cuda.core import base, interpreter
from numba.cuda.cudadrv.devicearray import DeviceNDArrayBase
from numba.cuda.typing import context

from stridedview import _driver, _ingest, _pack
from stridedview.numba_cuda import _types

HOST = 1  # DLPack's kDLCPU

Interpreter = interpreter.Interpreter
_get_global_value = Interpreter.get_global_value
_get_closure_value = Interpreter.get_closure_value
TypingContext = context.BaseContext
_resolve_module_constants = TypingContext.resolve_module_constants
TargetContext = base.BaseContext
_get_getattr = TargetContext.get_getattr

# What most global names are, and never an array.
_COMMON = (FunctionType, BuiltinFunctionType, ModuleType, type, int, float, str)
# What Numba embeds itself.
_NUMBAS = (np.ndarray, np.generic, DeviceNDArrayBase)


class Held:
    """An array on a device that a kernel holds; Numba reads its type and its interface.

    Parameters
    ----------
    view : StridedView
    name : str
        Of the variable.
    memory : object
        Kept alive beside the view's owner: a tensor may be given other memory.
    """

    def __init__(self, view, name, memory):
        self.view = view
        self.name = name
        self.memory = memory
        self._numba_type_ = _types.view_type(view)
        # The type says the dtype; here only its width is read.
        self.__cuda_array_interface__ = {
            "shape": view.shape,
            "strides": view.strides,
            "data": (view.ptr, view.readonly),
            "typestr": f"|V{view.itemsize}",
            "version": 3,
        }


def get_global_value(self, name):
    """Return the value of a global or builtin name, as Numba sees it."""
    return _seen(_get_global_value(self, name), name)


def get_closure_value(self, index):
    """Return the value of a closure variable, as Numba sees it."""
    return _seen(
        _get_closure_value(self, index), self.func_id.func.__code__.co_freevars[index]
    )


def resolve_module_constants(self, typ, attr):
    """Return the type of a module's attribute, as Numba sees it, or None."""
    held = _held_by_module(typ, attr)
    if held is None:
        return _resolve_module_constants(self, typ, attr)
    return self.resolve_value_type(held)


def get_getattr(self, typ, attr):
    """Return what lowers the reading of an attribute, or None if nothing is to be."""
    held = _held_by_module(typ, attr) if isinstance(typ, types.Module) else None
    if held is None:
        return _get_getattr(self, typ, attr)
    kind = self.typing_context.resolve_value_type(held)

    def lower(context, builder, _typ, _value, _attr):
        return context.get_constant_generic(builder, kind, held)

    return lower


def _held_by_module(typ, attr):
    """Return what Numba sees of a module's attribute, None if that is the value itself."""
    value = getattr(typ.pymod, attr)
    seen = _seen(value, f"{typ.pymod.__name__}.{attr}")
    return None if seen is value else seen


def _seen(value, name):
    if isinstance(value, _COMMON):
        return value
    if isinstance(value, (tuple, list)):
        return _seen_items(value, name)
    if isinstance(value, _NUMBAS):
        return value
    return _held(value, name) if _pack.kind_name(value) == "array" else value


def _seen_items(value, name):
    kind = tuple if isinstance(value, tuple) else list
    before = list(kind.__iter__(value))
    items = [_seen(item, f"{name}[{place}]") for place, item in enumerate(before)]
    is_same = all(new is old for new, old in zip(items, before, strict=True))
    if kind is list:
        # Numba has no lists of arrays that are constants; it has tuples of them.
        is_same = is_same and not any(
            isinstance(item, (np.ndarray, DeviceNDArrayBase)) for item in items
        )
    if is_same:
        return value
    return type(value)(*items) if hasattr(value, "_fields") else tuple(items)


def _held(value, name):
    try:
        view = _ingest.from_any(value)
        if view.device[0] == HOST:
            array = np.asarray(view)  # embedded by value, as NumPy's arrays are
            array.flags.writeable = False
            return array
        return Held(view, name, _memory(value))
    except (BufferError, TypeError, ValueError) as error:
        raise type(error)(f"'{name}', which the kernel holds: {error}") from error


def _memory(value):
    """Return a tensor's storage: ``x.data = y``, as ``Module.to`` does, changes it."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.Tensor):
        return None
    with torch._C.DisableTorchFunctionSubclass():
        return value.untyped_storage()


def check_device(kernel):
    """Refuse a compiled kernel that holds an array of another device than the current one.

    Raises
    ------
    ValueError
        Naming the variable and both devices.
    """
    for held in kernel._codelibrary.referenced_objects.values():
        if not isinstance(held, Held):
            continue
        device, current = held.view.device[1], _driver.current_device()
        if device != current and held.view.size:
            raise ValueError(
                f"the kernel holds '{held.name}' on device {device} but is launched on "
                f"device {current}; pass it as an argument"
            )
