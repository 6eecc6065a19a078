"""Streams and lifetimes on a GPU, under load: nothing is read early or freed early.

Each round produces on one of four side streams, behind a delay, and launches on another.
A launch that does not wait reads -1, and so does one whose array was given back too soon.
"""

import gc
import random

import numpy as np
import pytest

import stridedview as sv
from stridedview import _stream
from tests.gpu.helpers import Capsule, Interface, cupy_on, run_child

pytestmark = pytest.mark.gpu
torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

cuda = pytest.importorskip("numba.cuda")

ROUNDS = 1000
SIZE = 4096
SHAPE = SIZE // 256, 256


@cuda.jit
def add_one(out, x):
    i = cuda.grid(1)
    if i < x.size:
        out[i] = x[i] + 1


@cuda.jit
def fill(x, value):
    i = cuda.grid(1)
    if i < x.size:
        x[i] = value


@cuda.jit
def slow_fill(x, value):
    i = cuda.grid(1)
    for _ in range(20):
        cuda.nanosleep(np.uint32(500_000))
    if i < x.size:
        x[i] = value


@pytest.fixture(autouse=True)
def enabled():
    with sv.enabled():
        yield


@pytest.fixture
def streams():
    """Give four side streams, on which every kernel here has run."""
    return [torch.cuda.Stream() for _ in range(4)]


# ---- producers ---------------------------------------------------------------------


def torch_array(stream, value, delay):
    with torch.cuda.stream(stream):
        made = torch.full((SIZE,), -1.0, device="cuda")
        torch.cuda._sleep(delay)
        return made.fill_(value)


def interface(stream, value, delay):
    return Interface(torch_array(stream, value, delay), stream=stream.cuda_stream)


def view(stream, value, delay):
    return sv.from_any(torch_array(stream, value, delay))


def own(stream, value, delay):
    made = sv.empty(SIZE, "f4", stream=stream)
    fill[(*SHAPE, stream)](made, -1.0)
    with torch.cuda.stream(stream):
        torch.cuda._sleep(delay)
    fill[(*SHAPE, stream)](made, float(value))
    return made


def cupy_array(stream, value, delay):
    import cupy

    with cupy_on(stream), torch.cuda.stream(stream):
        made = cupy.full(SIZE, -1, "f4")
        torch.cuda._sleep(delay)
        made.fill(value)
    return made


PRODUCERS = {
    "torch": torch_array,
    "view": view,
    "interface": interface,
    "own": own,
    "CuPy": cupy_array,
}


def overwrite(kind, stream):
    """Take memory of the size that was just given back, and spoil it."""
    PRODUCERS[kind](stream, -1, 1)


def launch(kind, out, x, *, source, target, named):
    """Launch on ``target``, or without a name where the arrays' own rules lead."""
    if named:
        with torch.cuda.stream(source), maybe_cupy(kind, source):
            add_one[(*SHAPE, target)](out, x)
        return target
    # The tensor `out` leads; x is of the same family, or is waited for.
    current = source if kind in ("torch", "view") else target
    with maybe_cupy(kind, source), torch.cuda.stream(current):
        add_one[SHAPE](out, x)
    return current


def maybe_cupy(kind, stream):
    return cupy_on(stream) if kind == "CuPy" else torch.cuda.stream(None)


def wrong_rounds(rows, expected):
    """Return the numbers of the rounds whose row is not what it must be."""
    torch.cuda.synchronize()
    wrong = (rows != expected[:, None]).any(dim=1)
    return wrong.nonzero().flatten().tolist()


@pytest.mark.parametrize("is_freed", [False, True], ids=["kept", "freed"])
@pytest.mark.parametrize("named", [False, True], ids=["unnamed", "named"])
@pytest.mark.parametrize("kind", PRODUCERS)
def test_rounds_when_over_four_streams_with_delays_then_none_is_wrong(
    streams, kind, named, is_freed
):
    if kind == "CuPy":
        pytest.importorskip("cupy")
    chance = random.Random(f"{kind} {named} {is_freed}")
    rows = torch.zeros(ROUNDS, SIZE, device="cuda")
    kept = []
    torch.cuda.synchronize()
    for number in range(ROUNDS):
        source, target = chance.sample(streams, 2)
        x = PRODUCERS[kind](source, number, chance.randrange(1, 400_000))
        if is_freed:
            with torch.cuda.stream(target):
                torch.cuda._sleep(chance.randrange(1, 400_000))
        else:
            kept.append(x)
        went = launch(kind, rows[number], x, source=source, target=target, named=named)
        del x
        if is_freed:
            overwrite(kind, source)
        with torch.cuda.stream(went):
            rows[number].mul_(2)
    expected = (torch.arange(ROUNDS, dtype=torch.float32, device="cuda") + 1) * 2
    wrong = wrong_rounds(rows, expected)
    assert not wrong, f"{len(wrong)} of {ROUNDS} rounds are wrong, first {wrong[:10]}"
    _stream.release_done()
    assert _stream.kept_count() == 0


# ---- the host does not wait --------------------------------------------------------


def routes():
    """Return a call for each way that work is queued, by name."""
    x, out = torch.zeros(SIZE, device="cuda"), torch.zeros(SIZE, device="cuda")
    side, other = torch.cuda.Stream(), torch.cuda.Stream()
    mine, numba_array = sv.empty(SIZE, "f4"), cuda.device_array(SIZE, "f4")
    shown, target = sv.from_any(x), sv.from_any(out)
    prepared = sv.prepare(add_one[SHAPE], out, x)
    memory = shown.smv

    @cuda.jit
    def from_tuple(out, pair):
        out[0] = pair[0][0] + pair[1]

    @cuda.jit
    def bytes_of(out, data):
        out[0] = data[0]

    from cuda.core import Device

    buffer = Device().memory_resource.allocate(64, stream=Device().default_stream)
    found = {
        "torch": lambda: add_one[SHAPE](out, x),
        "parameter": lambda: add_one[SHAPE](out, torch.nn.Parameter(x)),
        "view of a tensor": lambda: add_one[SHAPE](target, shown),
        "view of its own memory": lambda: add_one[SHAPE](out, mine),
        "Numba's array": lambda: add_one[SHAPE](out, numba_array),
        "interface": lambda: add_one[SHAPE](out, Interface(x)),
        "interface with a stream": lambda: add_one[SHAPE](
            out, Interface(x, stream=other.cuda_stream)
        ),
        "DLPack": lambda: add_one[SHAPE](out, Capsule(x)),
        "memory view": lambda: add_one[SHAPE](out, memory),
        "buffer": lambda: bytes_of[1, 1](out, buffer),
        "tuple": lambda: from_tuple[1, 1](out, (x, 1.0)),
        "number": lambda: fill[SHAPE](x, 2.0),
        "prepared": prepared,
        "forall": lambda: add_one.forall(SIZE)(out, x),
        "a stream named": lambda: add_one[(*SHAPE, side)](out, x),
        "a stream named, arrays freed": lambda: add_one[(*SHAPE, side)](out, x.clone()),
        "the per-thread stream": lambda: add_one[(*SHAPE, 2)](out, x),
        "from_any": lambda: sv.from_any(x),
        "from_any with a stream": lambda: sv.from_any(x, stream=side),
        "from_many with a stream": lambda: sv.from_many([x, out], stream=side),
        "to_torch": lambda: shown[::2].to_torch(),
        "empty": lambda: sv.empty(SIZE, "f4"),
        "empty like a tensor": lambda: sv.empty(SIZE, "f4", like=x),
        "copy on the device": lambda: target.copy_to_device(shown),
        "copy with gaps": lambda: target[::2].copy_to_device(shown[::2]),
        "explain": lambda: sv.explain(add_one[SHAPE], out, x),
    }
    try:
        import cupy
    except ImportError:
        return found
    array = cupy.zeros(SIZE, "f4")
    return {**found, "CuPy": lambda: add_one[SHAPE](out, array)}


def test_host_when_a_long_kernel_is_in_flight_then_it_waits_on_no_route():
    found = routes()
    for call in (*found.values(), *found.values()):
        call()  # compiled, loaded, allocated
    torch.cuda.synchronize()
    stream = torch.cuda.current_stream()
    torch.cuda._sleep(3_000_000_000)
    for name, call in found.items():
        call()
        assert not stream.query(), f"the host waited in: {name}"
    torch.cuda.synchronize()


# ---- streams that arrays name --------------------------------------------------------


@pytest.mark.parametrize("named", [1, 2, "a handle"])
def test_interface_when_it_names_a_stream_then_the_launch_is_behind_it(named):
    side, target = torch.cuda.Stream(), torch.cuda.Stream()
    handle = side.cuda_stream if named == "a handle" else named
    out, x = torch.zeros(SIZE, device="cuda"), torch.zeros(SIZE, device="cuda")
    slow_fill[(*SHAPE, handle)](x, 0.0)
    add_one[(*SHAPE, target)](out, Interface(x, stream=handle))
    torch.cuda.synchronize()
    slow_fill[(*SHAPE, handle)](x, 3.0)
    with torch.cuda.stream(target):
        add_one[SHAPE](out, Interface(x, stream=handle))
    torch.cuda.synchronize()
    assert torch.all(out == 4)


def test_interface_when_it_names_stream_0_then_it_is_refused():
    out, x = torch.zeros(SIZE, device="cuda"), torch.zeros(SIZE, device="cuda")
    with pytest.raises(ValueError, match=r"argument 2 'x'.*stream 0"):
        add_one[SHAPE](out, Interface(x, stream=0))
    add_one[SHAPE](out, Interface(x, stream=None))
    assert torch.all(out == 1)


PER_THREAD = """
import torch
from numba import cuda
import stridedview as sv
from tests.gpu.test_stress import add_one, slow_fill, SHAPE, SIZE

sv.enable()
stream_of = lambda *args: sv.explain(add_one[SHAPE], *args).to_dict()["launch"]["stream"]
x, out = torch.zeros(SIZE, device="cuda"), torch.zeros(SIZE, device="cuda")
d, e = cuda.to_device(x.cpu().numpy()), cuda.to_device(x.cpu().numpy())
for args in ((out, x), (d, e), (out, d), (d, x)):
    add_one[SHAPE](*args)
slow_fill[SHAPE](d, 0.0)
slow_fill[SHAPE](x, 0.0)
torch.cuda.synchronize()
assert stream_of(d, e) == 2, stream_of(d, e)
assert stream_of(out, x) in (0, 1), stream_of(out, x)

# Numba's arrays are filled on the per-thread stream, which torch's does not wait for.
side = torch.cuda.Stream()
slow_fill[SHAPE](d, 3.0)
with torch.cuda.stream(side):
    add_one[SHAPE](out, d)
torch.cuda.synchronize()
assert torch.all(out == 4), out[:4]

slow_fill[SHAPE](x, 5.0)
add_one[(*SHAPE, cuda.per_thread_default_stream())](d, x)
assert (d.copy_to_host() == 6).all()
slow_fill[SHAPE](x, 7.0)
add_one[(*SHAPE, cuda.default_stream())](d, x)
assert (d.copy_to_host() == 8).all()

with torch.cuda.stream(side):
    slow_fill[SHAPE](x, 9.0)
    add_one[SHAPE](out, x)
torch.cuda.synchronize()
assert torch.all(out == 10), out[:4]
print("done")
"""


def test_per_thread_default_stream_when_asked_for_then_each_side_has_its_own():
    run_child(PER_THREAD, CUDA_PYTHON_CUDA_PER_THREAD_DEFAULT_STREAM="1")


# ---- lifetimes -----------------------------------------------------------------------


def test_view_when_it_lives_then_the_producers_memory_does_and_no_longer():
    gc.collect()
    before = torch.cuda.memory_allocated()
    x = torch.empty(1 << 20, device="cuda")
    held = torch.cuda.memory_allocated()
    part = sv.from_any(x)[::2]
    back = part.to_torch()
    del x, part
    assert torch.cuda.memory_allocated() == held
    del back
    assert torch.cuda.memory_allocated() == before


def test_memory_when_launched_100_000_times_then_it_is_flat():
    x, out = torch.zeros(256, device="cuda"), torch.zeros(256, device="cuda")
    add_one[1, 256](out, x)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    configured = add_one[1, 256]
    for _ in range(100_000):
        configured(out, x)
    assert torch.cuda.memory_allocated() == before
    for _ in range(100_000):
        sv.from_any(x)
    assert torch.cuda.memory_allocated() == before
    for _ in range(10_000):
        configured(out, torch.empty(256, device="cuda"))
        sv.from_any(torch.empty(256, device="cuda")).to_torch()
    assert torch.cuda.memory_allocated() == before
    torch.cuda.synchronize()


def test_memory_when_launched_on_a_named_stream_then_it_is_given_back():
    side = torch.cuda.Stream()
    out = torch.zeros(256, device="cuda")
    configured = add_one[1, 256, side]
    configured(out, out)
    torch.cuda.synchronize()
    _stream.release_done()
    before = torch.cuda.memory_allocated()
    for _ in range(20_000):
        configured(out, torch.empty(256, device="cuda"))
    torch.cuda.synchronize()
    _stream.release_done()
    assert torch.cuda.memory_allocated() == before
    assert _stream.kept_count() == 0
