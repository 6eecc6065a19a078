"""Versions of peers: what is tested, what is let through, what is refused."""

import subprocess
import sys
from pathlib import Path

import pytest

from stridedview import _peers


@pytest.fixture
def installed(monkeypatch):
    """Return a setter for the version that a distribution seems to have."""
    versions = {}

    def fake_version(distribution):
        if distribution not in versions:
            raise _peers.PackageNotFoundError(distribution)
        return versions[distribution]

    monkeypatch.setattr(_peers, "version", fake_version)
    monkeypatch.delenv(_peers.FORCE_VARIABLE, raising=False)
    return versions.__setitem__


VERDICTS = {
    "numba-cuda first": ("numba-cuda", "0.30.2", "tested"),
    "numba-cuda last": ("numba-cuda", "0.30.4", "tested"),
    "numba-cuda one before": ("numba-cuda", "0.30.1", "refused"),
    "numba-cuda one after": ("numba-cuda", "0.30.5", "refused"),
    "cuda-core too old": ("cuda-core", "0.7.0", "refused"),
    "cuda-core first": ("cuda-core", "1.0.0", "tested"),
    "cuda-core last": ("cuda-core", "1.2.9", "tested"),
    "cuda-core newer than tested": ("cuda-core", "1.3.0", "untested"),
    "cuda-core next major": ("cuda-core", "2.0.0", "refused"),
    "cuda-bindings for CUDA 12": ("cuda-bindings", "12.9.1", "tested"),
    "cuda-bindings newer than tested": ("cuda-bindings", "13.6.0", "untested"),
    "cuda-bindings too old": ("cuda-bindings", "12.8.0", "refused"),
    "torch too old": ("torch", "2.9.1", "refused"),
    "torch first": ("torch", "2.10.0", "tested"),
    "torch last, cpu build": ("torch", "2.13.1+cpu", "tested"),
    "torch of a vendor": ("torch", "2.11.0a0+b4e4ee8.nv26.01", "tested"),
    "torch newer than tested": ("torch", "2.14.0", "untested"),
}


@pytest.mark.parametrize("case", VERDICTS.values(), ids=VERDICTS)
def test_probe_when_version_is_found_then_verdict_is(installed, case):
    name, version, verdict = case
    installed(name, version)
    finding = _peers.probe(name)
    assert (finding.found, finding.verdict) == (version, verdict)


def test_check_when_version_is_refused_then_message_names_found_tested_and_force(
    installed,
):
    installed("torch", "2.9.1")
    with pytest.raises(ImportError) as error:
        _peers.check("torch")
    for part in ("torch 2.9.1", "2.10 to 2.13", "torch>=2.10", "STRIDEDVIEW_FORCE=1"):
        assert part in str(error.value)


def test_check_when_forced_then_a_refused_version_passes(installed, monkeypatch):
    installed("torch", "2.9.1")
    monkeypatch.setenv("STRIDEDVIEW_FORCE", "1")
    assert _peers.check("torch") == "2.9.1"


def test_check_when_peer_is_absent_then_message_says_what_for_even_if_forced(
    installed, monkeypatch
):
    monkeypatch.setenv("STRIDEDVIEW_FORCE", "1")
    with pytest.raises(ImportError, match=r"not installed.*launching Numba kernels"):
        _peers.check("numba-cuda")


def test_probe_when_peer_has_several_distributions_then_any_counts(installed):
    installed("cupy-cuda12x", "14.2.0")
    assert _peers.probe("cupy").verdict == "tested"


def test_probe_when_name_is_unknown_then_key_error():
    with pytest.raises(KeyError):
        _peers.probe("no-such-peer")


RELEASES = {
    "plain": ("2.13.0", (2, 13)),
    "local": ("2.13.1+cpu", (2, 13, 1)),
    "pre-release": ("2.10.0a0+git1234", (2, 10)),
    "post-release": ("1.26.4.post1", (1, 26, 4)),
    "epoch": ("1!2.3", (2, 3)),
    "zero": ("0", (0,)),
}


@pytest.mark.parametrize("case", RELEASES.values(), ids=RELEASES)
def test_release_when_text_has_suffixes_then_only_its_numbers_count(case):
    text, numbers = case
    assert _peers.release(text) == numbers


def test_release_when_text_has_no_number_then_value_error():
    with pytest.raises(ValueError, match="'unknown'"):
        _peers.release("unknown")


@pytest.mark.parametrize("peer", _peers.PEERS.values(), ids=_peers.PEERS)
def test_table_when_read_then_what_is_tested_is_accepted(peer):
    first, end = peer.accepted
    for version in filter(None, peer.tested):
        assert _peers.release(version) >= _peers.release(first)
        assert not end or _peers.release(version) < _peers.release(end)


def test_check_when_called_then_no_peer_is_imported():
    code = (
        "import sys\n"
        "before = set(sys.modules)\n"
        "from stridedview import _peers\n"
        "for name in _peers.PEERS: _peers.probe(name)\n"
        "new = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        "print(new & {'numba', 'numba_cuda', 'cuda', 'numpy', 'torch', 'cupy'})\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "set()"


def test_table_when_torch_is_read_then_its_versions_are_those():
    from stridedview import _torch_gate

    assert _torch_gate.TORCH is _peers.PEERS["torch"]


def test_sources_when_they_refuse_torch_then_the_table_has_the_number():
    folder = Path(_peers.__file__).parent
    for path in [*folder.rglob("*.py"), *folder.rglob("*.pyx")]:
        text = path.read_text(encoding="utf-8")
        if path.name != "_peers.py":
            assert "torch>=" not in text, path
            assert "2.10 or newer is needed" not in text, path
