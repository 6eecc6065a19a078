"""Launches with many kinds of producers, many streams and many arguments at once."""

import ctypes
import threading

import numpy as np
import pytest
from numba import cuda

import stridedview
from tests import standin
from tests.launching import (
    HIT,
    PRODUCERS,
    Foreign,
    calls_of,
    caught,
    foreign,
    pointer_of,
    producer,
    recorded,
    tensor,
)
from tests.standin.helpers import words_of

pytestmark = pytest.mark.standin


@pytest.fixture
def enabled(driver):
    """Enable for a test, and give the stand-in."""
    with stridedview.enabled():
        yield driver
    driver.producers().set_work_stream(0)


def wide(count):
    """Return a kernel of so many arguments."""
    names = ", ".join(f"a{index}" for index in range(count))
    scope = {}
    exec(f"def wide({names}):\n    pass\n", scope)
    return cuda.jit(scope["wide"])


def vector(size=4, dtype=np.float32):
    return cuda.to_device(np.zeros(size, dtype))


# ---- kinds of producers ----

_EXCHANGE_POINTERS = 9  # the header's version and link, and the functions
_KEPT = []


def library():
    """Return a producer class of a library of its own: it has its own exchange API."""
    base = standin.producers().OnlyExchange
    get, new = ctypes.pythonapi.PyCapsule_GetPointer, ctypes.pythonapi.PyCapsule_New
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    new.restype = ctypes.py_object
    new.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    original = get(base.__dlpack_c_exchange_api__, b"dlpack_exchange_api")
    api = (ctypes.c_uint64 * _EXCHANGE_POINTERS).from_buffer_copy(
        ctypes.string_at(original, 8 * _EXCHANGE_POINTERS)
    )
    _KEPT.append(api)
    capsule = new(ctypes.addressof(api), b"dlpack_exchange_api", None)
    return type("Array", (base,), {"__dlpack_c_exchange_api__": capsule})


@pytest.fixture(scope="module")
def libraries():
    """Give twelve classes of as many libraries."""
    return [library() for _ in range(12)]


def test_launch_when_its_arrays_are_of_twelve_libraries_then_it_has_a_plan(
    enabled, libraries
):
    arrays = [vector(size) for size in range(1, 16)]
    args = [
        *(kind(pointer_of(array), array.shape) for kind, array in zip(libraries, arrays)),  # noqa: B905
        tensor(arrays[12]), arrays[13], stridedview.from_any(arrays[14]),
    ]  # fmt: skip
    kernel = wide(len(args))
    expected = sum(map(words_of, arrays), ())
    for _ in range(2):
        assert recorded(kernel, args).words == expected
    assert calls_of(lambda: kernel[1, 1](*args)) == HIT
    assert stridedview.explain(kernel[1, 1], *args).to_dict()["launch"]["hit"]


def test_launch_when_each_of_many_libraries_has_a_stream_then_it_is_behind_them(
    enabled, libraries
):
    arrays = [vector() for _ in range(12)]
    args = [kind(pointer_of(a), a.shape) for kind, a in zip(libraries, arrays)]  # noqa: B905
    side, named = cuda.stream(), cuda.stream()
    enabled.producers().set_work_stream(int(side.handle))
    kernel = wide(12)
    for _ in range(2):
        enabled.clear()
        kernel[1, 1, named](*args)
        (record,) = enabled.launches()
        assert record.stream == int(named.handle)
        assert enabled.is_behind(record.stream_id, stream_id(side))


def stream_id(stream):
    """Return the stand-in's id of a stream."""
    from cuda.bindings import driver as cu

    return int(cu.cuStreamGetId(cu.CUstream(int(stream.handle)))[1])


# ---- streams that arrays name ----


def naming(array, stream):
    return Foreign(
        pointer_of(array), array.shape, array.dtype, owner=array, stream=int(stream.handle)
    )


@pytest.mark.parametrize("count", [16, 17, 40])
def test_launch_when_its_arrays_name_many_streams_then_it_is_behind_each(enabled, count):
    arrays = [vector(size) for size in range(1, count + 1)]
    streams = [cuda.stream() for _ in range(count)]
    args = [naming(*pair) for pair in zip(arrays, streams, strict=True)]
    kernel = wide(count)
    stridedview.reset_stats()
    for _ in range(2):
        record = recorded(kernel, args)
        assert record.words == sum(map(words_of, arrays), ())
        for stream in streams:
            assert enabled.is_behind(record.stream_id, stream_id(stream))
    fallbacks = stridedview.stats()["fallbacks"]
    assert fallbacks == ({"too many streams": 2} if count > 16 else {})


def test_launch_when_streams_become_too_many_for_its_plan_then_none_is_forgotten(enabled):
    arrays = [vector() for _ in range(20)]
    streams = [cuda.stream() for _ in range(20)]
    kernel = wide(20)
    for kinds in (1, 20, 1, 20):
        args = [naming(a, streams[index % kinds]) for index, a in enumerate(arrays)]
        record = recorded(kernel, args)
        for stream in streams[:kinds]:
            assert enabled.is_behind(record.stream_id, stream_id(stream))
        views = [stridedview.from_any(each) for each in args]
        assert recorded(kernel, views).words == record.words


def test_prepare_when_its_arrays_name_too_many_streams_then_it_is_refused(enabled):
    arrays = [vector() for _ in range(17)]
    args = [naming(array, cuda.stream()) for array in arrays]
    with caught(TypeError, "cannot be prepared: too many streams"):
        stridedview.prepare(wide(17)[1, 1], *args)


# ---- 26 arguments of every kind, from many threads ----


def mixed(number):
    """Return (arguments, the words that must be recorded) of their own for a number."""
    arrays = [vector(size) for size in range(1, 3 + len(PRODUCERS))]
    made = [make(array) for make, array in zip(PRODUCERS.values(), arrays)]  # noqa: B905
    words = [words_of(array) for array in arrays[: len(made)]]
    pair = arrays[-1], number
    args = [
        *made, number, number + 0.5, np.int16(number), np.float32(number), True, (), pair,
        (foreign(arrays[-2]), (producer(arrays[-1], "Plain"), np.uint8(number))),
        *(vector(number + 1) for _ in range(7)),
    ]  # fmt: skip
    words += [
        (number,), (np.float64(number + 0.5).view(np.uint64),), (number,),
        (np.float32(number).view(np.uint32),), (1,), (), (*words_of(arrays[-1]), number),
        (*words_of(arrays[-2]), *words_of(arrays[-1]), number),
        *map(words_of, args[-7:]),
    ]  # fmt: skip
    return args, tuple(int(word) for each in words for word in each)


def test_launch_when_26_mixed_arguments_come_from_threads_then_none_gets_anothers(enabled):
    kernel, count = wide(26), 6
    work = [mixed(number) for number in range(count)]
    assert {len(args) for args, _ in work} == {26}
    configuration, ready, errors = kernel[1, 1], threading.Barrier(count), []

    def run(args):
        try:
            ready.wait()
            for _ in range(30):
                configuration(*args)
        except BaseException as error:  # noqa: BLE001
            errors.append(error)

    enabled.clear()
    threads = [threading.Thread(target=run, args=(args,)) for args, _ in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    by_thread = {}
    for record in enabled.launches():
        by_thread.setdefault(record.thread, []).append(record.words)
    assert sorted(map(len, by_thread.values())) == [30] * count
    expected = sorted(words for _, words in work)
    assert sorted(found[0] for found in by_thread.values()) == expected
    assert all(len(set(found)) == 1 for found in by_thread.values())
    assert len(kernel.overloads) == 1
