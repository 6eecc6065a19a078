"""What the launches of a program cost the host: ``with stridedview.profile() as p:``.

Owns the record of launches by kernel and its rendering. While nobody profiles, a launch
pays nothing: the same flag that says whether plans may be used says that nobody observes.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
from collections import Counter
from collections.abc import Iterator
from typing import Any

from stridedview import _launch, _locks, _simulator


class _Kernel:
    """The launches of one kernel."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.launches = 0
        self.nanoseconds = 0
        self.longest = 0
        self.routes: dict[int, Counter[str]] = {}
        self.slow: dict[int, str] = {}  # argument index -> why


class Profile:
    """What was launched within a ``with stridedview.profile()`` block, by kernel.

    The time is the host's, from the call to the return of the launch; what the GPU does
    is not in it. The first launch of a signature includes its compilation.
    """

    def __init__(self) -> None:
        self._kernels: dict[Any, _Kernel] = {}  # by Python function
        self._lock = _locks.lock()

    def _note(self, configuration: Any, args: tuple[Any, ...], nanoseconds: int) -> None:
        found = [_route(value) for value in args]
        routes = [(route.name, route.why_slow) for route in found]
        # What forall() and specialize() compile has a dispatcher of its own.
        self._add(configuration.dispatcher.py_func, routes, nanoseconds)

    def _note_simulated(self, kernel: Any, args: tuple[Any, ...], nanoseconds: int) -> None:
        self._add(kernel.fn, [("simulator", "")] * len(args), nanoseconds)

    def _add(self, function: Any, routes: list[tuple[str, str]], nanoseconds: int) -> None:
        with self._lock:
            kernel = self._kernels.setdefault(function, _Kernel(function.__qualname__))
            kernel.launches += 1
            kernel.nanoseconds += nanoseconds
            kernel.longest = max(kernel.longest, nanoseconds)
            for index, (name, why_slow) in enumerate(routes):
                kernel.routes.setdefault(index, Counter())[name] += 1
                if why_slow:
                    kernel.slow[index] = why_slow

    def to_list(self) -> list[dict[str, Any]]:
        """Return one dict a kernel: those with slow arguments first, then by their time.

        Returns
        -------
        list of dict
            "kernel", "launches", "microseconds" (in all), "mean" and "longest" (a launch,
            microseconds), "arguments": dicts with "index", "routes" (name to launches)
            and "slow" (why, or ""), slow ones first.
        """
        with self._lock:
            kernels = sorted(
                self._kernels.values(),
                key=lambda kernel: (not kernel.slow, -kernel.nanoseconds),
            )
            return [_facts(kernel) for kernel in kernels]

    def to_json(self) -> str:
        """Return what :meth:`to_list` does, as JSON."""
        return json.dumps(self.to_list(), indent=2)

    def table(self) -> str:
        """Return the kernels as a table of text, slow ones first."""
        rows = [("kernel", "launches", "us in all", "us a launch", "longest", "arguments")]
        for facts in self.to_list():
            figures = (f"{facts[name]:.1f}" for name in ("microseconds", "mean", "longest"))
            rows.append(
                (facts["kernel"], str(facts["launches"]), *figures, _routes_text(facts))
            )
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Write a bar chart of the kernels' host time; those with slow routes stand out.

        Parameters
        ----------
        path : path
            Its suffix chooses the format: .png, .svg, .pdf.

        Raises
        ------
        ImportError
            If matplotlib is not installed; the extra ``stridedview[plot]`` has it.
        ValueError
            If the suffix is of no format that matplotlib writes.
        """
        self.figure().savefig(path)

    def figure(self) -> Any:
        """Return the chart that :meth:`plot` writes, as a matplotlib Figure.

        Raises
        ------
        ImportError
            If matplotlib is not installed.
        """
        try:
            figure_module: Any = importlib.import_module("matplotlib.figure")
        except ImportError as error:
            raise ImportError(
                "plot() needs matplotlib: pip install 'stridedview[plot]'; table() and "
                "to_json() do without"
            ) from error
        facts = self.to_list()[::-1]  # a bar chart begins at the bottom
        # A figure of its own: pyplot, its backends and its state have no part in it.
        size = (8, 1.5 + 0.4 * len(facts))
        figure = figure_module.Figure(figsize=size, layout="constrained")
        axes = figure.subplots()
        colors = ["tab:red" if _is_slow(entry) else "tab:blue" for entry in facts]
        labels = [f"{entry['kernel']} ({entry['launches']})" for entry in facts]
        axes.barh(range(len(facts)), [each["microseconds"] for each in facts], color=colors)
        axes.set_yticks(range(len(facts)), labels, parse_math=False)
        axes.set_xlabel("host time of the launches, microseconds (red: slow routes)")
        return figure

    def __repr__(self) -> str:
        return self.table()


def _facts(kernel: _Kernel) -> dict[str, Any]:
    arguments = [
        {"index": index, "routes": dict(counts), "slow": kernel.slow.get(index, "")}
        for index, counts in sorted(
            kernel.routes.items(), key=lambda item: (item[0] not in kernel.slow, item[0])
        )
    ]
    return {
        "kernel": kernel.name,
        "launches": kernel.launches,
        "microseconds": kernel.nanoseconds / 1000,
        "mean": kernel.nanoseconds / 1000 / kernel.launches,
        "longest": kernel.longest / 1000,
        "arguments": arguments,
    }


def _is_slow(facts: dict[str, Any]) -> bool:
    return any(argument["slow"] for argument in facts["arguments"])


def _routes_text(facts: dict[str, Any]) -> str:
    """Return the routes as text: "SLOW 2: DLPack; torch, number"."""
    slow = [
        f"SLOW {argument['index'] + 1}: {', '.join(argument['routes'])}"
        for argument in facts["arguments"]
        if argument["slow"]
    ]
    fast = dict.fromkeys(
        route
        for argument in facts["arguments"]
        if not argument["slow"]
        for route in argument["routes"]
    )
    return "; ".join([*slow, *([", ".join(fast)] if fast else [])])


def _route(value: Any) -> Any:
    routes: Any = importlib.import_module("stridedview.numba_cuda")._routes
    # A producer that runs Python code to be read may answer once, and it has.
    return routes.route_of(value, reading=False)


@contextlib.contextmanager
def profile() -> Iterator[Profile]:
    """Record every launch of every thread within a ``with`` block.

    Within the block a launch costs more, as its routes are noted; that is not in the
    time recorded. Launches through Numba while stridedview is disabled are not seen. In
    Numba's CUDA simulator the time is that of the whole simulated run.

    Yields
    ------
    Profile
    """
    found = Profile()
    observer, simulated = found._note, found._note_simulated
    # The modules may be gone when Python ends within the block.
    remove, in_simulator = _launch.remove_observer, _simulator.observers
    _launch.add_observer(observer)
    in_simulator.append(simulated)
    try:
        yield found
    finally:
        remove(observer)
        in_simulator.remove(simulated)
