"""``weir inspect``: the subtasks, timings and state of one checkpoint or savepoint.

Reading the state needs nothing but the files: keyed state is Arrow IPC, operator state a list of
JSON. Pickled values stay bytes here: inspecting a checkpoint runs no code from it.
"""

import base64
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from typing import IO, Any

import pyarrow as pa
from rich.console import Console

from weir.cli import formats
from weir.cli.checkpoints import manifest_as_json
from weir.cli.output import console, print_json, table
from weir.cli.uri import LocatedCheckpoint, find_checkpoint, name_of
from weir.errors import CorruptStateError, RestoreError, SchemaError, WeirError
from weir.graph.key_groups import TAG_ENUM, TAG_TUPLE, decode_key
from weir.ids import KeyGroupRange, OperatorId, StateHandle, SubtaskId
from weir.protocol.messages import GateAlignment, OperatorAck, SnapshotMetrics, Switch
from weir.protocol.restore import CHANGES, CHANNEL, WHOLE
from weir.state.channel_state import decode_records
from weir.storage.manifest import Manifest, read_handle
from weir.storage.store import CheckpointStore
from weir.storage.writer import load_items

_BYTES_SHOWN_MAX = 32
_KEY_COLUMN, _NAMESPACE_COLUMN = "key", "namespace"


@dataclass(frozen=True, slots=True)
class Piece:
    """A state handle, and the result of reading its piece of state."""

    handle: StateHandle
    rows: int | None = None  # None: not read, or a piece without rows.
    problem: str | None = None  # Why the piece cannot be used; None: whole, or not read.


@dataclass(frozen=True, slots=True)
class StateRow:
    """One row of keyed state, or one item of operator state."""

    subtask: SubtaskId
    state: str
    values: dict[str, Any]


def run(uri: str, *, read_files: bool, as_json: bool, out: IO[str]) -> int:
    """Print the parts of the checkpoint at ``uri``; 1 if a piece of state is damaged, else 0."""
    checkpoint = find_checkpoint(uri)
    manifest = checkpoint.manifest
    pieces = {
        ack.subtask: tuple(
            examine(checkpoint.store, checkpoint.directory, handle) if read_files else Piece(handle)
            for handle in ack.handles
        )
        for ack in manifest.acks
    }
    if as_json:
        print_json(_as_json(checkpoint, pieces, read_files=read_files), out)
    else:
        _print(console(out), checkpoint, pieces, read_files=read_files)
    return 1 if any(piece.problem for of_one in pieces.values() for piece in of_one) else 0


def run_state(uri: str, wanted: str, *, limit: int, as_json: bool, out: IO[str]) -> int:
    """Print the first rows of the state that ``wanted`` names, as OPERATOR or OPERATOR/NAME."""
    checkpoint = find_checkpoint(uri)
    chosen = select(checkpoint.manifest, wanted)
    all_rows = (
        row
        for (subtask, _), pieces in groupby(chosen, key=lambda one: (one[0], one[1].name))
        for row in valid_rows(
            checkpoint.store, checkpoint.directory, subtask, [handle for _, handle in pieces]
        )
    )
    shown = list(islice(all_rows, limit))
    is_more = next(all_rows, None) is not None
    if as_json:
        rows = [_row_as_json(row) for row in shown]
        print_json({"state": wanted, "rows": rows, "is_more": is_more}, out)
        return 0
    screen = console(out)
    for name, of_state in _by_state(shown).items():
        columns = list(dict.fromkeys(key for row in of_state for key in row.values))
        right = [c for c in columns if all(_is_number(row.values.get(c)) for row in of_state)]
        grid = table("subtask", *columns, right=right)
        for row in of_state:
            grid.add_row(str(row.subtask), *(_text(row.values.get(c)) for c in columns))
        screen.print(f"{name}", style="bold")
        screen.print(grid)
    if not shown:
        screen.print("the state is empty")
    if is_more:
        screen.print(f"(the first {limit}; --limit shows more)")
    return 0


def examine(store: CheckpointStore, directory: str, handle: StateHandle) -> Piece:
    """Read a piece of state, check it against its handle and count its rows."""
    try:
        data = read_handle(store, directory, handle)
        return Piece(handle, _count(handle, data))
    except WeirError as error:
        return Piece(handle, problem=str(error))


def select(manifest: Manifest, wanted: str) -> list[tuple[SubtaskId, StateHandle]]:
    """The pieces of state that OPERATOR or OPERATOR/NAME names, subtask by subtask.

    Raises:
        RestoreError: There is no such operator or state; the message names those there are.
    """
    operators = {op.uid for op in manifest.operators}
    uid, _, name = wanted.rpartition("/")
    if wanted in operators:
        uid, name = wanted, ""
    if uid not in operators:
        raise RestoreError(
            f"the checkpoint has no operator {uid or wanted}; it has {', '.join(sorted(operators))}"
        )
    mine = [
        (ack.subtask, handle)
        for ack in sorted(manifest.acks, key=lambda ack: ack.subtask)
        if ack.subtask.operator == OperatorId(uid)
        for handle in ack.handles
        if handle.kind != CHANNEL
    ]
    chosen = [(s, h) for s, h in mine if not name or name in (h.name, _own_name(h))]
    if not chosen and name:
        have = ", ".join(sorted({_own_name(handle) for _, handle in mine})) or "none"
        raise RestoreError(f"operator {uid} has no state {name}; it has {have}")
    return chosen


def valid_rows(
    store: CheckpointStore, directory: str, subtask: SubtaskId, pieces: Sequence[StateHandle]
) -> Iterator[StateRow]:
    """The rows of one state of a subtask, those of a chain of files as a restore leaves them.

    Raises:
        CorruptStateError: A piece is damaged or missing.
        StorageError: The storage failed.
    """
    is_chain = any(handle.mode in (WHOLE, CHANGES) for handle in pieces)
    begun: list[KeyGroupRange] = []  # By the files that were read, the newest first.
    changed: set[str] = set()
    newer: defaultdict[str, set[str]] = defaultdict(set)  # Keys of maps that are read in parts.
    for handle in reversed(pieces) if is_chain else pieces:
        changed_here: set[str] = set()
        for row in state_rows(store, directory, subtask, handle):
            adds, removed, is_gone = False, None, False
            if handle.kind == "keyed" and handle.name.startswith("state"):  # A table has any names.
                adds, removed = row.values.pop("adds", False), row.values.pop("removed", None)
            group = row.values.get("key_group", -1)
            key = repr(row.values.get(_KEY_COLUMN)) if is_chain else ""
            if is_chain and handle.name == "timers":
                is_gone = row.values.pop("removed", False)
                key = repr(row.values)
            if key in changed or any(group in groups for groups in begun):
                continue
            if handle.mode == CHANGES and not adds:
                changed_here.add(key)
                if is_gone or row.values.get("value", 0) is None:  # A table's are never removed.
                    continue
            if (is_chain and removed is not None) or newer[key]:
                entries = row.values["value"]
                row.values["value"] = [pair for pair in entries if repr(pair[0]) not in newer[key]]
                newer[key].update(repr(pair[0]) for pair in entries)
                newer[key].update(map(repr, removed or ()))
                if not row.values["value"]:
                    continue
            yield row
        changed |= changed_here
        if handle.mode == WHOLE and handle.key_groups is not None:
            begun.append(handle.key_groups)


def state_rows(
    store: CheckpointStore, directory: str, subtask: SubtaskId, handle: StateHandle
) -> Iterator[StateRow]:
    """The rows of a piece of keyed state, or the items of operator state, one by one.

    Raises:
        CorruptStateError: The piece is damaged or missing.
        StorageError: The storage failed.
    """
    data = read_handle(store, directory, handle)
    name = _own_name(handle)
    if handle.kind == "keyed":
        for values in _keyed_rows(handle, data):
            yield StateRow(subtask, name, values)
        return
    for item in load_items(data):
        if handle.mode == "broadcast":
            yield StateRow(subtask, name, {"key": _key(bytes.fromhex(item[0])), "value": item[1]})
        else:
            yield StateRow(subtask, name, {"item": item})


def _count(handle: StateHandle, data: bytes) -> int | None:
    if handle.kind == "keyed":
        rows: int = sum(batch.num_rows for batch in _batches(handle, data)[1])
        return rows
    if handle.kind == CHANNEL:
        try:
            return sum(records.count for records in decode_records(data, handle.name))
        except SchemaError:
            return None  # Pickled records are not read, not even to be counted.
    return len(load_items(data)) if handle.kind == "operator" else None


def _batches(handle: StateHandle, data: bytes) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    try:
        reader = pa.ipc.open_file(pa.py_buffer(data))
    except (pa.ArrowException, ValueError) as error:
        raise CorruptStateError(
            f"keyed state {handle.name} is no Arrow IPC file: {error}"
        ) from error
    return reader.schema, (reader.get_batch(i) for i in range(reader.num_record_batches))


def _keyed_rows(handle: StateHandle, data: bytes) -> Iterator[dict[str, Any]]:
    schema, batches = _batches(handle, data)
    encoded = set()
    if (schema.metadata or {}).get(b"weir.key") == b"canonical":
        encoded.add(_KEY_COLUMN)
    if (schema.metadata or {}).get(b"weir.kind") == b"timers":
        encoded.add(_NAMESPACE_COLUMN)
    for batch in batches:
        for row in batch.to_pylist():
            yield {k: _key(v) if k in encoded and v is not None else v for k, v in row.items()}


def _key(encoded: bytes) -> Any:
    if encoded[:1] == bytes([TAG_ENUM]):  # As module, class, member: its class is not here.
        encoded = bytes([TAG_TUPLE]) + encoded[1:]
    try:
        return decode_key(encoded)
    except WeirError:
        return encoded


def _own_name(handle: StateHandle) -> str:
    """The name that the program gave the state."""
    prefix, dot, name = handle.name.partition(".")
    return name if dot and handle.kind == "keyed" and prefix in ("state", "table") else handle.name


def _by_state(rows: list[StateRow]) -> dict[str, list[StateRow]]:
    by_state: dict[str, list[StateRow]] = {}
    for row in rows:
        by_state.setdefault(row.state, []).append(row)
    return by_state


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        more = "..." if len(value) > _BYTES_SHOWN_MAX else ""
        return f"<{len(value)} bytes {value[:_BYTES_SHOWN_MAX].hex()}{more}>"
    return str(value) if isinstance(value, str | int | float) else repr(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _print(
    screen: Console,
    checkpoint: LocatedCheckpoint,
    pieces: dict[SubtaskId, tuple[Piece, ...]],
    *,
    read_files: bool,
) -> None:
    manifest = checkpoint.manifest
    took = formats.duration(manifest.completed_ms - manifest.triggered_ms)
    parent = "none" if manifest.parent_id is None else str(manifest.parent_id)
    screen.print(
        f"{_title(checkpoint)} of {manifest.job_name} ({manifest.job_id})",
        style="bold",
        soft_wrap=True,
    )
    if manifest.location is not None:
        screen.print(_whereabouts(checkpoint), soft_wrap=True)
    screen.print(
        f"{manifest.kind}, attempt {manifest.attempt}, parent {parent}; completed "
        f"{formats.moment(manifest.completed_ms)} in {took}; {formats.size(manifest.state_size)}",
        soft_wrap=True,
    )
    versions = manifest.versions
    screen.print(
        f"Weir {versions.weir}, Python {versions.python}, pyarrow {versions.pyarrow}",
        soft_wrap=True,
    )
    names = {op.uid: op for op in manifest.operators}
    acks = sorted(manifest.acks, key=lambda ack: ack.subtask)
    for uid, op in names.items():
        screen.print()
        screen.print(
            f"{uid}  {op.name}, parallelism {op.parallelism}, max parallelism {op.max_parallelism}",
            style="bold",
            soft_wrap=True,
        )
        mine = [ack for ack in acks if ack.subtask.operator == uid]
        _print_timings(screen, mine)
        _print_channels(screen, mine)
        _print_pieces(screen, [(a.subtask, p) for a in mine for p in pieces[a.subtask]], read_files)


def _title(checkpoint: LocatedCheckpoint) -> str:
    number = f"checkpoint {checkpoint.manifest.checkpoint_id}"
    if checkpoint.manifest.location is None:
        return number
    return f"savepoint {name_of(checkpoint.uri)}, {number}"


def _whereabouts(checkpoint: LocatedCheckpoint) -> str:
    taken_in = checkpoint.manifest.location
    if taken_in is None or taken_in == checkpoint.uri:
        return f"in {checkpoint.uri}"
    return f"in {checkpoint.uri}; it was taken in {taken_in}"


def _print_timings(screen: Console, acks: list[OperatorAck]) -> None:
    columns = ("start delay", "alignment", "sync", "async", "in flight", "state")
    grid = table("subtask", *columns, right=columns)
    for ack in acks:
        metrics = ack.metrics
        grid.add_row(
            str(ack.subtask),
            formats.duration(metrics.start_delay_ms),
            formats.duration(metrics.alignment_ms) + _unaligned(metrics),
            formats.duration(metrics.sync_ms),
            formats.duration(metrics.async_ms),
            formats.size(metrics.bytes_persisted_in_flight) + _at_outputs(metrics),
            formats.size(metrics.state_size),
        )
    screen.print(grid)


def _unaligned(metrics: SnapshotMetrics) -> str:
    if not metrics.unaligned:
        return ""
    if metrics.switched is None or metrics.switched_ms is None:
        return " (unaligned)"
    where = {Switch.INPUT: "at input", Switch.OUTPUT: "at output", Switch.UPSTREAM: "upstream"}
    after = formats.duration(metrics.switched_ms)
    return f" (unaligned after {after}, timed out {where[metrics.switched]})"


def _at_outputs(metrics: SnapshotMetrics) -> str:
    size = metrics.bytes_persisted_at_outputs
    return f" ({formats.size(size)} at outputs)" if size else ""


def _print_channels(screen: Console, acks: list[OperatorAck]) -> None:
    channels = [
        (ack.subtask, gate, index)
        for ack in acks
        for gate in ack.metrics.gates
        for index in range(len(gate.upstream))
    ]
    if not channels:
        return
    columns = ("gate", "barrier after", "blocked", "bytes in alignment", "in flight")
    grid = table("subtask", "channel from", *columns, right=columns)
    for subtask, gate, index in channels:
        arrived = gate.arrived_ms[index]
        grid.add_row(
            str(subtask),
            gate.upstream[index],
            str(gate.gate_index),
            "ended" if arrived is None else formats.duration(arrived),
            formats.duration(gate.blocked_ms[index]),
            formats.size(gate.bytes_during[index]),
            formats.size(gate.in_flight[index] if gate.in_flight else 0),
        )
    screen.print(grid)


def _print_pieces(screen: Console, pieces: list[tuple[SubtaskId, Piece]], read_files: bool) -> None:
    if not pieces:
        screen.print("no state")
        return
    columns = ("rows", "size")
    grid = table("subtask", "state", "kind", "key groups", *columns, "where", right=columns)
    if read_files:
        grid.add_column("whole")
    for subtask, piece in pieces:
        handle = piece.handle
        groups = handle.key_groups
        cells = [
            str(subtask),
            _own_name(handle),
            handle.kind if handle.mode is None else f"{handle.kind}, {handle.mode}",
            "-" if groups is None else f"{groups.first}-{groups.last}",
            "-" if piece.rows is None else f"{piece.rows:,}",
            formats.size(handle.size),
            handle.path or "inline",
        ]
        whole = [] if not read_files else ["no" if piece.problem else "yes"]
        grid.add_row(*cells, *whole, style="bold red" if piece.problem else "")
    screen.print(grid)
    for subtask, piece in pieces:
        if piece.problem:
            screen.print(f"{subtask}: {piece.problem}", style="bold red", soft_wrap=True)


def _as_json(
    checkpoint: LocatedCheckpoint, pieces: dict[SubtaskId, tuple[Piece, ...]], *, read_files: bool
) -> dict[str, Any]:
    manifest = checkpoint.manifest
    return {
        "uri": checkpoint.uri,
        "job_id": manifest.job_id,
        "job_name": manifest.job_name,
        "checkpoint_id": manifest.checkpoint_id,
        **manifest_as_json(manifest),
        "subtasks": [
            {
                "operator": ack.subtask.operator,
                "index": ack.subtask.index,
                "start_delay_ms": ack.metrics.start_delay_ms,
                "alignment_ms": ack.metrics.alignment_ms,
                "sync_ms": ack.metrics.sync_ms,
                "async_ms": ack.metrics.async_ms,
                "unaligned": ack.metrics.unaligned,
                "switched": ack.metrics.switched,
                "switched_ms": ack.metrics.switched_ms,
                "bytes_persisted_in_flight": ack.metrics.bytes_persisted_in_flight,
                "bytes_persisted_at_outputs": ack.metrics.bytes_persisted_at_outputs,
                "state_size": ack.metrics.state_size,
                "channels": [c for gate in ack.metrics.gates for c in _channels_as_json(gate)],
                "state": [
                    _piece_as_json(piece, read_files=read_files) for piece in pieces[ack.subtask]
                ],
            }
            for ack in sorted(manifest.acks, key=lambda ack: ack.subtask)
        ],
    }


def _channels_as_json(gate: GateAlignment) -> list[dict[str, Any]]:
    return [
        {
            "gate_index": gate.gate_index,
            "upstream": upstream,
            "arrived_ms": arrived,
            "blocked_ms": blocked,
            "bytes_during": count,
            "in_flight": in_flight,
        }
        for upstream, arrived, blocked, count, in_flight in zip(
            gate.upstream,
            gate.arrived_ms,
            gate.blocked_ms,
            gate.bytes_during,
            gate.in_flight or (0,) * len(gate.upstream),
            strict=True,
        )
    ]


def _piece_as_json(piece: Piece, *, read_files: bool) -> dict[str, Any]:
    handle = piece.handle
    groups = handle.key_groups
    return {
        "name": _own_name(handle),
        "kind": handle.kind,
        "mode": handle.mode,
        "rows": piece.rows,
        "size": handle.size,
        "checksum": handle.checksum,
        "path": handle.path,
        "key_groups": None if groups is None else [groups.first, groups.last],
        "whole": piece.problem is None if read_files else None,
        "problem": piece.problem,
    }


def _row_as_json(row: StateRow) -> dict[str, Any]:
    return {
        "operator": row.subtask.operator,
        "index": row.subtask.index,
        "state": row.state,
        "values": {key: _plain(value) for key, value in row.values.items()},
    }


def _plain(value: Any) -> Any:
    """The value with bytes as ``{"base64": ...}``, at any depth; JSON has none."""
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value
