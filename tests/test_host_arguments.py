"""Arrays of the host: copied in, and back into their elements and nothing else.

The stand-in runs no kernel; a callback within the launch reads what the kernel would see
and writes what it would leave.
"""

import ctypes
import warnings

import numpy as np
import pytest
import torch
from cuda.core._utils.cuda_utils import CUDAError
from numba import cuda
from numba.cuda.core.errors import NumbaPerformanceWarning

import stridedview
from tests import standin
from tests.launching import caught, pointer_of
from tests.standin.helpers import words_of

pytestmark = pytest.mark.standin


@cuda.jit
def take(a):
    pass


@cuda.jit
def take_two(a, b):
    pass


def device_view(words, host):
    """Return what a kernel sees of an array by its words, as (indices, array)."""
    ndim = host.ndim
    size, itemsize, pointer = words[2:5]
    shape = words[5 : 5 + ndim]
    strides = [word - (word >> 63 << 64) for word in words[5 + ndim : 5 + 2 * ndim]]
    assert (size, itemsize, shape) == (host.size, host.itemsize, host.shape)
    return pointer, strides


def offset(index, strides):
    return sum(map(int.__mul__, index, strides))


def run(kernel, argument, host, result=None):
    """Launch over a host array; return the values that the kernel saw.

    `result` is what the kernel leaves there: an array of the host's shape, or a dict of the
    items that it writes by their index.
    """
    seen = []
    if isinstance(result, np.ndarray):
        result = {index: result[index] for index in np.ndindex(host.shape)}

    def body(launch):
        pointer, strides = device_view(launch.words, host)
        values = np.empty(host.shape, host.dtype)
        for index in np.ndindex(host.shape):
            data = standin.read(pointer + offset(index, strides), host.itemsize)
            values[index] = np.frombuffer(data, host.dtype)[0]
        for index, item in (result or {}).items():
            standin.write(pointer + offset(index, strides), item.tobytes())
        seen.append(values)

    standin.on_launch(body)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NumbaPerformanceWarning)
            kernel[1, 1](argument)
    finally:
        standin.on_launch(None)
    (values,) = seen
    return values


def base():
    return np.arange(1, 1 + 6 * 8 * 2, dtype=np.float32).reshape(6, 8, 2)


RECORD = np.dtype([("x", np.int32), ("y", np.float64)], align=True)
VIEWS = {
    "contiguous": lambda: base(),
    "in F": lambda: np.asfortranarray(base()),
    "strided": lambda: base()[::2, 1::3, 0],
    "reversed": lambda: base()[::-1, :, 1],
    "reversed in steps": lambda: base().reshape(-1)[::-3],
    "transposed": lambda: base().T,
    "offset": lambda: base()[2:, 3:],
    "rank 0": lambda: np.array(3.0),
    "rank 0 of a larger one": lambda: base()[2, 3, 1, ...],
    "one item": lambda: np.array([[5]], np.int8),
    "bools": lambda: np.array([True, False, True]),
    "complex": lambda: np.arange(4, dtype=np.complex128) * 1j,
    "half": lambda: np.arange(5, dtype=np.float16)[::2],
    "times": lambda: np.arange(4).astype("datetime64[s]"),
    "records": lambda: np.array([(1, 2.5), (3, 4.5), (5, 6.5)], RECORD),
    "records in steps": lambda: np.array([(1, 2.5), (3, 4.5), (5, 6.5)], RECORD)[::2],
    "a field of records": lambda: np.array([(1, 2.5), (3, 4.5)], RECORD)["y"],
}


def owner_of(array):
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def memory_of(array):
    """Return a copy of an array's bytes as they lie, padding included."""
    return np.frombuffer(ctypes.string_at(array.ctypes.data, array.nbytes), np.uint8)


def other_values(host):
    """Return values unlike those of an array, of its shape and dtype."""
    if host.dtype.names:
        result = host.copy()
        result["x"] += 100
        return result
    if host.dtype == bool:
        return ~host
    return np.asarray(
        host + host.dtype.type(7) if host.dtype.kind != "M" else host + 7
    ).astype(host.dtype)


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("hint", [None, cuda.InOut], ids=["plain", "InOut"])
def test_host_array_when_launched_then_only_its_elements_are_copied_in_and_back(
    enabled, name, hint
):
    host = VIEWS[name]()
    owner = owner_of(host)
    before, result = host.copy(), other_values(host)
    expected = memory_of(owner)
    untouched = np.ones(owner.nbytes, bool)
    mark = np.lib.stride_tricks.as_strided(
        untouched[host.ctypes.data - owner.ctypes.data :],
        (*host.shape, host.itemsize), (*host.strides, 1),
    )  # fmt: skip
    mark[...] = False
    seen = run(take, hint(host) if hint else host, host, result)
    assert (seen == before).all()
    assert (host == result).all()
    assert (memory_of(owner) == expected)[untouched].all()


@pytest.mark.parametrize("name", ["contiguous", "strided", "reversed"])
def test_host_array_when_passed_as_in_then_it_is_not_copied_back(enabled, name):
    host = VIEWS[name]()
    before = host.copy()
    seen = run(take, cuda.In(host), host, other_values(host))
    assert (seen == before).all()
    assert (host == before).all()


@pytest.mark.parametrize("name", ["contiguous", "strided", "reversed"])
def test_host_array_when_passed_as_out_then_it_is_only_copied_back(enabled, name):
    host = VIEWS[name]()
    result = other_values(host)
    take[1, 1](cuda.Out(host))
    enabled.reset_calls()
    run(take, cuda.Out(host), host, result)
    assert not any("HtoD" in call for call in enabled.calls())
    assert (host == result).all()


@pytest.mark.parametrize(
    "hint", [None, cuda.InOut, cuda.Out], ids=["plain", "InOut", "Out"]
)
def test_host_array_when_read_only_then_it_is_copied_in_and_never_back(enabled, hint):
    host = base()
    host.flags.writeable = False
    before = host.copy()
    run(take, hint(host) if hint else host, host, other_values(before))
    assert (host == before).all()


def test_host_array_when_read_only_and_the_kernel_writes_then_it_does_not_compile(enabled):
    @cuda.jit
    def write(a):
        a[0] = 1

    host = np.arange(4, dtype=np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NumbaPerformanceWarning)
        write[1, 1](host)
        host.flags.writeable = False
        with caught(Exception, "Cannot modify readonly array"):
            write[1, 1](host)


def test_host_array_when_broadcast_then_every_element_is_seen(enabled):
    host = np.broadcast_to(np.arange(4, dtype=np.float32), (3, 4))
    assert (run(take, host, host) == host).all()


def test_host_array_when_empty_then_nothing_is_copied(enabled):
    host = np.empty((0, 3), np.float32)
    take[1, 1](host)
    enabled.reset_calls()
    take[1, 1](host)
    assert not any("Memcpy" in call or "Alloc" in call for call in enabled.calls())
    assert enabled.launches()[-1].words[2:5] == (0, 4, 0)


@pytest.mark.parametrize("name", ["contiguous", "strided", "transposed", "rank 0"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64], ids=["float32", "int64"])
def test_cpu_tensor_when_launched_then_it_is_copied_in_and_back(enabled, name, dtype):
    whole = torch.arange(48).reshape(6, 8).to(dtype)
    made = {
        "contiguous": whole,
        "strided": whole[::2, 1::3],
        "transposed": whole.T,
        "rank 0": whole[2, 3],
    }[name]
    before = whole.clone()
    host = made.numpy()
    result = other_values(host)
    seen = run(take, made, host.copy(), result)
    mask = torch.zeros(6, 8, dtype=torch.bool)
    mask.as_strided(made.shape, made.stride(), made.storage_offset())[...] = True
    assert (made.numpy() == result).all()
    assert (whole[~mask] == before[~mask]).all()
    assert (seen == before.as_strided(made.shape, made.stride(),
                                      made.storage_offset()).numpy()).all()  # fmt: skip


def test_host_arrays_when_beside_device_arrays_and_numbers_then_all_are_right(enabled):
    host = np.arange(4, dtype=np.float32)
    device = cuda.to_device(np.zeros(3, np.int16))
    seen = []
    enabled.on_launch(lambda launch: seen.append(enabled.read(launch.words[11], 16)))
    with pytest.warns(NumbaPerformanceWarning):
        take_two[1, 1]((device, 2.5)[:1], host)
    assert enabled.launches()[-1].words[:7] == words_of(device)
    assert seen == [host.tobytes()]


def test_host_array_when_twice_among_the_arguments_then_both_are_copied(enabled):
    host = np.arange(4, dtype=np.float32)
    with pytest.warns(NumbaPerformanceWarning):
        take_two[1, 1](host, host)
    words = enabled.launches()[-1].words
    assert words[4] != words[11]


def test_host_array_when_the_launch_fails_then_nothing_is_copied_back(enabled):
    host = np.arange(4, dtype=np.float32)
    with pytest.warns(NumbaPerformanceWarning):
        take[1, 1](host)
    enabled.on_launch(lambda launch: enabled.write(launch.words[4], b"\1" * 16))
    enabled.fail_next("cuLaunchKernelEx", 700)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NumbaPerformanceWarning)
        with pytest.raises(CUDAError, match="ILLEGAL_ADDRESS"):
            take[1, 1](host)
    assert (host == np.arange(4)).all()


def test_host_array_when_launched_on_a_stream_then_its_copies_are_on_it(enabled):
    host, stream = np.arange(4, dtype=np.float32), cuda.stream()
    result = np.array([9, 8, 7, 6], np.float32)
    enabled.on_launch(lambda launch: enabled.write(launch.words[4], result.tobytes()))
    with pytest.warns(NumbaPerformanceWarning), enabled.traced() as names:
        take[1, 1, stream](host)
    assert enabled.launches()[-1].stream == int(stream.handle)
    copies = [name for name in names if name.startswith("cuMemcpy")]
    assert all("Async" in name for name in copies)
    # The values are there when the launch returns.
    assert "cuStreamSynchronize" in names[names.index(copies[-1]) :]
    assert (host == result).all()


# ---- elements that share memory ----

strided = np.lib.stride_tricks.as_strided
SHARED = {
    "stride 0": lambda owner: strided(owner, (4,), (0,)),
    "broadcast rows": lambda owner: strided(owner, (3, 4), (0, 4)),
    "broadcast columns": lambda owner: strided(owner[2:], (4, 3), (8, 0)),
    "broadcast twice": lambda owner: strided(owner, (2, 3, 2), (0, 8, 0)),
    "windows": lambda owner: strided(owner, (3, 2), (4, 4)),
    "windows with gaps": lambda owner: strided(owner[1:], (3, 2), (8, 16)),
    "windows from behind": lambda owner: strided(owner[9:], (3, 3), (-4, -8)),
    "windows both ways": lambda owner: strided(owner[5:], (3, 3), (4, -4)),
    "broadcast windows": lambda owner: strided(owner, (2, 4, 3), (0, 4, 4)),
    "misaligned windows": lambda owner: strided(
        owner.view(np.uint8)[2:-2].view(np.float32), (3, 2), (4, 4)
    ),
    "complex windows": lambda owner: strided(owner.view(np.complex64), (3, 2), (8, 8)),
    "windows within items": lambda owner: strided(owner.view(np.complex64), (5,), (4,)),
    "records": lambda owner: strided(owner.view("i4,f4"), (3, 2), (8, 8)),
}


@pytest.mark.parametrize("name", SHARED)
@pytest.mark.parametrize("which", ["first", "last", "one", "all"])
def test_host_array_when_its_elements_share_memory_then_the_devices_share_it_likewise(
    enabled, name, which
):
    owner = np.arange(1, 13, dtype=np.float32)
    host = SHARED[name](owner)
    indices = list(np.ndindex(host.shape))
    chosen = {"first": indices[:1], "last": indices[-1:], "one": indices[1:2]}
    written = {
        index: np.array([(place + 100, place + 0.5)], "i4,f4")[0]
        if host.dtype.names
        else host.dtype.type(100 + place)
        for place, index in enumerate(chosen.get(which, indices))
    }
    # What a kernel would leave that writes to the memory itself.
    expected = owner.copy()
    twin = SHARED[name](expected)
    for index, item in written.items():
        twin[index] = item
    before = host.copy()
    assert (run(take, host, host, written) == before).all()
    assert owner.tobytes() == expected.tobytes()


def test_host_array_when_broadcast_from_one_item_then_one_is_copied(enabled):
    host = np.broadcast_to(np.float32(3), (1 << 40,))
    seen = []
    enabled.on_launch(lambda launch: seen.append(enabled.read(launch.words[4], 4)))
    with pytest.warns(NumbaPerformanceWarning):
        take[1, 1](host)
    assert seen == [np.float32(3).tobytes()]
    words = enabled.launches()[-1].words
    assert words[2:4] == (1 << 40, 4)
    assert words[5:] == (1 << 40, 0)


@pytest.mark.parametrize("hint", [cuda.In, None, cuda.InOut, cuda.Out])
def test_host_array_when_items_that_share_memory_are_not_aligned_then_none_is_lost(
    enabled, hint
):
    owner = np.arange(4, dtype=np.float32)
    host = strided(owner, (4,), (2,))
    if hint is cuda.In:
        assert (run(take, hint(host), host) == host).all()
        return
    message = "argument 1 'a': .*share memory .* aligned to the 4 bytes of float32.*copy"
    with caught(BufferError, message):
        take[1, 1](hint(host) if hint else host)
    host.flags.writeable = False
    assert (run(take, host, host) == host).all()


# ---- pinned and mapped memory: used in place ----


@pytest.mark.parametrize("step", [1, 2, -1])
def test_pinned_array_when_launched_then_it_is_used_in_place(enabled, step):
    host = cuda.pinned_array(8, np.float32)
    host[:] = np.arange(8)
    view = host[::step]
    with pytest.warns(Warning, match="host synchronization, though no copy"):
        take[1, 1](view)
    enabled.reset_calls()
    with pytest.warns(Warning, match="host synchronization"):
        take[1, 1](view)
    words = enabled.launches()[-1].words
    assert words[4] == view.ctypes.data
    assert words[6] == view.strides[0] % 2**64
    assert not any("Memcpy" in name for name in enabled.calls())
    # What the kernel leaves is there when the launch returns.
    assert enabled.calls()["cuStreamSynchronize"] == 1


def test_pinned_array_when_its_steps_are_not_aligned_then_it_is_copied(enabled):
    host = cuda.pinned_array(40, np.uint8)
    host[:] = np.arange(40)
    view = np.ndarray((4,), np.float32, host, 0, (5,))
    result = np.arange(4, dtype=np.float32)
    expected = view.copy()
    assert (run(take, view, view, result) == expected).all()
    words = enabled.launches()[-1].words
    assert words[4] != view.ctypes.data
    assert words[6] == 4
    assert (view == result).all()


def test_mapped_array_when_launched_then_it_is_used_in_place_without_waiting(enabled):
    array = cuda.mapped_array(4, np.float32)
    take[1, 1](array)
    enabled.reset_calls()
    take[1, 1](array)
    assert enabled.launches()[-1].words[4] == pointer_of(array)
    assert "cuStreamSynchronize" not in enabled.calls()


# ---- the warning ----


def warned(kernel, *args):
    with warnings.catch_warnings(record=True) as caught_warnings:
        warnings.simplefilter("always")
        kernel[1, 1](*args)
    return [(found.category, str(found.message)) for found in caught_warnings]


ARGUMENTS = {
    "plain": lambda host: host,
    "InOut": cuda.InOut,
    "In": cuda.In,
    "Out": cuda.Out,
    "device": cuda.to_device,
}


@pytest.mark.parametrize("kind", ARGUMENTS)
def test_warning_when_a_host_array_is_launched_then_it_is_numbas(driver, kind):
    argument = ARGUMENTS[kind](np.arange(4, dtype=np.float32))
    theirs = warned(take, argument)
    with stridedview.enabled():
        assert warned(take, argument) == theirs


@pytest.mark.parametrize("count", [1, 2])
def test_warning_when_several_host_arrays_are_launched_then_each_warns_as_in_numba(
    driver, count
):
    hosts = [np.arange(4, dtype=np.float32) for _ in range(2)]
    args = hosts if count == 2 else (hosts[0], 1)
    theirs = warned(take_two, *args)
    assert len(theirs) == count
    with stridedview.enabled():
        assert warned(take_two, *args) == theirs


def test_warning_when_switched_off_then_there_is_none(enabled, monkeypatch):
    from numba.cuda.core import config

    monkeypatch.setattr(config, "CUDA_WARN_ON_IMPLICIT_COPY", 0)
    assert warned(take, np.arange(4, dtype=np.float32)) == []
