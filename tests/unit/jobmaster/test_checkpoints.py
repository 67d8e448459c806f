"""The coordinator's shell: manifests, fences between drivers, and what is deleted when."""

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.builders import decline, edge, graph, node, subtask
from tests.unit.jobmaster.job_harness import (
    JOB,
    LAYOUT,
    PLAN,
    VERSIONS,
    IoQueue,
    acknowledgement,
    state_file,
    stored_checkpoint,
)
from tests.unit.operators.operator_harness import ManualClock
from weir.config import CheckpointConfig, JobConfig, Retention
from weir.errors import ProtocolError, StorageError
from weir.graph.logical import Partitioning
from weir.graph.physical import ExecutionGraph
from weir.ids import AttemptNumber, CheckpointId, JobId, StateHandle
from weir.jobmaster.checkpoint_runner import CheckpointRunner
from weir.jobmaster.coordination import LocalCoordination
from weir.jobmaster.fence import Fence
from weir.jobmaster.final_checkpoint import FINAL_RETRY_MS
from weir.jobmaster.job_description import JobDescription
from weir.jobmaster.restore_choice import choose_restore, search
from weir.jobmaster.triggered_checkpoints import Stage
from weir.output.waiting import is_over
from weir.protocol.elements import CheckpointKind
from weir.protocol.events import CheckpointsDiscarded, CheckpointSettled, JobEvent, Notice
from weir.protocol.lifecycle import FailureReason, JobStatus
from weir.protocol.lineage import AttemptBase
from weir.protocol.messages import (
    CheckpointAborted,
    CheckpointCompleted,
    SubtaskCommand,
    TriggerCheckpoint,
)
from weir.protocol.pending import CompletedCheckpoint
from weir.storage.attempt_bases import note_base
from weir.storage.catalog import RestoreRequest
from weir.storage.layout import JobLayout
from weir.storage.manifest import Manifest, Tombstone, dump, load
from weir.storage.memory import MemoryStore
from weir.storage.store import checksum_of

ONE = CheckpointId(1)
TARGET = "/savepoints/one"
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
    """A checkpoint runner of an attempt, the first one, running.

    It ``sweeps`` at start and end as one does whose driver has claimed the attempt.
    """

    def __init__(
        self,
        store: MemoryStore | None = None,
        restore_from: RestoreRequest | None = None,
        others: dict[str, MemoryStore] | None = None,
        plan: ExecutionGraph = PLAN,
        attempt: int = 1,
        sweeps: bool = False,
        **settings: Any,
    ) -> None:
        self.attempt = AttemptNumber(attempt)
        self.store = store or MemoryStore()
        self.others: dict[str | None, MemoryStore] = defaultdict(MemoryStore, others or {})
        self.answers: list[tuple[str | None, str]] = []  # Where a savepoint is, or why nowhere.
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
        self.fence = Fence(self.store, JOB)
        self.runner = CheckpointRunner(
            JobDescription(JOB, plan, config, b"program", VERSIONS),
            store=self.store, fence=self.fence,
            coordination=LocalCoordination(config.checkpoints, self.clock), io=self.queue.io,
            clock=self.clock, emit=self.events.append, note=self._noted, send=self.sent.append,
            fail_attempt=self.failures.append, fenced=self._on_fenced, open_store=self.open_store,
        )  # fmt: skip
        self.runner.loaded(search(self.store, JOB))
        self.fence.begin_attempt(self.attempt)
        self.fence.claim(self.attempt)
        self.fence.has_claimed = sweeps
        choice = choose_restore(self.store, JOB, plan, config, restore_from, self.open_store)
        self.runner.restored(choice)
        self.runner.start(self.attempt, jitter=0.0)

    def _noted(self, text: str) -> None:
        self.events.append(Notice(self.clock.ms, text))

    def _on_fenced(self) -> None:
        self.fenced += 1
        self.fence.mark_fenced()
        self.runner.job_ended(JobStatus.FAILED)

    def open_store(self, uri: str | None) -> MemoryStore:
        return self.others[uri]

    def ask(self, kind: CheckpointKind = CheckpointKind.SAVEPOINT, target: str = TARGET) -> int:
        """Ask for a savepoint; the number of the newest checkpoint triggered."""

        def answered(completed: CompletedCheckpoint | None, why: str) -> None:
            self.answers.append((completed and completed.target, why))

        self.runner.request(f"r{self.clock.ms}", kind, target, answered)
        return int(self.events_of(TriggerCheckpoint)[-1].barrier.checkpoint_id)

    def checkpoint(self) -> int:
        """The next checkpoint completes."""
        self.trigger()
        number = int(self.events_of(TriggerCheckpoint)[-1].barrier.checkpoint_id)
        self.acknowledge(number)
        self.queue.run()
        return number

    def savepoint_file(self, path: str = "1-1/sink-0-x", data: bytes = b"state") -> StateHandle:
        self.others[TARGET].put(path, data)
        return StateHandle("operator", "x", len(data), checksum_of(data), path=path, mode="split")

    def trigger(self) -> None:
        self.clock.ms += 1_000
        self.runner.tick()

    def acknowledge(self, checkpoint_id: int = 1, *handles: StateHandle) -> None:
        for chain in PLAN.chain_subtasks:
            held = handles if chain == subtask("sink-0") else ()
            self.runner.on_acknowledged(acknowledgement(chain, checkpoint_id, self.attempt, *held))

    def taken_over(self) -> None:
        """Another driver claims the next attempt."""
        self.store.create_if_absent(LAYOUT.attempt(AttemptNumber(self.attempt + 1)), b"")

    def events_of(self, kind: type) -> list[Any]:
        return [c for c in (*self.sent, *self.events) if isinstance(c, kind)]

    def stored(self) -> Manifest | Tombstone | None:
        return load(self.store.read(MANIFEST)) if self.store.exists(MANIFEST) else None


def test_a_checkpoint_exists_before_anybody_is_told_to_commit() -> None:
    job = Runner()
    job.trigger()
    assert job.events_of(TriggerCheckpoint)[0].barrier.checkpoint_id == 1
    handle = state_file(job.store)
    job.acknowledge(1, handle)
    assert job.runner.is_busy
    assert job.events_of(CheckpointCompleted) == []
    job.queue.run()
    manifest = job.stored()
    assert isinstance(manifest, Manifest)
    assert manifest.handles == (handle,)
    assert [op.max_parallelism for op in manifest.operators] == [128, 128]
    assert job.events_of(CheckpointCompleted) == [CheckpointCompleted(AttemptNumber(1), ONE)]
    assert job.events_of(CheckpointSettled)[0].failure is None
    assert not job.runner.is_busy
    assert job.runner.completed_count == 1


def test_records_of_the_sources_are_known_for_every_completed_checkpoint() -> None:
    job = Runner()
    job.trigger()
    job.acknowledge()
    job.queue.run()
    assert job.runner.restored_records == 0
    record = job.runner._checkpoints[ONE]
    assert record.source_records == {"source": 20}  # Two sources of ten; sinks do not count.


def test_records_up_to_the_restored_checkpoint_are_known_after_it_was_discarded() -> None:
    first = Runner()
    first.checkpoint()
    job = Runner(first.store, retained_max=1)
    assert job.runner.restored_records == 20
    job.checkpoint()
    job.queue.run()
    assert [event.checkpoint_ids for event in job.events_of(CheckpointsDiscarded)] == [(ONE,)]
    assert job.runner.restored_records == 20


def test_a_driver_that_was_replaced_commits_nothing_though_its_manifest_is_written() -> None:
    store = FailingStore()
    job = Runner(store)
    job.trigger()
    store.after_manifest = job.taken_over
    job.acknowledge()
    job.queue.run()
    assert isinstance(job.stored(), Manifest)  # The successor may restore from it.
    assert job.events_of(CheckpointCompleted) == []
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
    job.fence.mark_fenced()
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
    assert "belongs to another driver" in job.events_of(Notice)[0].text


def test_a_number_that_an_older_driver_used_late_fails_one_checkpoint_not_the_job() -> None:
    job = Runner()
    job.trigger()
    stored_checkpoint(job.store, 1, attempt=0)
    job.acknowledge()
    job.queue.run()
    assert job.fenced == 0
    (settled,) = job.events_of(CheckpointSettled)
    assert settled.failure is FailureReason.FINALIZE_CHECKPOINT_FAILURE
    assert "older driver" in settled.cause
    assert job.events_of(CheckpointCompleted) == []


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
    assert job.events_of(CheckpointAborted)[0].checkpoint_id == 1
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
    assert [c.checkpoint_id for c in job.events_of(CheckpointCompleted)] == [1]


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
    assert job.events_of(CheckpointCompleted) == []
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
    assert job.events_of(CheckpointSettled)[0].failure is FailureReason.FINALIZE_CHECKPOINT_FAILURE


def test_too_many_failures_fail_the_attempt() -> None:
    job = Runner()
    job.trigger()
    job.runner.on_declined(decline("sink-0", 1, cause="disk full"))
    assert "disk full" in job.failures[0]


def test_an_aborted_checkpoint_leaves_no_state_behind_but_that_of_others() -> None:
    job = Runner(tolerable_failures=1)
    job.trigger()
    state_file(job.store, "chk-1/1/sink-0-x")
    state_file(job.store, "chk-1/2/sink-0-x")
    job.runner.on_declined(decline("sink-0", 1))
    job.queue.run()
    assert [path for path in job.store.list() if "chk-" in path] == [f"{JOB}/chk-1/2/sink-0-x"]


def test_state_that_arrives_after_its_checkpoint_was_given_up_is_deleted() -> None:
    job = Runner(tolerable_failures=1)
    job.trigger()
    job.runner.on_declined(decline("sink-0", 1))
    job.queue.run()
    handle = state_file(job.store)
    job.runner.on_acknowledged(acknowledgement(subtask("sink-1"), 1, 1, handle))
    job.queue.run()
    assert not job.store.exists(f"{JOB}/{handle.path}")


def test_old_state_that_cannot_be_deleted_is_said_and_does_no_harm() -> None:
    store = FailingStore()
    job = Runner(store, tolerable_failures=1)
    job.trigger()
    store.failing = ["delete"]
    job.runner.on_declined(decline("sink-0", 1))
    job.queue.run()
    assert "could not be deleted and stays" in job.events_of(Notice)[0].text


def test_retention_lets_the_oldest_go_manifest_first() -> None:
    store = FailingStore()
    job = Runner(store, retained_max=1)
    deletes = store.delete_prefix
    was_whole: list[bool] = []

    def delete(directory: str) -> None:
        was_whole.append(store.exists(LAYOUT.manifest(ONE)))
        deletes(directory)

    store.delete_prefix = delete  # type: ignore[method-assign]
    for checkpoint_id in (1, 2):
        job.trigger()
        job.acknowledge(checkpoint_id, state_file(store, f"chk-{checkpoint_id}/1/sink-0-x"))
        job.queue.run()
    assert was_whole == [False], "a crash between the two would leave a manifest without its state"
    assert job.events_of(CheckpointsDiscarded)[0].checkpoint_ids == (1,)
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


@pytest.mark.parametrize("status", [JobStatus.FAILED, JobStatus.CANCELED])
def test_that_a_job_is_over_is_noted_until_another_attempt(status: JobStatus) -> None:
    job = Runner()
    job.store.put(JobLayout(JOB).attempt(AttemptNumber(1)), b"")
    assert not is_over(job.store, JOB)
    job.runner.job_ended(status)
    job.queue.run()
    assert is_over(job.store, JOB)
    job.store.put(JobLayout(JOB).attempt(AttemptNumber(2)), b"")
    assert not is_over(job.store, JOB)


def test_a_driver_that_was_replaced_does_not_say_that_the_job_is_over() -> None:
    job = Runner()
    job.store.put(JobLayout(JOB).attempt(AttemptNumber(1)), b"")
    job.fence.mark_fenced()
    job.runner.job_ended(JobStatus.FAILED)
    job.queue.run()
    assert not is_over(job.store, JOB)


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
    assert "checkpoints stay" in job.events_of(Notice)[-1].text


def test_the_final_checkpoint_is_marked_and_periodic_ones_are_not() -> None:
    job = Runner()
    job.trigger()
    job.acknowledge(1)
    job.queue.run()
    job.runner.trigger_final()
    job.acknowledge(2)
    job.queue.run()
    assert [(c.checkpoint_id, c.final) for c in job.events_of(CheckpointCompleted)] == [
        (1, False),
        (2, True),
    ]


def test_a_final_checkpoint_that_fails_is_tried_again() -> None:
    job = Runner(tolerable_failures=5)
    job.runner.trigger_final()
    job.runner.on_declined(decline("sink-0", 1))
    due = job.runner.next_due_ms()
    assert due is not None
    assert due <= job.clock.ms + FINAL_RETRY_MS
    job.clock.ms += FINAL_RETRY_MS
    job.runner.tick()
    job.acknowledge(2)
    job.queue.run()
    assert [(c.checkpoint_id, c.final) for c in job.events_of(CheckpointCompleted)] == [(2, True)]


def test_a_stopped_attempt_tries_no_final_checkpoint_again() -> None:
    job = Runner(tolerable_failures=5)
    job.runner.trigger_final()
    job.runner.stop(FailureReason.JOB_FAILOVER)
    assert job.runner.next_due_ms() is None


def test_a_restart_waits_for_the_manifest_that_is_being_written() -> None:
    job = Runner()
    quiet: list[str] = []
    note: Callable[[], None] = lambda: quiet.append("quiet")  # noqa: E731
    job.runner.after_pending_manifest(note)
    assert quiet == ["quiet"]
    job.trigger()
    job.acknowledge()
    job.runner.stop(FailureReason.JOB_FAILOVER)
    job.runner.after_pending_manifest(note)
    assert quiet == ["quiet"]
    job.queue.run()
    assert quiet == ["quiet", "quiet"]
    assert job.runner.completed_count == 1
    assert (
        job.events_of(CheckpointCompleted) == []
    )  # Its subtasks are gone; a restore commits for them.


def test_a_command_is_executed_to_its_end_before_those_that_follow_from_it() -> None:
    """The job fails over in the middle of the coordinator's commands; that aborts the other one."""
    job = Runner(concurrent_max=2)
    job.trigger()
    job.trigger()
    told: list[str] = []

    def fail(cause: str) -> None:
        job.runner.stop(FailureReason.JOB_FAILOVER)
        told.extend(str(c.checkpoint_id) for c in job.events_of(CheckpointAborted))
        told.append("failed")

    job.runner._fail_attempt = fail
    job.runner.on_declined(decline("sink-0", 1))
    assert told == ["1", "failed"]
    assert [c.checkpoint_id for c in job.events_of(CheckpointAborted)] == [1, 2]


def test_a_report_that_breaks_the_protocol_does_not_stop_the_coordinator() -> None:
    job = Runner()
    job.trigger()
    with pytest.raises(ProtocolError):
        job.runner.on_acknowledged(acknowledgement(subtask("stranger-0")))
    job.acknowledge()
    job.queue.run()
    assert [c.checkpoint_id for c in job.events_of(CheckpointCompleted)] == [1]


def test_nothing_is_kept_of_checkpoints_that_came_to_nothing() -> None:
    store = FailingStore()
    job = Runner(store, tolerable_failures=10)
    for checkpoint_id in (1, 2, 3):
        job.trigger()
        store.failing = ["create", "create"]
        job.acknowledge(checkpoint_id)
        job.queue.run()
    records = [job.runner._checkpoints[CheckpointId(number)] for number in (1, 2, 3)]
    assert {record.stage for record in records} == {Stage.OVER}
    assert not any(record.acks or record.source_records for record in records)


# Savepoints.

SAVEPOINT, STOP = CheckpointKind.SAVEPOINT, CheckpointKind.STOP_SUSPEND
DRAIN = CheckpointKind.STOP_DRAIN


def test_a_savepoint_is_whole_in_its_own_directory_and_decided_under_its_number() -> None:
    job = Runner()
    assert job.ask() == 1
    handle = job.savepoint_file()
    job.acknowledge(1, handle)
    assert job.answers == []
    job.queue.run()
    decided = job.stored()
    assert isinstance(decided, Manifest)
    assert (decided.kind, decided.location, decided.handles) == (SAVEPOINT, TARGET, (handle,))
    assert load(job.others[TARGET].read("manifest")) == decided
    assert job.answers == [(TARGET, "")]
    assert job.events_of(CheckpointCompleted) == [], "no sink commits for a copy"
    assert job.runner.completed_count == 0, "a job that fails does not come back to it"


def test_the_number_of_a_savepoint_is_taken_before_its_directory_is() -> None:
    """A driver that dies in between leaves a savepoint whose number must not be used again."""

    class Dying(MemoryStore):
        def create_if_absent(self, path: str, data: bytes) -> bool:
            raise StorageError("dead")

    job = Runner(others={TARGET: Dying()})
    job.ask()
    job.acknowledge()
    job.queue.run(1)
    assert search(job.store, JOB).next_id == 2


def test_a_savepoint_whose_place_is_taken_fails_and_leaves_that_one_alone() -> None:
    job = Runner()
    job.ask()
    other = dump(stored_checkpoint(MemoryStore(), 1, job=JobId("other"), kind=SAVEPOINT))
    job.others[TARGET].put("manifest", other)
    job.others[TARGET].put("1-1/sink-0-x", b"of the other")
    job.acknowledge()
    job.queue.run()
    ((uri, why),) = job.answers
    assert uri is None
    assert "holds a savepoint already; choose another name" in why
    assert isinstance(job.stored(), Tombstone)
    assert job.others[TARGET].read("manifest") == other
    assert job.others[TARGET].read("1-1/sink-0-x") == b"of the other"
    assert job.failures == [], "the job goes on"
    assert job.checkpoint() == 2


def test_a_savepoint_whose_files_the_driver_cannot_see_fails() -> None:
    """Its directory is not the same one on the machine of a subtask, where it is not mounted."""
    job = Runner()
    job.ask()
    here, elsewhere = job.savepoint_file(), job.savepoint_file("1-1/sink-1-x")
    job.others[TARGET].delete("1-1/sink-1-x")
    job.acknowledge(1, here, elsewhere)
    job.queue.run()
    ((uri, why),) = job.answers
    assert uri is None
    assert f"{TARGET} has no 1-1/sink-1-x, though a subtask wrote it" in why
    assert isinstance(job.stored(), Tombstone)
    assert job.others[TARGET].list() == []
    assert job.failures == [], "the job goes on"
    assert job.checkpoint() == 2


def test_a_savepoint_whose_number_is_taken_is_none() -> None:
    job = Runner()
    job.ask()
    stored_checkpoint(job.store, 1, attempt=0)
    job.acknowledge(1, job.savepoint_file())
    job.queue.run()
    assert job.answers[0][0] is None
    assert job.others[TARGET].list() == []


def test_an_aborted_savepoint_leaves_nothing_behind_not_even_what_comes_late() -> None:
    job = Runner()
    job.ask()
    job.savepoint_file()
    job.runner.on_declined(decline("sink-0", 1, cause="disk full"))
    job.queue.run()
    assert "disk full" in job.answers[0][1]
    assert job.others[TARGET].list() == []
    late = job.savepoint_file("1-1/sink-1-x")
    job.runner.on_acknowledged(acknowledgement(subtask("sink-1"), 1, 1, late))
    job.queue.run()
    assert job.others[TARGET].list() == []
    assert job.failures == []


def test_a_savepoint_of_a_storage_that_fails_between_its_manifests_is_taken_back() -> None:
    store = FailingStore()
    job = Runner(store)
    job.ask()
    store.failing = ["create"]
    job.acknowledge(1, job.savepoint_file())
    job.queue.run()
    assert isinstance(job.stored(), Tombstone)
    assert job.others[TARGET].list() == []


@pytest.mark.parametrize("kind", [STOP, DRAIN])
def test_a_stop_has_everybody_commit_and_finish_and_nothing_follows_it(
    kind: CheckpointKind,
) -> None:
    job = Runner()
    job.ask(kind)
    job.acknowledge()
    job.queue.run()
    assert job.events_of(CheckpointCompleted) == [
        CheckpointCompleted(AttemptNumber(1), ONE, final=True)
    ]
    assert job.answers == [(TARGET, "")]
    assert job.runner.completed_count == 1
    job.runner.trigger_final()
    assert len(job.events_of(TriggerCheckpoint)) == 1
    assert job.runner.next_due_ms() is None


def test_no_final_checkpoint_is_asked_for_while_a_stop_drains() -> None:
    job = Runner(interval_ms=None)
    job.ask(DRAIN)
    job.runner.trigger_final()
    assert len(job.events_of(TriggerCheckpoint)) == 1
    job.acknowledge()
    job.queue.run()
    job.clock.ms += FINAL_RETRY_MS
    job.runner.tick()
    assert job.runner.next_due_ms() is None
    assert job.events_of(Notice) == []


def test_after_a_suspend_that_failed_the_final_checkpoint_is_taken() -> None:
    job = Runner(interval_ms=None)
    job.ask(STOP)
    job.runner.trigger_final()
    job.runner.on_declined(decline("sink-0", 1))
    job.clock.ms += FINAL_RETRY_MS
    job.runner.tick()
    job.acknowledge(2)
    job.queue.run()
    assert [(c.checkpoint_id, c.final) for c in job.events_of(CheckpointCompleted)] == [(2, True)]


def test_a_drain_that_failed_fails_the_attempt_though_failures_are_tolerated() -> None:
    job = Runner(tolerable_failures=99)
    job.ask(DRAIN)
    job.runner.on_declined(decline("sink-0", 1))
    assert "the drain has ended the sources, which cannot be undone" in job.failures[0]


def test_a_request_is_answered_after_a_refusal_and_a_failover() -> None:
    job = Runner()
    job.ask()
    job.runner.stop(FailureReason.JOB_FAILOVER)
    job.clock.ms += 1
    job.ask(target="/savepoints/two")
    assert [uri for uri, _ in job.answers] == [None, None]
    assert "job_failover" in job.answers[0][1]
    assert "refused" in job.answers[1][1]


def test_records_of_sources_are_counted_from_the_jobs_beginning() -> None:
    first = Runner()
    first.checkpoint()
    manifest = first.stored()
    assert isinstance(manifest, Manifest)
    assert manifest.source_records == {"source": 20}
    assert [op.is_source for op in manifest.operators] == [True, False]
    second = Runner(first.store)
    number = second.checkpoint()
    later = load(second.store.read(LAYOUT.manifest(CheckpointId(number))))
    assert isinstance(later, Manifest)
    assert later.source_records == {"source": 40}


def test_records_of_sources_are_not_known_behind_a_checkpoint_that_does_not_say() -> None:
    store = MemoryStore()
    stored_checkpoint(store, 1)  # As version 1 wrote it.
    job = Runner(store)
    number = job.checkpoint()
    manifest = load(store.read(LAYOUT.manifest(CheckpointId(number))))
    assert isinstance(manifest, Manifest)
    assert manifest.source_records == {}


def claimed(*, job_id: JobId = JOB) -> tuple[Runner, MemoryStore]:
    """A job that began with a savepoint and owns it; it retains two checkpoints."""
    store, own = MemoryStore(), MemoryStore()
    own.put("1-1/sink-0-x", b"state")
    handle = StateHandle("operator", "x", 5, checksum_of(b"state"), "1-1/sink-0-x", mode="split")
    made = stored_checkpoint(store, 1, handle, job=job_id, kind=SAVEPOINT, location=TARGET)
    own.put("manifest", dump(made))
    own.put("notes.txt", b"a user's")
    request = RestoreRequest(TARGET, claims=True)
    return Runner(store, request, {TARGET: own}, retained_max=2), own


def test_a_claimed_savepoint_goes_once_the_job_has_enough_of_its_own() -> None:
    job, own = claimed()
    job.checkpoint()
    assert own.exists("manifest")
    job.checkpoint()
    assert own.list() == ["notes.txt"]
    assert not job.store.exists(MANIFEST)
    assert isinstance(load(job.store.read(LAYOUT.manifest(CheckpointId(2)))), Manifest)


def test_a_claimed_savepoint_of_another_job_takes_nothing_of_this_one_with_it() -> None:
    job, own = claimed(job_id=JobId("other"))
    for _ in range(3):
        job.checkpoint()
    assert own.list() == ["notes.txt"]
    assert job.store.exists(JobLayout(JobId("other")).manifest(ONE)), "it is not ours to delete"


class TestWithdrawnOutput:
    """A job went back from checkpoint 4 to 1, so that 2 to 4 are abandoned."""

    def went_back(self, output: Path) -> Runner:
        for name in ("1/part-sink-0-2-0", "1/part-sink-1-3-0", "1/part-sink-0-4-0"):
            file = output / "_withdrawn" / JOB / f"{name}.parquet"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch()
        store = MemoryStore()
        for checkpoint_id in (1, 2, 4):
            stored_checkpoint(store, checkpoint_id)
        note_base(store, JOB, AttemptBase(AttemptNumber(1), ONE))
        request, plan = RestoreRequest("", JOB, ONE), self.writing_to(output)
        job = Runner(store, request, {"": store}, plan, attempt=2, abandoned_ttl_ms=500)
        base = AttemptBase(AttemptNumber(2), CheckpointId(5), ONE, AttemptNumber(1))
        note_base(store, JOB, base)
        return job

    def writing_to(self, output: Path) -> ExecutionGraph:
        operators = [node("source", 2), node("sink", 2, files=str(output))]
        return ExecutionGraph(graph(operators, [edge("source", "sink", Partitioning.HASH)]))

    def left(self, output: Path) -> list[str]:
        return sorted(file.name for file in output.rglob("*.parquet"))

    def test_goes_with_the_abandoned_checkpoints(self, tmp_path: Path) -> None:
        job = self.went_back(tmp_path)
        job.trigger()
        job.queue.run()
        assert [e.checkpoint_ids for e in job.events_of(CheckpointsDiscarded)] == [(2,), (4,)]
        assert self.left(tmp_path) == []
        assert job.store.exists(MANIFEST)

    def test_stays_while_a_savepoint_could_bring_it_back(self, tmp_path: Path) -> None:
        job = self.went_back(tmp_path)
        stored_checkpoint(job.store, 3, kind=SAVEPOINT, location=TARGET)
        job.trigger()
        job.queue.run()
        assert self.left(tmp_path) == ["part-sink-0-2-0.parquet", "part-sink-1-3-0.parquet"]

    def test_stays_while_a_manifest_cannot_be_read(self, tmp_path: Path) -> None:
        job = self.went_back(tmp_path)
        job.store.put(LAYOUT.manifest(CheckpointId(3)), b"?")
        job.trigger()
        job.queue.run()
        assert len(self.left(tmp_path)) == 3

    def test_of_an_attempt_that_failed_goes_when_the_next_one_runs(self, tmp_path: Path) -> None:
        """It waited when its attempt failed; nothing was ever abandoned."""
        store = MemoryStore()
        stored_checkpoint(store, 1)
        note_base(store, JOB, AttemptBase(AttemptNumber(1), ONE))
        note_base(store, JOB, AttemptBase(AttemptNumber(2), CheckpointId(3), ONE, AttemptNumber(1)))
        names = ["1/part-sink-0-1-0", "1/part-sink-0-2-0", "2/part-sink-0-2-0"]
        files = [tmp_path / "_withdrawn" / JOB / f"{name}.parquet" for name in names]
        for file in files:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch()
        job = Runner(store, plan=self.writing_to(tmp_path), attempt=2, sweeps=True)
        assert [file.exists() for file in files] == [True, True, True]
        job.queue.run()
        assert [file.exists() for file in files] == [True, False, True]
