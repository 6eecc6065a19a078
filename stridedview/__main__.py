"""The command line: ``python -m stridedview status|demo|run``."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import runpy
import sys
from collections.abc import Sequence

import stridedview
from stridedview import _peers, _status


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status.

    Parameters
    ----------
    argv : sequence of str, optional
        The arguments after the program's name; those of the process by default.
    """
    options = _parser().parse_args(argv)
    if options.command == "status":
        return _show_status(options.imports, as_json=options.json)
    if options.command == "demo":
        return _run_demo()
    return _run_script(options.script, options.arguments)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m stridedview", description=stridedview.__doc__.splitlines()[0]
    )
    version = f"stridedview {stridedview.__version__}"
    parser.add_argument("--version", action="version", version=version)
    commands = parser.add_subparsers(dest="command", required=True)
    status = commands.add_parser(
        "status", help="versions, driver, routes, and whether Numba is patched"
    )
    status.add_argument("--json", action="store_true", help="print JSON")
    status.add_argument(
        "--import",
        dest="imports",
        metavar="MODULE",
        action="append",
        default=[],
        help="import a module first (torch, say), so that its route is shown",
    )
    commands.add_parser("demo", help="a softmax kernel on torch tensors, and its cost")
    run = commands.add_parser("run", help="run a script with stridedview enabled")
    run.add_argument("script", help="path of a Python script")
    # Everything after the script is the script's, options of the same name included.
    rest = run.add_argument("arguments", nargs=argparse.REMAINDER, help="its arguments")
    rest.required = False  # or the error for a missing script names these too
    return parser


def _show_status(imports: Sequence[str], *, as_json: bool) -> int:
    try:
        for name in imports:
            importlib.import_module(name)
    except ImportError as error:
        print(f"cannot import {name}: {error}", file=sys.stderr)
        return 1
    facts = _status.collect()
    print(json.dumps(facts, indent=2) if as_json else _status.render(facts))
    return 0


def _run_demo() -> int:
    try:
        for name in ("numba-cuda", "torch"):
            _peers.check(name)
    except ImportError as error:
        print(f"the demo cannot run: {error}", file=sys.stderr)
        return 1
    # Imported here: it needs Numba and torch, which the other commands do not.
    status: int = importlib.import_module("stridedview._demo").main()
    return status


def _run_script(script: str, arguments: Sequence[str]) -> int:
    """Run `script` as ``python script`` would, with stridedview enabled before."""
    if not os.path.exists(script):
        print(f"no such file: {script}", file=sys.stderr)
        return 2
    try:
        stridedview.enable()
    except ImportError as error:
        print(f"stridedview cannot be enabled: {error}", file=sys.stderr)
        return 1
    sys.argv[:] = [script, *arguments]
    # With -P (from Python 3.11) the interpreter puts no folder in front, ours neither.
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = os.path.dirname(os.path.realpath(script))
    runpy.run_path(script, run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main())
