"""Memory of the stand-in driver: allocation, copies, host memory, pointers."""

import ctypes

import numpy as np
import pytest
from cuda.bindings import driver as cu
from numba import cuda

from tests.standin.helpers import code, good, run_child

pytestmark = pytest.mark.standin
ATTRIBUTE = cu.CUpointer_attribute


@pytest.fixture
def current(driver):
    return cuda.current_context()


def attribute(name, pointer):
    return good(
        cu.cuPointerGetAttribute(
            getattr(ATTRIBUTE, f"CU_POINTER_ATTRIBUTE_{name}"), pointer
        )
    )


HOSTS = {
    "c": np.arange(24, dtype=np.float64).reshape(4, 6),
    "f": np.asfortranarray(np.arange(24, dtype=np.float64).reshape(4, 6)),
    "empty": np.empty((3, 0), np.int8),
    "rank-0": np.array(5, np.uint16),
}


@pytest.mark.parametrize("name", HOSTS)
def test_copy_when_there_and_back_then_the_values_are_the_same(driver, name):
    host = HOSTS[name]
    device = cuda.to_device(host)
    np.testing.assert_array_equal(device.copy_to_host(), host)


def test_copy_when_between_device_arrays_and_streams_then_the_values_are_the_same(driver):
    host = np.arange(32, dtype=np.int32)
    stream = cuda.stream()
    source, target = (
        cuda.to_device(host, stream=stream),
        cuda.device_array_like(host, stream=stream),
    )
    target.copy_to_device(source, stream=stream)
    np.testing.assert_array_equal(target.copy_to_host(stream=stream), host)


def test_memory_when_pinned_then_the_driver_calls_it_host_memory(driver, current):
    with cuda.pinned(np.zeros(100)):
        assert driver.calls()["cuMemHostRegister_v2"] == 1
    array = cuda.pinned_array(8, np.float32)
    array[:] = 3
    assert attribute("MEMORY_TYPE", array.ctypes.data) == 1
    np.testing.assert_array_equal(cuda.to_device(array).copy_to_host(), array)


def test_memory_when_mapped_then_host_and_device_share_it(driver):
    array = cuda.mapped_array(8, np.float32)
    array[:] = 4
    assert (
        int(attribute("DEVICE_POINTER", array.ctypes.data))
        == array.device_ctypes_pointer.value
    )
    assert ctypes.c_float.from_address(array.device_ctypes_pointer.value).value == 4


def test_memory_when_managed_then_the_host_may_touch_it(driver):
    array = cuda.managed_array(8, np.float32)
    array[:] = 5
    pointer = array.device_ctypes_pointer.value
    assert attribute("IS_MANAGED", pointer)
    assert attribute("MEMORY_TYPE", pointer) == 2


def test_pointer_attributes_when_of_device_memory_then_they_say_range_device_and_kind(
    driver, current
):
    pointer = good(cu.cuMemAlloc(1000))
    inside = int(pointer) + 10
    assert attribute("MEMORY_TYPE", inside) == 2
    assert attribute("DEVICE_ORDINAL", inside) == 0
    assert not attribute("IS_MANAGED", inside)
    assert int(attribute("RANGE_START_ADDR", inside)) == int(pointer)
    assert attribute("RANGE_SIZE", inside) == 1000
    assert tuple(map(int, good(cu.cuMemGetAddressRange(inside)))) == (int(pointer), 1000)
    good(cu.cuMemFree(pointer))


def test_pointer_attributes_when_the_pointer_is_unknown_then_one_fails_and_many_give_none(
    driver, current
):
    host = np.zeros(4)
    assert (
        code(
            cu.cuPointerGetAttribute(
                ATTRIBUTE.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, host.ctypes.data
            )
        )
        == 1
    )
    wanted = [
        ATTRIBUTE.CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
        ATTRIBUTE.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
    ]
    memory_type, ordinal = good(cu.cuPointerGetAttributes(2, wanted, host.ctypes.data))
    assert (int(memory_type), ordinal) == (0, -2)


def test_allocation_when_over_the_limit_then_it_is_out_of_memory(driver, current):
    free, total = good(cu.cuMemGetInfo())
    driver.memory_limit(total - free + 4096)
    assert code(cu.cuMemAlloc(8192)) == 2
    good(cu.cuMemFree(good(cu.cuMemAlloc(4096))))


def test_allocation_when_of_no_bytes_then_it_is_an_invalid_value(driver, current):
    assert code(cu.cuMemAlloc(0)) == 1


def test_free_when_no_context_is_current_then_it_works(driver, current):
    pointer = good(cu.cuMemAlloc(512))
    context = good(cu.cuCtxPopCurrent())
    try:
        assert code(cu.cuMemAlloc(512)) == 201
        assert code(cu.cuMemFree(pointer)) == 0
        assert code(cu.cuMemFree(pointer)) == 1
    finally:
        good(cu.cuCtxPushCurrent(context))


def test_copy_when_the_device_side_is_out_of_bounds_then_it_is_an_invalid_value(
    driver, current
):
    pointer, host = good(cu.cuMemAlloc(512)), np.zeros(1024, np.uint8)
    assert code(cu.cuMemcpyHtoD(pointer, host.ctypes.data, 513)) == 1
    assert code(cu.cuMemcpyHtoD(0x7F0000000000, host.ctypes.data, 8)) == 1
    good(cu.cuMemFree(pointer))


def test_sets_when_of_any_width_then_they_fill(driver, current):
    pointer = good(cu.cuMemAlloc(64))
    for set_items, value, dtype in (
        (cu.cuMemsetD8, 7, np.uint8),
        (cu.cuMemsetD16, 700, np.uint16),
        (cu.cuMemsetD32, 70_000, np.uint32),
    ):
        count = 64 // np.dtype(dtype).itemsize
        good(set_items(pointer, value, count))
        np.testing.assert_array_equal(
            np.frombuffer(driver.read(int(pointer), 64), dtype), value
        )
    good(cu.cuMemsetD2D8Async(pointer, 16, 1, 4, 4, 0))
    rows = np.frombuffer(driver.read(int(pointer), 64), np.uint8).reshape(4, 16)
    assert (rows[:, :4] == 1).all()
    untouched = np.frombuffer(np.uint32(70_000).tobytes(), np.uint8)
    assert (rows[:, 4:].reshape(-1, 4) == untouched).all()
    good(cu.cuMemFree(pointer))


def test_strided_copies_when_of_rows_and_planes_then_they_pick_the_block(driver, current):
    host = np.arange(4 * 6 * 8, dtype=np.uint8).reshape(4, 6, 8)
    pointer = good(cu.cuMemAlloc(2 * 3 * 4))
    copy = cu.CUDA_MEMCPY3D()
    copy.srcMemoryType, copy.dstMemoryType = (
        cu.CUmemorytype.CU_MEMORYTYPE_HOST,
        cu.CUmemorytype.CU_MEMORYTYPE_DEVICE,
    )
    copy.srcHost, copy.srcPitch, copy.srcHeight = host.ctypes.data, 8, 6
    copy.srcXInBytes, copy.srcY, copy.srcZ = 2, 1, 1
    copy.dstDevice, copy.dstPitch, copy.dstHeight = pointer, 4, 3
    copy.WidthInBytes, copy.Height, copy.Depth = 4, 3, 2
    good(cu.cuMemcpy3D(copy))
    got = np.frombuffer(driver.read(int(pointer), 24), np.uint8).reshape(2, 3, 4)
    np.testing.assert_array_equal(got, host[1:3, 1:4, 2:6])
    flat = cu.CUDA_MEMCPY2D()
    flat.srcMemoryType, flat.dstMemoryType = (
        cu.CUmemorytype.CU_MEMORYTYPE_DEVICE,
        cu.CUmemorytype.CU_MEMORYTYPE_HOST,
    )
    back = np.zeros((3, 4), np.uint8)
    flat.srcDevice, flat.srcPitch, flat.dstHost, flat.dstPitch = (
        pointer,
        4,
        back.ctypes.data,
        4,
    )
    flat.WidthInBytes, flat.Height = 4, 3
    good(cu.cuMemcpy2D(flat))
    np.testing.assert_array_equal(back, got[0])
    good(cu.cuMemFree(pointer))


def test_pool_when_memory_comes_from_it_then_it_counts_the_use(driver, current):
    stream = good(cu.cuStreamCreate(0))
    pool = good(cu.cuDeviceGetDefaultMemPool(0))
    used = cu.CUmemPool_attribute.CU_MEMPOOL_ATTR_USED_MEM_CURRENT
    before = int(good(cu.cuMemPoolGetAttribute(pool, used)))
    pointer = good(cu.cuMemAllocAsync(4096, stream))
    assert int(good(cu.cuMemPoolGetAttribute(pool, used))) == before + 4096
    good(cu.cuMemFreeAsync(pointer, stream))
    assert int(good(cu.cuMemPoolGetAttribute(pool, used))) == before


def test_ipc_handle_when_opened_in_this_process_then_it_gives_the_base(driver, current):
    pointer = good(cu.cuMemAlloc(512))
    handle = good(cu.cuIpcGetMemHandle(int(pointer) + 8))
    assert int(good(cu.cuIpcOpenMemHandle(handle, 1))) == int(pointer)
    good(cu.cuMemFree(pointer))


def test_many_allocations_when_freed_then_no_region_stays(driver, current):
    before = driver.regions()
    pointers = [int(good(cu.cuMemAlloc(size))) for size in range(1, 400)]
    assert len({pointer // 512 for pointer in pointers}) == len(pointers)
    for pointer in pointers[::2] + pointers[1::2]:
        good(cu.cuMemFree(pointer))
    assert driver.regions() == before


TOUCH = """
    import ctypes
    import numpy as np
    from tests import standin
    standin.load()
    from numba import cuda
    host = np.arange(8, dtype=np.float32)
    array = cuda.to_device(host)
    assert (array.copy_to_host() == host).all()
    pinned = cuda.pinned_array(4, np.int8)
    pinned[:] = 1
    print("copied", flush=True)
    ctypes.c_float.from_address(array.device_ctypes_pointer.value).value
    print("touched", flush=True)
"""


def test_guard_when_on_then_copies_work_and_the_host_crashes_on_device_memory():
    child = run_child(TOUCH, guard=1)
    assert child.stdout.split() == ["copied"], child.stderr
    assert child.returncode == -11


def test_guard_when_off_then_device_memory_is_readable():
    assert run_child(TOUCH).stdout.split() == ["copied", "touched"]


def test_memory_limit_when_set_in_the_environment_then_it_counts_from_the_start():
    child = run_child(
        """
        from tests import standin
        standin.load()
        from numba import cuda
        cuda.current_context()
        from cuda.bindings import driver as cu
        print(int(cu.cuMemGetInfo()[2]), int(cu.cuMemAlloc(2 << 20)[0]))
        """,
        memory=1 << 20,
    )
    assert child.stdout.split() == [str(1 << 20), "2"], child.stderr
