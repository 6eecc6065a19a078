"""Topic ``instructions``: instructions a launch, counted by callgrind.

The driver is the stand-in of the tests, so no GPU is needed and the count repeats
to a fraction of a percent on any machine. A child process counts 200 launches and
then 400 and the difference is taken, which leaves out what starting and stopping
costs. The count includes the Python loop around the call and the stand-in's own
entry points; the floor's row shows how much these are.

``count`` is for tests, which may assert on it with a margin.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from bench import _floor
from bench._device import Device
from bench._harness import Options, UnavailableError, add_ratios, patch, reason, unavailable
from bench._kernels import NUMBERS

FLOOR = "raw"
SLOW = True  # half a minute a row: progress is told without being asked for
CASES = (
    "raw",
    "raw call",
    "stridedview torch",
    "stridedview StridedView",
    "stridedview DeviceNDArray",
    "stridedview torch, written out",
    "stridedview prepared",
    "numba-cuda torch",
    "numba-cuda DeviceNDArray",
)
FEW, MANY = 200, 400
ROOT = Path(__file__).parent.parent
CHILD_ERROR = "not counted: "


def count(case, arguments):
    """Return the instructions of one launch on the stand-in driver.

    Parameters
    ----------
    case : str
        A contender of topic ``launch``: ``"stridedview torch"``, ``"raw"``, ...
    arguments : int
        How many arrays the kernel takes: 1, 3 or 26.

    Returns
    -------
    float

    Raises
    ------
    UnavailableError
        If valgrind is not installed or the child process fails, with the reason.
    """
    valgrind = shutil.which("valgrind")
    if valgrind is None:
        raise UnavailableError("valgrind is not installed")
    _floor.module()  # built here, so that no compiler runs under valgrind
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "count"
        command = [
            valgrind,
            "--tool=callgrind",
            "--instr-atstart=no",
            f"--callgrind-out-file={out}",
            sys.executable,
            "-m",
            "bench.instructions",
            case,
            str(arguments),
        ]
        environment = {**os.environ, "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
        )
        found = [part for part in (Path(f"{out}.1"), Path(f"{out}.2")) if part.exists()]
        if done.returncode != 0 or len(found) != 2:
            raise UnavailableError(child_problem(done.stderr))
        few, many = (total(part.read_text()) for part in found)
    return (many - few) / (MANY - FEW)


def total(text):
    """Return the sum in one part of callgrind's output.

    Raises
    ------
    ValueError
        If the text has no line of totals.
    """
    found = re.search(r"^totals: (\d+)$", text, re.MULTILINE)
    if found is None:
        raise ValueError("callgrind wrote no totals")
    return int(found.group(1))


def child_problem(stderr):
    """Return the child's own reason, or the last thing that it said."""
    lines = [
        line for line in stderr.splitlines() if line.strip() and not line.startswith("==")
    ]
    said = [
        line.removeprefix(CHILD_ERROR) for line in lines if line.startswith(CHILD_ERROR)
    ]
    return (
        said
        or [reason(UnavailableError(line)) for line in lines[-1:]]
        or ["the child said nothing"]
    )[0]


def launch_for_callgrind(case, arguments):
    """Do the launches; the body of the child process."""
    from bench import launch

    device = Device(Options(standin=True))
    device.require()
    wanted = (f"launch.{arguments}", case)
    everyone = launch.contenders(Options(standin=True, peers=True), device)
    (contender,) = [each for each in everyone if (each.id, each.name) == wanted]
    callgrind = _floor.module().callgrind
    with patch(contender.patched):
        burst = contender.make()
        burst(20)
        callgrind("start")
        burst(FEW)
        callgrind("part")
        burst(MANY)
        callgrind("part")
        callgrind("stop")


def run(options):
    """Count every case and return its rows."""
    rows = []
    numbers = NUMBERS[:1] if options.quick else NUMBERS
    for case in CASES:
        for number in numbers:
            row_id = f"instructions.{number}"
            if not options.wants(row_id, case):
                continue
            options.progress(f"counting {row_id} {case}")
            try:
                found = count(case, number)
            except UnavailableError as error:
                rows.append(unavailable(row_id, case, reason(error)))
                continue
            figures = {"median": found, "iqr": 0.0, "min": found, "n": 1}
            rows.append(
                {
                    "id": row_id,
                    "contender": case,
                    "unit": "instructions",
                    **figures,
                    "note": "",
                }
            )
    return add_ratios(rows, FLOOR)


if __name__ == "__main__":
    try:
        launch_for_callgrind(sys.argv[1], int(sys.argv[2]))
    except Exception as error:  # noqa: BLE001 - the parent makes a row of it
        sys.exit(CHILD_ERROR + reason(error))
