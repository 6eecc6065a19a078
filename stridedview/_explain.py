"""Why is this launch slow, or compiled anew: ``explain(kernel[grid, block], *args)``.

Owns the collection of facts about one launch and their rendering. It launches, compiles
and orders nothing, and makes no context.
"""

from __future__ import annotations

import importlib
from typing import Any

from stridedview import (
    _configuration,
    _driver,
    _ingest,
    _launch,
    _pack,
    _signature,
    _simulator,
    _stream,
)

_HOST = 1  # DLPack's kDLCPU


class Explanation:
    """What :func:`explain` found; its repr is the report.

    Parameters
    ----------
    facts : dict
        As :meth:`to_dict` returns them.
    """

    def __init__(self, facts: dict[str, Any]) -> None:
        self._facts = facts

    def to_dict(self) -> dict[str, Any]:
        """Return the facts as a dict that JSON can hold.

        Returns
        -------
        dict
            "kernel", "arguments" (a list of dicts) and "launch" (a dict).
        """
        return self._facts

    def __repr__(self) -> str:
        return "\n".join(
            [
                f"launch of {self._facts['kernel']}",
                *_launch_lines(self._facts["launch"]),
                *(line for facts in self._facts["arguments"] for line in _lines(facts)),
            ]
        )


def _launch_lines(facts: dict[str, Any]) -> list[str]:
    lines = [f"  plan: {facts['plan']}"]
    lines += [f"    {change}" for change in facts["differences"]]
    if facts["through_numba"]:
        lines.append(f"  through Numba's own code: {facts['through_numba']}")
    if facts["refused"]:
        lines.append(f"  REFUSED: {facts['refused']}")
    lines.append(f"  compiles: {facts['compiles']}")
    captured = ", in a capture" if facts["capturing"] else ""
    lines.append(f"  stream: {facts['stream']} ({facts['stream_of']}{captured})")
    lines += [f"    {ordering}" for ordering in facts["orderings"]]
    return lines


def _lines(facts: dict[str, Any]) -> list[str]:
    name = f" '{facts['name']}'" if facts["name"] else ""
    how = f" ({facts['how']})" if facts["how"] else ""
    lines = [
        f"  argument {facts['index'] + 1}{name}: {facts['producer']} -> {facts['type']}",
        f"    route: {facts['route']}{how}, {'SLOW' if facts['slow'] else 'fast'}",
    ]
    if facts["slow"]:
        lines.append(f"    {facts['why']}; {facts['faster']}")
    if facts["device"]:
        streams = ", ".join(map(str, facts["streams"])) or "none"
        copies = f", copied {facts['copies']}" if facts["copies"] != "none" else ""
        lines.append(f"    device: {facts['device']}, its streams: {streams}{copies}")
    return lines


def explain(configuration: Any, *args: Any) -> Explanation:
    """Tell what a launch would do, without launching or compiling.

    Parameters
    ----------
    configuration : LaunchConfiguration
        ``kernel[grid, block, stream, shared]``.
    *args
        The arguments of the launch.

    Returns
    -------
    Explanation
        For each argument its producer, route, Numba type, whether the route is slow and
        why, copies, streams and device; for the launch whether a plan is hit and, if
        not, what differs from the nearest one, whether it would compile, what would be
        refused (wrong arguments, numbers that do not fit, limits of the device, what a
        capture does not allow),
        its stream and what it is ordered behind.

    Raises
    ------
    TypeError
        If it is given no configuration of ours; ``enable()`` makes kernels give them.
    RuntimeError
        In Numba's CUDA simulator, or without a driver.
    TypeError, ValueError, BufferError, OverflowError
        As the launch would, for an argument that cannot be taken.
    """
    if _simulator.is_kernel(configuration):
        raise RuntimeError(
            "there is nothing to explain in Numba's CUDA simulator, where kernels run in "
            "Python and no argument takes a route; unset NUMBA_ENABLE_CUDASIM on a machine "
            "with a GPU"
        )
    _configuration.check_configuration(configuration)
    numba: Any = importlib.import_module("stridedview.numba_cuda")
    dispatcher = configuration.dispatcher
    parts = numba._routes, numba._types, numba._plans, numba._checks, numba._fallback
    names = parts[0].parameter_names(dispatcher.py_func)
    types = parts[3].types_of(dispatcher, args)
    taken = [bool(dispatcher.extensions) or parts[1].can_be_passed(each) for each in types]
    arguments = [
        _argument(parts, index, names[index] if index < len(names) else "", *facts)
        for index, facts in enumerate(zip(args, types, taken, strict=True))
    ]
    return Explanation(
        {
            "kernel": dispatcher.py_func.__qualname__,
            "arguments": arguments,
            "launch": _launch_facts(parts, configuration, args, types, all(taken)),
        }
    )


def _argument(
    parts: tuple[Any, ...],
    index: int,
    name: str,
    value: Any,
    numba_type: Any,
    is_taken: bool,
) -> dict[str, Any]:
    routes, types, *_ = parts
    route = routes.route_of(value) if is_taken else routes.Route("refused")
    inner = value.value if types.is_hint(value) else value
    device, streams = "", []
    if _pack.kind_name(inner) == "array" and not types.is_record(inner):
        view = _ingest.from_any(inner)
        device = f"cpu:{view.device[1]}"
        if view.device[0] != _HOST:
            device = f"cuda:{view.device[1]}"
            streams = _stream.producer_streams(view)
    return {
        "index": index,
        "name": name,
        "producer": f"{type(value).__module__}.{type(value).__qualname__}",
        "type": types.describe(numba_type),
        "route": route.name,
        "how": route.how,
        "slow": bool(route.why_slow),
        "why": route.why_slow,
        "faster": route.faster,
        "copies": route.copies,
        "device": device,
        "streams": streams,
    }


def _launch_facts(
    parts: tuple[Any, ...],
    configuration: Any,
    args: tuple[Any, ...],
    types: list[Any],
    is_taken: bool,
) -> dict[str, Any]:
    routes, _, plans, _, fallback = parts
    words, device = _launch.signature_words(configuration.dispatcher, args)
    kernel = plans.compiled(configuration, types)
    obstacle = routes.obstacle(kernel, configuration, args, words) if is_taken else ""
    if kernel is None and not obstacle:
        obstacle = plans.expected_obstacle(configuration.dispatcher)
    found, where = None, ""
    changes: list[str] = []
    if obstacle:
        words = None
    elif words is not None:
        found, where = _launch.find_plan(configuration, words, device)
        changes = [] if where else _nearest(configuration, words)
    streams = _stream_facts(routes, fallback, configuration, args)
    refused = plans.refusal(configuration, kernel, args, words, device, found)
    if not refused and streams["capturing"]:
        is_debug = obstacle == "debug kernel"
        refused = (
            fallback.DEBUG_NOT_CAPTURED
            if is_debug
            else fallback.capture_refusal(kernel, args)
        )
    facts = {
        "plan": {"last": "hit, the last one", "table": "hit, looked up"}.get(where, "none"),
        "hit": bool(where),
        "differences": changes,
        "through_numba": obstacle,
        "refused": refused,
        "compiles": kernel is None,
    }
    return {**facts, **streams}


def _nearest(configuration: Any, words: bytes) -> list[str]:
    """Return how the nearest plan of the kernel differs, one line an argument."""
    after = _signature.split(words)
    best: list[str] | None = None
    state = _configuration.dispatcher_state(configuration.dispatcher)
    for key in list(state.plans):
        before = _signature.split(key[0])
        if len(before) != len(after):
            continue
        changes = [
            f"{_launch.argument_name(configuration.dispatcher, index)}: "
            f"{_signature.difference(*pair)}"
            for index, pair in enumerate(zip(before, after, strict=True))
            if pair[0] != pair[1]
        ]
        if not changes:
            changes = [_elsewhere(key)]
        if best is None or len(changes) < len(best):
            best = changes
    return ["no launch of this kernel has a plan yet"] if best is None else best


def _elsewhere(key: tuple[Any, ...]) -> str:
    if key[1] != _driver.current_context_id():
        return f"the context: {key[1]} -> {_driver.current_context_id()}"
    return "the kernel was compiled for its grid, block or shared memory, which differ"


def _stream_facts(
    routes: Any, fallback: Any, configuration: Any, args: tuple[Any, ...]
) -> dict[str, Any]:
    views = list(routes.views_in(args))
    handle = fallback.launch_stream(configuration, views)
    leads = [view for view in views if _stream.leads(view)]
    if configuration.named_stream is not None:
        whose = "named"
    elif leads and _launch.follows_producers():
        owner = leads[0].owner
        # A producer that handed something out is kept together with it.
        producer = type(owner[0] if isinstance(owner, tuple) else owner)
        whose = f"the current one of {producer.__module__.partition('.')[0]}"
    else:
        whose = "Numba's default"
    streams = (stream for view in views for stream in _stream.producer_streams(view))
    orderings = [
        _ordering(handle, behind)
        for behind in dict.fromkeys(streams)
        if not _stream.same(behind, handle)
    ]
    return {
        "stream": handle,
        "stream_of": whose,
        "capturing": _stream.capturing(handle),
        "orderings": orderings,
    }


def _ordering(handle: int, behind: int) -> str:
    if _stream.capturing(handle) != _stream.capturing(behind):
        return f"not behind stream {behind}: one of the two is in a capture"
    return f"behind stream {behind}, by an event; the arguments are kept until it is done"
