"""Views in other processes: pickling by value, and IPC handles to the same memory.

On the stand-in driver, and on a GPU with STRIDEDVIEW_TEST_DRIVER=real.
"""

import copy
import pickle

import numpy as np
import pytest

import stridedview as sv
from stridedview._sharing import IpcHandle
from stridedview._view import view_of_pointer
from tests import standin

pytestmark = pytest.mark.usefixtures("kernels")

needs_standin = pytest.mark.skipif(
    not standin.wanted(), reason="reads the stand-in's records"
)


# ---- pickling ----------------------------------------------------------------------------

ALIGNED = [("a", "u1"), ("b", "f8")]


def _numba_cuda():
    return pytest.importorskip("numba.cuda")


def _set(view):
    view[...] = np.arange(6.0).reshape(2, 3)
    return view


PICKLED = {
    "contiguous": lambda: sv.to_device(np.arange(6.0).reshape(2, 3)),
    "gapped": lambda: sv.to_device(np.arange(12.0).reshape(2, 6))[:, ::2],
    "transposed": lambda: sv.to_device(np.arange(6.0).reshape(2, 3)).T,
    "structured": lambda: sv.to_device(np.zeros(3, [("a", "i4"), ("b", "f8")])),
    "aligned": lambda: sv.to_device(np.ones(3, np.dtype(ALIGNED, align=True))),
    "nested": lambda: sv.to_device(np.ones(3, [("x", np.dtype(ALIGNED, align=True))])),
    "titled": lambda: sv.to_device(np.ones(3, [(("title", "a"), "i4"), ("b", "f8")])),
    "unit": lambda: sv.to_device(np.ones(3, np.dtype("M8[25s]"))),
    "text": lambda: sv.to_device(np.array(["abc", "de"])),
    "host": lambda: sv.from_any(np.arange(6.0)),
    "pinned": lambda: _set(sv.pinned((2, 3), order="F")),
    "managed": lambda: _set(sv.from_any(_numba_cuda().managed_array((2, 3)))),
    "mapped": lambda: _set(sv.from_any(_numba_cuda().mapped_array((2, 3)))),
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
    assert again.dtype.isalignedstruct is view.dtype.isalignedstruct
    if view.layout.is_f_contiguous:
        assert again.strides == view.strides


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


def test_ipc_handle_of_the_pool_is_refused_and_says_what_to_do():
    with pytest.raises(
        BufferError, match=r"cuIpcGetMemHandle failed.*stream-ordered pool.*"
    ):
        sv.zeros(3).get_ipc_handle()


@pytest.fixture
def block():
    """A view of memory that no pool has, as a framework allocates it."""
    from cuda.bindings import driver

    sv.empty(1)  # makes a context
    address = int(driver.cuMemAlloc(4000)[1])
    view = view_of_pointer(address, sv.Layout(1000, itemsize=4), "f4")
    view[...] = np.arange(1000)
    yield view
    driver.cuMemFree(address)


@pytest.mark.parametrize("readonly", [False, True])
@needs_standin
def test_ipc_handle_opens_and_closes_and_keeps_the_readonly_flag(block, readonly):
    # The stand-in's handles open in their own process, which a driver's do not.
    part = block[100:200:2].reshape(5, 10)
    part = part.broadcast_to((2, 5, 10)) if readonly else part
    handle = pickle.loads(pickle.dumps(part.get_ipc_handle()))
    with handle as view:
        assert view.readonly is readonly
        assert (view.ptr, view.layout, view.device) == (part.ptr, part.layout, (2, 0))
        np.testing.assert_array_equal(view.copy_to_host(), part.copy_to_host())
        with pytest.raises(ValueError, match=r"already opened; close\(\) it first"):
            handle.open()
    handle.close()  # nothing more to do
    assert handle.open().owner is handle
    handle.close()


@pytest.mark.parametrize("forged", [b"", b"x" * 63, b"x" * 10_000, "x" * 64])
def test_ipc_handle_when_its_bytes_are_forged_then_nothing_is_opened(forged):
    handle = IpcHandle(forged, 0, sv.Layout((3,), itemsize=4), "f4", 0)
    with pytest.raises(ValueError, match="no IPC handle: the driver's has 64 bytes"):
        handle.open()


def test_ipc_handle_in_the_process_that_made_it_is_refused_by_the_driver(block):
    if standin.wanted():
        pytest.skip("the stand-in opens it")
    with pytest.raises(BufferError, match="other than its maker's"):
        block.get_ipc_handle().open()


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


@pytest.mark.parametrize("readonly", [False, True])
@needs_standin
def test_ipc_handle_of_numbas_memory_can_be_sent_and_opened(readonly):
    from numba import cuda

    owner = sv.from_any(cuda.to_device(np.arange(1000.0)))
    view = owner[10:].broadcast_to((2, 990)) if readonly else owner[10:]
    handle = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(view.get_ipc_handle()))))
    with handle as opened:
        assert (opened.ptr, opened.layout, opened.readonly) == (
            view.ptr,
            view.layout,
            readonly,
        )
        np.testing.assert_array_equal(opened.copy_to_host(), view.copy_to_host())
        with pytest.raises(ValueError, match="already opened"):
            handle.open()


@needs_standin
def test_ipc_handle_of_numbas_memory_has_any_dtype():
    from numba import cuda

    view = sv.from_any(cuda.to_device(np.zeros(6, "u2"))).view("bfloat16")
    with pickle.loads(pickle.dumps(view.get_ipc_handle())) as opened:
        assert opened.dtype_name == "bfloat16"
