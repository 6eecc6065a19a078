"""The command line: ``python -m bench TOPIC`` measures, ``... table FILE`` prints."""

import argparse
import importlib
import re
import sys

from bench import _report
from bench._harness import Options, silent

TOPICS = {
    "launch": ("launch", "host cost of one launch, 1, 3 and 26 arguments"),
    "op": ("op", "a launch as an operator of torch's, beside torch's own ways"),
    "import": ("imports", "from a producer's object to a view, and back"),
    "array": ("array", "views, allocation and device copies"),
    "copy": ("copy", "host to device and back, GB/s"),
    "cache": ("cache", "first launch, disk cache, plan miss, plan hit"),
    "instructions": ("instructions", "instructions a launch, under callgrind"),
    "numba-suite": ("suite", "numba-cuda's own launch benchmark, before and after"),
}


def topic(name):
    """Return the module of a topic."""
    return importlib.import_module(f"bench.{TOPICS[name][0]}")


def pattern(text):
    """Return the compiled expression; a wrong one is an error of the command line."""
    try:
        return re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"not a regular expression: {error}") from None


def parser():
    """Return the parser of the command line."""
    main = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    commands = main.add_subparsers(dest="command", required=True, metavar="TOPIC")
    for name, (_, text) in TOPICS.items():
        one = commands.add_parser(name, help=text, description=text)
        one.add_argument("--json", metavar="PATH", help="write the result there")
        one.add_argument(
            "--quick",
            action="store_true",
            help="few and short bursts: to try, not to report",
        )
        one.add_argument(
            "--only",
            metavar="REGEX",
            type=pattern,
            help="only rows whose 'id contender' matches",
        )
        one.add_argument("--rounds", type=int, metavar="N", help="bursts a row")
        one.add_argument(
            "--peers", action="store_true", help="also the peers that take long to compile"
        )
        one.add_argument(
            "--standin",
            action="store_true",
            help="on the stand-in driver of the tests: no GPU needed",
        )
        one.add_argument("--verbose", action="store_true", help="say what is being done")
    table = commands.add_parser("table", help="print the Markdown table of a result")
    table.add_argument("file", metavar="FILE")
    table.add_argument("--full", action="store_true", help="every figure of every row")
    return main


def say(text):
    """Report progress, beside the table."""
    print(text, file=sys.stderr)


def main(arguments=None):
    """Run the command line and return the exit status."""
    given = parser().parse_args(arguments)
    if given.command == "table":
        return print_table(given.file, full=given.full)
    module = topic(given.command)
    options = Options(
        quick=given.quick,
        only=given.only,
        peers=given.peers,
        standin=given.standin,
        rounds=given.rounds,
        floor=getattr(module, "FLOOR", ""),
        progress=say if given.verbose or getattr(module, "SLOW", False) else silent,
    )
    rows = module.run(options)
    settings = {"quick": given.quick, "rounds": options.count(), "standin": given.standin}
    content = _report.result(given.command, rows, floor=options.floor, settings=settings)
    if given.json:
        _report.write(given.json, content)
    print(_report.table(content))
    if any("median" in row for row in rows):
        return 0
    say(why_nothing(rows, given))
    return 1


def print_table(path, *, full):
    """Print a result's table; return the exit status."""
    try:
        content = _report.read(path)
    except (OSError, ValueError) as error:
        say(f"{path}: {error.strerror}" if isinstance(error, OSError) else str(error))
        return 1
    print(_report.table(content, full=full))
    return 0


def why_nothing(rows, given):
    """Return one line about a run that measured nothing."""
    if not rows:
        return "nothing was measured: --only matches no row"
    if given.standin:
        return "nothing was measured; the list above says why"
    return (
        "nothing was measured; the list above says why. Where a CUDA device is missing, "
        "--standin runs on the stand-in driver of the tests"
    )


if __name__ == "__main__":
    sys.exit(main())
