"""Jobs whose checkpoints are aligned or unaligned, and what the heard events say of those.

A slow operator behind an exchange keeps records in its channels, so that barriers have something to
wait for, or to overtake.
"""

import os
import signal
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.spark.functions import key_of
from tests.spark.harness import Recorder, change, environment
from weir.ids import CheckpointId
from weir.protocol.events import CheckpointSettled, CheckpointTriggered, JobEvent, WorkerStarted
from weir.protocol.messages import Acknowledged


def prepare(
    root: Path,
    timeout_ms: int | None,
    parallelism: int = 2,
    interval_ms: int = 150,
    settings: Mapping[str, str] | None = None,
) -> Any:
    """An environment whose checkpoints are unaligned after this time; None: never."""
    own = {"execution.checkpointing.unaligned.enabled": str(timeout_ms is not None).lower()}
    if timeout_ms is not None:
        own["execution.checkpointing.aligned-checkpoint-timeout"] = f"{timeout_ms} ms"
    env = environment(root / "checkpoints", interval_ms, parallelism, own | dict(settings or {}))
    change(env, max_parallelism=32)
    return env


@dataclass(slots=True)
class KillerUnderWay:
    """Kills a worker at the first completed checkpoint that holds records under way."""

    after: int = 1  # At this checkpoint of that kind.
    index: int = 0
    pids: dict[int, int] = field(default_factory=dict)
    stored: Counter[CheckpointId] = field(default_factory=Counter)
    completed: int = 0
    killed_at: CheckpointId | None = None

    def __call__(self, event: JobEvent) -> None:
        match event:
            case WorkerStarted(_, _, slot_index, pid):
                self.pids[slot_index] = pid
            case Acknowledged(checkpoint_id=checkpoint_id, operators=operators):
                self.stored[checkpoint_id] += sum(
                    one.metrics.bytes_persisted_in_flight for one in operators
                )
            case CheckpointSettled(checkpoint_id=checkpoint_id, failure=None):
                self.completed += self.stored[checkpoint_id] > 0
                if self.completed == self.after and self.killed_at is None:
                    self.killed_at = checkpoint_id
                    os.kill(self.pids[self.index], signal.SIGKILL)


def completed(heard: Recorder) -> list[CheckpointId]:
    """The completed checkpoints, in the order of their completion."""
    return [e.checkpoint_id for e in heard.events_of(CheckpointSettled) if e.failure is None]


def under_way(heard: Recorder) -> dict[CheckpointId, int]:
    """Bytes of records under way in each completed checkpoint."""
    sizes: dict[CheckpointId, int] = defaultdict(int)
    ids = set(completed(heard))
    for ack in heard.events_of(Acknowledged):
        if ack.checkpoint_id in ids:
            sizes[ack.checkpoint_id] += sum(
                one.metrics.bytes_persisted_in_flight for one in ack.operators
            )
    return sizes


def stored_ends(heard: Recorder, checkpoint_id: CheckpointId) -> set[str]:
    """The ends of channels at which a checkpoint's records were under way: "in", "out" or both."""
    return {
        handle.name.partition("/")[0]
        for ack in heard.events_of(Acknowledged)
        if ack.checkpoint_id == checkpoint_id
        for one in ack.operators
        for handle in one.handles
        if handle.kind == "channel"
    }


def most_at_a_time(heard: Recorder) -> int:
    """The highest number of checkpoints that were triggered and not settled yet."""
    pending: set[CheckpointId] = set()
    most = 0
    for event in heard.events:
        if isinstance(event, CheckpointTriggered):
            pending.add(event.checkpoint_id)
        elif isinstance(event, CheckpointSettled):
            pending.discard(event.checkpoint_id)
        most = max(most, len(pending))
    return most


def latest(root: Path) -> str:
    """The newest checkpoint of the only job, as a restore names it."""
    paths = [path.parent for path in (root / "checkpoints").glob("*/chk-*/manifest")]
    return str(max(paths, key=lambda path: int(path.name.removeprefix("chk-"))))


def numbers_with_gaps(rows: Iterable[Any]) -> dict[int, list[int]]:
    """Keys whose records' numbers are not 1, 2, 3 and so on, in whichever order they came."""
    numbers: dict[int, list[int]] = defaultdict(list)
    for row in rows:
        numbers[key_of(row)].append(row[4])
    return {
        key: sorted(received)
        for key, received in numbers.items()
        if sorted(received) != list(range(1, len(received) + 1))
    }
