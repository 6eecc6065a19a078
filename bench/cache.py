"""Topic ``cache``: what a launch costs by how much of it is already known.

``compile`` is the first launch of a new kernel, ``disk`` the first launch of one
that a cache on disk holds, ``miss`` the first launch with a kind of argument that
leads to an overload already there, ``hit`` any later launch. The first three
make a new dispatcher for each sample; only the launch itself is timed. ``look_up`` is
what a hit costs above the driver call alone, an argument: typing and look-up together.
"""

from functools import partial
from time import perf_counter_ns

from bench import launch
from bench._device import Device, peer
from bench._harness import Contender, measure
from bench._kernels import EMPTY, NUMBERS

FLOOR = launch.FLOOR
ROUNDS = 20
WHO = (
    ("numba-cuda torch", "torch_tensor", False),
    ("numba-cuda DeviceNDArray", "device_array", False),
    ("stridedview torch", "torch_tensor", True),
)


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


def compile_first(_, make_array, number):
    jit = peer("numba.cuda").jit
    arrays = [make_array() for _ in range(number)]
    return first_launches(lambda: jit(EMPTY[number])[launch.GRID, launch.BLOCK], arrays)


def from_disk(_, make_array, number):
    """Numba keeps the cache beside the kernel's source, in ``__pycache__``."""
    jit = peer("numba.cuda").jit(cache=True)
    arrays = [make_array() for _ in range(number)]
    jit(EMPTY[number])[launch.GRID, launch.BLOCK](*arrays)  # fills the cache
    return first_launches(lambda: jit(EMPTY[number])[launch.GRID, launch.BLOCK], arrays)


def miss(device, make_array, number):
    """Device arrays compile the overload; other arrays then meet it for the first time."""
    arrays = [make_array() for _ in range(number)]
    known = [device.device_array() for _ in range(number)]
    prepare = partial(launch.compiled, device, number, known)
    return first_launches(lambda: prepare()[launch.GRID, launch.BLOCK], arrays)


def hit(device, make_array, number):
    return launch.numba(make_array, device, number)


def contenders(device):
    """Return the contenders of this topic."""
    rows = []
    slow = {"calls": 1, "rounds": ROUNDS}
    for op, make, kind in (
        ("compile", compile_first, slow),
        ("disk", from_disk, slow),
        ("miss", miss, slow),
        ("hit", hit, {}),
    ):
        for number in NUMBERS:
            row_id = f"cache.{op}.{number}"
            if op == "hit":
                rows.append(Contender(row_id, FLOOR, partial(launch.raw, device, number)))
            for name, array, patched in WHO:
                build = partial(make, device, getattr(device, array), number)
                rows.append(Contender(row_id, name, build, patched, **kind))
    return rows


def look_ups(rows):
    """Return a row an argument for each of our hits: the hit less its floor."""
    found = []
    for row in rows:
        topic, op, number = row["id"].split(".")
        if op == "hit" and "above" in row and row["contender"].startswith("stridedview"):
            figures = {
                name: (row[name] - row["median"] + row["above"]) / int(number)
                for name in ("median", "min")
            }
            spread = {"iqr": row["iqr"] / int(number), "n": row["n"], "unit": row["unit"]}
            named = {"id": f"{topic}.look_up.{number}", "contender": row["contender"]}
            found.append({**named, **figures, **spread})
    return found


def run(options):
    """Measure the topic and return its rows."""
    device = Device(options)
    rows = measure(contenders(device), options, device.sync)
    return rows + look_ups(rows)
