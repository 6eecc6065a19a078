"""Pytest's side of the stand-in: load it first of all, reset it around a test."""

import gc
import os

import pytest

from tests import standin


def pytest_configure(config):
    """Put the stand-in in place first of all, and declare its marker."""
    config.addinivalue_line(
        "markers", "standin: needs the stand-in driver; skipped under the real one"
    )
    os.environ.setdefault(
        "NUMBA_CUDA_LOW_OCCUPANCY_WARNINGS", "0"
    )  # tests launch tiny grids
    standin.load()


def pytest_ignore_collect(collection_path):
    """Leave out the stand-in's own tests under the real driver: they compile on import."""
    return (
        True
        if collection_path.name.startswith("test_standin") and not standin.wanted()
        else None
    )


@pytest.fixture(autouse=True)
def _standin_marker(request):
    if request.node.get_closest_marker("standin"):
        request.getfixturevalue("driver")


@pytest.fixture
def driver():
    """Give the stand-in, reset; skip where it is not loaded.

    Until the test is done garbage is collected only where it asks for it: what other tests
    left behind would otherwise call the driver while this one counts calls.
    """
    if not standin.wanted():
        pytest.skip(
            "needs the stand-in; STRIDEDVIEW_TEST_DRIVER=real asks for the real one"
        )
    collects = gc.isenabled()
    gc.disable()
    standin.reset()
    yield standin
    standin.reset()
    if collects:
        gc.enable()
