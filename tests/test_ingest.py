"""from_any and from_many over every producer that has a route of its own."""

import gc
import os
import subprocess
import sys
import warnings
import weakref

import numpy as np
import pytest
from numba import cuda

import stridedview
from stridedview import _ingest, from_any, from_many
from tests.standin.helpers import ROOT

CPU, CUDA, PINNED, MANAGED = 1, 2, 3, 13


def route_of(array):
    """Return what `routes` tells of an array's type."""
    name = f"{type(array).__module__}.{type(array).__qualname__}"
    return {row["producer"]: row["route"] for row in _ingest.routes()}[name]


def test_types_that_die_are_not_mistaken_for_those_that_come_to_their_address():
    # More than the table keeps, so that it is emptied, with another route every time.
    interface = np.arange(3.0).__array_interface__
    for number in range(10_000):
        if number % 2:
            with pytest.raises(TypeError, match="array"):
                from_any(type("Nothing", (), {})())
        else:
            producer = type("Host", (), {"__array_interface__": interface})()
            assert from_any(producer).shape == (3,)
            assert from_any(producer).owner is producer
        if number % 1000 == 999:
            gc.collect()


# ---- NumPy ----

RECORD = np.dtype([("a", "u1"), ("b", "f8"), ("c", "i2", (2, 3))])
NUMPY = np.lib.NumpyVersion(np.__version__)
MOST_AXES = 64 if NUMPY >= "2.0.0" else 32


def readonly(items):
    items.flags.writeable = False
    return items


HOSTS = {
    "C": lambda: np.arange(24.0).reshape(4, 6),
    "F": lambda: np.asfortranarray(np.arange(24.0).reshape(4, 6)),
    "gapped": lambda: np.arange(24).reshape(4, 6)[1::2, ::3],
    "reversed": lambda: np.arange(24)[::-1],
    "broadcast": lambda: np.broadcast_to(np.arange(3), (4, 3)),
    "no axes": lambda: np.array(3.5),
    "empty": lambda: np.empty((0, 3)),
    "empty and huge": lambda: np.empty((0, 1 << 40, 2)),
    "as many axes as NumPy has": lambda: np.zeros((1,) * (MOST_AXES - 2) + (2, 3)),
    "read-only": lambda: readonly(np.arange(3)),
    "structured": lambda: np.zeros(3, RECORD),
    "structured, aligned": lambda: np.zeros(3, np.dtype(RECORD.descr, align=True)),
    "a field of packed records": lambda: np.zeros(3, RECORD)["b"],
    "one record": lambda: np.zeros(3, RECORD)[1],
    "datetime64": lambda: np.zeros(3, "M8[ns]"),
    "timedelta64": lambda: np.zeros(3, "m8[D]"),
    "texts": lambda: np.array(["a", "bcd"]),
    "bytes": lambda: np.array([b"a", b"bcd"]),
    "complex": lambda: np.ones(3, "c8"),
    "bool": lambda: np.ones(3, "?"),
    "a matrix": lambda: np.ones((2, 3)).view(type("Sub", (np.ndarray,), {})),
    "records": lambda: np.rec.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f4")]),
    "misaligned": lambda: np.frombuffer(bytearray(9), "u1")[1:].view("f4"),
}


@pytest.mark.parametrize("name", HOSTS)
def test_host_array_when_imported_then_numpy_sees_the_same(name):
    items = HOSTS[name]()
    view = from_any(items)
    plain = np.asarray(items)
    assert (view.shape, view.size, view.dtype) == (plain.shape, plain.size, plain.dtype)
    if plain.size:
        assert view.strides == plain.strides
        assert view.ptr == items.__array_interface__["data"][0]
    assert view.device == (CPU, 0)
    assert view.readonly is not items.flags.writeable
    assert route_of(items) == "host"


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_host_array_when_of_ml_dtypes_then_its_dtype_is_known(name):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    items = np.ones(3, getattr(ml_dtypes, name))
    assert from_any(items).dtype_name == name
    assert np.asarray(from_any(items)).tolist() == items.tolist()


REFUSED_HOSTS = {
    "objects": (lambda: np.array([None]), "no counterpart"),
    "texts of the other byte order": (lambda: np.zeros(2, ">U3"), "other byte order"),
    "objects in a record": (lambda: np.zeros(2, [("a", object)]), "no counterpart"),
    "long double": (lambda: np.ones(2, np.longdouble), "no counterpart"),
    "the other byte order": (lambda: np.ones(2, ">f4"), "other byte order.*newbyteorder"),
    "times of the other byte order": (lambda: np.zeros(2, ">M8[s]"), "other byte order"),
    "records of the other byte order": (
        lambda: np.zeros(2, [("a", "<i4"), ("b", ">i4")]),
        "other byte order",
    ),
    "records of objects": (lambda: np.zeros(2, [("a", "O")]), "no counterpart"),
    "items of no bytes": (lambda: np.zeros(2, "V0"), "no bytes"),
    "a mask": (lambda: np.ma.zeros(3), r"masked.*filled"),
    "a mask, subclassed": (
        lambda: np.ma.zeros(3).view(type("Sub", (np.ma.MaskedArray,), {})),
        r"masked.*filled",
    ),
}


@pytest.mark.parametrize("case", REFUSED_HOSTS)
def test_host_array_when_no_device_knows_its_items_then_type_error(case):
    make, match = REFUSED_HOSTS[case]
    items = make()
    for _ in range(2):
        with pytest.raises(TypeError, match=match):
            from_any(items)


def test_host_array_when_a_view_lives_then_it_is_kept_and_no_longer():
    items = np.arange(4)
    watch = weakref.ref(items)
    view = from_any(items)[1:]
    del items
    assert watch() is not None
    del view
    assert watch() is None


def test_aligned_records_when_others_were_seen_first_then_each_keeps_its_own():
    packed = np.dtype({"names": ["x", "y"], "formats": ["u1", "f8"], "offsets": [0, 8]})
    aligned = np.dtype([("x", "u1"), ("y", "f8")], align=True)
    assert packed == aligned
    found = [from_any(np.zeros(2, dtype)).dtype for dtype in (packed, aligned, packed)]
    assert [dtype.isalignedstruct for dtype in found] == [False, True, False]


# ---- our own, cuda.core's and Numba's ----


def test_view_when_imported_then_it_is_returned_as_it_is():
    view = from_any(np.arange(3))
    assert from_any(view) is view
    assert from_many([view, view]) == [view, view]


@pytest.fixture
def numba_array(driver):
    return cuda.to_device(np.arange(24, dtype="f4").reshape(4, 6))


def address(array):
    return array.device_ctypes_pointer.value


@pytest.mark.parametrize(
    "part", ["whole", "gapped", "row", "transposed", "empty", "no axes"]
)
def test_device_array_when_imported_then_its_attributes_are_read(numba_array, part):
    select = {
        "whole": lambda x: x, "gapped": lambda x: x[1::2, ::3], "row": lambda x: x[2],
        "transposed": lambda x: x.T, "empty": lambda x: x[:0],
        "no axes": lambda x: cuda.to_device(np.array(3.5)),
    }[part]  # fmt: skip
    array = select(numba_array)
    view = from_any(array)
    assert (view.shape, view.dtype) == (array.shape, array.dtype)
    if array.size:
        assert (view.ptr, view.strides) == (address(array), array.strides)
    assert (view.device, view.owner) == ((CUDA, 0), array)
    assert route_of(array) == "Numba device array"


def test_device_array_when_bound_to_a_stream_then_the_view_is_too(numba_array):
    stream = cuda.stream()
    bound = cuda.device_array(4, stream=stream)
    assert from_any(bound).stream == int(stream.handle)
    assert from_any(numba_array).stream == 0


def test_device_records_when_imported_then_the_fields_are_kept(driver):
    items = np.zeros(3, RECORD)
    array = cuda.to_device(items)
    assert from_any(array).dtype == items.dtype
    one = array[1]
    view = from_any(one)
    assert (view.ptr, view.shape, view.dtype) == (address(one), (), items.dtype)


@pytest.mark.parametrize(
    ("make", "kind"),
    [(cuda.mapped_array, PINNED), (cuda.managed_array, MANAGED)],
    ids=["mapped", "managed"],
)
def test_array_when_host_and_device_share_it_then_the_view_says_so(driver, make, kind):
    array = make(6, dtype="f4")
    array[:] = np.arange(6)
    view = from_any(array)
    assert (view.ptr, view.shape, view.device) == (address(array), (6,), (kind, 0))
    assert np.asarray(view).tolist() == list(range(6))
    part = from_any(array[::-1][2:])
    assert (part.device, part.ptr - view.ptr, part.strides) == ((kind, 0), 12, (-4,))
    assert np.asarray(part).tolist() == [3, 2, 1, 0]
    result = array + 1
    assert type(result) is type(array)
    assert from_any(result).device == (CPU, 0)


def test_pinned_array_when_imported_then_it_is_host_memory(driver):
    array = cuda.pinned_array(4)
    assert from_any(array).device == (CPU, 0)


def test_pinned_array_when_between_items_then_no_kernel_is_given_its_address(driver):
    odd = cuda.pinned_array(17, dtype="u1")[1:].view("f4")

    @cuda.jit
    def take(items):
        pass

    with stridedview.enabled(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the copy that a launch makes
        take[1, 1](odd)
    assert driver.launches()[-1].words[4] % odd.itemsize == 0


def test_memory_view_when_imported_then_it_is_the_same(numba_array):
    from cuda.core.utils import StridedMemoryView

    for array in (numba_array, numba_array.T, numba_array[1::2, ::3]):
        shown = StridedMemoryView.from_any_interface(array, stream_ptr=-1)
        view = from_any(shown)
        assert (view.ptr, view.shape, view.dtype) == (shown.ptr, shown.shape, shown.dtype)
        assert view.strides == array.strides
        assert view.device == (CUDA, 0)
        assert route_of(shown) == "StridedMemoryView"


@pytest.mark.parametrize("name", ["C", "gapped", "read-only", "no axes", "complex"])
def test_memory_view_when_of_the_host_then_numpy_sees_the_same(name):
    from cuda.core.utils import StridedMemoryView

    items = HOSTS[name]()
    if items.flags.writeable or NUMPY >= "2.1.0":
        shown = StridedMemoryView.from_any_interface(items, stream_ptr=-1)
    else:  # older ones export no read-only array through DLPack
        shown = StridedMemoryView.from_array_interface(items)
    view = from_any(shown)
    np.testing.assert_array_equal(np.asarray(view), items)
    assert (view.device, view.readonly) == ((CPU, 0), shown.readonly)
    back = from_any(from_any(items).smv)
    assert (back.ptr, back.layout, back.dtype) == (view.ptr, view.layout, view.dtype)


@pytest.mark.standin
def test_memory_view_when_structured_then_its_fields_are_kept():
    from cuda.core.utils import StridedMemoryView

    cuda.current_context()
    items = np.zeros(3, RECORD)
    for shown in (
        StridedMemoryView.from_array_interface(items[::2]),
        StridedMemoryView.from_cuda_array_interface(cuda.to_device(items), stream_ptr=-1),
    ):
        view = from_any(shown)
        assert (view.ptr, view.shape, view.dtype) == (shown.ptr, shown.shape, shown.dtype)
        assert view.strides_in_items == (shown.strides or (1,))
        assert view.device[0] == (CUDA if shown.is_device_accessible else CPU)


def test_memory_view_when_gone_then_its_array_is_let_go():
    from cuda.core.utils import StridedMemoryView

    items = np.arange(4.0)
    watch = weakref.ref(items)
    view = from_any(StridedMemoryView.from_any_interface(items, stream_ptr=-1))
    del items
    gc.collect()
    assert watch() is not None
    del view
    gc.collect()
    assert watch() is None


def test_buffer_when_imported_then_it_is_its_bytes(driver):
    from cuda.core import Buffer

    memory = driver.allocate(256)
    cuda.current_context()

    class Mine(Buffer):
        pass

    for kind in (Buffer, Mine):
        buffer = kind.from_handle(memory, 256, owner=object())
        view = from_any(buffer)
        assert (view.ptr, view.shape, view.dtype) == (memory, (256,), np.uint8)
        assert (view.device, view.owner) == ((CUDA, 0), buffer)
        assert route_of(buffer) == "Buffer"
    del buffer, view
    gc.collect()
    driver.free(memory)


# ---- JAX and CuPy ----


def test_jax_array_when_imported_then_it_is_read_only():
    jax = pytest.importorskip("jax")
    array = jax.numpy.arange(6.0).reshape(2, 3)
    view = from_any(array)
    np.testing.assert_array_equal(np.asarray(view), np.asarray(array))
    assert (view.device, view.readonly) == ((CPU, 0), True)
    assert route_of(array) == "JAX"
    assert from_any(jax.numpy.ones(3, "bfloat16")).dtype_name == "bfloat16"
    with pytest.raises(TypeError):
        jax.jit(from_any)(array)


# ---- streams, many, routes ----

ORDERED_FIRST = """
import numpy as np
from stridedview import from_any, from_many
assert from_any(np.arange(3), stream=0).shape == (3,)
assert from_many([np.arange(3)], stream=0)[0].shape == (3,)
"""


def test_stream_when_asked_for_first_of_all_then_the_ordering_is_there():
    done = subprocess.run(
        [sys.executable, "-c", ORDERED_FIRST],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_stream_when_named_then_each_producers_stream_is_waited_for_once(driver):
    first, second, mine = cuda.stream(), cuda.stream(), cuda.stream()
    arrays = [cuda.device_array(4, stream=stream) for stream in (first, second, first)]
    before = len(driver.orderings())
    views = from_many([*arrays, np.arange(3)], stream=mine)
    assert len(views) == 4
    made = [(one.recorded_on, one.waiting) for one in driver.orderings()[before:]]
    assert made.count((int(first.handle), int(mine.handle))) == 1
    assert made.count((int(second.handle), int(mine.handle))) == 1
    with pytest.raises(TypeError, match="expected a stream"):
        from_any(arrays[0], stream="mine")


def test_from_many_when_given_any_iterable_then_views_come_in_order():
    arrays = [np.arange(count) for count in range(5)]
    assert [view.size for view in from_many(iter(arrays))] == list(range(5))
    assert from_many([]) == []
    with pytest.raises(TypeError):
        from_many(None)


class TwoWords(TypeError):
    def __init__(self, one, other):
        super().__init__(f"{one} {other}")


def test_from_many_when_an_error_wants_more_arguments_then_it_is_told_all_the_same():
    class Odd:
        __array_interface__ = property(lambda self: self.fail())

        def fail(self):
            raise TwoWords("two", "words")

    with pytest.raises(TypeError, match="item 1: two words"):
        from_many([np.arange(2), Odd()])


def test_class_when_its_module_is_no_text_then_it_is_no_array():
    odd = type("Odd", (), {"__module__": None})
    with pytest.raises(TypeError, match="not an array"):
        from_any(odd())


def test_simulated_array_when_imported_then_it_is_its_host_memory():
    done = subprocess.run(
        [sys.executable, "-c", (
            "from numba import cuda\n"
            "import numpy as np\n"
            "from stridedview import from_any\n"
            "array = cuda.to_device(np.arange(3))\n"
            "assert np.asarray(from_any(array)).tolist() == [0, 1, 2]\n"
        )],
        env={**os.environ, "NUMBA_ENABLE_CUDASIM": "1"},
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
