"""A kernel's write and autograd: the version counter tells of it where it is asked to."""

import pytest

import stridedview as sv

torch = pytest.importorskip("torch")


def saved_square():
    """Return a leaf, a tensor that autograd saved, and a result that needs it."""
    leaf = torch.ones(3, requires_grad=True)
    middle = leaf * 2
    return leaf, middle, (middle * middle).sum()


def test_mark_written_when_autograd_saved_the_tensor_then_backward_raises():
    _, middle, result = saved_square()
    sv.mark_written(middle)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.backward()


def test_mark_written_when_nothing_is_marked_then_backward_is_right():
    leaf, _, result = saved_square()
    result.backward()
    assert leaf.grad.tolist() == [8.0, 8.0, 8.0]


def test_mark_written_when_made_in_inference_mode_then_does_nothing():
    with torch.inference_mode():
        tensor = torch.ones(3)
    sv.mark_written(tensor)


def test_mark_written_when_it_is_no_tensor_then_type_error():
    with pytest.raises(TypeError, match="argument 2 is no torch tensor"):
        sv.mark_written(torch.ones(1), [1.0])


class Elsewhere(tuple):
    """A tuple that shows others than its items."""

    def __iter__(self):
        return iter((1, 2))


@pytest.mark.standin
@pytest.mark.parametrize("bump", [True, False])
def test_launch_when_versions_are_bumped_then_only_if_asked(driver, bump):
    cuda = pytest.importorskip("numba.cuda")

    @cuda.jit
    def write(x, both):
        x[0] = 1

    x = driver.torch_tensor((4,), torch.float32)
    y = driver.torch_tensor((4,), torch.float32)
    with sv.enabled(bump_version=bump):
        for args in ((x, (y, 2)), (x, Elsewhere((y, 2))), (cuda.InOut(x), (cuda.In(y), 2))):
            write[1, 1](*args)
            before = x._version, y._version
            write[1, 1](*args)
            assert (x._version - before[0], y._version - before[1]) == (bump, bump)
    before = x._version
    with sv.enabled():
        write[1, 1](x, (y, 2))
    assert x._version == before
