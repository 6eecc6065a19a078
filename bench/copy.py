"""Topic ``copy``: between host and device, one gigabyte of float64.

Every contender writes into memory that is already there, except in ``to_host_new``.
The floor is one driver call from or to pinned memory. Each timed copy waits for the
device; a rate counts the bytes once.
"""

from functools import cache, partial

import numpy

from bench import _floor
from bench._device import Device, peer
from bench._harness import Contender, measure, public, timed

FLOOR = "raw"
ROUNDS = 12
ITEMS, QUICK_ITEMS = 125_000_000, 1_000_000
DTYPE = "float64"

CUTS = {
    "to_device": lambda array: array[: len(array) // 2],
    "to_device_every_second": lambda array: array[::2],
    "to_device_reversed": lambda array: array[: len(array) // 2][::-1],
}
TO_HOST = ("to_host", "to_host_new")


class Memory:
    """The arrays of one run, made once and shared by the contenders."""

    def __init__(self, device, items):
        self.device = device
        self.items = items
        self.host = cache(lambda: numpy.arange(2 * items, dtype=DTYPE))
        self.out = cache(lambda: numpy.zeros(items, dtype=DTYPE))
        self.pinned = cache(
            lambda: peer("torch").zeros(items, dtype=self._torch_dtype(), pin_memory=True)
        )
        self.on_device = cache(self._on_device)

    @staticmethod
    def _torch_dtype():
        return getattr(peer("torch"), DTYPE)

    def _on_device(self, name):
        shape = (self.items,)
        if name == "torch":
            return self.device.torch_tensor(shape, DTYPE)
        if name == "cupy":
            return self.device.cupy_array(shape, DTYPE)
        if name == "DeviceNDArray":
            return self.device.device_array(shape, DTYPE)
        self.device.require()
        return public("empty")(shape, DTYPE)


def from_numpy(array):
    return peer("torch").from_numpy(array)


INTO_DEVICE = {
    "stridedview": lambda target, source: target.copy_to_device(source),
    "torch": lambda target, source: target.copy_(from_numpy(source)),
    "cupy": lambda target, source: target.set(source),
    "DeviceNDArray": lambda target, source: target.copy_to_device(source),
}
INTO_HOST = {
    "stridedview": lambda source, target: source.copy_to_host(target),
    "torch": lambda source, target: from_numpy(target).copy_(source),
    "cupy": lambda source, target: source.get(out=target),
    "DeviceNDArray": lambda source, target: source.copy_to_host(target),
}
NEW_ON_HOST = {
    "stridedview": lambda source: source.copy_to_host(),
    "torch": lambda source: source.cpu(),
    "cupy": lambda source: source.get(),
    "DeviceNDArray": lambda source: source.copy_to_host(),
}


def into_device(memory, op, name):
    target, source, copy = (
        memory.on_device(name),
        CUTS[op](memory.host()),
        INTO_DEVICE[name],
    )
    return timed(lambda: copy(target, source), sync=memory.device.sync)


def into_host(memory, op, name):
    source, sync = memory.on_device(name), memory.device.sync
    if op == "to_host_new":
        make = NEW_ON_HOST[name]
        return timed(lambda: make(source), sync=sync)
    target, copy = memory.out(), INTO_HOST[name]
    return timed(lambda: copy(source, target), sync=sync)


def pinned(memory, op):
    """torch from or to pinned memory: the best that a host array could reach."""
    there, here = memory.on_device("torch"), memory.pinned()
    target, source = (there, here) if op in CUTS else (here, there)
    return timed(lambda: target.copy_(source), sync=memory.device.sync)


def raw(memory, op):
    there, here = memory.on_device("torch").data_ptr(), memory.pinned().data_ptr()
    floor, size = _floor.loaded(), memory.items * 8
    if op in CUTS:
        return timed(
            lambda: floor.copy_to_device(there, here, size), sync=memory.device.sync
        )
    return timed(lambda: floor.copy_to_host(here, there, size), sync=memory.device.sync)


def contenders(device, options):
    """Return the contenders of this topic."""
    items = QUICK_ITEMS if options.quick else ITEMS
    memory = Memory(device, items)
    kind = {"calls": 1, "rounds": ROUNDS, "moved": items * 8}
    rows = []
    for op in (*CUTS, *TO_HOST):
        note = "contiguous, pinned"
        rows.append(
            Contender(f"copy.{op}", FLOOR, partial(raw, memory, op), note=note, **kind)
        )
        rows.append(
            Contender(
                f"copy.{op}", "torch pinned", partial(pinned, memory, op), note=note, **kind
            )
        )
        build = into_device if op in CUTS else into_host
        rows += [
            Contender(f"copy.{op}", name, partial(build, memory, op, name), **kind)
            for name in INTO_DEVICE
        ]
    return rows


def run(options):
    """Measure the topic and return its rows."""
    device = Device(options)
    return measure(contenders(device, options), options, device.sync)
