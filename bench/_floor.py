"""Build and open the floor: ``_floor.c``, compiled on demand into ``bench/build``.

Owns the build and the packing of the floor's parameter words. What the floor
does is in the C file.
"""

import functools
import hashlib
import importlib.machinery
import importlib.util
import os
import shlex
import struct
import subprocess
import sysconfig
from pathlib import Path

SOURCE = Path(__file__).with_name("_floor.c")
BUILD = Path(__file__).with_name("build")


@functools.cache
def module():
    """Return the compiled floor, building it if the source has changed.

    Raises
    ------
    RuntimeError
        If the system compiler fails; the message is its last line.
    """
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:12]
    target = BUILD / digest / f"_floor{suffix}"
    if not target.exists():
        compile_source(target)
    loader = importlib.machinery.ExtensionFileLoader("_floor", str(target))
    spec = importlib.util.spec_from_loader("_floor", loader)
    found = importlib.util.module_from_spec(spec)
    loader.exec_module(found)
    return found


def compile_source(target):
    """Compile the floor with the compiler that built this Python, or ``cc``."""
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f"{target.name}.{os.getpid()}")  # two may build at once
    compiler = shlex.split(sysconfig.get_config_var("CC") or "cc")
    include = sysconfig.get_paths()["include"]
    flags = ["-O2", "-fPIC", "-shared", "-fno-strict-aliasing", f"-I{include}"]
    for command in (compiler, ["cc"]):
        call = [*command, *flags, str(SOURCE), "-o", str(partial), "-ldl"]
        try:
            done = subprocess.run(call, capture_output=True, text=True, check=False)
        except FileNotFoundError as error:
            problem = f"no compiler {error.filename}"
            continue
        if done.returncode == 0:
            os.replace(partial, target)
            return
        problem = (done.stderr.strip() or "no message").splitlines()[-1]
    raise RuntimeError(f"the floor does not compile: {problem}")


def loaded():
    """Return the floor with the driver opened; OSError if there is no driver."""
    floor = module()
    floor.load()
    return floor


def array_words(pointer, shape, itemsize):
    """Return the parameter bytes of one contiguous array, as Numba passes it.

    Five words (two unused, size, itemsize, pointer), then extents and strides
    in bytes.
    """
    strides, size = [], 1
    for extent in reversed(shape):
        strides.insert(0, size * itemsize)
        size *= extent
    words = (0, 0, size, itemsize, pointer, *shape, *strides)
    return struct.pack(f"<{len(words)}q", *words)
