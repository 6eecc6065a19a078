"""Objects that speak DLPack through ``__dlpack__`` alone, with capsules of every form."""

import ctypes
import gc

import numpy as np
import pytest

from stridedview import from_any
from tests.standin._torch import _DELETER, _Managed, _Tensor

CPU, CUDA = 1, 2


class _Legacy(ctypes.Structure):
    _fields_ = [("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _DELETER)]


def _new_capsule(address, name):
    make = ctypes.pythonapi.PyCapsule_New
    make.restype = ctypes.py_object
    make.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    return make(address, name, None)


class Exporter:
    """Lends a host array through capsules of any form, and counts the deleter's calls."""

    def __init__(self, items, **claims):
        self.items = items
        self.deleted = 0
        self.asked = []
        self.claims = claims
        self._shape = (ctypes.c_int64 * 65)(*(items.shape or (1,) * 65))
        self._strides = (ctypes.c_int64 * 65)(
            *(stride // items.itemsize for stride in items.strides)
        )
        self._deleter = _DELETER(self._delete)
        self.form = claims.get("form", "versioned")
        tensor = _Tensor(
            items.ctypes.data,
            claims.get("device_type", CPU),
            0,
            claims.get("rank", items.ndim),
            claims.get("code", 2),
            items.itemsize * 8,
            1,
            None if claims.get("no_shape") else self._shape,
            None if claims.get("no_strides") else self._strides,
            0,
        )
        version, flags = claims.get("version", (1, 0)), claims.get("flags", 0)
        self.versioned = _Managed(*version, 0, self._deleter, flags, tensor)
        self.legacy = _Legacy(tensor, None, self._deleter)
        if claims.get("no_deleter"):
            self.versioned.deleter = self.legacy.deleter = _DELETER()

    def _delete(self, managed):
        self.deleted += 1

    def __dlpack_device__(self):
        return self.claims.get("device", (CPU, 0))

    def __dlpack__(self, **options):
        self.asked.append(options)
        if self.form == "old" and "max_version" in options:
            raise TypeError("__dlpack__() got an unexpected keyword argument 'max_version'")
        if self.form == "versioned":
            return self.capsule(self.versioned, b"dltensor_versioned")
        return self.capsule(self.legacy, b"dltensor")

    def capsule(self, managed, name):
        return _new_capsule(ctypes.addressof(managed), self.claims.get("name", name))


FORMS = ["versioned", "legacy", "old"]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("no_strides", [True, False], ids=["NULL strides", "strides"])
def test_capsule_when_of_any_form_then_its_memory_is_shared_and_deleted_once(
    form, no_strides
):
    items = np.arange(6, dtype="f4").reshape(2, 3)
    exporter = Exporter(items, form=form, no_strides=no_strides)
    view = from_any(exporter)
    np.testing.assert_array_equal(np.asarray(view), items)
    assert np.shares_memory(np.asarray(view), items)
    assert (view.device, view.readonly, view.strides) == ((CPU, 0), False, items.strides)
    again = view[1:]
    del view
    gc.collect()
    assert exporter.deleted == 0
    del again
    gc.collect()
    assert exporter.deleted == 1


def test_capsule_when_made_without_a_deleter_then_nothing_is_called():
    items = np.ones(3, "f4")
    for form in FORMS:
        assert from_any(Exporter(items, form=form, no_deleter=True)).shape == (3,)
        gc.collect()


def test_capsule_when_asked_for_then_the_newest_form_is_asked_first():
    exporter = Exporter(np.ones(3, "f4"), form="old")
    from_any(exporter)
    assert [sorted(options) for options in exporter.asked] == [["max_version"], []]
    assert exporter.asked[0]["max_version"][0] == 1


def test_capsule_when_on_a_device_then_the_legacy_stream_is_named():
    exporter = Exporter(np.ones(3, "f4"), device_type=CUDA, device=(CUDA, 0))
    view = from_any(exporter)
    assert exporter.asked[0]["stream"] == 1
    assert (view.stream, view.device) == (1, (CUDA, 0))


@pytest.mark.parametrize("flags", [0, 1, 3])
def test_capsule_when_flagged_read_only_then_the_view_is(flags):
    assert from_any(Exporter(np.ones(3, "f4"), flags=flags)).readonly is bool(flags & 1)


ZERO_D = np.array(2, "f4")
BAD_CAPSULES = {
    "another name": ({"name": b"tensor"}, BufferError, "unused DLPack capsule", 0),
    "a used name": ({"name": b"used_dltensor"}, BufferError, "unused DLPack capsule", 0),
    "a newer major": ({"version": (2, 1)}, BufferError, "version 2.1", 1),
    "rank 65": ({"rank": 65}, BufferError, "65 axes", 1),
    "a negative rank": ({"rank": -1}, BufferError, "-1 axes", 1),
    "a huge rank": ({"rank": 2**31 - 1}, BufferError, "axes", 1),
    "no shape": ({"rank": 1, "no_shape": True}, BufferError, "without a shape", 1),
    "an unknown type": ({"code": 77}, BufferError, "code 77", 1),
    "a foreign device": ({"device_type": 8}, BufferError, "device type 8", 1),
}


@pytest.mark.parametrize("case", BAD_CAPSULES)
@pytest.mark.parametrize("form", ["versioned", "legacy"])
def test_capsule_when_it_claims_nonsense_then_it_is_refused_and_deleted_once(case, form):
    claims, error, match, deleted = BAD_CAPSULES[case]
    if form == "legacy" and "version" in claims:
        # The old form carries none: that its first word is not one is the point.
        claims = {**claims, "form": form}
        assert from_any(Exporter(ZERO_D, **claims)).shape == ()
        return
    exporter = Exporter(ZERO_D, form=form, **claims)
    with pytest.raises(error, match=match):
        from_any(exporter)
    gc.collect()
    assert exporter.deleted == deleted


class Once:
    """Gives the same capsule each time."""

    def __init__(self, given, device=(CPU, 0)):
        self.given = given
        self.device = device

    def __dlpack__(self, stream=None, max_version=None):
        return self.given

    def __dlpack_device__(self):
        return self.device


def test_capsule_when_given_twice_then_the_second_is_refused():
    exporter = Exporter(np.ones(3, "f4"))
    once = Once(exporter.__dlpack__())
    view = from_any(once)
    with pytest.raises(BufferError, match="unused DLPack capsule"):
        from_any(once)
    assert view.shape == (3,)
    assert exporter.deleted == 0
    del view
    gc.collect()
    assert exporter.deleted == 1


@pytest.mark.parametrize(
    "given", [None, 7, b"dltensor", object()], ids=lambda given: type(given).__name__
)
def test_dlpack_when_it_gives_no_capsule_then_refused(given):
    with pytest.raises(BufferError, match="unused DLPack capsule"):
        from_any(Once(given))


@pytest.mark.parametrize(
    "device", [None, 1, (1,), ("cpu", 0), (1.0, 0), [2, 0, 0]], ids=repr
)
def test_dlpack_device_when_it_is_none_then_type_error(device):
    with pytest.raises(TypeError, match="device"):
        from_any(Once(None, device))


def test_dlpack_when_it_has_no_device_then_type_error():
    class Half:
        def __dlpack__(self):
            raise AssertionError("not to be called")

    with pytest.raises(TypeError, match="not __dlpack_device__"):
        from_any(Half())


def test_dlpack_when_none_then_the_class_does_not_speak_it():
    class Silent(Once):
        __dlpack__ = None

    with pytest.raises(TypeError, match="is not an array"):
        from_any(Silent(None))


def test_dlpack_when_it_takes_no_arguments_then_a_host_array_is_taken():
    class Bare:
        def __init__(self):
            self.items = np.arange(3)

        def __dlpack__(self):
            return self.items.__dlpack__()

        def __dlpack_device__(self):
            return self.items.__dlpack_device__()

    assert np.asarray(from_any(Bare())).tolist() == [0, 1, 2]


def test_own_views_when_given_back_as_capsules_then_they_are_as_before():
    items = np.arange(24.0).reshape(4, 6)[1:, ::2]
    items.flags.writeable = False
    view = from_any(items)

    class Wrapped:
        __dlpack__ = lambda self, **options: view.__dlpack__(**options)  # noqa: E731
        __dlpack_device__ = lambda self: view.__dlpack_device__()  # noqa: E731

    again = from_any(Wrapped())
    assert (again.ptr, again.layout, again.readonly) == (view.ptr, view.layout, True)
