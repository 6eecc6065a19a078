"""Two GPUs in one process, and one GPU for each of two processes."""

import threading

import numpy as np
import pytest

import stridedview as sv

pytestmark = pytest.mark.gpu
torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)
if torch.cuda.device_count() < 2:
    pytest.skip("needs two GPUs", allow_module_level=True)

cuda = pytest.importorskip("numba.cuda")

SIZE = 1 << 20
SHAPE = SIZE // 256, 256


def fresh_add_one():
    """Return a kernel that nothing has compiled yet."""

    @cuda.jit
    def add_one(x):
        i = cuda.grid(1)
        if i < x.size:
            x[i] += 1

    return add_one


@cuda.jit
def copy(out, x):
    i = cuda.grid(1)
    if i < x.size:
        out[i] = x[i]


@pytest.fixture(autouse=True)
def enabled():
    # A context of device 0's own: without one torch only notes that it is the current one.
    torch.cuda.set_device(0)
    torch.zeros(1, device="cuda:0")
    torch.cuda.synchronize(0)
    with sv.enabled():
        yield
    assert torch.cuda.current_device() == 0


def zeros(device):
    return torch.zeros(SIZE, device=f"cuda:{device}")


def synchronize():
    for device in (0, 1):
        torch.cuda.synchronize(device)


@pytest.mark.parametrize("kind", ["torch", "view", "own", "CuPy", "tuple", "prepared"])
def test_launch_when_the_device_is_not_current_then_it_is_there_and_the_current_one_stays(
    kind,
):
    add_one = fresh_add_one()

    @cuda.jit
    def add_in_tuple(pair):
        i = cuda.grid(1)
        if i < pair[0].size:
            pair[0][i] += pair[1]

    x = zeros(1)
    if kind == "CuPy":
        cupy = pytest.importorskip("cupy")
        with cupy.cuda.Device(1):
            array = cupy.zeros(SIZE, "f4")
            add_one[SHAPE](array)
        synchronize()
        for _ in range(3):
            add_one[SHAPE](array)
        synchronize()
        with cupy.cuda.Device(1):
            assert (array == 4).all()
        return
    own = sv.zeros(SIZE, "f4", device=1)
    call = {
        "torch": lambda: add_one[SHAPE](x),
        "view": lambda: add_one[SHAPE](sv.from_any(x)),
        "own": lambda: add_one[SHAPE](own),
        "tuple": lambda: add_in_tuple[SHAPE]((x, 1.0)),
        "prepared": lambda: sv.prepare(add_one[SHAPE], x)(),
    }[kind]
    for _ in range(4):
        call()
        assert torch.cuda.current_device() == 0
        assert cuda.current_context().device.id == 0
    synchronize()
    assert torch.all((own.to_torch() if kind == "own" else x) == 4)


def test_launch_when_devices_alternate_then_compiled_once_and_loaded_once_each():
    add_one = fresh_add_one()
    arrays = [zeros(0), zeros(1)]
    sv.reset_stats()
    for _ in range(50):
        for x in arrays:
            add_one[SHAPE](x)
    synchronize()
    assert all(torch.all(x == 50) for x in arrays)
    capabilities = {torch.cuda.get_device_capability(device) for device in (0, 1)}
    (kernel,) = add_one.overloads.values()
    library = kernel._codelibrary
    assert sorted(library._cufunc_cache) == [0, 1]
    assert len(library._cubin_cache) == len(capabilities)
    counts = sv.stats()
    assert (counts["compiles"], counts["plans"], counts["misses"]) == (1, 2, 2)


def test_launch_when_devices_have_side_streams_then_each_follows_its_own():
    add_one = fresh_add_one()
    sides = [torch.cuda.Stream(device) for device in (0, 1)]
    arrays = [zeros(0), zeros(1)]
    for x in arrays:
        add_one[SHAPE](x)
    synchronize()
    with torch.cuda.stream(sides[0]), torch.cuda.stream(sides[1]), torch.cuda.device(0):
        for device, x in enumerate(arrays):
            with torch.cuda.device(device):
                torch.cuda._sleep(20_000_000)
                x.fill_(5)
        for x in arrays:  # with device 0 current
            add_one[SHAPE](x)
    synchronize()
    assert [float(x[-1]) for x in arrays] == [6, 6]


def test_launch_when_a_stream_of_the_other_device_is_named_then_it_is_behind_torchs():
    add_one = fresh_add_one()
    x, target = zeros(1), torch.cuda.Stream(1)
    add_one[(*SHAPE, target)](x)
    synchronize()
    with torch.cuda.device(1):
        torch.cuda._sleep(20_000_000)
        x.fill_(5)
    for _ in range(2):
        add_one[(*SHAPE, target)](x)
    synchronize()
    assert torch.all(x == 7)


def test_tensor_when_freed_while_the_other_device_works_then_it_is_kept():
    target, out = torch.cuda.Stream(1), zeros(1)
    copy[(*SHAPE, target)](out, out)
    for value in range(5):
        with torch.cuda.device(1):
            x = torch.full((SIZE,), float(value), device="cuda:1")
            with torch.cuda.stream(target):
                torch.cuda._sleep(20_000_000)
        copy[(*SHAPE, target)](out, x)
        del x
        torch.full((SIZE,), -1.0, device="cuda:1")
        synchronize()
        assert torch.all(out == value)


@pytest.mark.parametrize("named", [False, True], ids=["unnamed", "named"])
def test_launch_when_arrays_are_on_two_devices_then_it_is_refused_naming_both(named):
    one, other = zeros(0), zeros(1)
    configuration = copy[(*SHAPE, torch.cuda.Stream())] if named else copy[SHAPE]
    configuration(one, one)
    for args in ((one, other), (other, one)):
        with pytest.raises(ValueError, match=r"argument 2 'x'.*device.*device") as error:
            configuration(*args)
        assert "0" in str(error.value)
        assert "1" in str(error.value)
    configuration(one, one)
    synchronize()


def test_threads_when_each_has_a_device_then_each_launches_on_its_own():
    add_one = fresh_add_one()
    arrays, failed = [zeros(0), zeros(1)], []

    def work(device):
        try:
            torch.cuda.set_device(device)
            for _ in range(200):
                add_one[SHAPE](arrays[device])
            torch.cuda.synchronize(device)
        except Exception as error:  # noqa: BLE001 (told to the main thread)
            failed.append(error)

    threads = [threading.Thread(target=work, args=(device,)) for device in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed, failed
    assert all(torch.all(x == 200) for x in arrays)


def test_graph_when_captured_on_the_other_device_then_it_replays_there():
    add_one, x, graph = fresh_add_one(), zeros(1), torch.cuda.CUDAGraph()
    synchronize()
    with torch.cuda.device(1):
        with torch.cuda.graph(graph, stream=torch.cuda.Stream()):
            add_one[SHAPE](x)
        x.zero_()
        graph.replay()
        graph.replay()
    synchronize()
    assert torch.all(x == 2)


def test_closure_when_a_kernel_holds_the_other_devices_tensor_then_it_is_refused():
    held = zeros(0)

    @cuda.jit
    def read(out):
        out[0] = held[0]

    read[1, 1](zeros(0))
    with pytest.raises(ValueError, match=r"held.*device 0.*device 1"):
        read[1, 1](zeros(1))


def test_to_torch_when_made_on_the_other_device_then_the_tensor_is_there():
    x = zeros(1)
    for view in (sv.empty(SIZE, "f4", device=1), sv.empty(SIZE, "f4", like=x)):
        copy[SHAPE](view, x)
        tensor = view.to_torch()
        assert tensor.device == torch.device("cuda", 1)
        assert tensor.data_ptr() == view.ptr
        assert torch.all(tensor == 0)


@pytest.mark.parametrize("current", [0, 1])
@pytest.mark.parametrize("step", [1, -1, 2])
@pytest.mark.parametrize("kind", ["StridedView", "torch", "Numba"])
def test_copy_between_devices_when_either_is_current_then_it_arrives(kind, step, current):
    ours = sv.zeros((100, 30), "f4", device=0)
    theirs = {
        "StridedView": lambda: sv.zeros((100, 30), "f4", device=1),
        "torch": lambda: sv.from_any(torch.zeros(100, 30, device="cuda:1")),
        "Numba": lambda: sv.from_any(numba_zeros(1)),
    }[kind]()
    values = np.arange(3000, dtype="f4").reshape(100, 30)
    with torch.cuda.device(current):
        for target, source in ((theirs, ours), (ours, theirs)):
            source[...] = values
            target[...] = 0
            target[::step].copy_to_device(source[::step])
            wanted = np.zeros_like(values)
            wanted[::step] = values[::step]
            np.testing.assert_array_equal(target.copy_to_host(), wanted)
            values = values + 1
        assert torch.cuda.current_device() == current


def numba_zeros(device):
    with cuda.gpus[device]:
        return cuda.to_device(np.zeros((100, 30), np.float32))


# ---- a process for each GPU --------------------------------------------------------------


def work_in_process(rank, store):
    """All-reduce, a kernel on the current stream, all-reduce again; raise if wrong."""
    import torch.distributed as dist

    torch.cuda.set_device(rank)
    dist.init_process_group(
        "nccl",
        init_method=store,
        rank=rank,
        world_size=2,
        device_id=torch.device("cuda", rank),
    )
    add_one, side = fresh_add_one(), torch.cuda.Stream()
    with sv.enabled():
        for stream in (torch.cuda.current_stream(), side):
            with torch.cuda.stream(stream):
                for value in range(50):
                    x = torch.zeros(SIZE, device="cuda")
                    torch.cuda._sleep(1_000_000 * (rank + 1))
                    x.fill_(value + rank)
                    dist.all_reduce(x)
                    add_one[SHAPE](x)
                    dist.all_reduce(x)
                    # ((v) + (v + 1) + 1) * 2
                    assert torch.all(x == 2 * (2 * value + 2)), (rank, value, x[:4])
    dist.destroy_process_group()


def test_distributed_when_a_process_has_each_gpu_then_kernels_follow_collectives(
    tmp_path, monkeypatch
):
    if not torch.distributed.is_nccl_available():
        pytest.skip("this torch has no NCCL")
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "lo")
    store = f"file://{tmp_path}/store"
    torch.multiprocessing.spawn(work_in_process, args=(store,), nprocs=2)
