"""numba-cuda's array functions with ``enable(arrays=True)``, and what it asks of views.

On the stand-in driver, and on a GPU with STRIDEDVIEW_TEST_DRIVER=real.
"""

import gc

import numpy as np
import pytest

import stridedview as sv
from tests import standin
from tests.copy_kernels import act_out

pytestmark = pytest.mark.usefixtures("kernels")


@pytest.fixture
def kernels():
    if standin.wanted():
        standin.reset()
        standin.on_launch(act_out)
        yield
        standin.reset()
    else:
        yield


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
