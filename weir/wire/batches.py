"""Batches of events, commands and acknowledgements as JSON, and the version they are written in.

The driver writes each event once, as it is first sent, and joins the texts to batches; so a batch
may hold events that were written before the version was agreed. ``encode_batch`` takes from them
what an older version does not know, and each version reads what an older one may write, which
``READ`` says.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from functools import cache
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import msgspec

from weir.bounds import TEXT_LENGTH_MAX, Length
from weir.errors import ProtocolError
from weir.protocol.driver_messages import (
    BatchApplied,
    CommandBatch,
    DriverCommand,
    DriverEvent,
    EventBatch,
    NumberedCommand,
)
from weir.protocol.lifecycle import CheckpointStatus, FailureReason
from weir.protocol.messages import RecordAborted, SubtaskMetrics
from weir.wire.mirrors import TYPE_KEY, Convert, Mirrors, MisfitError, check_free_form, cut

VERSION_MIN, VERSION_MAX = 1, 4
PLANNED_SINCE = 3  # The first version that tells planned ends from failures.
# Of a request: the version that it is written in, at first the highest that the driver speaks.
# Of an answer: the highest that the control plane speaks.
VERSION_HEADER = "Weir-Schema-Version"

_WRITE = Mirrors(are_read=False, cuts_prose=False)
_EXACT = Mirrors(are_read=True, cuts_prose=False)
READ: Mapping[int, Mirrors] = {
    1: Mirrors(are_read=True, cuts_prose=True),
    2: _EXACT,
    3: _EXACT,
    4: _EXACT,
}
# Fields that a version brought, by the messages that have them.
_BROUGHT: Mapping[int, Mapping[type, frozenset[str]]] = {
    4: {SubtaskMetrics: frozenset({"bad_records", "cpu_wait_ms"})},
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
_ENCODER = msgspec.json.Encoder(order="deterministic")
# A backslash that is escaped itself, or the escape of a character that no database can store: NUL
# and halves of surrogate pairs. Whole pairs match too, and stay.
_ESCAPES = re.compile(
    rb"\\\\|\\u0000|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    rb"|\\u[dD][89a-fA-F][0-9a-fA-F]{2}"
)
_REPLACED, _QUESTION_MARK = rb"\ufffd", rb"\u003f"  # Of a zero, and of half of a pair.
_MAY_BE_UNSTORABLE = re.compile(rb"\\u(?:0000|[dD][89a-fA-F])")
_PLACE = re.compile(r"(.*) - at `(?:key in )?\$\.?([^`]*)`", re.DOTALL)


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
    return _encode(_cut_prose(event), is_tagged=True)


def encode_batch(
    first_number: int, events: Iterable[bytes], away_ms: int = 0, version: int = VERSION_MAX
) -> bytes:
    """An ``EventBatch`` of encoded events, in this version."""
    if unknown := _unknown_to(version):
        events = (_without(unknown, event) for event in events)
    return b'{"first_number":%d,"away_ms":%d,"events":[%b]}' % (
        first_number,
        away_ms,
        b",".join(events),
    )


def _unknown_to(version: int) -> dict[str, frozenset[str]]:
    """The fields that came after a version, by the names of their messages."""
    later = [messages for since, messages in _BROUGHT.items() if since > version]
    return {cls.__name__: names for messages in later for cls, names in messages.items()}


def _without(fields: Mapping[str, frozenset[str]], event: bytes) -> bytes:
    """An encoded event without these fields."""
    read = msgspec.json.decode(event, type=dict[str, msgspec.Raw])
    unknown = fields.get(msgspec.json.decode(read[TYPE_KEY], type=str))
    if unknown is None:
        return event
    return _ENCODER.encode({name: value for name, value in read.items() if name not in unknown})


def encode_applied(applied: BatchApplied) -> bytes:
    """The acknowledgement of a batch."""
    return _encode(applied)


def encode_commands(batch: CommandBatch, version: int = VERSION_MAX) -> bytes:
    """Commands as they answer a poll in this version.

    Raises:
        ProtocolError: A value is not of its field's type, or beyond its bounds.
    """
    commands = [
        {"number": n.number, "command": msgspec.Raw(_command(n.command, version))}
        for n in batch.commands
    ]
    return _ENCODER.encode({"commands": commands, "sent_at_ms": batch.sent_at_ms})


def _command(command: DriverCommand, version: int) -> bytes:
    written = command if version >= PLANNED_SINCE else _as_before(command)
    return _encode(_cut_prose(written), is_tagged=True)


def _as_before(command: DriverCommand) -> DriverCommand:
    """The command in the words of the versions before ``PLANNED_SINCE``."""
    if not isinstance(command, RecordAborted):
        return command
    checkpoint = command.checkpoint
    if checkpoint.status is CheckpointStatus.FAILED:
        checkpoint = replace(checkpoint, status=CheckpointStatus.ABORTED)
    reason = _NEAREST.get(command.reason, command.reason)
    return replace(command, checkpoint=checkpoint, reason=reason)


def _encode(message: Any, *, is_tagged: bool = False) -> bytes:
    cls: Any = type(message)
    try:
        filled = msgspec.convert(
            message, _WRITE.struct(cls, is_tagged=is_tagged), from_attributes=True
        )
        for name in _free_form_names(cls):
            _check_free_form(name, getattr(message, name))
        try:
            return _ENCODER.encode(filled)
        except UnicodeEncodeError:  # Half a surrogate pair, in a path of the file system perhaps.
            return _ENCODER.encode(_encodable(msgspec.to_builtins(filled, order="deterministic")))
    except (msgspec.MsgspecError, TypeError, RecursionError) as error:
        raise ProtocolError(_said(error, cls.__name__)) from error


def _check_free_form(name: str, value: Any) -> None:
    try:
        check_free_form(value)
    except MisfitError as misfit:
        raise msgspec.ValidationError(f"{misfit.problem} - at `$.{name}`") from misfit


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


@cache
def _free_form_names(cls: type) -> tuple[str, ...]:
    hints = get_type_hints(cls)
    return tuple(f.name for f in fields(cls) if get_origin(hints[f.name]) is dict)


def _encodable(value: Any) -> Any:
    match value:
        case str():
            return value.encode("utf-8", "replace").decode()
        case list() | tuple():
            return [_encodable(item) for item in value]
        case dict():
            return {_encodable(key): _encodable(item) for key, item in value.items()}
        case _:
            return value


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
    batch: EventBatch = _decode(EventBatch, body, version)
    return batch


def decode_commands(answer: bytes, version: int = VERSION_MAX) -> CommandBatch:
    """The commands in the answer to a poll.

    Raises:
        ProtocolError: The answer holds no commands of this version.
    """
    batch: CommandBatch = _decode(CommandBatch, answer, version)
    return batch


def decode_applied(answer: bytes, version: int = VERSION_MAX) -> BatchApplied:
    """The acknowledgement in the answer to a batch.

    Raises:
        ProtocolError: The answer is no acknowledgement of this version.
    """
    applied: BatchApplied = _decode(BatchApplied, answer, version)
    return applied


def _decode(cls: type, data: bytes, version: int) -> Any:
    decoder, convert = _READERS[cls, version]
    try:
        return convert(decoder.decode(data))
    except MisfitError as misfit:
        raise ProtocolError(f"{misfit.path.removeprefix('.')}: {misfit.problem}") from misfit
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(_said(error)) from error


def _reader(cls: type, version: int) -> tuple[msgspec.json.Decoder[Any], Convert]:
    mirrors = READ[version]
    convert = mirrors.converter(cls)
    assert convert is not None
    return msgspec.json.Decoder(mirrors.struct(cls)), convert


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


def _said(error: Exception, root: str = "") -> str:
    """The problem behind the path to it, as ``events[0].attempt: Expected ...``."""
    place = _PLACE.fullmatch(str(error))
    if place is None:
        return f"{root}: {error}" if root else str(error)
    path = f"{root}.{place[2]}".removeprefix(".") if place[2] else root
    return f"{path}: {place[1]}" if path else place[1]


def _members(union: Any) -> tuple[type, ...]:
    """The classes of a union, those of unions in it as well."""
    if get_origin(union) in (Union, UnionType):
        return tuple(dict.fromkeys(cls for member in get_args(union) for cls in _members(member)))
    return (union,)


EVENT_CLASSES = _members(DriverEvent)
COMMAND_CLASSES = _members(DriverCommand)

# All made here, by the thread that imports: see ``weir.wire.mirrors``.
_READERS: Mapping[tuple[type, int], tuple[msgspec.json.Decoder[Any], Convert]] = {
    (cls, version): _reader(cls, version)
    for version in READ
    for cls in (EventBatch, CommandBatch, BatchApplied)
}
for _message in (*EVENT_CLASSES, *COMMAND_CLASSES):
    _WRITE.struct(_message, is_tagged=True)
_WRITE.struct(BatchApplied)

__all__ = [
    "COMMAND_CLASSES",
    "EVENT_CLASSES",
    "READ",
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
]
