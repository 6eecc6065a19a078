"""Timing: contenders, bursts, rounds, statistics.

Owns what a measurement is. It knows no topic and no peer. A contender is built
once by its ``make``, which returns ``burst(n) -> nanoseconds for n calls``; all
contenders of a run take turns, one burst each a round, so that whatever drifts on
the machine hits all alike. Waiting for the device happens between bursts, never
within one, unless the contender says that it does.
"""

import contextlib
import gc
import importlib
import math
import re
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import repeat
from time import perf_counter_ns

BURST = 150  # calls a burst: fewer than fill the driver's launch queue
ROUNDS = 100
QUICK_ROUNDS = 5
QUICK_BURST = 20
BURST_LIMIT = 0.25  # seconds a burst; what takes longer is called less often in one
ROW_LIMIT = 15.0  # seconds a row; what takes longer gets fewer rounds, never under 5


def silent(_):
    """Report no progress."""


class UnavailableError(Exception):
    """A contender that cannot run here, with the reason as its message."""


@dataclass(frozen=True)
class Contender:
    """One row to be: who does what, and how to build it.

    Parameters
    ----------
    id
        ``topic.op``, the same for the floor, the peers and ours.
    name
        Who does it.
    make
        Builds the contender and returns its ``burst``.
    patched
        Whether stridedview's patch of numba-cuda is in place while it runs.
    calls
        Calls a burst.
    rounds
        Rounds at most, for calls that take long; 0 is as many as the run has.
    moved
        Bytes that one call moves, for a rate beside the time.
    note
        What the row includes or leaves out.
    """

    id: str
    name: str
    make: Callable[[], Callable[[int], int]]
    patched: bool = False
    calls: int = BURST
    rounds: int = 0
    moved: int = 0
    note: str = ""

    @property
    def key(self):
        """The row's name as ``--only`` matches it."""
        return f"{self.id} {self.name}"


@dataclass(frozen=True)
class Options:
    """What the command line chose."""

    quick: bool = False
    only: re.Pattern | None = None
    peers: bool = False
    standin: bool = False
    rounds: int | None = None
    floor: str = "raw"
    progress: Callable[[str], None] = silent

    def wants(self, row_id, name):
        """Return whether ``--only`` lets this row through."""
        return self.only is None or bool(self.only.search(f"{row_id} {name}"))

    def count(self):
        """Return how many rounds to run."""
        return self.rounds or (QUICK_ROUNDS if self.quick else ROUNDS)


def reason(error):
    """Return an exception as one short line that names no directory."""
    text = (str(error).strip() or "no message").splitlines()[0]
    text = re.sub(r"(?<![\w.])~?/(?:[^\s/'\":]+/)+", "", text)
    if not isinstance(error, UnavailableError):
        text = f"{type(error).__name__}: {text}"
    return text if len(text) <= 200 else text[:197] + "..."


def unavailable(row_id, name, why, note=""):
    """Return the row of a contender that did not run."""
    return {"id": row_id, "contender": name, "unavailable": why, "note": note}


def quantile(ordered, fraction):
    """Return a quantile of sorted samples, interpolated between neighbours."""
    place = (len(ordered) - 1) * fraction
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def summarize(samples):
    """Return median, spread, smallest and count of samples in microseconds a call.

    The spread is the distance between the quartiles.
    """
    ordered = sorted(samples)
    low, high = quantile(ordered, 0.25), quantile(ordered, 0.75)
    return {
        "median": statistics.median(ordered),
        "iqr": high - low,
        "min": ordered[0],
        "n": len(ordered),
    }


def add_ratios(rows, floor):
    """Add to each row, in place, its median over and above its floor's of the same id."""
    floors = {
        row["id"]: row["median"]
        for row in rows
        if row["contender"] == floor and "median" in row
    }
    for row in rows:
        base = floors.get(row["id"])
        if base and "median" in row:
            row["ratio"] = row["median"] / base
            row["above"] = row["median"] - base
    return rows


def ours():
    """Import stridedview; ImportError says that it is not built."""
    return importlib.import_module("stridedview")


def public(name):
    """Return a public attribute of stridedview, or raise with the reason."""
    try:
        package = ours()
    except ImportError as error:
        raise UnavailableError(f"stridedview does not import: {reason(error)}") from error
    try:
        return getattr(package, name)
    except AttributeError:
        raise UnavailableError(f"stridedview has no {name} yet") from None


@contextlib.contextmanager
def patch(wanted):
    """Have numba-cuda patched or not within the block, whatever it was before."""
    try:
        package = ours()
        was = package.is_enabled()
    except (ImportError, AttributeError):
        if wanted:
            public("enable")
        yield
        return
    if wanted != was:
        (package.enable if wanted else package.disable)()
    try:
        yield
    finally:
        if wanted != was:
            (package.enable if was else package.disable)()


def keep(burst, *alive):
    """Return the burst, holding on to what its C side only points to."""

    def kept(n):
        return burst(n)

    kept.alive = alive
    return kept


def timed(call, *, sync=None):
    """Return a burst that calls ``call()`` n times, each call a Python call.

    With ``sync`` the device is waited for inside the timed part, once a call.
    """

    def burst(n):
        start = perf_counter_ns()
        for _ in repeat(None, n):
            call()
        return perf_counter_ns() - start

    def burst_with_sync(n):
        start = perf_counter_ns()
        for _ in repeat(None, n):
            call()
            sync()
        return perf_counter_ns() - start

    return burst_with_sync if sync else burst


def call_with(line, args, *, each="{}", **names):
    """Return a burst that has the call written out, as a user's line would be.

    A tuple to unpack would be a cost of the harness, so ``{args}`` in ``line``
    becomes one local variable an argument.

    Parameters
    ----------
    line
        The call, ``"function[grid, block]({args})"`` say.
    args
        The arguments.
    each
        How one argument is written, ``"{}.data_ptr()"`` say.
    names
        The other local variables of the line.
    """
    variables = [f"a{index}" for index in range(len(args))]
    written = ", ".join(each.format(variable) for variable in variables)
    source = (
        f"def burst({', '.join(['n', *names, *variables])}):\n"
        "    start = perf_counter_ns()\n"
        "    for _ in repeat(None, n):\n"
        f"        {line.format(args=written)}\n"
        "    return perf_counter_ns() - start\n"
    )
    space = {"perf_counter_ns": perf_counter_ns, "repeat": repeat}
    exec(source, space)  # built from lines in this folder and counted names alone
    burst, values = space["burst"], tuple(names.values())
    return lambda n: burst(n, *values, *args)


@dataclass
class _Running:
    contender: Contender
    burst: Callable[[int], int]
    calls: int
    rounds: int
    samples: list = field(default_factory=list)
    failure: str | None = None

    def due(self, patched, number):
        """Return whether this one has a turn in a round under a state of the patch."""
        return self.contender.patched is patched and number < self.rounds


def plan(contender, options, seconds):
    """Return the calls a burst and the rounds of a contender whose call takes so long."""
    calls = min(contender.calls, QUICK_BURST) if options.quick else contender.calls
    calls = max(1, min(calls, int(BURST_LIMIT / max(seconds, 1e-9))))
    rounds = min(options.count(), contender.rounds or options.count())
    affordable = max(QUICK_ROUNDS, int(ROW_LIMIT / max(calls * seconds, 1e-9)))
    return calls, min(rounds, affordable)


def _start(contender, options, sync):
    with patch(contender.patched):
        burst = contender.make()
        burst(1)  # compiles, fills caches
        seconds = min(burst(1), burst(1)) / 1e9
    sync()
    return _Running(contender, burst, *plan(contender, options, seconds))


def _turn(running, sync):
    if running.failure:
        return
    try:
        if running.contender.calls > 1:
            running.burst(1)  # whatever a switch of the patch made cold
        sync()
        taken = running.burst(running.calls)
        running.samples.append(taken / running.calls / 1000)
        sync()
    except Exception as error:  # noqa: BLE001 - as above
        running.failure = reason(error)


def measure(contenders, options, sync=lambda: None):
    """Run the contenders in turns and return their rows.

    Parameters
    ----------
    contenders : list of Contender
    options : Options
    sync : callable
        Waits for the device; called outside the timed parts.

    Returns
    -------
    list of dict
        One row a contender, in the order given; one that could not be built or
        that broke has ``unavailable``, the reason, in place of figures.
    """
    everyone = [each for each in contenders if options.wants(each.id, each.name)]
    started = {}
    for contender in everyone:
        options.progress(f"preparing {contender.key}")
        try:
            started[contender.key] = _start(contender, options, sync)
        except Exception as error:  # noqa: BLE001 - a peer that breaks costs its row, not the run
            started[contender.key] = reason(error)
    live = [each for each in started.values() if isinstance(each, _Running)]
    collecting = gc.isenabled()
    gc.disable()  # no collection within a burst; one between rounds, of what is new
    gc.freeze()
    try:
        for number in range(options.count()):
            options.progress(f"round {number + 1} of {options.count()}")
            for patched in (False, True):
                group = [each for each in live if each.due(patched, number)]
                if not group:
                    continue
                first = number % len(group)
                with patch(patched):
                    for running in group[first:] + group[:first]:
                        _turn(running, sync)
            gc.collect()
    finally:
        gc.unfreeze()
        if collecting:
            gc.enable()
    rows = [_row(contender, started[contender.key]) for contender in everyone]
    return add_ratios(rows, options.floor)


def _row(contender, running):
    why = running if isinstance(running, str) else running.failure
    if why or not running.samples:
        return unavailable(
            contender.id, contender.name, why or "no samples", contender.note
        )
    row = {
        "id": contender.id,
        "contender": contender.name,
        "unit": "us",
        **summarize(running.samples),
        "calls": running.calls,
        "note": contender.note,
    }
    if contender.moved:
        row["gb_per_s"] = contender.moved / (row["median"] * 1e-6) / 1e9
    return row
