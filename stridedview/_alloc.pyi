from collections.abc import Iterable, Sequence
from typing import Any, Literal

from stridedview._view import StridedView

_Shape = int | Sequence[int]

class OutOfMemoryError(MemoryError):
    nbytes: int
    def __init__(self, message: str, nbytes: int) -> None: ...

def empty(
    shape: _Shape,
    dtype: Any = "float64",
    *,
    order: Literal["C", "F"] | str = "C",
    device: Any = None,
    stream: Any = None,
    like: Any = None,
) -> StridedView: ...
def empty_like(
    array: Any,
    dtype: Any = None,
    *,
    order: str = "K",
    device: Any = None,
    stream: Any = None,
    like: Any = None,
) -> StridedView: ...
def empty_many(
    specs: Iterable[tuple[_Shape, Any]],
    *,
    device: Any = None,
    stream: Any = None,
    like: Any = None,
) -> list[StridedView]: ...
def pinned(shape: _Shape, dtype: Any = "float64", *, order: str = "C") -> StridedView: ...
def empty_in(device: tuple[int, int], model: StridedView) -> StridedView: ...
def device_id(device: Any) -> int: ...
