"""The files of a job's checkpoints after their manifest is decided: what is deleted, and in order.

A completed checkpoint ends with its manifest, which is deleted first: without it the other files
are no checkpoint to restore. A driver deletes nothing of a checkpoint that its successor may be
restoring from, so it looks at the fence (``weir.jobmaster.fence``) before. Files that cannot be
deleted stay, and the user is told.

Deletions come one after the other, so that the sweep of what nothing needs
(``weir.output.sweeping``) meets no checkpoint that is half deleted. It comes when all subtasks of
an attempt run, since its sinks have then committed and withdrawn what their checkpoint says; when a
branch was let go; and at the end of the job.

The end of the job is a file too. It is written before the checkpoints are deleted, since a driver
that finds none would start from the beginning.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from weir.common.clock import Clock
from weir.ids import AttemptNumber, CheckpointId, JobId, StateHandle
from weir.jobmaster.counted_io import CountedIo
from weir.jobmaster.fence import Act, Fence
from weir.jobmaster.restore_choice import Claim
from weir.output.needs import plan
from weir.output.output_claims import release_output
from weir.output.sweeping import carry_out, look
from weir.protocol.pending import CompletedCheckpoint
from weir.storage.catalog import OpenStore
from weir.storage.layout import JobLayout, in_job, savepoint_id, writer_of_shared
from weir.storage.manifest import discard_savepoint
from weir.storage.shared_files import discard_attempt, discard_checkpoint
from weir.storage.store import CheckpointStore


class CheckpointFiles:
    """Deletes the files of checkpoints that the job does not need any more; library mode's."""

    def __init__(
        self,
        store: CheckpointStore,
        job_id: JobId,
        *,
        fence: Fence,
        io: CountedIo,
        clock: Clock,
        open_store: OpenStore,
        output: Iterable[str],
        note: Callable[[str], None],
    ) -> None:
        """Prepare.

        Args:
            output: The directories that the job's sinks commit files to.
            note: Receives a text for the user where something stays.
        """
        self._store = store
        self._job_id = job_id
        self._layout = JobLayout(job_id)
        self._fence = fence
        self._io = io
        self._clock = clock
        self._open_store = open_store
        self._output = set(output)
        self._note = note
        self._keeps_all = False  # Completed checkpoints may not be deleted any more.
        self._deletions: deque[tuple[Callable[[], Any], Callable[[Any], None]]] = deque()
        self._is_deleting = False
        self.claim: Claim | None = None  # A savepoint to delete once the job needs it no more.

    # The job's end.

    def record_finished(self, then: Callable[[], None]) -> None:
        """Record that the job finished, then call ``then``; where that fails, all files stay."""

        def done(outcome: Exception | None) -> None:
            if outcome is not None:
                self._keeps_all = True
                self._note(
                    f"the job's checkpoints stay, since its end could not be recorded: {outcome}"
                )
            then()

        attempt = b"%d" % self._fence.attempt
        self._io.run(lambda: self._store.put(self._layout.finished, attempt), done)

    def release_output(self, attempt: AttemptNumber) -> None:
        """Delete the claims of the job's output: of this attempt, and of earlier ones."""

        def done(outcome: Exception | None) -> None:
            if isinstance(outcome, Exception):
                self._note(f"the claims in the job's output stay: {outcome}")

        self._io.run(lambda: release_output(self._output, self._job_id, attempt), done)

    def record_over(self, attempt: AttemptNumber) -> None:
        """Record that no part of the job runs any more, until a driver runs it again."""

        def done(outcome: Exception | None) -> None:
            if isinstance(outcome, Exception):
                self._note(f"the job's end could not be recorded in its storage: {outcome}")

        self._io.run(lambda: self._store.put(self._layout.over(attempt), b""), done)

    # Deletion.

    def discard(
        self,
        completed: CompletedCheckpoint,
        gone: Callable[[], None],
    ) -> None:
        """Delete a completed checkpoint, then call ``gone``; once fenced, it is the successor's.

        Withdrawn output that only the discarded branch could have put back goes as well.
        """
        if self._fence.is_fenced_off or self._keeps_all:
            return
        checkpoint_id = completed.checkpoint_id

        def work() -> None:
            self._fence.check(Act.DISCARD)  # A driver that took over may be restoring from it.
            discard_checkpoint(self._store, self._job_id, checkpoint_id)

        def done(outcome: Exception | None) -> None:
            if outcome is None:
                gone()
                if completed.abandoned_at_ms is not None:
                    self.sweep(may_run=True)
            self._deleted(outcome)

        self._delete(work, done)

    def discard_pending(
        self, checkpoint_id: CheckpointId, attempt: AttemptNumber, target: str | None
    ) -> None:
        """Delete what was written of a checkpoint that came to nothing."""

        def work() -> None:
            if target is not None:
                own = self._open_store(target)
                discard_savepoint(own, self._job_id, checkpoint_id, attempt)
            discard_attempt(self._store, self._job_id, checkpoint_id, attempt)

        self._delete(work, self._deleted)

    def discard_handles(
        self, handles: Iterable[StateHandle], target_of: Callable[[CheckpointId], str | None]
    ) -> None:
        """Delete state that came late; ``target_of``: the directory of a savepoint, if known.

        Shared files stay: most of them are other checkpoints'. A sweep deletes those that are not.
        """
        own: list[str] = []
        beside: list[tuple[str, str]] = []  # (target, path)
        for path in (handle.path for handle in handles if handle.path is not None):
            number = savepoint_id(path)
            if writer_of_shared(path) is not None:
                continue
            if number is None:
                own.append(in_job(self._job_id, path))
            elif (target := target_of(number)) is not None:
                beside.append((target, path))

        def work() -> None:
            for path in own:
                self._store.delete(path)
            for target, path in beside:
                self._open_store(target).delete(path)

        if own or beside:
            self._delete(work, self._deleted)

    def use_claim(self, own: Sequence[CheckpointId], retained_max: int) -> None:
        """Delete the claimed savepoint once the job retains enough checkpoints of its own."""
        claim = self.claim
        if claim is None or sum(number > claim.checkpoint_id for number in own) < retained_max:
            return
        self.claim = None

        def work() -> None:
            self._fence.check(Act.DELETE_CLAIMED)
            if claim.job_id == self._job_id:  # First, so that none restores it by its id any more.
                self._store.delete_prefix(self._layout.checkpoint(claim.checkpoint_id))
            own_store = self._open_store(claim.location)
            discard_savepoint(own_store, claim.job_id, claim.checkpoint_id, claim.attempt)

        self._delete(work, self._deleted)

    def sweep(self, *, may_run: bool) -> None:
        """Delete what nothing needs of the job's files; ``may_run``: its newest attempt may."""
        if self._fence.is_fenced_off or self._keeps_all:
            return

        def work() -> None:
            known, files = look(
                self._store, self._job_id, may_run=may_run, directories=self._output
            )
            carry_out(
                self._store,
                known,
                plan(known, files),
                check=lambda: self._fence.check(Act.SWEEP),  # They may be the successor's.
                now_ms=self._clock.now_ms(),
            )

        def done(outcome: Exception | None) -> None:
            if isinstance(outcome, Exception):
                self._note(f"files that nothing needs could not be deleted and stay: {outcome}")

        self._delete(work, done)

    def _delete(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        """Run a deletion after those before it."""
        self._deletions.append((work, done))
        if not self._is_deleting:
            self._delete_next()

    def _delete_next(self) -> None:
        if not self._deletions:
            return
        work, done = self._deletions.popleft()
        self._is_deleting = True

        def finished(outcome: Any) -> None:
            self._is_deleting = False
            done(outcome)
            if not self._is_deleting:
                self._delete_next()

        self._io.run(work, finished)

    def _deleted(self, outcome: Exception | None) -> None:
        if outcome is not None:
            self._note(f"discarded state could not be deleted and stays: {outcome}")
