"""Running an example in a process of its own, and reading what it prints."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples"
HEADING = [
    "ours",
    "torch",
    "torch/ours",
    "host:",
    "ours",
    "torch",
    "kernels:",
    "ours",
    "torch",
]
FIGURE = r"[\d,]+\.\d"
ROW = re.compile(
    rf"(?P<case>\S.*?) +({FIGURE}) +({FIGURE}) +(\d+\.\d\dx) +({FIGURE}) +({FIGURE})"
    r" +(-|\d+) +(-|\d+)"
)


def run(name, *arguments, folder=EXAMPLES, **environment):
    """Run an example as a user does; return the finished process."""
    inherited = {key: value for key, value in os.environ.items() if "CUDASIM" not in key}
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return subprocess.run(
        [sys.executable, str(folder / f"{name}.py"), *arguments],
        env={**inherited, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )


def table_of(printed, name):
    """Return what stands before the table, where it was run, and each case's cells."""
    said, start, table = printed.partition(f"{name} on ")
    assert start, printed
    title, heading, *lines = table.splitlines()
    where, _, unit = title.rpartition(", ")
    assert unit == "microseconds an iteration:"
    assert heading.split() == HEADING
    rows = [ROW.fullmatch(line) for line in lines]
    assert all(rows), lines
    return said, f"{name} on {where}", {row["case"]: list(row.groups()[1:]) for row in rows}
