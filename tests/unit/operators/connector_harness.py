"""One source or sink operator without a job around it: its state, its output, its clock."""

import json
from collections.abc import Callable
from typing import Any

from weir.common.batch import Batch
from weir.ids import AttemptNumber, CheckpointId, JobId, KeyGroupRange, OperatorId, SubtaskId
from weir.operators.base import Operator, OperatorContext, Poll, SourceOperator
from weir.protocol.lineage import UNKNOWN, Lineage

Snapshot = dict[str, Any]  # List states by name, as JSON gives them back.


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


class ListState:
    def __init__(self, items: list[Any], mode: str) -> None:
        self.items = items
        self.mode = mode

    def get(self) -> list[Any]:
        return list(self.items)

    def update(self, items: list[Any]) -> None:
        self.items = list(items)


class State:
    """List states only; restored ones come from the snapshots of all former subtasks."""

    def __init__(self, restored: list[Snapshot] | None, index: int) -> None:
        self.restored = restored is not None
        self.lists: dict[str, ListState] = {}
        self._snapshots = restored or []
        self._index = index

    def list_state(self, name: str, mode: str = "split") -> ListState:
        if name not in self.lists:
            snapshots = self._snapshots
            if mode == "split":  # Parallelism does not change here: everybody gets their own back.
                snapshots = snapshots[self._index : self._index + 1]
            self.lists[name] = ListState([item for s in snapshots for item in s[name]], mode)
        return self.lists[name]


class Collected:
    """The output of an operator."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []

    def emit(self, batch: Batch) -> None:
        self.batches.append(batch)

    def emit_side(self, tag: str, batch: Batch) -> None:
        raise AssertionError("no side output expected")

    def emit_watermark(self, timestamp_ms: int) -> None:
        raise AssertionError("no watermark expected")

    def emit_idle(self) -> None:
        raise AssertionError("no idleness expected")

    @property
    def rows(self) -> list[Any]:
        return [row for batch in self.batches for row in batch.rows]


class NoWriter:
    """Nothing in these operators stores state files of its own."""

    def put_items(self, name: str, items: list[Any], mode: str = "split") -> Any:
        raise AssertionError("list state is written by the state store")

    def cancelled(self) -> bool:
        return False


class Harness:
    """One subtask of an operator in one attempt."""

    def __init__(
        self,
        factory: Callable[[], Operator],
        *,
        restored: list[Snapshot] | None = None,
        job: str = "job",
        attempt: int = 1,
        index: int = 0,
        parallelism: int = 1,
        uid: str = "op",
        checkpointing: bool = True,
        lineage: Lineage = UNKNOWN,
        rewinds_output: bool = True,
        output: Collected | None = None,
        adopts: str | None = None,
        allows_pickles: bool = False,
    ) -> None:
        self.operator = factory()
        self.clock = ManualClock()
        self.output = output or Collected()
        self.state = State(restored, index)
        self.delivered: list[tuple[int, Any]] = []
        self.operator.open(
            OperatorContext(
                job_id=JobId(job),
                attempt=AttemptNumber(attempt),
                subtask=SubtaskId(OperatorId(uid), index),
                name=uid,
                parallelism=parallelism,
                max_parallelism=128,
                key_groups=KeyGroupRange(0, 127),
                output=self.output,
                state=self.state,  # type: ignore[arg-type]
                clock=self.clock,
                parameters={},
                checkpointing=checkpointing,
                deliver=lambda checkpoint_id, rows: self.delivered.append((checkpoint_id, rows)),
                lineage=lineage,
                rewinds_output=rewinds_output,
                adopts=None if adopts is None else JobId(adopts),
                allows_pickles=allows_pickles,
            )
        )

    def barrier(self, checkpoint_id: int, *, write: bool = True) -> Snapshot:
        """A snapshot; with ``write=False`` its asynchronous part was cancelled before it began."""
        self.operator.prepare_snapshot(CheckpointId(checkpoint_id))
        snapshot: Snapshot = json.loads(
            json.dumps({name: state.items for name, state in self.state.lists.items()})
        )
        for part in self.operator.snapshot(CheckpointId(checkpoint_id)):
            if write:
                assert list(part.write(NoWriter())) == []  # type: ignore[arg-type]
        return snapshot

    def completed(self, checkpoint_id: int) -> None:
        self.operator.on_checkpoint_completed(CheckpointId(checkpoint_id))

    def checkpoint(self, checkpoint_id: int) -> Snapshot:
        """A snapshot whose checkpoint completed."""
        snapshot = self.barrier(checkpoint_id)
        self.completed(checkpoint_id)
        return snapshot

    def send(self, batch: Batch) -> None:
        self.operator.on_batch(batch, 0)

    def poll(self, records_max: int = 1_000) -> Poll:
        assert isinstance(self.operator, SourceOperator)
        return self.operator.poll(records_max)

    def drain(self, records_max: int = 1_000) -> list[Any]:
        """Everything a source has, without waiting."""
        while self.poll(records_max) is Poll.MORE:
            pass
        return self.output.rows
