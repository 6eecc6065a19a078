"""The producers: torch tensors on an invented device, DLPack objects of all moods."""

import ctypes
import gc
import sys
import threading
import types

import pytest
import torch
from numba import cuda

import stridedview
from tests.standin._torch import DTYPES, _Exchange, _Managed, _Tensor
from tests.standin.helpers import run_child

pytestmark = pytest.mark.standin
NAMED = {str(dtype).removeprefix("torch."): dtype for dtype in DTYPES}


@pytest.fixture
def producers(driver):
    module = driver.producers()
    yield module
    module.set_work_stream(0)


def exchange(producer_type) -> ctypes.Structure:
    """Return the exchange interface of a class, with callable functions."""
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return _Exchange.from_address(
        get(producer_type.__dlpack_c_exchange_api__, b"dlpack_exchange_api")
    )


BORROW = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(_Tensor))
MANAGED = ctypes.PYFUNCTYPE(
    ctypes.c_int, ctypes.py_object, ctypes.POINTER(ctypes.POINTER(_Managed))
)
STREAM = ctypes.PYFUNCTYPE(
    ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p)
)


def borrow(producer):
    tensor = _Tensor()
    status = BORROW(exchange(type(producer)).tensor_from_object)(
        producer, ctypes.byref(tensor)
    )
    return status, tensor


# ---- torch ----


@pytest.mark.parametrize("name", NAMED)
def test_torch_tensor_when_of_any_dtype_then_it_is_a_real_cuda_tensor(driver, name):
    tensor = driver.torch_tensor((3, 4), NAMED[name], strides=(1, 3), fill=1)
    assert type(tensor) is torch.Tensor
    assert (tensor.dtype, tensor.device) == (NAMED[name], torch.device("cuda:0"))
    assert (tensor.shape, tensor.stride()) == ((3, 4), (1, 3))
    # torch warns whenever it makes a complex32, so that one is told by its parts
    expected = (
        torch.tensor([1.0, 0.0] * 12).half()
        if name == "complex32"
        else torch.ones(12).to(NAMED[name])
    )
    assert (
        driver.read(tensor.data_ptr(), 12 * tensor.itemsize)
        == expected.view(torch.uint8).numpy().tobytes()
    )


def test_torch_tensor_when_dropped_then_its_memory_is_freed(driver):
    before = driver.regions()
    tensor = driver.torch_tensor((8,), torch.float32)
    assert sys.getrefcount(tensor) == 2
    assert driver.regions() == before + 1
    del tensor
    gc.collect()
    assert driver.regions() == before


def test_torch_tensor_when_dropped_while_an_error_is_on_its_way_then_it_goes_on(driver):
    def dropping(kind):
        tensor = driver.torch_tensor((8,), torch.complex64).conj()  # noqa: F841 - dropped
        raise kind("the error")

    for kind in (TypeError, KeyError):
        with pytest.raises(kind, match="the error") as raised:
            dropping(kind)
        raised = raised.value.with_traceback(None)
    for _ in range(3):  # the argument is the launch's alone
        with pytest.raises(TypeError, match="conjugation"), stridedview.enabled():
            cuda.jit(lambda a: None)[1, 1](
                driver.torch_tensor((8,), torch.complex64).conj()
            )


def test_torch_tensor_when_alive_at_the_interpreters_end_then_it_ends_well():
    child = run_child("""
        import builtins, sys
        from tests import standin
        standin.load()
        import torch
        from numba import cuda
        import stridedview
        stridedview.enable()

        @cuda.jit
        def take(a):
            pass

        builtins.kept = standin.torch_tensor((4,), torch.complex64).conj()
        torch.kept = [standin.torch_tensor((4,), torch.float32)]
        cycle = [standin.torch_tensor((4,), torch.float32)]
        cycle.append(cycle)
        prepared = stridedview.prepare(take[1, 1], torch.kept[0])
        builtins.prepared = prepared
        try:
            prepared.update(0, builtins.kept)
        except TypeError as error:
            builtins.error = error
            print("refused")
    """)
    assert (child.returncode, child.stdout, child.stderr) == (0, "refused\n", "")


def test_torch_tensor_when_wrapped_by_torch_then_it_stays_one(driver):
    tensor = driver.torch_tensor((4,), torch.float32)
    parameter = torch.nn.Parameter(tensor)
    detached = parameter.detach()
    assert parameter.requires_grad
    assert parameter.data_ptr() == detached.data_ptr() == tensor.data_ptr()


def test_torch_tensor_when_given_pointer_offset_and_values_then_it_views_them(driver):
    memory = driver.allocate(64)
    tensor = driver.torch_tensor(
        (3,), torch.int16, pointer=memory, byte_offset=8, fill=[1, 2, 3]
    )
    assert tensor.data_ptr() == memory + 8
    assert driver.read(memory + 8, 6) == bytes([1, 0, 2, 0, 3, 0])
    del tensor
    gc.collect()
    driver.free(memory)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1, 1)])
def test_torch_tensor_when_of_an_odd_shape_then_it_has_it(driver, shape):
    assert driver.torch_tensor(shape, torch.float64).shape == shape


def test_torch_tensor_when_of_another_device_then_it_says_so(driver):
    memory = driver.allocate(64)
    assert driver.torch_tensor(
        (4,), torch.float32, device=1, pointer=memory
    ).device == torch.device("cuda:1")
    driver.free(memory)


def test_torch_tensor_when_launched_then_numba_takes_its_pointer(driver):
    @cuda.jit
    def take(a):
        pass

    memory = driver.allocate(64)

    interface = {"shape": (4,), "typestr": "<f4", "data": (memory, False), "version": 3}
    take[1, 1](types.SimpleNamespace(__cuda_array_interface__=interface))
    assert driver.launches()[-1].words[4] == memory
    driver.free(memory)


# ---- producers ----


def test_borrow_when_well_behaved_then_the_description_is_whole(producers):
    producer = producers.Producer(
        0x1000, (2, 3), strides=(1, 2), code=0, bits=16, byte_offset=4, device_id=1
    )
    status, tensor = borrow(producer)
    assert status == 0
    assert (tensor.data, tensor.device_type, tensor.device_id, tensor.rank) == (
        0x1000,
        2,
        1,
        2,
    )
    assert (tensor.code, tensor.bits, tensor.lanes, tensor.byte_offset) == (0, 16, 1, 4)
    assert (tensor.shape[:2], tensor.strides[:2]) == ([2, 3], [1, 2])


def test_borrow_when_the_next_call_comes_then_the_extents_are_spoilt(producers):
    producer = producers.Producer(0x1000, (2, 3))
    _, tensor = borrow(producer)
    producers.set_work_stream(7)
    stream = ctypes.c_void_p()
    assert STREAM(exchange(producers.Producer).work_stream)(2, 0, ctypes.byref(stream)) == 0
    assert stream.value == 7
    assert tensor.shape[0] == 0x5A5A5A5A5A5A5A5A


@pytest.mark.parametrize("strides_null", [False, True])
def test_strides_when_not_given_then_they_are_compact_or_null(producers, strides_null):
    _, tensor = borrow(producers.Producer(0x1000, (2, 3, 4), strides_null=strides_null))
    assert bool(tensor.strides) is not strides_null
    if tensor.strides:
        assert tensor.strides[:3] == [12, 4, 1]


def test_producer_when_told_to_fail_then_every_way_raises_that(producers):
    producer = producers.Producer(0x1000, (2,), fail=BufferError("not today"))
    with pytest.raises(BufferError, match="not today"):
        borrow(producer)
    with pytest.raises(BufferError, match="not today"):
        producer.__dlpack__(max_version=(1, 3))


def test_producer_when_told_to_fail_silently_then_there_is_only_the_code(producers):
    status, _ = borrow(producers.Producer(0x1000, (2,), fail=-1))
    assert status == -1


def test_managed_when_deleted_in_another_thread_then_the_export_ends(producers):
    producer = producers.Producer(0x1000, (2,), readonly=True, version=(1, 0))
    managed = ctypes.POINTER(_Managed)()
    assert (
        MANAGED(exchange(producers.Producer).managed_from_object)(
            producer, ctypes.byref(managed)
        )
        == 0
    )
    assert (managed.contents.major, managed.contents.minor, managed.contents.flags) == (
        1,
        0,
        1,
    )
    assert producer.exports == 1
    deleter = managed.contents.deleter
    thread = threading.Thread(target=lambda: deleter(managed))
    thread.start()
    thread.join()
    assert producer.exports == 0


def test_capsule_when_consumed_by_nobody_then_the_export_ends_with_it(producers):
    producer = producers.Producer(0x1000, (2,))
    capsules = [producer.__dlpack__(stream=2), producer.__dlpack__(max_version=(1, 3))]
    assert [repr(capsule).split('"')[1] for capsule in capsules] == [
        "dltensor",
        "dltensor_versioned",
    ]
    assert producer.exports == 2
    del capsules
    assert producer.exports == 0
    assert producer.asked_stream is None


def test_capsule_when_on_the_host_then_torch_consumes_it(producers):
    memory = (ctypes.c_float * 4)(1, 2, 3, 4)
    producer = producers.Producer(ctypes.addressof(memory), (2, 2), device_type=1)
    tensor = torch.from_dlpack(producer)
    assert tensor.tolist() == [[1, 2], [3, 4]]
    assert producer.exports == 1


def test_classes_when_odd_then_their_interfaces_are_what_their_names_say(producers):
    assert not hasattr(producers.Plain, "__dlpack_c_exchange_api__")
    assert producers.OnlyExchange.__dlpack__ is None
    assert not exchange(producers.WithoutBorrow).tensor_from_object
    chained, alone = exchange(producers.NewerChained), exchange(producers.NewerAlone)
    assert (chained.major, alone.major, alone.previous) == (2, 2, None)
    assert _Exchange.from_address(chained.previous).major == 1
    with pytest.raises(SystemError, match="major version 2"):
        borrow(producers.NewerChained(0x1000, (2,)))
    with pytest.raises(RuntimeError, match="no work stream"):
        STREAM(exchange(producers.WithoutStream).work_stream)(
            2, 0, ctypes.byref(ctypes.c_void_p())
        )


def test_counts_when_consumers_call_then_they_grow(producers):
    before = producers.counts()
    borrow(producers.Producer(0x1000, (2,)))
    after = producers.counts()
    assert after["borrowed"] == before["borrowed"] + 1
    assert after["streams"] == before["streams"]
