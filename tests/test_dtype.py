"""The dtype table against the packages whose names it knows."""

import ctypes
import pickle
import subprocess
import sys
import threading

import numpy as np
import pytest

import stridedview
from stridedview import _dtype, from_any
from tests.standin.helpers import ROOT

torch = pytest.importorskip("torch")

STATIC = {entry.name: entry for entry in _dtype.entries() if _dtype.is_static(entry.name)}
NUMPYS = {
    name: entry
    for name, entry in STATIC.items()
    if name == "bool"
    or getattr(np.dtype(name) if hasattr(np, name) else None, "isbuiltin", 0)
}
OTHERS = {name: entry for name, entry in STATIC.items() if name not in NUMPYS}
IN_KERNELS = [name for name, entry in STATIC.items() if entry.kernel]
REFUSED = [name for name, entry in STATIC.items() if not entry.kernel]


def run(code):
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# ---- the fixed entries ----


def test_table_when_read_then_no_two_entries_share_a_key():
    for key in ("id", "name", "dlpack", "numba_name", "torch_name"):
        values = [getattr(entry, key) for entry in STATIC.values()]
        assert len(set(values)) == len(values), key
    typestrs = [entry.typestr for entry in STATIC.values() if entry.typestr]
    assert len(set(typestrs)) == len(typestrs) == len(NUMPYS)


def test_table_when_read_then_it_has_what_kernels_take_and_what_they_do_not():
    assert set(REFUSED) == {
        "complex32", "float4_e2m1fn_x2", "float8_e4m3fnuz", "float8_e5m2fnuz",
    }  # fmt: skip
    assert {"bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu"} < set(IN_KERNELS)


@pytest.mark.parametrize("name", NUMPYS)
def test_entry_when_numpy_has_it_then_every_fact_is_numpys(name):
    entry, expected = STATIC[name], np.dtype(name)
    assert (entry.numpy, entry.typestr) == (expected, expected.str)
    assert (entry.itemsize, entry.alignment) == (expected.itemsize, expected.alignment)
    for spelling in (name, expected, expected.type, expected.str, expected.char, entry):
        assert stridedview.dtype(spelling) is entry


@pytest.mark.parametrize("name", OTHERS)
def test_entry_when_numpy_lacks_it_then_it_has_no_typestr(name):
    assert STATIC[name].typestr == ""


@pytest.mark.parametrize("name", OTHERS)
def test_entry_when_ml_dtypes_has_it_then_it_is_known_by_both_names(name):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    entry = STATIC[name]
    if not hasattr(ml_dtypes, name):
        with pytest.raises(TypeError, match=f"NumPy has no dtype for {name}|ml_dtypes"):
            _ = entry.numpy
        return
    expected = np.dtype(getattr(ml_dtypes, name))
    assert entry.numpy == expected
    assert stridedview.dtype(expected) is entry
    assert (entry.itemsize, entry.alignment) == (expected.itemsize, expected.alignment)


@pytest.mark.parametrize("name", STATIC)
def test_entry_when_torch_has_it_then_its_name_and_size_are_torchs(name):
    entry = STATIC[name]
    if not hasattr(torch, entry.torch_name):
        pytest.skip(f"torch {torch.__version__} has no {entry.torch_name}")
    dtype = getattr(torch, entry.torch_name)
    assert stridedview.dtype(dtype) is entry
    assert entry.itemsize == dtype.itemsize


class DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p), ("device", ctypes.c_int32 * 2), ("rank", ctypes.c_int32),
        ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
    ]  # fmt: skip


@pytest.mark.parametrize("name", STATIC)
def test_entry_when_torch_exports_it_then_its_dlpack_type_is_torchs(name):
    if not hasattr(torch, name):
        pytest.skip(f"torch {torch.__version__} has no {name}")
    tensor = torch.zeros(16, dtype=torch.uint8).view(getattr(torch, name))
    capsule = tensor.__dlpack__()
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    exported = DLTensor.from_address(get(capsule, b"dltensor"))
    assert STATIC[name].dlpack == (exported.code, exported.bits)
    assert exported.lanes == (2 if name.endswith("_x2") else 1)


@pytest.mark.parametrize("name", STATIC)
def test_entry_when_exported_and_imported_then_it_is_the_same(name):
    tensor = torch.zeros(16, dtype=torch.uint8)
    view = from_any(tensor).view(name)

    class Capsule:
        __dlpack__ = lambda self, **options: view.__dlpack__(**options)  # noqa: E731
        __dlpack_device__ = lambda self: view.__dlpack_device__()  # noqa: E731

    assert from_any(Capsule()).dtype_name == name
    if STATIC[name].typestr:
        assert from_any(np.asarray(view)).dtype_name == name
    if hasattr(torch, name):
        assert from_any(view.to_torch()).dtype_name == name


@pytest.mark.parametrize("name", NUMPYS)
def test_numba_type_when_numpy_has_the_dtype_then_it_is_numbas_own(name):
    from numba.cuda.np.numpy_support import as_dtype, from_dtype

    from stridedview.numba_cuda._types import dtype_type

    assert dtype_type(name) == from_dtype(np.dtype(name))
    assert as_dtype(dtype_type(name)) == STATIC[name].numpy


@pytest.mark.parametrize("name", [name for name in OTHERS if name in IN_KERNELS])
def test_numba_type_when_numpy_lacks_the_dtype_then_its_width_and_name_agree(name):
    from stridedview.numba_cuda._types import dtype_type

    numba_type = dtype_type(name)
    assert numba_type.bitwidth == 8 * STATIC[name].itemsize
    assert STATIC[name].numba_name in str(numba_type)


@pytest.mark.parametrize("name", REFUSED)
def test_numba_type_when_a_kernel_cannot_take_it_then_advice_is_given(name):
    from stridedview.numba_cuda._types import dtype_type

    with pytest.raises(TypeError, match=f"{name}; pass x.view") as told:
        dtype_type(name)
    assert STATIC[name].advice in str(told.value)


@pytest.mark.parametrize("name", STATIC)
def test_entry_when_pickled_then_it_is_the_same_object(name):
    assert pickle.loads(pickle.dumps(STATIC[name])) is STATIC[name]
    assert repr(STATIC[name]) == f"DType('{name}')"


NONE = {
    "an unknown name": "nonsense", "a torch dtype of its own": torch.quint8,
    "torch's bits": torch.bits8, "objects": object, "texts": str, "a number": 3.5,
    "long double": np.longdouble, "the other byte order": ">i2", "no bytes": "V0",
}  # fmt: skip


@pytest.mark.parametrize("case", NONE)
def test_dtype_when_a_device_has_none_then_type_error(case):
    with pytest.raises(TypeError):
        stridedview.dtype(NONE[case])


def test_entry_when_constructed_then_it_says_where_entries_come_from():
    with pytest.raises(TypeError, match=r"stridedview\.dtype"):
        _dtype.DType()


# ---- registered entries ----

REGISTERED = {
    "packed": np.dtype([("a", "u1"), ("b", "f8")]),
    "aligned": np.dtype([("a", "u1"), ("b", "f8")], align=True),
    "nested": np.dtype([("a", [("x", "i2")]), ("b", "f4", (2, 3))]),
    "overlapping": np.dtype(
        {"names": ["a", "b"], "formats": ["i4", "i2"], "offsets": [0, 0]}
    ),
    "times": np.dtype("M8[ns]"),
    "spans of time": np.dtype("m8[25s]"),
    "texts": np.dtype("U5"),
    "bytes": np.dtype("S5"),
    "void": np.dtype("V12"),
}


@pytest.mark.parametrize("name", REGISTERED)
def test_registered_when_seen_again_then_it_is_the_same_entry(name):
    dtype = REGISTERED[name]
    entry = stridedview.dtype(dtype)
    assert entry.numpy == dtype
    assert entry.numpy.isalignedstruct == dtype.isalignedstruct
    assert (entry.itemsize, entry.typestr) == (dtype.itemsize, dtype.str)
    assert (entry.alignment, entry.dlpack) == (dtype.alignment, None)
    assert entry.kernel is (name != "void")
    assert bool(entry.advice) is not entry.kernel
    assert stridedview.dtype(pickle.loads(pickle.dumps(dtype))) is entry
    assert pickle.loads(pickle.dumps(entry)) is entry
    assert _dtype.entries()[entry.id - 1] is entry
    assert not _dtype.is_static(entry.name)


# Pairs of dtypes that NumPy calls equal, with a field of this name.
ALIKE = {
    "record": lambda name: (
        np.dtype((np.record, [(name, "i4")])),
        np.dtype([(name, "i4")]),
    ),
    "nested record": lambda name: (
        np.dtype([("x", np.dtype((np.record, [(name, "u1")])))]),
        np.dtype([("x", [(name, "u1")])]),
    ),
    "array of records": lambda name: (
        np.dtype([("x", np.dtype((np.record, [(name, "u1")])), 3)]),
        np.dtype([("x", [(name, "u1")], 3)]),
    ),
    "aligned": lambda name: (
        np.dtype([(name, "i4"), ("b", "i4")], align=True),
        np.dtype([(name, "i4"), ("b", "i4")]),
    ),
    "nested aligned": lambda name: (
        np.dtype([("x", np.dtype([(name, "i4")], align=True))]),
        np.dtype([("x", [(name, "i4")])]),
    ),
}


def _kind(dtype):
    if dtype.subdtype:
        return _kind(dtype.base)
    fields = [_kind(dtype.fields[name][0]) for name in dtype.names or ()]
    return dtype.type, dtype.isalignedstruct, dtype.metadata, fields


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("name", ALIKE)
def test_registered_when_numpy_calls_two_equal_then_each_stays_itself(name, first):
    pair = ALIKE[name](f"seen{first}first")
    assert pair[0] == pair[1]
    for dtype in (pair[first], pair[1 - first], pair[first]):
        assert _kind(stridedview.dtype(dtype).numpy) == _kind(dtype)


def test_registered_when_a_dtype_has_metadata_then_the_entry_has_none():
    plain = np.dtype([("m", "f4"), ("n", "M8[s]", 2)], align=True)
    fields = [("m", np.dtype("f4", metadata={"unit": "m"})), ("n", "M8[s]", 2)]
    for made in (
        np.dtype(fields, align=True),
        np.dtype({"names": plain.names, "formats": ["f4", ("M8[s]", 2)]}, align=True),
        np.dtype((np.record, np.dtype(fields, align=True))),
        np.dtype("M8[7s]", metadata={"zone": "UTC"}),
        np.dtype("U9", metadata={"language": []}),
    ):
        entry = stridedview.dtype(made)
        assert entry.numpy == made
        kind = (entry.numpy.type, entry.numpy.isalignedstruct, entry.numpy.alignment)
        assert kind == (made.type, made.isalignedstruct, made.alignment)
        assert not str(_kind(entry.numpy)).count("mappingproxy")
        assert stridedview.dtype(made) is entry


def test_registered_when_many_threads_see_it_first_then_it_is_one_entry():
    dtypes = [np.dtype([(f"field{number}", "f4")]) for number in range(40)]
    found, go = [], threading.Barrier(8)

    def work():
        go.wait()
        found.append([stridedview.dtype(dtype).id for dtype in dtypes])

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert all(ids == found[0] for ids in found)
    assert len(set(found[0])) == len(dtypes)


# ---- in processes of their own ----

WITHOUT_ML_DTYPES = """
import sys
sys.modules["ml_dtypes"] = None
import numpy as np, torch
import stridedview
view = stridedview.from_any(torch.ones(3, dtype=torch.bfloat16))
assert (view.dtype_name, view.itemsize) == ("bfloat16", 2)
assert stridedview.dtype("float8_e5m2").itemsize == 1
assert view.view("int16").dtype == np.int16
for ask in (lambda: view.dtype, lambda: stridedview.dtype("float8_e4m3fn").numpy):
    try:
        ask()
    except TypeError as error:
        assert "ml_dtypes" in str(error) and "install" in str(error), error
    else:
        raise AssertionError("a dtype came from nowhere")
"""


def test_dtype_when_ml_dtypes_is_absent_then_all_but_numpys_dtype_works():
    run(WITHOUT_ML_DTYPES)


TYPESTRS = "from stridedview import _dtype; print([e.typestr for e in _dtype.entries()])"


def test_table_when_ml_dtypes_was_imported_before_then_it_is_the_same():
    pytest.importorskip("ml_dtypes")
    assert run(f"import ml_dtypes; {TYPESTRS}") == run(TYPESTRS)


CAPACITY = """
import numpy as np
import stridedview
from stridedview import _dtype
first = stridedview.dtype([("first", "f4")])
try:
    for number in range(1 << 16):
        stridedview.dtype(f"V{number + 1}")
except OverflowError as error:
    print(error, len(_dtype.entries()))
assert stridedview.dtype([("first", "f4")]) is first
assert stridedview.from_any(np.zeros(3, "f4")).dtype == np.float32
try:
    stridedview.from_any(np.zeros(3, [("one more", "f4")]))
except OverflowError:
    print("refused")
"""


def test_table_when_full_then_it_says_so_and_knows_what_it_knew():
    assert run(CAPACITY).split("\n")[:2] == [
        "the dtype table is full (65536 entries) 65535",
        "refused",
    ]
