"""Copies of any layout to any layout, assignment and element access, NumPy as oracle.

On the stand-in driver the copy kernels are acted out; with
STRIDEDVIEW_TEST_DRIVER=real the same tests run on the GPU.
"""

import textwrap
import threading

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import stridedview as sv
from stridedview import Layout, StridedView, _copyplan
from tests import standin
from tests.standin.helpers import run_child

pytestmark = pytest.mark.usefixtures("kernels")

quick = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


DTYPES = ["u1", "f2", "f4", "f8", "c16", "V3", "V12"]


def filled(shape, dtype):
    nbytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.random.default_rng(nbytes).integers(0, 256, nbytes, np.uint8)
    return raw.view(dtype).reshape(shape)


@st.composite
def embeddings(draw, shape):
    """Return (base shape, how to cut a view of ``shape`` out of an array of it)."""
    order = draw(st.permutations(range(len(shape))))
    base, cut = [], []
    for axis in order:
        step = draw(st.sampled_from([1, 1, 2, 3, -1, -2]))
        pad = draw(st.sampled_from([0, 0, 1]))
        base.append(shape[axis] * abs(step) + pad)
        start = pad + (0 if step > 0 else shape[axis] * abs(step) - 1)
        stop = start + step * shape[axis]
        cut.append(slice(start, stop if stop >= 0 else None, step))
    back = tuple(np.argsort(order))
    return tuple(base), tuple(cut), back


def cut_out(array, embedding):
    _, cut, back = embedding
    return array[(*cut, ...)].transpose(back) if back else array[...]


shapes = st.one_of(
    st.lists(st.sampled_from([0, 1, 2, 3, 5, 9]), max_size=4).map(tuple),
    st.sampled_from([(40, 33), (2, 33, 20), (1500,), (3, 1100), (130, 2), (9, 8, 7, 2)]),
)


@quick
@given(st.data(), shapes, st.sampled_from(DTYPES))
def test_copy_changes_the_target_items_and_nothing_else(data, shape, dtype):
    into, out_of = data.draw(embeddings(shape)), data.draw(embeddings(shape))
    target, source = filled(into[0], dtype), filled(out_of[0], dtype)
    device = sv.to_device(target)
    where = data.draw(st.sampled_from(["host", "device"]))
    given = sv.to_device(source) if where == "device" else source
    cut_out(device, into).copy_to_device(cut_out(given, out_of))
    cut_out(target, into)[...] = cut_out(source, out_of)
    assert device.copy_to_host().tobytes() == target.tobytes()


@quick
@given(st.data(), shapes, st.sampled_from(DTYPES))
def test_copy_to_a_host_array_changes_its_items_and_nothing_else(data, shape, dtype):
    into, out_of = data.draw(embeddings(shape)), data.draw(embeddings(shape))
    target, source = filled(into[0], dtype), filled(out_of[0], dtype)
    expected = target.copy()
    cut_out(expected, into)[...] = cut_out(source, out_of)
    result = cut_out(target, into)
    assert cut_out(sv.to_device(source), out_of).copy_to_host(result) is result
    assert target.tobytes() == expected.tobytes()


@quick
@given(st.data(), shapes)
def test_copy_to_a_new_host_array_equals_numpys(data, shape):
    out_of = data.draw(embeddings(shape))
    source = filled(out_of[0], "f4").view("i4")
    expected = cut_out(source, out_of)
    result = cut_out(sv.to_device(source), out_of).copy_to_host()
    np.testing.assert_array_equal(result, expected)
    assert result.flags.c_contiguous or result.flags.f_contiguous or result.ndim > 2


@given(st.data(), shapes, st.sampled_from(DTYPES))
@settings(max_examples=150, deadline=None)
def test_packing_on_the_host_equals_numpys_assignment(data, shape, dtype):
    into, out_of = data.draw(embeddings(shape)), data.draw(embeddings(shape))
    target, source = filled(into[0], dtype), filled(out_of[0], dtype)
    expected = target.copy()
    cut_out(expected, into)[...] = cut_out(source, out_of)
    to, from_ = cut_out(target, into), cut_out(source, out_of)
    _copyplan.copy_on_host(
        to.ctypes.data,
        Layout(to.shape, to.strides, itemsize=to.itemsize),
        from_.ctypes.data,
        Layout(from_.shape, from_.strides, itemsize=from_.itemsize),
    )
    assert target.tobytes() == expected.tobytes()


def test_plan_joins_axes_that_one_stride_walks():
    dense = Layout((4, 5, 6), itemsize=4)
    assert _copyplan.describe_plan(dense, dense) == (480, [])
    turned = dense.transpose()[0]
    assert _copyplan.describe_plan(turned, turned) == (480, [])
    back = dense.slice(np.s_[::-1, ::-1, ::-1])[0]
    assert _copyplan.describe_plan(back, back) == (480, [])
    rows = Layout((4, 5, 6), (240, 48, 4), itemsize=4)
    assert _copyplan.describe_plan(rows, dense) == (24, [(20, 48, 24)])


# ---- large host copies go through the ring -----------------------------------------------

LARGE = {
    "contiguous": lambda x: x,
    "every second": lambda x: x[::2],
    "reversed": lambda x: x[::-1],
    "transposed": lambda x: x.reshape(-1, 1000).T,
    "columns": lambda x: x.reshape(-1, 1000)[:, ::2],
    "long rows with a gap": lambda x: x.reshape(2, -1)[:, :-1],
    "bytes": lambda x: x.view("u1").reshape(3, -1)[:, 1:-2].view("u1"),
}


@pytest.mark.parametrize("name", LARGE, ids=str)
def test_large_host_arrays_arrive_and_come_back(name):
    array = np.arange(6_000_000, dtype="f8")
    source = LARGE[name](array)
    device = sv.empty(source.shape, source.dtype)
    device.copy_to_device(source)
    np.testing.assert_array_equal(device.copy_to_host(), source)
    whole = np.zeros_like(array)
    target = LARGE[name](whole)
    device.copy_to_host(target)
    np.testing.assert_array_equal(target, source)
    expected = np.zeros_like(array)
    LARGE[name](expected)[...] = source
    np.testing.assert_array_equal(whole, expected)


@pytest.mark.parametrize("call", ["cuMemcpyHtoDAsync_v2", "cuEventRecord"])
def test_large_copy_when_the_driver_refuses_then_says_so_and_the_next_one_works(call):
    if not standin.wanted():
        pytest.skip("injects an error")
    array = np.arange(6_000_000, dtype="f8")[::2]
    view = sv.to_device(array)
    standin.fail_next(call, 719)
    with pytest.raises(RuntimeError, match="CUDA_ERROR_LAUNCH_FAILED"):
        view.copy_to_device(array + 1)
    view.copy_to_device(array + 2)
    np.testing.assert_array_equal(view.copy_to_host(), array + 2)


def test_large_copies_of_several_threads_do_not_mix():
    arrays = [np.full(2_200_000, n, "f8") for n in range(4)]
    views = [sv.empty(len(a), "f8") for a in arrays]
    wrong = []

    def work(array, view):
        for _ in range(5):
            view.copy_to_device(array)
            if not (view.copy_to_host() == array).all():
                wrong.append(array[0])

    threads = [
        threading.Thread(target=work, args=pair) for pair in zip(arrays, views, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# ---- assignment --------------------------------------------------------------------------

VALUES = {
    "a number": 7,
    "a float into ints": 2.75,
    "a row": np.arange(6),
    "a column": np.arange(4)[:, None],
    "a list": [[1], [2], [3], [4]],
    "all": np.arange(24).reshape(4, 6),
    "leading ones": np.arange(6).reshape(1, 1, 6),
    "another dtype": np.arange(6, dtype="f8") / 2,
    "zero": 0,
    "a numpy scalar": np.float32(3),
    "zero-dimensional": np.array(5),
    "big endian": np.arange(6, dtype=">i8"),
}


@pytest.mark.parametrize("name", VALUES, ids=str)
@pytest.mark.parametrize("dtype", ["i4", "f8", "u1", "f2"])
def test_assignment_equals_numpys(name, dtype):
    expected = np.zeros((8, 6), dtype)
    view = sv.to_device(expected)
    view[1::2] = VALUES[name]
    expected[1::2] = VALUES[name]
    np.testing.assert_array_equal(view.copy_to_host(), expected)


@pytest.mark.parametrize(
    "key",
    [
        np.s_[2],
        np.s_[1, 3],
        np.s_[...],
        np.s_[:, -1],
        np.s_[4:4],
        np.s_[None, 1],
        np.s_[::-1, 2:4],
        (),
    ],
    ids=str,
)
def test_assignment_at_each_kind_of_key_equals_numpys(key):
    expected = np.arange(24, dtype="i8").reshape(4, 6)
    view = sv.to_device(expected)
    view[key] = 99
    expected[key] = 99
    np.testing.assert_array_equal(view.copy_to_host(), expected)


def test_assignment_of_device_values():
    expected = np.zeros((4, 6), "f4")
    view = sv.to_device(expected)
    view[1:3] = sv.to_device(np.arange(6, dtype="f4"))
    view[3] = sv.to_device(np.arange(6, dtype="i8"))  # converts
    view[:, 0] = sv.to_device(np.float32(9) * np.ones(1, "f4"))
    expected[1:3] = np.arange(6)
    expected[3] = np.arange(6)
    expected[:, 0] = 9
    np.testing.assert_array_equal(view.copy_to_host(), expected)


def test_assignment_from_torch_and_other_hosts():
    torch = pytest.importorskip("torch")
    view = sv.zeros((3,), "f4")
    view[:] = torch.tensor([1.0, 2.0, 3.0])
    assert view.copy_to_host().tolist() == [1, 2, 3]
    view[:] = torch.arange(3)
    assert view.copy_to_host().tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("to", "from_"),
    [
        (np.s_[1:], np.s_[:-1]),
        (np.s_[:-1], np.s_[1:]),
        (np.s_[::-1], np.s_[:]),
    ],
    ids=["down", "up", "reversed"],
)
def test_assignment_between_overlapping_parts_is_as_if_copied_first(to, from_):
    expected = np.arange(5000, dtype="i4")
    view = sv.to_device(expected)
    view[to] = view[from_]
    expected[to] = expected[from_].copy()
    np.testing.assert_array_equal(view.copy_to_host(), expected)


def test_assignment_when_shapes_do_not_fit_then_refuses():
    view = sv.zeros((4, 6), "f4")
    for value in (np.zeros(5), np.zeros((2, 4, 6)), np.zeros((4, 6, 1)), [1, 2]):
        with pytest.raises(ValueError, match="broadcast"):
            view[...] = value
    with pytest.raises(ValueError, match="broadcast"):
        view[1:1] = np.zeros((3, 6))


def test_assignment_when_readonly_or_masked_then_refuses():
    view = sv.zeros((4,), "f4")
    with pytest.raises(ValueError, match="read-only"):
        view.broadcast_to((2, 4))[...] = 1
    with pytest.raises(ValueError, match="read-only"):
        view.broadcast_to((2, 4)).copy_to_device(np.zeros((2, 4), "f4"))
    with pytest.raises(IndexError):
        view[np.array([True] * 4)] = 1


def test_assignment_when_a_number_does_not_fit_then_numpys_error():
    # NumPy 1 warns that this will be an error; here warnings are errors.
    with pytest.raises((OverflowError, DeprecationWarning)):
        sv.zeros(3, "u1")[...] = 300


# ---- items -------------------------------------------------------------------------------


def test_items_are_numpys_scalars():
    array = np.arange(24, dtype="i2").reshape(4, 6)
    view = sv.to_device(array)
    assert view[1, 2] == array[1, 2]
    assert type(view[1, 2]) is np.int16
    assert view[-1, -1] == 23
    assert view[1][2] == 8
    assert type(view[1, 2, ...]) is StridedView
    assert view.item(1, 2) == 8
    assert type(view.item(1, 2)) is int
    assert view[2:3, 2:3].item() == 14
    assert sv.to_device(np.array(5.0))[()] == 5.0
    with pytest.raises(ValueError, match="one item"):
        view.item()
    assert list(view[1]) == list(array[1])
    assert [row.copy_to_host().tolist() for row in view] == array.tolist()


def test_view_of_no_dimensions_reads_and_writes():
    view = sv.to_device(np.array(5.0))
    assert view.shape == ()
    assert view.copy_to_host() == 5.0
    view[()] = 6
    assert view.item() == 6.0
    view.fill(7)
    assert float(view.copy_to_host()) == 7.0


def test_structured_items_are_records_on_the_device():
    dtype = np.dtype(
        [("a", "i4"), ("b", "f8", (2,)), ("c", [("d", "u1"), ("e", "f4")])], align=True
    )
    array = np.zeros(5, dtype)
    array["a"], array["b"], array["c"]["e"] = range(5), np.arange(10).reshape(5, 2), 1.5
    view = sv.to_device(array)
    assert view.copy_to_host().tobytes() == array.tobytes()
    record = view[2]
    assert type(record).__name__ == "Record"
    assert record.dtype == dtype
    assert not hasattr(record, "__cuda_array_interface__")
    assert record["a"] == 2
    assert record["b"].copy_to_host().tolist() == [4, 5]
    assert record["c"]["e"] == 1.5
    record["a"] = 77
    view["b"] = -1
    array["a"][2], array["b"] = 77, -1
    np.testing.assert_array_equal(view.copy_to_host(), array)
    np.testing.assert_array_equal(view["c"]["e"].copy_to_host(), array["c"]["e"])
    view[0] = np.array((9, [1, 2], (3, 4.0)), dtype)[()]
    assert view[0]["a"] == 9


def test_datetimes_go_there_and_back():
    array = np.array(["2020-01-01", "NaT", "1969-12-31"], "M8[D]")
    view = sv.to_device(array)
    np.testing.assert_array_equal(view.copy_to_host(), array)
    assert view[0] == array[0]
    assert view.dtype == array.dtype


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_small_floats_go_there_and_back(name):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    array = np.array([1, 2, -0.5], getattr(ml_dtypes, name))
    view = sv.to_device(array)
    assert view.dtype_name == name
    np.testing.assert_array_equal(view.copy_to_host(), array)
    view[1] = 4
    assert float(view[1]) == 4.0


# ---- copies that DeviceNDArray gets wrong or refuses -------------------------------------


def test_copies_of_empty_views_do_nothing():
    view = sv.empty((0, 3), "f4")
    assert view.copy_to_host().shape == (0, 3)
    view.copy_to_device(np.empty((0, 3), "f4"))
    view[...] = 1
    sv.to_device(np.arange(4))[2:2] = 5


def test_broadcast_host_arrays_are_sent_once_and_keep_their_shape():
    array = np.broadcast_to(np.arange(3, dtype="f4"), (1000, 3))
    view = sv.to_device(array)
    assert view.shape == (1000, 3)
    assert view.strides == (0, 4)
    assert view.readonly
    np.testing.assert_array_equal(view.copy_to_host(), array)
    view = sv.empty((1000, 3), "f4")
    view.copy_to_device(array)
    np.testing.assert_array_equal(view.copy_to_host(), array)


def test_copy_into_a_target_that_repeats_itself_keeps_the_last():
    source = np.arange(12, dtype="f4").reshape(4, 3)
    row = sv.zeros(3, "f4")
    row.as_strided((4, 3), (0, 4)).copy_to_device(source)
    assert row.copy_to_host().tolist() == source[-1].tolist()
    row.fill(0)
    row.as_strided((4, 3), (0, 4)).copy_to_device(sv.to_device(source))
    assert row.copy_to_host().tolist() == source[-1].tolist()


def test_copy_when_dtype_or_shape_differs_then_says_both():
    view = sv.zeros((4, 6), "f4")
    with pytest.raises(TypeError, match="incompatible dtype"):
        view.copy_to_device(np.zeros((4, 6)))
    with pytest.raises(ValueError, match="incompatible shape"):
        view.copy_to_device(np.zeros((6, 4), "f4"))
    with pytest.raises(TypeError, match="incompatible dtype"):
        view.copy_to_host(np.zeros((4, 6)))
    array = np.zeros((4, 6), "f4")
    array.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        view.copy_to_host(array)
    view.copy_to_device(np.ones((1, 4, 1, 6), "f4"))  # extents of 1 aside
    assert view.copy_to_host().sum() == 24


def test_copy_has_no_gaps_and_numpys_order():
    array = np.arange(120, dtype="f4").reshape(4, 5, 6).transpose(2, 0, 1)[::2]
    view = sv.to_device(np.arange(120, dtype="f4").reshape(4, 5, 6)).transpose(2, 0, 1)[::2]
    for order in "CFK":
        copied = view.copy(order)
        assert copied.strides == array.copy(order).strides
        np.testing.assert_array_equal(copied.copy_to_host(), array)
        assert sv.empty_like(view, order=order).strides == array.copy(order).strides


def test_dlpack_copies_when_asked():
    view = sv.to_device(np.arange(6, dtype="f4"))
    host = np.from_dlpack(Asked(view, dl_device=(1, 0)))
    assert host.tolist() == [0, 1, 2, 3, 4, 5]
    assert np.asarray(view).tolist() == [0, 1, 2, 3, 4, 5]
    copied = sv.from_any(Asked(view, device=view.device, copy=True))
    assert copied.ptr != view.ptr
    assert copied.copy_to_host().tolist() == [0, 1, 2, 3, 4, 5]


def test_dlpack_when_pinned_memory_is_copied_for_the_host_then_the_copy_is_the_hosts():
    pinned = sv.pinned(4, "f4")
    np.asarray(pinned)[:] = [1, 2, 3, 4]
    copied = sv.from_any(Asked(pinned, dl_device=(1, 0), copy=True))
    assert copied.device == (1, 0)
    assert np.asarray(copied).tolist() == [1, 2, 3, 4]
    assert copied.ptr != pinned.ptr
    shared = sv.from_any(Asked(pinned, dl_device=(1, 0)))
    assert (shared.device, shared.ptr) == ((1, 0), pinned.ptr)


class Asked:
    """A producer that passes more arguments on than its consumer gives."""

    def __init__(self, view, device=(1, 0), **asked):
        self.view, self.device, self.asked = view, device, asked

    def __dlpack__(self, **more):
        return self.view.__dlpack__(**{**more, **self.asked})

    def __dlpack_device__(self):
        return self.device


# ---- several devices, on the stand-in ----------------------------------------------------

DEVICES = """
import numpy as np
import stridedview as sv
from tests import standin
from tests.copy_kernels import act_out
standin.load()
standin.on_launch(act_out)
"""


def on_two_devices(body):
    if not standin.wanted():
        pytest.skip("two stand-in devices")
    done = run_child(DEVICES + textwrap.dedent(body) + "\nprint('done')\n", devices=2)
    assert done.stdout.split() == ["done"], done.stderr[-3000:]


@pytest.mark.parametrize("shape", ["(8,)", "(4, 2)"])
def test_copy_between_devices_when_the_source_is_on_a_side_stream_then_it_arrives(shape):
    on_two_devices(f"""
        from cuda.core import Device
        other = Device(1)
        other.set_current()
        source = sv.empty({shape}, "f4", device=1, stream=other.create_stream())
        source.copy_to_device(np.arange(8, dtype="f4").reshape({shape}))
        Device(0).set_current()
        target = sv.zeros({shape}, "f4", device=0)
        target.copy_to_device(source)
        assert (target.copy_to_host().ravel() == np.arange(8)).all()
        target.copy_to_device(source[::-1])
        assert (target.copy_to_host() == source.copy_to_host()[::-1]).all()
    """)


def test_large_host_copies_when_devices_take_turns_then_each_keeps_its_buffers():
    on_two_devices("""
        array = np.arange(3_000_000, dtype="f8")
        views = [sv.empty(len(array), "f8", device=number) for number in (0, 1)]
        for view in views:
            view.copy_to_device(array)
        standin.reset_calls()
        for _ in range(3):
            for view in views:
                view.copy_to_device(array + 1)
                assert (view.copy_to_host() == array + 1).all()
        calls = standin.calls()
        assert "cuMemHostAlloc" not in calls and "cuEventCreate" not in calls, calls
    """)


@pytest.mark.parametrize("call", ["cuMemHostAlloc", "cuEventCreate"])
def test_large_host_copy_when_it_gets_no_buffers_then_none_are_left_and_the_next_has(call):
    on_two_devices(f"""
        array = np.arange(3_000_000, dtype="f8")
        view = sv.empty(len(array), "f8")
        before = standin.regions()
        standin.fail_next({call!r}, 2)
        try:
            view.copy_to_device(array)
        except Exception as error:
            assert {call!r} in str(error), error
        else:
            raise AssertionError("no error")
        assert standin.regions() == before
        view.copy_to_device(array)
        assert (view.copy_to_host() == array).all()
    """)
