"""What all tests share: the stand-in driver, loaded before anything else, and fixtures."""

import pytest

import stridedview
from tests import standin

pytest_plugins = ["tests.standin.fixtures"]


@pytest.fixture
def enabled(driver):
    """Enable for a test, and give the stand-in."""
    from stridedview import _stream

    # What tests before this one kept is asked for now, not while this one counts calls.
    _stream.release_done()
    with stridedview.enabled():
        yield driver


@pytest.fixture
def kernels():
    """Let the copy kernels run, for real or acted out."""
    from tests.copy_kernels import act_out

    if standin.wanted():
        standin.reset()
        standin.on_launch(act_out)
        yield
        standin.reset()
    else:
        yield


@pytest.fixture
def name(request):
    """Give a name for an operator that no other test's has."""
    namespace = request.module.__name__.rpartition(".")[2]
    made = "".join(c if c.isalnum() else "_" for c in request.node.name)
    return f"{namespace}::{made}"
