"""Topic ``cache``: what a launch costs by how much of it is already known.

``compile`` is the first launch of a new kernel, ``disk`` the first launch of one
that a cache on disk holds, ``miss`` the first launch with a kind of argument that
leads to an overload already there, ``hit`` any later launch. The first three
make a new dispatcher for each sample; only the launch itself is timed.
"""

from functools import partial
from time import perf_counter_ns

from bench import launch
from bench._device import Device, peer
from bench._harness import Contender, measure
from bench._kernels import EMPTY, NUMBERS

FLOOR = launch.FLOOR
ROUNDS = 20
WHO = (("numba-cuda torch", False), ("stridedview torch", True))


def first_launches(prepare, arrays):
    """Return a burst that times one launch of each kernel that ``prepare`` makes."""

    def burst(n):
        taken = 0
        for _ in range(n):
            kernel = prepare()
            start = perf_counter_ns()
            kernel(*arrays)
            taken += perf_counter_ns() - start
        return taken

    return burst


def torch_tensors(device, number):
    return [device.torch_tensor() for _ in range(number)]


def compile_first(device, number):
    jit = peer("numba.cuda").jit
    tensors = torch_tensors(device, number)
    return first_launches(lambda: jit(EMPTY[number])[launch.GRID, launch.BLOCK], tensors)


def from_disk(device, number):
    """Numba keeps the cache beside the kernel's source, in ``__pycache__``."""
    jit = peer("numba.cuda").jit(cache=True)
    tensors = torch_tensors(device, number)
    jit(EMPTY[number])[launch.GRID, launch.BLOCK](*tensors)  # fills the cache
    return first_launches(lambda: jit(EMPTY[number])[launch.GRID, launch.BLOCK], tensors)


def miss(device, number):
    """Device arrays compile the overload; tensors then meet it for the first time."""
    tensors = torch_tensors(device, number)
    arrays = [device.device_array() for _ in range(number)]
    prepare = partial(launch.compiled, device, number, arrays)
    return first_launches(lambda: prepare()[launch.GRID, launch.BLOCK], tensors)


def hit(device, number):
    return launch.numba(device.torch_tensor, device, number)


def contenders(device):
    """Return the contenders of this topic."""
    rows = []
    for op, make in (("compile", compile_first), ("disk", from_disk), ("miss", miss)):
        for name, patched in WHO:
            for number in NUMBERS:
                build = partial(make, device, number)
                row_id = f"cache.{op}.{number}"
                rows.append(Contender(row_id, name, build, patched, calls=1, rounds=ROUNDS))
    for number in NUMBERS:
        row_id = f"cache.hit.{number}"
        rows.append(Contender(row_id, FLOOR, partial(launch.raw, device, number)))
        rows += [
            Contender(row_id, name, partial(hit, device, number), on) for name, on in WHO
        ]
    return rows


def run(options):
    """Measure the topic and return its rows."""
    device = Device(options)
    return measure(contenders(device), options, device.sync)
