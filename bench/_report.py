"""Results: the machine and the versions, JSON out and in, the Markdown tables.

Owns the form of a result. No name of a host or a folder goes into one.
"""

import datetime
import functools
import importlib.metadata
import json
import os
import platform
import re
import subprocess
from pathlib import Path

SCHEMA = 1
MOST_COLUMNS = 8
PACKAGES = (
    "stridedview",
    "numba-cuda",
    "numba",
    "cuda-core",
    "cuda-bindings",
    "torch",
    "numpy",
    "cupy-cuda13x",
    "cupy-cuda12x",
    "triton",
    "apache-tvm-ffi",
    "numba-cuda-mlir",
    "jax",
    "pytest-benchmark",
    "Cython",
)


def _answer(*command):
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            cwd=Path(__file__).parent,
            timeout=30,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def machine():
    """Return what the figures depend on: processor, GPU, driver, system, Python."""
    cpu = None
    info = Path("/proc/cpuinfo")
    if info.exists():
        found = re.search(r"^model name\s*:\s*(.+)$", info.read_text(), re.MULTILINE)
        cpu = found.group(1).strip() if found else None
    gpu = _answer("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader")
    name, _, driver = (gpu or "").splitlines()[0].partition(", ") if gpu else ("", "", "")
    return {
        "cpu": cpu or platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "gpu": name or None,
        "driver": driver or None,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
    }


@functools.cache
def versions():
    """Return the installed version of each package that a row may depend on."""
    everything = {
        each.metadata["Name"]: each.version for each in importlib.metadata.distributions()
    }
    return {name: everything[name] for name in PACKAGES if name in everything}


def revision():
    """Return the checkout's commit, with a plus if files differ from it, or None."""
    commit = _answer("git", "rev-parse", "--short=12", "HEAD")
    changed = _answer("git", "status", "--porcelain", "--untracked-files=no")
    return f"{commit}+" if commit and changed else commit


def result(topic, rows, *, floor, settings):
    """Return one run as it is written to JSON."""
    return {
        "schema": SCHEMA,
        "topic": topic,
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "revision": revision(),
        "machine": machine(),
        "versions": versions(),
        "floor": floor,
        "settings": settings,
        "rows": rows,
    }


def write(path, content):
    """Write a result as JSON."""
    Path(path).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def read(path):
    """Read a result; ValueError if it is not one of ours."""
    name = Path(path).name
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{name} is not a result: it is no JSON ({error})") from None
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        raise ValueError(
            f"{name} is not a result of schema {SCHEMA}, which `python -m bench TOPIC "
            "--json FILE` writes; bench/README.md says which files are"
        )
    return content


def number(value):
    """Return a figure with three significant digits or more, never an exponent."""
    if value >= 100 or value == 0:
        return f"{value:,.0f}"
    return (
        f"{value:.1f}" if value >= 10 else f"{value:.2f}" if value >= 1 else f"{value:.3f}"
    )


def _cell(row):
    """Return a row's figure, a rate if it has one, and in brackets how far the floor is.

    A ratio of times; a difference of counts, since most of the floor's own count is
    the stand-in driver's.
    """
    if row is None:
        return ""
    if "unavailable" in row:
        return "-"
    text = f"{number(row['gb_per_s'])} GB/s" if "gb_per_s" in row else number(row["median"])
    if "ratio" not in row:
        return text
    if row["unit"] == "instructions":
        return f"{text} (+{number(row['above'])})"
    return f"{text} ({row['ratio']:.2f}x)"


def _markdown(header, lines):
    rule = ["---"] + ["---:"] * (len(header) - 1)
    return "\n".join("| " + " | ".join(line) + " |" for line in [header, rule, *lines])


def _ordered(values):
    return list(dict.fromkeys(values))


def wide(content):
    """Return the table of contenders and operations, the longer side downwards.

    A contender of which nothing was measured is left out.
    """
    rows = {(row["contender"], row["id"]): row for row in content["rows"]}
    measured = [row for row in content["rows"] if "unavailable" not in row]
    ids = _ordered(row["id"] for row in measured)
    names = _ordered(row["contender"] for row in measured)
    short = {row_id: row_id.removeprefix(content["topic"] + ".") for row_id in ids}
    if len(ids) > MOST_COLUMNS:
        lines = [
            [short[row_id], *(_cell(rows.get((name, row_id))) for name in names)]
            for row_id in ids
        ]
        return _markdown(["", *names], lines)
    lines = [[name, *(_cell(rows.get((name, row_id))) for row_id in ids)] for name in names]
    return _markdown(["", *short.values()], lines)


def long(content):
    """Return the table with a line a row and every figure of it."""
    lines = []
    for row in content["rows"]:
        if "unavailable" in row:
            continue
        ratio = f"{row['ratio']:.2f}" if "ratio" in row else ""
        rate = number(row["gb_per_s"]) if "gb_per_s" in row else ""
        figures = [number(row[key]) for key in ("median", "iqr", "min")]
        lines.append(
            [row["id"] + " " + row["contender"], *figures, str(row["n"]), ratio, rate]
        )
    return _markdown(["row", "median", "spread", "min", "n", "over floor", "GB/s"], lines)


def describe(content):
    """Return the machine, the versions and the date as one paragraph."""
    box = content["machine"]
    places = [box["gpu"] or "no GPU", f"driver {box['driver']}" if box["driver"] else None]
    places += [
        box["cpu"],
        f"{box['cores']} cores",
        box["system"],
        f"Python {box['python']}",
    ]
    found = ", ".join(f"{name} {version}" for name, version in content["versions"].items())
    unit = next((row["unit"] for row in content["rows"] if "unit" in row), "us")
    kind = {"us": "Median microseconds a call", "instructions": "Instructions a call"}[unit]
    ratios = any("ratio" in row for row in content["rows"])
    over = "difference from" if unit == "instructions" else "ratio over"
    floor = f"; in brackets the {over} `{content['floor']}`" if ratios else ""
    tries = [word for word in ("quick", "standin") if content["settings"].get(word)]
    kept = f" A {' and '.join(tries)} run: not for reporting." if tries else ""
    where = ", ".join(place for place in places if place)
    return f"{kind}{floor}. {where}; {found}; {content['date'][:10]}.{kept}"


def table(content, *, full=False):
    """Return a result as Markdown: table, description, and who is missing and why."""
    anything = any("median" in row for row in content["rows"])
    parts = [(long if full else wide)(content)] if anything else ["Nothing was measured."]
    parts.append(describe(content))
    missing = {}
    for row in content["rows"]:
        if "unavailable" in row:
            missing.setdefault((row["contender"], row["unavailable"]), []).append(row["id"])
    if missing:
        lines = [
            f"- {name} ({', '.join(ids)}): {why}" for (name, why), ids in missing.items()
        ]
        parts.append("Not measured:\n\n" + "\n".join(lines))
    return "\n\n".join(parts)
