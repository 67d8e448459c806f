"""Batches of events, commands and acknowledgements as JSON, and the version they are written in.

The driver writes each event once, as it is first sent, and joins the texts to batches; so a batch
may hold events that were written before the version was agreed. ``encode_batch`` takes from them
what an older version does not know, and each version reads what an older one may write, which
``READ`` says.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import fields, replace
from functools import cache
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import msgspec

from weir.bounds import TEXT_LENGTH_MAX, Length
from weir.protocol.driver_messages import (
    BatchApplied,
    CommandBatch,
    DriverCommand,
    DriverEvent,
    DriverLoad,
    EventBatch,
    JobPlanned,
    NumberedCommand,
)
from weir.protocol.events import Recovered, WorkerStarted
from weir.protocol.inspection import InspectSubtask
from weir.protocol.lifecycle import CheckpointStatus, FailureReason
from weir.protocol.messages import (
    Acknowledged,
    RecordAborted,
    SubtaskMetrics,
    TriggerCheckpoint,
    WriteManifest,
)
from weir.wire.codec import ENCODER, Reader, Writer, union_members
from weir.wire.mirrors import TYPE_KEY, Mirrors, cut

VERSION_MIN, VERSION_MAX = 1, 11
PLANNED_SINCE = 3  # The first version that tells planned ends from failures.
LOAD_SINCE = 7  # The first version whose batches tell the driver's load.
INSPECTIONS_SINCE = 8  # The first version that has inspections of subtasks.
TIMES_SINCE = 11  # The first version whose batches, and their acknowledgements, tell their times.
# Of a request: the version that it is written in, at first the highest that the driver speaks.
# Of an answer: the highest that the control plane speaks.
VERSION_HEADER = "Weir-Schema-Version"

_WRITER = Writer(Mirrors(are_read=False, cuts_prose=False))
_EXACT = Mirrors(are_read=True, cuts_prose=False)
READ: Mapping[int, Mirrors] = {
    1: Mirrors(are_read=True, cuts_prose=True),
    **dict.fromkeys(range(2, VERSION_MAX + 1), _EXACT),
}
# Fields that a version brought, by the messages that have them; ``a.b`` is a field of the field a,
# or of each of its entries.
_BROUGHT: Mapping[int, Mapping[type, frozenset[str]]] = {
    4: {SubtaskMetrics: frozenset({"bad_records", "cpu_wait_ms"})},
    5: {
        JobPlanned: frozenset({"restart.ends_on_repeated_error"}),
        Acknowledged: frozenset(
            {
                "operators.metrics.bytes_persisted_at_outputs",
                "operators.metrics.switched",
                "operators.metrics.switched_ms",
                "operators.metrics.gates.in_flight",
            }
        ),
    },
    6: {SubtaskMetrics: frozenset({"memory_bytes"})},
    7: {
        SubtaskMetrics: frozenset({"cpu_pressure_ms", "calls"}),
        Acknowledged: frozenset({"writing_ms"}),
    },
    8: {
        TriggerCheckpoint: frozenset({"barrier.options.base_id"}),
        WriteManifest: frozenset({"checkpoint.barrier.options.base_id"}),
        RecordAborted: frozenset({"checkpoint.barrier.options.base_id"}),
    },
    9: {
        WorkerStarted: frozenset({"memory_limit"}),
        Recovered: frozenset({"restored_local_bytes"}),
    },
    10: {SubtaskMetrics: frozenset({"beside"})},
}
# Reasons that came with ``PLANNED_SINCE``, and their nearest before it.
_NEAREST: Mapping[FailureReason, FailureReason] = {
    FailureReason.JOB_FINISHED: FailureReason.CHECKPOINT_COORDINATOR_SHUTDOWN,
    FailureReason.JOB_CANCELED: FailureReason.CHECKPOINT_COORDINATOR_SHUTDOWN,
    FailureReason.JOB_STOPPED: FailureReason.CHECKPOINT_SUBSUMED,
    FailureReason.JOB_RESTARTED: FailureReason.JOB_FAILOVER,
    FailureReason.JOB_RESCALED: FailureReason.JOB_FAILOVER,
    FailureReason.JOB_ROLLED_BACK: FailureReason.JOB_FAILOVER,
    FailureReason.CONTROL_PLANE_STOPPED: FailureReason.JOB_FAILOVER,
}
# A backslash that is escaped itself, or the escape of a character that no database can store: NUL
# and halves of surrogate pairs. Whole pairs match too, and stay.
_ESCAPES = re.compile(
    rb"\\\\|\\u0000|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    rb"|\\u[dD][89a-fA-F][0-9a-fA-F]{2}"
)
# An object, or several, whose fields are not read.
_OBJECTS: Any = dict[str, msgspec.Raw] | list[dict[str, msgspec.Raw]]
_REPLACED, _QUESTION_MARK = rb"\ufffd", rb"\u003f"  # Of a zero, and of half of a pair.
# An answer to an inspection as ``encode_event`` writes it, and the event that means nothing.
_INSPECTED = re.compile(rb'\{"type":"Inspected"')
_NOTHING = b'{"type":"Tick"}'
_MAY_BE_UNSTORABLE = re.compile(rb"\\u(?:0000|[dD][89a-fA-F])")


def agreed(theirs: int) -> int | None:
    """The version that both sides write if the other one's highest is ``theirs``; None: none."""
    version = min(VERSION_MAX, theirs)
    return version if version >= VERSION_MIN else None


# Writing.


def encode_event(event: DriverEvent) -> bytes:
    """An event as it stands in a batch of the newest version; overlong texts for people are cut.

    Raises:
        ProtocolError: A value is not of its field's type, or beyond its bounds.
    """
    return _WRITER.encode(_cut_prose(event), is_tagged=True)


def encode_batch(
    first_number: int,
    events: Iterable[bytes],
    away_ms: int = 0,
    version: int = VERSION_MAX,
    load: DriverLoad | None = None,
    sent_at_ms: int | None = None,
) -> bytes:
    """An ``EventBatch`` of encoded events, in this version."""
    if version < INSPECTIONS_SINCE:  # A number that is given out cannot be left out.
        events = (_NOTHING if _INSPECTED.match(event) else event for event in events)
    if unknown := _unknown_to(version):
        events = (_without(unknown, event) for event in events)
    about = b""
    if load is not None and version >= LOAD_SINCE:
        about += b'"load":%b,' % _WRITER.encode(load)
    if sent_at_ms is not None and version >= TIMES_SINCE:
        about += b'"sent_at_ms":%d,' % sent_at_ms
    return b'{"first_number":%d,"away_ms":%d,%b"events":[%b]}' % (
        first_number,
        away_ms,
        about,
        b",".join(events),
    )


def _unknown_to(version: int) -> dict[str, frozenset[str]]:
    """The fields that came after a version, by the names of their messages."""
    unknown: dict[str, frozenset[str]] = {}
    for since, messages in _BROUGHT.items():
        if since > version:
            for cls, names in messages.items():
                unknown[cls.__name__] = unknown.get(cls.__name__, frozenset()) | names
    return unknown


def _without(fields: Mapping[str, frozenset[str]], message: bytes) -> bytes:
    """An encoded event or command without these fields."""
    read = msgspec.json.decode(message, type=dict[str, msgspec.Raw])
    unknown = fields.get(msgspec.json.decode(read[TYPE_KEY], type=str))
    if unknown is None:
        return message
    return ENCODER.encode(_stripped(read, unknown))


def _stripped(read: dict[str, msgspec.Raw], unknown: Collection[str]) -> dict[str, msgspec.Raw]:
    """The fields of an object without the unknown ones, its objects' own among them."""
    stripped = {name: value for name, value in read.items() if name not in unknown}
    inner: dict[str, set[str]] = {}
    for name in unknown:
        outer, is_inner, rest = name.partition(".")
        if is_inner and outer in stripped:
            inner.setdefault(outer, set()).add(rest)
    for outer, names in inner.items():
        value = msgspec.json.decode(stripped[outer], type=_OBJECTS)
        several = isinstance(value, list)
        bare = [_stripped(one, names) for one in value] if several else _stripped(value, names)
        stripped[outer] = msgspec.Raw(ENCODER.encode(bare))
    return stripped


def encode_applied(applied: BatchApplied, version: int = VERSION_MAX) -> bytes:
    """The acknowledgement of a batch, in this version."""
    written = {"up_to": applied.up_to}
    if applied.at_ms is not None and version >= TIMES_SINCE:
        written["at_ms"] = applied.at_ms
    return ENCODER.encode(written)


def known(commands: Iterable[NumberedCommand], version: int) -> tuple[NumberedCommand, ...]:
    """The commands that a driver of this version can read."""
    if version >= INSPECTIONS_SINCE:
        return tuple(commands)
    return tuple(n for n in commands if not isinstance(n.command, InspectSubtask))


def encode_commands(batch: CommandBatch, version: int = VERSION_MAX) -> bytes:
    """Commands as they answer a poll in this version.

    Raises:
        ProtocolError: A value is not of its field's type, or beyond its bounds.
    """
    commands = [
        {"number": n.number, "command": msgspec.Raw(_command(n.command, version))}
        for n in batch.commands
    ]
    return ENCODER.encode({"commands": commands, "sent_at_ms": batch.sent_at_ms})


def _command(command: DriverCommand, version: int) -> bytes:
    written = command if version >= PLANNED_SINCE else _as_before(command)
    encoded = _WRITER.encode(_cut_prose(written), is_tagged=True)
    return _without(unknown, encoded) if (unknown := _unknown_to(version)) else encoded


def _as_before(command: DriverCommand) -> DriverCommand:
    """The command in the words of the versions before ``PLANNED_SINCE``."""
    if not isinstance(command, RecordAborted):
        return command
    checkpoint = command.checkpoint
    if checkpoint.status is CheckpointStatus.FAILED:
        checkpoint = replace(checkpoint, status=CheckpointStatus.ABORTED)
    reason = _NEAREST.get(command.reason, command.reason)
    return replace(command, checkpoint=checkpoint, reason=reason)


def _cut_prose(message: Any) -> Any:
    cls: Any = type(message)
    overlong = {
        name: cut(text, TEXT_LENGTH_MAX)
        for name in _prose_names(cls)
        if isinstance(text := getattr(message, name), str) and len(text) > TEXT_LENGTH_MAX
    }
    return replace(message, **overlong) if overlong else message


@cache
def _prose_names(cls: type) -> tuple[str, ...]:
    hints = get_type_hints(cls, include_extras=True)
    return tuple(
        field.name
        for field in fields(cls)
        if get_origin(hints[field.name]) is Annotated
        and any(isinstance(n, Length) and n.is_prose for n in get_args(hints[field.name]))
    )


# Reading.


def decode_batch(body: bytes, version: int = VERSION_MAX) -> EventBatch:
    """The batch of events that a driver posted.

    Characters that no database can store are replaced.

    Raises:
        ProtocolError: The body is no batch of this version; the message names the field by its
            path, such as ``events[0].attempt``.
    """
    if _MAY_BE_UNSTORABLE.search(body):
        body = _storable(body)
    batch: EventBatch = _READERS[EventBatch, version].decode(body)
    return batch


def decode_commands(answer: bytes, version: int = VERSION_MAX) -> CommandBatch:
    """The commands in the answer to a poll.

    Raises:
        ProtocolError: The answer holds no commands of this version.
    """
    batch: CommandBatch = _READERS[CommandBatch, version].decode(answer)
    return batch


def decode_applied(answer: bytes, version: int = VERSION_MAX) -> BatchApplied:
    """The acknowledgement in the answer to a batch.

    Raises:
        ProtocolError: The answer is no acknowledgement of this version.
    """
    applied: BatchApplied = _READERS[BatchApplied, version].decode(answer)
    return applied


def _storable(body: bytes) -> bytes:
    """A body without escapes of characters that no database can store.

    They are replaced in place: the pieces of a body full of them would take twenty times its size.
    """
    storable = bytearray(body)
    for escape in _ESCAPES.finditer(body):
        if len(escape[0]) == len(_REPLACED):
            replaced = _REPLACED if escape[0] == rb"\u0000" else _QUESTION_MARK
            storable[escape.start() : escape.end()] = replaced
    return bytes(storable)


EVENT_CLASSES = union_members(DriverEvent)
COMMAND_CLASSES = union_members(DriverCommand)

# All made here, by the thread that imports: see ``weir.wire.mirrors``.
_READERS: Mapping[tuple[type, int], Reader] = {
    (cls, version): Reader(mirrors, cls)
    for version, mirrors in READ.items()
    for cls in (EventBatch, CommandBatch, BatchApplied)
}
_WRITER.describe(*EVENT_CLASSES, *COMMAND_CLASSES, is_tagged=True)
_WRITER.describe(DriverLoad)

__all__ = [
    "COMMAND_CLASSES",
    "EVENT_CLASSES",
    "READ",
    "TIMES_SINCE",
    "VERSION_HEADER",
    "VERSION_MAX",
    "VERSION_MIN",
    "NumberedCommand",
    "agreed",
    "decode_applied",
    "decode_batch",
    "decode_commands",
    "encode_applied",
    "encode_batch",
    "encode_commands",
    "encode_event",
    "known",
]
