"""Build the Cython modules; everything else is declared in pyproject.toml.

``STRIDEDVIEW_DEBUG=1`` builds with every check and no optimisation,
``STRIDEDVIEW_SANITIZE=1`` adds the address and undefined-behaviour sanitizers.
"""

import os
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Distribution, Extension, setup

ROOT = Path(__file__).parent
DEBUG = os.environ.get("STRIDEDVIEW_DEBUG") == "1"
SANITIZE = os.environ.get("STRIDEDVIEW_SANITIZE") == "1"

DIRECTIVES = {
    "language_level": 3,
    "embedsignature": True,
    "auto_pickle": False,
    "annotation_typing": False,
    # But for the modules that say so themselves: elsewhere the GIL is what guards.
    "freethreading_compatible": False,
}


def compile_flags():
    """Return the compiler's and the linker's flags for the chosen build."""
    if os.name == "nt":
        return (["/Od", "/Zi"] if DEBUG else ["/O2"]), []
    compile_args = ["-O0", "-g", "-UNDEBUG"] if DEBUG else ["-O3", "-g0"]
    if SANITIZE:
        sanitizers = ["-fsanitize=address,undefined", "-fno-omit-frame-pointer"]
        return [*compile_args, *sanitizers, "-g"], sanitizers
    return compile_args, []


def extensions():
    """Return one Extension per ``stridedview/*.pyx``."""
    compile_args, link_args = compile_flags()
    return [
        Extension(
            f"stridedview.{source.stem}",
            [source.relative_to(ROOT).as_posix()],
            extra_compile_args=compile_args,
            extra_link_args=link_args,
        )
        for source in sorted((ROOT / "stridedview").glob("*.pyx"))
    ]


class DistributionWithData(Distribution):
    """A distribution whose data files an editable install carries too."""

    # The editable build looks for this name, distutils has only the longer one.
    has_data = Distribution.has_data_files


setup(
    distclass=DistributionWithData,
    # A wheel puts its data files under sys.prefix; ``../purelib`` of the same scheme is
    # site-packages, where ``site`` looks for ``.pth`` files. So it is in a wheel and in
    # an editable install alike.
    data_files=[("../purelib", ["stridedview_enable.pth"])],
    ext_modules=cythonize(
        extensions(),
        compiler_directives=DIRECTIVES,
        force=DEBUG or SANITIZE,
        nthreads=int(os.environ.get("STRIDEDVIEW_BUILD_JOBS", "0")),
    ),
)
