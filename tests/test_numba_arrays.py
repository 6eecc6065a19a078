"""numba-cuda's array functions with ``enable(arrays=True)``, and what it asks of views.

On the stand-in driver, and on a GPU with STRIDEDVIEW_TEST_DRIVER=real.
"""

import ctypes
import gc
import inspect
import pickle
import re

import numpy as np
import pytest

import stridedview as sv
from tests import standin
from tests.copy_kernels import act_out
from tests.standin.helpers import ROOT

pytestmark = pytest.mark.usefixtures("kernels")


@pytest.fixture
def arrays():
    """numba.cuda with its array functions replaced, and nothing left of it afterwards."""
    cuda = pytest.importorskip("numba.cuda")
    with sv.enabled(arrays=True):
        yield cuda


REPLACED = (
    "device_array",
    "device_array_like",
    "to_device",
    "as_cuda_array",
    "from_cuda_array_interface",
)


def test_disable_puts_the_same_functions_back():
    cuda = pytest.importorskip("numba.cuda")
    from numba.cuda import api

    before = {
        (owner, name): getattr(owner, name) for owner in (cuda, api) for name in REPLACED
    }
    sv.enable(arrays=True)
    try:
        during = {key: getattr(*key) for key in before}
        sv.enable(arrays=True)
        assert {key: getattr(*key) for key in before} == during
    finally:
        sv.disable()
    assert all(during[key] is not before[key] for key in before)
    assert all(getattr(*key) is before[key] for key in before)
    with sv.enabled(arrays=True):
        sv.enable()  # without it they are Numba's again
        assert all(getattr(*key) is before[key] for key in before)
    assert all(getattr(*key) is before[key] for key in before)
    assert type(cuda.device_array(3)) is not sv.StridedView


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


def test_numba_functions_when_out_of_memory_then_numbas_error_says_how_much(arrays):
    from numba.cuda.cudadrv.driver import CudaAPIError

    with pytest.raises(
        sv.OutOfMemoryError, match=r"4611686018427387904 bytes asked for"
    ) as caught:
        arrays.device_array(1 << 62, "u1")
    assert isinstance(caught.value, CudaAPIError)
    assert (caught.value.nbytes, int(caught.value.code)) == (1 << 62, 2)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.nbytes) == (str(caught.value), 1 << 62)


# ---- every attribute of Numba's arrays ---------------------------------------------------

KINDS = {
    "device": lambda cuda: cuda.device_array((4, 6), "f4"),
    "mapped": lambda cuda: cuda.mapped_array((4, 6), "f4"),
    "managed": lambda cuda: cuda.managed_array((4, 6), "f4"),
}
ABSENT = {"as_cuda_arg", "device_setup", "host"}
# Of an object in Python, not of an array.
OBJECTS = {"__dict__", "__module__", "__weakref__"}


def _own(array):
    """Return the names of an array of Numba's that are not NumPy's."""
    numpys = set(dir(np.ndarray)) if isinstance(array, np.ndarray) else set(dir(object))
    names = set(dir(array)) - numpys - OBJECTS
    return {name for name in names if name.startswith("__") or name[0] != "_"}


def _rows():
    """Return the rows of the table in docs/arrays.md."""
    text = (ROOT / "docs" / "arrays.md").read_text(encoding="utf-8")
    part = text.partition("## Every attribute")[2].partition("A structured")[0]
    return [row for row in part.splitlines() if row.startswith("| ")]


def _table():
    """Return {name: row}, the names in the table's first column."""
    return {
        name.strip("`"): row
        for row in _rows()
        for name in re.findall(r"`[^`]+`|len|iteration", row.split("|")[1])
    }


@pytest.mark.parametrize("kind", KINDS)
def test_views_have_every_attribute_of_numbas_arrays_but_those_that_the_table_names(kind):
    cuda = pytest.importorskip("numba.cuda")
    view, table = sv.empty((4, 6), "f4"), _table()
    written = {
        "__len__": "len",
        "__iter__": "iteration",
        "__getitem__": "v[...]",
        "__setitem__": "v[...] = x",
    }
    for name in _own(KINDS[kind](cuda)):
        assert hasattr(view, name) is (name not in ABSENT), name
        assert written.get(name, name) in table, name
    for name in ABSENT:
        assert "not there" in table[name], name
    assert any("NumPy's own" in row for row in _rows())


@pytest.mark.parametrize("kind", KINDS)
def test_methods_take_numbas_arguments_by_numbas_names(kind):
    cuda = pytest.importorskip("numba.cuda")
    array = KINDS[kind](cuda)
    for name in _own(array) - ABSENT:
        method = getattr(type(array), name, None)
        if not inspect.isfunction(method) or name.startswith("__"):
            continue
        ours = inspect.signature(getattr(sv.StridedView, name)).parameters
        if any(parameter.kind is parameter.VAR_POSITIONAL for parameter in ours.values()):
            continue  # transpose, reshape: their keywords are tested in test_view
        theirs = inspect.signature(method).parameters
        assert list(ours)[: len(theirs)] == list(theirs), name


# ---- what numba-cuda does with device arrays ---------------------------------------------


def _array_at(words, ndim):
    """Return the array that a launch was given as these words."""
    signed = [word - (1 << 64) if word >> 63 else word for word in words]
    size, itemsize, pointer = signed[2:5]
    shape, strides = signed[5 : 5 + ndim], signed[5 + ndim : 5 + 2 * ndim]
    assert size == np.prod(shape)
    reach = sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) + itemsize
    raw = (ctypes.c_char * reach).from_address(pointer)
    return np.ndarray(shape, f"f{itemsize}", raw, strides=strides)


def _arrays_of(launch, *ndims):
    found, at = [], 0
    for ndim in ndims:
        found.append(_array_at(launch.words[at:], ndim))
        at += 5 + 2 * ndim
    return found


def _acted(name, act):
    """Return what does a kernel's work when it is launched, and the copies'."""

    def on_launch(launch):
        if name in launch.function:
            act(launch)
        else:
            act_out(launch)

    return on_launch


def _add(launch):
    x, y, out = _arrays_of(launch, 1, 1, 1)
    out[...] = x + y


@pytest.mark.standin
def test_vectorize_takes_and_gives_views(arrays):
    @arrays.vectorize(["float32(float32, float32)"], target="cuda")
    def total(x, y):
        return x + y

    standin.on_launch(_acted("total", _add))
    array = np.arange(12, dtype="f4")
    x, y = arrays.to_device(array), arrays.to_device(array * 10)
    for given, expected in [
        ((x, y), array * 11),
        ((x[::2], y[1::2]), array[::2] + array[1::2] * 10),
        ((x, np.float32(2)), array + 2),
        ((x, array), array * 2),
    ]:
        result = total(*given)
        assert type(result) is sv.StridedView
        assert result.copy_to_host().tolist() == expected.tolist()
    out = arrays.device_array(12, "f4")
    assert total(x, y, out=out).ptr == out.ptr
    assert out.copy_to_host().tolist() == (array * 11).tolist()


@pytest.mark.standin
def test_guvectorize_takes_and_gives_views(arrays):
    @arrays.guvectorize(["void(float32[:], float32[:])"], "(n)->()", target="cuda")
    def first_of(x, out):
        out[0] = x[0]

    def act(launch):
        x, out = _arrays_of(launch, 2, 1)
        out[...] = x[:, 0]

    standin.on_launch(_acted("first_of", act))
    array = np.arange(12, dtype="f4").reshape(3, 4)
    result = first_of(arrays.to_device(array)[:, 1:])
    assert type(result) is sv.StridedView
    assert result.copy_to_host().tolist() == [1, 5, 9]


@pytest.mark.standin
def test_reduce_takes_views(arrays):
    total = arrays.reduce(lambda x, y: x + y)

    def act(launch):
        values, out = _arrays_of(launch, 1, 1)
        out[0] = values.sum()

    standin.on_launch(_acted("gpu_reduce", act))
    view = arrays.to_device(np.arange(12, dtype="f4"))
    assert total(view) == 66
    assert total(view[::3]) == 18
    result = arrays.device_array(1, "f4")
    total(view, res=result)
    assert result.copy_to_host().tolist() == [66]


@pytest.mark.standin
def test_transpose_kernel_takes_views(arrays):
    from numba.cuda.kernels.transpose import transpose

    def act(launch):
        source, target = _arrays_of(launch, 2, 2)
        target[...] = source.T

    standin.on_launch(_acted("transpose", act))
    array = np.arange(6, dtype="f4").reshape(2, 3)
    made = transpose(arrays.to_device(array))
    assert made.copy_to_host().tolist() == array.T.tolist()
    target = arrays.device_array((3, 2), "f4")
    assert transpose(arrays.to_device(array), target) is target
    assert target.copy_to_host().tolist() == array.T.tolist()
