"""The stand-in's own face: loading, builds, names, counts, faults, traces."""

import ctypes
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from cuda.bindings import driver as cu
from cuda.bindings import nvjitlink
from numba import cuda

from tests.standin import _build, environment
from tests.standin.helpers import ROOT, code, good, run_child

pytestmark = pytest.mark.standin


@cuda.jit("void(int32)")
def nothing(i):
    pass


@pytest.fixture
def current(driver):
    return cuda.current_context()


# ---- loading ----


def test_driver_when_loaded_then_every_later_request_gets_it(driver, current):
    by_name = ctypes.CDLL("libcuda.so.1")
    address = ctypes.cast(by_name.cuInit, ctypes.c_void_p).value
    assert address == ctypes.cast(driver.library().cuInit, ctypes.c_void_p).value
    assert good(cu.cuDriverGetVersion()) == 13050
    assert nvjitlink.version() >= (13, 0)
    lines = Path("/proc/self/maps").read_text().splitlines()
    maps = {line.split()[-1] for line in lines if "libcuda.so" in line}
    assert maps == {str(_build.DRIVER)}


PEERS = {
    "numba": "from numba import cuda; print(cuda.is_available(), len(cuda.gpus))",
    "cuda-core": "from cuda.core import Device; print(True, Device(0).device_id + 1)",
    "cuda-bindings": (
        "from cuda.bindings import driver as cu; cu.cuInit(0);"
        "print(True, cu.cuDeviceGetCount()[1])"
    ),
    "ctypes": "import ctypes; print(True, 1 + ctypes.CDLL('libcuda.so').cuInit(0))",
}


@pytest.mark.parametrize("name", PEERS)
def test_child_when_only_its_environment_is_set_then_each_library_finds_the_driver(name):
    command = [sys.executable, "-c", PEERS[name]]
    child = subprocess.run(
        command, env=environment(), capture_output=True, text=True, check=False
    )
    assert child.stdout.split() == ["True", "1"], child.stderr


def test_child_when_there_are_no_devices_then_numba_has_none():
    child = run_child("from numba import cuda; print(cuda.is_available())", devices=0)
    assert child.stdout.split() == ["False"], child.stderr


def test_environment_when_a_setting_is_unknown_then_it_is_refused():
    with pytest.raises(TypeError, match="unknown settings"):
        environment(colour=1)


def test_build_when_nothing_changed_then_the_file_stays(driver):
    before = _build.DRIVER.stat().st_mtime_ns
    assert _build.driver() == _build.DRIVER
    assert _build.DRIVER.stat().st_mtime_ns == before


def test_build_when_several_processes_build_at_once_then_all_get_a_whole_library(tmp_path):
    source = (
        "import pathlib, sys, ctypes; from tests.standin import _build;"
        "_build.BUILD = pathlib.Path(sys.argv[1]);"
        "_build.DRIVER = _build.BUILD / 'libcuda.so.1';"
        "print(ctypes.CDLL(str(_build.driver())).cuInit(0))"
    )
    command = [sys.executable, "-c", source, str(tmp_path / "build")]
    children = [
        subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    assert [child.communicate()[0].strip() for child in children] == ["0"] * 3


# ---- names ----


def test_name_when_versions_differ_then_the_newest_not_newer_than_asked_is_given(driver):
    library = driver.library()

    def look_up(name, version):
        function, status = ctypes.c_void_p(), ctypes.c_int()
        arguments = (
            name,
            ctypes.byref(function),
            version,
            ctypes.c_uint64(0),
            ctypes.byref(status),
        )
        return library.cuGetProcAddress_v2(*arguments), function.value, status.value

    def address(symbol):
        return ctypes.cast(getattr(library, symbol), ctypes.c_void_p).value

    assert look_up(b"cuStreamGetCtx", 9020) == (0, address("cuStreamGetCtx"), 0)
    assert look_up(b"cuStreamGetCtx", 12050) == (0, address("cuStreamGetCtx_v2"), 0)
    assert look_up(b"cuMemAlloc", 3020) == (0, address("cuMemAlloc_v2"), 0)
    assert look_up(b"cuNoSuchThing", 13000) == (500, None, 1)
    assert look_up(b"cuMemAlloc", 99000)[1] is None


def test_error_names_when_asked_then_they_are_the_drivers(driver):
    assert (
        good(cu.cuGetErrorName(cu.CUresult.CUDA_ERROR_INVALID_VALUE))
        == b"CUDA_ERROR_INVALID_VALUE"
    )
    assert (
        good(cu.cuGetErrorString(cu.CUresult.CUDA_ERROR_OUT_OF_MEMORY)) == b"out of memory"
    )
    for member in cu.CUresult:
        code_and_name = cu.cuGetErrorName(member)
        assert int(code_and_name[0]) or code_and_name[1].decode() == member.name


# ---- counts, faults, traces ----


def test_calls_when_counted_then_each_symbol_has_its_number(driver, current):
    driver.reset_calls()
    good(cu.cuMemFree(good(cu.cuMemAlloc(8))))
    good(cu.cuMemFree(good(cu.cuMemAlloc(8))))
    assert driver.calls() == {"cuMemAlloc_v2": 2, "cuMemFree_v2": 2}


def test_fault_when_set_then_the_next_call_fails_once(driver, current):
    driver.fail_next("cuMemGetInfo", 999)
    assert [code(cu.cuMemGetInfo()) for _ in range(3)] == [999, 0, 0]


def test_fault_when_set_for_later_and_twice_then_those_calls_fail(driver, current):
    driver.fail_next("cuMemGetInfo_v2", 700, after=1, times=2)
    assert [code(cu.cuMemGetInfo()) for _ in range(5)] == [0, 700, 700, 0, 0]


def test_fault_when_set_for_ever_then_it_ends_with_fail_none(driver, current):
    driver.fail_next("cuMemGetInfo", 700, times=0)
    assert [code(cu.cuMemGetInfo()) for _ in range(4)] == [700] * 4
    driver.fail_none()
    assert code(cu.cuMemGetInfo()) == 0


def test_fault_when_in_a_launch_then_numba_raises_and_nothing_is_recorded(driver, current):
    nothing[1, 1](1)
    driver.clear()
    driver.fail_next("cuLaunchKernelEx", 719)
    with pytest.raises(Exception, match=r"719|LAUNCH_FAILED"):
        nothing[1, 1](1)
    assert driver.launches() == []
    nothing[1, 1](2)
    assert [record.words for record in driver.launches()] == [(2,)]


def test_fault_when_the_entry_point_is_unknown_then_it_is_refused(driver):
    with pytest.raises(ValueError, match="cuMadeUp"):
        driver.fail_next("cuMadeUp", 1)


def test_faults_when_set_on_every_entry_point_then_each_can_fail(driver):
    library = driver.library()
    arguments = [None] * 12
    for name in driver.entry_points():
        driver.fail_next(name, 777)
        assert getattr(library, name)(*arguments) == 777, name


def test_trace_when_on_then_it_lists_calls_in_order(driver, current):
    with driver.traced() as names:
        good(cu.cuMemFree(good(cu.cuMemAlloc(8))))
        nothing[1, 1](1)
    assert names[:2] == ["cuMemAlloc_v2", "cuMemFree_v2"]
    assert names[-1] == "cuLaunchKernelEx"


def test_recording_when_off_then_launches_leave_no_trace(driver, current):
    driver.recording(False)
    nothing[1, 1](1)
    driver.recording(True)
    nothing[1, 1](2)
    assert [record.words for record in driver.launches()] == [(2,)]


def test_callgrind_when_not_under_valgrind_then_nothing_counts(driver):
    assert driver.callgrind_start() is False
    driver.callgrind_stop()


def test_memory_when_of_no_context_then_it_is_read_and_written(driver):
    address = driver.allocate(16)
    driver.write(address + 4, b"abcd")
    assert driver.read(address + 4, 4) == b"abcd"
    with pytest.raises(ValueError, match="not within one allocation"):
        driver.read(address + 1, 16)
    driver.free(address)
    with pytest.raises(ValueError, match="not the start"):
        driver.free(address)


def test_guard_when_switched_at_run_time_then_the_drivers_copies_work(driver, current):
    host = np.arange(16)
    driver.guard(True)
    np.testing.assert_array_equal(cuda.to_device(host).copy_to_host(), host)
    driver.guard(False)
