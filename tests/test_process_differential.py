"""As ``test_feature_differential``, of what needs a process of its own.

That is what ends contexts, and what Numba or cuda-python reads when it is imported.
"""

import pytest

from tests.standin.helpers import run_child

pytestmark = pytest.mark.standin

CHILD = """
import numpy as np
from tests import standin
standin.load()
from cuda.bindings import driver as cu
from numba import cuda
import stridedview
from tests.launching import tensor
from tests.standin.helpers import good
if {ours}:
    stridedview.enable()

@cuda.jit
def take(a):
    pass

def vector():
    return cuda.to_device(np.zeros(4, np.float32))

def told(*launches):
    for launch in launches or standin.launches():
        print(launch.grid, launch.block, launch.shared, launch.stream, launch.attributes,
              launch.device, [word for word in launch.words if word < 4096])
"""

PROCESSES = {
    "module callbacks": (
        """
log = []
code = cuda.CUSource(
    "",
    setup_callback=lambda module: log.append(("setup", type(module).__name__)),
    teardown_callback=lambda module: log.append(("teardown", type(module).__name__)),
)
kernel = cuda.jit(link=[code])(take.py_func)
for value in (1, 2, 2.5, 1):
    kernel[1, 1](value)
assert len(log) == 2, log
cuda.current_context().reset()
assert len(log) == 4, log
print(log)
told()
""",
        {},
    ),
    "close": (
        """
take[1, 1](7)
cuda.close()
good(cu.cuDevicePrimaryCtxRetain(0))
cuda.current_context()

@cuda.jit
def other(a):
    pass
other[1, 1](vector())
other[1, 1](vector())
told()
""",
        {},
    ),
    "select_device": (
        """
for device in (0, 1, 1, 0):
    cuda.select_device(device)
    take[1, 1](vector())
    take[1, 1](device)
told()
""",
        {"devices": 2},
    ),
    "gpus in with": (
        """
for device in (0, 1, 1, 0):
    with cuda.gpus[device]:
        take[1, 1](vector())
        print(cuda.current_context().device.id)
told()
""",
        {"devices": 2},
    ),
    "per-thread default streams": (
        """
for stream in (0, cuda.default_stream(), cuda.legacy_default_stream(),
               cuda.per_thread_default_stream()):
    for _ in range(2):
        take[1, 1, stream](vector())
told()
""",
        {"variables": {"CUDA_PYTHON_CUDA_PER_THREAD_DEFAULT_STREAM": "1"}},
    ),
    "statistics of the runtime": (
        """
@cuda.jit
def allocating(a):
    b = np.empty(3, np.float32)
    a[0] = b[1]
allocating[1, 1](vector())
names = [launch.function for launch in standin.launches()]
assert names.index("NRT_MemSys_set") < len(names) - 1, names
allocating[1, 1](vector())
told(*standin.launches()[-2:])
from numba.cuda.memory_management.nrt import rtsys
print(rtsys.memsys_stats_enabled())
""",
        {"variables": {"NUMBA_CUDA_ENABLE_NRT": "1", "NUMBA_CUDA_NRT_STATS": "1"}},
    ),
}


CACHED = """
from numba import cuda, float32, int64, void


@cuda.jit(void(float32[::1], int64), cache=True)
def explicit(a, b):
    a[0] = b


@cuda.jit(cache=True)
def together(a):
    cuda.cg.this_grid().sync()
    a[0] = 1


@cuda.jit(cache=True, shared_memory_carveout="MaxShared")
def carved(a):
    a[0] = 2


@cuda.jit(cache=True)
def on_host(a, b):
    a[0] = b
"""
FROM_CACHE = """
import warnings
warnings.simplefilter("ignore")
import cached_kernels as cached
stridedview.reset_stats()
host = np.zeros(3, np.float32)
with standin.traced() as called:
    for _ in range(2):
        cached.explicit[1, 2](vector(), 3)
        cached.together[2, 32](vector())
        cached.carved[1, 4](vector())
        cached.on_host[1, 8](host, 5)
        cached.on_host[1, 8](vector(), 2.5)
told()
kernels = cached.explicit, cached.together, cached.carved, cached.on_host
for name in ("cache_hits", "cache_misses"):
    print([sum(getattr(kernel.stats, name).values()) for kernel in kernels])
if {ours}:
    assert "cuKernelSetAttribute" in called, "Numba itself sets it after a compile only"
    assert stridedview.stats()["loads"] + stridedview.stats()["compiles"] == 4
    assert stridedview.stats()["loads"] == {loads}
"""


def test_process_when_its_kernels_come_from_the_disk_cache_then_it_launches_as_in_numba(
    tmp_path,
):
    found = {}
    for ours in (False, True):
        folder = tmp_path / str(ours)
        folder.mkdir()
        (folder / "cached_kernels.py").write_text(CACHED)
        for process in (0, 1):
            settings = {"NUMBA_CACHE_DIR": str(folder / "cache"), "PYTHONPATH": str(folder)}
            body = FROM_CACHE.format(ours=ours, loads=4 * process)
            child = run_child(CHILD.format(ours=ours) + body, variables=settings)
            assert child.returncode == 0, child.stderr[-3000:]
            found[ours, process] = child.stdout
    for process in (0, 1):
        assert found[True, process] == found[False, process]
    assert found[True, 0].endswith("[0, 0, 0, 0]\n[1, 1, 1, 2]\n"), found[True, 0]
    assert found[True, 1].endswith("[1, 1, 1, 2]\n[0, 0, 0, 0]\n"), found[True, 1]


@pytest.mark.parametrize("name", PROCESSES)
def test_process_when_it_runs_through_us_then_it_launches_as_in_numba(name):
    body, settings = PROCESSES[name]
    found = [
        run_child(CHILD.format(ours=ours) + body, **settings) for ours in (False, True)
    ]
    assert found[0].returncode == 0, found[0].stderr[-3000:]
    assert found[1].returncode == 0, found[1].stderr[-3000:]
    assert found[0].stdout
    assert found[1].stdout == found[0].stdout


# ---- pickles ----

PICKLED = """
import pickle
import sys
from tests import standin
standin.load()
from numba import cuda

@cuda.jit
def take(a):
    pass

path = sys.argv[1]
"""
DUMPED = """
import stridedview
stridedview.enable()
with open(path, "wb") as file:
    pickle.dump(take[(2, 3), 5, 0, 16], file)
"""
LOADED = """
sys.modules["stridedview"] = None
with open(path, "rb") as file:
    configuration = pickle.load(file)
configuration(1)
record = standin.launches()[-1]
assert (record.grid, record.block, record.shared) == ((2, 3, 1), (5, 1, 1), 16), record
print("done")
"""


def test_configuration_when_pickled_then_it_is_loaded_without_us(tmp_path):
    path = f"sys.argv[1:] = [{str(tmp_path / 'configuration')!r}]\n"
    for body, expected in ((DUMPED, ""), (LOADED, "done\n")):
        child = run_child("import sys\n" + path + PICKLED + body)
        assert child.stdout == expected, child.stderr
        assert child.returncode == 0, child.stderr
