"""The versions of other packages that stridedview works with.

Owns the one table of versions and the messages about them. It reads the installed
packages' metadata and imports none of them.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

FORCE_VARIABLE = "STRIDEDVIEW_FORCE"

Release = tuple[int, ...]


@dataclass(frozen=True)
class Peer:
    """What is known about one package.

    Attributes
    ----------
    name : str
        The name used in messages and by `check`.
    accepted : tuple of str
        First version that is accepted, and first that no longer is ("" for no end).
    tested : tuple of str
        First and last version that the tests ran with, both included. The last one
        stands for its whole series: "2.13" includes 2.13.1. ("", "") if none.
    needed_for : str
        What does not work without the package.
    distributions : tuple of str
        The names under which it is distributed; `name` alone if empty.
    requirement : str
        What to hand to ``pip install``.
    """

    name: str
    accepted: tuple[str, str]
    tested: tuple[str, str]
    needed_for: str
    distributions: tuple[str, ...] = ()
    requirement: str = ""


# numba-cuda is patched, so only the versions whose internals were read are accepted: 0.30.1
# and older cannot be imported beside cuda-core 1. Of the others stridedview uses public
# interfaces, or checks for itself before it relies on more. ``.ci/matrix`` runs the tests
# at the ends of the tested ranges.
PEERS = {
    peer.name: peer
    for peer in (
        Peer(
            "numba-cuda",
            ("0.30.2", "0.30.5"),
            ("0.30.2", "0.30.4"),
            "launching Numba kernels",
            requirement="numba-cuda[cu13]>=0.30.2,<0.30.5",
        ),
        Peer(
            "cuda-core",
            ("1.0", "2"),
            ("1.0", "1.2"),
            "views, streams and memory",
            requirement="cuda-core>=1.0,<2",
        ),
        Peer(
            "cuda-bindings",
            ("12.9", "14"),
            ("12.9", "13.5"),
            "calls of the driver",
            requirement="cuda-bindings>=12.9,<14",
        ),
        Peer(
            "numpy",
            ("1.26", ""),
            ("1.26", "2.4"),
            "host arrays and dtypes",
            requirement="numpy>=1.26",
        ),
        Peer(
            "torch",
            ("2.10", ""),
            ("2.10", "2.13"),
            "torch tensors as arguments",
            requirement="torch>=2.10",
        ),
        Peer(
            "cupy",
            ("13", ""),
            ("14.2", "14.2"),
            "CuPy arrays as arguments",
            distributions=("cupy-cuda13x", "cupy-cuda12x", "cupy"),
            requirement="cupy-cuda13x>=13",
        ),
        Peer(
            "ml_dtypes",
            ("0.5", ""),
            ("0.6", "0.6"),
            "bfloat16 and float8 as NumPy dtypes",
            requirement="ml_dtypes>=0.5",
        ),
    )
}


@dataclass(frozen=True)
class Finding:
    """What `probe` found: the installed version ("" if none) and a verdict.

    The verdict is "tested", "untested" (accepted, but newer or older than what the tests
    ran with), "refused" or "absent".
    """

    peer: Peer
    found: str
    verdict: str


def probe(name: str) -> Finding:
    """Return which version of the peer called `name` is installed, and what it is worth.

    Raises
    ------
    KeyError
        If `PEERS` has no such name.
    """
    peer = PEERS[name]
    found = _installed_version(peer)
    return Finding(peer, found, verdict(peer, found))


def check(name: str) -> str:
    """Return the installed version of a peer, or refuse it.

    Parameters
    ----------
    name : str
        A name in `PEERS`.

    Returns
    -------
    str
        The version found.

    Raises
    ------
    ImportError
        If the peer is not installed, or is outside the accepted range. The second is
        let through if ``STRIDEDVIEW_FORCE=1`` is in the environment.
    KeyError
        If `PEERS` has no such name.
    """
    finding = probe(name)
    if finding.verdict == "absent":
        raise ImportError(_absent_message(finding.peer))
    if finding.verdict == "refused" and not forced():
        raise ImportError(_refused_message(finding))
    return finding.found


def verdict(peer: Peer, found: str) -> str:
    """Return what a version of a peer is worth: the verdict of a `Finding`.

    Raises
    ------
    ValueError
        If `found` does not begin with a number and is not empty.
    """
    if not found:
        return "absent"
    number = release(found)
    first, end = peer.accepted
    if number < release(first) or (end and number >= release(end)):
        return "refused"
    return "tested" if _is_tested(peer, number) else "untested"


def forced() -> bool:
    """Return whether the environment lets peers outside the accepted range through."""
    return os.environ.get(FORCE_VARIABLE) == "1"


def tested_range(peer: Peer) -> str:
    """Return the tested versions in words, such as "2.10 to 2.13"."""
    first, last = peer.tested
    if not first:
        return "none"
    return first if first == last else f"{first} to {last}"


def accepted_range(peer: Peer) -> str:
    """Return the accepted versions as a version specifier, such as ">=1.0,<2"."""
    first, end = peer.accepted
    return f">={first},<{end}" if end else f">={first}"


def release(text: str) -> Release:
    """Return the numbers of a version.

    Local and pre-release parts are left out: vendors' builds call themselves "2.10.0a0+x"
    and "2.13.0+cpu", and what matters is the series that they were built from.
    Trailing zeros are dropped, so that 2.10 and 2.10.0 are equal.

    Raises
    ------
    ValueError
        If `text` does not begin with a number.
    """
    match = re.match(r"v?(?:\d+!)?(\d+(?:\.\d+)*)", text)
    if match is None:
        raise ValueError(f"expected a version such as 2.13.0, got {text!r}")
    numbers = [int(part) for part in match[1].split(".")]
    while len(numbers) > 1 and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def _installed_version(peer: Peer) -> str:
    for distribution in peer.distributions or (peer.name,):
        with suppress(PackageNotFoundError):
            return version(distribution)
    return ""


def _is_tested(peer: Peer, number: Release) -> bool:
    first, last = peer.tested
    if not first:
        return False
    series = release(last)
    return release(first) <= number and number[: len(series)] <= series


def _absent_message(peer: Peer) -> str:
    return (
        f"{peer.name} is not installed, and is needed for {peer.needed_for}; "
        f"pip install '{peer.requirement}'"
    )


def _refused_message(finding: Finding) -> str:
    peer = finding.peer
    return (
        f"found {peer.name} {finding.found}, accepted are {accepted_range(peer)} "
        f"(tested: {tested_range(peer)}); pip install '{peer.requirement}', or set "
        f"{FORCE_VARIABLE}=1 to go on at your own risk"
    )
