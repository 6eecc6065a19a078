"""How the route to a tensor's memory is found, and what happens where the first fails."""

import ctypes
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from stridedview import _torch, _torch_gate  # noqa: E402
from tests.standin.helpers import ROOT  # noqa: E402
from tests.torch_kinds import PLAIN, REFUSED  # noqa: E402

GATE = "tests/test_torch_gate.py"
MODES = {
    "a default device": lambda: torch.device("meta"),
    "inference": torch.inference_mode,
    "fake tensors": lambda: __import__(
        "torch._subclasses", fromlist=["x"]
    ).FakeTensorMode(),
    "no grad": torch.no_grad,
}


@pytest.mark.parametrize("mode", MODES)
def test_self_check_when_made_within_a_mode_then_it_is_as_outside(mode):
    outside = _torch_gate.find_key_offset(torch)
    assert outside > 0
    assert _torch.route() == ("C ABI", "self-check passed")
    with MODES[mode]():
        assert _torch_gate.find_key_offset(torch) == outside
        assert _torch_gate.compare(torch, _torch._facts) == ""


def test_self_check_when_made_within_a_transform_then_it_is_as_outside():
    outside = _torch_gate.find_key_offset(torch)

    def compute(x):
        assert _torch_gate.find_key_offset(torch) == outside
        return x.sum()

    torch.func.grad(compute)(torch.ones(3))
    torch.func.vmap(compute)(torch.ones(2, 3))


def test_key_offset_when_found_then_it_holds_each_tensors_word():
    offset = _torch_gate.find_key_offset(torch)
    makers = [make for make, _ in REFUSED.values()] + list(PLAIN.values())
    for make in makers:
        tensor = make()
        if type(tensor) is torch.Tensor:
            word = ctypes.c_uint64.from_address(tensor._cdata + offset).value
            assert word == torch._C._dispatch_keys(tensor).raw_repr()


def test_key_words_when_asked_then_plain_and_inference_tensors_have_them():
    words = _torch_gate.key_words(torch)
    for kind, make in PLAIN.items():
        word = torch._C._dispatch_keys(make()).raw_repr()
        assert word & ~words["ignored"] == words["cpu"], kind


def test_compare_when_the_facts_differ_then_it_says_which():
    told = _torch_gate.compare(torch, lambda tensor: (0, (), (), "float32"))
    assert "the C ABI tells (0, (), (), 'float32') where torch tells" in told


def test_compare_when_the_facts_fail_then_it_says_why():
    def fail(tensor):
        raise BufferError("no memory")

    assert "no memory" in _torch_gate.compare(torch, fail)


OLD = ["2.9.1", "2.9.0+cu128", "1.13.1", "2.9.0a0+git12", "0.4", "unknown"]
NEW = [
    "2.10.0",
    "2.13.0+cpu",
    "2.10.0a0+git12",
    "2.11rc1",
    "2.10a0",
    "3.0",
    "2.14.0.dev20270101",
]


@pytest.mark.parametrize("version", OLD)
def test_version_when_too_old_then_it_is_refused_by_name(version):
    with pytest.raises(
        ImportError, match=f"torch {version}.*torch>=2.10".replace("+", ".")
    ):
        _torch_gate.check_version(SimpleNamespace(__version__=version))


@pytest.mark.parametrize("version", NEW)
def test_version_when_new_enough_then_it_passes(version):
    _torch_gate.check_version(SimpleNamespace(__version__=version))


# ---- the other ways, each in a process of its own ----


def run(arguments, **environment):
    inherited = {
        name: text for name, text in os.environ.items() if name != "PYTEST_ADDOPTS"
    }
    return subprocess.run(
        [sys.executable, *arguments],
        env={**inherited, **environment},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def test_gate_when_the_exchange_api_is_the_route_then_all_of_this_holds():
    arguments = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", GATE]
    done = run(arguments, STRIDEDVIEW_TORCH_ROUTE="exchange")
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert " passed" in done.stdout


WITHOUT = """
import torch
from tests import standin
if standin.wanted():
    standin.load()
from stridedview import _torch, _torch_gate, from_any
from tests.torch_kinds import PLAIN, REFUSED
from tests.test_torch_gate import assert_same

{change}
for kind, make in PLAIN.items():
    tensor = make()
    assert_same(from_any(tensor), tensor)
for kind, (make, match) in REFUSED.items():
    try:
        from_any(make())
    except TypeError:
        continue
    raise AssertionError(kind + " was taken")
route, reason = _torch.route()
print(route, "-", reason)
"""
WAYS = {
    "the key word is not found": (
        "_torch_gate.find_key_offset = lambda torch: -1",
        "exchange API - the dispatch-key word was not found",
    ),
    "the self-check finds a difference": (
        "_torch_gate.compare = lambda torch, facts: 'they differ'",
        "exchange API - they differ",
    ),
    "the library is not found": (
        "def missing(torch, name): raise OSError('no file')\n_torch_gate.library = missing",
        "exchange API - torch's C ABI is not found: no file",
    ),
    "the tensor stands elsewhere": (
        "_torch_gate.stands_behind_header = lambda tensor: False",
        "exchange API - the tensor does not stand behind the object header",
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_gate_when_the_c_abi_cannot_be_used_then_the_next_route_is_as_right(way):
    change, told = WAYS[way]
    done = run(["-c", WITHOUT.format(change=change)], STRIDEDVIEW_TORCH_ROUTE="")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == told


COMPILED = """
import torch
from torch._dynamo.utils import counters
from stridedview import _torch, from_any

@torch.compile(backend="eager")
def compute(x):
    y = x.conj()
    try:
        return from_any(y)
    except TypeError as error:
        return str(error)

assert "conjugation is pending" in compute(torch.ones(3, dtype=torch.complex64))
print(*_torch.route(), sep=" - ")
first = counters["frames"]["total"]
compute(torch.ones(5, dtype=torch.complex128))
torch.compile(lambda x: from_any(x + 1), backend="eager")(torch.ones(3))
# One frame that calls us, and what Dynamo makes of the rest of it after the call.
print(counters["frames"]["total"] - first)
"""


def test_gate_when_within_a_compiled_function_then_it_is_not_compiled_too():
    done = run(["-c", COMPILED], STRIDEDVIEW_TORCH_ROUTE="")
    assert done.returncode == 0, done.stderr
    route, frames = done.stdout.split("\n")[:2]
    assert route == "C ABI - self-check passed"
    assert int(frames) <= 2


def test_torch_when_too_old_then_its_tensors_are_refused_by_name():
    code = (
        "import torch\n"
        "torch.__version__ = '2.9.1'\n"
        "from stridedview import from_any\n"
        "try:\n"
        "    from_any(torch.ones(2))\n"
        "except ImportError as error:\n"
        "    print(error)\n"
    )
    done = run(["-c", code])
    assert "torch 2.9.1 is too old" in done.stdout, done.stderr


@pytest.mark.parametrize(
    ("version", "forced", "newer"),
    [
        ("2.13.1+cpu", "", False),
        ("2.14.0", "", True),
        ("3.0", "", True),
        ("2.14.0", "1", False),
    ],
)
def test_gate_when_torch_is_newer_than_tested_then_the_c_abi_is_not_tried(
    monkeypatch, version, forced, newer
):
    monkeypatch.setenv("STRIDEDVIEW_FORCE", forced)
    torch = SimpleNamespace(__version__=version)
    assert _torch_gate.is_newer_than_tested(torch) is newer
