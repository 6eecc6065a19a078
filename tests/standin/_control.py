"""Load the stand-in driver and speak to its control functions.

Owns the one loaded library. The driver's own functions are called by the libraries under
test; here only the ``standin_*`` functions are.
"""

import ctypes
import os
import threading
from ctypes import c_char_p, c_double, c_int, c_size_t, c_uint, c_uint16, c_uint64, c_void_p

from . import _build

_lock = threading.Lock()
_library: ctypes.CDLL | None = None


class LaunchAttribute(ctypes.Structure):
    _fields_ = [("id", c_int), ("pad", c_int), ("value", ctypes.c_ubyte * 64)]


class LaunchStruct(ctypes.Structure):
    """The C side's record; field for field as in ``src/state.h``."""

    _fields_ = [
        *(
            (name, c_uint64)
            for name in (
                "sequence",
                "thread",
                "stream",
                "stream_id",
                "context_id",
                "function",
            )
        ),
        ("name", c_char_p),
        ("entry", c_char_p),
        ("grid", c_uint * 3),
        ("block", c_uint * 3),
        *(
            (name, c_uint)
            for name in ("shared", "attribute_count", "parameter_count", "parameter_bytes")
        ),
        *(
            (name, c_int)
            for name in ("device", "captured", "replayed", "is_short", "packed_size")
        ),
        ("attributes", ctypes.POINTER(LaunchAttribute)),
        ("sizes", ctypes.POINTER(c_uint16)),
        ("bytes", c_void_p),
        ("packed", c_void_p),
    ]


class OrderingStruct(ctypes.Structure):
    _fields_ = [
        (name, c_uint64)
        for name in (
            "event",
            "recorded_on",
            "recorded_id",
            "recorded_at",
            "waiting",
            "waiting_id",
            "waited_at",
        )
    ]


HOOK = ctypes.CFUNCTYPE(None, ctypes.POINTER(LaunchStruct))

_SIGNATURES = {
    "call_total": (c_int,),
    "call_number": (c_int, c_char_p),
    "call_name": (c_char_p, c_int),
    "calls_of": (c_uint64, c_int),
    "reset_calls": (None,),
    "fail": (None, c_int, c_int, c_int, c_int),
    "fail_none": (None,),
    "trace": (None, c_int),
    "traced": (c_int, c_int),
    "recording": (None, c_int),
    "launch_count": (c_size_t,),
    "launch": (ctypes.POINTER(LaunchStruct), c_size_t),
    "ordering_count": (c_size_t,),
    "ordering": (ctypes.POINTER(OrderingStruct), c_size_t),
    "clear": (None,),
    "sequence": (c_uint64,),
    "hook": (None, c_void_p, c_int),
    "patience": (None, c_double),
    "hold": (None, c_int),
    "waiting": (c_int,),
    "hold_events": (None, c_int),
    "strict_capture": (None, c_int),
    "end_captures": (None,),
    "memory": (None, c_uint64),
    "allocate": (c_uint64, c_uint64, c_int),
    "free": (c_int, c_uint64),
    "block": (c_void_p, c_uint64),
    "read": (c_int, c_void_p, c_uint64, c_uint64),
    "write": (c_int, c_uint64, c_void_p, c_uint64),
    "guard": (c_int, c_int),
    "regions": (c_size_t,),
    "callgrind_state": (c_int,),
    "callgrind_start": (None,),
    "callgrind_stop": (None,),
}


def wanted() -> bool:
    """True unless ``STRIDEDVIEW_TEST_DRIVER=real`` asks for the machine's own driver."""
    return os.environ.get("STRIDEDVIEW_TEST_DRIVER") != "real"


def load() -> bool:
    """Build the driver, make it this process's ``libcuda.so.1``, and return whether it is.

    The dynamic loader answers every later request for that name with the library loaded
    here, so this must come before anything else loads a driver.
    """
    global _library
    if not wanted():
        return False
    with _lock:
        if _library is None:
            library = ctypes.CDLL(str(_build.driver()), mode=ctypes.RTLD_GLOBAL)
            for name, (result, *arguments) in _SIGNATURES.items():
                function = getattr(library, f"standin_{name}")
                function.restype, function.argtypes = result, arguments
            _library = library
    return True


def call(name: str, *arguments):
    """Call the control function ``standin_<name>`` of the loaded driver."""
    if _library is None:
        raise RuntimeError("the stand-in driver is not loaded: call standin.load() first")
    return getattr(_library, f"standin_{name}")(*arguments)


def library() -> ctypes.CDLL:
    """Return the loaded driver, for tests that call its entry points directly."""
    if _library is None:
        raise RuntimeError("the stand-in driver is not loaded: call standin.load() first")
    return _library


def environment(devices: int = 1, **settings: str | int) -> dict[str, str]:
    """Return the environment for a child process that is to run on the stand-in.

    `settings` are the ``STANDIN_*`` variables without prefix and in lower case:
    ``cc="8.0"``, ``memory=1 << 20``, ``guard=1``, ``driver_version=13050``. Of this
    process's own only the driver's version is passed on.
    """
    folder = str(_build.driver().parent)
    known = {"cc", "memory", "guard", "driver_version"}
    if unknown := settings.keys() - known:
        raise TypeError(
            f"unknown settings {sorted(unknown)}: expected some of {sorted(known)}"
        )
    path = os.pathsep.join(filter(None, [folder, os.environ.get("LD_LIBRARY_PATH")]))
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("STANDIN_") or name == "STANDIN_DRIVER_VERSION"
    }
    chosen = {f"STANDIN_{name.upper()}": str(value) for name, value in settings.items()}
    return {**inherited, "LD_LIBRARY_PATH": path, "STANDIN_DEVICES": str(devices), **chosen}
