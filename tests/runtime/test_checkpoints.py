"""The coordinator's shell: manifests, fences between drivers, and what is deleted when."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.builders import decline, subtask
from tests.runtime.job_harness import (
    JOB,
    PLAN,
    VERSIONS,
    IoQueue,
    acknowledgement,
    state_file,
    stored_checkpoint,
)
from tests.runtime.operator_harness import ManualClock
from weir.config import CheckpointConfig, JobConfig, Retention
from weir.errors import ProtocolError, StorageError
from weir.ids import AttemptNumber, CheckpointId, StateHandle
from weir.protocol.events import CheckpointsDiscarded, CheckpointSettled, JobEvent, Notice
from weir.protocol.lifecycle import FailureReason, JobStatus
from weir.protocol.messages import (
    CheckpointAborted,
    CheckpointCompleted,
    SubtaskCommand,
    TriggerCheckpoint,
)
from weir.runtime.checkpoints import FINAL_RETRY_MS, CheckpointRunner
from weir.runtime.recovery import choose_restore, search
from weir.storage.layout import JobLayout
from weir.storage.manifest import Manifest, Tombstone, load
from weir.storage.memory import MemoryStore

LAYOUT = JobLayout(JOB)
ONE = CheckpointId(1)
MANIFEST = LAYOUT.manifest(ONE)


class FailingStore(MemoryStore):
    """Fails the calls named in ``failing``, once each; ``writes_first`` lets a create succeed.

    ``after_manifest`` is what happens in the world as soon as the manifest is there.
    """

    def __init__(self) -> None:
        super().__init__()
        self.failing: list[str] = []
        self.writes_first = False
        self.after_manifest: Callable[[], None] | None = None

    def _maybe_fail(self, call: str) -> None:
        if call in self.failing:
            self.failing.remove(call)
            raise StorageError(f"{call} failed")

    def create_if_absent(self, path: str, data: bytes) -> bool:
        if not path.endswith("/manifest"):
            return super().create_if_absent(path, data)
        created = self.writes_first and super().create_if_absent(path, data)
        self._maybe_fail("create")
        created = super().create_if_absent(path, data) or created
        if self.after_manifest is not None:
            self.after_manifest()
        return created

    def put(self, path: str, data: bytes) -> None:
        self._maybe_fail("put")
        super().put(path, data)

    def list(self, directory: str = "") -> list[str]:
        self._maybe_fail("list")
        return super().list(directory)

    def delete_prefix(self, directory: str) -> None:
        self._maybe_fail("delete")
        super().delete_prefix(directory)


class Runner:
    """A checkpoint runner of attempt 1, running."""

    def __init__(self, store: MemoryStore | None = None, **settings: Any) -> None:
        self.store = store or MemoryStore()
        self.queue = IoQueue()
        self.clock = ManualClock()
        self.events: list[JobEvent] = []
        self.sent: list[SubtaskCommand] = []
        self.failures: list[str] = []
        self.fenced = 0
        config = JobConfig(
            parallelism=2,
            checkpoints=CheckpointConfig(**{"interval_ms": 1_000, **settings}),
        )
        self.runner = CheckpointRunner(
            PLAN, config, JOB, store=self.store, versions=VERSIONS, io=self.queue.io,
            clock=self.clock, emit=self.events.append, send=self.sent.append,
            fail_attempt=self.failures.append, fenced=self._on_fenced,
        )  # fmt: skip
        self.runner.loaded(search(self.store, JOB))
        self.runner.begin_attempt(AttemptNumber(1))
        self.store.create_if_absent(LAYOUT.attempt(AttemptNumber(1)), b"")
        self.runner.restored(choose_restore(self.store, JOB, PLAN, config, None))
        self.runner.start(AttemptNumber(1), jitter=0.0)

    def _on_fenced(self) -> None:
        self.fenced += 1
        self.runner.fence_off()
        self.runner.job_ended(JobStatus.FAILED)

    def trigger(self) -> None:
        self.clock.ms += 1_000
        self.runner.tick()

    def acknowledge(self, checkpoint_id: int = 1, *handles: StateHandle) -> None:
        for chain in PLAN.chain_subtasks:
            held = handles if chain == subtask("sink-0") else ()
            self.runner.on_report(acknowledgement(chain, checkpoint_id, 1, *held))

    def taken_over(self) -> None:
        """Another driver claims the next attempt."""
        self.store.create_if_absent(LAYOUT.attempt(AttemptNumber(2)), b"")

    def of(self, kind: type) -> list[Any]:
        return [c for c in (*self.sent, *self.events) if isinstance(c, kind)]

    def stored(self) -> Manifest | Tombstone | None:
        return load(self.store.read(MANIFEST)) if self.store.exists(MANIFEST) else None


def test_a_checkpoint_exists_before_anybody_is_told_to_commit() -> None:
    job = Runner()
    job.trigger()
    assert job.of(TriggerCheckpoint)[0].barrier.checkpoint_id == 1
    handle = state_file(job.store)
    job.acknowledge(1, handle)
    assert job.runner.is_busy
    assert job.of(CheckpointCompleted) == []
    job.queue.run()
    manifest = job.stored()
    assert isinstance(manifest, Manifest)
    assert manifest.handles == (handle,)
    assert [op.max_parallelism for op in manifest.operators] == [128, 128]
    assert job.of(CheckpointCompleted) == [CheckpointCompleted(AttemptNumber(1), ONE)]
    assert job.of(CheckpointSettled)[0].failure is None
    assert not job.runner.is_busy
    assert job.runner.has_completed


def test_records_of_the_sources_are_known_for_every_completed_checkpoint() -> None:
    job = Runner()
    job.trigger()
    job.acknowledge()
    job.queue.run()
    assert job.runner.source_records(ONE) == 20  # Two sources of ten; sinks do not count.
    assert job.runner.source_records(None) == 0


def test_a_driver_that_was_replaced_commits_nothing_though_its_manifest_is_written() -> None:
    store = FailingStore()
    job = Runner(store)
    job.trigger()
    store.after_manifest = job.taken_over
    job.acknowledge()
    job.queue.run()
    assert isinstance(job.stored(), Manifest)  # The successor may restore from it.
    assert job.of(CheckpointCompleted) == []
    assert (job.fenced, job.failures) == (1, [])


def test_a_driver_that_was_replaced_before_takes_no_number_of_its_successor() -> None:
    job = Runner()
    job.trigger()
    job.acknowledge()
    job.taken_over()
    job.queue.run()
    assert job.stored() is None
    assert (job.fenced, job.failures) == (1, [])


def test_a_driver_that_was_replaced_deletes_no_checkpoint_of_its_successor() -> None:
    store = MemoryStore()
    stored_checkpoint(store, 1)
    job = Runner(store, retention=Retention.NO_EXTERNALIZED_CHECKPOINTS)
    job.runner.fence_off()
    job.runner.job_ended(JobStatus.FAILED)
    job.queue.run()
    assert store.exists(MANIFEST)


def test_a_driver_that_ends_unaware_of_its_successor_deletes_nothing_of_it_either() -> None:
    store = MemoryStore()
    stored_checkpoint(store, 1)
    job = Runner(store, retention=Retention.NO_EXTERNALIZED_CHECKPOINTS)
    job.taken_over()
    job.runner.job_ended(JobStatus.CANCELED)
    job.queue.run()
    assert store.exists(MANIFEST)
    assert "belongs to another driver" in job.of(Notice)[0].text


def test_a_number_that_an_older_driver_used_late_fails_one_checkpoint_not_the_job() -> None:
    job = Runner()
    job.trigger()
    stored_checkpoint(job.store, 1, attempt=0)
    job.acknowledge()
    job.queue.run()
    assert job.fenced == 0
    (settled,) = job.of(CheckpointSettled)
    assert settled.failure is FailureReason.FINALIZE_CHECKPOINT_FAILURE
    assert "older driver" in settled.cause
    assert job.of(CheckpointCompleted) == []


def test_a_manifest_that_cannot_be_written_is_given_up_for_good() -> None:
    store = FailingStore()
    job = Runner(store, tolerable_failures=1)
    job.trigger()
    handle = state_file(store)
    store.failing = ["create"]
    job.acknowledge(1, handle)
    job.queue.run()
    tombstone = job.stored()
    assert isinstance(tombstone, Tombstone)
    assert (tombstone.reason, tombstone.attempt) == ("create failed", 1)
    assert job.of(CheckpointAborted)[0].checkpoint_id == 1
    assert not store.exists(f"{JOB}/{handle.path}")
    assert job.failures == []


def test_a_manifest_that_was_written_after_all_counts() -> None:
    store = FailingStore()
    job = Runner(store)
    job.trigger()
    store.writes_first, store.failing = True, ["create"]
    job.acknowledge()
    job.queue.run()
    assert isinstance(job.stored(), Manifest)
    assert [c.checkpoint_id for c in job.of(CheckpointCompleted)] == [1]


def test_a_manifest_written_after_all_counts_only_for_the_driver_in_charge() -> None:
    """The storage fails between the manifest and the look at the fence behind it."""
    store = FailingStore()
    job = Runner(store)

    def take_over_and_fail() -> None:
        job.taken_over()
        store.failing = ["list"]

    job.trigger()
    store.after_manifest = take_over_and_fail
    job.acknowledge()
    job.queue.run()
    assert isinstance(job.stored(), Manifest)
    assert job.of(CheckpointCompleted) == []
    assert job.fenced == 1


def test_a_storage_that_is_away_altogether_deletes_nothing_since_a_manifest_may_exist() -> None:
    store = FailingStore()
    job = Runner(store, tolerable_failures=1)
    job.trigger()
    handle = state_file(store)
    store.failing = ["create", "create"]
    job.acknowledge(1, handle)
    job.queue.run()
    assert job.stored() is None
    assert store.exists(f"{JOB}/{handle.path}")
    assert job.of(CheckpointSettled)[0].failure is FailureReason.FINALIZE_CHECKPOINT_FAILURE


def test_too_many_failures_fail_the_attempt() -> None:
    job = Runner()
    job.trigger()
    job.runner.on_report(decline("sink-0", 1, cause="disk full"))
    assert "disk full" in job.failures[0]


def test_an_aborted_checkpoint_leaves_no_state_behind_but_that_of_others() -> None:
    job = Runner(tolerable_failures=1)
    job.trigger()
    state_file(job.store, "chk-1/1/sink-0-x")
    state_file(job.store, "chk-1/2/sink-0-x")
    job.runner.on_report(decline("sink-0", 1))
    job.queue.run()
    assert [path for path in job.store.list() if "chk-" in path] == [f"{JOB}/chk-1/2/sink-0-x"]


def test_state_that_arrives_after_its_checkpoint_was_given_up_is_deleted() -> None:
    job = Runner(tolerable_failures=1)
    job.trigger()
    job.runner.on_report(decline("sink-0", 1))
    job.queue.run()
    handle = state_file(job.store)
    job.runner.on_report(acknowledgement(subtask("sink-1"), 1, 1, handle))
    job.queue.run()
    assert not job.store.exists(f"{JOB}/{handle.path}")


def test_old_state_that_cannot_be_deleted_is_said_and_does_no_harm() -> None:
    store = FailingStore()
    job = Runner(store, tolerable_failures=1)
    job.trigger()
    store.failing = ["delete"]
    job.runner.on_report(decline("sink-0", 1))
    job.queue.run()
    assert "could not be deleted and stays" in job.of(Notice)[0].text


def test_retention_lets_the_oldest_go_manifest_first() -> None:
    job = Runner(retained_max=1)
    for checkpoint_id in (1, 2):
        job.trigger()
        job.acknowledge(checkpoint_id, state_file(job.store, f"chk-{checkpoint_id}/1/sink-0-x"))
        job.queue.run()
    assert job.of(CheckpointsDiscarded)[0].checkpoint_ids == (1,)
    assert not [path for path in job.store.list() if "chk-1/" in path]
    assert job.store.exists(LAYOUT.manifest(CheckpointId(2)))


def test_a_finished_job_keeps_no_checkpoint_and_a_failed_one_all() -> None:
    for status, is_kept in ((JobStatus.FINISHED, False), (JobStatus.FAILED, True)):
        job = Runner()
        job.trigger()
        job.acknowledge()
        job.queue.run()
        job.runner.job_ended(status)
        job.queue.run()
        assert job.store.exists(MANIFEST) is is_kept


def test_a_finish_that_cannot_be_noted_keeps_the_checkpoints() -> None:
    store = FailingStore()
    job = Runner(store)
    job.trigger()
    job.acknowledge()
    job.queue.run()
    store.failing = ["put"]
    job.runner.job_ended(JobStatus.FINISHED)
    job.queue.run()
    assert store.exists(MANIFEST)
    assert "checkpoints stay" in job.of(Notice)[-1].text


def test_the_final_checkpoint_is_marked_and_periodic_ones_are_not() -> None:
    job = Runner()
    job.trigger()
    job.acknowledge(1)
    job.queue.run()
    job.runner.trigger_final()
    job.acknowledge(2)
    job.queue.run()
    assert [(c.checkpoint_id, c.final) for c in job.of(CheckpointCompleted)] == [
        (1, False),
        (2, True),
    ]


def test_a_final_checkpoint_that_fails_is_tried_again() -> None:
    job = Runner(tolerable_failures=5)
    job.runner.trigger_final()
    job.runner.on_report(decline("sink-0", 1))
    due = job.runner.next_due_ms()
    assert due is not None
    assert due <= job.clock.ms + FINAL_RETRY_MS
    job.clock.ms += FINAL_RETRY_MS
    job.runner.tick()
    job.acknowledge(2)
    job.queue.run()
    assert [(c.checkpoint_id, c.final) for c in job.of(CheckpointCompleted)] == [(2, True)]


def test_a_stopped_attempt_tries_no_final_checkpoint_again() -> None:
    job = Runner(tolerable_failures=5)
    job.runner.trigger_final()
    job.runner.stop(FailureReason.JOB_FAILOVER)
    assert job.runner.next_due_ms() is None


def test_a_restart_waits_for_the_manifest_that_is_being_written() -> None:
    job = Runner()
    quiet: list[str] = []
    note: Callable[[], None] = lambda: quiet.append("quiet")  # noqa: E731
    job.runner.when_quiet(note)
    assert quiet == ["quiet"]
    job.trigger()
    job.acknowledge()
    job.runner.stop(FailureReason.JOB_FAILOVER)
    job.runner.when_quiet(note)
    assert quiet == ["quiet"]
    job.queue.run()
    assert quiet == ["quiet", "quiet"]
    assert job.runner.has_completed
    assert job.of(CheckpointCompleted) == []  # Its subtasks are gone; a restore commits for them.


def test_a_report_that_breaks_the_protocol_does_not_stop_the_coordinator() -> None:
    job = Runner()
    job.trigger()
    with pytest.raises(ProtocolError):
        job.runner.on_report(acknowledgement(subtask("stranger-0")))
    job.acknowledge()
    job.queue.run()
    assert [c.checkpoint_id for c in job.of(CheckpointCompleted)] == [1]


def test_nothing_is_kept_of_checkpoints_that_came_to_nothing() -> None:
    store = FailingStore()
    job = Runner(store, tolerable_failures=10)
    for checkpoint_id in (1, 2, 3):
        job.trigger()
        store.failing = ["create", "create"]
        job.acknowledge(checkpoint_id)
        job.queue.run()
    assert not job.runner._acks
    assert not job.runner._written
    assert not job.runner._source_records
