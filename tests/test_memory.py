"""Allocation, and the streams of copies.

On the stand-in driver, and on a GPU with STRIDEDVIEW_TEST_DRIVER=real.
"""

import gc

import numpy as np
import pytest
from numba import cuda

import stridedview as sv
from stridedview import _device_copy, _kernels, memory
from tests import standin

pytestmark = pytest.mark.usefixtures("kernels")

needs_standin = pytest.mark.skipif(
    not standin.wanted(), reason="reads the stand-in's records"
)


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


def test_to_device_converts_and_orders_as_asked():
    array = np.arange(24).reshape(4, 6)
    for source in (array, sv.to_device(array), array.tolist()):
        made = sv.to_device(source, "f4", order="F")
        assert (made.dtype_name, made.strides) == ("float32", (4, 16))
        assert made.copy_to_host().tolist() == array.tolist()
    view = sv.to_device(array)
    assert sv.to_device(view, "i8", order="C") is view
    assert sv.to_device(view.T, order="C").strides == (32, 8)
    assert sv.to_device(view[:, ::2], order="A").strides == (24, 8)
    assert sv.to_device(np.broadcast_to(array[0], (3, 6)), "f4").strides == (0, 4)
    for source in (array, view):
        with pytest.raises(ValueError, match="order must be"):
            sv.to_device(source, order="X")
        with pytest.raises(TypeError):
            sv.to_device(source, "O")


def test_to_device_takes_page_locked_memory_as_it_is_unless_a_device_is_named():
    view = sv.pinned(3)
    view[...] = [1, 2, 3]
    assert sv.to_device(view) is view
    copied = sv.to_device(view, device=0)
    assert copied.device == (2, 0)
    assert copied.copy_to_host().tolist() == [1, 2, 3]
    assert sv.to_device(copied, device=0) is copied
    assert sv.to_device(copied, device="cuda") is copied


def test_to_device_like_an_array_always_copies():
    view = sv.to_device(np.arange(3.0))
    copied = sv.to_device(view, like=view)
    assert copied.ptr != view.ptr
    assert copied.copy_to_host().tolist() == [0, 1, 2]
    assert sv.to_device(view, like=sv.pinned(1)).device[0] == 3


@needs_standin
def test_to_device_of_a_view_on_a_stream_puts_the_stream_behind_its_producer():
    from cuda.core import Device

    Device(0).set_current()
    view = sv.to_device(np.arange(3.0))
    stream = Device(0).create_stream()
    standin.reset_calls()
    assert sv.to_device(view, stream=stream) is view
    assert any(name.startswith("cuStreamWaitEvent") for name in standin.calls())


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
