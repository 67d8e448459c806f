"""Acknowledgements and alignments, written by COPY: thousands of rows in one statement.

Inserting them as Django does costs five times as much, most of it for adapting each value.
Their uniqueness is the coordinator's: it accepts each acknowledgement once, under the job's lock.
"""

import csv
import io
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from django.db import connection, models

from checkpoints.models import GateAlignment, SubtaskAck
from weir.errors import ProtocolError
from weir.ids import SubtaskId
from weir.protocol import messages
from weir.protocol.messages import OperatorAck
from weir.wire.values import to_json

_ACK_COLUMNS = (
    "checkpoint_id",
    "operator",
    "index",
    "chain",
    "acknowledged_at",
    "start_delay_ms",
    "alignment_ms",
    "sync_ms",
    "async_ms",
    "bytes_during_alignment",
    "in_flight_bytes",
    "in_flight_output_bytes",
    "state_bytes",
    "written_bytes",
    "unaligned",
    "switched",
    "switched_ms",
    "records",
    "writing_ms",
    "handles",
)
_GATE_COLUMNS = (
    "checkpoint_id",
    "operator",
    "index",
    "gate",
    "upstream",
    "arrived_ms",
    "blocked_ms",
    "bytes_during",
    "in_flight",
)
_NULLABLE = frozenset({"switched_ms", "writing_ms", "in_flight"})
_ESCAPED = str.maketrans({"\\": "\\\\", '"': '\\"'})


class Part(NamedTuple):
    """One operator subtask's acknowledgement."""

    chain: SubtaskId
    ack: OperatorAck
    at: datetime
    writing_ms: float | None = None


class Gate(NamedTuple):
    """One input gate of a receiving subtask."""

    subtask: SubtaskId
    gate: messages.GateAlignment


def insert_acks(parts: Iterable[tuple[int, Part]]) -> None:
    """Insert acknowledgements; each comes with the key of its checkpoint."""
    _copy(SubtaskAck, _ACK_COLUMNS, (_ack(key, part) for key, part in parts))


def insert_gates(gates: Iterable[tuple[int, Gate]]) -> None:
    """Insert alignments; each comes with the key of its checkpoint."""
    _copy(GateAlignment, _GATE_COLUMNS, (_gate(key, gate) for key, gate in gates))


def check(gate: messages.GateAlignment) -> None:
    """Refuse arrays of different lengths, which no row may have.

    Raises:
        ProtocolError: The lengths differ.
    """
    count = len(gate.upstream)
    arrays = (gate.arrived_ms, gate.blocked_ms, gate.bytes_during, gate.in_flight or gate.upstream)
    if any(len(array) != count for array in arrays):
        raise ProtocolError(
            f"gate {gate.gate_index} names {count} channels, but its arrays have other lengths"
        )


def _ack(key: int, part: Part) -> Sequence[Any]:
    chain, ack, at, writing_ms = part
    metrics = ack.metrics
    return (
        key,
        ack.subtask.operator,
        ack.subtask.index,
        chain.operator,
        at.isoformat(),
        metrics.start_delay_ms,
        metrics.alignment_ms,
        metrics.sync_ms,
        metrics.async_ms,
        metrics.bytes_processed_during_alignment,
        metrics.bytes_persisted_in_flight,
        metrics.bytes_persisted_at_outputs,
        metrics.state_size,
        metrics.written_size,
        metrics.unaligned,
        metrics.switched or "",
        metrics.switched_ms,
        metrics.records,
        writing_ms,
        # State that travelled inside the acknowledgement is in the manifest.
        to_json([h for h in ack.handles if h.path is not None]) if ack.handles else "[]",
    )


def _gate(key: int, row: Gate) -> Sequence[Any]:
    subtask, gate = row
    upstream = ",".join(f'"{name.translate(_ESCAPED)}"' for name in gate.upstream)
    arrived = ",".join("NULL" if at is None else repr(at) for at in gate.arrived_ms)
    blocked = ",".join(map(repr, gate.blocked_ms))
    during = ",".join(map(repr, gate.bytes_during))
    return (
        key,
        subtask.operator,
        subtask.index,
        gate.gate_index,
        f"{{{upstream}}}",
        f"{{{arrived}}}",
        f"{{{blocked}}}",
        f"{{{during}}}",
        f"{{{','.join(map(repr, gate.in_flight))}}}" if any(gate.in_flight) else None,
    )


def _copy(model: type[models.Model], columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    text = io.StringIO()
    # Text is quoted, and so never taken for NULL but in those columns that may be: there "" is.
    csv.writer(text, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\n").writerows(rows)
    if not text.tell():
        return
    text.seek(0)
    names = ", ".join(f'"{column}"' for column in columns)
    nullable = ", ".join(f'"{column}"' for column in columns if column in _NULLABLE)
    # Django wraps the errors of its own calls only, and COPY is none of them.
    with connection.cursor() as cursor, connection.wrap_database_errors:
        cursor.copy_expert(
            f'COPY "{model._meta.db_table}" ({names}) FROM STDIN '
            f"WITH (FORMAT csv, FORCE_NULL ({nullable}))",
            text,
        )
