"""Host views in other libraries on the CPU: JAX, tvm-ffi, cuda.core and NumPy.

torch is in tests/test_view.py; what needs device memory is in tests/gpu/test_arrays.py.
"""

import numpy as np
import pytest

import stridedview as sv

PARTS = {
    "whole": lambda x: x,
    "offset": lambda x: x[1:, 2:],
    "gapped": lambda x: x[:, ::2],
    "transposed": lambda x: x.T,
    "row": lambda x: x[2],
    "one item": lambda x: x[1:2, 3:4],
    "no axis": lambda x: x[1, 3, ...],
    "empty": lambda x: x[4:],
}


@pytest.fixture
def array():
    # JAX shares memory only if it is aligned to 64 bytes.
    whole = np.zeros(24 + 16, "f4")
    start = -whole.ctypes.data % 64 // 4
    part = whole[start : start + 24]
    part[...] = np.arange(24)
    return part.reshape(4, 6)


@pytest.fixture(params=PARTS, ids=str)
def pair(request, array):
    """A view and NumPy's view of the same memory."""
    part = PARTS[request.param]
    return part(sv.from_any(array)), part(array)


def has_gaps(array):
    return not (array.flags.c_contiguous or array.T.flags.c_contiguous)


def test_jax_reads_views_without_gaps_and_refuses_the_others(pair):
    jax = pytest.importorskip("jax")
    view, expected = pair
    if has_gaps(expected):
        # XLA's own limit; `view.copy()` is what such a caller wants.
        with pytest.raises(jax.errors.JaxRuntimeError, match="compact"):
            jax.numpy.from_dlpack(view)
        view = view.copy()
    np.testing.assert_array_equal(jax.numpy.from_dlpack(view), expected)


def test_jax_arrays_come_back_as_they_were(array):
    jax = pytest.importorskip("jax")
    there = jax.numpy.from_dlpack(sv.from_any(array))
    back = sv.from_any(there)
    assert back.readonly
    np.testing.assert_array_equal(np.asarray(back), array)


def test_tvm_ffi_shares_the_memory(pair):
    tvm_ffi = pytest.importorskip("tvm_ffi")
    view, expected = pair
    tensor = tvm_ffi.from_dlpack(view)
    assert tuple(tensor.shape) == expected.shape
    np.testing.assert_array_equal(np.from_dlpack(tensor), expected)
    back = sv.from_any(tensor)
    assert back.ptr == view.ptr or not view.size
    assert back.shape == view.shape


def test_cuda_core_sees_the_same(pair):
    view, expected = pair
    other = view.smv
    assert other.ptr == view.ptr
    assert (other.shape, other.dtype) == (expected.shape, expected.dtype)
    assert other.strides in (None, view.strides_in_items)
    assert sv.from_any(other).ptr == (view.ptr if view.size else 0)


def test_numpy_shares_the_memory(pair):
    view, expected = pair
    for taken in (np.from_dlpack(view), np.asarray(view)):
        np.testing.assert_array_equal(taken, expected)
        assert np.shares_memory(taken, expected) or not expected.size
