"""Arrays that a kernel holds as global or closure variables."""

import gc
import pickle
import types
import weakref

import numpy as np
import pytest
from numba import cuda
from numba.cuda.cudadrv.devicearray import DeviceNDArray

import stridedview as sv
from stridedview.numba_cuda import _closures
from tests.launching import PRODUCERS, pointer_of, tensor
from tests.standin.helpers import run_child

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.standin

HELD_GLOBALLY = None  # set by a test, before the kernel that reads it is compiled


@pytest.fixture
def out(driver):
    return driver.torch_tensor((4,), torch.float32)


def holding(held):
    """Return a kernel that reads an array from its closure."""

    @cuda.jit
    def kernel(out):
        out[0] = held[1]

    return kernel


def source_of(kernel):
    """Return the LLVM IR of a kernel's one overload."""
    (text,) = kernel.inspect_llvm().values()
    return text


@pytest.mark.parametrize("kind", PRODUCERS)
def test_kernel_when_it_holds_an_array_then_its_address_is_in_it(enabled, out, kind):
    array = cuda.to_device(np.zeros(4, np.float32))
    kernel = holding(PRODUCERS[kind](array))
    kernel[1, 1](out)
    kernel[1, 1](out)
    assert str(pointer_of(array)) in source_of(kernel)
    assert len(kernel.overloads) == 1


DTYPES = ["float16", "bfloat16", "float8_e4m3fn", "int64", "complex64", "bool"]


@pytest.mark.parametrize("name", DTYPES)
def test_kernel_when_it_holds_a_tensor_of_any_dtype_then_it_is_taken(enabled, name):
    dtype = getattr(torch, name)
    held = enabled.torch_tensor((3, 4), dtype, strides=(8, 2))
    out = enabled.torch_tensor((4,), dtype)

    @cuda.jit
    def kernel(out):
        out[0] = held[2, 3]
        held[1, 1] = out[1]

    kernel[1, 1](out)
    assert str(held.data_ptr()) in source_of(kernel)


HELD = {
    "parameter": lambda x: torch.nn.Parameter(x),
    "requires_grad": lambda x: x.requires_grad_(),
    "tuple": lambda x: (x, 3),
    "nested": lambda x: (1, (x,)),
}


@pytest.mark.parametrize("kind", HELD)
def test_kernel_when_what_it_holds_is_wrapped_then_it_is_found(enabled, out, kind):
    x = enabled.torch_tensor((4,), torch.float32)
    held = HELD[kind](x)
    if kind == "tuple":

        @cuda.jit
        def kernel(out):
            out[0] = held[0][1] + held[1]
    elif kind == "nested":

        @cuda.jit
        def kernel(out):
            out[0] = held[1][0][1]
    else:
        kernel = holding(held)
    kernel[1, 1](out)
    assert str(x.data_ptr()) in source_of(kernel)


def test_kernel_when_it_holds_a_global_tensor_then_it_is_by_reference(enabled, out):
    global HELD_GLOBALLY

    @cuda.jit(device=True)
    def read(index):
        return HELD_GLOBALLY[index]

    @cuda.jit
    def kernel(out):
        HELD_GLOBALLY[0] = read(1)

    HELD_GLOBALLY = enabled.torch_tensor((4,), torch.float32)
    try:
        kernel[1, 1](out)
        assert str(HELD_GLOBALLY.data_ptr()) in source_of(kernel)
    finally:
        HELD_GLOBALLY = None


def test_kernel_when_it_holds_a_host_tensor_then_its_values_are_constants(enabled, out):
    held = torch.arange(4.0)
    seen = _closures._seen(held, "held")
    assert isinstance(seen, np.ndarray)
    assert seen.tolist() == held.tolist()
    holding(held)[1, 1](out)

    @cuda.jit
    def write(out):
        held[0] = out[0]

    with pytest.raises(Exception, match="Cannot modify readonly array"):
        write[1, 1](out)


def test_kernel_when_it_holds_numbas_and_numpys_arrays_then_they_are_left_to_it(
    enabled, out, monkeypatch
):
    def refuse(*_):
        raise AssertionError("imported")

    monkeypatch.setattr(_closures._ingest, "from_any", refuse)
    for held in (np.ones(4, np.float32), cuda.to_device(np.ones(4, np.float32))):
        assert _closures._seen(held, "held") is held
    assert issubclass(DeviceNDArray, _closures.DeviceNDArrayBase)


@pytest.fixture
def module():
    """Give a module, as a program's own is that holds weights or tables."""
    return types.ModuleType("weights")


def reading(module):
    """Return a kernel that reads and writes an array that is a module's."""

    @cuda.jit
    def kernel(out):
        out[0] = module.held[1]

    return kernel


@pytest.mark.parametrize("kind", PRODUCERS)
def test_kernel_when_a_module_holds_an_array_then_its_address_is_in_it(
    enabled, out, module, kind
):
    array = cuda.to_device(np.zeros(4, np.float32))
    module.held = PRODUCERS[kind](array)
    kernel = reading(module)
    kernel[1, 1](out)
    kernel[1, 1](out)
    assert str(pointer_of(array)) in source_of(kernel)
    assert len(kernel.overloads) == 1


def test_kernel_when_a_module_within_a_module_holds_one_then_it_is_found(
    enabled, out, module
):
    outer = types.ModuleType("outer")
    outer.inner, module.held = module, (3, enabled.torch_tensor((4,), torch.float32))

    @cuda.jit
    def kernel(out):
        outer.inner.held[1][0] = out[0]

    kernel[1, 1](out)
    assert str(module.held[1].data_ptr()) in source_of(kernel)


def test_kernel_when_a_module_holds_a_host_tensor_then_its_values_are_constants(
    enabled, out, module
):
    module.held = torch.arange(4.0)
    reading(module)[1, 1](out)

    @cuda.jit
    def write(out):
        module.held[0] = out[0]

    with pytest.raises(Exception, match="Cannot modify readonly array"):
        write[1, 1](out)


LISTS = {
    "tensors": lambda driver: [driver.torch_tensor((4,), torch.float32) for _ in "ab"],
    "tensor and number": lambda driver: [3, driver.torch_tensor((4,), torch.float32)],
    "arrays": lambda _: [cuda.to_device(np.zeros(4, np.float32)) for _ in "ab"],
    "host tensors": lambda _: [torch.ones(4), torch.ones(4)],
    "host arrays": lambda _: [np.ones(4, np.float32), np.ones(4, np.float32)],
}


@pytest.mark.parametrize("kind", LISTS)
@pytest.mark.parametrize("place", ["closure", "module"])
def test_kernel_when_it_holds_a_list_of_arrays_then_it_is_a_tuple(
    enabled, out, module, place, kind
):
    held = module.held = LISTS[kind](enabled)

    @cuda.jit
    def from_closure(out):
        out[0] = held[1][2] + len(held)

    @cuda.jit
    def from_module(out):
        out[0] = module.held[1][2] + len(module.held)

    kernel = from_closure if place == "closure" else from_module
    kernel[1, 1](out)
    if "host" not in kind:
        pointer = held[1].data_ptr() if "tensor" in kind else pointer_of(held[1])
        assert str(pointer) in source_of(kernel)


REFUSED = {
    "neg": (lambda: torch._neg_view(torch.ones(4)), "negation is pending"),
    "sparse": (lambda: torch.eye(4).to_sparse(), "to_dense"),
    "meta": (lambda: torch.empty(4, device="meta"), "meta tensor"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_kernel_when_what_it_holds_cannot_be_used_then_it_is_refused_by_name(
    enabled, out, kind
):
    make, match = REFUSED[kind]
    with pytest.raises(TypeError, match=f"'held', which the kernel holds: .*{match}"):
        holding(make())[1, 1](out)


@pytest.mark.parametrize("kind", REFUSED)
def test_kernel_when_what_a_module_or_list_holds_cannot_be_used_then_refused_by_name(
    enabled, out, module, kind
):
    make, match = REFUSED[kind]
    module.held = make()
    what = "which the kernel holds: "
    with pytest.raises(Exception, match=f"'weights.held', {what}.*{match}"):
        reading(module)[1, 1](out)
    module.held = [torch.ones(4), make()]
    with pytest.raises(Exception, match=rf"'weights.held\[1\]', {what}.*{match}"):
        reading(module)[1, 1](out)


def test_kernel_when_it_holds_a_tensor_then_it_keeps_its_memory_and_no_longer(enabled, out):
    gc.collect()
    x = enabled.torch_tensor((4,), torch.float32)
    watch = weakref.ref(x)
    pointer, regions = x.data_ptr(), enabled.regions()
    kernel = holding(x)
    kernel[1, 1](out)
    # As nn.Module.to() does with a parameter: the kernel reads on where it was compiled to.
    x.data = enabled.torch_tensor((4,), torch.float32)
    del x
    gc.collect()
    assert watch() is not None
    assert enabled.regions() == regions + 1
    enabled.read(pointer, 16)
    del kernel
    gc.collect()
    assert watch() is None
    assert enabled.regions() == regions - 1


def test_kernel_when_it_holds_a_tensor_then_it_is_not_pickled(enabled, out):
    kernel = holding(tensor(cuda.to_device(np.zeros(4, np.float32))))
    kernel[1, 1](out)
    with pytest.raises(pickle.PicklingError, match="Pass the array"):
        pickle.dumps(kernel)


def test_disable_when_called_then_numba_sees_the_variables_themselves(driver):
    from numba.cuda.core.interpreter import Interpreter

    def patched():
        typing, target = _closures.TypingContext, _closures.TargetContext
        return (
            Interpreter.get_global_value,
            Interpreter.get_closure_value,
            typing.resolve_module_constants,
            target.get_getattr,
        )

    before = patched()
    with sv.enabled():
        assert not set(before) & set(patched())
    assert patched() == before


def test_kernel_when_launched_on_another_device_than_it_holds_then_it_is_refused():
    done = run_child(
        """
        import types
        import numpy as np
        from tests import standin
        standin.load()
        import torch
        from numba import cuda
        import stridedview as sv
        sv.enable()
        for device in (1, 0):
            cuda.select_device(device)
            cuda.to_device(np.zeros(1))
        held = standin.torch_tensor((4,), torch.float32)

        @cuda.jit
        def kernel(out):
            out[0] = held[1]

        module = types.ModuleType("weights")
        module.held = sv.from_any(held)

        @cuda.jit
        def by_module(out):
            out[0] = module.held[1]

        listed = [held]

        @cuda.jit
        def by_list(out):
            out[0] = listed[0][1]

        @cuda.jit(debug=True, opt=False)
        def slow(out):
            out[0] = held[1]

        outs = [standin.torch_tensor((4,), torch.float32, device=d) for d in (0, 1)]
        for each in (kernel, slow, by_module, by_list):
            each[1, 1](outs[0])
            for _ in range(2):
                try:
                    each[1, 1](outs[1])
                except ValueError as error:
                    assert any(
                        f"{name!r} on device 0" in str(error)
                        for name in ("held", "weights.held", "listed[0]")
                    ), error
                    assert "launched on device 1" in str(error), error
                else:
                    raise AssertionError("no error")
            each[1, 1](outs[0])
        print("done")
        """,
        devices=2,
    )
    assert done.stdout.split() == ["done"], done.stderr[-3000:]
