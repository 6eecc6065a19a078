"""StridedView over host memory and invented device pointers; no driver is touched."""

import copy
import ctypes
import gc
import inspect
import threading
import types
import weakref

import numpy as np
import pytest

import stridedview
from stridedview import Layout, StridedView, _export, _stream, _view
from tests.standin.helpers import run_child

torch = pytest.importorskip("torch")

CPU, CUDA, PINNED, MANAGED = (1, 0), (2, 0), (3, 0), (13, 0)
INVENTED = 0x7F00_0000_1000
# NumPy 2 moved it.
byte_bounds = getattr(np, "byte_bounds", None) or np.lib.array_utils.byte_bounds


class Owner:
    """Something that can be watched to see when it is let go."""


def host(array, **more):
    layout = Layout(array.shape, array.strides, itemsize=array.itemsize)
    more.setdefault("readonly", not array.flags.writeable)
    return _view.view_of_pointer(
        array.ctypes.data, layout, array.dtype, CPU, owner=array, **more
    )


def device(shape=(4, 6), dtype="float32", strides=None, kind=CUDA, **more):
    itemsize = stridedview._dtype.dtype(dtype).itemsize
    return _view.view_of_pointer(
        INVENTED, Layout(shape, strides, itemsize=itemsize), dtype, kind, **more
    )


def ramp(*shape, dtype="f4"):
    return np.arange(int(np.prod(shape)), dtype=dtype).reshape(shape)


# ---- attributes --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        lambda: ramp(4, 6),
        lambda: ramp(4, 6).T,
        lambda: ramp(4, 6)[::2, ::-1],
        lambda: ramp(),
        lambda: ramp(0, 3),
        lambda: np.broadcast_to(ramp(3), (2, 3)),
    ],
    ids=["C", "F", "gapped", "no dimensions", "empty", "broadcast"],
)
def test_attributes_are_numpys(make):
    array = make()
    view = host(array)
    for name in ("shape", "strides", "ndim", "size", "nbytes", "itemsize", "dtype"):
        assert getattr(view, name) == getattr(array, name), name
    assert view.ptr == array.ctypes.data
    assert view.device == CPU
    assert view.is_c_contiguous() == array.flags.c_contiguous
    assert view.is_f_contiguous() == array.flags.f_contiguous
    assert view.flags == {name: array.flags[name] for name in view.flags}
    assert view.readonly is not array.flags.writeable
    assert view.owner is array
    assert view.dtype_name == "float32"
    assert view.device_ctypes_pointer.value == array.ctypes.data
    if array.size:
        low, high = byte_bounds(array)
        assert view.alloc_size == high - low


def test_view_when_constructed_then_says_how_to_make_one():
    with pytest.raises(TypeError, match="from_any"):
        StridedView()


def test_view_when_attributes_are_set_then_refuses():
    for name in ("ptr", "shape", "layout", "owner", "dtype", "anything"):
        with pytest.raises(AttributeError):
            setattr(device(), name, 1)


def test_memory_size_for_numba_is_settable_and_absent_before():
    view = device()
    assert getattr(view, "_cuda_memsize_", None) is None
    view._cuda_memsize_ = 96
    assert view._cuda_memsize_ == 96


def test_len_and_iteration():
    array = ramp(3, 2)
    assert len(host(array)) == 3
    assert [row.shape for row in host(array)] == [(2,)] * 3
    for refuse in (len, iter):
        with pytest.raises(TypeError, match="no dimensions"):
            refuse(host(ramp()))


def test_repr_says_dtype_shape_device_and_pointer():
    text = repr(device(strides=(4, 16)))
    assert "float32" in text
    assert "(4, 6)" in text
    assert "cuda:0" in text
    assert "[F]" in text
    assert hex(INVENTED) in text
    assert "read-only" in repr(device(readonly=True))


def test_dtype_when_numpy_lacks_it_then_comes_from_ml_dtypes():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    assert device(dtype="bfloat16").dtype == np.dtype(ml_dtypes.bfloat16)
    assert device(dtype="bfloat16").dtype_name == "bfloat16"


def test_stream_is_what_bind_was_given():
    view = device()
    assert view.stream == 0
    bound = view.bind(0x1234)
    assert bound.stream == 0x1234
    assert view.stream == 0
    assert bound[1:].stream == 0x1234
    assert bound.T.reshape(6, 4).stream == 0x1234
    assert bound.bind(0).stream == 0
    assert bound.squeeze().stream == 0x1234
    assert bound.squeeze(stream=0x9999).stream == 0x9999


def _with_protocol(handle):
    return types.SimpleNamespace(__cuda_stream__=lambda: (0, handle))


STREAMS = {
    "protocol": _with_protocol,
    "torch's": lambda handle: types.SimpleNamespace(cuda_stream=handle),
    "CuPy's": lambda handle: types.SimpleNamespace(ptr=handle),
    "Numba's": lambda handle: types.SimpleNamespace(handle=handle),
    "an integer": int,
}


@pytest.mark.parametrize("kind", STREAMS)
@pytest.mark.parametrize("method", ["bind", "ravel", "squeeze"])
def test_stream_when_of_any_library_then_it_is_the_views(kind, method):
    stream = STREAMS[kind](0x1234)
    view = getattr(device(), method)(stream=stream)
    assert view.stream is stream or view.stream == 0x1234
    assert view.__cuda_array_interface__["stream"] == 0x1234


def test_stream_when_it_is_none_then_it_is_refused_by_its_type():
    with pytest.raises(TypeError, match=r"expected a stream, got builtins\.str"):
        device().bind("x")


# ---- other views of the same memory ------------------------------------------------------

OPERATIONS = {
    "slice": lambda x: x[1:3, ::2],
    "reversed": lambda x: x[::-1],
    "row": lambda x: x[1],
    "newaxis": lambda x: x[:, None, ..., 1:],
    "ellipsis": lambda x: x[..., 2],
    "item kept as view": lambda x: x[1, 2, ...],
    "T": lambda x: x.T,
    "transpose": lambda x: x.transpose(1, 0),
    "transpose of a tuple": lambda x: x.transpose((1, 0)),
    "reshape": lambda x: x.reshape(3, -1),
    "reshape of a tuple": lambda x: x.reshape((8, 3)),
    "reshape F": lambda x: x.T.reshape((8, 3), order="F"),
    "ravel": lambda x: x.ravel(),
    "squeeze": lambda x: x[:1].squeeze(),
    "view wider": lambda x: x.view("f8"),
    "view narrower": lambda x: x.view("u1"),
    "view same": lambda x: x[:, ::2].view("i4"),
}


@pytest.mark.parametrize("name", OPERATIONS, ids=str)
def test_operation_sees_what_numpy_sees(name):
    array = ramp(4, 6)
    expected = OPERATIONS[name](array)
    result = OPERATIONS[name](host(array))
    seen = np.asarray(result)
    np.testing.assert_array_equal(seen, expected)
    assert seen.dtype == expected.dtype
    assert seen.shape == expected.shape
    assert np.shares_memory(seen, array)
    assert result.owner is array


@pytest.mark.parametrize("name", OPERATIONS, ids=str)
def test_operation_on_a_device_view_moves_the_pointer_as_numpy_does(name):
    array = ramp(4, 6)
    expected = OPERATIONS[name](array)
    result = OPERATIONS[name](device())
    assert result.ptr - INVENTED == expected.ctypes.data - array.ctypes.data
    assert result.shape == expected.shape
    assert result.strides == expected.strides


def test_expand_broadcast_and_as_strided():
    array = ramp(3, 1)
    view = host(array)
    np.testing.assert_array_equal(np.asarray(view.expand_dims(0)), np.expand_dims(array, 0))
    wide = view.broadcast_to((2, 3, 4))
    np.testing.assert_array_equal(np.asarray(wide), np.broadcast_to(array, (2, 3, 4)))
    assert wide.readonly
    assert not view.broadcast_to((3, 1)).readonly
    np.testing.assert_array_equal(
        np.asarray(view.as_strided((2, 2), (4, 4))), [[0, 1], [1, 2]]
    )
    np.testing.assert_array_equal(np.asarray(view.as_strided((2,), (4,), 4)), [1, 2])


def test_permute_is_torchs():
    array = ramp(2, 3, 4)
    expected = torch.from_numpy(array).permute(2, 0, 1)
    assert host(array).permute(2, 0, 1).shape == tuple(expected.shape)
    assert host(array).permute((2, 0, 1)).shape == tuple(expected.shape)


WAYS = {
    "transpose, reversed": (lambda v: v.transpose(), (4, 3, 2)),
    "transpose of None": (lambda v: v.transpose(None), (4, 3, 2)),
    "transpose": (lambda v: v.transpose(1, 0, 2), (3, 2, 4)),
    "transpose of a tuple": (lambda v: v.transpose((1, 0, 2)), (3, 2, 4)),
    "transpose of NumPy's integers": (
        lambda v: v.transpose(*np.array([1, 0, 2])),
        (3, 2, 4),
    ),
    "permute": (lambda v: v.permute(-1, 0, 1), (4, 2, 3)),
    "permute of a list": (lambda v: v.permute([-1, 0, 1]), (4, 2, 3)),
    "reshape": (lambda v: v.reshape(4, 6), (4, 6)),
    "reshape of a tuple": (lambda v: v.reshape((4, 6)), (4, 6)),
    "reshape of one extent": (lambda v: v.reshape(24), (24,)),
    "reshape of NumPy's integers": (lambda v: v.reshape(np.int64(4), 6), (4, 6)),
    "reshape of the rest": (lambda v: v.reshape(2, -1, 2), (2, 6, 2)),
    "reshape by keyword": (lambda v: v.reshape(4, 6, order="C"), (4, 6)),
    "reshape of a tuple by keyword": (lambda v: v.reshape((4, 6), order="A"), (4, 6)),
    "reshape to seven axes": (
        lambda v: v.reshape(1, 2, 1, 3, 1, 4, 1),
        (1, 2, 1, 3, 1, 4, 1),
    ),
}


@pytest.mark.parametrize("case", WAYS.values(), ids=WAYS)
def test_axes_are_taken_one_by_one_and_as_a_sequence(case):
    operation, shape = case
    view = host(ramp(2, 3, 4))
    assert operation(view).shape == operation(view).shape == shape


def test_axes_of_a_view_without_any():
    view = host(np.array(3.5))
    for made in (view.transpose(), view.permute(), view.reshape(), view.reshape(())):
        assert made.shape == ()
    assert view.reshape(1, 1).shape == (1, 1)


MISUSES = {
    "transpose with another keyword": lambda v: v.transpose(dims=(1, 0)),
    "transpose with axes twice": lambda v: v.transpose(1, axes=(1, 0)),
    "permute with a keyword": lambda v: v.permute(dims=(1, 0)),
    "reshape with another keyword": lambda v: v.reshape(6, shape=6),
    "an order that is no text": lambda v: v.reshape(6, order=0),
    "an extent that is no integer": lambda v: v.reshape(2.0, 3),
    "an axis that is no integer": lambda v: v.transpose("a", "b"),
    "no view": lambda v: type(v).reshape(3, 6),
    "no arguments": lambda v: type(v).transpose(),
}


@pytest.mark.parametrize("misuse", MISUSES.values(), ids=MISUSES)
def test_axes_when_given_wrongly_then_type_error(misuse):
    with pytest.raises(TypeError):
        misuse(host(ramp(2, 3)))


def test_transpose_takes_the_axes_by_keyword():
    view = host(ramp(2, 3))
    assert view.transpose(axes=(1, 0)).shape == (3, 2)
    assert view.transpose(axes=None).shape == (3, 2)
    assert view.transpose(axes=[0, 1]).shape == (2, 3)


def test_axes_when_too_many_then_value_error():
    with pytest.raises(ValueError, match="64"):
        host(ramp(1)).reshape(*[1] * 65)
    with pytest.raises(OverflowError):
        host(ramp(1)).reshape(2**70)
    with pytest.raises(ValueError, match="order"):
        host(ramp(1)).reshape(1, order="Z")


def test_axes_methods_have_a_signature_and_a_text():
    assert str(inspect.signature(StridedView.reshape)) == "(self, /, *shape, order='C')"
    assert str(inspect.signature(StridedView.transpose)) == "(self, /, *axes)"
    assert str(inspect.signature(StridedView.permute)) == "(self, /, *axes)"
    for method in (StridedView.reshape, StridedView.transpose, StridedView.permute):
        assert method.__doc__.strip()[0].isupper()
        assert method.__qualname__ == f"StridedView.{method.__name__}"


def test_reshape_when_a_copy_is_needed_then_refuses():
    with pytest.raises(ValueError, match="without a copy"):
        host(ramp(4, 6)).T.reshape(24)


def test_split_gives_numpys_parts():
    array = ramp(10)
    parts = list(host(array).split(4))
    assert [len(part) for part in parts] == [4, 4, 2]
    np.testing.assert_array_equal(np.concatenate([np.asarray(p) for p in parts]), array)
    assert [len(part) for part in host(array)[::2].split(3)] == [3, 2]
    with pytest.raises(ValueError, match="one dimension"):
        host(ramp(2, 2)).split(1)


def test_view_when_dtype_is_torchs_or_a_name_then_works():
    assert device().view(torch.int32).dtype_name == "int32"
    assert device().view("bfloat16").shape == (4, 12)


def test_fields_of_a_structured_view():
    dtype = np.dtype([("a", "i4"), ("b", "f8", (2, 3)), ("c", [("d", "u1")])])
    array = np.zeros(5, dtype)
    array["a"] = range(5)
    array["b"] = ramp(5, 2, 3)
    view = host(array)
    np.testing.assert_array_equal(np.asarray(view["a"]), array["a"])
    np.testing.assert_array_equal(np.asarray(view["b"]), array["b"])
    assert view["b"].strides == array["b"].strides
    np.testing.assert_array_equal(np.asarray(view["c"]["d"]), array["c"]["d"])
    with pytest.raises(ValueError, match="no field"):
        view["x"]
    with pytest.raises(IndexError, match="no fields"):
        host(ramp(3))["a"]


MASKS = {
    "bool": True,
    "list": [0, 1],
    "numpy mask": np.array([True, False, True, True]),
    "numpy indices": np.array([0, 1]),
    "torch mask": torch.tensor([True, False]),
    "torch indices": torch.tensor([1]),
    "torch bool": torch.tensor(True),
}


@pytest.mark.parametrize("name", MASKS, ids=str)
def test_index_when_a_mask_or_array_then_index_error(name):
    with pytest.raises(IndexError, match="index"):
        device()[MASKS[name]]


# ---- lifetime ----------------------------------------------------------------------------


def test_owner_lives_as_long_as_any_view():
    owner = Owner()
    watch = weakref.ref(owner)
    view = device(owner=owner)
    part = view[1:].T
    del owner, view
    gc.collect()
    assert watch() is not None
    del part
    assert watch() is None


def test_view_takes_weak_references_and_cycles_are_collected():
    owner = Owner()
    owner.view = device(owner=owner)
    watch = weakref.ref(owner.view)
    del owner
    gc.collect()
    assert watch() is None


# ---- DLPack ------------------------------------------------------------------------------

# NumPy before 2.1 has only the first form of DLPack: all that it takes is read-only, and
# it gives nothing that is.
HAS_DLPACK_1 = np.lib.NumpyVersion(np.__version__) >= "2.1.0"

CONSUMERS = {
    "numpy": lambda v: np.from_dlpack(v),
    "torch": lambda v: torch.from_dlpack(v).numpy(),
    "torch capsule": lambda v: torch.utils.dlpack.from_dlpack(v.__dlpack__()).numpy(),
    "to_torch": lambda v: v.to_torch().numpy(),
    "numpy interface": lambda v: np.asarray(v),
}


@pytest.mark.parametrize("name", CONSUMERS, ids=str)
@pytest.mark.parametrize("part", ["whole", "offset", "transposed", "row", "empty"])
def test_consumer_shares_memory(name, part):
    array = ramp(4, 6)
    select = {
        "whole": lambda x: x,
        "offset": lambda x: x[1:, 2::2],
        "row": lambda x: x[2],
        "transposed": lambda x: x.T,
        "empty": lambda x: x[4:],
    }[part]
    seen = CONSUMERS[name](select(host(array)))
    expected = select(array)
    np.testing.assert_array_equal(seen, expected)
    if expected.size:
        assert np.shares_memory(seen, array)
        if name == "numpy" and not HAS_DLPACK_1:
            return
        seen[...] = -1
        assert (expected == -1).all()


TORCH = {
    "to_torch": lambda v: v.to_torch(),
    "from_dlpack": torch.from_dlpack,
    "as_tensor": torch.as_tensor,
    "asarray": torch.asarray,
}
REVERSED = {
    "one axis": lambda x: x[0, ::-1],
    "second axis": lambda x: x[:, ::-1],
    "both axes": lambda x: x[::-1, ::-2],
}


@pytest.mark.parametrize("part", REVERSED)
@pytest.mark.parametrize("name", TORCH)
def test_torch_when_an_axis_is_reversed_then_refused_and_the_process_goes_on(name, part):
    array = ramp(4, 6)
    view = REVERSED[part](host(array))
    axis = 1 if part == "second axis" else 0
    with pytest.raises(BufferError, match=rf"axis {axis} .* is reversed .*view\.copy\(\)"):
        TORCH[name](view)
    expected = REVERSED[part](array)
    np.testing.assert_array_equal(TORCH[name](view.copy()).numpy(), expected)
    np.testing.assert_array_equal(torch.from_dlpack(view, copy=True).numpy(), expected)
    np.testing.assert_array_equal(np.from_dlpack(view), expected)


@pytest.mark.parametrize("name", TORCH)
def test_torch_when_a_reversed_axis_has_one_item_or_none_then_taken(name):
    array = ramp(4, 6)
    for select in (lambda x: x[:1][::-1], lambda x: x[:, :0][::-1]):
        seen = TORCH[name](select(host(array))).numpy()
        np.testing.assert_array_equal(seen, select(array))


def test_dlpack_when_the_consumer_takes_reversed_axes_then_they_are_given():
    view = host(ramp(4, 6))[::-1]
    for asked in ({}, {"max_version": (1, 3)}, {"max_version": (1, 0), "copy": None}):
        assert "dltensor" in repr(view.__dlpack__(**asked))


@pytest.mark.parametrize(
    "dtype",
    [
        "bool",
        "int8",
        "int16",
        "int32",
        "int64",
        "uint8",
        "uint16",
        "uint32",
        "uint64",
        "float16",
        "float32",
        "float64",
        "complex64",
        "complex128",
    ],
)
def test_numpy_reads_each_dtype_through_dlpack(dtype):
    array = np.ones(3, dtype)
    assert np.from_dlpack(host(array)).dtype == array.dtype


@pytest.mark.parametrize(
    "dtype",
    [
        "bool",
        "int32",
        "uint16",
        "float16",
        "bfloat16",
        "complex64",
        "float8_e4m3fn",
        "float8_e5m2",
        "float8_e8m0fnu",
        "float8_e4m3fnuz",
    ],
)
def test_torch_reads_each_dtype(dtype):
    tensor = device((3,), dtype).to_torch()
    assert tensor.dtype is getattr(torch, dtype)
    assert tensor.data_ptr() == INVENTED
    assert str(tensor.device) == "cuda:0"


def test_to_torch_when_readonly_then_needs_allow_write():
    with pytest.raises(BufferError, match="read-only"):
        device(readonly=True).to_torch()
    assert device(readonly=True).to_torch(allow_write=True).shape == (4, 6)


@pytest.mark.parametrize(("kind", "where"), [(PINNED, "cpu"), (MANAGED, "cuda:0")])
def test_to_torch_of_pinned_and_managed_memory(kind, where):
    array = ramp(3)
    view = _view.view_of_pointer(
        array.ctypes.data, Layout((3,), itemsize=4), "f4", kind, owner=array
    )
    assert str(view.to_torch().device) == where


def test_to_torch_when_strides_are_no_items_then_refuses():
    with pytest.raises(BufferError, match="whole items"):
        device((3,), strides=(6,)).to_torch()


def test_export_when_dlpack_has_no_such_dtype_then_refuses():
    record = np.dtype([("a", "i4")])
    for export in (lambda v: v.__dlpack__(), lambda v: v.to_torch()):
        with pytest.raises(BufferError, match="no type"):
            export(device((3,), record))


def test_dlpack_when_readonly_then_only_the_new_form_says_it():
    array = ramp(3)
    array.flags.writeable = False
    view = host(array)
    if HAS_DLPACK_1:
        assert not np.from_dlpack(view).flags.writeable
    with pytest.raises(BufferError, match="read-only"):
        view.__dlpack__()
    assert "dltensor_versioned" in repr(view.__dlpack__(max_version=(1, 0)))
    assert "dltensor_versioned" in repr(view.__dlpack__(max_version=(2, 5)))
    writable = host(ramp(3))
    assert '"dltensor"' in repr(writable.__dlpack__())
    assert '"dltensor"' in repr(writable.__dlpack__(max_version=(0, 8)))


def test_dlpack_device_and_dl_device():
    view = host(ramp(3))
    assert view.__dlpack_device__() == CPU
    assert device().__dlpack_device__() == CUDA
    assert view.__dlpack__(dl_device=CPU)
    with pytest.raises(BufferError):
        view.__dlpack__(dl_device=CUDA)
    with pytest.raises(BufferError, match="copy=False"):
        device().__dlpack__(dl_device=CPU, copy=False)
    pinned = device((3,), kind=PINNED)
    assert pinned.__dlpack__(dl_device=CPU, copy=False)


# Arguments: a wrong kind is a TypeError, a value that cannot be served a BufferError.
DLPACK_ARGUMENTS = {
    "stream 0": ({"stream": 0}, BufferError),
    "stream -2": ({"stream": -2}, BufferError),
    "stream 2**70": ({"stream": 2**70}, BufferError),
    "stream text": ({"stream": "x"}, TypeError),
    "stream True": ({"stream": True}, TypeError),
    "stream 1.0": ({"stream": 1.0}, TypeError),
    "stream object": ({"stream": object()}, TypeError),
    "version ()": ({"max_version": ()}, TypeError),
    "version 1": ({"max_version": 1}, TypeError),
    "version (1,)": ({"max_version": (1,)}, TypeError),
    "version text": ({"max_version": "11"}, TypeError),
    "device 7": ({"dl_device": 7}, TypeError),
    "device text": ({"dl_device": "cpu"}, TypeError),
    "device of three": ({"dl_device": (1, 0, 0)}, TypeError),
    "another device": ({"dl_device": (2, 1)}, BufferError),
}


@pytest.mark.parametrize("name", DLPACK_ARGUMENTS)
def test_dlpack_when_an_argument_is_wrong_then_refuses_by_its_name(name):
    arguments, error = DLPACK_ARGUMENTS[name]
    with pytest.raises(error, match=f"{next(iter(arguments))} must be|device"):
        device().__dlpack__(**arguments)


@pytest.mark.parametrize("stream", [None, -1, 1, 2, 0x1234, np.int64(1)], ids=str)
def test_dlpack_takes_each_stream_of_the_protocol(stream):
    assert device().__dlpack__(stream=stream, max_version=[1, 0], dl_device=[2, 0])


def test_dlpack_stream_is_put_behind_the_producers():
    asked = []
    _export.set_hooks(order=lambda view, stream: asked.append((view.stream, stream)))
    view = device(stream=0x42)
    try:
        for stream in (None, 7, -1):
            view.__dlpack__(stream=stream)
    finally:
        _export.set_hooks(order=_stream.order_view)
    assert asked == [(0x42, 1), (0x42, 7)]


def test_capsule_when_never_consumed_then_frees_what_it_holds():
    for version in (None, (1, 1)):
        owner = Owner()
        watch = weakref.ref(owner)
        capsule = device(owner=owner).__dlpack__(max_version=version)
        del owner
        gc.collect()
        assert watch() is not None
        del capsule
        assert watch() is None


def test_capsule_when_consumed_then_the_consumer_holds_the_memory():
    array = ramp(3)
    watch = weakref.ref(array)
    tensor = torch.from_dlpack(host(array))
    del array
    gc.collect()
    assert watch() is not None
    assert tensor.tolist() == [0, 1, 2]
    del tensor
    gc.collect()
    assert watch() is None


def test_capsule_when_consumed_twice_then_refused():
    capsule = host(ramp(3)).__dlpack__()
    torch.utils.dlpack.from_dlpack(capsule)
    with pytest.raises((RuntimeError, ValueError)):
        torch.utils.dlpack.from_dlpack(capsule)


def test_capsule_when_dropped_in_another_thread_then_frees():
    owner = Owner()
    watch = weakref.ref(owner)
    capsules = [device(owner=owner).__dlpack__(max_version=(1, 0)) for _ in range(100)]
    del owner
    thread = threading.Thread(target=capsules.clear)
    thread.start()
    thread.join()
    assert watch() is None


# ---- the C exchange API, called through ctypes -------------------------------------------


class Device(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int32), ("id", ctypes.c_int32)]


class DataType(ctypes.Structure):
    _fields_ = [
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
    ]


class Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", Device),
        ("ndim", ctypes.c_int32),
        ("dtype", DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class Api(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("previous", ctypes.c_void_p),
        *[
            (name, ctypes.c_void_p)
            for name in (
                "allocate",
                "managed_from",
                "managed_to",
                "dltensor_from",
                "current_stream",
            )
        ],
    ]


def exchange_api():
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    capsule = StridedView.__dlpack_c_exchange_api__
    return Api.from_address(pointer(capsule, b"dlpack_exchange_api"))


def call(address, *args):
    kinds = [ctypes.c_void_p if isinstance(arg, int) else ctypes.py_object for arg in args]
    return ctypes.PYFUNCTYPE(ctypes.c_int, *kinds)(address)(*args)


def test_exchange_api_has_every_function():
    api = exchange_api()
    assert (api.major, api.minor >= 1, api.previous) == (1, True, None)
    for name in (
        "allocate",
        "managed_from",
        "managed_to",
        "dltensor_from",
        "current_stream",
    ):
        assert getattr(api, name), name


@pytest.mark.parametrize(("per_thread", "expected"), [("0", "0"), ("1", "2")])
def test_exchange_api_tells_numbas_default_stream(per_thread, expected):
    source = """
        import ctypes
        from tests.test_view import call, exchange_api
        stream = ctypes.c_size_t(77)
        ask = exchange_api().current_stream
        kinds = ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.c_void_p
        code = ctypes.PYFUNCTYPE(*kinds)(ask)(2, 0, ctypes.addressof(stream))
        print(code, stream.value)
    """
    variables = {"CUDA_PYTHON_CUDA_PER_THREAD_DEFAULT_STREAM": per_thread}
    done = run_child(source, variables=variables)
    assert done.stdout.split() == ["0", expected], done.stderr[-2000:]


def test_exchange_api_borrows_a_tensor():
    tensor = Tensor()
    view = device((4, 6), "bfloat16", (24, 4))
    assert call(exchange_api().dltensor_from, view, ctypes.addressof(tensor)) == 0
    assert tensor.data == INVENTED
    assert tensor.byte_offset == 0
    assert (tensor.device.type, tensor.device.id) == CUDA
    assert (tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes) == (4, 16, 1)
    assert tensor.shape[:2] == [4, 6]
    assert tensor.strides[:2] == [12, 2]


def test_exchange_api_when_given_something_else_then_type_error():
    with pytest.raises(TypeError, match="StridedView"):
        call(exchange_api().dltensor_from, "text", ctypes.addressof(Tensor()))


def test_exchange_api_there_and_back_keeps_the_owner():
    api, owner = exchange_api(), Owner()
    watch = weakref.ref(owner)
    managed, made = ctypes.c_void_p(), ctypes.c_void_p()
    view = device(owner=owner, readonly=True)[1:]
    assert call(api.managed_from, view, ctypes.addressof(managed)) == 0
    assert call(api.managed_to, managed.value, ctypes.addressof(made)) == 0
    again = ctypes.cast(made, ctypes.py_object).value
    ctypes.pythonapi.Py_DecRef(ctypes.py_object(again))
    assert again.ptr == view.ptr
    assert again.layout is view.layout
    assert again.readonly
    assert again.device == CUDA
    assert again.dtype_name == "float32"
    del owner, view
    gc.collect()
    assert watch() is not None
    del again
    assert watch() is None


def test_exchange_api_current_stream_is_zero_for_the_host():
    stream = ctypes.c_void_p(1)
    function = ctypes.PYFUNCTYPE(
        ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.c_void_p
    )
    assert function(exchange_api().current_stream)(1, 0, ctypes.addressof(stream)) == 0
    assert stream.value is None


# ---- array interfaces --------------------------------------------------------------------


def test_cuda_array_interface_of_device_views():
    interface = device().__cuda_array_interface__
    assert interface == {
        "version": 3,
        "shape": (4, 6),
        "typestr": "<f4",
        "data": (INVENTED, False),
        "strides": None,
        "stream": None,
    }
    assert device().T.__cuda_array_interface__["strides"] == (4, 24)
    assert device(readonly=True).__cuda_array_interface__["data"] == (INVENTED, True)
    assert device(stream=0).__cuda_array_interface__["stream"] == 1
    assert device(stream=77).__cuda_array_interface__["stream"] == 77
    assert device((0, 3)).__cuda_array_interface__["data"][0] == 0
    # an odd stride on an axis of extent 1 is contiguous all the same
    assert device((1, 3), strides=(999, 4)).__cuda_array_interface__["strides"] is None


def test_array_interface_when_empty_then_its_pointer_is_not_null():
    view = _view.view_of_pointer(0, Layout((0, 3), itemsize=4), "float32", CPU)
    assert view.__array_interface__["data"][0] != 0
    assert np.asarray(view).shape == (0, 3)


def test_cuda_array_interface_of_structured_views_has_fields():
    record = np.dtype([("a", "i4"), ("b", "f8")], align=True)
    interface = device((2,), record).__cuda_array_interface__
    assert interface["descr"] == record.descr
    assert interface["typestr"] == record.str


def test_interfaces_are_absent_where_they_would_lie():
    assert not hasattr(host(ramp(3)), "__cuda_array_interface__")
    assert not hasattr(device(), "__array_interface__")
    assert not hasattr(device(dtype="bfloat16"), "__cuda_array_interface__")
    assert hasattr(device(kind=PINNED), "__array_interface__")
    assert hasattr(device(kind=PINNED), "__cuda_array_interface__")


def test_numpy_array_of_a_host_view_shares_keeps_and_converts():
    array = ramp(2, 3)
    view = host(array)
    seen = np.asarray(view)
    assert np.shares_memory(seen, array)
    assert np.asarray(view, dtype="f8").dtype == np.dtype("f8")
    assert not np.shares_memory(np.array(view), array)
    array.flags.writeable = False
    assert not np.asarray(host(array)).flags.writeable


def test_numpy_array_of_bfloat16_on_the_host():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    array = np.array([1, 2], ml_dtypes.bfloat16)
    assert view_array(host(array)).tolist() == [1, 2]


def view_array(view):
    return view.__array__()


def test_numpy_array_of_a_device_view_when_copy_is_false_then_refuses():
    with pytest.raises(ValueError, match="copy"):
        device().__array__(copy=False)


def test_strided_memory_view_shows_the_same():
    shown = device((4, 6), strides=(4, 16), readonly=True).smv
    assert shown.ptr == INVENTED
    assert shown.shape == (4, 6)
    assert shown.strides == (1, 4)
    assert shown.readonly
    assert shown.is_device_accessible


def test_numba_type_comes_from_the_installed_typer():
    _view.set_numba_typer(lambda view: ("typed", view.ndim))
    try:
        assert device()._numba_type_ == ("typed", 2)
    finally:
        _view.set_numba_typer(None)
    assert device().__cuda_memory__ is True
    assert device().__cuda_ndarray__ is True
    assert host(ramp(3)).__cuda_memory__ is False


def test_view_when_copied_shallowly_then_same_memory():
    assert copy.copy(device()).ptr == INVENTED


def test_parts_when_below_one_item_then_refused():
    for section in (0, -1):
        with pytest.raises(ValueError, match="at least one item"):
            device((6,)).split(section)


@pytest.mark.parametrize("shape", [b"ab", "ab", {2, 3}, {2: 3}], ids=repr)
def test_shape_when_it_is_no_sequence_of_integers_then_it_is_refused(shape):
    with pytest.raises(TypeError, match="integers in order"):
        Layout(shape, itemsize=4)


def test_itemsize_when_it_is_no_integer_then_it_is_refused():
    with pytest.raises(TypeError, match="float"):
        Layout((3,), itemsize=1.5)
    with pytest.raises(TypeError, match="float"):
        Layout((3,), itemsize=4).view(1.5)
