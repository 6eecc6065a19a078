from stridedview._driver import DriverError as DriverError
from stridedview._dtype import DType as DType
from stridedview._dtype import dtype as dtype
from stridedview._ingest import from_any as from_any
from stridedview._ingest import from_many as from_many
from stridedview._layout import Layout as Layout
from stridedview._switch import disable as disable
from stridedview._switch import enable as enable
from stridedview._switch import enabled as enabled
from stridedview._switch import is_enabled as is_enabled
from stridedview._view import StridedView as StridedView

__version__: str

__all__ = [
    "__version__",
    "DType",
    "DriverError",
    "Layout",
    "StridedView",
    "disable",
    "dtype",
    "enable",
    "enabled",
    "from_any",
    "from_many",
    "is_enabled",
]
