"""Producers that speak the DLPack C exchange API, well-behaved and not."""

import gc
import threading
import weakref

import numpy as np
import pytest

from stridedview import _dtype, _ingest, from_any, from_many

pytestmark = pytest.mark.standin

CPU, CUDA, PINNED, MANAGED = 1, 2, 3, 13


def test_float4_when_not_in_pairs_then_there_is_no_such_dtype(producers, memory):
    pairs = producers.Producer(memory, (8,), code=17, bits=4, lanes=2)
    assert from_any(pairs).nbytes == 8
    with pytest.raises(BufferError, match="bits 4, lanes 1"):
        from_any(producers.Producer(memory, (16,), code=17, bits=4, lanes=1))


BEYOND = 1 << 62


@pytest.fixture
def producers(driver):
    module = driver.producers()
    yield module
    module.set_work_stream(0)


@pytest.fixture
def memory(driver):
    address = driver.allocate(4096)
    yield address
    driver.free(address)


# ---- what is taken ----

CLASSES = [
    "Producer", "WithoutBorrow", "WithoutStream", "NewerChained", "NewerAlone",
    "OnlyExchange", "Plain",
]  # fmt: skip


@pytest.mark.parametrize("name", CLASSES)
def test_producer_when_of_any_mood_then_its_tensor_is_seen_whole(producers, memory, name):
    producer = getattr(producers, name)(
        memory, (3, 2), strides=(1, 3), code=0, bits=16, byte_offset=8, device_id=1
    )
    view = from_any(producer)
    assert (view.ptr, view.shape, view.strides_in_items) == (memory + 8, (3, 2), (1, 3))
    assert (view.dtype, view.device, view.readonly) == (np.int16, (CUDA, 1), False)


ROUTES = {
    "Producer": "exchange API",
    "NewerChained": "exchange API",
    "OnlyExchange": "exchange API",
    "NewerAlone": "DLPack",
    "Plain": "DLPack",
}


@pytest.mark.parametrize("name", ROUTES)
def test_route_when_a_producer_was_seen_then_it_is_told(producers, memory, name):
    from_any(getattr(producers, name)(memory, (2,)))
    told = {row["producer"]: row["route"] for row in _ingest.routes()}
    assert told[f"standin_producer.{name}"] == ROUTES[name]


@pytest.mark.parametrize("shape", [(), (5,), (2, 3, 4), (1, 1), (2, 1, 3), (0,), (3, 0, 2)])
@pytest.mark.parametrize("null", [True, False], ids=["NULL strides", "strides"])
def test_strides_when_null_or_compact_then_they_are_numpys(producers, memory, shape, null):
    view = from_any(producers.Producer(memory, shape, strides_null=null))
    expected = np.empty(shape, "f4")
    assert (view.shape, view.size, view.nbytes) == (shape, expected.size, expected.nbytes)
    if expected.size:
        assert view.strides == expected.strides
    assert view.is_c_contiguous()


def test_rank_when_the_most_that_is_supported_then_it_is_taken(producers, memory):
    view = from_any(producers.Producer(memory, (1,) * 62 + (2, 3)))
    assert (view.ndim, view.size) == (64, 6)


@pytest.mark.parametrize("readonly", [True, False])
@pytest.mark.parametrize("name", ["Producer", "Plain", "NewerAlone", "WithoutBorrow"])
def test_readonly_flag_when_set_then_the_view_has_it(producers, memory, name, readonly):
    view = from_any(getattr(producers, name)(memory, (2,), readonly=readonly))
    assert view.readonly is readonly


@pytest.mark.parametrize("kind", [CUDA, PINNED, MANAGED])
def test_device_when_one_that_cuda_addresses_then_it_is_kept(producers, memory, kind):
    assert from_any(producers.Producer(memory, (2,), device_type=kind)).device == (kind, 0)


@pytest.mark.parametrize("device_id", [0, 3, -1])
def test_device_when_the_host_then_its_number_is_zero(producers, device_id):
    array = np.arange(4, dtype="f4")
    view = from_any(
        producers.Producer(array.ctypes.data, (4,), device_type=CPU, device_id=device_id)
    )
    assert view.device == (CPU, 0)
    assert np.asarray(view).tolist() == array.tolist()


@pytest.mark.parametrize("entry", [e for e in _dtype.entries() if e.dlpack], ids=str)
def test_dtype_when_dlpack_says_it_then_the_table_has_it(producers, memory, entry):
    code, bits = entry.dlpack
    lanes = 2 if entry.name.endswith("_x2") else 1
    view = from_any(producers.Producer(memory, (3,), code=code, bits=bits, lanes=lanes))
    assert view.dtype_name == entry.name
    assert view.itemsize == entry.itemsize


def test_empty_when_it_has_no_address_then_it_is_taken(producers):
    view = from_any(producers.Producer(0, (0, 3)))
    assert (view.ptr, view.shape, view.size) == (0, (0, 3), 0)


def test_host_memory_when_not_aligned_then_it_is_taken_as_numpy_takes_it(producers):
    raw = np.zeros(9, "u1")
    view = from_any(producers.Producer(raw.ctypes.data + 1, (2,), device_type=CPU))
    raw[1:] = np.frombuffer(np.array([1.5, -2], "f4").tobytes(), "u1")
    assert np.asarray(view).tolist() == [1.5, -2]


# ---- what is refused ----

REFUSED = {
    "a negative extent": ({"shape": (2, -1)}, BufferError, "extent -1 of axis 1"),
    "a negative extent beside zero": ({"shape": (0, -3)}, BufferError, "extent -3"),
    "too many items": (
        {"shape": (1 << 40, 1 << 40), "strides_null": True}, OverflowError, "64 bits"),
    "too many bytes": (
        {"shape": (BEYOND,), "strides_null": True}, OverflowError, "64 bits"),
    "too wide a stride": (
        {"shape": (2, 2), "strides": (BEYOND, 1)}, OverflowError, "axis 0"),
    "strides that overflow together": (
        {"shape": (2,) * 8, "strides": (BEYOND // 16,) * 8}, OverflowError, "64 bits"),
    "several lanes": ({"lanes": 4}, BufferError, "lanes 4"),
    "an unknown code": ({"code": 99}, BufferError, "code 99"),
    "a code beyond the table": ({"code": 200}, BufferError, "code 200"),
    "no bits": ({"bits": 0}, BufferError, "bits 0"),
    "a boolean of one bit": ({"code": 6, "bits": 1}, BufferError, "bits 1"),
    "opaque handles": ({"code": 3, "bits": 64}, BufferError, "code 3"),
    "an OpenCL device": ({"device_type": 4}, BufferError, "device type 4"),
    "a ROCm device": ({"device_type": 10}, BufferError, "device type 10"),
    "no device": ({"device_type": 0}, BufferError, "device type 0"),
    "a negative device": ({"device_id": -2}, BufferError, "device id -2"),
    "memory that is not there": ({"pointer": 0}, BufferError, "0x0"),
    "an offset into nothing": (
        {"pointer": 0, "byte_offset": 8192}, BufferError, "freed or never"),
    "the first page": ({"pointer": 0x28}, BufferError, "0x28"),
    "an offset out of memory": (
        {"byte_offset": (1 << 64) - 8}, BufferError, "beyond the end"),
    "a pointer between items": ({"byte_offset": 2}, BufferError, "not aligned to the 4"),
}  # fmt: skip


@pytest.mark.parametrize("name", ["Producer", "WithoutBorrow", "Plain"])
@pytest.mark.parametrize("case", REFUSED)
def test_producer_when_it_claims_nonsense_then_it_is_refused(producers, memory, case, name):
    how, error, match = REFUSED[case]
    producer = getattr(producers, name)(**{"pointer": memory, "shape": (2,), **how})
    with pytest.raises(error, match=match):
        from_any(producer)
    gc.collect()
    assert producer.exports == 0


class Odd(Exception):
    """An error of the producer's own."""


FAILURES = {
    "a class": (BufferError, BufferError, "asked to fail"),
    "an instance": (BufferError("not today"), BufferError, "not today"),
    "an error of its own": (Odd("mine"), Odd, "mine"),
    "a code alone": (-1, (BufferError, RuntimeError), "without saying why|asked to fail"),
}


@pytest.mark.parametrize("name", ["Producer", "WithoutBorrow", "Plain", "NewerChained"])
@pytest.mark.parametrize("case", FAILURES)
def test_producer_when_it_fails_then_its_own_error_is_told(producers, memory, case, name):
    fail, error, match = FAILURES[case]
    producer = getattr(producers, name)(memory, (2,), fail=fail)
    for _ in range(2):
        with pytest.raises(error, match=match):
            from_any(producer)
    assert producer.exports == 0
    assert from_any(getattr(producers, name)(memory, (2,))).ptr == memory


@pytest.mark.parametrize("name", ["Producer", "Plain"])
@pytest.mark.parametrize("version", [(2, 0), (0, 9)])
def test_tensor_when_of_another_major_version_then_it_is_refused_and_given_back(
    producers, memory, name, version
):
    producer = getattr(producers, name)(memory, (2,), version=version)
    with pytest.raises(BufferError, match=f"version {version[0]}.{version[1]}"):
        from_any(producer)
    assert producer.exports == 0


def test_tensor_when_of_a_newer_minor_version_then_it_is_taken(producers, memory):
    assert from_any(producers.Producer(memory, (2,), version=(1, 99))).ptr == memory


def test_class_when_passed_in_place_of_an_instance_then_type_error(producers):
    with pytest.raises(TypeError, match=r"builtins\.type is not an array"):
        from_any(producers.Producer)


# ---- lifetime and threads ----


@pytest.mark.parametrize("name", CLASSES)
def test_export_when_the_view_goes_then_it_ends(producers, memory, name):
    producer = getattr(producers, name)(memory, (4,))
    view = from_any(producer)
    part = view[1:]
    del view
    gc.collect()
    assert producer.exports == 1
    del part
    assert producer.exports == 0


def test_producer_when_a_view_lives_then_it_is_kept_and_no_longer(producers, memory):
    class Watched(producers.Producer):
        __slots__ = ("__weakref__",)

    producer = Watched(memory, (4,))
    watch = weakref.ref(producer)
    view = from_any(producer)
    del producer
    gc.collect()
    assert watch() is not None
    del view
    gc.collect()
    assert watch() is None


def test_subclass_when_it_inherits_the_interface_then_it_is_used(producers, memory):
    class Derived(producers.Producer):
        __slots__ = ()

    before = producers.counts()
    assert from_any(Derived(memory, (4,))).shape == (4,)
    assert producers.counts()["managed"] == before["managed"] + 1


def test_import_when_many_threads_do_it_at_once_then_each_is_right(producers, memory):
    def classes():
        # New types, so that classifying runs in parallel too.
        return [
            type(f"Fresh{i}", (producers.Producer,), {"__slots__": ()}) for i in range(20)
        ]

    kinds, wrong, go = classes(), [], threading.Barrier(8)

    def work(number):
        go.wait()
        for round_ in range(20):
            for kind in kinds:
                shape = (number + 1, round_ + 1)
                view = from_any(kind(memory, shape, device_id=number))
                if (view.shape, view.device, view.ptr) != (shape, (CUDA, number), memory):
                    wrong.append((shape, view))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_types_when_more_are_seen_than_are_kept_then_all_are_still_taken(producers, memory):
    first = producers.Producer(memory, (2,))
    from_any(first)
    for number in range(4200):
        from_any(type(f"T{number}", (producers.Producer,), {"__slots__": ()})(memory, (3,)))
    assert from_any(first).shape == (2,)
    assert len(_ingest.routes()) <= 4096


def test_from_many_when_one_is_refused_then_its_place_is_told(producers, memory):
    good = producers.Producer(memory, (2,))
    views = from_many([good, good])
    assert [view.ptr for view in views] == [memory] * 2
    del views
    with pytest.raises(BufferError, match=r"item 2: its pointer 0x\w+ is not aligned"):
        from_many([good, good, producers.Producer(memory + 1, (2,))])
    gc.collect()
    assert good.exports == 0


def test_stream_when_asked_for_then_it_is_put_behind_the_producers_own(producers, driver):
    from numba import cuda

    array = cuda.device_array(4, "f4")
    pointer = array.device_ctypes_pointer.value
    mine, theirs = cuda.stream(), cuda.stream()
    producers.set_work_stream(int(theirs.handle))
    before = len(driver.orderings())
    from_many([producers.Producer(pointer, (4,)) for _ in range(3)], stream=mine)
    made = driver.orderings()[before:]
    # One wait for three arrays of one stream.
    assert [(one.recorded_on, one.waiting) for one in made] == [
        (int(theirs.handle), int(mine.handle))
    ]
    with pytest.raises(RuntimeError, match="no work stream"):
        from_any(producers.WithoutStream(pointer, (4,)), stream=mine)
