"""What torch tensors are taken and refused, by the route that this process uses.

The module runs twice: as it is, through torch's C ABI, and by test_torch_route in a child
process, through the exchange API that the environment asks for.
"""

import os
import sys
import warnings
import weakref

import pytest

torch = pytest.importorskip("torch")

from stridedview import _ingest, _torch, from_any, from_many  # noqa: E402
from tests.torch_kinds import DTYPES, FREED, PLAIN, REFUSED, Renaming, waves  # noqa: E402

ASKED = os.environ.get("STRIDEDVIEW_TORCH_ROUTE", "")
ROUTE = "exchange API" if ASKED == "exchange" else "C ABI"


def assert_same(view, tensor):
    """Compare a view with what torch says of a tensor."""
    assert view.shape == tuple(tensor.shape)
    assert view.strides_in_items == tensor.stride()
    assert view.dtype_name == str(tensor.dtype).removeprefix("torch.")
    assert view.itemsize == tensor.itemsize
    assert view.device == (
        (1, 0) if tensor.device.type == "cpu" else (2, tensor.device.index)
    )
    assert not view.readonly
    if tensor.numel():
        assert view.ptr == tensor.data_ptr()


# ---- by kind ----


@pytest.mark.parametrize("kind", PLAIN)
def test_tensor_when_its_memory_is_its_own_then_the_view_is_the_same(kind):
    tensor = PLAIN[kind]()
    view = from_any(tensor)
    assert_same(view, tensor)
    assert view.owner is tensor


@pytest.mark.parametrize("kind", REFUSED)
def test_tensor_when_its_memory_is_not_what_it_says_then_its_kind_is_named(kind, capfd):
    make, match = REFUSED[kind]
    tensor = make()
    capfd.readouterr()
    for _ in range(2):
        with pytest.raises(TypeError, match=match):
            from_any(tensor)
    with pytest.raises(TypeError, match="item 1: "):
        from_many([torch.ones(2), tensor])
    # torch's C ABI prints when it fails: the gate comes before it.
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("kind", FREED)
def test_tensor_when_its_storage_was_freed_or_shrunk_then_it_is_refused(kind, capfd):
    tensor = FREED[kind]()
    with pytest.raises(BufferError, match="freed"):
        from_any(tensor)
    assert capfd.readouterr() == ("", "")


def test_tensors_when_many_shapes_take_turns_then_each_view_has_its_own():
    # Layouts that passed the checks are kept in fewer places than there are of these.
    base = torch.arange(4096, dtype=torch.float32)
    tensors = [
        base.view(dtype).as_strided((rows, columns), (step, 1), offset)
        for dtype in (torch.float32, torch.int32, torch.complex64)
        for rows in range(12)
        for columns in (1, 2, 7)
        for step in (1, 7, 8)
        for offset in (0, 3)
    ]
    assert len(tensors) > 256
    for _ in range(3):
        for view, tensor in zip(from_many(tensors), tensors, strict=True):
            assert_same(view, tensor)


def test_tensor_when_its_storage_shrinks_between_imports_then_it_is_refused_from_then_on():
    tensor = torch.zeros(1000).as_strided((10, 3), (100, 1), 50)
    storage = tensor.untyped_storage()
    assert_same(from_any(tensor), tensor)
    storage.resize_(4 * 953)  # it reaches to the last of 953 items
    assert_same(from_any(tensor), tensor)
    storage.resize_(4 * 953 - 1)
    with pytest.raises(BufferError, match="freed or shrunk"):
        from_any(tensor)
    assert from_any(tensor[:0]).size == 0


@pytest.mark.standin
def test_tensor_when_misaligned_is_refused_though_its_shape_passed_before(driver):
    memory = driver.allocate(64)
    right = driver.torch_tensor((3, 5), torch.int16, pointer=memory)
    wrong = driver.torch_tensor((3, 5), torch.int16, pointer=memory + 1)
    nothing = driver.torch_tensor((0, 5), torch.int16, pointer=memory + 1)
    for _ in range(2):
        assert from_any(right).ptr == memory
        assert from_any(nothing).shape == (0, 5)
        with pytest.raises(BufferError, match="not aligned to the 2 bytes of int16"):
            from_any(wrong)
        with pytest.raises(BufferError, match=r"item 1: .*not aligned"):
            from_many([right, wrong])
    driver.free(memory)


@pytest.mark.parametrize("name", DTYPES)
def test_tensor_when_of_any_dtype_then_the_view_has_it(name):
    if not hasattr(torch, name):
        pytest.skip(f"torch {torch.__version__} has no {name}")
    dtype = getattr(torch, name)
    tensor = torch.zeros(64, dtype=torch.uint8).view(dtype)
    assert_same(from_any(tensor), tensor)


NO_COUNTERPART = ["bits8", "bits16", "bits1x8", "int1", "int4", "uint2", "uint7"]


@pytest.mark.parametrize("name", NO_COUNTERPART)
def test_tensor_when_its_dtype_has_no_counterpart_then_it_is_refused_by_name(name):
    tensor = torch.empty(4, dtype=getattr(torch, name))
    with pytest.raises(TypeError, match=rf"^its dtype torch.{name} has no .*integer type"):
        from_any(tensor)


@pytest.mark.parametrize("name", FREED)
def test_storage_when_checked_alone_then_it_is_refused_as_from_any_does(name):
    # On the exchange route the pointer is looked at first.
    with pytest.raises(BufferError, match="freed or"):
        _ingest.check_storage(FREED[name]())
    _ingest.check_storage(torch.ones(20)[10:])
    _ingest.check_storage(3)


def test_tensor_when_of_65_axes_then_it_is_refused():
    with pytest.raises(BufferError, match="65 axes"):
        from_any(torch.ones((1,) * 65))


def test_tensor_when_a_subclass_redirects_its_methods_then_none_is_asked():
    tensor = torch.arange(3.0).as_subclass(Renaming)
    assert from_any(tensor).shape == (3,)


def test_tensor_when_a_subclass_redirects_its_methods_then_its_kind_is_still_told():
    tensor = waves().conj().as_subclass(Renaming)
    with pytest.raises(TypeError, match="conjugation is pending"):
        from_any(tensor)


@pytest.mark.parametrize("device", [0, 1])
@pytest.mark.parametrize("strides", [None, (1, 3)])
@pytest.mark.standin
def test_tensor_when_on_a_cuda_device_then_the_view_is_there(driver, device, strides):
    memory = driver.allocate(64)
    tensor = driver.torch_tensor(
        (3, 4), torch.float32, strides, pointer=memory, device=device
    )
    view = from_any(tensor)
    assert_same(view, tensor)
    assert view.device == (2, device)
    assert_same(from_any(torch.nn.Parameter(tensor)), tensor)
    driver.free(memory)


@pytest.mark.standin
def test_tensor_when_misaligned_on_a_device_then_it_is_refused_and_on_the_host_taken(
    driver,
):
    memory = driver.allocate(64)
    tensor = driver.torch_tensor((3,), torch.float32, pointer=memory + 2)
    with pytest.raises(BufferError, match="not aligned to the 4 bytes of float32"):
        from_any(tensor)
    driver.free(memory)
    odd = torch.frombuffer(bytearray(9), dtype=torch.float32, count=2, offset=1)
    assert from_any(odd).ptr == odd.data_ptr()


def test_tensor_when_of_a_distributed_mesh_then_to_local_is_advised(tmp_path):
    distributed = pytest.importorskip("torch.distributed")
    if not distributed.is_gloo_available():
        pytest.skip("torch was built without gloo")
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, distribute_tensor

    place = f"file://{tmp_path}/store"
    distributed.init_process_group("gloo", init_method=place, rank=0, world_size=1)
    try:
        tensor = distribute_tensor(
            torch.ones(4), init_device_mesh("cpu", (1,)), [Replicate()]
        )
        for one in (tensor, torch.nn.Parameter(tensor)):
            with pytest.raises(TypeError, match=r"DTensor is a wrapper.*to_local"):
                from_any(one)
        assert_same(from_any(tensor.to_local()), tensor.to_local())
    finally:
        distributed.destroy_process_group()


def test_tensor_when_within_a_compiled_function_then_it_is_the_real_one():
    @torch.compile(backend="eager")
    def compute(x):
        y = x + 1
        return y, from_any(y)

    tensor, view = compute(torch.ones(3))
    assert_same(view, tensor)


def test_views_methods_within_a_compiled_function_give_what_they_give_outside():
    @torch.compile(backend="eager")
    def compute(x):
        view = from_any(x + 1)
        return view.reshape(2, -1).transpose(1, 0).permute(1, 0).T[1:]

    view = compute(torch.arange(6.0))
    assert view.to_torch().tolist() == [[2, 5], [3, 6]]


@pytest.mark.parametrize("mode", ["fake", "symbolic"])
def test_tensor_when_traced_without_memory_then_it_is_refused(mode):
    from torch.fx.experimental.proxy_tensor import make_fx

    def compute(x):
        with pytest.raises(TypeError, match="FakeTensor"):
            from_any(x)
        return x + 1

    make_fx(compute, tracing_mode=mode)(torch.ones(3))


def test_write_when_a_tensor_was_copied_lazily_then_only_that_one_changes():
    first = torch.zeros(3)
    second = first._lazy_clone()
    import numpy as np

    np.asarray(from_any(second))[:] = 7
    assert (first.tolist(), second.tolist()) == ([0] * 3, [7] * 3)


# ---- lifetime ----


def test_tensor_when_a_view_lives_then_it_is_kept_and_no_longer():
    tensor = torch.ones(4)
    watch = weakref.ref(tensor)
    view = from_any(tensor)[1:]
    del tensor
    assert watch() is not None
    del view
    assert watch() is None


def test_tensor_when_refused_then_it_is_not_kept():
    for make, _ in (REFUSED["conj"], REFUSED["sparse_coo"], REFUSED["meta"]):
        tensor = make()
        before = sys.getrefcount(tensor)
        with pytest.raises(TypeError):
            from_any(tensor)
        assert sys.getrefcount(tensor) == before


# ---- the route ----


def test_route_when_chosen_then_it_is_told_with_its_reason():
    name, reason = _torch.route()
    assert name == ROUTE
    assert reason == (
        "asked for by STRIDEDVIEW_TORCH_ROUTE" if ASKED else "self-check passed"
    )


def under_jvp(look, x):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its first use compiles with torch.jit.script
        return torch.func.jvp(look, (x,), (x,))


# What a tensor is there, the transform's names, and what helps.
WITHIN = {
    "vmap": (torch.vmap, "BatchedTensor", "vmap", "register_vmap"),
    "grad": (torch.func.grad, "GradTrackingTensor", "grad, vjp or jacrev", "backward"),
    "jacrev": (torch.func.jacrev, "GradTrackingTensor", "grad, vjp or jacrev", "backward"),
    "jvp": (
        lambda look: lambda x: under_jvp(look, x), "GradTrackingTensor", "jvp or jacfwd",
        "setup_context and jvp"),
    "functionalize": (
        torch.func.functionalize, "FunctionalTensorWrapper", "functionalize", "outputs="),
    "grad in vmap": (
        lambda look: torch.vmap(torch.func.grad(look)), "GradTrackingTensor",
        "grad, vjp or jacrev", "backward"),
}  # fmt: skip


@pytest.mark.parametrize("case", WITHIN.values(), ids=WITHIN)
def test_tensor_when_inside_a_transform_then_the_message_names_both_and_what_to_do(case):
    transform, kind, name, advice = case
    said = []

    def look(x):
        with pytest.raises(
            TypeError, match=f"{kind}, inside .* transform .{name}.; "
        ) as got:
            from_any(x)
        said.append(str(got.value))
        return x.sum()

    transform(look)(torch.ones(3))
    assert said
    assert advice in said[0]


def test_tensor_when_its_transform_has_ended_then_that_is_said():
    kept = []
    torch.func.grad(lambda x: kept.append(x) or x.sum())(torch.ones(3))
    with pytest.raises(TypeError, match=r"left of a torch\.func transform that has ended"):
        from_any(kept[0])
