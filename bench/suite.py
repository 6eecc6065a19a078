"""Topic ``numba-suite``: numba-cuda's own launch benchmark, before and after.

The benchmark file of the installed numba-cuda is run unchanged by pytest-benchmark
in a child process, once as it is and once with ``STRIDEDVIEW_ENABLE=1``. It is
copied to an empty folder first: run in place, pytest would import numba-cuda a
second time under another name.
"""

import importlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from bench._harness import UnavailableError, add_ratios, reason, unavailable

FLOOR = "numba-cuda"  # "before" is what "after" is divided by
SLOW = True  # nothing is printed before each of two runs is done: progress is told
SUITE = "numba.cuda.tests.benchmarks.test_kernel_launch"
ROOT = Path(__file__).parent.parent
BEFORE, AFTER = "numba-cuda", "stridedview"

# Says in the end whether the patch was in place: a variable that nothing reads would
# otherwise give an "after" that is a second "before".
CONFTEST = """\
import json, pathlib, sys

def pytest_sessionfinish(session):
    package = sys.modules.get("stridedview")
    enabled = bool(package and package.is_enabled())
    pathlib.Path(__file__).with_name("enabled.json").write_text(json.dumps(enabled))
"""

# Our wheel puts its .pth where Python looks for such files. Beside a package that was
# built in place, or installed to a folder on PYTHONPATH, Python has to be told of it.
CHILD = """\
import site, sys
site.addsitedir(sys.argv.pop(1))
import pytest
sys.exit(pytest.main(sys.argv[1:]))
"""


def package_folder():
    """Return the folder that holds the stridedview package of this run."""
    found = importlib.util.find_spec("stridedview")
    return Path(found.origin).parent.parent if found and found.origin else ROOT


def suite_file():
    """Return the path of the installed benchmark file.

    Raises
    ------
    ModuleNotFoundError
        If numba-cuda is not installed or comes without it.
    """
    found = importlib.util.find_spec(SUITE)
    if found is None:
        raise ModuleNotFoundError(f"no {SUITE} in this numba-cuda")
    return Path(found.origin)


def run_child(folder, *, enable, options):
    """Run the suite in a child and return (benchmarks, whether we were enabled)."""
    shutil.copy(suite_file(), folder)
    Path(folder, "pytest.ini").write_text("[pytest]\naddopts = -p no:cacheprovider\n")
    Path(folder, "conftest.py").write_text(CONFTEST)
    environment = dict(os.environ)
    if options.standin:
        environment = importlib.import_module("tests.standin").environment()
    environment.pop("STRIDEDVIEW_ENABLE", None)
    environment["COLUMNS"] = "250"  # pytest cuts a failure's reason at the edge
    if enable:
        environment["STRIDEDVIEW_ENABLE"] = "1"
    home = str(package_folder())
    paths = [home, *filter(None, [environment.get("PYTHONPATH")])]
    environment["PYTHONPATH"] = os.pathsep.join(paths)
    command = [sys.executable, "-c", CHILD, home, "-q", "--benchmark-json=out.json"]
    if options.quick:
        command += ["--benchmark-min-rounds=5", "--benchmark-max-time=0.05"]
    if importlib.util.find_spec("pytest_randomly"):
        command += ["-p", "no:randomly"]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    out = Path(folder, "out.json")
    if not out.exists():
        raise RuntimeError(
            f"the suite wrote no result: {problem(done.stdout + done.stderr)}"
        )
    enabled = json.loads(Path(folder, "enabled.json").read_text())
    return json.loads(out.read_text())["benchmarks"], enabled


def problem(said):
    """Return why pytest measured nothing, from what it printed."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    # The last line printed is often pytest-benchmark's own.
    failures = re.findall(r"^(?:FAILED|ERROR) .*? - (.+)$", said, re.MULTILINE)
    return (failures or lines[-1:] or ["it printed nothing"])[0]


def rows_of(benchmarks, contender):
    """Return our rows of pytest-benchmark's figures, seconds turned to microseconds."""
    rows = []
    for each in benchmarks:
        stats = each["stats"]
        figures = {key: stats[key] * 1e6 for key in ("median", "iqr", "min")}
        rows.append(
            {
                "id": "numba-suite." + each["name"].removeprefix("test_"),
                "contender": contender,
                "unit": "us",
                **figures,
                "n": stats["rounds"],
                "calls": stats["iterations"],
                "note": "",
            }
        )
    return rows


def measure_one(contender, *, enable, options):
    """Return the rows of one run of the suite."""
    if importlib.util.find_spec("pytest_benchmark") is None:
        raise UnavailableError(
            "pytest-benchmark is not installed; pip install -e '.[bench]'"
        )
    with tempfile.TemporaryDirectory() as folder:
        benchmarks, enabled = run_child(folder, enable=enable, options=options)
    if enable and not enabled:
        raise UnavailableError(
            "STRIDEDVIEW_ENABLE=1 had no effect: no .pth of ours, or it failed"
        )
    if enabled and not enable:
        raise UnavailableError("stridedview was on without STRIDEDVIEW_ENABLE")
    if not benchmarks:
        raise UnavailableError("the suite skipped every case")
    return rows_of(benchmarks, contender)


def run(options):
    """Run the suite twice and return the rows of both, before first."""
    rows = []
    for contender, enable in ((BEFORE, False), (AFTER, True)):
        if not options.wants("numba-suite", contender):
            continue
        options.progress(f"numba-cuda's suite: {contender}")
        try:
            rows += measure_one(contender, enable=enable, options=options)
        except Exception as error:  # noqa: BLE001 - a missing peer is the row's reason
            rows.append(unavailable("numba-suite", contender, reason(error)))
    return add_ratios(rows, FLOOR)
