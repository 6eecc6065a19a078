"""Build the stand-in driver and the producer extension with the system's C compiler.

Owns the cache folder ``build/``: what is there is rebuilt only when a source, the compiler
or the interpreter changed. Processes that build at once each build aside and rename, so
none sees half a file.
"""

import contextlib
import fcntl
import hashlib
import os
import shlex
import shutil
import subprocess
import sysconfig
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCES = HERE / "src"
BUILD = HERE / "build"
DRIVER = BUILD / "libcuda.so.1"
PRODUCER = BUILD / f"standin_producer{sysconfig.get_config_var('EXT_SUFFIX')}"

COMMON = [
    "-std=gnu11",
    "-D_GNU_SOURCE",
    "-O2",
    "-g",
    "-fPIC",
    "-shared",
    "-Wall",
    "-Wextra",
]
# -z,now: the first call of a function costs what every later call costs.
DRIVER_FLAGS = [
    *COMMON,
    "-fvisibility=hidden",
    "-pthread",
    "-Wl,-soname,libcuda.so.1",
    "-Wl,-z,defs,-z,now",
]
PRODUCER_FLAGS = [*COMMON, "-fvisibility=hidden", f"-I{sysconfig.get_paths()['include']}"]


def compiler() -> list[str]:
    """Return the compiler's command: ``$CC``, else cc, gcc or clang."""
    if command := os.environ.get("CC"):
        return shlex.split(command)
    for name in ("cc", "gcc", "clang"):
        if shutil.which(name):
            return [name]
    raise RuntimeError("the stand-in driver needs a C compiler: set CC or install gcc")


def _digest(command: list[str], inputs: list[Path]) -> str:
    digest = hashlib.sha256(shlex.join(command).encode())
    for path in inputs:
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


@contextlib.contextmanager
def _locked():
    BUILD.mkdir(exist_ok=True)
    with open(BUILD / "lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _make(target: Path, flags: list[str], sources: list[Path], inputs: list[Path]) -> Path:
    command = [*compiler(), *flags]
    stamp = target.with_name(target.name + ".digest")
    digest = _digest(command, inputs)
    with _locked():
        if target.exists() and stamp.exists() and stamp.read_text() == digest:
            return target
        aside = target.with_name(f"{target.name}.{os.getpid()}")
        subprocess.run([*command, "-o", str(aside), *map(str, sources)], check=True)
        os.replace(aside, target)
        stamp.write_text(digest)
    return target


def driver() -> Path:
    """Return the path of an up-to-date ``libcuda.so.1``, ``libcuda.so`` beside it."""
    inputs = sorted(
        path for path in SOURCES.iterdir() if path.suffix in {".c", ".h", ".def"}
    )
    _make(DRIVER, DRIVER_FLAGS, [path for path in inputs if path.suffix == ".c"], inputs)
    link = BUILD / "libcuda.so"
    with contextlib.suppress(FileExistsError):
        link.symlink_to(DRIVER.name)
    return DRIVER


def producer() -> Path:
    """Return the path of the up-to-date producer extension."""
    inputs = sorted((HERE / "producer").iterdir())
    sources = [path for path in inputs if path.suffix == ".c"]
    return _make(PRODUCER, PRODUCER_FLAGS, sources, inputs)
