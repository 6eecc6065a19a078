"""Torch tensors of every kind: those whose memory can be used, and those whose cannot.

Each is made by a call, so that importing this makes none.
"""

import ctypes
import warnings

import torch

from tests.standin import _torch as made

TRANSFORM, TRACED = "torch.func transform", "being traced"


def numbers():
    return torch.arange(6.0)


def waves():
    return torch.tensor([1 + 2j, 3 - 1j])


class Dispatching(torch.Tensor):
    @classmethod
    def __torch_dispatch__(cls, function, kinds, arguments=(), options=None):
        raise AssertionError(f"{function} was called")


class Inheriting(Dispatching):
    pass


class Renaming(torch.Tensor):
    """Plain memory; its __torch_function__ answers nonsense to whoever asks."""

    @classmethod
    def __torch_function__(cls, function, kinds, arguments=(), options=None):
        raise AssertionError(f"{function} was called")


def captured(transform):
    """Return the tensor that a function sees within a transform."""
    seen = []

    def look(x):
        seen.append(x)
        return x.sum()

    transform(look)
    return seen[0]


def within_jvp():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its first use compiles with torch.jit.script
        return captured(lambda f: torch.func.jvp(f, (numbers(),), (numbers(),)))


def fake(**options):
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode():
        return torch.empty(3, **options)


def functional_mode():
    from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode

    with FunctionalTensorMode():
        return FunctionalTensor.to_functional(numbers())


def nested(layout):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the strided form is a prototype
        return torch.nested.nested_tensor([numbers(), numbers()[:2]], layout=layout)


def sparse(layout, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # compressed layouts are beta
        return torch.eye(4).to_sparse(layout=layout, **options)


def quantized(per_channel=False):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated
        if per_channel:
            scales, zeros = torch.ones(2), torch.zeros(2)
            return torch.quantize_per_channel(
                numbers().reshape(2, 3), scales, zeros, 0, torch.qint8
            )
        return torch.quantize_per_tensor(numbers(), 0.1, 0, torch.qint8)


def on_device(kind):
    """Return a tensor of a device that this torch cannot use, over host memory."""
    memory = (ctypes.c_float * 4)()
    extents, steps = (ctypes.c_int64 * 1)(4), (ctypes.c_int64 * 1)(1)
    tensor = made._Tensor(ctypes.addressof(memory), kind, 0, 1, 2, 32, 1, extents, steps, 0)
    managed = made._Managed(1, 3, 0, made._DELETER(), 0, tensor)
    ODD_MEMORY.append((managed, memory, extents, steps))
    result = ctypes.py_object()
    assert (
        made._exchange().managed_to_object(ctypes.byref(managed), ctypes.byref(result)) == 0
    )
    return result.value


ODD_MEMORY = []

CONJ, NEG = "conjugation is pending.*resolve_conj", "negation is pending.*resolve_neg"
REFUSED = {
    "conj": (lambda: waves().conj(), CONJ),
    "conj of a slice": (lambda: waves()[1:].conj(), CONJ),
    "conj and neg": (lambda: torch._neg_view(waves()).conj(), CONJ),
    "neg": (lambda: torch._neg_view(numbers()), NEG),
    "neg of a complex": (lambda: torch._neg_view(waves()), NEG),
    "imag of conj": (lambda: waves().conj().imag, NEG),
    "imag of conj, unsqueezed": (lambda: waves().conj().imag.unsqueeze(-1), NEG),
    "as_strided of neg": (lambda: torch._neg_view(numbers()).as_strided((2,), (1,)), NEG),
    "view_as_real of neg": (lambda: torch.view_as_real(torch._neg_view(waves())), NEG),
    "neg in inference": (lambda: inference(lambda: torch._neg_view(numbers())), NEG),
    "neg parameter": (lambda: torch.nn.Parameter(torch._neg_view(numbers())), NEG),
    "zero": (lambda: torch._efficientzerotensor(3), r"zero tensor.*clone"),
    "sparse_coo": (lambda: sparse(torch.sparse_coo), r"sparse_coo.*to_dense"),
    "sparse_csr": (lambda: sparse(torch.sparse_csr), r"sparse_csr.*to_dense"),
    "sparse_csc": (lambda: sparse(torch.sparse_csc), r"sparse_csc.*to_dense"),
    "sparse_bsr": (
        lambda: sparse(torch.sparse_bsr, blocksize=(2, 2)), r"sparse_bsr.*to_dense"),
    "sparse_bsc": (
        lambda: sparse(torch.sparse_bsc, blocksize=(2, 2)), r"sparse_bsc.*to_dense"),
    "nested strided": (lambda: nested(torch.strided), r"nested.*values"),
    "nested jagged": (lambda: nested(torch.jagged), r"nested.*values"),
    "quantized": (quantized, r"quantized.*int_repr"),
    "quantized per channel": (lambda: quantized(True), r"quantized.*int_repr"),
    "mkldnn": (lambda: numbers().to_mkldnn(), r"mkldnn.*to_dense"),
    "meta": (lambda: torch.empty(3, device="meta"), "meta tensor has no memory"),
    "meta conj": (
        lambda: torch.empty(3, device="meta", dtype=torch.complex64).conj(), "meta tensor"),
    "meta parameter": (
        lambda: torch.nn.Parameter(torch.empty(3, device="meta")), "meta tensor"),
    "fake": (fake, "FakeTensor.*torch_op"),
    "fake on cuda": (lambda: fake(device="cuda"), "FakeTensor.*torch_op"),
    "fake parameter": (lambda: torch.nn.Parameter(fake()), "FakeTensor"),
    "vmap": (
        lambda: captured(lambda f: torch.vmap(f)(numbers().reshape(2, 3))), TRANSFORM),
    "nested vmap": (
        lambda: captured(lambda f: torch.vmap(torch.vmap(f))(numbers().reshape(2, 3, 1))),
        TRANSFORM),
    "grad": (lambda: captured(lambda f: torch.func.grad(f)(numbers())), TRANSFORM),
    "jvp": (within_jvp, TRANSFORM),
    "functionalize": (
        lambda: captured(lambda f: torch.func.functionalize(f)(numbers())), TRANSFORM),
    "functional": (lambda: torch._to_functional_tensor(numbers()), TRACED),
    "functional mode": (functional_mode, "wrapper subclass.*pass the tensor it wraps"),
    "dispatching, wrapping nothing": (
        lambda: torch.Tensor._make_wrapper_subclass(Dispatching, (3,)), "wrapper subclass"),
    "dispatching, with memory": (
        lambda: torch.Tensor._make_subclass(Dispatching, numbers()), "wrapper subclass"),
    "dispatching by inheritance": (
        lambda: numbers().as_subclass(Inheriting), "Inheriting is a wrapper subclass"),
    "uninitialized parameter": (torch.nn.UninitializedParameter, "UninitializedParameter"),
    "uninitialized buffer": (torch.nn.UninitializedBuffer, "UninitializedBuffer"),
    "mps": (lambda: on_device(8), "device mps:0, which CUDA cannot address"),
    "hip": (lambda: on_device(10), "device hip:0, which CUDA cannot address"),
    "privateuseone": (lambda: on_device(12), "device privateuseone:0"),
}  # fmt: skip


def inference(make):
    with torch.inference_mode():
        return make()


def resized(tensor, view, nbytes):
    tensor.untyped_storage().resize_(nbytes)
    return view


def freed(select, nbytes=0):
    tensor = torch.ones(20)
    view = select(tensor)
    return resized(tensor, view, nbytes)


FREED = {
    "freed": lambda: freed(lambda x: x),
    "freed, a slice": lambda: freed(lambda x: x[10:]),
    "freed, one item": lambda: freed(lambda x: x[10]),
    "shrunk": lambda: freed(lambda x: x, 76),
    "shrunk under a slice": lambda: freed(lambda x: x[10:], 44),
    "shrunk under gaps": lambda: freed(lambda x: x[::19], 76),
}  # fmt: skip


def graph():
    return (torch.ones(3, requires_grad=True) * 2).reshape(3, 1)


PLAIN = {
    "contiguous": lambda: numbers().reshape(2, 3),
    "transposed": lambda: numbers().reshape(2, 3).T,
    "a slice": lambda: numbers()[1::2],
    "a slice of rows": lambda: torch.arange(24).reshape(4, 6)[1:, 2::2],
    "expanded": lambda: numbers().expand(4, 6),
    "no axes": lambda: torch.tensor(1.5),
    "one item of many": lambda: numbers()[3],
    "empty": lambda: torch.empty(0, 3),
    "empty slice of freed memory": lambda: freed(lambda x: x[10:10]),
    "shrunk beside a slice": lambda: freed(lambda x: x[:10], 40),
    "64 axes": lambda: torch.ones((1,) * 62 + (2, 3)),
    "parameter": lambda: torch.nn.Parameter(numbers()),
    "buffer": lambda: torch.nn.Buffer(numbers()),
    "requires_grad": lambda: torch.ones(3, requires_grad=True),
    "within a graph": graph,
    "detached": lambda: graph().detach(),
    "inference": lambda: inference(numbers),
    "inference, a view": lambda: inference(lambda: numbers().reshape(2, 3).T),
    "plain subclass": lambda: numbers().as_subclass(type("Plain", (torch.Tensor,), {})),
    "conj, resolved": lambda: waves().conj().resolve_conj(),
    "neg, resolved": lambda: torch._neg_view(numbers()).resolve_neg(),
    "conj twice": lambda: waves().conj().conj(),
    "real of conj": lambda: waves().conj().real,
    "copied on write": lambda: numbers()._lazy_clone(),
    "dense again": lambda: sparse(torch.sparse_coo).to_dense(),
    "at an odd address": lambda: torch.frombuffer(bytearray(9), dtype=torch.int16, count=4),
    "compiled": lambda: torch.compile(lambda x: x + 1, backend="eager")(numbers()),
    "made without arguments": lambda: torch.Tensor.__new__(torch.Tensor),
}  # fmt: skip
DTYPES = [
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float16", "float32", "float64", "bfloat16", "complex32", "complex64", "complex128",
    "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "float8_e4m3fnuz", "float8_e5m2fnuz",
    "float4_e2m1fn_x2",
]  # fmt: skip
