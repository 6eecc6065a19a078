from stridedview._explain import Explanation as Explanation
from stridedview._explain import explain as explain
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

__version__: str

__all__ = [
    "__version__",
    "Explanation",
    "PreparedLaunch",
    "Profile",
    "disable",
    "enable",
    "enabled",
    "explain",
    "is_enabled",
    "prepare",
    "profile",
    "reset_stats",
    "stats",
]
