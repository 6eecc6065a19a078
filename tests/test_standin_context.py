"""Contexts and devices of the stand-in driver: identity, reset, stacks, forks."""

import ctypes
import threading

import numpy as np
import pytest
from cuda.bindings import driver as cu
from numba import cuda

from tests.standin.helpers import code, good, kernel_of, launch, make_context, run_child

pytestmark = pytest.mark.standin
VALUES = (ctypes.c_int32(1),)


@cuda.jit("void(int32)")
def nothing(i):
    pass


@pytest.fixture
def own_context(driver):
    """Give a made context, so that no test takes away the primary one that others use."""
    cuda.current_context()
    context = make_context()
    yield context
    good(cu.cuCtxPopCurrent())
    if code(cu.cuCtxGetDevice_v2(context)) == 0:
        good(cu.cuCtxDestroy(context))


RESET = """
    import ctypes
    from tests import standin
    standin.load()
    from numba import cuda
    from cuda.bindings import driver as cu
    from tests.standin.helpers import code, good, kernel_of, launch
    from tests.test_standin_context import VALUES, nothing
    context = cuda.current_context()
    handle, kernel = good(cu.cuCtxGetCurrent()), kernel_of(nothing)
    function, first = good(cu.cuKernelGetFunction(kernel)), good(cu.cuCtxGetId(handle))
    print(launch(function, VALUES))
    while int(good(cu.cuDevicePrimaryCtxGetState(0))[1]):
        good({release})
    print(launch(function, VALUES))
    again = good(cu.cuDevicePrimaryCtxRetain(0))
    print(int(again) == int(handle), good(cu.cuCtxGetId(again)) != first)
    print(launch(function, VALUES), launch(good(cu.cuKernelGetFunction(kernel)), VALUES))
    good(cu.cuCtxPopCurrent())
    while int(good(cu.cuCtxGetCurrent())):
        good(cu.cuCtxPopCurrent())
    print(launch(function, VALUES))
"""


@pytest.mark.parametrize(
    "release", ["cu.cuDevicePrimaryCtxRelease(0)", "cu.cuDevicePrimaryCtxReset(0)"]
)
def test_primary_context_when_it_comes_back_then_handle_is_the_same_and_functions_are_stale(
    release,
):
    child = run_child(RESET.replace("{release}", release))
    assert child.stdout.split("\n")[:5] == ["0", "709", "True True", "400 0", "201"], (
        child.stderr
    )


def test_numba_when_the_device_is_reset_then_new_arrays_work(driver):
    child = run_child(
        """
        import numpy as np
        from tests import standin
        standin.load()
        from numba import cuda
        cuda.to_device(np.ones(3))
        cuda.current_context().reset()
        print(cuda.to_device(np.ones(3)).copy_to_host().sum())
        """
    )
    assert child.stdout.split() == ["3.0"], child.stderr


def test_context_stack_when_pushed_and_popped_then_each_thread_has_its_own(
    driver, own_context
):
    assert int(good(cu.cuCtxGetCurrent())) == int(own_context)
    seen = []
    thread = threading.Thread(target=lambda: seen.append(int(good(cu.cuCtxGetCurrent()))))
    thread.start()
    thread.join()
    assert seen == [0]
    good(cu.cuCtxPushCurrent(own_context))
    assert int(good(cu.cuCtxPopCurrent())) == int(own_context)
    assert int(good(cu.cuCtxGetDevice())) == 0


def test_function_when_of_another_context_then_its_launch_is_refused_and_the_kernels_is_not(
    driver,
):
    cuda.current_context()
    kernel = kernel_of(nothing)
    function = good(cu.cuKernelGetFunction(kernel))
    context = make_context()
    try:
        assert launch(function, VALUES) == 400
        assert launch(cu.CUfunction(int(kernel)), VALUES) == 0
        assert driver.launches()[-1].context_id == good(cu.cuCtxGetId(context))
    finally:
        good(cu.cuCtxDestroy(context))
    assert launch(function, VALUES) == 0


def test_context_when_destroyed_then_its_memory_and_streams_are_gone(driver):
    cuda.current_context()
    context = make_context()
    pointer, stream = good(cu.cuMemAlloc(512)), good(cu.cuStreamCreate(0))
    good(cu.cuCtxDestroy(context))
    assert code(cu.cuMemFree(pointer)) == 1
    assert code(cu.cuStreamQuery(stream)) == 400
    assert code(cu.cuCtxPushCurrent(context)) == 201


def test_launch_when_no_context_is_current_then_it_is_an_invalid_context(driver):
    cuda.current_context()
    function = good(cu.cuKernelGetFunction(kernel_of(nothing)))
    context = good(cu.cuCtxPopCurrent())
    try:
        assert launch(function, VALUES) == 201
    finally:
        good(cu.cuCtxPushCurrent(context))


def test_fork_when_the_child_calls_the_driver_then_it_is_not_initialized():
    child = run_child(
        """
        import os
        from tests import standin
        standin.load()
        from numba import cuda
        cuda.current_context()
        from cuda.bindings import driver as cu
        child = os.fork()
        if child == 0:
            os._exit(int(cu.cuMemAlloc(8)[0]) * 10 + int(cu.cuInit(0)[0]))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), int(cu.cuMemAlloc(8)[0]))
        """
    )
    assert child.stdout.split() == ["33", "0"], child.stderr


SECOND = """
    import numpy as np
    from tests import standin
    standin.load()
    from numba import cuda
    from cuda.bindings import driver as cu
    from tests.standin.helpers import code, good, kernel_of, launch
    from tests.test_standin_context import VALUES, nothing
    arrays = []
    for device in cuda.gpus:
        with device:
            arrays.append(cuda.to_device(np.ones(3)))
            nothing[1, 1](device.id)
    for array in arrays:
        kind = cu.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
        print(good(cu.cuPointerGetAttribute(kind, array.device_ctypes_pointer.value)))
    records = standin.launches()
    print([record.device for record in records], len({r.context_id for r in records}))
    with cuda.gpus[0]:
        function = good(cu.cuKernelGetFunction(kernel_of(nothing)))
        print(launch(function, VALUES), good(cu.cuDeviceCanAccessPeer(0, 1)))
    with cuda.gpus[1]:
        kernel = cu.CUfunction(int(kernel_of(nothing)))
        print(launch(function, VALUES), launch(kernel, VALUES))
    print(arrays[1].copy_to_host().sum())
"""


def test_second_device_when_used_then_memory_launches_and_functions_are_its_own():
    child = run_child(SECOND, devices=2)
    assert child.stdout.splitlines() == ["0", "1", "[0, 1] 2", "0 1", "400 0", "3.0"], (
        child.stderr
    )


@pytest.mark.parametrize("capability", ["7.5", "8.9", "10.0", "12.0"])
def test_capability_when_set_then_numba_compiles_and_launches_for_it(capability):
    child = run_child(
        """
        import numpy as np
        from tests import standin
        standin.load()
        from numba import cuda
        @cuda.jit
        def one(a):
            a[0] = 1
        one[1, 1](cuda.device_array(3, np.float32))
        words = standin.launches()[-1].words
        print(*cuda.get_current_device().compute_capability, len(words))
        """,
        cc=capability,
    )
    major, minor = capability.split(".")
    assert child.stdout.strip() == f"{major} {minor} 7", child.stderr


def test_array_when_on_the_stand_in_then_numba_lists_the_device(driver, capsys):
    assert cuda.is_available()
    assert cuda.detect()
    assert "Stand-in device 0" in capsys.readouterr().out
    assert np.array_equal(cuda.to_device(np.arange(3)).copy_to_host(), [0, 1, 2])
