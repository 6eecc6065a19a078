"""The command line: status, demo and run."""

import json
import os
import subprocess
import sys

import pytest

from stridedview import __main__, _peers, _status


def run_main(*arguments, **environment):
    """Run ``python -m stridedview`` and return the finished process."""
    return subprocess.run(
        [sys.executable, "-m", "stridedview", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )


def test_status_when_asked_as_json_then_every_peer_has_a_verdict(capsys):
    assert __main__.main(["status", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert [peer["name"] for peer in facts["peers"]] == list(_peers.PEERS)
    assert {peer["verdict"] for peer in facts["peers"]} <= {
        "tested",
        "untested",
        "refused",
        "absent",
    }
    assert facts["numba"].keys() == {"enabled", "requested", "simulator", "variable"}
    assert facts["compiler"].keys() == {"version", "reason", "without"}


def test_status_when_asked_as_text_then_it_shows_what_json_shows(capsys):
    assert __main__.main(["status"]) == 0
    text = capsys.readouterr().out
    for peer in _status.collect()["peers"]:
        assert peer["name"] in text
        assert peer["tested"] in text
    assert "Driver:" in text
    assert "not patched" in text


IGNORED = {
    "enable": ("STRIDEDVIEW_ENABLE", "yes", "only 1 counts"),
    "force": ("STRIDEDVIEW_FORCE", "yes", "only 1 counts"),
    "route": ("STRIDEDVIEW_TORCH_ROUTE", "foo", "only exchange counts"),
}


@pytest.mark.parametrize("case", IGNORED.values(), ids=IGNORED)
def test_status_when_a_variable_has_no_effect_then_it_says_so(monkeypatch, case):
    name, value, counts = case
    monkeypatch.setenv(name, value)
    facts = _status.collect()
    assert facts["ignored"] == [f"{name}={value} is ignored: {counts}"]
    assert facts["ignored"][0] in _status.render(facts).splitlines()
    if name == "STRIDEDVIEW_ENABLE":
        assert "STRIDEDVIEW_ENABLE: yes" in _status.render(facts)


@pytest.mark.parametrize("value", ["1", "true", "True", "0", ""])
def test_status_when_a_variable_is_on_or_off_then_nothing_is_ignored(monkeypatch, value):
    monkeypatch.setenv("STRIDEDVIEW_ENABLE", value)
    monkeypatch.delenv("STRIDEDVIEW_FORCE", raising=False)
    monkeypatch.delenv("STRIDEDVIEW_TORCH_ROUTE", raising=False)
    assert _status.ignored_variables() == []


def test_status_when_run_then_no_context_is_made_and_no_framework_is_imported():
    code = (
        "import sys\n"
        "from stridedview import __main__\n"
        "__main__.main(['status'])\n"
        "assert not {'torch', 'numba', 'cupy'} & set(sys.modules), sys.modules.keys()\n"
    )
    environment = {**os.environ}
    environment.pop("STRIDEDVIEW_ENABLE", None)
    subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, env=environment
    )


def test_routes_when_ingest_is_not_built_then_none_are_shown(monkeypatch):
    monkeypatch.setitem(sys.modules, "stridedview._ingest", None)
    assert _status.routes() == []


STATUS_AFTER = """
import contextlib, io, json
import numpy as np, torch
import stridedview
from stridedview import __main__, _torch

def show(*options):
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        assert __main__.main(["status", *options]) == 0
    return shown.getvalue()

def routes():
    return {row["producer"]: row for row in json.loads(show("--json"))["routes"]}

told = ": ".join(_torch.route())
assert routes()["torch.Tensor"]["reason"] == told, "an imported torch is shown"
stridedview.from_many([np.arange(3), torch.ones(3), torch.nn.Parameter(torch.ones(3))])
try:
    stridedview.from_any(np.ma.zeros(3))
except TypeError:
    pass
found = routes()
assert found["numpy.ndarray"]["route"] == "host"
assert found["torch.Tensor"] == {
    "producer": "torch.Tensor", "route": "torch", "reason": told}
assert found["torch.nn.parameter.Parameter"]["reason"] == told
masked = f"{np.ma.MaskedArray.__module__}.MaskedArray"
assert found[masked]["route"] == "refused"
text = show()
for row in found.values():
    line = " ".join([row["producer"], row["route"], row["reason"]]).split()
    assert line in [line.split() for line in text.splitlines()], row
print(told)
"""


MISSPELT = "STRIDEDVIEW_TORCH_ROUTE=foo is ignored: only exchange counts"
ASKED = "exchange API: asked for by STRIDEDVIEW_TORCH_ROUTE"


@pytest.mark.parametrize(
    ("variable", "told"),
    [
        pytest.param("", "C ABI: self-check passed", id="C ABI"),
        pytest.param("foo", f"C ABI: self-check passed; {MISSPELT}", id="misspelt"),
        pytest.param("exchange", ASKED, id="exchange API"),
    ],
)
def test_status_when_arrays_were_imported_then_their_routes_are_shown(variable, told):
    pytest.importorskip("torch")
    done = subprocess.run(
        [sys.executable, "-c", STATUS_AFTER],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "STRIDEDVIEW_TORCH_ROUTE": variable},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == told


def test_status_when_told_to_import_torch_then_its_route_is_shown():
    pytest.importorskip("torch")
    done = run_main("status", "--import", "torch", "--json")
    assert done.returncode == 0, done.stderr
    (route,) = json.loads(done.stdout)["routes"]
    assert (route["producer"], route["route"]) == ("torch.Tensor", "torch")
    assert "self-check passed" in route["reason"]


def test_status_when_nothing_was_seen_then_it_says_how_to_see_more():
    facts = _status.collect()
    facts["routes"] = []
    assert "status --import torch" in _status.render(facts)


def test_status_when_torch_is_refused_then_the_reason_is_shown(monkeypatch):
    def refuse():
        raise ImportError("torch 1.0 is too old")

    torch = pytest.importorskip("torch")
    from stridedview import _ingest, _torch

    assert torch
    monkeypatch.setattr(_ingest, "routes", list)
    monkeypatch.setattr(_torch, "route", refuse)
    assert _status.routes() == [
        {"producer": "torch.Tensor", "route": "refused", "reason": "torch 1.0 is too old"}
    ]


def test_status_when_the_module_to_import_is_absent_then_it_says_so(capsys):
    assert __main__.main(["status", "--import", "no_such_module"]) == 1
    assert "cannot import no_such_module" in capsys.readouterr().err


def test_render_when_there_are_routes_then_each_has_a_line():
    facts = _status.collect()
    facts["routes"] = [
        {"producer": "torch.Tensor", "route": "C ABI", "reason": ""},
        {"producer": "jax.Array", "route": "DLPack", "reason": "read-only"},
    ]
    lines = [line.split() for line in _status.render(facts).splitlines()]
    assert ["torch.Tensor", "C", "ABI", "-"] in lines
    assert ["jax.Array", "DLPack", "read-only"] in lines


def test_demo_when_there_is_no_gpu_then_the_simulator_gives_the_right_result():
    pytest.importorskip("torch")
    done = run_main("demo", CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("No GPU: ")
    assert "matches torch.softmax" in done.stdout


def test_demo_when_a_peer_is_missing_then_it_says_what_to_install(monkeypatch, capsys):
    def refuse(name):
        raise ImportError(f"{name} is not installed; pip install {name}")

    monkeypatch.setattr(_peers, "check", refuse)
    assert __main__.main(["demo"]) == 1
    assert "pip install numba-cuda" in capsys.readouterr().err


SCRIPT = """
import sys
import stridedview
print(__name__, sys.argv, sys.path[0], stridedview.is_enabled())
import beside
sys.exit(beside.STATUS)
"""


def test_run_when_given_a_script_then_it_runs_as_a_script_with_numba_patched(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    (tmp_path / "beside.py").write_text("STATUS = 7")
    done = run_main("run", str(script), "--json", "-x", NUMBA_ENABLE_CUDASIM="1")
    assert done.returncode == 7, done.stderr
    expected = f"__main__ {[str(script), '--json', '-x']} {tmp_path} True"
    assert done.stdout.strip() == expected


def test_run_when_numba_is_refused_then_the_reason_is_told(monkeypatch, tmp_path, capsys):
    def refuse():
        raise ImportError("found numba-cuda 9.9")

    script = tmp_path / "script.py"
    script.write_text("raise AssertionError")
    monkeypatch.setattr("stridedview.enable", refuse)
    assert __main__.main(["run", str(script)]) == 1
    assert "cannot be enabled: found numba-cuda 9.9" in capsys.readouterr().err


def test_run_when_there_is_no_such_script_then_exit_status_is_two(capsys):
    assert __main__.main(["run", "no-such-script.py"]) == 2
    assert "no-such-script.py" in capsys.readouterr().err


def test_run_when_no_script_is_given_then_only_that_is_missing(capsys):
    with pytest.raises(SystemExit) as stop:
        __main__.main(["run"])
    assert stop.value.code == 2
    assert capsys.readouterr().err.endswith("are required: script\n")


def test_version_when_asked_then_it_is_the_packages(capsys):
    import stridedview

    with pytest.raises(SystemExit) as stop:
        __main__.main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out == f"stridedview {stridedview.__version__}\n"
