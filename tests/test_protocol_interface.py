"""Objects with an array interface alone: CUDA's, and NumPy's for host memory."""

import array
import types

import numpy as np
import pytest
from cuda.bindings import driver as cu

from stridedview import from_any, from_many
from tests.standin.helpers import run_child

CPU, CUDA = 1, 2


@pytest.fixture
def memory(driver):
    cu.cuInit(0)
    address = driver.allocate(4096)
    yield address
    driver.free(address)


class Interface:
    """An object with a CUDA array interface, of our own class."""

    def __init__(self, pointer, drop=(), **changes):
        self.__cuda_array_interface__ = {
            "shape": (4, 6),
            "typestr": "<f4",
            "data": (pointer, False),
            "version": 3,
            **changes,
        }
        for key in drop:
            del self.__cuda_array_interface__[key]


LAYOUTS = {
    "C": lambda x: x,
    "F": lambda x: x.T,
    "gapped": lambda x: x[::2, 1::3],
    "reversed": lambda x: x[::-1],
    "broadcast": lambda x: np.broadcast_to(x[0], (3, 6)),
    "one item": lambda x: x[1:2, 2:3].reshape(()),
    "empty": lambda x: x[:0],
    "odd stride of extent 1": lambda x: x[:1, ::2],
}


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("kind", [tuple, list])
def test_interface_when_of_any_layout_then_it_is_numpys(memory, name, version, kind):
    whole = np.zeros((4, 6), "f4")
    items = np.asarray(LAYOUTS[name](whole))
    moved = (items.ctypes.data - whole.ctypes.data) if items.size else 0
    view = from_any(
        Interface(
            memory + moved,
            shape=kind(items.shape),
            strides=kind(items.strides),
            version=version,
        )
    )
    assert (view.shape, view.strides, view.ptr) == (
        items.shape,
        items.strides,
        memory + moved,
    )
    assert view.is_c_contiguous() == items.flags.c_contiguous
    assert view.is_f_contiguous() == items.flags.f_contiguous
    assert view.device == (CUDA, 0)


@pytest.mark.parametrize("how", [{}, {"strides": None}], ids=["absent", "None"])
def test_interface_when_it_has_no_strides_then_they_are_c_order(memory, how):
    assert from_any(Interface(memory, **how)).strides == np.empty((4, 6), "f4").strides


@pytest.mark.parametrize("readonly", [True, False])
def test_interface_when_read_only_then_the_view_is(memory, readonly):
    assert from_any(Interface(memory, data=(memory, readonly))).readonly is readonly


@pytest.mark.parametrize("pointer", [0, None])
def test_interface_when_empty_then_no_address_is_needed(driver, pointer):
    view = from_any(Interface(0, shape=(0, 4), data=(pointer, False)))
    assert (view.ptr, view.shape) == (0, (0, 4))


STREAMS = {
    "none": (3, None, 0), "legacy": (3, 1, 1), "per thread": (3, 2, 2),
    "a handle": (3, 0x1234, 0x1234), "version 2 has none": (2, 0, 0),
    "version 2 ignores it": (2, 5, 0), "version 4": (4, 7, 7),
}  # fmt: skip


@pytest.mark.parametrize("case", STREAMS)
def test_interface_when_it_names_a_stream_then_the_view_carries_it(memory, case):
    version, stream, expected = STREAMS[case]
    view = from_any(Interface(memory, version=version, stream=stream))
    assert view.stream == expected


RECORDS = {
    "packed": np.dtype([("a", "u1"), ("b", "<f8")]),
    "padded": np.dtype([("a", "u1"), ("b", "<f8")], align=True),
    "nested": np.dtype([("a", [("x", "<i2"), ("y", "<f4", (2, 3))]), ("b", "?")]),
    "offsets": np.dtype(
        {"names": ["a", "b"], "formats": ["<i4", "<f4"], "offsets": [4, 12], "itemsize": 32}
    ),
}


@pytest.mark.parametrize("name", RECORDS)
def test_interface_when_structured_then_descr_tells_the_fields(memory, name):
    dtype = RECORDS[name]
    view = from_any(Interface(memory, typestr=dtype.str, descr=dtype.descr))
    assert view.dtype == dtype
    assert view.itemsize == dtype.itemsize
    exported = types.SimpleNamespace(__cuda_array_interface__=view.__cuda_array_interface__)
    assert from_any(exported).dtype == dtype


def test_interface_when_descr_says_only_void_then_the_items_are_void(memory):
    plain = np.zeros(1, "V8").__array_interface__
    view = from_any(Interface(memory, typestr=plain["typestr"], descr=plain["descr"]))
    assert view.dtype == np.dtype("V8")


@pytest.mark.parametrize("typestr", ["<M8[ns]", "<m8[s]", "|b1", "<c16", "|i1", "<f2"])
def test_interface_when_of_a_typestr_then_numpy_agrees(memory, typestr):
    assert from_any(Interface(memory, typestr=typestr)).dtype == np.dtype(typestr)


BAD_INTERFACES = {
    "no shape": ({"drop": ["shape"]}, TypeError, "no 'shape'"),
    "no typestr": ({"drop": ["typestr"]}, TypeError, "no 'typestr'"),
    "no data": ({"drop": ["data"]}, TypeError, "no 'data'"),
    "a number as shape": ({"shape": 24}, TypeError, "shape must be a tuple"),
    "a float as extent": ({"shape": (4.0, 6)}, TypeError, "shape has a float"),
    "a huge extent": ({"shape": (1 << 70,)}, OverflowError, "int too"),
    "a negative extent": ({"shape": (-4,)}, BufferError, "extent -4"),
    "too many axes": ({"shape": (1,) * 65}, BufferError, "65 axes"),
    "strides of another length": ({"strides": (4,)}, BufferError, "2 extents but 1"),
    "strides of another kind": ({"strides": "24"}, TypeError, "strides must be a tuple"),
    "a text as stride": ({"strides": ("24", 4)}, TypeError, "strides has a str"),
    "strides that overflow": ({"strides": (1 << 62, 4)}, OverflowError, "axis 0"),
    "a number as typestr": ({"typestr": 4}, TypeError, "typestr is 4"),
    "no text as typestr": ({"typestr": ""}, TypeError, "typestr is ''"),
    "an unknown typestr": ({"typestr": "<q3"}, TypeError, "not understood"),
    "the other byte order": ({"typestr": ">f4"}, TypeError, "other byte order"),
    "objects": ({"typestr": "|O8"}, TypeError, "no counterpart"),
    "objects": ({"typestr": "|O"}, TypeError, "no counterpart"),
    "items of no bytes": ({"typestr": "|V0"}, TypeError, "no bytes"),
    "descr of another size": (
        {"typestr": "|V12", "descr": [("a", "<f4")]}, TypeError, "descr has items of 4"),
    "descr that is none": ({"typestr": "|V4", "descr": [("a",)]}, TypeError, "descr"),
    "a number as data": ({"data": 4096}, TypeError, "data must be"),
    "a text as pointer": ({"data": ("0", False)}, TypeError, "pointer must be an integer"),
    "a float as pointer": ({"data": (4096.0, False)}, TypeError, "pointer must be"),
    "a negative pointer": ({"data": (-4096, False)}, BufferError, "no address"),
    "a huge pointer": ({"data": (1 << 70, False)}, BufferError, "no address"),
    "no memory": ({"data": (0, False)}, BufferError, "0x0"),
    "a text as version": ({"version": "3"}, TypeError, "version must be an integer"),
    "stream 0": ({"stream": 0}, ValueError, "stream 0 is ambiguous"),
    "a negative stream": ({"stream": -1}, ValueError, "no handle"),
    "a huge stream": ({"stream": 1 << 70}, ValueError, "no handle"),
    "a text as stream": ({"stream": "1"}, TypeError, "stream must be an integer"),
    "a mask": ({"mask": np.zeros(4, bool)}, TypeError, "masked arrays"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_INTERFACES)
def test_interface_when_it_says_nonsense_then_the_item_is_named(memory, case):
    how, error, match = BAD_INTERFACES[case]
    with pytest.raises(error, match=match):
        from_any(Interface(memory, **how))
    with pytest.raises(error, match="item 1: "):
        from_many([Interface(memory), Interface(memory, **how)])


@pytest.mark.parametrize("interface", [[1], None, "text", 3], ids=repr)
def test_interface_when_no_dict_then_type_error(driver, interface):
    odd = types.SimpleNamespace(__cuda_array_interface__={})
    with pytest.raises(TypeError):
        from_any(odd)
    odd.__cuda_array_interface__ = interface
    with pytest.raises(TypeError, match="not a dict"):
        from_any(odd)


DEVICES = """
import numpy as np, types
from tests import standin
from cuda.bindings import driver as cu
from stridedview import from_any

standin.load()
places = [standin.allocate(64, device) for device in (0, 1)]

def interface(pointer):
    described = {"shape": (4,), "typestr": "<f4", "data": (pointer, False), "version": 3}
    return types.SimpleNamespace(__cuda_array_interface__=described)

def refused(pointer):
    try:
        return from_any(interface(pointer)).ptr
    except BufferError as error:
        return str(error)

assert "CUDA is not initialized" in refused(places[0])
cu.cuInit(0)
assert [from_any(interface(place)).device for place in places] == [(2, 0), (2, 1)]
assert from_any(interface(places[1] + 16)).device == (2, 1)
assert "host memory, or was freed" in refused(np.zeros(4).ctypes.data)
standin.free(places[0])
assert "host memory, or was freed" in refused(places[0])
"""


def test_interface_when_it_names_a_pointer_then_the_driver_tells_its_device():
    done = run_child(DEVICES, devices=2)
    assert done.returncode == 0, done.stderr


class OnlyOnDevice:
    """As some frameworks have it: the property raises for an array on the host."""

    def __init__(self, interface=None, **others):
        self.interface = interface
        self.__dict__.update(others)

    @property
    def __cuda_array_interface__(self):
        if self.interface is None:
            raise AttributeError("only for arrays on a device")
        return self.interface


def test_interface_when_one_instance_lacks_it_then_its_next_protocol_is_read(memory):
    on_device = OnlyOnDevice(Interface(memory).__cuda_array_interface__)
    items = np.arange(3)
    for _ in range(2):
        assert from_any(on_device).ptr == memory
        on_host = OnlyOnDevice(__array_interface__=items.__array_interface__)
        assert from_any(on_host).ptr == items.ctypes.data
        exporting = OnlyOnDevice(
            __dlpack__=items.__dlpack__, __dlpack_device__=items.__dlpack_device__
        )
        assert from_any(exporting).ptr == items.ctypes.data
        with pytest.raises(TypeError, match="OnlyOnDevice is not an array"):
            from_any(OnlyOnDevice())


def test_interface_when_instances_of_one_class_differ_then_each_is_asked(memory):
    bare = types.SimpleNamespace()
    described = Interface(memory).__cuda_array_interface__
    for _ in range(2):
        with pytest.raises(TypeError, match="is not an array"):
            from_any(bare)
        assert (
            from_any(types.SimpleNamespace(__cuda_array_interface__=described)).size == 24
        )


def test_interface_when_the_property_fails_then_its_own_error_is_told(driver):
    class Broken:
        @property
        def __cuda_array_interface__(self):
            raise RuntimeError("the array was deleted")

    with pytest.raises(RuntimeError, match="was deleted"):
        from_any(Broken())


# ---- NumPy's interface ----


class Host:
    """Host memory of an object that is no NumPy array."""

    def __init__(self, items, drop=(), **changes):
        self.items = items
        self.__array_interface__ = {**items.__array_interface__, **changes}
        for key in drop:
            del self.__array_interface__[key]


@pytest.mark.parametrize("name", LAYOUTS)
def test_host_interface_when_of_any_layout_then_numpy_sees_the_same(name):
    items = np.asarray(LAYOUTS[name](np.arange(24, dtype="f4").reshape(4, 6)))
    view = from_any(Host(items))
    np.testing.assert_array_equal(np.asarray(view), np.asarray(Host(items)))
    assert view.readonly is not items.flags.writeable
    assert view.device == (CPU, 0)


@pytest.mark.parametrize("name", RECORDS)
def test_host_interface_when_structured_then_the_fields_are_numpys(name):
    items = np.zeros(3, RECORDS[name])
    assert from_any(Host(items)).dtype == items.dtype


BAD_HOSTS = {
    "no data": ({"drop": ["data"]}, TypeError, "no 'data'"),
    "a buffer as data": ({"data": b"0123"}, TypeError, "data must be"),
    "no memory": ({"data": (0, False)}, BufferError, "0x0"),
    "objects": ({"typestr": "|O"}, TypeError, "no counterpart"),
}


@pytest.mark.parametrize("case", BAD_HOSTS)
def test_host_interface_when_it_says_nonsense_then_the_item_is_named(case):
    how, error, match = BAD_HOSTS[case]
    with pytest.raises(error, match=match):
        from_any(Host(np.arange(3), **how))


NO_ARRAYS = {
    "None": (None, "not an array: it has none"),
    "a number": (3.5, "not an array: it has none"),
    "a text": ("text", "not an array: it has none"),
    "a dict": ({}, "not an array: it has none"),
    "a class of arrays": (np.ndarray, "not an array"),
    "a list": ([1.0, 2.0], r"numpy\.asarray"),
    "a tuple": ((1.0,), r"numpy\.asarray"),
    "a NumPy scalar": (np.float32(1), r"one number; pass numpy\.asarray"),
    "bytes": (b"bytes", r"numpy\.frombuffer"),
    "a memoryview": (memoryview(b"bytes"), r"numpy\.frombuffer"),
    "an array of Python's": (array.array("f", [1]), r"numpy\.frombuffer"),
}


@pytest.mark.parametrize("case", NO_ARRAYS)
def test_from_any_when_given_no_array_then_type_error_says_what_to_pass(case):
    value, match = NO_ARRAYS[case]
    for _ in range(2):
        with pytest.raises(TypeError, match=match):
            from_any(value)
    with pytest.raises(TypeError, match="item 0: "):
        from_many([value])
