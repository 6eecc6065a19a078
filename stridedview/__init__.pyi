from stridedview._autograd import mark_written as mark_written
from stridedview._driver import DriverError as DriverError
from stridedview._dtype import DType as DType
from stridedview._dtype import dtype as dtype
from stridedview._errors import LaunchError as LaunchError
from stridedview._explain import Explanation as Explanation
from stridedview._explain import explain as explain
from stridedview._ingest import from_any as from_any
from stridedview._ingest import from_many as from_many
from stridedview._layout import Layout as Layout
from stridedview._op_registry import TorchOp as TorchOp
from stridedview._prepared import PreparedLaunch as PreparedLaunch
from stridedview._prepared import prepare as prepare
from stridedview._profile import Profile as Profile
from stridedview._profile import profile as profile
from stridedview._stats import reset_stats as reset_stats
from stridedview._stats import stats as stats
from stridedview._switch import disable as disable
from stridedview._switch import enable as enable
from stridedview._switch import enabled as enabled
from stridedview._switch import is_enabled as is_enabled
from stridedview._torch_op import torch_op as torch_op
from stridedview._view import StridedView as StridedView
from stridedview.memory import OutOfMemoryError as OutOfMemoryError
from stridedview.memory import empty as empty
from stridedview.memory import empty_like as empty_like
from stridedview.memory import empty_many as empty_many
from stridedview.memory import full as full
from stridedview.memory import pinned as pinned
from stridedview.memory import to_device as to_device
from stridedview.memory import zeros as zeros

__version__: str

__all__ = [
    "__version__",
    "DType",
    "DriverError",
    "Explanation",
    "LaunchError",
    "Layout",
    "OutOfMemoryError",
    "PreparedLaunch",
    "Profile",
    "StridedView",
    "TorchOp",
    "disable",
    "dtype",
    "empty",
    "empty_like",
    "empty_many",
    "enable",
    "enabled",
    "explain",
    "from_any",
    "from_many",
    "full",
    "is_enabled",
    "mark_written",
    "pinned",
    "prepare",
    "profile",
    "reset_stats",
    "stats",
    "to_device",
    "torch_op",
    "zeros",
]
