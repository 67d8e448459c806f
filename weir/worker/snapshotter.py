"""The asynchronous part of a snapshot: write the frozen state, then acknowledge.

The loop freezes and hands over; the snapshot thread writes, one snapshot after the other; the
outcome comes back to the loop, which acknowledges or declines. A snapshot that was cancelled
meanwhile gets neither: the coordinator has aborted its checkpoint already. The snapshot thread
deletes the files of a cancelled or failed snapshot. A checkpoint without any state has nothing to
write: its outcome goes to the inbox at once.
"""

import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from weir.common.clock import Clock
from weir.errors import StorageError
from weir.fault_points import reach
from weir.ids import AttemptNumber, CheckpointId, StateHandle, SubtaskId
from weir.protocol.lifecycle import FailureReason
from weir.protocol.messages import Acknowledged, Declined, OperatorAck, SnapshotMetrics
from weir.state.store import SnapshotPart
from weir.storage.writer import SnapshotCancelled, StoredSnapshotWriter, WriterFactory
from weir.worker.ports import Call, Inbox, Reporter, SnapshotThread


@dataclass(frozen=True, slots=True)
class OperatorFreeze:
    """The state that one operator subtask froze for a checkpoint."""

    subtask: SubtaskId
    parts: Sequence[SnapshotPart]


@dataclass(slots=True)
class _Running:
    cancelled: bool = False
    writers: list[StoredSnapshotWriter] = field(default_factory=list)

    def discard(self) -> None:
        """Delete the written files; on the snapshot thread."""
        for writer in self.writers:
            # The driver deletes the attempt's directory of the checkpoint as well.
            with suppress(StorageError):
                writer.discard()


class Snapshotter:
    """Writes snapshots of all subtasks of a worker."""

    def __init__(
        self,
        attempt: AttemptNumber,
        writers: WriterFactory,
        thread: SnapshotThread,
        *,
        inbox: Inbox,
        reporter: Reporter,
        clock: Clock,
    ) -> None:
        self._attempt = attempt
        self._writers = writers
        self._thread = thread
        self._inbox = inbox
        self._reporter = reporter
        self._clock = clock
        self._running: dict[tuple[SubtaskId, CheckpointId], _Running] = {}

    def write(
        self,
        chain: SubtaskId,
        checkpoint_id: CheckpointId,
        frozen: Sequence[OperatorFreeze],
        metrics: SnapshotMetrics,
        sync_ns: int,
        target: str | None = None,
    ) -> None:
        """Write a chain's frozen state and acknowledge it; returns at once.

        ``target`` is the directory of a savepoint, from its barrier; None: the job's own.
        """
        running = self._running[chain, checkpoint_id] = _Running()
        started = self._clock.monotonic_ns()

        def work() -> None:
            outcome: list[tuple[StateHandle, ...]] | Exception
            try:
                reach("snapshot.write", subtask=str(chain), id=checkpoint_id)
                outcome = [self._write(checkpoint_id, target, freeze, running) for freeze in frozen]
            except Exception as error:
                outcome = error
                running.discard()
            self._inbox.put(Call(lambda: settle(outcome)))

        def settle(outcome: list[tuple[StateHandle, ...]] | Exception) -> None:
            del self._running[chain, checkpoint_id]
            for freeze in frozen:
                for part in freeze.parts:
                    part.release()
            if running.cancelled:
                if not isinstance(outcome, Exception):
                    self._thread.submit(running.discard)
                return
            if isinstance(outcome, Exception):
                self._decline(chain, checkpoint_id, outcome)
                return
            async_ms = (self._clock.monotonic_ns() - started) / 1e6
            timed = replace(metrics, sync_ms=sync_ns / 1e6, async_ms=async_ms)
            acks = tuple(
                _ack(freeze.subtask, handles, timed if freeze.subtask == chain else plain(timed))
                for freeze, handles in zip(frozen, outcome, strict=True)
            )
            self._reporter.report(Acknowledged(self._attempt, checkpoint_id, chain, acks))

        def plain(timed: SnapshotMetrics) -> SnapshotMetrics:
            """The alignment belongs to the chain's head alone."""
            return replace(timed, gates=(), bytes_processed_during_alignment=0)

        if target is None and not any(freeze.parts for freeze in frozen):
            work()  # Waking the thread would cost more than all else of such a snapshot.
        else:  # Of a savepoint too: whether its directory is free is a look at the storage.
            self._thread.submit(work)

    def cancel(self, chain: SubtaskId, checkpoint_id: CheckpointId) -> None:
        """Stop writing this snapshot, if it is being written, and do not acknowledge it."""
        running = self._running.get((chain, checkpoint_id))
        if running is not None:
            running.cancelled = True

    def _write(
        self,
        checkpoint_id: CheckpointId,
        target: str | None,
        freeze: OperatorFreeze,
        running: _Running,
    ) -> tuple[StateHandle, ...]:
        writer = self._writers(checkpoint_id, freeze.subtask, lambda: running.cancelled, target)
        running.writers.append(writer)
        handles: list[StateHandle] = []
        for part in freeze.parts:
            if running.cancelled:
                raise SnapshotCancelled
            handles += part.write(writer)
        return tuple(handles)

    def _decline(self, chain: SubtaskId, checkpoint_id: CheckpointId, error: Exception) -> None:
        cause = "".join(traceback.format_exception(error))
        reason = FailureReason.CHECKPOINT_ASYNC_EXCEPTION
        self._reporter.report(Declined(self._attempt, checkpoint_id, chain, reason, cause))


def _ack(
    subtask: SubtaskId, handles: tuple[StateHandle, ...], metrics: SnapshotMetrics
) -> OperatorAck:
    size = sum(handle.size for handle in handles)
    return OperatorAck(subtask, handles, replace(metrics, state_size=size, written_size=size))
