"""STRIDEDVIEW_ENABLE=1: the .pth file of the wheel, and the import hook behind it."""

import os
import site
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PTH = ROOT / "stridedview_enable.pth"

SIMULATED = {"NUMBA_ENABLE_CUDASIM": "1"}
REPORT = """
import sys
early = any(name.startswith("stridedview") for name in sys.modules)
from numba import cuda
import stridedview
print(early, stridedview.is_enabled(), type(cuda.__spec__.loader).__name__)
"""


@pytest.fixture(scope="module")
def site_folder(tmp_path_factory):
    """Return a folder with the .pth file, for interpreters to start with."""
    folder = tmp_path_factory.mktemp("site")
    (folder / PTH.name).write_text(PTH.read_text())
    # sitecustomize runs after site-packages has been processed, numba-cuda's own .pth
    # file included. The installed copy of ours, if there is one, comes before: twice is
    # once.
    line = f"import site; site.addsitedir({str(folder)!r})"
    (folder / "sitecustomize.py").write_text(line)
    return folder


def run_python(code, site_folder, **environment):
    """Run code in an interpreter that starts with the .pth file."""
    variables = {**os.environ, **environment}
    variables["PYTHONPATH"] = os.pathsep.join([str(site_folder), str(ROOT)])
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env=variables,
    )


@pytest.mark.parametrize("value", ["1", "true", "True"])
def test_numba_when_variable_is_set_then_importing_it_enables(site_folder, value):
    done = run_python(REPORT, site_folder, STRIDEDVIEW_ENABLE=value, **SIMULATED)
    assert done.stdout.split() == ["True", "True", "SourceFileLoader"], done.stderr


@pytest.mark.parametrize("value", ["", "0", "no"])
def test_start_when_variable_is_not_set_then_nothing_of_ours_is_imported(
    site_folder, value
):
    done = run_python(REPORT, site_folder, STRIDEDVIEW_ENABLE=value, **SIMULATED)
    assert done.stdout.split() == ["False", "False", "SourceFileLoader"], done.stderr


def test_start_when_variable_is_set_then_no_framework_is_imported(site_folder):
    # Not "cuda": cuda-bindings 12 makes that namespace in a .pth file of its own.
    names = {"numba", "torch", "numpy", "cuda.core", "cuda.bindings"}
    code = f"import sys; print({names} & set(sys.modules))"
    done = run_python(code, site_folder, STRIDEDVIEW_ENABLE="1")
    assert done.stdout.strip() == "set()", done.stderr


def test_numba_when_enabling_fails_then_a_warning_names_the_reason_and_it_goes_on(
    site_folder,
):
    code = (
        "import stridedview\n"
        "def fail(): raise ImportError('found numba-cuda 9.9')\n"
        "stridedview.enable = fail\n"
        "from numba import cuda\n"
        "print('still here', cuda.jit is not None)\n"
    )
    done = run_python(code, site_folder, STRIDEDVIEW_ENABLE="1", **SIMULATED)
    assert done.stdout.strip() == "still here True"
    assert "Numba stays unpatched: ImportError: found numba-cuda 9.9" in done.stderr


def test_hook_when_numba_is_imported_then_it_leaves_no_trace(site_folder):
    code = (
        "import sys\n"
        "import numba.cuda\n"
        "print([f for f in sys.meta_path if type(f).__module__.startswith('strided')])\n"
    )
    done = run_python(code, site_folder, STRIDEDVIEW_ENABLE="1", **SIMULATED)
    assert done.stdout.strip() == "[]", done.stderr


def test_install_when_called_after_numba_then_it_enables_at_once(site_folder):
    code = (
        "from numba import cuda\n"
        "import stridedview\n"
        "from stridedview._autoenable import install\n"
        "install()\n"
        "print(stridedview.is_enabled())\n"
    )
    done = run_python(code, site_folder, STRIDEDVIEW_ENABLE="", **SIMULATED)
    assert done.stdout.strip() == "True", done.stderr


def test_kernel_when_script_is_unchanged_then_it_takes_a_tensor(site_folder):
    pytest.importorskip("torch")
    code = (
        "import torch\n"
        "from numba import cuda\n"
        "@cuda.jit\n"
        "def double(x):\n"
        "    i = cuda.grid(1)\n"
        "    x[i] *= 2\n"
        "x = torch.arange(4)\n"
        "double[1, 4](x)\n"
        "print(x.tolist())\n"
    )
    done = run_python(code, site_folder, STRIDEDVIEW_ENABLE="1", **SIMULATED)
    assert done.stdout.strip() == "[0, 2, 4, 6]", done.stderr


WHEELS = {"wheel": "build_wheel", "editable install": "build_editable"}


@pytest.mark.parametrize("build", WHEELS.values(), ids=WHEELS)
def test_wheel_when_built_then_pth_file_goes_to_site_packages(build, tmp_path):
    """Build from a copy with no compiled modules: what is asked is where files go."""
    pytest.importorskip("Cython")
    source = tmp_path / "source"
    (source / "stridedview").mkdir(parents=True)
    names = ("setup.py", "pyproject.toml", "README.md", "LICENSE", PTH.name)
    for name in (*names, "stridedview/__init__.py", "stridedview/_autoenable.py"):
        (source / name).write_bytes((ROOT / name).read_bytes())
    code = f"from setuptools.build_meta import {build} as build; build({str(tmp_path)!r})"
    subprocess.run(
        [sys.executable, "-c", code], cwd=source, check=True, capture_output=True
    )
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (member,) = (name for name in archive.namelist() if name.endswith(PTH.name))
        assert archive.read(member).decode() == PTH.read_text()
    folder, _, scheme = member.rpartition("/")[0].partition(".data/")
    assert folder == "stridedview-0.1.0"
    assert sysconfig.get_path(scheme) in site.getsitepackages()
