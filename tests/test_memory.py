"""Allocation, streams of copies, pickling, IPC, and numba-cuda's array functions.

On the stand-in driver, and on a GPU with STRIDEDVIEW_TEST_DRIVER=real.
"""

import copy
import gc
import pickle

import numpy as np
import pytest
from numba import cuda

import stridedview as sv
from stridedview import _device_copy, _kernels, memory
from stridedview._view import view_of_pointer
from tests import standin
from tests.copy_kernels import act_out

pytestmark = pytest.mark.usefixtures("kernels")

needs_standin = pytest.mark.skipif(
    not standin.wanted(), reason="reads the stand-in's records"
)


@pytest.fixture
def kernels():
    if standin.wanted():
        standin.reset()
        standin.on_launch(act_out)
        yield
        standin.reset()
    else:
        yield


# ---- allocation --------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(), 5, (3,), (2, 3, 4), (0, 3), [2, 2]], ids=str)
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", np.int64, "c16"])
def test_empty_has_numpys_shape_and_strides(shape, order, dtype):
    view = sv.empty(shape, dtype, order=order)
    expected = np.empty(shape, f"V{view.itemsize}", order=order)
    assert view.shape == expected.shape
    if view.size:
        assert view.strides == expected.strides
        assert view.ptr % 256 == 0
    assert view.device == (2, 0)
    assert not view.readonly


def test_empty_when_asked_wrongly_then_refuses():
    for arguments, error in [
        (((-1,),), ValueError),
        (((2,), ">f4"), TypeError),
        (((2,), "O"), TypeError),
        (((2**40, 2**40),), OverflowError),
    ]:
        with pytest.raises(error):
            sv.empty(*arguments)
    with pytest.raises(ValueError, match="order"):
        sv.empty(3, order="A")
    with pytest.raises(TypeError, match="device"):
        sv.empty(3, device="cpu")


@pytest.mark.parametrize("device", [0, "cuda", "cuda:0", (2, 0)], ids=str)
def test_empty_takes_each_form_of_a_device(device):
    assert sv.empty(3, device=device).device == (2, 0)


def test_empty_takes_devices_of_others():
    from cuda.core import Device

    torch = pytest.importorskip("torch")
    assert sv.empty(3, device=torch.device("cuda", 0)).device == (2, 0)
    assert sv.empty(3, device=Device(0)).device == (2, 0)


def test_zeros_full_and_empty_like():
    assert sv.zeros((2, 3), "f4").copy_to_host().tolist() == [[0, 0, 0]] * 2
    assert sv.full(3, 7, "i2").copy_to_host().tolist() == [7, 7, 7]
    assert sv.full(3, 1.1, "f8").copy_to_host().tolist() == [1.1] * 3
    array = np.zeros((4, 6), "f4")[:, ::2]
    view = sv.empty_like(array)
    assert (view.shape, view.strides, view.dtype) == ((4, 3), (12, 4), array.dtype)
    assert sv.empty_like(array.T).strides == (4, 12)
    assert sv.empty_like(array, "f8").strides == (24, 8)


@pytest.mark.parametrize("count", [2, 4, 5])
def test_empty_many_when_the_sum_exceeds_64_bits_then_says_so(count):
    with pytest.raises(OverflowError, match="all arrays"):
        sv.empty_many([((1 << 62,), "u1")] * count + [((8,), "u1")])


def test_empty_many_when_a_stream_is_named_then_each_part_has_its_own_address_for_numba():
    parts = sv.empty_many([(4, "f4"), (4, "f4")], stream=cuda.stream())
    addresses = [int(part.gpu_data.device_pointer) for part in parts]
    assert addresses == [part.ptr for part in parts]
    assert addresses[1] - addresses[0] == 256


def test_empty_many_shares_one_allocation():
    views = sv.empty_many([((3, 5), "f4"), ((0,), "f8"), (7, "u1"), ((), "c16")])
    assert len({id(view.owner) for view in views}) == 1
    assert all(view.ptr % 256 == 0 for view in views)
    assert [view.shape for view in views] == [(3, 5), (0,), (7,), ()]
    for number, view in enumerate(views):
        view[...] = number
    assert [set(view.copy_to_host().ravel().tolist()) for view in views] == [
        {0.0},
        set(),
        {2},
        {3},
    ]


def test_to_device_keeps_the_order_and_drops_the_gaps():
    array = np.arange(24).reshape(4, 6)
    assert sv.to_device(array.T).strides == array.T.strides
    assert sv.to_device(array[:, ::2]).strides == (24, 8)
    assert sv.to_device(array[::-1]).copy_to_host().tolist() == array[::-1].tolist()
    for numbers in ([1, 2, 3], (1, 2, 3), range(1, 4)):
        assert sv.to_device(numbers).copy_to_host().tolist() == [1, 2, 3]
    view = sv.to_device(array)
    assert sv.to_device(view) is view


def test_pinned_memory_is_numpys_and_the_devices():
    view = sv.pinned((2, 3), "f4")
    assert view.device[0] == 3
    np.asarray(view)[...] = 5
    target = sv.empty((2, 3), "f4")
    target.copy_to_device(view)
    assert target.copy_to_host().tolist() == [[5.0] * 3] * 2
    target.fill(6)
    target.copy_to_host(view)
    assert np.asarray(view).tolist() == [[6.0] * 3] * 2


@needs_standin
def test_memory_goes_back_when_the_last_view_has_gone():
    view = sv.empty(1000, "f4")[10:]
    gc.collect()
    standin.reset_calls()
    del view
    gc.collect()
    assert any("Free" in name for name in standin.calls())


@needs_standin
def test_out_of_memory_says_how_much_was_asked():
    standin.memory_limit(1 << 20)
    with pytest.raises(
        sv.OutOfMemoryError, match=r"4000000000 bytes.*float32 \(1000000000,\)"
    ):
        sv.empty(1_000_000_000, "float32")
    with pytest.raises(MemoryError):
        sv.pinned(1 << 62, "u1")


# ---- like= -------------------------------------------------------------------------------


def test_like_a_view_is_on_its_device_and_stream():
    from cuda.core import Device

    Device(0).set_current()
    stream = Device(0).create_stream()
    view = sv.empty(3, like=sv.empty(1, stream=stream))
    assert view.device == (2, 0)
    assert view.stream is stream
    with pytest.raises(TypeError):
        sv.empty(3, like="text")


def test_like_a_torch_tensor_takes_torchs_memory():
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        view = sv.empty((4, 6), "bfloat16", order="F", like=torch.zeros(1, device="cuda"))
        assert view.strides == (2, 8)
        assert view.device == (2, 0)
        assert view.to_torch().dtype is torch.bfloat16
    else:
        # A CPU build allocates on the host, which shows the same path.
        view = sv.empty((4, 6), "bfloat16", order="F", like=torch.zeros(1))
        assert view.strides == (2, 8)
        assert view.device == (1, 0)
        tensor = view.to_torch()
        tensor.fill_(2)
        assert view.view("u2").copy_to_host().tolist() == [[0x4000] * 6] * 4


def test_like_when_the_allocator_refuses_then_its_reason():
    torch = pytest.importorskip("torch")
    with pytest.raises(MemoryError, match="bytes asked for"):
        sv.empty(1 << 60, "u1", like=torch.zeros(1))


def test_allocation_for_another_librarys_exchange_api():
    assert memory._allocate((2, 3), "float32", (2, 0)).shape == (2, 3)
    assert memory._allocate((2, 3), "float32", (1, 0)).device == (1, 0)


# ---- streams -----------------------------------------------------------------------------


@needs_standin
def test_copy_on_a_named_stream_does_not_wait_and_is_behind_the_producer():
    from cuda.core import Device

    device = Device(0)
    device.set_current()
    stream = device.create_stream()
    view = sv.to_device(np.arange(1000, dtype="f4"))
    target = sv.empty(1000, "f4")
    standin.reset_calls()
    target.copy_to_device(view, stream=stream)
    names = standin.calls()
    assert "cuStreamSynchronize" not in names
    assert any(name.startswith("cuStreamWaitEvent") for name in names)
    host = np.empty(1000, "f4")
    target.copy_to_host(host, stream=stream)
    assert "cuStreamSynchronize" not in standin.calls()
    stream.sync()
    assert host.tolist() == list(range(1000))


@needs_standin
def test_torch_tensors_on_the_device_are_read_and_written():
    torch = pytest.importorskip("torch")
    tensor = standin.torch_tensor((4, 6), torch.float32, fill=0)
    view = sv.from_any(tensor)
    view[:, ::2] = np.arange(12).reshape(4, 3)
    expected = np.zeros((4, 6), "f4")
    expected[:, ::2] = np.arange(12).reshape(4, 3)
    np.testing.assert_array_equal(view.copy_to_host(), expected)
    target = sv.zeros((6, 4), "f4")
    target[...] = sv.from_any(tensor).T
    np.testing.assert_array_equal(target.copy_to_host(), expected.T)
    assert view.to_torch().data_ptr() == tensor.data_ptr()


@needs_standin
def test_copies_without_a_stream_are_done_on_return():
    view = sv.empty(1000, "f4")
    standin.reset_calls()
    view.copy_to_device(np.zeros(1000, "f4"))
    assert "cuStreamSynchronize" in standin.calls()
    standin.reset_calls()
    view.copy_to_host()
    assert "cuStreamSynchronize" in standin.calls()
    standin.reset_calls()
    sv.empty(1000, "f4").copy_to_device(view)
    assert "cuStreamSynchronize" not in standin.calls()


@needs_standin
def test_host_copy_in_a_capture_is_refused_before_anything_is_called():
    from cuda.core import Device

    device = Device(0)
    device.set_current()
    stream = device.create_stream()
    view = sv.empty((4, 6), "f4", stream=stream)
    builder = stream.create_graph_builder()
    builder.begin_building()
    try:
        with pytest.raises(RuntimeError, match="captured"):
            view.copy_to_device(np.zeros((4, 6), "f4"), stream=builder.stream)
    finally:
        builder.end_building()


def test_strided_copies_without_a_compiler_are_right(monkeypatch):
    monkeypatch.setattr(_device_copy, "kernel_handle", _no_compiler)
    standin_off = standin.on_launch if standin.wanted() else lambda callback: None
    standin_off(None)
    try:
        array = np.arange(60, dtype="i4").reshape(3, 4, 5)
        view = sv.to_device(array)
        target = sv.to_device(np.zeros((5, 8, 3), "i4"))
        target[:, ::2] = view.transpose(2, 1, 0)
        expected = np.zeros((5, 8, 3), "i4")
        expected[:, ::2] = array.transpose(2, 1, 0)
        np.testing.assert_array_equal(target.copy_to_host(), expected)
        assert "no NVRTC" in _device_copy.compiler_missing()[0]
    finally:
        _device_copy.forget_missing_compiler()


def _no_compiler(*_):
    raise _kernels.CompilerMissingError("no NVRTC")


# ---- pickling ----------------------------------------------------------------------------

PICKLED = {
    "contiguous": lambda: sv.to_device(np.arange(6.0).reshape(2, 3)),
    "gapped": lambda: sv.to_device(np.arange(12.0).reshape(2, 6))[:, ::2],
    "transposed": lambda: sv.to_device(np.arange(6.0).reshape(2, 3)).T,
    "structured": lambda: sv.to_device(np.zeros(3, [("a", "i4"), ("b", "f8")])),
    "host": lambda: sv.from_any(np.arange(6.0)),
    "no dimensions": lambda: sv.to_device(np.array(3.0)),
    "empty": lambda: sv.empty((0, 3)),
    "datetime": lambda: sv.to_device(np.array(["2020-01-01"], "M8[D]")),
}


@pytest.mark.parametrize("name", PICKLED, ids=str)
@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_pickle_goes_by_value(name, protocol):
    view = PICKLED[name]()
    again = pickle.loads(pickle.dumps(view, protocol))
    assert (again.shape, again.dtype, again.device) == (view.shape, view.dtype, view.device)
    np.testing.assert_array_equal(again.copy_to_host(), view.copy_to_host())
    assert again.ptr != view.ptr or not view.size
    assert again.readonly is view.readonly


def test_pickle_of_small_floats_and_readonly_views():
    view = sv.zeros(3, "bfloat16").broadcast_to((2, 3))
    again = pickle.loads(pickle.dumps(view))
    assert (again.dtype_name, again.shape, again.readonly) == ("bfloat16", (2, 3), True)


def test_pickle_protocol_5_passes_the_items_out_of_band():
    view = sv.to_device(np.arange(100_000.0))
    buffers = []
    data = pickle.dumps(view, 5, buffer_callback=buffers.append)
    assert len(data) < 2000
    assert sum(memoryview(buffer).nbytes for buffer in buffers) == view.nbytes
    again = pickle.loads(data, buffers=buffers)
    np.testing.assert_array_equal(again.copy_to_host(), view.copy_to_host())


def test_deepcopy_copies_the_items():
    view = sv.to_device(np.arange(3.0))
    again = copy.deepcopy(view)
    view.fill(0)
    assert again.copy_to_host().tolist() == [0, 1, 2]


# ---- IPC ---------------------------------------------------------------------------------


def test_ipc_handle_when_not_device_memory_then_refuses():
    with pytest.raises(BufferError, match="device memory"):
        sv.from_any(np.zeros(3)).get_ipc_handle()


@needs_standin
def test_ipc_handle_keeps_the_offset_within_the_block():
    from cuda.bindings import driver

    memory_of_torch = int(driver.cuMemAlloc(4000)[1])
    block = view_of_pointer(memory_of_torch, sv.Layout(1000, itemsize=4), "f4")
    part = block[100:200:2].reshape(5, 10)
    handle = pickle.loads(pickle.dumps(part.get_ipc_handle()))
    assert handle._offset == 400
    assert handle._layout is part.layout


@needs_standin
def test_ipc_handle_of_numbas_memory_is_made_by_numbas_memory_manager():
    from numba import cuda

    view = sv.from_any(cuda.device_array(1000, "f4"))[10:]
    handle = view.get_ipc_handle()
    assert handle._ipc_handle.size == view.alloc_size
    assert handle._layout is view.layout


# ---- numba-cuda's array functions --------------------------------------------------------


@pytest.fixture
def arrays():
    """Replace Numba's array functions for a test."""
    pytest.importorskip("numba.cuda")
    from stridedview.numba_cuda import _arrays

    rows = _arrays.table()
    for owner, name, replacement, probe in rows:
        assert probe(getattr(owner, name)) == ""
        assert replacement is not getattr(owner, name)
    before = [getattr(owner, name) for owner, name, _, _ in rows]
    for owner, name, replacement, _ in rows:
        setattr(owner, name, replacement)
    yield __import__("numba.cuda").cuda
    for (owner, name, _, _), original in zip(rows, before, strict=True):
        setattr(owner, name, original)


def test_numba_functions_give_views(arrays):
    cuda = arrays
    array = np.arange(24, dtype="f4").reshape(4, 6)
    view = cuda.to_device(array)
    assert type(view) is sv.StridedView
    np.testing.assert_array_equal(view.copy_to_host(), array)
    assert cuda.to_device(array.T).is_f_contiguous()
    made = cuda.device_array((3, 4), np.int32, order="F")
    assert made.strides == (4, 12)
    assert type(made.gpu_data).__name__ == "AutoFreePointer" or made.gpu_data is not None
    assert cuda.device_array_like(array[:, ::2]).strides == (12, 4)
    assert cuda.device_array_like(array.T).strides == (4, 24)
    assert cuda.device_array(0).shape == (0,)
    with pytest.raises(TypeError):
        cuda.as_cuda_array(array)
    with pytest.raises(TypeError):
        cuda.as_cuda_array(3)
    shared = cuda.as_cuda_array(view)
    assert shared.ptr == view.ptr
    described = cuda.from_cuda_array_interface(view.__cuda_array_interface__, owner=view)
    assert described.ptr == view.ptr
    with pytest.raises(NotImplementedError, match="Mask"):
        cuda.from_cuda_array_interface({**view.__cuda_array_interface__, "mask": 1})
    target = cuda.device_array_like(array)
    assert cuda.to_device(array, to=target) is target
    np.testing.assert_array_equal(target.copy_to_host(), array)


def test_numba_functions_keep_broadcast_arrays_and_aligned_structs(arrays):
    wide = arrays.to_device(np.broadcast_to(np.arange(3.0), (5, 3)))
    assert wide.strides == (0, 8)
    assert not wide.readonly
    assert wide.layout.letter == "A"
    np.testing.assert_array_equal(wide.copy_to_host(), [[0, 1, 2]] * 5)
    fields = [("x", "f2"), ("y", "f2")]
    for align in (False, True):
        dtype = np.dtype(fields, align=align)
        assert arrays.to_device(np.zeros(1, dtype)).dtype.isalignedstruct is align
    words = np.array(["abc", "de"])
    assert arrays.to_device(words).copy_to_host().tolist() == ["abc", "de"]


def test_numba_functions_bind_the_stream(arrays):
    cuda = arrays
    stream = cuda.stream()
    assert cuda.device_array(3, stream=stream).stream is stream
    view = cuda.to_device(np.arange(3.0), stream=stream)
    stream.synchronize()
    assert view.stream is stream
    assert view.copy_to_host(stream=stream).shape == (3,)


def test_gpu_data_is_shared_by_views_of_the_same_bytes(arrays):
    view = arrays.device_array(3, "M8[D]")
    assert view.view("i8").gpu_data is view.gpu_data
    assert view[1:].gpu_data is not view.gpu_data
    assert view[:-1].gpu_data.size == view[:-1].nbytes


def test_numba_records_are_views(arrays):
    record = np.zeros(1, [("a", "i4"), ("b", "f8")])[0]
    record["a"], record["b"] = 3, 1.5
    view = arrays.to_device(record)
    assert view["a"] == 3
    assert view["b"] == 1.5


def test_gpu_data_is_numbas_pointer_and_keeps_the_memory(arrays):
    view = sv.to_device(np.arange(10.0))
    pointer = view[2:].gpu_data
    assert int(pointer.device_pointer) == view.ptr + 16
    assert pointer.size == 64
    del view
    gc.collect()
    assert pointer.owner is not None
