"""What the tests on a GPU share: child processes, and objects that offer one protocol."""

import contextlib
import os
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


class Interface:
    """A tensor behind ``__cuda_array_interface__`` alone, with a stream or without one."""

    def __init__(self, tensor, **more):
        self.tensor = tensor
        self.__cuda_array_interface__ = {
            **tensor.__cuda_array_interface__,
            "version": 3,
            **more,
        }


class Capsule:
    """A tensor behind ``__dlpack__`` alone."""

    def __init__(self, tensor):
        self.tensor = tensor

    def __dlpack__(self, **options):
        return self.tensor.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.tensor.__dlpack_device__()


@contextlib.contextmanager
def cupy_on(stream):
    """Make a torch stream CuPy's current one."""
    import cupy

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer releases have another name for it
        made = cupy.cuda.ExternalStream(stream.cuda_stream)
    with made:
        yield


def run_child(source, **environment):
    """Run Python source in a process of its own; it has to print "done" and nothing else.

    Parameters
    ----------
    source : str
    **environment : str
        Variables beside those of this process.
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(source)],
        env={**os.environ, "NUMBA_CUDA_LOW_OCCUPANCY_WARNINGS": "0", **environment},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.split()[-1:] == ["done"], done.stdout[-2000:]
