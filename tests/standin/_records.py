"""What the stand-in driver recorded, as Python values."""

import ctypes
import dataclasses

from ._control import LaunchStruct, OrderingStruct, call


@dataclasses.dataclass(frozen=True)
class Launch:
    """One accepted launch; `parameters` has one bytes a parameter, sized by the cubin."""

    function: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int
    stream: int  # the handle as it was passed: 0, 1, 2 or a pointer
    stream_id: int
    attributes: dict[int, int]  # launch attribute -> its first 4 bytes as an int
    parameters: tuple[bytes, ...]
    packed: bytes | None  # the buffer of a launch through `extra`
    short: bool  # that buffer ended before the last parameter did
    entry: str
    context_id: int
    device: int
    handle: int  # the CUfunction
    sequence: int  # one count for launches, event records and waits
    thread: int
    captured: bool  # went into a graph and did not run
    replayed: bool  # came from a graph

    @property
    def words(self) -> tuple[int, ...]:
        """Each parameter as an unsigned int."""
        return tuple(int.from_bytes(value, "little") for value in self.parameters)


@dataclasses.dataclass(frozen=True)
class Ordering:
    """One wait: `waiting` was put behind what `recorded_on` had at `recorded_at`."""

    event: int
    recorded_on: int  # stream handles; 1 is the legacy stream, 2 a per-thread one
    recorded_id: int
    recorded_at: int
    waiting: int
    waiting_id: int
    waited_at: int


def _parameters(struct: LaunchStruct) -> tuple[bytes, ...]:
    data = (
        ctypes.string_at(struct.bytes, struct.parameter_bytes)
        if struct.parameter_bytes
        else b""
    )
    ends, end = [], 0
    for index in range(struct.parameter_count):
        start, end = end, end + struct.sizes[index]
        ends.append((start, end))
    return tuple(data[start:end] for start, end in ends)


def _attributes(struct: LaunchStruct) -> dict[int, int]:
    attributes = [struct.attributes[index] for index in range(struct.attribute_count)]
    return {
        attribute.id: int.from_bytes(bytes(attribute.value[:4]), "little")
        for attribute in attributes
    }


def launch_from(struct: LaunchStruct) -> Launch:
    """Return the record that a C record says."""
    packed = None
    if struct.packed_size >= 0:
        packed = ctypes.string_at(struct.packed, struct.packed_size)
    return Launch(
        function=struct.name.decode(),
        grid=tuple(struct.grid),
        block=tuple(struct.block),
        shared=struct.shared,
        stream=struct.stream,
        stream_id=struct.stream_id,
        attributes=_attributes(struct),
        parameters=_parameters(struct),
        packed=packed,
        short=bool(struct.is_short),
        entry=struct.entry.decode(),
        context_id=struct.context_id,
        device=struct.device,
        handle=struct.function,
        sequence=struct.sequence,
        thread=struct.thread,
        captured=bool(struct.captured),
        replayed=bool(struct.replayed),
    )


def launches() -> list[Launch]:
    """Return every launch since the last `clear`, in order."""
    return [
        launch_from(call("launch", index).contents) for index in range(call("launch_count"))
    ]


def _ordering(struct: OrderingStruct) -> Ordering:
    return Ordering(**{name: getattr(struct, name) for name, _ in struct._fields_})


def orderings() -> list[Ordering]:
    """Return every wait of a stream on a recorded event since the last `clear`."""
    return [
        _ordering(call("ordering", index).contents)
        for index in range(call("ordering_count"))
    ]


def clear() -> None:
    """Forget launches and orderings; counts and faults stay."""
    call("clear")


def is_behind(waiting_id: int, stream_id: int, since: int = 0) -> bool:
    """Whether stream `waiting_id` waits, perhaps through others, for work of `stream_id`.

    Only work before the event counts: `since` is the `sequence` of the launch (or other
    record) that must come before it. Ids are those of ``cuStreamGetId``.
    """
    waits = orderings()
    reached = {stream_id: since}  # stream -> from when on it is behind
    for wait in sorted(waits, key=lambda wait: wait.waited_at):
        if wait.recorded_id in reached and wait.recorded_at > reached[wait.recorded_id]:
            reached.setdefault(wait.waiting_id, wait.waited_at)
    return waiting_id in reached
