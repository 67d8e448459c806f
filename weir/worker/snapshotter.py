"""The asynchronous part of a snapshot: write the frozen state, then acknowledge.

The loop freezes and hands over; the snapshot thread writes, one snapshot after the other; the
outcome comes back to the loop, which acknowledges or declines. A snapshot that was cancelled
meanwhile gets neither: the coordinator has aborted its checkpoint already. The snapshot thread
deletes the files of a cancelled or failed snapshot. A checkpoint without any state has nothing to
write: the loop acknowledges it at once.

A snapshot that is *open* completes later than its freeze: records under way are added to it as they
come, and it is acknowledged when it was completed and all of them are written.
"""

import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

from weir.common.clock import Clock
from weir.errors import StorageError
from weir.fault_points import reach
from weir.graph.exchanges import output_receiver
from weir.ids import AttemptNumber, CheckpointId, StateHandle, SubtaskId
from weir.protocol.frozen import replace
from weir.protocol.lifecycle import FailureReason
from weir.protocol.messages import Acknowledged, Declined, OperatorAck, SnapshotMetrics
from weir.state.store import SnapshotPart
from weir.storage.writer import SnapshotCancelled, StoredSnapshotWriter, WriterFactory
from weir.worker.ports import Call, Inbox, Reporter, SnapshotThread

Written = TypeVar("Written")
_NO_ALIGNMENT: Mapping[str, object] = {"gates": (), "bytes_processed_during_alignment": 0}


@dataclass(frozen=True, slots=True)
class OperatorFreeze:
    """The state that one operator subtask froze for a checkpoint."""

    subtask: SubtaskId
    parts: Sequence[SnapshotPart]


@dataclass(slots=True)
class _Running:
    """One snapshot.

    All but ``writers``, ``writing_ns``, ``written_sizes`` and ``cancelled`` is the loop's own.
    """

    chain: SubtaskId
    checkpoint_id: CheckpointId
    target: str | None
    frozen: Sequence[OperatorFreeze]
    metrics: SnapshotMetrics
    sync_ns: int
    started_ns: int
    is_open: bool  # More records under way may be added.
    cancelled: bool = False
    has_failed: bool = False
    under_way: int = 0  # Works that the thread has not done yet.
    unwritten_bytes: int = 0
    states: Sequence[tuple[StateHandle, ...]] = ()  # By operator.
    written_sizes: list[int] = field(default_factory=list)  # Of each: bytes that are new.
    writing_ns: list[int] = field(default_factory=list)  # Of each of these.
    channels: list[StateHandle] = field(default_factory=list)
    is_released: bool = False
    writers: list[StoredSnapshotWriter] = field(default_factory=list)

    def release(self) -> None:
        """End the sharing of state with the operators; once, on the loop."""
        if not self.is_released:
            self.is_released = True
            for freeze in self.frozen:
                for part in freeze.parts:
                    part.release()

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
        *,
        is_open: bool = False,
    ) -> None:
        """Write a chain's frozen state and acknowledge it; returns at once.

        Args:
            target: The directory of a savepoint, from its barrier; None: the job's own.
            is_open: Acknowledge only after ``complete``; until then ``add`` may be called.
        """
        is_empty = target is None and not any(freeze.parts for freeze in frozen)
        if is_empty and not is_open:
            self._acknowledge_empty(chain, checkpoint_id, frozen, metrics, sync_ns)
            return
        running = self._running[chain, checkpoint_id] = _Running(
            chain, checkpoint_id, target, frozen, metrics, sync_ns,
            started_ns=self._clock.monotonic_ns(), is_open=is_open,
        )  # fmt: skip

        def write() -> list[tuple[StateHandle, ...]]:
            reach("snapshot.write", subtask=str(chain), id=checkpoint_id)
            return [self._timed(freeze, running) for freeze in frozen]

        def arrived(states: list[tuple[StateHandle, ...]]) -> None:
            running.states = states
            running.release()  # Records under way may be long in coming.

        if is_empty:  # Another thread, or the inbox, would cost more than all else.
            running.under_way += 1
            self._arrive(running, self._outcome(running, write), arrived)
        else:  # Of a savepoint too: whether its directory is free is a look at the storage.
            self._thread.submit(self._work(running, write, arrived))

    def add(
        self, chain: SubtaskId, checkpoint_id: CheckpointId, part: SnapshotPart, size: int
    ) -> None:
        """Add records under way, of about ``size`` bytes, to an open snapshot of a chain's head.

        Nothing is done for one that was cancelled or has failed.
        """
        running = self._running.get((chain, checkpoint_id))
        if running is None or not running.is_open:
            return
        running.unwritten_bytes += size

        def write() -> tuple[StateHandle, ...]:
            reach("channels.write", subtask=str(chain), id=checkpoint_id)
            return self._write(chain, [part], running)

        def arrived(handles: tuple[StateHandle, ...]) -> None:
            running.unwritten_bytes -= size
            running.channels += handles

        self._thread.submit(self._work(running, write, arrived))

    def unwritten_bytes(self, chain: SubtaskId, checkpoint_id: CheckpointId) -> int:
        """The size of the records that were added to a snapshot and wait to be written."""
        running = self._running.get((chain, checkpoint_id))
        return 0 if running is None else running.unwritten_bytes

    def complete(
        self, chain: SubtaskId, checkpoint_id: CheckpointId, metrics: SnapshotMetrics
    ) -> None:
        """Nothing more is added to an open snapshot, which has these figures now."""
        running = self._running.get((chain, checkpoint_id))
        if running is not None and running.is_open:
            running.metrics = metrics
            self._close(running)

    def fail(self, chain: SubtaskId, checkpoint_id: CheckpointId, error: Exception) -> None:
        """Decline the checkpoint: an open snapshot cannot be completed."""
        running = self._running.get((chain, checkpoint_id))
        if running is not None and running.is_open and not running.cancelled:
            self._fail(running, error)
            self._close(running)

    def cancel(self, chain: SubtaskId, checkpoint_id: CheckpointId) -> None:
        """Stop writing this snapshot, if it is being written, and do not acknowledge it."""
        running = self._running.get((chain, checkpoint_id))
        if running is not None:
            running.cancelled = True
            if running.is_open:
                self._close(running)

    def _work(
        self, running: _Running, write: Callable[[], Written], arrived: Callable[[Written], None]
    ) -> Callable[[], None]:
        """The work of writing something, whose outcome the loop settles."""
        running.under_way += 1

        def work() -> None:
            outcome = self._outcome(running, write)
            self._inbox.put(Call(lambda: self._arrive(running, outcome, arrived)))

        return work

    def _outcome(self, running: _Running, write: Callable[[], Written]) -> Written | Exception:
        try:
            return write()
        except Exception as error:
            running.discard()
            return error

    def _arrive(
        self,
        running: _Running,
        outcome: Written | Exception,
        arrived: Callable[[Written], None],
    ) -> None:
        """The outcome of a work has come back to the loop."""
        running.under_way -= 1
        if not isinstance(outcome, Exception):
            arrived(outcome)
        elif not running.cancelled:
            self._fail(running, outcome)
            running.is_open = False
        self._settle(running)

    def _close(self, running: _Running) -> None:
        running.is_open = False
        self._settle(running)

    def _fail(self, running: _Running, error: Exception) -> None:
        if not running.has_failed:
            running.has_failed = True
            self._decline(running.chain, running.checkpoint_id, error)

    def _settle(self, running: _Running) -> None:
        """Acknowledge or drop the snapshot, unless something of it is still to come."""
        if running.is_open or running.under_way:
            return
        key = running.chain, running.checkpoint_id
        if self._running.get(key) is not running:
            return
        del self._running[key]
        running.release()
        if running.cancelled or running.has_failed:
            if any(writer.has_files for writer in running.writers):
                self._thread.submit(running.discard)
            return
        self._acknowledge(running)

    def _acknowledge_empty(
        self,
        chain: SubtaskId,
        checkpoint_id: CheckpointId,
        frozen: Sequence[OperatorFreeze],
        metrics: SnapshotMetrics,
        sync_ns: int,
    ) -> None:
        """Acknowledge a snapshot without state, to which nothing is added, as most are."""
        of_head = replace(metrics, sync_ms=sync_ns / 1e6)
        acks = [OperatorAck(frozen[0].subtask, (), of_head)]
        for freeze in frozen[1:]:
            acks.append(OperatorAck(freeze.subtask, (), replace(of_head, **_NO_ALIGNMENT)))
        writing_ms = (0.0,) * len(acks)
        self._reporter.report(
            Acknowledged(self._attempt, checkpoint_id, chain, tuple(acks), writing_ms)
        )

    def _acknowledge(self, running: _Running) -> None:
        async_ms = (self._clock.monotonic_ns() - running.started_ns) / 1e6
        acks = []
        each = zip(running.frozen, running.states, running.written_sizes, strict=True)
        for freeze, states, written_size in each:
            # The alignment and what was under way belong to the chain's head alone.
            is_head = freeze.subtask == running.chain
            channels = tuple(running.channels) if is_head else ()
            of_alignment = {} if is_head else _NO_ALIGNMENT
            metrics = replace(
                running.metrics,
                **of_alignment,
                sync_ms=running.sync_ns / 1e6,
                async_ms=async_ms,
                bytes_persisted_in_flight=_size(channels),
                bytes_persisted_at_outputs=_size(
                    [handle for handle in channels if output_receiver(handle.name) is not None]
                ),
                state_size=_size(states),
                written_size=written_size,
            )
            acks.append(OperatorAck(freeze.subtask, (*states, *channels), metrics))
        writing_ms = tuple(ns / 1e6 for ns in running.writing_ns)
        self._reporter.report(
            Acknowledged(
                self._attempt, running.checkpoint_id, running.chain, tuple(acks), writing_ms
            )
        )

    def _timed(self, freeze: OperatorFreeze, running: _Running) -> tuple[StateHandle, ...]:
        """Write one operator's part, and note for how long."""
        started = self._clock.monotonic_ns()
        writers = len(running.writers)
        handles = self._write(freeze.subtask, freeze.parts, running)
        running.writing_ns.append(self._clock.monotonic_ns() - started)
        own = running.writers[writers:]
        running.written_sizes.append(
            sum(handle.size for handle in handles if any(one.is_new(handle) for one in own))
        )
        return handles

    def _write(
        self, subtask: SubtaskId, parts: Sequence[SnapshotPart], running: _Running
    ) -> tuple[StateHandle, ...]:
        if not parts and running.target is None:
            return ()
        writer = self._writers(
            running.checkpoint_id, subtask, lambda: running.cancelled, running.target
        )
        running.writers.append(writer)
        handles: list[StateHandle] = []
        for part in parts:
            if running.cancelled:
                raise SnapshotCancelled
            handles += part.write(writer)
        writer.note(handles)
        return tuple(handles)

    def _decline(self, chain: SubtaskId, checkpoint_id: CheckpointId, error: Exception) -> None:
        cause = "".join(traceback.format_exception(error))
        reason = FailureReason.CHECKPOINT_ASYNC_EXCEPTION
        self._reporter.report(Declined(self._attempt, checkpoint_id, chain, reason, cause))


def _size(handles: Sequence[StateHandle]) -> int:
    return sum([handle.size for handle in handles])
