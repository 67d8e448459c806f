"""One operator on real state without a job around it: what it emits, its clock, its snapshots."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from weir.common.batch import Batch
from weir.common.clock import Clock
from weir.common.typeinfo import TypeInformation
from weir.graph.key_groups import key_group_range
from weir.ids import AttemptNumber, CheckpointId, JobId, OperatorId, StateHandle, SubtaskId
from weir.operators.bad_records import ErrorPolicy
from weir.operators.base import Operator, OperatorContext
from weir.protocol.deployment import RestoredHandle
from weir.protocol.restore import OperatorSnapshot, RestoreTarget, plan_restore
from weir.state.store import OperatorStateStore, SnapshotPart

MAX_PARALLELISM = 128


class ManualClock:
    """Stands still until it is told."""

    def __init__(self) -> None:
        self.ms = 1_000_000

    def now_ms(self) -> int:
        return self.ms

    def monotonic_ns(self) -> int:
        return self.ms * 1_000_000

    def thread_ns(self) -> int:
        return self.ms * 1_000_000


class Events:
    """Everything an operator emitted, in order: rows, ``("side", tag, rows)``, watermarks, idle.

    Batches are cut at the watermarks between their records, as for an operator behind.
    """

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.batches: list[Batch] = []
        self.whole: list[Batch] = []  # Before they were cut.

    def emit(self, batch: Batch) -> None:
        self.whole.append(batch)
        for records, watermark_ms in batch.cut():
            if len(records):
                self.batches.append(records)
                self.events.append(("rows", list(records.rows)))
            if watermark_ms is not None:
                self.emit_watermark(watermark_ms)

    def emit_side(self, tag: str, batch: Batch) -> None:
        for records, watermark_ms in batch.cut():
            if len(records):
                self.events.append(("side", tag, list(records.rows)))
            if watermark_ms is not None:
                self.events.append(("side watermark", tag, watermark_ms))

    def emit_watermark(self, timestamp_ms: int) -> None:
        self.events.append(("watermark", timestamp_ms))

    def emit_idle(self) -> None:
        self.events.append(("idle",))


class InlineWriter:
    """Keeps all state in the handles."""

    inline_max = None
    shares = False

    def put(self, kind: str, name: str, data: bytes, **about: Any) -> StateHandle:
        return StateHandle(kind=kind, name=name, size=len(data), checksum="", inline=data, **about)

    def cancelled(self) -> bool:
        return False


def assigned(
    handles: Mapping[int, tuple[StateHandle, ...]], before: int, index: int, parallelism: int
) -> tuple[RestoredHandle, ...]:
    """The pieces of an operator's state that a subtask reads after a change of parallelism."""
    uid = OperatorId("op")
    plan = plan_restore(
        [OperatorSnapshot(uid, before, MAX_PARALLELISM, handles)],
        [RestoreTarget(uid, parallelism)],
    )
    return next((r.handles for r in plan.restores if r.subtask.index == index), ())


class Harness:
    """One subtask of an operator."""

    def __init__(
        self,
        factory: Callable[[], Operator],
        *,
        keyed: bool = True,
        index: int = 0,
        parallelism: int = 1,
        restored: Iterable[StateHandle] = (),
        parameters: dict[str, str] | None = None,
        clock: Clock | None = None,
        on_error: ErrorPolicy | None = None,
        rescaled: tuple[Mapping[int, tuple[StateHandle, ...]], int] | None = None,
    ) -> None:
        """``rescaled`` has all handles of an operator by subtask, and its parallelism then."""
        groups = key_group_range(MAX_PARALLELISM, parallelism, index)
        self.operator = factory()
        self.clock = ManualClock()
        self.output = Events()
        self.state = OperatorStateStore(
            groups,
            MAX_PARALLELISM,
            keyed=keyed,
            restored=[
                RestoredHandle(handle, handle.key_groups and groups.intersection(handle.key_groups))
                for handle in restored
                if handle.key_groups is None or groups.intersection(handle.key_groups)
            ]
            if rescaled is None
            else assigned(*rescaled, index, parallelism),
            read=lambda handle: handle.inline or b"",
        )
        self.ctx = OperatorContext(
            job_id=JobId("job"),
            attempt=AttemptNumber(1),
            subtask=SubtaskId(OperatorId("op"), index),
            name="op",
            parallelism=parallelism,
            max_parallelism=MAX_PARALLELISM,
            key_groups=groups,
            output=self.output,
            state=self.state,
            clock=clock or self.clock,
            parameters=parameters or {},
            checkpointing=True,
            deliver=lambda checkpoint_id, rows: None,
            on_error=on_error,
        )
        self.operator.open(self.ctx)

    def rows(
        self,
        rows: Sequence[Any],
        times: Sequence[int] | None = None,
        type: TypeInformation | None = None,
    ) -> list[Any]:
        """Process one slice of rows; the rows that came out of it."""
        timestamps = None if times is None else np.array(times, np.int64)
        return self._taken(Batch.of_rows(list(rows), type, timestamps))

    def columns(self, times: Sequence[int] | None = None, **columns: Any) -> list[Any]:
        """Process one slice of columns; the rows that came out of it, as tuples."""
        timestamps = None if times is None else np.array(times, np.int64)
        batch = pa.RecordBatch.from_pydict(columns)
        return [tuple(row) for row in self._taken(Batch.of_columns(batch, timestamps=timestamps))]

    def watermark(self, timestamp_ms: int, *, records_max: int = 1_000) -> list[Any]:
        """Pass a watermark and let everything fire; what came out, watermarks among it."""
        before = len(self.output.events)
        self.operator.on_watermark(timestamp_ms)
        self.settle(records_max)
        return self.output.events[before:]

    def clock_to(self, now_ms: int) -> list[Any]:
        """Let the wall clock reach a time; what came out."""
        before = len(self.output.events)
        self.clock.ms = now_ms
        due = self.operator.next_timer_ms()
        if due is not None and due <= now_ms:
            self.operator.on_processing_time(now_ms)
        self.settle()
        return self.output.events[before:]

    def settle(self, records_max: int = 1_000) -> None:
        while self.operator.has_pending:
            self.operator.advance(records_max)

    def snapshot(self) -> list[StateHandle]:
        """All state, as a checkpoint would keep it."""
        return self.written(self.freeze())

    def freeze(self) -> list[SnapshotPart]:
        """All state as it is now, to be written later."""
        checkpoint_id = CheckpointId(1)
        self.operator.prepare_snapshot(checkpoint_id)
        return self.state.freeze(checkpoint_id)

    def written(self, parts: Sequence[SnapshotPart]) -> list[StateHandle]:
        """Frozen state, written and released."""
        handles = [handle for part in parts for handle in part.write(InlineWriter())]  # type: ignore[arg-type]
        for part in parts:
            part.release()
        return handles

    def _taken(self, batch: Batch) -> list[Any]:
        before = len(self.output.batches)
        self.operator.on_batch(batch, 0)
        return [row for made in self.output.batches[before:] for row in made.rows]
