"""The public switch: its options, and what is said where there is no driver."""

import pytest

import stridedview
from stridedview import _switch
from tests.standin.helpers import run_child

WRONG = {
    "unknown": ({"foo": 1}, TypeError, "foo"),
    "stream": ({"stream": "torch"}, ValueError, "stream is 'producer' or 'numba'"),
    "stream unhashable": ({"stream": []}, ValueError, "stream is 'producer' or 'numba'"),
    "slow": ({"slow": "raise"}, ValueError, "slow is 'allow', 'warn' or 'error'"),
    "strict": ({"strict": "yes"}, TypeError, "strict is True or False, not 'yes'"),
    "arrays": ({"arrays": 1}, TypeError, "arrays is True or False, not 1"),
    "bump": ({"bump_version": None}, TypeError, "bump_version is True or False"),
}


@pytest.mark.standin
@pytest.mark.parametrize("case", WRONG.values(), ids=WRONG)
def test_enable_when_an_option_is_wrong_then_nothing_changes(driver, case):
    options, kind, message = case
    before = _switch.options()
    with pytest.raises(kind, match=message):
        stridedview.enable(**options)
    assert _switch.options() == before
    with pytest.raises(kind, match=message), stridedview.enabled(**options):
        pytest.fail("the block was entered")
    assert _switch.options() == before


@pytest.mark.standin
def test_options_when_enabled_then_all_are_told(driver):
    with stridedview.enabled(stream="numba", strict=True):
        assert _switch.options() == {
            "stream": "numba",
            "strict": True,
            "arrays": False,
            "slow": "allow",
            "bump_version": False,
        }


# A machine with a driver has to seem to have none: the look-up is what fails first.
NO_DRIVER = """
from cuda.bindings import driver
def absent(*_):
    raise RuntimeError("no libcuda")
driver.cuGetProcAddress = absent
import numpy as np
import stridedview
from numba import cuda
stridedview.enable()

@cuda.jit
def kernel(x):
    x[0] = 1

def told(needs):
    for name, need in needs.items():
        try:
            need()
        except RuntimeError as error:
            print(name, "|", error)
"""
LAUNCHES = """
told({
    "launch": lambda: kernel[1, 1](np.ones(1)),
    "explain": lambda: stridedview.explain(kernel[1, 1], np.ones(1)),
    "prepare": lambda: stridedview.prepare(kernel[1, 1], 1),
})
"""
ALLOCATIONS = """
told({
    "empty": lambda: stridedview.empty(1),
    "zeros": lambda: stridedview.zeros(1),
    "pinned": lambda: stridedview.pinned(1),
    "to_device": lambda: stridedview.to_device([1]),
})
"""


def told(*sources, **variables):
    """Return what each need of a driver says in a process that has none."""
    child = run_child("".join([NO_DRIVER, *sources]), variables=variables)
    assert child.returncode == 0, child.stderr[-2000:]
    return dict(line.split(" | ") for line in child.stdout.splitlines())


def test_launch_when_there_is_no_driver_then_the_simulator_and_status_are_named():
    lines = told(LAUNCHES, ALLOCATIONS)
    assert {"launch", "explain", "prepare", "empty", "to_device"} <= lines.keys()
    for said in lines.values():
        assert "NUMBA_ENABLE_CUDASIM=1" in said
        assert "python -m stridedview status" in said
        assert "no libcuda" in said


def test_allocation_when_simulated_without_a_driver_then_it_says_what_to_pass():
    lines = told(ALLOCATIONS, NUMBA_ENABLE_CUDASIM="1")
    assert lines.keys() == {"empty", "zeros", "pinned", "to_device"}
    for said in lines.values():
        assert "simulator has no device memory" in said
        assert "like=" in said
