"""Real torch tensors on an invented CUDA device, from a torch that was built without CUDA.

torch's own exchange function makes a tensor of any device from a managed DLPack tensor, and
looks at nothing but the description. The memory is the stand-in driver's.
"""

import ctypes
import math
from ctypes import (
    POINTER,
    c_char_p,
    c_int,
    c_int32,
    c_int64,
    c_uint8,
    c_uint16,
    c_uint32,
    c_uint64,
    c_void_p,
)

import torch

from ._control import call, library

_CODES = {
    "bool": (6, 8),
    **{f"int{bits}": (0, bits) for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": (1, bits) for bits in (8, 16, 32, 64)},
    **{f"float{bits}": (2, bits) for bits in (16, 32, 64)},
    "bfloat16": (4, 16),
    "complex32": (5, 32),
    "complex64": (5, 64),
    "complex128": (5, 128),
    "float8_e4m3fn": (10, 8),
    "float8_e4m3fnuz": (11, 8),
    "float8_e5m2": (12, 8),
    "float8_e5m2fnuz": (13, 8),
    "float8_e8m0fnu": (14, 8),
}
DTYPES = {
    getattr(torch, name): code for name, code in _CODES.items() if hasattr(torch, name)
}


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", c_void_p),
        ("device_type", c_int32),
        ("device_id", c_int32),
        ("rank", c_int32),
        ("code", c_uint8),
        ("bits", c_uint8),
        ("lanes", c_uint16),
        ("shape", POINTER(c_int64)),
        ("strides", POINTER(c_int64)),
        ("byte_offset", c_uint64),
    ]


class _Managed(ctypes.Structure):
    pass


_DELETER = ctypes.CFUNCTYPE(None, POINTER(_Managed))
_Managed._fields_ = [
    ("major", c_uint32),
    ("minor", c_uint32),
    ("context", c_uint64),
    ("deleter", _DELETER),
    ("flags", c_uint64),
    ("tensor", _Tensor),
]


class _Exchange(ctypes.Structure):
    _fields_ = [
        ("major", c_uint32),
        ("minor", c_uint32),
        ("previous", c_void_p),
        ("allocate", c_void_p),
        ("managed_from_object", c_void_p),
        (
            "managed_to_object",
            ctypes.PYFUNCTYPE(c_int, POINTER(_Managed), POINTER(ctypes.py_object)),
        ),
        ("tensor_from_object", c_void_p),
        ("work_stream", c_void_p),
    ]


def _exchange() -> _Exchange:
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = c_void_p, [ctypes.py_object, c_char_p]
    return _Exchange.from_address(
        get(torch.Tensor.__dlpack_c_exchange_api__, b"dlpack_exchange_api")
    )


def _compact(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(
        math.prod(max(extent, 1) for extent in shape[axis + 1 :])
        for axis in range(len(shape))
    )


def _span(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """Return how many items the layout reaches from its first one on."""
    if 0 in shape:
        return 0
    return 1 + sum(
        (extent - 1) * stride for extent, stride in zip(shape, strides, strict=True)
    )


def _write(address: int, size: int, fill, dtype: torch.dtype) -> None:
    values = list(fill) if hasattr(fill, "__len__") else [fill] * (size // dtype.itemsize)
    if dtype is torch.complex32:  # torch warns of it whenever it makes one
        data = torch.tensor(
            [part for value in map(complex, values) for part in (value.real, value.imag)]
        ).half()
    else:
        data = torch.tensor(values, dtype=dtype)
    raw = data.view(torch.uint8).numpy().tobytes()
    if call("write", address, raw, len(raw)):
        raise ValueError(f"fill has {len(raw)} bytes, the memory {size}")


def torch_tensor(
    shape, dtype, strides=None, fill=None, device=0, pointer=None, byte_offset=0
) -> torch.Tensor:
    """Return a real ``torch.Tensor`` on ``cuda:<device>`` over the stand-in's memory.

    Parameters
    ----------
    shape : tuple of int
    dtype : torch.dtype
        Any that DLPack can say; the keys of `DTYPES`.
    strides : tuple of int, optional
        In items. torch slices no such tensor, so a strided one is made as such.
    fill : scalar or flat sequence, optional
        The items of the memory, one value for all or one each, in the order of the memory.
    pointer : int, optional
        An address to use instead of new memory, which then is the caller's to keep.
    byte_offset : int, optional
        Where in the memory the first item stands, in bytes; torch adds it to the address.
    """
    shape = tuple(shape)
    strides = _compact(shape) if strides is None else tuple(strides)
    if len(strides) != len(shape):
        raise ValueError(f"shape {shape} and strides {strides} differ in length")
    code, bits = DTYPES[dtype]
    size = byte_offset + _span(shape, strides) * dtype.itemsize
    own = call("allocate", max(size, 1), device) if pointer is None else 0
    address = own or pointer
    if not address:
        raise MemoryError(f"the stand-in has no {size} bytes for device {device}")
    if fill is not None:
        _write(address + byte_offset, size - byte_offset, fill, dtype)
    # One block of C's: the deleter, which is C too, frees it whenever torch lets go.
    row = c_int64 * len(shape)
    block = call("block", ctypes.sizeof(_Managed) + 2 * ctypes.sizeof(row))
    extents = row.from_address(block + ctypes.sizeof(_Managed))
    steps = row.from_address(ctypes.addressof(extents) + ctypes.sizeof(row))
    extents[:], steps[:] = shape, strides
    tensor = _Tensor(
        address, 2, device, len(shape), code, bits, 1, extents, steps, byte_offset
    )
    managed = _Managed.from_address(block)
    managed.major, managed.minor, managed.context, managed.flags = 1, 3, own, 0
    managed.deleter = _DELETER(ctypes.cast(library().standin_delete, c_void_p).value)
    managed.tensor = tensor
    result = ctypes.py_object()
    if _exchange().managed_to_object(ctypes.byref(managed), ctypes.byref(result)):
        raise RuntimeError("torch refused the managed tensor")
    made = result.value
    ctypes.pythonapi.Py_DecRef(ctypes.py_object(made))  # .value took its own reference
    return made
