"""A stand-in for the CUDA driver, for machines without a GPU. See README.md beside it."""

import contextlib
import ctypes
import os

from ._control import HOOK, call, environment, library, load, wanted
from ._records import Launch, Ordering, clear, is_behind, launch_from, launches, orderings

__all__ = [
    "Launch", "Ordering", "allocate", "callgrind_start", "callgrind_stop", "calls",
    "clear", "entry_points", "environment", "fail_next", "fail_none", "free", "guard",
    "hold_events", "hold_launches", "is_behind", "launches", "library", "load",
    "memory_limit", "on_launch", "orderings", "producers", "read", "recording",
    "regions", "release", "reset", "reset_calls", "sequence", "strict_capture",
    "torch_tensor", "traced", "waiting", "wanted", "write",
]  # fmt: skip

_hook = None  # keeps the C callback alive while the driver may call it


def recording(on: bool) -> None:
    """Switch the recording of launches on or off; off, a launch costs the least."""
    call("recording", on)


def sequence() -> int:
    """Return the count that launches, event records and waits share."""
    return call("sequence")


# ---- counts, faults, traces ----


def entry_points() -> list[str]:
    """Return the symbols of all entry points that are built."""
    return [call("call_name", number).decode() for number in range(call("call_total"))]


def calls() -> dict[str, int]:
    """Return how often each entry point was called since `reset_calls`."""
    counts = {name: call("calls_of", number) for number, name in enumerate(entry_points())}
    return {name: count for name, count in counts.items() if count}


def reset_calls() -> None:
    """Set every count to 0."""
    call("reset_calls")


def _number(entry_point: str) -> int:
    number = call("call_number", entry_point.encode())
    if number < 0:
        raise ValueError(f"the stand-in has no entry point {entry_point!r}")
    return number


def fail_next(entry_point: str, error_code: int, after: int = 0, times: int = 1) -> None:
    """Make a coming call of `entry_point` return `error_code` and do nothing else.

    Parameters
    ----------
    entry_point : str
        A symbol (``cuMemAlloc_v2``) or a name (``cuMemAlloc``: its newest version).
    after : int
        How many calls succeed first.
    times : int
        How many calls fail then; 0 means all.
    """
    call("fail", _number(entry_point), error_code, after, times)


def fail_none() -> None:
    """Drop every fault that `fail_next` set."""
    call("fail_none")


@contextlib.contextmanager
def traced():
    """Collect the symbols of all calls within the block in the list that it gives.

    The list is filled when the block ends; it holds 4,096 calls at most.
    """
    names: list[str] = []
    call("trace", 1)
    try:
        yield names
    finally:
        call("trace", 0)
        index = 0
        while (number := call("traced", index)) >= 0:
            names.append(call("call_name", number).decode())
            index += 1


# ---- within a launch ----


def on_launch(callback, other_thread: bool = False) -> None:
    """Run ``callback(launch)`` within every launch; a captured one runs when replayed.

    With `other_thread` it runs in a fresh thread that the launch waits for: a caller that
    keeps the GIL over its launch gets LAUNCH_TIMEOUT (702), after the patience of
    `hold_launches`. ``None`` takes the callback away.
    """
    global _hook
    hook = (
        None
        if callback is None
        else HOOK(lambda struct: callback(launch_from(struct.contents)))
    )
    call("hook", ctypes.cast(hook, ctypes.c_void_p) if hook else None, other_thread)
    _hook = hook


def hold_launches(patience: float = 10.0) -> None:
    """Let launches wait until `release`; after `patience` seconds they fail with 702."""
    call("patience", patience)
    call("hold", 1)


def release() -> None:
    """Let the launches go that `hold_launches` holds, and those to come."""
    call("hold", 0)


def waiting() -> int:
    """Return how many launches wait now."""
    return call("waiting")


def hold_events(on: bool) -> None:
    """While on, work issued from now on is not done until somebody synchronizes."""
    call("hold_events", on)


def strict_capture(on: bool) -> None:
    """While on, a capture that forbids allocation forbids events and libraries, too."""
    call("strict_capture", on)


# ---- memory ----


def allocate(size: int, device: int = 0) -> int:
    """Return the address of new device memory that no context owns; free it with `free`."""
    address = call("allocate", size, device)
    if not address:
        raise MemoryError(f"the stand-in has no {size} bytes for device {device}")
    return address


def free(address: int) -> None:
    """Free what `allocate` gave."""
    if call("free", address):
        raise ValueError(f"{address:#x} is not the start of device memory")


def read(address: int, size: int) -> bytes:
    """Return the bytes of device memory, guarded or not."""
    buffer = ctypes.create_string_buffer(size)
    if call("read", buffer, address, size):
        raise ValueError(f"{size} bytes at {address:#x} are not within one allocation")
    return buffer.raw


def write(address: int, data: bytes) -> None:
    """Set the bytes of device memory, guarded or not."""
    data = bytes(data)
    if call("write", address, data, len(data)):
        raise ValueError(f"{len(data)} bytes at {address:#x} are not within one allocation")


def regions() -> int:
    """Return how many allocations the driver knows, of all kinds and devices."""
    return call("regions")


def memory_limit(size: int) -> None:
    """Set how many bytes each device has."""
    call("memory", size)


def guard(on: bool) -> None:
    """Take away the host's access to device memory, or give it back; copies work on."""
    if not call("guard", on):
        raise OSError("the stand-in could not change the protection of its memory")


# ---- counting instructions ----


def callgrind_start() -> bool:
    """Ask callgrind to count from here; return whether anything counts."""
    call("callgrind_start")
    return call("callgrind_state") == 2


def callgrind_stop() -> None:
    """Ask callgrind to count no further."""
    call("callgrind_stop")


# ---- producers ----


def producers():
    """Return the extension module with the producer classes, built when needed."""
    from ._producers import module

    return module()


def torch_tensor(*arguments, **options):
    """See `tests.standin._torch.torch_tensor`."""
    from ._torch import torch_tensor as make

    return make(*arguments, **options)


def reset() -> None:
    """Bring every switch back to where it stands after `load`, and forget all records."""
    if not wanted():
        return
    on_launch(None)
    release()
    hold_events(False)
    fail_none()
    strict_capture(False)
    call("end_captures")
    recording(True)
    guard(os.environ.get("STANDIN_GUARD", "0") not in ("", "0"))
    memory_limit(int(os.environ.get("STANDIN_MEMORY") or str(16 << 30), 0))
    clear()
    reset_calls()
