"""Layout against NumPy: real memory, seen through np.lib.stride_tricks, is the oracle."""

import copy
import doctest
import gc
import itertools
import pickle
import resource
import sys
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stridedview._layout
from stridedview import Layout

MEMORY = np.arange(1 << 14, dtype=np.uint8)
MIDDLE = len(MEMORY) // 2
# NumPy 2 moved it.
byte_bounds = getattr(np, "byte_bounds", None) or np.lib.array_utils.byte_bounds

settings.register_profile("quick", max_examples=200, deadline=None)
settings.load_profile("quick")


def numpy_view(layout, offset=0):
    """Return a NumPy view of MEMORY that has this layout, its first item at MIDDLE."""
    low, high = layout.byte_extent
    assert MIDDLE + offset + low >= 0
    assert MIDDLE + offset + high <= len(MEMORY)
    return np.ndarray(
        layout.shape, f"V{layout.itemsize}", MEMORY, MIDDLE + offset, layout.strides
    )


def assert_same(layout, offset, expected):
    """Compare what addresses something, which no stride of an extent of 1 does."""
    start = MEMORY.ctypes.data + MIDDLE
    assert layout.shape == expected.shape
    assert layout.itemsize == expected.dtype.itemsize
    assert layout.is_c_contiguous == expected.flags.c_contiguous
    assert layout.is_f_contiguous == expected.flags.f_contiguous
    assert layout.size == expected.size
    assert layout.nbytes == expected.nbytes
    if layout.size:
        assert start + offset == expected.ctypes.data
        for extent, ours, theirs in zip(
            layout.shape, layout.strides, expected.strides, strict=False
        ):
            assert ours == theirs or extent == 1


extents = st.lists(st.sampled_from([0, 1, 1, 2, 3, 4, 5]), max_size=5).map(tuple)
itemsizes = st.sampled_from([1, 2, 4, 8, 12])


@st.composite
def layouts(draw):
    shape = draw(extents)
    itemsize = draw(itemsizes)
    kind = draw(st.sampled_from(["C", "F", "sliced", "wild"]))
    if kind == "wild":
        strides = tuple(
            draw(st.integers(-6, 6)) * draw(st.sampled_from([1, itemsize])) for _ in shape
        )
        return Layout(shape, strides, itemsize=itemsize)
    array = np.empty(shape, f"V{itemsize}", order="F" if kind == "F" else "C")
    strides = array.strides
    if kind == "sliced":
        strides = [s * draw(st.sampled_from([1, 1, 2, -1, -2, 0])) for s in strides]
        order = draw(st.permutations(range(len(shape))))
        return Layout(
            [shape[i] for i in order], [strides[i] for i in order], itemsize=itemsize
        )
    return Layout(shape, strides, itemsize=itemsize)


def within(layout):
    low, high = layout.byte_extent
    return low > -MIDDLE and high < MIDDLE


ends = st.none() | st.integers(-7, 7)
slices = st.builds(
    slice,
    ends,
    ends,
    st.none()
    | st.integers(-3, 3).filter(bool)
    | st.sampled_from([sys.maxsize, -sys.maxsize]),
)


@st.composite
def keys(draw, ndim):
    count = draw(st.integers(0, ndim))
    items = [draw(slices | st.integers(-5, 4)) for _ in range(count)]
    for _ in range(draw(st.integers(0, 2))):
        items.insert(draw(st.integers(0, len(items))), None)
    if draw(st.booleans()):
        items.insert(draw(st.integers(0, len(items))), Ellipsis)
    if len(items) == 1 and draw(st.booleans()):
        return items[0]
    return tuple(items)


def both(ours, theirs, errors):
    """Run both; return the results, or check that both refuse with one of ``errors``."""
    try:
        expected = theirs()
    except errors:
        with pytest.raises(errors):
            ours()
        return None
    return ours(), expected


# ---- facts -------------------------------------------------------------------------------


@given(layouts().filter(within))
def test_facts_agree_with_numpy(layout):
    view = numpy_view(layout)
    assert_same(layout, 0, view)
    assert layout.shape == view.shape
    assert layout.strides == view.strides
    assert layout.ndim == view.ndim
    assert layout.nbytes == view.nbytes
    letter = "C" if view.flags.c_contiguous else "F" if view.flags.f_contiguous else "A"
    assert layout.letter == letter
    low, high = byte_bounds(view)
    if layout.size:
        start = MEMORY.ctypes.data + MIDDLE
        assert layout.byte_extent == (low - start, high - start)
    else:
        assert layout.byte_extent == (0, 0)


def test_layout_when_empty_then_any_strides_are_taken_as_numpy_takes_them():
    layout = Layout((0, 3), (2**62, 2**62), itemsize=4)
    assert (layout.byte_extent, layout.nbytes, layout.is_unique) == ((0, 0), 0, True)
    assert layout.transpose()[0].strides == (2**62, 2**62)
    assert layout.slice(slice(0, 0))[0].shape == (0, 3)


@pytest.mark.parametrize(
    "index", [2**70, -(2**70), (0, 2**70), np.uint64(2**63 - 1)], ids=str
)
def test_index_when_it_does_not_fit_then_index_error_as_numpys(index):
    with pytest.raises(IndexError):
        np.zeros((3, 3))[index]
    with pytest.raises(IndexError, match="out of bounds"):
        Layout((3, 3), itemsize=8).slice(index)


def test_as_strided_when_the_offset_does_not_fit_then_overflow_error():
    layout = Layout((3, 3), itemsize=8)
    assert layout.as_strided((2,), (4,), -8)[1] == -8
    with pytest.raises(OverflowError):
        layout.as_strided((2,), (4,), 2**70)
    with pytest.raises(TypeError):
        layout.as_strided((2,), (4,), 1.5)


def test_layout_when_called_wrongly_then_the_error_names_it():
    with pytest.raises(TypeError, match=r"Layout\(\) needs itemsize="):
        Layout((4, 6))
    with pytest.raises(TypeError, match=r"Layout\(\) got an unexpected keyword"):
        Layout(3, stride=3, itemsize=3)
    with pytest.raises(TypeError, match=r"Layout\(\) takes at least 1"):
        Layout()


@given(layouts())
def test_uniqueness_is_exact(layout):
    touched = []
    for index in itertools.product(*map(range, layout.shape)):
        start = sum(i * s for i, s in zip(index, layout.strides, strict=False))
        touched.extend(range(start, start + layout.itemsize))
    assert layout.is_unique == (len(touched) == len(set(touched)))


def test_uniqueness_of_contrived_strides_is_decided_in_bounded_time():
    primes = [100003, 100019, 100043, 100049, 100057, 100069, 100103, 100109]
    assert Layout((50,) * 8, primes, itemsize=1).is_unique in (True, False)


@given(layouts())
def test_strides_in_items_are_whole_or_refused(layout):
    if all(s % layout.itemsize == 0 for s in layout.strides):
        expected = tuple(s // layout.itemsize for s in layout.strides)
        assert layout.strides_in_items == expected
    else:
        with pytest.raises(BufferError, match="whole items"):
            layout.strides_in_items  # noqa: B018


def test_default_strides_are_c_order():
    assert Layout((2, 3, 4), itemsize=8).strides == (96, 32, 8)
    assert Layout((), itemsize=8).strides == ()
    assert Layout(5, itemsize=8) is Layout((5,), itemsize=8)


@pytest.mark.parametrize(
    ("low", "high", "fits"),
    [
        (0, 2**31, True),
        (0, 2**31 + 1, False),
        (-(2**31), 1, True),
        (-(2**31) - 1, 1, False),
    ],
)
def test_fits_32_bits_at_the_edges(low, high, fits):
    layout = Layout((2, 2), (low or 1, high - 1 - (0 if low else 1)), itemsize=1)
    assert layout.fits_32_bits is fits


# ---- refusals ----------------------------------------------------------------------------

REFUSED = {
    "negative extent": (ValueError, lambda: Layout((2, -1), itemsize=4)),
    "too many dimensions": (ValueError, lambda: Layout((1,) * 65, itemsize=4)),
    "strides of another length": (ValueError, lambda: Layout((2,), (4, 4), itemsize=4)),
    "itemsize zero": (ValueError, lambda: Layout((2,), itemsize=0)),
    "itemsize negative": (ValueError, lambda: Layout((2,), (4,), itemsize=-4)),
    "items overflow": (OverflowError, lambda: Layout((2**32, 2**32), (0, 0), itemsize=1)),
    "bytes overflow": (OverflowError, lambda: Layout((2**61,), (0,), itemsize=8)),
    "default strides overflow": (OverflowError, lambda: Layout((2**40,) * 2, itemsize=1)),
    "extent times stride": (OverflowError, lambda: Layout((3,), (2**62,), itemsize=1)),
    "byte extent overflow": (
        OverflowError,
        lambda: Layout((2, 2), (2**62, -(2**62)), itemsize=1),
    ),
    "extent beyond 64 bits": (OverflowError, lambda: Layout((2**64,), itemsize=1)),
    "float extent": (TypeError, lambda: Layout((2.0,), itemsize=1)),
    "no itemsize": (TypeError, lambda: Layout((2,))),
}


@pytest.mark.parametrize("case", REFUSED, ids=str)
def test_construction_when_wrong_then_refuses(case):
    error, make = REFUSED[case]
    with pytest.raises(error):
        make()


@pytest.mark.parametrize("name", ["shape", "strides", "size", "ndim", "itemsize", "other"])
def test_layout_when_set_then_refuses(name):
    with pytest.raises(AttributeError):
        setattr(Layout((2,), itemsize=4), name, 1)


# ---- the algebra -------------------------------------------------------------------------


@given(st.data(), layouts().filter(within))
def test_slice_agrees_with_numpy(data, layout):
    key = data.draw(keys(layout.ndim))
    view = numpy_view(layout)
    # An Ellipsis added to the key keeps NumPy from turning a full index into an item.
    full = key if isinstance(key, tuple) else (key,)
    full = full if any(k is Ellipsis for k in full) else (*full, Ellipsis)
    result = both(lambda: layout.slice(key), lambda: view[full], IndexError)
    if result:
        (sliced, offset), expected = result
        assert_same(sliced, offset, expected)


@given(st.data(), layouts().filter(within))
def test_permute_agrees_with_numpy(data, layout):
    axes = data.draw(st.permutations(range(layout.ndim)))
    axes = [axis - layout.ndim * data.draw(st.integers(0, 1)) for axis in axes]
    view = numpy_view(layout)
    assert_same(*layout.transpose(axes), view.transpose(axes))
    assert layout.permute(*axes) == layout.permute(axes) == layout.transpose(axes)
    assert_same(*layout.transpose(), view.T)


def shares(expected, view):
    return np.shares_memory(expected, view) or view.size == 0


@given(st.data(), layouts().filter(within), st.sampled_from("CFA"))
def test_reshape_agrees_with_numpy(data, layout, order):
    view = numpy_view(layout)
    target = data.draw(shapes_of(layout.size) | extents)
    if target and data.draw(st.booleans()):
        at = data.draw(st.integers(0, len(target) - 1))
        target = (*target[:at], -1, *target[at + 1 :])
    try:
        expected = view.reshape(target, order=order)
    except ValueError:
        expected = None
    if expected is None or not shares(expected, view):
        with pytest.raises(ValueError, match="cannot reshape"):
            layout.reshape(target, order)
    else:
        assert_same(*layout.reshape(target, order), expected)


@st.composite
def shapes_of(draw, size):
    if size == 0:
        return draw(st.permutations([0, *draw(extents)]).map(tuple))
    shape = []
    while size > 1:
        divisors = [d for d in range(1, size + 1) if size % d == 0]
        shape.append(draw(st.sampled_from(divisors)))
        size //= shape[-1]
        if len(shape) > 5:
            shape.append(size)
            break
    return tuple(shape)


@given(layouts().filter(within), st.sampled_from("CFA"))
def test_ravel_agrees_with_numpy_or_refuses(layout, order):
    view = numpy_view(layout)
    expected = view.reshape(-1, order=order)  # ravel() itself always copies a gapped one
    if shares(expected, view):
        assert_same(*layout.ravel(order), expected)
    else:
        with pytest.raises(ValueError, match="without a copy"):
            layout.ravel(order)


axis_choices = (
    st.none() | st.integers(-6, 5) | st.lists(st.integers(-6, 5), max_size=3).map(tuple)
)


@given(layouts().filter(within), axis_choices)
def test_squeeze_agrees_with_numpy(layout, axis):
    view = numpy_view(layout)
    result = both(lambda: layout.squeeze(axis), lambda: view.squeeze(axis), ValueError)
    if result:
        assert_same(*result[0], result[1])


@given(layouts().filter(within), axis_choices.filter(lambda axis: axis is not None))
def test_expand_dims_agrees_with_numpy(layout, axis):
    view = numpy_view(layout)
    result = both(
        lambda: layout.expand_dims(axis), lambda: np.expand_dims(view, axis), ValueError
    )
    if result:
        assert_same(*result[0], result[1])


@given(st.data(), layouts().filter(within))
def test_broadcast_to_agrees_with_numpy(data, layout):
    view = numpy_view(layout)
    lead = data.draw(st.lists(st.integers(0, 3), max_size=2))
    shape = tuple(lead) + tuple(data.draw(st.sampled_from([n, n, 3])) for n in layout.shape)
    result = both(
        lambda: layout.broadcast_to(shape), lambda: np.broadcast_to(view, shape), ValueError
    )
    if result:
        assert_same(*result[0], result[1])


@given(layouts().filter(within), itemsizes)
def test_view_agrees_with_numpy(layout, itemsize):
    view = numpy_view(layout)
    result = both(
        lambda: layout.view(itemsize), lambda: view.view(f"V{itemsize}"), ValueError
    )
    if result:
        assert_same(*result[0], result[1])


def test_as_strided_takes_bytes_and_passes_the_offset_on():
    layout, offset = Layout((10,), itemsize=4).as_strided((3, 4), (4, 8), 12)
    assert layout is Layout((3, 4), (4, 8), itemsize=4)
    assert offset == 12


MASKS = {
    "bool": True,
    "numpy bool": np.True_,
    "bool array": np.array([True, False]),
    "list of bools": [True, False],
    "int array": np.array([0, 1]),
    "list": [0, 1],
    "array of one item": np.array([1]),
    "float": 1.0,
    "string": "x",
    "nested tuple": (0, 1),
}


@pytest.mark.parametrize("case", MASKS, ids=str)
def test_slice_when_not_basic_then_says_so(case):
    for ndim in (0, 1, 2):
        with pytest.raises(IndexError, match=r"index|indices"):
            Layout((3,) * ndim, itemsize=4).slice((MASKS[case], Ellipsis))
        with pytest.raises(IndexError, match=r"index|indices"):
            Layout((3,) * ndim, itemsize=4).slice(
                (MASKS[case],) if case == "nested tuple" else MASKS[case]
            )


def test_slice_when_zero_dimensional_integer_array_then_is_an_integer():
    assert Layout((3,), itemsize=4).slice(np.array(2)) == (Layout((), itemsize=4), 8)
    assert Layout((3,), itemsize=4).slice(np.int8(-1)) == (Layout((), itemsize=4), 8)


def test_slice_when_result_has_too_many_dimensions_then_refuses():
    with pytest.raises(IndexError):
        Layout((3,), itemsize=4).slice((None,) * 64)


@pytest.mark.parametrize("shape", [(-1, -1), (-2, 3), (4,), (0, -1)], ids=str)
def test_reshape_when_shape_is_wrong_then_refuses(shape):
    with pytest.raises(ValueError, match=r"-1 more than once|negative|cannot reshape"):
        Layout((2, 3), itemsize=4).reshape(shape)


def test_reshape_when_order_is_unknown_then_refuses():
    with pytest.raises(ValueError, match="order"):
        Layout((2, 3), itemsize=4).reshape(6, order="K")


# ---- identity ----------------------------------------------------------------------------


@given(layouts())
def test_equal_layouts_are_one_object(layout):
    again = Layout(list(layout.shape), list(layout.strides), itemsize=layout.itemsize)
    assert again is layout
    assert hash(again) == hash(layout)
    assert pickle.loads(pickle.dumps(layout)) is layout
    assert copy.copy(layout) is layout
    assert copy.deepcopy(layout) is layout


def test_living_layout_stays_the_one_object_after_many_others():
    held = [Layout((i, 3), itemsize=2) for i in range(5000)]
    for i in range(50_000):
        Layout((i, 5), itemsize=2)
    assert all(Layout((i, 3), itemsize=2) is layout for i, layout in enumerate(held))


def test_a_million_different_shapes_leave_memory_flat():
    def peak():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    for i in range(100_000):
        Layout((i, 7), itemsize=4)
    gc.collect()
    before = peak()
    for i in range(1_000_000):
        Layout((i, 11), itemsize=4)
    assert peak() - before < 4096  # KiB


def test_threads_that_make_the_same_layouts_get_the_same_objects():
    results, barrier = {}, threading.Barrier(8)

    def make(name):
        barrier.wait()
        results[name] = [Layout((i, name % 1 + 13), itemsize=8) for i in range(20_000)]

    threads = [threading.Thread(target=make, args=(name,)) for name in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    first = results[0]
    assert all(
        a is b for other in results.values() for a, b in zip(first, other, strict=False)
    )


def test_threads_that_do_the_same_algebra_get_the_same_layouts():
    # On a free-threaded build these run side by side; _layout and below need no GIL.
    sources = [Layout((n, 6, 4), itemsize=8) for n in range(1, 40)]
    results, barrier = {}, threading.Barrier(6)

    def work(name):
        made = []
        barrier.wait()
        for turn in range(30):
            for source in sources[name:] + sources[:name]:
                part = source.slice((slice(turn % 3, None), ..., turn % 4))[0]
                made += [
                    part,
                    part.transpose()[0],
                    source.reshape((-1, 4))[0],
                    source.slice(slice(turn, None))[0],
                    source.permute((1, 2, 0))[0],
                    Layout(source.shape, itemsize=turn + 1),
                ]
                assert part.is_unique
                assert hash(part) == hash(Layout(part.shape, part.strides, itemsize=8))
        results[name] = sorted(map(id, set(made))), made

    threads = [threading.Thread(target=work, args=(name,)) for name in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 6
    assert all(ids == results[0][0] for ids, _ in results.values())


def test_docstrings_hold():
    found = [
        test
        for test in doctest.DocTestFinder(exclude_empty=True).find(
            Layout, "Layout", module=False, globs={"Layout": Layout}
        )
        if test.examples
    ]
    runner = doctest.DocTestRunner()
    for test in found:
        assert runner.run(test).failed == 0
    assert len(found) >= 8
    assert stridedview._layout.__doc__
