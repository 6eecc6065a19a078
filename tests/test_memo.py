"""What an operation gave before is given again, and only that: NumPy is the oracle."""

import gc
import itertools
import random
import threading
import weakref

import numpy as np
import pytest

from stridedview import Layout

# By name: what is done to a layout, and to NumPy's array of that shape and those strides.
# Neighbours differ in as little as an operation can.
OPERATIONS = {
    "reversed axes": (lambda x: x.transpose(), lambda a: a.T),
    "axes 1, 0, 2": (lambda x: x.transpose((1, 0, 2)), lambda a: a.transpose(1, 0, 2)),
    "axes 1, 2, 0": (lambda x: x.transpose((1, 2, 0)), lambda a: a.transpose(1, 2, 0)),
    "axes -2, 0, 2": (lambda x: x.permute(-2, 0, 2), lambda a: a.transpose(1, 0, 2)),
    "one axis": (lambda x: x.reshape(-1), lambda a: a.reshape(-1)),
    "one axis, as a tuple": (lambda x: x.reshape((-1,)), lambda a: a.reshape(-1)),
    "two axes": (lambda x: x.reshape((-1, 1)), lambda a: a.reshape(-1, 1)),
    "two other axes": (lambda x: x.reshape((1, -1)), lambda a: a.reshape(1, -1)),
    "four axes": (lambda x: x.reshape((1, 2, -1, 2)), lambda a: a.reshape(1, 2, -1, 2)),
    "five axes": (
        lambda x: x.reshape((1, 2, -1, 2, 1)),
        lambda a: a.reshape(1, 2, -1, 2, 1),
    ),
    "in Fortran's order": (
        lambda x: x.reshape((2, -1), "F"),
        lambda a: a.reshape((2, -1), order="F"),
    ),
    "all": (lambda x: x.slice(slice(None)), lambda a: a[:]),
    "from 1": (lambda x: x.slice(slice(1, None)), lambda a: a[1:]),
    "to 1": (lambda x: x.slice(slice(1)), lambda a: a[:1]),
    "to -1": (lambda x: x.slice(slice(-1)), lambda a: a[:-1]),
    "every second": (lambda x: x.slice(slice(None, None, 2)), lambda a: a[::2]),
    "backwards": (lambda x: x.slice(slice(None, None, -1)), lambda a: a[::-1]),
    "none": (lambda x: x.slice(slice(1, 1)), lambda a: a[1:1]),
    "past the end": (lambda x: x.slice(slice(1, 2**70)), lambda a: a[1 : 2**70]),
    "far before": (lambda x: x.slice(slice(-(2**70), 1)), lambda a: a[-(2**70) : 1]),
    "a NumPy integer": (lambda x: x.slice(slice(np.int8(1))), lambda a: a[: np.int8(1)]),
    "row 0": (lambda x: x.slice(0), lambda a: a[0]),
    "row -1": (lambda x: x.slice(-1), lambda a: a[-1]),
}
SHAPES = [(2, 2, 2), (4, 2, 2), (2, 4, 2), (2, 2, 4), (4, 4, 2)]


def arrays():
    """Give arrays of few shapes and itemsizes, in two orders."""
    return [
        np.empty(shape, f"V{itemsize}", order=order)
        for shape in SHAPES
        for itemsize in (4, 8)
        for order in "CF"
    ]


def layout_of(array):
    return Layout(array.shape, array.strides, itemsize=array.itemsize)


def expected_of(array, operation):
    """Return (layout, offset) of NumPy's result, or None where NumPy has to copy."""
    result = operation(array)
    if not np.shares_memory(result, array) and result.size:
        return None
    return layout_of(result), result.ctypes.data - array.ctypes.data


def test_operation_when_repeated_in_any_order_then_gives_what_numpy_gives():
    cases = [
        (layout_of(array), name, ours, expected_of(array, theirs))
        for array, (name, (ours, theirs)) in itertools.product(arrays(), OPERATIONS.items())
    ]
    cases = [case for case in cases if case[3] is not None]
    assert len(cases) > 300
    order = random.Random(1)
    for _ in range(5):
        order.shuffle(cases)
        for layout, name, ours, (expected, offset) in cases:
            found, moved = ours(layout)
            assert found is expected, (layout, name)
            assert moved == offset or not found.size, (layout, name)


def test_operation_when_its_layout_died_then_another_at_its_address_is_not_taken_for_it():
    for number in range(3000):
        extent = 2 + number % 50
        layout = Layout((extent, number + 1), itemsize=1)
        assert layout.transpose()[0].shape == (number + 1, extent)
        assert layout.slice(slice(1, None))[0].shape == (extent - 1, number + 1)
        assert layout.reshape(-1)[0].shape == (extent * (number + 1),)
        del layout


def test_operation_on_many_layouts_keeps_a_bounded_number_alive():
    held = []
    for number in range(20_000):
        layout = Layout((number + 2, 3), itemsize=2)
        results = layout.transpose()[0], layout.slice(0)[0], layout.reshape(-1)[0]
        held.append(weakref.ref(layout))
        held += [weakref.ref(result) for result in results]
    del layout, results
    gc.collect()
    alive = {id(found) for reference in held if (found := reference()) is not None}
    # The layouts used last (2,048), and two for each of the memo's 512 entries.
    assert len(alive) <= 2048 + 2 * 512


REFUSED = {
    "a shape of another size": (lambda x: x.reshape((3, 5)), ValueError),
    "two unknown extents": (lambda x: x.reshape((-1, -1)), ValueError),
    "a negative extent": (lambda x: x.reshape((-2, 3)), ValueError),
    "an axis twice": (lambda x: x.transpose((0, 0)), ValueError),
    "too few axes": (lambda x: x.transpose((0,)), ValueError),
    "an axis too many": (lambda x: x.transpose((0, 1, 2)), ValueError),
    "an axis out of bounds": (lambda x: x.transpose((0, 2)), IndexError),
    "a row out of bounds": (lambda x: x.slice(2), IndexError),
    "a step of 0": (lambda x: x.slice(slice(0, 1, 0)), ValueError),
    "no index": (lambda x: x.slice(slice("a")), TypeError),
    "more than 64 bits": (lambda x: x.slice(2**70), (IndexError, OverflowError)),
}


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_operation_when_it_is_refused_then_it_is_refused_again(case):
    operation, error = case
    layout = Layout((2, 3), itemsize=4)
    for _ in range(3):
        with pytest.raises(error):
            operation(layout)
        # What is allowed goes on beside it.
        assert layout.reshape((3, 2))[0].shape == (3, 2)
        assert layout.transpose((1, 0))[0].shape == (3, 2)
        assert layout.slice(1)[0].shape == (3,)


def test_operation_when_threads_do_the_same_then_all_get_the_same_objects():
    results, barrier = {}, threading.Barrier(4)

    def work(name):
        barrier.wait()
        results[name] = [
            operation(Layout((2 + number % 300, 4), itemsize=8))[0]
            for number in range(3000)
            for operation in (
                lambda x: x.transpose(),
                lambda x: x.reshape((4, -1)),
                lambda x: x.slice(slice(1, None)),
                lambda x: x.slice(0),
            )
        ]

    threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for other in results.values():
        assert all(a is b for a, b in zip(results[0], other, strict=True))
