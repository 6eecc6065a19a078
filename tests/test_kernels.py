"""The compilation of the copy kernels: what counts as having no compiler."""

import numpy as np
import pytest

import stridedview as sv
from stridedview import _device_copy, _kernels, _status
from tests import standin

pytestmark = pytest.mark.standin


@pytest.fixture
def fresh(driver):
    """Forget what was compiled, and what could not be, before and after."""

    def forget():
        _kernels.compiled.cache_clear()
        _kernels.kernel_handle.cache_clear()
        _device_copy.forget_missing_compiler()

    forget()
    standin.on_launch(None)
    yield
    forget()


def transpose():
    """Copy a transposed array on the device, which takes a kernel; return both sides."""
    array = np.arange(60, dtype="i4").reshape(3, 4, 5)
    view = sv.to_device(array).transpose(2, 1, 0)
    target = sv.to_device(np.zeros((5, 8, 3), "i4"))[:, ::2]
    target[...] = view
    return target.copy_to_host(), array.transpose(2, 1, 0)


FAILURES = {
    "no library": ImportError("no NVRTC"),
    "refused by the system": OSError("no NVRTC"),
    "refused by NVRTC": RuntimeError("no NVRTC"),
}


@pytest.mark.parametrize("failure", FAILURES.values(), ids=FAILURES)
def test_copy_when_nothing_compiles_then_it_is_right_and_status_tells(
    fresh, monkeypatch, failure
):
    def fail(*_, **__):
        raise failure

    monkeypatch.setattr("cuda.core.Program", fail)
    found, expected = transpose()
    np.testing.assert_array_equal(found, expected)
    assert _device_copy.compiler_missing() == {0: "no NVRTC"}
    facts = _status.compiler_facts()
    assert facts["without"] == {"cuda:0": "no NVRTC"}
    shown = _status.render({**_status.collect(), "compiler": facts})
    assert "cuda:0: no NVRTC" in shown
    assert "row by row" in shown


def test_copy_when_a_kernel_cannot_be_loaded_then_it_raises_and_the_next_one_tries(
    fresh, monkeypatch
):
    def fail(*_):
        raise RuntimeError("CUDA_ERROR_OUT_OF_MEMORY: passing")

    with monkeypatch.context() as patch:
        patch.setattr(_device_copy, "kernel_handle", fail)
        with pytest.raises(RuntimeError, match="passing"):
            transpose()
    assert _device_copy.compiler_missing() == {}


def test_compiler_when_nvrtc_is_absent_then_status_says_what_is_slow(monkeypatch):
    from cuda.bindings import nvrtc

    def absent():
        raise RuntimeError("libnvrtc.so is not found")

    monkeypatch.setattr(nvrtc, "nvrtcVersion", absent)
    facts = _status.compiler_facts()
    assert (facts["version"], facts["reason"]) == (None, "libnvrtc.so is not found")
    shown = _status.render({**_status.collect(), "compiler": facts})
    assert "libnvrtc.so is not found" in shown
    assert "row by row" in shown


def test_compiler_when_nvrtc_is_there_then_status_shows_its_version():
    facts = _status.compiler_facts()
    if facts["reason"]:
        pytest.skip(facts["reason"])
    assert f"NVRTC:  {facts['version']}" in _status.render(_status.collect())
