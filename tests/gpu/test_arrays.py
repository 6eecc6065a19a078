"""Arrays on a GPU: real consumers, streams, captures and Numba's users of device arrays.

The copies and assignments themselves are in tests/test_copy.py and
tests/test_memory.py, which run on the GPU too.
"""

import multiprocessing
import pickle

import numpy as np
import pytest

import stridedview as sv
from stridedview import Layout

pytestmark = pytest.mark.gpu
torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

cuda = pytest.importorskip("numba.cuda")

PARTS = {
    "whole": lambda x: x,
    "offset": lambda x: x[1:, 2:],
    "gapped": lambda x: x[:, ::2],
    "transposed": lambda x: x.T,
    "row": lambda x: x[2],
    "empty": lambda x: x[4:],
}


@pytest.fixture
def array():
    return np.arange(24, dtype="f4").reshape(4, 6)


# ---- consumers ---------------------------------------------------------------------------


@pytest.mark.parametrize("part", PARTS, ids=str)
@pytest.mark.parametrize("consume", ["from_dlpack", "as_tensor", "to_torch"])
def test_torch_shares_the_memory(array, part, consume):
    view = PARTS[part](sv.to_device(array))
    tensor = {
        "from_dlpack": torch.from_dlpack,
        "as_tensor": lambda v: torch.as_tensor(v, device="cuda"),
        "to_torch": lambda v: v.to_torch(),
    }[consume](view)
    np.testing.assert_array_equal(tensor.cpu().numpy(), PARTS[part](array))
    if view.size:
        assert tensor.data_ptr() == view.ptr
        tensor.fill_(-1)
        torch.cuda.synchronize()
        assert (view.copy_to_host() == -1).all()


@pytest.mark.parametrize("part", PARTS, ids=str)
def test_cupy_shares_the_memory(array, part):
    cupy = pytest.importorskip("cupy")
    view = PARTS[part](sv.to_device(array))
    for consumed in (cupy.from_dlpack(view), cupy.asarray(view)):
        np.testing.assert_array_equal(consumed.get(), PARTS[part](array))
        if view.size:
            assert consumed.data.ptr == view.ptr


def test_cuda_core_shares_the_memory(array):
    view = sv.to_device(array)[:, ::2]
    assert (view.smv.ptr, view.smv.shape) == (view.ptr, view.shape)
    record = sv.to_device(np.zeros(3, [("a", "i4"), ("b", "f8")]))
    assert record.smv.ptr == record.ptr


def test_tvm_ffi_shares_the_memory(array):
    tvm_ffi = pytest.importorskip("tvm_ffi")
    view = sv.to_device(array)
    assert tvm_ffi.from_dlpack(view).shape == view.shape


def test_jax_on_the_cpu_takes_host_views(array):
    jax = pytest.importorskip("jax")
    assert (np.asarray(jax.numpy.from_dlpack(sv.from_any(array))) == array).all()


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_small_floats_reach_torch(dtype):
    view = sv.empty((3,), dtype)
    tensor = view.to_torch()
    tensor.copy_(torch.tensor([1.0, 2.0, -0.5], device="cuda"))
    torch.cuda.synchronize()
    assert view.dtype_name == dtype
    np.testing.assert_array_equal(
        view.copy_to_host().astype("f4"), np.array([1, 2, -0.5], "f4")
    )


def test_unpatched_numba_takes_views(array):
    @cuda.jit
    def double(x):
        i, j = cuda.grid(2)
        if i < x.shape[0] and j < x.shape[1]:
            x[i, j] *= 2

    view = sv.to_device(array)
    double[(1, 1), (8, 8)](view[:, ::2])
    cuda.synchronize()
    array[:, ::2] *= 2
    np.testing.assert_array_equal(view.copy_to_host(), array)


# ---- allocation --------------------------------------------------------------------------


def test_like_a_tensor_takes_torchs_memory():
    before = torch.cuda.memory_allocated()
    view = sv.empty((1 << 20,), "f4", like=torch.zeros(1, device="cuda"))
    assert torch.cuda.memory_allocated() >= before + (4 << 20)
    assert view.to_torch().data_ptr() == view.ptr


def test_out_of_memory_says_how_much():
    for like in (None, torch.zeros(1, device="cuda")):
        with pytest.raises(sv.OutOfMemoryError, match=str(1 << 45)):
            sv.empty(1 << 45, "u1", like=like)


# ---- streams and captures ----------------------------------------------------------------


def test_side_stream_of_torch_is_waited_for():
    side = torch.cuda.Stream()
    for _ in range(10):
        with torch.cuda.stream(side):
            tensor = torch.zeros(1 << 22, device="cuda")
            torch.cuda._sleep(10_000_000)
            tensor.fill_(3)
            view = sv.from_any(tensor)
            assert (view.copy_to_host() == 3).all()
            target = sv.empty_like(view)
            target.copy_to_device(view)
        assert (target.copy_to_host() == 3).all()


def test_device_copies_in_a_capture():
    source = torch.arange(1000.0, device="cuda")
    target = torch.zeros(1000, device="cuda")
    wide = sv.empty((1000, 2), "f4", like=source)
    sv.from_any(target).copy_to_device(sv.from_any(source))
    wide[:, 0] = sv.from_any(source)  # compiled before, so that the capture is short
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        sv.from_any(target).copy_to_device(sv.from_any(source)[::-1])
    source += 1
    graph.replay()
    torch.cuda.synchronize()
    assert target.tolist() == source.flip(0).tolist()


# ---- other processes ---------------------------------------------------------------------


def _add_one(pickled, queue):
    handle = pickle.loads(pickled)
    with handle as view:
        view[...] = view.copy_to_host() + 1
    queue.put(True)


def test_ipc_handle_of_a_slice_of_torchs_block():
    tensor = torch.zeros(1 << 20, device="cuda")
    part = sv.from_any(tensor)[1000:1010]
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    child = context.Process(
        target=_add_one, args=(pickle.dumps(part.get_ipc_handle()), queue)
    )
    child.start()
    assert queue.get(timeout=120)
    child.join()
    assert tensor.sum().item() == 10
    assert (tensor[1000:1010] == 1).all()


# ---- Numba's users of device arrays ------------------------------------------------------


def test_vectorize_reduce_and_gufunc_take_views():
    from numba import guvectorize, vectorize

    @vectorize(["float64(float64, float64)"], target="cuda")
    def add(a, b):
        return a + b

    @guvectorize(["void(float64[:], float64[:])"], "(n)->(n)", target="cuda")
    def negate(x, out):
        for i in range(x.shape[0]):
            out[i] = -x[i]

    total = cuda.reduce(lambda a, b: a + b)
    view = sv.to_device(np.arange(10.0))
    assert add(view, view).copy_to_host().tolist() == (np.arange(10.0) * 2).tolist()
    assert add(view, 1.0).copy_to_host().tolist() == (np.arange(10.0) + 1).tolist()
    assert total(view) == 45
    assert negate(view.reshape(2, 5)).copy_to_host().tolist() == [
        [-0.0, -1, -2, -3, -4],
        [-5, -6, -7, -8, -9],
    ]


def test_records_go_to_kernels_by_pointer():
    @cuda.jit
    def write(record):
        record["a"] = 7

    view = sv.to_device(np.zeros(3, np.dtype([("a", "i4"), ("b", "f8")], align=True)))
    write[1, 1](view[1])
    cuda.synchronize()
    assert view.copy_to_host()["a"].tolist() == [0, 7, 0]


# ---- sizes -------------------------------------------------------------------------------


def test_more_than_2_to_31_items_are_copied_with_gaps():
    n = (1 << 31) + 100
    source = sv.empty(n, "u1")
    source.fill(1)
    source[n - 1] = 9
    target = sv.zeros((n, 2), "u1")
    target[:, 1] = source
    assert target[n - 1, 1] == 9
    assert target[0, 1] == 1
    assert target[n - 1, 0] == 0
    assert Layout((n, 2), itemsize=1).fits_32_bits is False
