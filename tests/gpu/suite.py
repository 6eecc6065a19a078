"""Run numba-cuda's own test suite without and with stridedview, and print the difference.

``python -m tests.gpu.suite [--json FILE] [--arrays] [pytest arguments]``, on a machine with
a GPU (or on the stand-in driver, where what checks a kernel's result fails either way).
Each run is a child process in an empty folder; outcomes are compared test by test.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree

LINES_SHOWN = 30  # of failures, per run
PACKAGES = ["numba.cuda.tests.cudapy", "numba.cuda.tests.cudadrv"]

INI = """[pytest]
consider_namespace_packages = true
addopts = --benchmark-disable
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


PLUGIN = "stridedview_suite"


def run(options: str | None, arguments: list[str]) -> dict[str, str]:
    """Run the suite in a child process.

    Parameters
    ----------
    options : str or None
        Source of the keyword arguments for ``enable``; None leaves numba-cuda as it is.
    arguments : list of str
        For pytest, beside what the suite needs.

    Returns
    -------
    dict
        Test id -> "passed", "failed", "error" or "skipped".
    """
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        Path(folder, "pytest.ini").write_text(INI)
        enabling = "" if options is None else ENABLE.format(options=options)
        # A plugin, not a conftest.py: its fixture is seen by tests outside the folder too.
        Path(folder, f"{PLUGIN}.py").write_text(FIXTURE + enabling)
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "--tb=short",
            f"--junitxml={report}",
            "-p",
            PLUGIN,
        ]
        environment = dict(os.environ)
        environment["PYTHONPATH"] = os.pathsep.join(
            [folder, *filter(None, [environment.get("PYTHONPATH")])]
        )
        names = (
            [] if any(not a.startswith("-") and "::" in a for a in arguments) else PACKAGES
        )
        process = subprocess.run(
            [*command, *arguments, "--pyargs", *names],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if not report.exists():
            raise RuntimeError(process.stdout[-4000:] + process.stderr[-4000:])
        print(process.stdout.strip().splitlines()[-1])
        lines = process.stdout.splitlines()
        for line in [x for x in lines if x.startswith(("ERROR ", "FAILED "))][:LINES_SHOWN]:
            print(line[:200])
        return outcomes(report)


def outcomes(report: Path) -> dict[str, str]:
    """Return test id -> outcome of a JUnit report."""
    found = {}
    for case in ElementTree.parse(report).iter("testcase"):
        kinds = {child.tag for child in case} & {"failure", "error", "skipped"}
        name = f"{case.get('classname')}::{case.get('name')}"
        kind = sorted(kinds)[0] if kinds else "passed"
        found[name] = {"failure": "failed"}.get(kind, kind)
    return found


def messages_of_difference(before: dict[str, str], after: dict[str, str]) -> list[str]:
    """Return a line for each test whose outcome differs."""
    lines = []
    for name in sorted({*before, *after}):
        pair = before.get(name, "absent"), after.get(name, "absent")
        if pair[0] != pair[1]:
            lines.append(f"{name}: {pair[0]} without, {pair[1]} with stridedview")
    return lines


def counts(found: dict[str, str]) -> dict[str, int]:
    """Return how many tests had each outcome."""
    kinds = sorted(set(found.values()))
    return {kind: sum(value == kind for value in found.values()) for kind in kinds}


def main() -> int:
    """Run both ways; exit with the number of differences, 1 at most."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--arrays", action="store_true", help="enable(arrays=True)")
    own, rest = parser.parse_known_args()
    before = run(None, rest)
    after = run("arrays=True" if own.arrays else "", rest)
    lines = messages_of_difference(before, after)
    result = {"without": counts(before), "with": counts(after), "difference": lines}
    print(json.dumps(result, indent=1))
    if own.json:
        own.json.write_text(json.dumps(result, indent=1) + "\n")
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main())
