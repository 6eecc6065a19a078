"""What the source distribution and the metadata have in them."""

import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from stridedview import _peers

ROOT = Path(__file__).parent.parent
FOLDERS = (".ci", "bench", "docs", "examples", "stridedview", "tests")
# What is made in a checkout, by name of the folder or suffix of the file.
BUILT = {"build", "_build", "__pycache__"}
COMPILED = {".so", ".1", ".pyc", ".html"}


def sources():
    """Return the paths of the checkout's files that are nobody's output."""
    found = {path for folder in FOLDERS for path in (ROOT / folder).rglob("*")}
    return {
        path.relative_to(ROOT).as_posix()
        for path in found
        if path.is_file()
        and not BUILT & set(path.parts[len(ROOT.parts) :])
        and path.suffix not in COMPILED
        and not (path.suffix == ".c" and path.parent.name == "stridedview")
    }


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """Return a copy of the checkout, to build in."""
    pytest.importorskip("Cython")
    if not (ROOT / ".ci").exists():
        pytest.skip("needs a whole checkout")
    folder = tmp_path_factory.mktemp("checkout") / "copy"
    # With what Cython made, times kept, so that it is not made again.
    ignored = shutil.ignore_patterns(".git", ".venv*", "dist", "*.egg-info", ".*_cache")
    shutil.copytree(ROOT, folder, ignore=ignored)
    return folder


def test_wheel_when_built_then_it_has_types_and_declarations_and_no_sources(copy, tmp_path):
    """Build the half of a wheel that nothing is compiled for."""
    command = [sys.executable, "setup.py", "-q", "build_py", "--build-lib", str(tmp_path)]
    subprocess.run(command, cwd=copy, check=True, capture_output=True)
    found = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.*")}
    wanted = {
        path.relative_to(ROOT).as_posix()
        for pattern in ("*.py", "*.pyi", "*.pxd", "py.typed")
        for path in (ROOT / "stridedview").rglob(pattern)
    }
    assert found == wanted


def test_sdist_when_built_then_it_has_every_source_and_no_output(copy, tmp_path):
    code = f"from setuptools.build_meta import build_sdist as b; b({str(tmp_path)!r})"
    subprocess.run([sys.executable, "-c", code], cwd=copy, check=True, capture_output=True)
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
        kept = {
            each.name.partition("/")[2] for each in opened.getmembers() if each.isfile()
        }
    assert sources() - names == set()
    inside = {name for name in kept if name.partition("/")[0] in FOLDERS}
    assert inside - sources() == set()
    assert {"stridedview_enable.pth", "CHANGELOG.md", "CONTRIBUTING.md"} <= names


def test_metadata_when_a_peer_is_named_then_its_range_is_that_of_the_table():
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    lines = re.findall(r"^(?:dependencies|torch|cupy) = (.+)$", text, re.MULTILINE)
    named = re.findall(r'"([^"]+)"', " ".join(lines))
    wanted = [peer.requirement for peer in _peers.PEERS.values()]
    assert len(named) == 5
    assert set(named) <= set(wanted)
    # What the package imports directly and without which no view is made.
    (needed,) = re.findall(r"^dependencies = (.+)$", text, re.MULTILINE)
    for name in ("numpy", "cuda-core", "cuda-bindings"):
        assert _peers.PEERS[name].requirement in needed
