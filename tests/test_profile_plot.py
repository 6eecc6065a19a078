"""The chart of a profile."""

import subprocess
import sys

import numpy as np
import pytest
from numba import cuda

import stridedview
from tests.launching import foreign, tensor

pytestmark = pytest.mark.standin


def test_plot_when_matplotlib_is_absent_then_it_says_what_to_install(
    driver, monkeypatch, tmp_path
):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with stridedview.profile() as found:
        pass
    with pytest.raises(ImportError, match=r"pip install 'stridedview\[plot\]'"):
        found.plot(tmp_path / "plot.png")
    assert not (tmp_path / "plot.png").exists()


def test_profile_when_it_is_not_plotted_then_matplotlib_is_not_imported():
    source = (
        "import sys, stridedview\n"
        "with stridedview.profile() as found: pass\n"
        "found.table(), found.to_json()\n"
        "print('matplotlib' in sys.modules)\n"
    )
    child = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, check=True
    )
    assert child.stdout.split() == ["False"]


@pytest.fixture
def profile(driver):
    """Give a profile of three kernels, one of them with a slow route."""
    pytest.importorskip("matplotlib")

    @cuda.jit
    def fast(x):
        pass

    @cuda.jit
    def slow_one(x):
        pass

    @cuda.jit
    def costs_5_to_9_dollars(x):
        pass

    costs_5_to_9_dollars.py_func.__qualname__ = "costs $5 to $9"
    array = cuda.to_device(np.zeros(4, np.float32))
    with stridedview.enabled(), stridedview.profile() as found:
        for _ in range(3):
            fast[1, 1](tensor(array))
        slow_one[1, 1](foreign(array))
        costs_5_to_9_dollars[1, 1](1)
    return found


def test_figure_when_kernels_were_launched_then_a_bar_has_the_time_of_each(profile):
    (axes,) = profile.figure().axes
    facts = profile.to_list()
    bars = sorted(axes.patches, key=lambda bar: -bar.get_y())
    assert [bar.get_width() for bar in bars] == [each["microseconds"] for each in facts]
    labels = [label.get_text() for label in axes.get_yticklabels()][::-1]
    assert labels == [f"{each['kernel']} ({each['launches']})" for each in facts]
    # The slow one stands on top, in a color of its own.
    assert labels[0].endswith("slow_one (1)")
    assert bars[0].get_facecolor() != bars[1].get_facecolor() == bars[2].get_facecolor()
    assert "microseconds" in axes.get_xlabel()


FORMATS = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}


@pytest.mark.parametrize("suffix", FORMATS)
def test_plot_when_given_a_path_then_its_suffix_chooses_the_format(
    profile, tmp_path, suffix
):
    for path in (tmp_path / f"plot.{suffix}", str(tmp_path / f"again.{suffix}")):
        profile.plot(path)
        with open(path, "rb") as file:
            assert file.read(5).startswith(FORMATS[suffix])


def test_plot_when_the_suffix_is_unknown_then_value_error(profile, tmp_path):
    with pytest.raises(ValueError, match="odd"):
        profile.plot(tmp_path / "plot.odd")


def test_plot_when_nothing_was_launched_then_an_empty_chart_is_written(driver, tmp_path):
    pytest.importorskip("matplotlib")
    with stridedview.profile() as found:
        pass
    found.plot(tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes()[:4] == FORMATS["png"]
