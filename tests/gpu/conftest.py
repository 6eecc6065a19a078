"""What the tests on a GPU share: where several are, each begins on the first."""

import pytest


@pytest.fixture(autouse=True)
def first_device(request):
    """Make device 0 current, and check that it still is when the test is done.

    But for JAX, which leaves the last device that it set up current.
    """
    torch = pytest.importorskip("torch")
    torch.cuda.set_device(0)
    torch.zeros(1, device="cuda:0")  # a context: without one torch only notes the number
    yield
    assert "jax" in request.node.name or torch.cuda.current_device() == 0
