"""Run numba-cuda's own tests without and with stridedview, and print what differs.

``python -m tests.suite [--standin] [--arrays] [--json FILE] [pytest arguments]``. On a
machine with a GPU every test counts. On the stand-in driver (``--standin``) kernels do not
run, so that what checks a kernel's result fails either way and shows nothing; our copy
kernels are acted out, so that ``--arrays`` copies. Each run is a child process in an empty
folder; outcomes are compared test by test, and it is a failure if one differs that is not
`expected` to, or if one that is no longer does.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import json
import os
import platform
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from xml.etree import ElementTree

from tests import standin

ROOT = Path(__file__).resolve().parent.parent
LINES_SHOWN = 30  # of failures, per run
ROUNDS_ALONE = 2  # of the tests that differed, where chance may decide
PACKAGES = ["numba.cuda.tests.cudapy", "numba.cuda.tests.cudadrv"]
VERSIONS = ["numba-cuda", "numba", "cuda-core", "cuda-bindings", "numpy", "pytest"]
PLUGIN = "stridedview_suite"

COUNTS_WAITS = (
    "asserts that Stream.synchronize of Numba is called in the launch, once for each array "
    "with a stream; a launch waits by events, and its host not at all"
)
# Tests that pass without us and fail with us, and why that is meant.
EXPECTED = {
    f"test_cuda_array_interface.TestCudaArrayInterface::{name}": COUNTS_WAITS
    for name in ("test_launch_sync", "test_launch_sync_two_streams")
}
# Likewise with enable(arrays=True), beside those; docs/arrays.md has them in a table.
_CUDA_ARRAY = "test_cuda_ndarray.TestCudaNDArray"
_INTERFACE = "test_cuda_array_interface.TestCudaArrayInterface"
_REFUSED_COPY = "demands a refusal of a copy that StridedViews make"
_NUMPYS_STRIDES = "demands the strides of a transposed copy; a view has NumPy's"
EXPECTED_OF_ARRAYS = {
    "test_array_attr.TestArrayAttr::test_ravel_stride_1d": (
        "demands that a gapped array cannot be ravelled, which needs no copy"
    ),
    "test_cuda_array_slicing.CudaArraySetting::test_sync": (
        "counts calls of Stream.synchronize of Numba; the driver is called itself"
    ),
    **{
        f"{_CUDA_ARRAY}::test_devicearray_contiguous_{name}": _REFUSED_COPY
        for name in ("copy_device", "slice", "device_strided")
    },
    f"{_CUDA_ARRAY}::test_devicearray_transpose_wrongdim": (
        "demands that three axes cannot be transposed"
    ),
    f"{_CUDA_ARRAY}::test_issue_8477": (
        "demands that an empty host array's strides are kept"
    ),
    "test_array.TestCudaArray::test_array_like_2d_view_transpose_device": _NUMPYS_STRIDES,
    "test_transpose.TestTranspose::test_transpose_view": _NUMPYS_STRIDES,
    f"{_INTERFACE}::test_negative_strided_copy_to_host": _REFUSED_COPY,
    "test_vectorize.TestCUDAVectorize::test_no_transfer_for_device_data": (
        "counts calls of Numba's copying functions, which StridedViews do not use"
    ),
}

INI = """[pytest]
consider_namespace_packages = true
"""

FIXTURE = """import pytest

@pytest.fixture(scope="class")
def initialize_from_pytest_config(request):
    request.cls._dump_failed_filechecks = False
"""

ENABLE = """
import stridedview
stridedview.enable({options})
"""

# Where no kernel runs, what a new array holds decides whether a test of a result passes. So
# that this is the same in both runs, each test finds one pattern in the blocks that NumPy
# keeps for small arrays (7 of each size); malloc fills those of larger ones.
SOIL = """
import numpy

@pytest.fixture(autouse=True)
def _soiled_memory():
    blocks = [numpy.full(1 + i % 1023, 165, numpy.uint8) for i in range(7 * 1023)]
    blocks.clear()
"""
SOILED = {"MALLOC_PERTURB_": "90"}

ACT_OUT = """
from tests import standin
from tests.copy_kernels import act_out
standin.load()
standin.on_launch(act_out)
"""

Outcomes = dict[str, str]


def expected(arrays: bool) -> dict[str, str]:
    """Return the tests whose outcome may differ, and why, with or without arrays=True."""
    return {**EXPECTED, **(EXPECTED_OF_ARRAYS if arrays else {})}


def run(source: str, arguments: list[str], environment: dict[str, str]) -> Outcomes:
    """Run the suite in a child process.

    Parameters
    ----------
    source : str
        Run in the child before the tests are collected: "" leaves numba-cuda as it is.
    arguments : list of str
        For pytest, beside what the suite needs.
    environment : dict
        Of the child.

    Returns
    -------
    dict
        Test id -> "passed", "failed", "error" or "skipped".
    """
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        Path(folder, "pytest.ini").write_text(INI)
        # A plugin, not a conftest.py: its fixture is seen by tests outside the folder too.
        Path(folder, f"{PLUGIN}.py").write_text(FIXTURE + source)
        found = [folder, str(ROOT), environment.get("PYTHONPATH")]
        process = subprocess.run(
            [*command(report), *arguments, "--pyargs", *packages(arguments)],
            cwd=folder,
            env={**environment, "PYTHONPATH": os.pathsep.join(filter(None, found))},
            capture_output=True,
            text=True,
            check=False,
        )
        if not report.exists():
            raise RuntimeError(process.stdout[-4000:] + process.stderr[-4000:])
        show(process.stdout.strip().splitlines())
        return outcomes(report)


def command(report: Path) -> list[str]:
    """Return the command that runs pytest and writes a JUnit report."""
    options = ["-q", "--tb=short", f"--junitxml={report}", "-p", PLUGIN]
    # The order is the same in both runs: tests leave things behind.
    options += ["-p", "no:randomly", "-p", "no:cacheprovider"]
    if importlib.util.find_spec("pytest_benchmark"):
        options.append("--benchmark-disable")
    return [sys.executable, "-m", "pytest", *options]


def packages(arguments: list[str]) -> list[str]:
    """Return what to collect: the whole suite, unless the arguments name a test."""
    named = any(not each.startswith("-") and "::" in each for each in arguments)
    return [] if named else PACKAGES


def show(lines: list[str]) -> None:
    """Print a run's last line, and the first of its errors and failures."""
    print(lines[-1])
    bad = [line for line in lines if line.startswith(("ERROR ", "FAILED "))]
    for line in bad[:LINES_SHOWN]:
        print(line[:200])
    if len(bad) > LINES_SHOWN:
        print(f"... and {len(bad) - LINES_SHOWN} more")


def outcomes(report: Path) -> Outcomes:
    """Return test id -> outcome of a JUnit report."""
    found: Outcomes = {}
    for case in ElementTree.parse(report).iter("testcase"):
        kinds = {child.tag for child in case} & {"failure", "error", "skipped"}
        name = f"{case.get('classname')}::{case.get('name')}"
        kind = sorted(kinds)[0].replace("failure", "failed") if kinds else "passed"
        # A test with subtests has an entry for each that failed, and one of its own.
        if found.get(name, "passed") == "passed":
            found[name] = kind
    return found


def differences(before: Outcomes, after: Outcomes) -> dict[str, str]:
    """Return test id -> what differs, in words, of each test whose outcome differs."""
    found = {}
    for name in sorted({*before, *after}):
        pair = before.get(name, "absent"), after.get(name, "absent")
        if pair[0] != pair[1]:
            found[name] = f"{pair[0]} without, {pair[1]} with stridedview"
    return found


def selection(names: list[str]) -> str:
    """Return pytest's ``-k`` expression for test ids, and perhaps a few others."""
    words = [name.replace("::", ".").partition("[")[0].split(".") for name in names]
    return " or ".join("(" + " and ".join(filter(None, each)) + ")" for each in words)


def confirmed(
    found: dict[str, str],
    meant: dict[str, str],
    sources: tuple[str, str],
    environment: dict[str, str],
) -> dict[str, str]:
    """Return the differences that are meant, and those that are the same again alone.

    Where no kernel runs, a test of its result passes if the new array happens to hold what
    is expected, left behind by whatever was there before it. So a difference counts only if
    it is there, the same way round, in each of `ROUNDS_ALONE` more runs.
    """
    for _ in range(ROUNDS_ALONE):
        doubtful = [name for name in found if name not in meant]
        if not doubtful:
            break
        print("once more, alone:", *doubtful, sep="\n  ", flush=True)
        arguments = ["-k", selection(doubtful)]
        before, after = (run(source, arguments, environment) for source in sources)
        again = differences(before, after)
        found = {
            name: text
            for name, text in found.items()
            if name in meant or again.get(name) == text
        }
    return found


def unexpected(found: dict[str, str], meant: dict[str, str], before: Outcomes) -> list[str]:
    """Return a line for each difference that is not meant, or is gone.

    An expected one counts as gone only if its test ran and passed without us.
    """
    lines = [f"{name}: {text}" for name, text in found.items() if name not in meant]
    return lines + [
        f"{name}: expected to differ, and does not"
        for name in meant
        if name not in found and before.get(name) == "passed"
    ]


def counts(found: Outcomes) -> dict[str, int]:
    """Return how many tests had each outcome."""
    kinds = sorted(set(found.values()))
    return {kind: sum(value == kind for value in found.values()) for kind in kinds}


def main() -> int:
    """Run both ways; return 1 if anything differs that is not meant to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--arrays", action="store_true", help="enable(arrays=True)")
    parser.add_argument("--standin", action="store_true", help="on the stand-in driver")
    own, rest = parser.parse_known_args()
    environment = {**standin.environment(), **SOILED} if own.standin else dict(os.environ)
    print("without stridedview:", end=" ", flush=True)
    acted_out = ACT_OUT if own.standin and own.arrays else ""
    plain = (SOIL if own.standin else "") + acted_out
    enabling = plain + ENABLE.format(options="arrays=True" if own.arrays else "")
    before = run(plain, rest, environment)
    print("with stridedview:", end=" ", flush=True)
    after = run(enabling, rest, environment)
    found = differences(before, after)
    if acted_out:
        # Numba's own copies by kernels show nothing there.
        found = {name: text for name, text in found.items() if before.get(name) == "passed"}
    meant = expected(own.arrays)
    if own.standin:
        found = confirmed(found, meant, (plain, enabling), environment)
    bad = unexpected(found, meant, before)
    result = {
        "driver": "stand-in" if own.standin else "the machine's",
        "date": datetime.date.today().isoformat(),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in VERSIONS},
        "without": counts(before),
        "with": counts(after),
        "expected": {name: meant[name] for name in found if name in meant},
        "difference": bad,
    }
    print(json.dumps(result, indent=1))
    if own.json:
        own.json.write_text(json.dumps(result, indent=1) + "\n")
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
