"""CPU torch tensors in Numba's CUDA simulator: the cases.

Not collected by its name: `test_simulator.py` runs it in a process in which Numba was
imported with ``NUMBA_ENABLE_CUDASIM=1``.
"""

import sys
from collections import namedtuple

import numpy as np
import pytest
import torch
from numba import cuda

import stridedview
from stridedview import _simulator

Pair = namedtuple("Pair", "left right")


@cuda.jit
def double(x):
    i = cuda.grid(1)
    if i < x.shape[0]:
        x[i] = x[i] * 2


@cuda.jit
def double_each(pair):
    i = cuda.grid(1)
    pair[0][i] *= 2
    pair[1][i] *= 2


@cuda.jit
def double_fields(pair):
    i = cuda.grid(1)
    pair.left[i] *= 2
    pair.right[i] *= 2


@cuda.jit
def store_scalar(x):
    x[()] = x[()] + 1


@pytest.fixture(autouse=True)
def enabled():
    with stridedview.enabled():
        yield


TENSORS = {
    "float32": lambda: torch.arange(6, dtype=torch.float32),
    "int64": lambda: torch.arange(6),
    "complex64": lambda: torch.arange(6).to(torch.complex64),
    "float16": lambda: torch.arange(6, dtype=torch.float16),
    "strided": lambda: torch.arange(12.0)[::2],
    "offset": lambda: torch.arange(12.0)[3:9],
    "column": lambda: torch.arange(12.0).reshape(6, 2)[:, 1],
    "requires grad": lambda: torch.arange(6.0, requires_grad=True),
    "parameter": lambda: torch.nn.Parameter(torch.arange(6.0)),
    "inference": lambda: torch.inference_mode()(lambda: torch.arange(6.0))(),
    "empty": lambda: torch.empty(0),
}


@pytest.mark.parametrize("make", TENSORS.values(), ids=TENSORS)
def test_kernel_when_given_a_tensor_then_it_writes_to_its_memory(make):
    tensor = make()
    pointer, expected = tensor.data_ptr(), tensor.detach().clone() * 2
    double[1, 8](tensor)
    assert tensor.data_ptr() == pointer
    assert torch.equal(tensor.detach(), expected)


def test_kernel_when_tensor_is_a_scalar_then_it_is_an_array_of_rank_zero():
    tensor = torch.tensor(41)
    store_scalar[1, 1](tensor)
    assert tensor.item() == 42


def test_kernel_when_tensor_is_bfloat16_then_ml_dtypes_carries_it():
    pytest.importorskip("ml_dtypes")
    tensor = torch.arange(4, dtype=torch.bfloat16)
    double[1, 4](tensor)
    assert tensor.tolist() == [0, 2, 4, 6]


def test_kernel_when_tensors_are_in_a_tuple_then_they_are_taken():
    pair = (torch.arange(3), torch.arange(3.0))
    double_each[1, 3](pair)
    assert [item.tolist() for item in pair] == [[0, 2, 4], [0, 2, 4]]


def test_kernel_when_tensors_are_in_a_named_tuple_then_its_fields_are_kept():
    pair = Pair(torch.arange(3), torch.arange(3))
    double_fields[1, 3](pair)
    assert [item.tolist() for item in pair] == [[0, 2, 4], [0, 2, 4]]


HINTS = {"In": [0, 1, 2], "Out": [0, 2, 4], "InOut": [0, 2, 4]}


@pytest.mark.parametrize("name", HINTS)
def test_kernel_when_tensor_is_in_a_hint_then_it_is_copied_back_as_the_hint_says(name):
    tensor = torch.arange(3)
    hint = getattr(cuda, name)(tensor)
    double[1, 3](hint)
    assert tensor.tolist() == HINTS[name]
    assert hint.value is tensor


@pytest.mark.parametrize("name", HINTS)
def test_kernel_when_tensor_in_a_hint_is_strided_then_it_is_taken(name):
    tensor = torch.arange(6)[::2]
    double[1, 3](getattr(cuda, name)(tensor))
    assert tensor.tolist() == ([0, 2, 4] if name == "In" else [0, 4, 8])


def test_kernel_when_arguments_are_not_tensors_then_they_pass_as_before():
    array = np.arange(3)
    double[1, 3](array)
    double_each[1, 3]((array, np.arange(3.0)))
    double[1, 3](cuda.InOut(array))
    assert array.tolist() == [0, 8, 16]


class Subclass(torch.Tensor):
    """A subclass that handles operations itself, as DTensor does."""

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


REFUSED = {
    "conj": (lambda: torch.ones(2, dtype=torch.complex64).conj(), "resolve_conj"),
    "neg": (lambda: torch._neg_view(torch.ones(2)), "resolve_neg"),
    "negated imaginary part": (
        lambda: torch.ones(2, dtype=torch.complex64).conj().imag,
        "resolve_neg",
    ),
    "sparse": (lambda: torch.ones(2).to_sparse(), "sparse"),
    "meta": (lambda: torch.ones(2, device="meta"), "no memory on meta"),
    "complex32": (lambda: torch.empty(2, dtype=torch.complex32), "torch.complex32"),
    "fnuz float8": (
        lambda: torch.empty(2, dtype=torch.float8_e4m3fnuz),
        "torch.float8_e4m3fnuz",
    ),
    "subclass": (lambda: torch.ones(2).as_subclass(Subclass), "Subclass"),
}


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_kernel_when_tensor_cannot_be_taken_then_type_error_names_it(case):
    make, reason = case
    with pytest.raises(TypeError, match=f"argument 1 'x': .*{reason}"):
        double[1, 2](make())


def test_kernel_when_bfloat16_has_no_ml_dtypes_then_it_says_what_to_do(monkeypatch):
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(TypeError, match=r"torch\.bfloat16; install ml_dtypes"):
        double[1, 2](torch.ones(2, dtype=torch.bfloat16))


def test_kernel_when_a_launch_was_refused_then_the_next_one_works():
    with pytest.raises(TypeError):
        double[1, 2](torch._neg_view(torch.ones(2)))
    tensor = torch.ones(2)
    double[1, 2](tensor)
    assert tensor.tolist() == [2, 2]


def test_disable_when_enabled_twice_then_the_same_object_is_back():
    kernel_class = type(double)
    stridedview.disable()
    original = vars(kernel_class)["__call__"]
    stridedview.enable()
    patched = vars(kernel_class)["__call__"]
    stridedview.enable()
    assert vars(kernel_class)["__call__"] is patched is not original
    stridedview.disable()
    stridedview.disable()
    assert vars(kernel_class)["__call__"] is original
    assert not stridedview.is_enabled()


def test_enabled_when_nested_then_the_outer_one_ends_it():
    stridedview.disable()
    with stridedview.enabled():
        with stridedview.enabled():
            pass
        assert stridedview.is_enabled()
    assert not stridedview.is_enabled()


def test_enable_when_the_simulator_is_another_then_nothing_is_patched(monkeypatch):
    stridedview.disable()

    def other(self, args, extra):
        raise AssertionError

    monkeypatch.setattr(type(double), "__call__", other)
    with pytest.raises(ImportError, match=r"FakeCUDAKernel\.__call__"):
        stridedview.enable()
    assert vars(type(double))["__call__"] is other
    assert not _simulator.is_enabled()


def test_kernel_when_given_a_keyword_then_it_is_refused_as_on_a_gpu():
    with pytest.raises(TypeError, match=r"kernels take no keyword arguments, got \['x'\]"):
        double[1, 2](x=torch.ones(2))


@pytest.mark.parametrize("count", [0, 2])
def test_kernel_when_the_count_of_arguments_is_wrong_then_it_is_refused(count):
    with pytest.raises(TypeError, match=rf"'double' takes 1 arguments \(x\), got {count}"):
        double[1, 2](*[torch.ones(2)] * count)


def test_kernel_when_it_takes_any_number_of_arguments_then_they_pass():
    @cuda.jit
    def fill(*arrays):
        for array in arrays:
            array[0] = 7

    tensors = torch.zeros(1), torch.zeros(1)
    fill[1, 1](*tensors)
    assert [tensor.item() for tensor in tensors] == [7, 7]


def test_stats_when_kernels_are_simulated_then_they_count_as_fallbacks():
    stridedview.reset_stats()
    double[1, 2](torch.ones(2))
    double[1, 2](np.ones(2))
    assert stridedview.stats()["fallbacks"] == {"simulator": 2}
    assert stridedview.stats()["launches"] == 0


def test_profile_when_kernels_are_simulated_then_they_are_in_it():
    with stridedview.profile() as found:
        double[1, 2](torch.ones(2))
        double[1, 2](torch.ones(2))
    double[1, 2](torch.ones(2))
    (facts,) = found.to_list()
    assert (facts["kernel"], facts["launches"]) == ("double", 2)
    assert facts["arguments"] == [{"index": 0, "routes": {"simulator": 2}, "slow": ""}]
    assert "simulator" in found.table()


def test_prepare_when_called_then_it_launches_as_it_was_configured():
    tensor, other = torch.ones(3), torch.ones(3)
    prepared = stridedview.prepare(double[1, 2], tensor)
    double[1, 3](other)
    prepared()
    prepared.launch()
    assert tensor.tolist() == [4, 4, 1]
    assert prepared.args == (tensor,)
    prepared.update(0, other)
    prepared()
    assert other.tolist() == [4, 4, 2]
    assert repr(prepared).startswith("<simulated launch of double: grid (1, 1, 1)")


def test_prepare_when_there_is_no_such_argument_then_update_says_so():
    prepared = stridedview.prepare(double[1, 2], torch.ones(2))
    with pytest.raises(IndexError, match="there is no argument 1; this launch has 1"):
        prepared.update(1, torch.ones(2))


def test_prepare_when_disabled_then_it_names_enable():
    configured = double[1, 2]
    stridedview.disable()
    with pytest.raises(TypeError, match="enable"):
        stridedview.prepare(configured, torch.ones(2))


def test_explain_when_simulated_then_it_says_that_there_is_no_route():
    with pytest.raises(RuntimeError, match=r"simulator.*NUMBA_ENABLE_CUDASIM"):
        stridedview.explain(double[1, 2], torch.ones(2))


ALLOCATIONS = {
    "empty": lambda **like: stridedview.empty(3, "float32", **like),
    "zeros": lambda **like: stridedview.zeros(3, "float32", **like),
    "to_device": lambda **like: stridedview.to_device(np.ones(3, "float32"), **like),
}


@pytest.mark.parametrize("allocate", ALLOCATIONS.values(), ids=ALLOCATIONS)
def test_allocation_when_like_a_cpu_tensor_then_a_kernel_takes_it(allocate):
    view = allocate(like=torch.ones(1))
    double[1, 3](view)
    assert view.copy_to_host().shape == (3,)


OPTIONS = {
    "unknown": ({"foo": 1}, TypeError, "foo"),
    "stream": ({"stream": "torch"}, ValueError, "stream is 'producer' or 'numba'"),
    "slow": ({"slow": "raise"}, ValueError, "slow is 'allow', 'warn' or 'error'"),
    "strict": ({"strict": "yes"}, TypeError, "strict is True or False, not 'yes'"),
    "arrays": ({"arrays": 1}, TypeError, "arrays is True or False, not 1"),
    "bump": ({"bump_version": None}, TypeError, "bump_version is True or False"),
}


@pytest.mark.parametrize("case", OPTIONS.values(), ids=OPTIONS)
def test_enable_when_an_option_is_wrong_then_it_is_refused(case):
    options, kind, message = case
    stridedview.disable()
    with pytest.raises(kind, match=message):
        stridedview.enable(**options)
    assert not stridedview.is_enabled()
