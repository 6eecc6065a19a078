"""What ``python -m stridedview status`` shows.

Owns the collection of facts about this installation and their rendering. It creates no
CUDA context.
"""

from __future__ import annotations

import importlib
import os
import platform
import sys
from typing import Any

import stridedview
from stridedview import _autoenable, _peers

TENSOR = "torch.Tensor"
NO_ROUTES = (
    "  none: this process has seen no arrays. `status --import torch` shows torch's,\n"
    '  stridedview.__main__.main(["status"]) within a program the ones that it took'
)
# The variables that are read, and the values that count; "" and "0" are off.
VARIABLES = {
    _autoenable.VARIABLE: ("1", "true"),
    _peers.FORCE_VARIABLE: ("1",),
    "STRIDEDVIEW_TORCH_ROUTE": ("exchange",),
}
ROW_BY_ROW = "strided copies on the device go row by row, slowly"


def collect() -> dict[str, Any]:
    """Return the facts as a dict that JSON can hold."""
    return {
        "stridedview": stridedview.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "peers": [_peer_facts(name) for name in _peers.PEERS],
        "forced": _peers.forced(),
        "driver": driver_facts(),
        "compiler": compiler_facts(),
        "numba": _numba_facts(),
        "routes": routes(),
        "ignored": ignored_variables(),
    }


def render(facts: dict[str, Any]) -> str:
    """Return the facts of `collect` as text for a terminal."""
    python = f"Python {facts['python']}, {facts['platform']}"
    lines = [
        f"stridedview {facts['stridedview']}, {python}",
        "",
        "Peers",
        *_table(facts["peers"], ("name", "found", "tested", "verdict")),
        "",
        f"Driver: {_driver_line(facts['driver'])}",
        f"NVRTC:  {_compiler_line(facts['compiler'])}",
        f"Numba:  {_numba_line(facts['numba'])}",
        "",
        "Routes",
        *(_table(facts["routes"], ("producer", "route", "reason")) or [NO_ROUTES]),
    ]
    if facts["forced"]:
        lines.append(f"\n{_peers.FORCE_VARIABLE}=1: versions are not enforced")
    if facts["ignored"]:
        lines += ["", *facts["ignored"]]
    return "\n".join(lines)


def driver_facts() -> dict[str, Any]:
    """Return whether there is a driver and which GPUs it sees.

    Returns
    -------
    dict
        ``found`` (bool), ``version`` (such as "13.0", or None), ``gpus`` (names) and
        ``reason`` (why no GPU can be used, or "").
    """
    facts: dict[str, Any] = {"found": False, "version": None, "gpus": [], "reason": ""}
    try:
        from cuda.bindings import driver
    except ImportError as error:
        return {**facts, "reason": f"cuda-bindings cannot be imported: {error}"}
    try:
        # Initialises the driver, which makes no context.
        (code,) = driver.cuInit(0)
    except RuntimeError:
        return {**facts, "reason": "no NVIDIA driver library on this machine"}
    facts["found"] = True
    _, number = driver.cuDriverGetVersion()
    if number:
        facts["version"] = f"{number // 1000}.{number % 1000 // 10}"
    if code != driver.CUresult.CUDA_SUCCESS:
        return {**facts, "reason": f"the driver does not start: {code.name}"}
    facts["gpus"] = _gpu_names(driver)
    facts["reason"] = "" if facts["gpus"] else "the driver sees no GPU"
    return facts


def compiler_facts() -> dict[str, Any]:
    """Return whether there is NVRTC, which compiles the kernels of strided copies.

    Returns
    -------
    dict
        ``version`` (such as "13.0", or None), ``reason`` (why it cannot be used, or "") and
        ``without``: the devices of this process for which it could not compile, and why.
    """
    facts: dict[str, Any] = {"version": None, "reason": "", "without": {}}
    # Asked only if it is there: a process that has copied nothing has no such devices.
    copies: Any = sys.modules.get("stridedview._device_copy")
    if copies is not None:
        missing = copies.compiler_missing()
        facts["without"] = {f"cuda:{device}": why for device, why in missing.items()}
    try:
        from cuda.bindings import nvrtc

        _, major, minor = nvrtc.nvrtcVersion()
    except (ImportError, OSError, RuntimeError) as error:
        return {**facts, "reason": str(error)}
    return {**facts, "version": f"{major}.{minor}"}


def ignored_variables() -> list[str]:
    """Return a line for each variable of ours whose value has no effect."""
    return [
        f"{name}={value} is ignored: only {values[0]} counts"
        for name, values in VARIABLES.items()
        for value in [os.environ.get(name, "")]
        if value not in ("", "0") and value.lower() not in values
    ]


def routes() -> list[dict[str, str]]:
    """Return the route of each producer type that this process has seen.

    An imported torch counts as seen. Empty without the compiled modules.
    """
    try:
        ingest: Any = importlib.import_module("stridedview._ingest")
    except ModuleNotFoundError:
        return []
    found: list[dict[str, str]] = ingest.routes()
    if "torch" in sys.modules and all(row["producer"] != TENSOR for row in found):
        found.append(_torch_route())
    return found


def _torch_route() -> dict[str, str]:
    torch_module: Any = importlib.import_module("stridedview._torch")
    try:
        route = "torch", ": ".join(torch_module.route())
    except ImportError as error:
        route = "refused", str(error)
    return {"producer": TENSOR, "route": route[0], "reason": route[1]}


def _peer_facts(name: str) -> dict[str, Any]:
    finding = _peers.probe(name)
    return {
        "name": name,
        "found": finding.found or None,
        "tested": _peers.tested_range(finding.peer),
        "accepted": _peers.accepted_range(finding.peer),
        "verdict": finding.verdict,
    }


def _gpu_names(driver: Any) -> list[str]:
    _, count = driver.cuDeviceGetCount()
    names = []
    for ordinal in range(count or 0):
        _, device = driver.cuDeviceGet(ordinal)
        _, name = driver.cuDeviceGetName(128, device)
        names.append(name.split(b"\0")[0].decode())
    return names


def _numba_facts() -> dict[str, Any]:
    """Return whether Numba is patched in this process, and whether it was asked for."""
    requested = _autoenable.requested()
    if requested and _peers.probe("numba-cuda").found:
        # The hook acts on this import, so only after it can be told whether it worked.
        importlib.import_module("numba.cuda")
    return {
        # Numba that nobody has imported is not patched, and asking might import it.
        "enabled": "numba.cuda" in sys.modules and bool(stridedview.is_enabled()),
        "requested": requested,
        "variable": os.environ.get(_autoenable.VARIABLE),
        "simulator": os.environ.get("NUMBA_ENABLE_CUDASIM") == "1",
    }


def _driver_line(facts: dict[str, Any]) -> str:
    if not facts["found"]:
        return f"not found ({facts['reason']})"
    return f"CUDA {facts['version']}, {', '.join(facts['gpus']) or facts['reason']}"


def _compiler_line(facts: dict[str, Any]) -> str:
    if facts["reason"]:
        return f"cannot be used ({facts['reason']}): {ROW_BY_ROW}"
    line = str(facts["version"])
    for device, why in facts["without"].items():
        line += f"; not for {device}: {why}: {ROW_BY_ROW}"
    return line


def _numba_line(facts: dict[str, Any]) -> str:
    line = "patched" if facts["enabled"] else "not patched"
    asked = "not set" if facts["variable"] is None else facts["variable"] or "empty"
    line += f" ({_autoenable.VARIABLE}: {asked})"
    return line + (", CUDA simulator" if facts["simulator"] else "")


def _table(rows: list[dict[str, Any]], columns: tuple[str, ...]) -> list[str]:
    """Return the rows as lines of aligned columns."""
    if not rows:
        return []
    cells = [columns, *([str(row[column] or "-") for column in columns] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["  " + "  ".join(map(str.ljust, line, widths)).rstrip() for line in cells]
