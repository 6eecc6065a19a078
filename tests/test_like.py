"""Where new memory is, as ``device=`` and ``like=`` say it: whose, of what kind, and where.

On the stand-in driver, and on a GPU with STRIDEDVIEW_TEST_DRIVER=real.
"""

import copy

import numpy as np
import pytest
from numba import cuda

import stridedview as sv
from tests import standin
from tests.standin.helpers import run_child

HOST, DEVICE, PINNED, MANAGED = 1, 2, 3, 13

# An array of each kind of memory, as a view.
KINDS = {
    HOST: lambda: sv.from_any(np.arange(6.0).reshape(2, 3)),
    DEVICE: lambda: sv.to_device(np.arange(6.0).reshape(2, 3)),
    PINNED: lambda: _filled(sv.pinned((2, 3))),
    MANAGED: lambda: _filled(sv.from_any(cuda.managed_array((2, 3)))),
}


def _filled(view):
    view[...] = np.arange(6.0).reshape(2, 3)
    return view


@pytest.fixture(autouse=True)
def _started():
    if standin.wanted():
        standin.reset()


# ---- device= -----------------------------------------------------------------------------

NO_DEVICE = {
    "-1": -1,
    "-2": -2,
    "-7": -7,
    "99": 99,
    "2**70": 2**70,
    "cuda:99": "cuda:99",
    "cuda:-1": "cuda:-1",
    "cuda:": "cuda:",
    "cuda:x": "cuda:x",
    "DLPack's": (2, -2),
    "DLPack's 99": (2, 99),
}


@pytest.mark.parametrize("name", NO_DEVICE)
@pytest.mark.parametrize(
    "make",
    [
        lambda device: sv.empty(3, device=device),
        lambda device: sv.zeros(0, device=device),
        lambda device: sv.empty_like(np.zeros(3), device=device),
        lambda device: sv.empty_many([(3, "f4")], device=device),
        lambda device: sv.to_device(np.zeros(3), device=device),
        lambda device: sv.to_device(sv.empty(3), device=device),
        lambda device: sv.empty(3, device=device, like=sv.empty(1)),
    ],
    ids=["empty", "zeros", "empty_like", "empty_many", "to_device", "a view", "like"],
)
def test_device_when_there_is_none_then_refused(make, name):
    with pytest.raises(ValueError, match="device"):
        make(NO_DEVICE[name])


def test_device_when_an_object_says_a_wrong_number_then_refused():
    torch = pytest.importorskip("torch")
    with pytest.raises(ValueError, match="no such device"):
        sv.empty(3, device=torch.device("cuda", 99))
    with pytest.raises(ValueError, match="no such device"):
        sv.empty(3, device=type("Device", (), {"device_id": -1})())


@pytest.mark.parametrize("device", [True, "cpu", "cudax", 1.0, (1, 0), (2, 0.5)], ids=str)
def test_device_when_it_is_none_of_cudas_then_a_type_error(device):
    with pytest.raises(TypeError, match="device must be"):
        sv.empty(3, device=device)


def test_device_can_be_numpys_integer():
    assert sv.empty(3, device=np.int64(0)).device == (2, 0)


# ---- like= -------------------------------------------------------------------------------


def test_like_a_view_is_on_its_device_and_stream():
    from cuda.core import Device

    Device(0).set_current()
    stream = Device(0).create_stream()
    view = sv.empty(3, like=sv.empty(1, stream=stream))
    assert view.device == (2, 0)
    assert view.stream is stream
    with pytest.raises(TypeError):
        sv.empty(3, like="text")


def test_like_a_torch_tensor_takes_torchs_memory():
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        view = sv.empty((4, 6), "bfloat16", order="F", like=torch.zeros(1, device="cuda"))
        assert view.strides == (2, 8)
        assert view.device == (2, 0)
        assert view.to_torch().dtype is torch.bfloat16
    else:
        # A CPU build allocates on the host, which shows the same path.
        view = sv.empty((4, 6), "bfloat16", order="F", like=torch.zeros(1))
        assert view.strides == (2, 8)
        assert view.device == (1, 0)
        tensor = view.to_torch()
        tensor.fill_(2)
        assert view.view("u2").copy_to_host().tolist() == [[0x4000] * 6] * 4


def test_like_when_the_allocator_refuses_then_its_reason():
    torch = pytest.importorskip("torch")
    with pytest.raises(MemoryError, match="bytes asked for"):
        sv.empty(1 << 60, "u1", like=torch.zeros(1))


@pytest.mark.parametrize("kind", KINDS)
def test_like_a_view_is_of_its_kind_of_memory(kind):
    model = KINDS[kind]()
    for made in (
        sv.empty((4, 5), "i2", order="F", like=model),
        sv.empty_like(np.zeros((5, 4), "i2").T, like=model),
        sv.full((4, 5), 7, "i2", order="F", like=model),
    ):
        assert made.device == model.device
        assert (made.shape, made.strides) == ((4, 5), (2, 8))
        assert made.ptr % 256 == 0 or kind == MANAGED
        made[...] = np.arange(20).reshape(4, 5)
        assert made.copy_to_host().tolist() == np.arange(20).reshape(4, 5).tolist()
    assert made.owner is not model.owner
    assert sv.empty(0, like=model).device == model.device


def test_like_a_numpy_array_is_host_memory():
    assert sv.empty(3, like=np.zeros(1)).device == (1, 0)
    assert sv.empty(3, like=cuda.pinned_array(1)).device[0] in (HOST, PINNED)
    assert sv.empty(3, like=cuda.managed_array(1)).device[0] == MANAGED


def test_like_cuda_cores_memory_view_is_cuda_cores_memory():
    model = sv.zeros(3)
    assert sv.empty(5, like=model.smv).device == (2, 0)
    assert sv.empty(5, like=sv.pinned(3).smv).device[0] in (HOST, PINNED)
    with pytest.raises(sv.OutOfMemoryError, match="bytes asked for"):
        sv.empty(1 << 60, "u1", like=model.smv)


def test_like_when_it_is_elsewhere_than_device_says_then_refused():
    assert sv.empty(3, device="cuda", like=sv.empty(1)).device == (2, 0)
    with pytest.raises(ValueError, match="host memory; leave one out"):
        sv.empty(3, device=0, like=np.zeros(1))


ANOTHER_DEVICE = """
import numpy as np
from tests import standin
standin.load()
from tests.copy_kernels import act_out
standin.on_launch(act_out)
from numba import cuda
import stridedview as sv
cuda.select_device(0)
view = sv.to_device(np.arange(6.0).reshape(2, 3))
moved = sv.to_device(view, device=1)
assert moved.device == (2, 1), moved
assert moved.copy_to_host().tolist() == [[0, 1, 2], [3, 4, 5]]
assert sv.to_device(moved) is moved
assert sv.to_device(moved, device="cuda:1") is moved
assert sv.to_device(moved, "f4").device == (2, 1)
assert sv.to_device(view.T, like=moved).device == (2, 1)
assert sv.to_device(view[:, ::2], order="F", device=1).copy_to_host().tolist() == [
    [0, 2], [3, 5]]
for device in (0, "cuda:0"):
    try:
        sv.empty(3, device=device, like=moved)
    except ValueError as error:
        assert "is on cuda:1; leave one out" in str(error), error
    else:
        raise AssertionError(device)
managed = sv.empty_like(view, like=sv._sharing.empty_in((13, 1), view))
assert managed.device == (13, 1), managed
assert sv.empty_like(managed).device == (2, 1)
assert managed.copy().device == (13, 1)
print("done")
"""


@pytest.mark.standin
def test_arrays_of_one_device_go_to_another_when_it_is_named():
    done = run_child(ANOTHER_DEVICE, devices=2)
    assert done.stdout.split() == ["done"], done.stderr[-3000:]


def test_like_when_an_allocator_leaves_a_python_error_then_that_is_the_cause():
    torch = pytest.importorskip("torch")
    from cuda.core.utils import StridedMemoryView

    class Tensor(torch.Tensor):
        """With cuda.core's allocator, which always refuses, by a Python error too."""

        __dlpack_c_exchange_api__ = StridedMemoryView.__dlpack_c_exchange_api__

    with pytest.raises((BufferError, MemoryError), match="allocator") as caught:
        sv.empty(3, like=torch.zeros(1).as_subclass(Tensor))
    assert caught.value.__cause__ is not None


@pytest.mark.standin
def test_like_when_an_allocator_fails_for_another_reason_then_it_is_no_shortage():
    torch = pytest.importorskip("torch")
    model = standin.torch_tensor((1,), torch.float32)
    with pytest.raises(BufferError, match=r"torch's allocator .* on cuda:0 .* leave like"):
        sv.empty((2,), like=model)  # this torch is built without CUDA


def test_empty_many_when_an_item_is_no_pair_then_it_is_named():
    with pytest.raises(TypeError, match=r"specs\[1\]: expected a pair"):
        sv.empty_many([(2, "f4"), (3,)])
    with pytest.raises(TypeError, match=r"specs\[0\]: expected a pair"):
        sv.empty_many([3])


def test_out_of_memory_of_each_kind_says_how_much_was_asked():
    for kind, make in KINDS.items():
        if kind != HOST or standin.wanted():
            with pytest.raises(sv.OutOfMemoryError, match=f"{1 << 60} bytes asked for"):
                sv.empty(1 << 60, "u1", like=make())


@pytest.mark.parametrize("kind", KINDS)
def test_copy_is_of_the_same_kind_of_memory(kind):
    view = KINDS[kind]()[:, ::2]
    for again in (view.copy(), copy.deepcopy(view), view.copy("F")):
        assert again.device == view.device
        assert again.owner is not view.owner
        np.testing.assert_array_equal(again.copy_to_host(), view.copy_to_host())
    assert view.copy("F").strides == (8, 16)
