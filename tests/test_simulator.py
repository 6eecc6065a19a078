"""CPU torch tensors in Numba's CUDA simulator.

The simulator is chosen when Numba is imported, so the cases, `simulator_cases.py`, run in
a process of their own.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

CASES = Path(__file__).with_name("simulator_cases.py")


def test_simulator_when_run_in_a_process_of_its_own_then_all_cases_pass():
    pytest.importorskip("torch")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-n", "0"]
    done = subprocess.run(
        [*command, str(CASES)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "NUMBA_ENABLE_CUDASIM": "1", "PYTEST_ADDOPTS": ""},
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_enable_when_the_simulator_is_not_in_use_then_it_says_how_to_use_it():
    from stridedview import _simulator

    with pytest.raises(RuntimeError, match="NUMBA_ENABLE_CUDASIM=1"):
        _simulator.enable()
    assert not _simulator.is_enabled()
