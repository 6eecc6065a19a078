"""Targets whose items share memory, values that are no plain arrays, and records.

On the stand-in driver the copy kernels are acted out; with
STRIDEDVIEW_TEST_DRIVER=real the same tests run on the GPU.
"""

import copy
import pickle

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided

import stridedview as sv

pytestmark = pytest.mark.usefixtures("kernels")


# ---- items that share bytes --------------------------------------------------------------

# Shape and strides (bytes) over 16 items of 4 bytes.
OVERLAPPING = {
    "windows": ((4, 3), (4, 4)),
    "half an item": ((6,), (2,)),
    "backwards": ((4, 3), (4, -4)),
    "a stride of 0 too": ((2, 4, 3), (0, 4, 4)),
}
WRITES = {
    "copy_to_device, host": lambda v, x: v.copy_to_device(x),
    "copy_to_device, device": lambda v, x: v.copy_to_device(sv.to_device(x)),
    "an assignment": lambda v, x: v.setitem(..., x),
    "an assignment, device": lambda v, x: v.setitem(..., sv.to_device(x)),
    "a number": lambda v, _: v.setitem(..., 1),
    "a row": lambda v, x: v.setitem(..., x[..., :1]),
    "fill": lambda v, _: v.fill(0),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
@pytest.mark.parametrize("name", OVERLAPPING)
def test_target_when_its_items_overlap_on_a_device_then_refused(name, write):
    shape, strides = OVERLAPPING[name]
    base = sv.to_device(np.arange(16, dtype="i4"))
    target = base.as_strided(shape, strides, 16)
    with pytest.raises(ValueError, match=r"items overlap: shape .* strides .* bytes"):
        write(target, np.ones(shape, "i4"))
    assert base.copy_to_host().tolist() == list(range(16))


@pytest.mark.parametrize("name", OVERLAPPING)
def test_target_when_its_items_overlap_on_the_host_then_as_numpy(name):
    shape, strides = OVERLAPPING[name]
    ours, numpys = np.arange(16, dtype="i4"), np.arange(16, dtype="i4")
    values = np.arange(100, 100 + np.prod(shape), dtype="i4").reshape(shape)
    as_strided(numpys[4:], shape, strides)[...] = values
    sv.to_device(values).copy_to_host(as_strided(ours[4:], shape, strides))
    assert ours.tolist() == numpys.tolist()


REPEATED = {
    "rows": ((5, 3), (0, 8), [(5, 3), (3,), (5, 1), (1, 3), (), (1, 5, 3)]),
    "columns": ((5, 3), (8, 0), [(5, 3), (3,), (5, 1), (1, 3), ()]),
    "all": ((5, 3), (0, 0), [(5, 3), (3,), (5, 1), ()]),
}


@pytest.mark.parametrize("where", ["host", "device"])
@pytest.mark.parametrize("name", REPEATED)
def test_target_when_it_repeats_itself_then_the_last_item_stays(name, where):
    shape, strides, given = REPEATED[name]
    for source in given:
        ours, numpys = sv.to_device(np.zeros(8)), np.zeros(8)
        value = np.arange(1.0, 1 + np.prod(source)).reshape(source)
        as_strided(numpys, shape, strides)[...] = value
        target = ours.as_strided(shape, strides)
        target[...] = value if where == "host" else sv.to_device(value)
        assert ours.copy_to_host().tolist() == numpys.tolist(), source


# ---- masked arrays -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "use",
    [
        lambda view, masked: view.setitem(..., masked),
        lambda view, masked: view.setitem(0, masked[0]),
        lambda view, masked: view.copy_to_device(masked),
        lambda view, masked: view.copy_to_host(masked),
        lambda view, masked: view.fill(masked),
    ],
    ids=["an assignment", "a row", "copy_to_device", "copy_to_host", "fill"],
)
def test_copy_when_an_array_is_masked_then_refused_as_by_to_device(use):
    masked = np.ma.array(np.zeros((2, 3)), mask=[[0, 1, 0], [1, 0, 0]])
    with pytest.raises(TypeError) as wanted:
        sv.to_device(masked)
    with pytest.raises(TypeError) as caught:
        use(sv.zeros((2, 3)), masked)
    assert str(caught.value) == str(wanted.value)


# ---- records -----------------------------------------------------------------------------


def _structured():
    array = np.zeros(3, np.dtype([("a", "u1"), ("b", "f8"), ("c", "i2", 2)], align=True))
    array["a"], array["b"], array["c"] = (
        [1, 2, 3],
        [0.5, 1.5, 2.5],
        [[1, 2], [3, 4], [5, 6]],
    )
    return array


def test_record_can_be_assigned_copied_and_sent():
    array = _structured()
    view, expected = sv.to_device(array), array.copy()
    view[0], expected[0] = view[1], expected[1]
    view[2:], expected[2:] = view[0], expected[0]
    assert str(view.copy_to_host()) == str(expected)
    assert str(sv.to_device(view[1]).copy_to_host()) == str(expected[1])
    other = sv.to_device(array)
    other[0].copy_to_device(view[1])
    assert str(other[0].copy_to_host()) == str(array[1])


def test_record_when_copied_or_pickled_then_it_is_a_record_again():
    view = sv.to_device(_structured())
    for again in (
        copy.copy(view[1]),
        copy.deepcopy(view[1]),
        pickle.loads(pickle.dumps(view[1])),
    ):
        assert type(again) is type(view[1])
        assert (again["a"], again["b"], again["c"].copy_to_host().tolist()) == (
            2,
            1.5,
            [3, 4],
        )
    apart = copy.deepcopy(view[1])
    view[1]["a"] = 9
    assert (apart["a"], copy.copy(view[1])["a"]) == (2, 9)


def test_several_fields_when_asked_for_then_the_error_says_so():
    view = sv.to_device(_structured())
    with pytest.raises(IndexError, match=r"several fields.*one field at a time"):
        view[["a", "b"]]
