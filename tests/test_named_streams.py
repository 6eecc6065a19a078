"""Copies, reads and writes on a stream that is named: of every layout, and in its order.

On the stand-in driver the copy kernels are acted out; with
STRIDEDVIEW_TEST_DRIVER=real the same tests run on the GPU.
"""

import numpy as np
import pytest
from cuda.core import Device

import stridedview as sv
from tests import standin

pytestmark = pytest.mark.usefixtures("kernels")


@pytest.fixture
def stream():
    Device(0).set_current()
    return Device(0).create_stream()


# How a view, or a host array, is cut out of one of (8, 10).
CUTS = {
    "whole": np.s_[:, :],
    "gapped rows": np.s_[::2, :],
    "gapped columns": np.s_[:, 1::2],
    "reversed": np.s_[::-1, ::-1],
    "reversed and gapped": np.s_[::-2, ::-3],
    "a column": np.s_[:, 3:4],
}
ARRAY = np.arange(80.0).reshape(8, 10)


def _pinned(array):
    view = sv.pinned(array.shape, array.dtype)
    np.asarray(view)[...] = array
    return np.asarray(view)


@pytest.mark.parametrize("memory", [np.array, _pinned], ids=["pageable", "pinned"])
@pytest.mark.parametrize("out_of", CUTS)
@pytest.mark.parametrize("into", CUTS)
def test_copies_on_a_named_stream_change_their_items_and_nothing_else(
    into, out_of, memory, stream
):
    source = memory(ARRAY)[CUTS[out_of]]
    size = np.minimum(source.shape, ARRAY[CUTS[into]].shape)
    cut = np.s_[: size[0], : size[1]]
    expected, target = np.zeros_like(ARRAY), sv.to_device(np.zeros_like(ARRAY))
    expected[CUTS[into]][cut] = source[cut]
    # Up, across and down again.
    target[CUTS[into]][cut].copy_to_device(source[cut], stream=stream)
    other = sv.zeros((8, 10))
    other[CUTS[into]][cut].copy_to_device(target[CUTS[into]][cut], stream=stream)
    host = memory(np.zeros_like(ARRAY))
    other[CUTS[into]][cut].copy_to_host(host[CUTS[into]][cut], stream=stream)
    stream.sync()
    np.testing.assert_array_equal(target.copy_to_host(), expected)
    np.testing.assert_array_equal(host, expected)


@pytest.mark.parametrize("out_of", CUTS)
def test_copy_and_new_host_array_on_a_named_stream(out_of, stream):
    view = sv.to_device(ARRAY)[CUTS[out_of]]
    copied, host = view.copy(stream=stream), view.copy_to_host(stream=stream)
    stream.sync()
    np.testing.assert_array_equal(copied.copy_to_host(), ARRAY[CUTS[out_of]])
    np.testing.assert_array_equal(host, ARRAY[CUTS[out_of]])


def test_getitem_and_setitem_on_a_stream_read_and_write_there(stream):
    expected, view = ARRAY.copy(), sv.to_device(ARRAY)
    for key, value in [((1, 2), -1.0), (np.s_[::2], ARRAY[::2] * 2), (np.s_[:, ::-3], 7)]:
        view.setitem(key, value, stream=stream)
        expected[key] = value
    assert view.getitem((1, 2), stream=stream) == -1.0
    assert view.getitem(item=(1, 2), stream=stream) == -1.0
    part = view.getitem(np.s_[2:4, ::2], stream=stream)
    assert part.stream is stream
    host = part.copy_to_host(stream=stream)
    stream.sync()
    np.testing.assert_array_equal(host, expected[2:4, ::2])
    np.testing.assert_array_equal(view.copy_to_host(), expected)


@pytest.mark.standin
def test_getitem_and_setitem_on_a_stream_are_behind_the_producer(stream):
    view = sv.to_device(ARRAY)
    for act in (
        lambda: view.setitem((0, 0), 1.0, stream=stream),
        lambda: view.copy_to_host(stream=stream),
        lambda: view[:, ::2].copy_to_host(np.empty((8, 5)), stream=stream),
    ):
        standin.reset_calls()
        act()
        assert any(name.startswith("cuStreamWaitEvent") for name in standin.calls())


def test_shim_is_cuda_cores_view_of_the_same_memory():
    view = sv.to_device(ARRAY)[1:, ::2]
    shim = view._strided_memory_view_shim
    assert type(shim).__name__ == "StridedMemoryView"
    assert (shim.ptr, tuple(shim.shape)) == (view.ptr, view.shape)
    assert tuple(shim.strides) == view.strides_in_items
    assert shim.is_device_accessible
