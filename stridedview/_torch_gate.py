"""What kind of tensor is this: the asking half of the torch gate.

Owns the questions that are put to torch in Python: once, to learn where the dispatch-key
word stands and what a plain tensor's word is; and for each tensor whose word is not
plain, to name its kind and say what to do. Imports no torch: it is handed the module.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias, TypeVar

from stridedview import _peers

# Pointer, shape, strides in items, dtype name.
Facts: TypeAlias = tuple[int, tuple[int, ...], tuple[int, ...], str]
Answer = TypeVar("Answer")

TORCH = _peers.PEERS["torch"]
# The word is the last or last but one of a TensorImpl's 184 bytes: index 22 in torch
# 2.11, 21 in 2.13. No more is read than both have.
WORDS_SEARCHED = 23


def check_version(torch: Any) -> None:
    """Refuse a torch in which tensors stand elsewhere in the object.

    Raises
    ------
    ImportError
        If torch is older than what is accepted. There is no forcing it.
    """
    if _verdict(torch) == "refused":
        raise ImportError(
            f"torch {torch.__version__} is too old for stridedview: found "
            f"{torch.__version__}, tested {_peers.tested_range(TORCH)}; install "
            f"{TORCH.requirement}"
        )


def _verdict(torch: Any) -> str:
    try:
        return _peers.verdict(TORCH, torch.__version__)
    except ValueError:
        return "refused"  # no number at all: a build of somebody's own


def is_newer_than_tested(torch: Any) -> bool:
    """Whether a torch is newer than the tested range, and not forced.

    It is read through the exchange API then.
    """
    return _verdict(torch) == "untested" and not _peers.forced()


def hide_from_dynamo(*functions: Any) -> bool:
    """Keep torch.compile from tracing functions, and what they call, when they run.

    Within a compiled function Dynamo looks at every Python frame that begins, ours too. It
    would compile each for each kind of tensor, hand them numbers in place of ``id``, and
    follow Numba into its compiler. Where torch is not imported yet, they are hidden later,
    by another call or when the first tensor is seen.

    Returns
    -------
    bool
        Whether torch is there.
    """
    _hidden.update((function.__code__, None) for function in functions)
    torch: Any = sys.modules.get("torch")
    try:
        dynamo = torch._C._dynamo.eval_frame
        skip = dynamo._FrameAction.SKIP
        strategy = dynamo._FrameExecStrategy(skip, skip)
        for code in list(_hidden):
            dynamo.set_code_exec_strategy(code, strategy)
    except AttributeError:
        pass  # no torch yet, or another one's Dynamo: that costs time, and nothing else
    return torch is not None


def mark_untraceable(function: Any) -> None:
    """Have torch.compile break the graph at a call of a function, and say why.

    With ``fullgraph=True`` and in export its message has the reason.
    """
    # What torch.compiler.disable(reason=...) leaves on a function, without importing torch.
    function._torchdynamo_disable = True
    function._torchdynamo_disable_msg = (
        "a graph cannot hold a kernel launch as it is; make the kernel an operator with "
        "stridedview.torch_op(kernel, ...)"
    )


def _in_own_thread(function: Callable[[], Answer]) -> Answer:
    """Return what ``function()`` gives in a thread of its own.

    The first tensor may be seen within a transform, a mode or a default device, all of
    which change what torch makes. They belong to their thread.
    """
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()


def library(torch: Any, name: str) -> ctypes.CDLL:
    """Return the shared library of torch's that this process has loaded."""
    prefix, suffix = {"win32": ("", ".dll"), "darwin": ("lib", ".dylib")}.get(
        sys.platform, ("lib", ".so")
    )
    path = os.path.join(os.path.dirname(torch.__file__), "lib", f"{prefix}{name}{suffix}")
    return ctypes.CDLL(path)


def stands_behind_header(tensor: Any) -> bool:
    """Whether the ``at::Tensor`` stands right behind the object header.

    Follows no pointer of torch's: it compares the word there with what torch says.
    """

    def compare_words() -> bool:
        address = id(tensor) + object.__basicsize__
        return bool(ctypes.c_void_p.from_address(address).value == tensor._cdata)

    return _in_own_thread(compare_words)


def _word(torch: Any, *names: str) -> int:
    keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, names[0]))
    for name in names[1:]:
        keys = keys | torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, name))
    return int(keys.raw_repr())


def key_words(torch: Any) -> dict[str, int]:
    """Return the dispatch-key words of plain tensors.

    Returns
    -------
    dict
        "cpu" and "cuda": the word of a plain tensor there, without the bits under
        "ignored", in which inference tensors and others differ harmlessly.
    """
    backends = _word(torch, "CPU", "CUDA") & ~_word(torch, "Dense")
    ignored = _word(torch, "ADInplaceOrView", "AutogradCPU", "AutogradCUDA") & ~backends
    ignored |= _word(torch, "AutocastCPU", "AutocastCUDA") & ~backends
    return {
        "ignored": ignored,
        "cpu": _word(torch, "CPU") & ~ignored,
        "cuda": _word(torch, "CUDA") & ~ignored,
    }


def _samples(torch: Any) -> list[Any]:
    """Return tensors of a dozen kinds, so that one position in them is no accident."""
    plain = torch.arange(12.0).reshape(3, 4)
    with torch.inference_mode():
        inference = torch.empty(2)
    return [
        plain,
        plain[1:, ::2],
        torch.empty(0),
        torch.empty((), dtype=torch.int8),
        torch.empty(3, requires_grad=True),
        torch.nn.Parameter(torch.ones(3)),
        inference,
        torch.ones(3, dtype=torch.complex64).conj(),
        torch._neg_view(plain),
        torch._efficientzerotensor(3),
        torch.eye(3).to_sparse(),
        torch.empty(3, device="meta"),
    ]


def find_key_offset(torch: Any) -> int:
    """Return the offset in bytes of the dispatch-key word in a TensorImpl, or -1.

    The word that torch tells for each sample is searched in the sample's memory; one
    position must hold it in all of them.
    """
    try:
        return _in_own_thread(lambda: _search(torch, _samples(torch)))
    except (AttributeError, RuntimeError):
        return -1


def _search(torch: Any, samples: list[Any]) -> int:
    positions = set(range(WORDS_SEARCHED))
    for tensor in samples:
        word = torch._C._dispatch_keys(tensor).raw_repr()
        words = (ctypes.c_uint64 * WORDS_SEARCHED).from_address(tensor._cdata)
        positions &= {index for index in positions if words[index] == word}
    return positions.pop() * 8 if len(positions) == 1 else -1


def compare(torch: Any, facts: Callable[[Any], Facts]) -> str:
    """Compare what the C ABI tells of sample tensors with what Python tells.

    Parameters
    ----------
    facts : callable
        Takes a tensor, returns (pointer, shape, strides in items, dtype name).

    Returns
    -------
    str
        "" if all agree, else what does not.
    """
    try:
        return _in_own_thread(lambda: _compare(torch, facts))
    except (BufferError, RuntimeError, TypeError) as error:
        return f"the C ABI cannot be compared with torch: {error}"


def _compare(torch: Any, facts: Callable[[Any], Facts]) -> str:
    base = torch.arange(24, dtype=torch.int32).reshape(2, 3, 4)
    for tensor in (
        base,
        base[1:, ::2].transpose(0, 2),
        base.to(torch.float64)[0],
        torch.ones(5, dtype=torch.bfloat16),
        torch.tensor(1.5),
        base.expand(5, 2, 3, 4),
    ):
        name = str(tensor.dtype).partition(".")[2]
        told = (tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), name)
        if facts(tensor) != told:
            return f"the C ABI tells {facts(tensor)} where torch tells {told}"
    return ""


def check(tensor: Any) -> None:
    """Refuse a tensor whose memory cannot be handed to a kernel as it is.

    Returns for a plain tensor; the order of the questions goes from what the tensor is
    wrapped in to what it holds, so that the message names the outermost obstacle.

    Raises
    ------
    TypeError
        Naming the kind and what to do.
    """
    torch = sys.modules["torch"]
    # A subclass's __torch_function__ is not asked: it may answer anything.
    with torch._C.DisableTorchFunctionSubclass():
        _check_wrapped(torch, tensor)
        _check_storage_kind(torch, tensor)
        _check_pending(tensor)
        _check_device(tensor)


def dtype_name(tensor: Any) -> str:
    """Return the name of a tensor's dtype, "float32", whatever its subclass answers."""
    with sys.modules["torch"]._C.DisableTorchFunctionSubclass():
        return str(tensor.dtype).partition(".")[2]


def storage_facts(tensor: Any) -> tuple[int, int]:
    """Return (bytes of a tensor's storage, where in it the tensor begins, in items)."""
    with sys.modules["torch"]._C.DisableTorchFunctionSubclass():
        return tensor.untyped_storage().nbytes(), tensor.storage_offset()


def _check_device(tensor: Any) -> None:
    if tensor.device.type not in ("cpu", "cuda"):
        raise TypeError(
            f"the tensor is on device {tensor.device}, which CUDA cannot address; "
            "pass x.to('cuda')"
        )


def _check_wrapped(torch: Any, tensor: Any) -> None:
    kind = type(tensor)
    if kind.__name__ == "FakeTensor":
        raise TypeError(
            "a FakeTensor has no memory: the launch is being traced; make the kernel an "
            "operator with stridedview.torch_op(kernel, ...)"
        )
    if isinstance(tensor, torch.nn.parameter.UninitializedTensorMixin):
        raise TypeError(f"the {kind.__name__} is not initialized; materialize() it first")
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        raise TypeError(
            "the tensor is inside a torch.func transform (vmap, grad, jvp or "
            "functionalize); make the kernel an operator with stridedview.torch_op, and "
            "give that a rule for the transform"
        )
    if torch._is_functional_tensor(tensor):
        raise TypeError(
            "the tensor is functionalized: the launch is being traced; make the kernel an "
            "operator with stridedview.torch_op(kernel, ...)"
        )
    if tensor.is_nested:
        raise TypeError("the tensor is nested; pass x.values() and its offsets")
    if kind.__torch_dispatch__ is not torch._C._disabled_torch_dispatch_impl:
        has_local = hasattr(tensor, "to_local")
        advice = "pass x.to_local()" if has_local else "pass the tensor it wraps"
        raise TypeError(
            f"{kind.__module__}.{kind.__qualname__} is a wrapper subclass "
            f"(it defines __torch_dispatch__); {advice}"
        )


def _check_storage_kind(torch: Any, tensor: Any) -> None:
    if tensor.is_quantized:
        raise TypeError("the tensor is quantized; pass x.int_repr() or x.dequantize()")
    if tensor.is_mkldnn:
        raise TypeError("the tensor has mkldnn's layout; pass x.to_dense()")
    if tensor.layout is not torch.strided:
        raise TypeError(
            f"the tensor is sparse ({tensor.layout}); pass x.to_dense(), or its indices "
            "and values"
        )
    if tensor.is_meta:
        raise TypeError("a meta tensor has no memory; make it on a device")


def _check_pending(tensor: Any) -> None:
    if tensor.is_conj():
        raise TypeError(
            "the tensor's conjugation is pending (its memory holds the values before "
            "it); pass x.resolve_conj()"
        )
    if tensor.is_neg():
        raise TypeError(
            "the tensor's negation is pending (its memory holds the values before it); "
            "pass x.resolve_neg()"
        )
    if tensor._is_zerotensor():
        raise TypeError("a zero tensor has no memory; pass x.clone()")


def is_plain_type(kind: Any) -> bool:
    """Whether instances of a torch.Tensor subclass are tensors as they stand.

    ``__torch_function__`` alone leaves the memory what it is; ``__torch_dispatch__``,
    inherited too, does not.
    """
    torch = sys.modules["torch"]
    return kind.__torch_dispatch__ is torch._C._disabled_torch_dispatch_impl


# All that are called from outside; what they call is hidden with them.
_hidden: dict[Any, None] = {}
hide_from_dynamo(
    check,
    check_version,
    compare,
    dtype_name,
    find_key_offset,
    is_newer_than_tested,
    is_plain_type,
    key_words,
    library,
    stands_behind_header,
    storage_facts,
)
