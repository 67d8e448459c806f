"""Sequences of events into the coordinator, commands out of it, compared whole."""

from dataclasses import replace

import pytest

from tests.builders import (
    CHAINS,
    ack,
    acks,
    barrier,
    completed,
    decline,
    finished,
    given_up,
    handle,
    line,
    not_written,
    pending,
    plan,
    request,
    requested,
    run,
    started,
    state,
    subtask,
    subtasks,
    written,
)
from weir.config import CheckpointConfig, Retention
from weir.errors import ProtocolError
from weir.ids import AttemptNumber, CheckpointId, OperatorId
from weir.protocol.coordinator import (
    ABORTED_REMEMBERED,
    END_REASONS,
    STOP_REASONS,
    CoordinatorState,
    Step,
    check_invariants,
    next_due_ms,
    reopened,
    step,
    withdraw,
)
from weir.protocol.elements import BarrierOptions, CheckpointKind
from weir.protocol.lifecycle import (
    COUNTING_REASONS,
    ENDS_AS,
    CheckpointStatus,
    FailureReason,
    JobStatus,
)
from weir.protocol.messages import (
    CheckpointAborted,
    CheckpointCompleted,
    CheckpointingStopped,
    CheckpointRefused,
    CheckpointsRestored,
    CoordinatorCommand,
    CoordinatorEvent,
    DiscardCheckpoint,
    DiscardHandles,
    DiscardPending,
    FailJob,
    JobEnded,
    RecordAbandoned,
    RecordAborted,
    RecordCompleted,
    RecordReclaimed,
    Tick,
    TimeLost,
    TriggerCheckpoint,
    TriggerFailed,
    WriteManifest,
)
from weir.protocol.pending import (
    AckResult,
    CheckpointPlan,
    PlannedChain,
    SubtaskRange,
    TriggerResult,
)
from weir.protocol.scheduling import QUEUE_MAX

ATTEMPT = AttemptNumber(1)
SOURCES = (subtask("source-0"), subtask("source-1"))
SAVEPOINT, STOP = CheckpointKind.SAVEPOINT, CheckpointKind.STOP_SUSPEND
DRAIN = CheckpointKind.STOP_DRAIN
FAILOVER = CheckpointingStopped(ATTEMPT, FailureReason.JOB_FAILOVER)
PLANNED_STOPS = sorted(
    reason for reason in STOP_REASONS if ENDS_AS[reason] is CheckpointStatus.ABORTED
)


def aborted(commands: list[CoordinatorCommand]) -> list[tuple[int, FailureReason]]:
    return [
        (c.checkpoint.checkpoint_id, c.reason) for c in commands if isinstance(c, RecordAborted)
    ]


def settled(commands: list[CoordinatorCommand]) -> dict[int, CheckpointStatus]:
    return {
        c.checkpoint.checkpoint_id: c.checkpoint.status
        for c in commands
        if isinstance(c, RecordAborted)
    }


def refused(commands: list[CoordinatorCommand]) -> list[tuple[str | None, FailureReason]]:
    return [(c.request.request_id, c.reason) for c in commands if isinstance(c, CheckpointRefused)]


def triggered(commands: list[CoordinatorCommand]) -> list[int]:
    return [c.barrier.checkpoint_id for c in commands if isinstance(c, TriggerCheckpoint)]


def discarded(commands: list[CoordinatorCommand]) -> list[int]:
    return [c.checkpoint.checkpoint_id for c in commands if isinstance(c, DiscardCheckpoint)]


def test_a_checkpoint_goes_from_trigger_to_completion() -> None:
    current, commands = run(state(), requested(), now_ms=100)
    assert commands == [
        TriggerCheckpoint(ATTEMPT, barrier(1, triggered_at_ms=100, base_id=0), SOURCES)
    ]

    current, commands = run(current, *acks()[:-1], now_ms=200)
    assert commands == []
    current, [command] = run(current, acks()[-1], now_ms=300)
    assert isinstance(command, WriteManifest)
    assert command.checkpoint == current.pending[0]
    assert command.checkpoint.status is CheckpointStatus.FINALIZING
    assert command.checkpoint.acknowledged_count == 6

    current, commands = run(current, written(), now_ms=400)
    done = completed(1, triggered_at_ms=100, completed_at_ms=400, sinks_acknowledged_at_ms=300)
    assert commands == [
        RecordCompleted(done, request(at_ms=100)),
        CheckpointCompleted(ATTEMPT, CheckpointId(1)),
    ]
    assert current.completed == (done,)
    assert current.pending == ()
    check_invariants(current)


def test_the_moment_all_sinks_acknowledged_is_recorded_though_others_are_missing() -> None:
    current, _ = run(state(), requested())
    current, _ = run(current, ack("sink-0"), now_ms=10)
    assert current.pending[0].sinks_acknowledged_at_ms is None
    current, _ = run(current, ack("sink-1"), now_ms=20)
    current, _ = run(current, ack("source-0"), ack("source-1"), now_ms=30)
    assert current.pending[0].sinks_acknowledged_at_ms == 20


def test_a_duplicate_ack_changes_nothing() -> None:
    current, _ = run(state(), requested(), ack("source-0"))
    repeated = step(current, ack("source-0", handles=(handle(),)), 0)
    assert (repeated.state, repeated.commands) == (current, ())
    assert repeated.result is AckResult.DUPLICATE


def test_an_ack_for_an_aborted_checkpoint_has_its_state_deleted() -> None:
    current, _ = run(state(tolerable_failures=1), requested(), decline())
    late = step(current, ack("source-0", handles=(handle(),)), 0)
    assert late.result is AckResult.LATE
    assert late.commands == (DiscardHandles((handle(),)),)
    assert late.state == current


@pytest.mark.parametrize("kind", [CheckpointKind.CHECKPOINT, SAVEPOINT])
def test_a_repeated_ack_for_a_completed_checkpoint_deletes_nothing(kind: CheckpointKind) -> None:
    """An acknowledgement is sent again after its checkpoint completed: the files it names are part
    of the checkpoint now."""
    current, _ = run(state(), requested(kind=kind), *acks(), written())
    late = step(current, ack("source-0", handles=(handle(),)), 0)
    assert late.commands == ()
    assert late.result in (AckResult.DUPLICATE, AckResult.LATE)


def test_an_ack_of_an_older_attempt_is_refused_and_deleted_if_its_checkpoint_was_aborted() -> None:
    current, _ = run(state(), requested(), FAILOVER, started(2))
    stale = step(current, ack("source-0", handles=(handle(),)), 0)
    assert stale.result is AckResult.STALE_ATTEMPT
    assert stale.commands == (DiscardHandles((handle(),)),)
    assert stale.state == current


def test_an_ack_of_an_older_attempt_leaves_a_completed_checkpoint_alone() -> None:
    current, _ = run(state(), requested(), *acks(), written(), FAILOVER, started(2))
    stale = step(current, ack("source-0", handles=(handle(),)), 0)
    assert (stale.commands, stale.result) == ((), AckResult.STALE_ATTEMPT)


def test_a_decline_aborts_at_once_and_tells_every_subtask() -> None:
    current, _ = run(state(tolerable_failures=1), requested(), *acks(), written())
    current, _ = run(current, requested("r2"), ack("source-0", 2))
    lost = current.pending[0]
    current, commands = run(current, decline("sink-0", 2, cause="no disk"))
    assert commands == [
        CheckpointAborted(ATTEMPT, CheckpointId(2), latest_completed_id=CheckpointId(1)),
        RecordAborted(
            replace(lost, status=CheckpointStatus.FAILED),
            FailureReason.CHECKPOINT_DECLINED,
            "sink-0: no disk",
        ),
        DiscardPending(CheckpointId(2)),
    ]
    assert current.pending == ()
    assert step(current, decline("sink-1", 2), 0).result is AckResult.LATE


def test_a_checkpoint_expires_at_its_timeout_from_the_trigger_and_not_before() -> None:
    current, _ = run(state(timeout_ms=50, tolerable_failures=1), requested(), now_ms=100)
    current, commands = run(current, ack("source-0"), Tick(), now_ms=149)
    assert commands == []
    assert next_due_ms(current) == 150
    current, commands = run(current, Tick(), now_ms=150)
    assert aborted(commands) == [(1, FailureReason.CHECKPOINT_EXPIRED)]
    [record] = [c for c in commands if isinstance(c, RecordAborted)]
    assert record.cause == (
        "not completed within 50 ms; 4 of 6 subtasks missing: parse-1, sink-0, sink-1, source-1"
    )
    assert next_due_ms(current) is None


def test_an_id_is_used_up_by_a_checkpoint_that_failed() -> None:
    current, _ = run(state(tolerable_failures=9), requested("r1"), decline("sink-0", 1))
    _, commands = run(current, requested("r2"))
    assert triggered(commands) == [2]


def test_a_manifest_that_failed_aborts_and_deletes() -> None:
    current, commands = run(state(tolerable_failures=1), requested(), *acks(), not_written())
    assert aborted(commands) == [(1, FailureReason.FINALIZE_CHECKPOINT_FAILURE)]
    assert DiscardPending(CheckpointId(1)) in commands
    assert current.completed == ()
    assert step(current, not_written(), 0).result is AckResult.LATE
    assert step(current, written(), 0).result is AckResult.LATE


def test_nothing_is_deleted_while_it_is_unknown_whether_the_manifest_exists() -> None:
    current, commands = run(
        state(tolerable_failures=1), requested(), *acks(), not_written(may_exist=True)
    )
    assert aborted(commands) == [(1, FailureReason.FINALIZE_CHECKPOINT_FAILURE)]
    assert not [c for c in commands if isinstance(c, DiscardPending)]
    assert step(current, ack(handles=(handle(),)), 0).commands == ()


def test_a_manifest_reported_twice_counts_once() -> None:
    current, _ = run(state(), requested(), *acks(), written())
    again = step(current, written(), 5)
    assert (again.state, again.commands, again.result) == (current, (), AckResult.DUPLICATE)


def test_a_checkpoint_being_finalized_does_not_expire() -> None:
    current, _ = run(state(timeout_ms=50), requested(), *acks())
    current, commands = run(current, Tick(), now_ms=10_000)
    assert commands == []
    assert next_due_ms(current) is None
    current, _ = run(current, written(), now_ms=10_000)
    assert current.latest_completed_id == 1


def test_a_late_decline_does_not_abort_a_checkpoint_being_finalized() -> None:
    current, _ = run(state(), requested(), *acks())
    late = step(current, decline(), 0)
    assert (late.state, late.commands, late.result) == (current, (), AckResult.LATE)


def test_a_failover_during_finalizing_leaves_the_checkpoint_to_its_manifest() -> None:
    """The driver wrote the manifest, an executor died, and only then did the report come in: the
    checkpoint exists, and the next attempt is restored from it."""
    current, _ = run(state(retained_max=1, completed=(completed(1),), next_id=CheckpointId(2)))
    current, _ = run(current, requested(), *acks(2))
    current, commands = run(current, FAILOVER)
    assert commands == []
    current, commands = run(current, written(2), now_ms=7)
    # No subtask is told: the attempt is gone, and the restored one commits for itself. Nothing is
    # let go, since a restore may be reading it.
    assert [type(c) for c in commands] == [RecordCompleted]
    assert [c.checkpoint_id for c in current.completed] == [1, 2]

    current, _ = run(current, started(2, restored_from=2), requested("r2"), *acks(3, attempt=2))
    current, commands = run(current, written(3))
    assert [c.checkpoint.checkpoint_id for c in commands if isinstance(c, DiscardCheckpoint)] == [
        1,
        2,
    ]
    assert current.completed[-1].parent_id == 2


def test_a_manifest_of_an_older_attempt_that_fails_does_not_fail_the_new_one() -> None:
    current, _ = run(state(tolerable_failures=0), requested(), *acks(), FAILOVER, started(2))
    current, commands = run(current, not_written())
    assert [type(c) for c in commands] == [RecordAborted, DiscardPending]
    assert current.failures.in_a_row == 0


def test_an_ack_repeated_while_the_manifest_outlives_its_attempt_changes_nothing() -> None:
    current, _ = run(state(), requested(), *acks(), FAILOVER)
    again = step(current, ack(handles=(handle(),)), 0)
    assert (again.state, again.commands, again.result) == (current, (), AckResult.DUPLICATE)


def test_an_attempt_does_not_build_on_a_checkpoint_that_completed_after_its_restore() -> None:
    current, _ = run(state(), requested(), *acks(), FAILOVER, started(2, restored_from=None))
    current, _ = run(current, written(1), requested("r2"), *acks(2, attempt=2), written(2))
    assert [(c.checkpoint_id, c.parent_id) for c in current.completed] == [(1, None), (2, None)]


def test_every_checkpoint_knows_its_parent_and_savepoints_are_no_parents() -> None:
    current, _ = run(state(), requested("r1"), *acks(1), written(1))
    current, commands = run(current, requested("s", SAVEPOINT), *acks(2), written(2))
    [savepoint] = [c.checkpoint for c in commands if isinstance(c, RecordCompleted)]
    current, _ = run(current, requested("r3"), *acks(3), written(3))
    assert savepoint.parent_id == 1
    assert [(c.checkpoint_id, c.parent_id) for c in current.completed] == [(1, None), (3, 1)]


def test_manifests_are_written_one_at_a_time_in_the_order_of_ids() -> None:
    current, _ = run(state(concurrent_max=3), requested("a"), requested("b"), requested("c"))
    current, commands = run(current, *acks(2))
    assert [c.checkpoint.checkpoint_id for c in commands if isinstance(c, WriteManifest)] == [2]
    current, commands = run(current, *acks(3))
    assert commands == []
    current, commands = run(current, written(2))
    assert [c.checkpoint.checkpoint_id for c in commands if isinstance(c, WriteManifest)] == [3]
    assert current.pending[0].parent_id == 2
    assert aborted(commands) == [(1, FailureReason.CHECKPOINT_SUBSUMED)]


def test_a_completed_checkpoint_subsumes_older_checkpoints_but_no_savepoint() -> None:
    current, _ = run(
        state(concurrent_max=3), requested("a"), requested("s", SAVEPOINT), requested("b")
    )
    current, commands = run(current, *acks(3), written(3))
    assert aborted(commands) == [(1, FailureReason.CHECKPOINT_SUBSUMED)]
    assert [p.checkpoint_id for p in current.pending] == [2]
    assert CheckpointAborted(ATTEMPT, CheckpointId(1), CheckpointId(3)) in commands


def test_a_savepoint_subsumes_nothing_notifies_no_subtask_and_is_not_kept_for_recovery() -> None:
    current, _ = run(state(), requested("a"), requested("s", SAVEPOINT, target="/backup"))
    assert current.pending[1].request.target == "/backup"
    current, commands = run(current, *acks(2), written(2))
    assert [type(c) for c in commands] == [WriteManifest, RecordCompleted]
    assert [p.checkpoint_id for p in current.pending] == [1]
    assert current.completed == ()


def test_old_checkpoints_are_let_go_when_more_than_retained_max_completed() -> None:
    current, _ = run(state(retained_max=2), requested("a"), *acks(1), written(1))
    current, _ = run(current, requested("b"), *acks(2), written(2))
    oldest = current.completed[0]
    current, commands = run(current, requested("c"), *acks(3), written(3))
    assert commands[-1] == DiscardCheckpoint(oldest)
    assert [c.checkpoint_id for c in current.completed] == [2, 3]


# Scheduling


def test_the_clock_triggers_every_interval_after_the_first_delay() -> None:
    config = state(interval_ms=100).config
    current, _ = run(CoordinatorState(config=config), started(first_delay_ms=30), now_ms=1_000)
    at: list[tuple[int, list[int]]] = []
    for _ in range(4):
        due_ms = next_due_ms(current)
        assert due_ms is not None
        current, commands = run(current, Tick(), now_ms=due_ms)
        at.append((due_ms, triggered(commands)))
        for checkpoint_id in triggered(commands):
            current, _ = run(current, *acks(checkpoint_id), written(checkpoint_id), now_ms=due_ms)
    assert at == [(1_030, [1]), (1_130, [2]), (1_230, [3]), (1_330, [4])]


def test_ticks_that_were_missed_are_made_up_for_by_one_checkpoint() -> None:
    current = state(interval_ms=100, next_periodic_ms=100, concurrent_max=9)
    current, commands = run(current, Tick(), now_ms=5_050)
    assert triggered(commands) == [1]
    assert next_due_ms(current) == 5_100


def test_a_due_checkpoint_waits_for_the_one_under_way_and_only_one_waits() -> None:
    current, _ = run(state(interval_ms=100, next_periodic_ms=100), Tick(), now_ms=100)
    for now_ms in (200, 300, 400):
        current, commands = run(current, Tick(), now_ms=now_ms)
        assert commands == []
    assert len(current.queue) == 1
    current, commands = run(current, *acks(1), written(1), now_ms=450)
    assert triggered(commands) == [2]
    assert current.queue == ()


def test_the_minimum_pause_counts_from_the_last_completion_and_shifts_the_clock() -> None:
    current, _ = run(
        state(interval_ms=100, min_pause_ms=80, next_periodic_ms=100), Tick(), now_ms=100
    )
    current, _ = run(current, *acks(1), written(1), now_ms=190)
    current, commands = run(current, Tick(), now_ms=200)
    assert refused(commands) == [(None, FailureReason.MINIMUM_TIME_BETWEEN_CHECKPOINTS)]
    assert next_due_ms(current) == 270
    current, commands = run(current, Tick(), now_ms=270)
    assert triggered(commands) == [2]


def test_the_minimum_pause_is_nothing_to_what_a_user_asked_for() -> None:
    current = state(min_pause_ms=80, last_completion_ms=100)
    for wanted in (requested("r"), requested("s", SAVEPOINT)):
        assert step(current, wanted, 101).result is TriggerResult.TRIGGERED


def test_a_request_beyond_the_concurrent_ones_is_postponed_and_triggered_in_its_turn() -> None:
    current, _ = run(state(), requested("a"))
    postponed = step(current, requested("b"), 5)
    assert (postponed.commands, postponed.result) == ((), TriggerResult.POSTPONED)
    _, commands = run(postponed.state, *acks(1), written(1), now_ms=9)
    assert triggered(commands) == [2]


def test_savepoints_are_forced_past_a_checkpoint_under_way() -> None:
    current, _ = run(state(), requested("a"))
    assert step(current, requested("s", SAVEPOINT), 0).result is TriggerResult.TRIGGERED


def test_savepoints_wait_where_checkpoints_may_be_unaligned() -> None:
    current, _ = run(state(alignment_timeout_ms=0), requested("a"), requested("b"))
    waits = step(current, requested("s", SAVEPOINT), 0)
    assert waits.result is TriggerResult.POSTPONED
    assert [r.request_id for r in waits.state.queue] == ["s", "b"]


def test_a_request_that_comes_twice_is_carried_out_once() -> None:
    current, _ = run(state(), requested("a"))
    assert step(current, requested("a"), 0).result is TriggerResult.DUPLICATE
    current, _ = run(current, requested("b"))
    again = step(current, requested("b"), 0)
    assert (again.state, again.commands) == (current, ())
    assert again.result is TriggerResult.DUPLICATE


def test_a_checkpoint_that_failed_makes_room_for_the_one_that_waits() -> None:
    current = state(tolerable_failures=9, timeout_ms=50)
    for failure in (decline(), TriggerFailed(CheckpointId(1), "no route"), Tick()):
        waiting, _ = run(current, requested("a"), requested("b"))
        _, commands = run(waiting, failure, now_ms=60)
        assert triggered(commands) == [2]
    waiting, _ = run(current, requested("a"), requested("b"), *acks(1))
    assert triggered(run(waiting, not_written())[1]) == [2]


# Refusals, each provoked


def test_a_request_is_refused_before_the_job_runs() -> None:
    done = step(state(running=False), requested(), 0)
    assert done.result is TriggerResult.REFUSED
    assert refused(list(done.commands)) == [("r1", FailureReason.NOT_ALL_REQUIRED_TASKS_RUNNING)]


def test_a_request_is_refused_when_every_subtask_has_ended() -> None:
    done = step(state(plan=plan(finished=CHAINS)), requested(), 0)
    assert done.result is TriggerResult.REFUSED
    assert refused(list(done.commands)) == [("r1", FailureReason.NOT_ALL_REQUIRED_TASKS_RUNNING)]
    assert done.state.next_id == 1


def test_a_request_is_refused_after_the_job_ended() -> None:
    current, _ = run(state(), JobEnded(JobStatus.FINISHED))
    done = step(current, requested(), 0)
    assert refused(list(done.commands)) == [("r1", FailureReason.CHECKPOINT_COORDINATOR_SHUTDOWN)]


def test_a_request_is_refused_when_the_queue_is_full_of_requests() -> None:
    current, _ = run(state(), requested("first"))
    current = replace(current, queue=tuple(request(f"q{i}") for i in range(QUEUE_MAX)))
    done = step(current, requested("late"), 1)
    assert done.result is TriggerResult.REFUSED
    assert refused(list(done.commands)) == [("late", FailureReason.TOO_MANY_CHECKPOINT_REQUESTS)]
    assert done.state == current


def test_a_full_queue_drops_the_clocks_request_for_one_that_a_user_made() -> None:
    current, _ = run(state(), requested("first"))
    queue = (*(request(f"q{i}") for i in range(QUEUE_MAX - 1)), request(None))
    done = step(replace(current, queue=queue), requested("late"), 1)
    assert done.result is TriggerResult.POSTPONED
    assert refused(list(done.commands)) == [(None, FailureReason.TOO_MANY_CHECKPOINT_REQUESTS)]


def test_what_waits_is_refused_when_the_job_stops_running() -> None:
    current, _ = run(
        state(interval_ms=100, next_periodic_ms=100), requested("a"), requested("b"), Tick(),
        now_ms=100,
    )  # fmt: skip
    current, commands = run(current, FAILOVER)
    assert refused(commands) == [
        ("b", FailureReason.NOT_ALL_REQUIRED_TASKS_RUNNING),
        (None, FailureReason.PERIODIC_SCHEDULER_SHUTDOWN),
    ]
    assert aborted(commands) == [(1, FailureReason.JOB_FAILOVER)]
    assert (current.queue, next_due_ms(current)) == ((), None)
    check_invariants(current)


# A request is taken back


@pytest.mark.parametrize("kind", [CheckpointKind.CHECKPOINT, SAVEPOINT, STOP, DRAIN])
def test_a_request_that_waits_can_be_withdrawn(kind: CheckpointKind) -> None:
    current = state(alignment_timeout_ms=0, interval_ms=1_000, next_periodic_ms=900)
    current, _ = run(current, requested("first"), requested("second", kind), requested("third"))
    done = withdraw(current, "second", "too late", 1)
    assert refused(list(done.commands)) == [("second", FailureReason.CHECKPOINT_EXPIRED)]
    check_invariants(done.state)
    assert done.state.next_periodic_ms is not None
    after, commands = run(done.state, *acks(), written(), now_ms=10)
    assert triggered(commands) == [2]
    assert [pending.request.request_id for pending in after.pending] == ["third"]
    assert withdraw(done.state, "second", "too late", 1) == Step(done.state)


@pytest.mark.parametrize("kind", [SAVEPOINT, STOP])
def test_a_savepoint_under_way_can_be_withdrawn_and_fails_nothing(kind: CheckpointKind) -> None:
    current = state(interval_ms=1_000, next_periodic_ms=900)
    current, _ = run(current, requested("first", kind=kind), ack("source-0"))
    done = withdraw(current, "first", "too late", 500)
    told, recorded, removed = done.commands
    assert isinstance(told, CheckpointAborted)
    assert isinstance(recorded, RecordAborted)
    assert (recorded.reason, recorded.cause) == (FailureReason.CHECKPOINT_EXPIRED, "too late")
    assert removed == DiscardPending(CheckpointId(1))
    assert done.state.pending == ()
    assert done.state.next_periodic_ms is not None
    check_invariants(done.state)
    late = step(done.state, ack("source-1", handles=(handle(),)), 600)
    assert (late.result, late.commands) == (AckResult.LATE, (DiscardHandles((handle(),)),))


@pytest.mark.parametrize("kind", [CheckpointKind.CHECKPOINT, DRAIN])
def test_what_serves_the_job_or_cannot_be_undone_goes_on(kind: CheckpointKind) -> None:
    current, _ = run(state(), requested("first", kind=kind))
    assert withdraw(current, "first", "too late", 500) == Step(current)


def test_a_savepoint_whose_manifest_is_being_written_is_not_withdrawn() -> None:
    current, _ = run(state(), requested("first", kind=SAVEPOINT), *acks())
    assert current.pending[0].is_finalizing
    assert withdraw(current, "first", "too late", 500) == Step(current)
    _, commands = run(current, written())
    assert [type(c) for c in commands] == [RecordCompleted]


# Failures


def provoke(reason: FailureReason) -> list[CoordinatorEvent]:
    """Events after a trigger that end checkpoint 1 with a counting reason."""
    match reason:
        case FailureReason.IO_EXCEPTION:
            return [TriggerFailed(CheckpointId(1), "storage is read-only")]
        case FailureReason.CHECKPOINT_ASYNC_EXCEPTION | FailureReason.CHECKPOINT_DECLINED:
            return [decline(reason=reason)]
        case FailureReason.CHECKPOINT_EXPIRED:
            return [Tick()]
        case FailureReason.FINALIZE_CHECKPOINT_FAILURE:
            return [*acks(), not_written()]
        case _:
            raise AssertionError(reason)


@pytest.mark.parametrize("reason", sorted(COUNTING_REASONS))
@pytest.mark.parametrize("tolerable", [0, 1])
def test_every_counting_reason_fails_the_job_beyond_what_is_tolerated(
    reason: FailureReason, tolerable: int
) -> None:
    current, _ = run(state(timeout_ms=50, tolerable_failures=tolerable), requested())
    current, commands = run(current, *provoke(reason), now_ms=50)
    assert aborted(commands) == [(1, reason)]
    failed = [c for c in commands if isinstance(c, FailJob)]
    assert len(failed) == (1 if tolerable == 0 else 0)
    if failed:
        assert failed[0].cause.startswith(f"checkpoint 1 failed: {reason}")
        assert "tolerable_failures" in failed[0].cause


@pytest.mark.parametrize("reason", sorted(COUNTING_REASONS))
def test_a_savepoint_that_fails_leaves_the_job_running(reason: FailureReason) -> None:
    current, _ = run(state(timeout_ms=50), requested(kind=SAVEPOINT))
    current, commands = run(current, *provoke(reason), now_ms=50)
    assert not any(isinstance(c, FailJob) for c in commands)
    assert current.pending == ()


def test_a_failover_is_no_failure_of_the_checkpoint() -> None:
    current, commands = run(state(), requested(), FAILOVER)
    assert not [c for c in commands if isinstance(c, FailJob)]
    assert current.failures.in_a_row == 0


def test_a_success_makes_earlier_failures_forgotten() -> None:
    current = state(tolerable_failures=1)
    for first in (1, 3, 5):
        current, commands = run(current, requested(f"a{first}"), decline("sink-0", first))
        assert not [c for c in commands if isinstance(c, FailJob)]
        current, _ = run(current, requested(f"b{first}"), *acks(first + 1), written(first + 1))


def test_what_is_remembered_of_aborted_checkpoints_is_bounded() -> None:
    """An acknowledgement later than that is ignored: its files are left to the storage's sweep."""
    current = state(tolerable_failures=10**9)
    for checkpoint_id in range(1, ABORTED_REMEMBERED + 2):
        current, _ = run(current, requested(), decline("sink-0", checkpoint_id))
    assert len(current.aborted_ids) == ABORTED_REMEMBERED
    forgotten = step(current, ack("source-0", 1, handles=(handle(),)), 0)
    assert (forgotten.commands, forgotten.result) == ((), AckResult.LATE)


# The life of the job


def test_the_clock_starts_with_the_job_and_stops_when_it_leaves_running() -> None:
    config = state(interval_ms=100).config
    current = CoordinatorState(config=config)
    assert next_due_ms(current) is None
    current, _ = run(current, started(first_delay_ms=40), now_ms=10)
    assert next_due_ms(current) == 50
    current, _ = run(current, FAILOVER, now_ms=20)
    assert next_due_ms(current) is None
    assert run(current, Tick(), now_ms=1_000)[1] == []
    current, _ = run(current, started(2, first_delay_ms=0), now_ms=2_000)
    assert next_due_ms(current) == 2_000


@pytest.mark.parametrize("delay_ms", [19, 101])
def test_a_first_delay_outside_pause_and_interval_is_refused(delay_ms: int) -> None:
    fresh = CoordinatorState(config=state(interval_ms=100, min_pause_ms=20).config)
    with pytest.raises(
        ProtocolError, match=r"between the minimum pause \(20 ms\) and the interval"
    ):
        step(fresh, started(first_delay_ms=delay_ms), 0)


def test_events_of_the_jobs_life_that_come_twice_or_late_change_nothing() -> None:
    current, _ = run(CoordinatorState(), started(1))
    assert step(current, started(1), 0).result is AckResult.DUPLICATE
    current, _ = run(current, FAILOVER)
    assert step(current, FAILOVER, 0).result is AckResult.DUPLICATE
    assert step(current, started(1), 0).result is AckResult.STALE_ATTEMPT
    assert step(current, finished("source-0"), 0).result is AckResult.LATE
    current, _ = run(current, started(2))
    for event in (started(1), FAILOVER, finished("source-0"), decline()):
        late = step(current, event, 0)
        assert (late.state, late.commands) == (current, ())
        assert late.result is AckResult.STALE_ATTEMPT


def test_restored_checkpoints_are_there_before_the_job_runs_and_ids_go_on_after_them() -> None:
    held = (completed(4), completed(2))
    current, commands = run(
        CoordinatorState(), CheckpointsRestored(held, CheckpointId(7)), started(restored_from=4)
    )
    assert commands == []
    assert current.latest_completed_id == 4
    current, commands = run(current, requested())
    assert triggered(commands) == [7]
    current, _ = run(current, *acks(7), written(7))
    assert current.completed[-1].parent_id == 4


def test_ids_never_go_back_to_what_the_storage_remembers() -> None:
    fresh = replace(CoordinatorState(), next_id=CheckpointId(9))
    current, _ = run(fresh, CheckpointsRestored((completed(4),), CheckpointId(5)))
    assert current.next_id == 9


def test_checkpoints_are_taken_again_after_a_stop_that_ended_in_a_failover() -> None:
    current, _ = run(state(), requested("stop", STOP), *acks(), written(), FAILOVER, started(2))
    assert step(current, requested(), 0).result is TriggerResult.TRIGGERED


@pytest.mark.parametrize(
    ("retention", "status", "is_kept"),
    [
        (Retention.RETAIN_ON_CANCELLATION, JobStatus.CANCELED, True),
        (Retention.RETAIN_ON_CANCELLATION, JobStatus.FINISHED, False),
        (Retention.DELETE_ON_CANCELLATION, JobStatus.CANCELED, False),
        (Retention.DELETE_ON_CANCELLATION, JobStatus.FAILED, True),
    ],
)
def test_the_end_of_the_job_keeps_or_deletes_its_checkpoints(
    retention: Retention, status: JobStatus, is_kept: bool
) -> None:
    held = completed(1)
    current = state(retention=retention, completed=(held,), next_id=CheckpointId(2))
    current, _ = run(current, requested())
    current, commands = run(current, JobEnded(status))
    assert aborted(commands) == [(2, END_REASONS[status])]
    assert settled(commands) == {
        2: CheckpointStatus.FAILED if status is JobStatus.FAILED else CheckpointStatus.ABORTED
    }
    assert (DiscardCheckpoint(held) in commands) is not is_kept
    assert current.completed == ((held,) if is_kept else ())
    again = step(current, JobEnded(status), 0)
    assert (again.commands, again.result) == ((), AckResult.DUPLICATE)


# Planned ends


@pytest.mark.parametrize("reason", PLANNED_STOPS)
def test_a_planned_end_of_the_attempt_aborts_its_checkpoints(reason: FailureReason) -> None:
    current, commands = run(
        state(tolerable_failures=0), requested(), CheckpointingStopped(ATTEMPT, reason)
    )
    assert aborted(commands) == [(1, reason)]
    assert settled(commands) == {1: CheckpointStatus.ABORTED}
    assert not [c for c in commands if isinstance(c, FailJob)]
    assert current.failures.in_a_row == 0
    check_invariants(current)


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        *((CheckpointingStopped(ATTEMPT, planned), planned) for planned in PLANNED_STOPS),
        (JobEnded(JobStatus.FINISHED), FailureReason.JOB_FINISHED),
        (JobEnded(JobStatus.CANCELED), FailureReason.JOB_CANCELED),
    ],
)
def test_a_manifest_that_a_planned_end_prevented_is_no_failure(
    end: CoordinatorEvent, reason: FailureReason
) -> None:
    """Its driver is gone, so a tombstone settles it long after the end."""
    current, commands = run(state(tolerable_failures=0), requested(), *acks(), end)
    assert aborted(commands) == [], "only the outcome of writing settles it"
    current, commands = run(current, not_written())
    assert aborted(commands) == [(1, reason)]
    assert settled(commands) == {1: CheckpointStatus.ABORTED}
    check_invariants(current)


@pytest.mark.parametrize("end", [FAILOVER, JobEnded(JobStatus.FAILED)])
def test_a_manifest_that_a_failure_prevented_is_one(end: CoordinatorEvent) -> None:
    _, commands = run(state(), requested(), *acks(), end, not_written())
    assert aborted(commands) == [(1, FailureReason.FINALIZE_CHECKPOINT_FAILURE)]
    assert settled(commands) == {1: CheckpointStatus.FAILED}


def test_a_manifest_that_the_failure_before_the_cancellation_prevented_stays_one() -> None:
    _, commands = run(
        state(), requested(), *acks(), FAILOVER, JobEnded(JobStatus.CANCELED), not_written()
    )
    assert settled(commands) == {1: CheckpointStatus.FAILED}


def test_a_planned_end_says_nothing_about_the_next_attempt() -> None:
    end = CheckpointingStopped(ATTEMPT, FailureReason.JOB_RESTARTED)
    current, _ = run(state(), end, started(2), requested(), *acks(attempt=2))
    _, commands = run(current, not_written())
    assert settled(commands) == {1: CheckpointStatus.FAILED}


@pytest.mark.parametrize("kind", [STOP, DRAIN])
def test_the_savepoint_of_a_stop_aborts_what_it_overtakes(kind: CheckpointKind) -> None:
    current, _ = run(state(), requested("a"), requested("stop", kind))
    current, commands = run(current, *acks(2), written(2))
    assert aborted(commands) == [(1, FailureReason.JOB_STOPPED)]
    assert settled(commands) == {1: CheckpointStatus.ABORTED}


@pytest.mark.parametrize("end", [FAILOVER, JobEnded(JobStatus.FINISHED)])
def test_after_the_savepoint_of_a_stop_no_end_fails_a_checkpoint(end: CoordinatorEvent) -> None:
    current, _ = run(state(), requested("s", SAVEPOINT), requested("stop", STOP), *acks(2))
    current, _ = run(current, written(2))
    assert [p.checkpoint_id for p in current.pending] == [1]
    _, commands = run(current, end)
    assert aborted(commands) == [(1, FailureReason.JOB_STOPPED)]


def test_a_manifest_written_after_the_job_ended_is_deleted_where_nothing_is_kept() -> None:
    current, _ = run(state(), requested(), *acks(), JobEnded(JobStatus.FINISHED))
    current, commands = run(current, written())
    assert [type(c) for c in commands] == [RecordCompleted, DiscardCheckpoint]
    assert current.completed == ()


@pytest.mark.parametrize("outcome", [written(3), not_written(3)])
def test_the_base_of_a_manifest_that_is_being_written_outlives_the_job_until_it_is_known(
    outcome: CoordinatorEvent,
) -> None:
    """That manifest names files of its base."""
    current, _ = run(state(), requested(), *acks(), written(), requested(), *acks(2), written(2))
    current, _ = run(current, requested(), *acks(3))
    assert [p.barrier.options.base_id for p in current.pending] == [2]
    current, commands = run(current, JobEnded(JobStatus.FINISHED))
    assert discarded(commands) == [1]
    check_invariants(current)
    current, commands = run(current, outcome)
    assert discarded(commands) == ([2, 3] if outcome == written(3) else [2])
    assert current.completed == ()


def test_nothing_periodic_is_triggered_on_the_way_to_a_stop() -> None:
    current = state(interval_ms=100, next_periodic_ms=100)
    current, _ = run(current, requested("a"), Tick(), now_ms=100)
    current, commands = run(current, requested("stop", STOP), now_ms=110)
    assert refused(commands) == [(None, FailureReason.PERIODIC_SCHEDULER_SHUTDOWN)]
    assert triggered(commands) == [2]
    assert next_due_ms(current) == 600_100


def test_after_a_stop_completed_nothing_more_is_triggered() -> None:
    current, _ = run(state(interval_ms=100, next_periodic_ms=100), requested("stop", STOP))
    current, _ = run(current, requested("b"))
    current, commands = run(current, *acks(1), written(1))
    assert [type(c) for c in commands] == [
        WriteManifest,
        RecordCompleted,
        CheckpointCompleted,
        CheckpointRefused,
    ]
    assert CheckpointCompleted(ATTEMPT, CheckpointId(1), final=True) in commands
    assert refused(commands) == [("b", FailureReason.NOT_ALL_REQUIRED_TASKS_RUNNING)]
    assert next_due_ms(current) is None
    assert step(current, requested("c"), 0).result is TriggerResult.REFUSED


def test_the_clock_goes_on_after_a_stop_that_expired() -> None:
    current = state(interval_ms=100, min_pause_ms=20, next_periodic_ms=100, timeout_ms=50)
    current, _ = run(current, requested("stop", STOP))
    current, commands = run(current, Tick(), now_ms=50)
    assert aborted(commands) == [(1, FailureReason.CHECKPOINT_EXPIRED)]
    assert not [c for c in commands if isinstance(c, FailJob)]
    assert next_due_ms(current) == 70


@pytest.mark.parametrize(
    "event", [decline(), Tick(), TriggerFailed(CheckpointId(1), "away"), given_up()]
)
@pytest.mark.parametrize("kind", [STOP, DRAIN])
def test_a_drain_that_is_aborted_fails_the_job_and_a_suspend_goes_on(
    kind: CheckpointKind, event: CoordinatorEvent
) -> None:
    current, _ = run(state(tolerable_failures=99, timeout_ms=50), requested("stop", kind))
    current, commands = run(current, event, now_ms=50)
    assert [c.attempt for c in commands if isinstance(c, FailJob)] == [1] * (kind is DRAIN)
    assert current.pending == ()


def test_a_drain_whose_manifest_cannot_be_written_fails_the_job() -> None:
    current, _ = run(state(), requested("stop", DRAIN), *acks())
    _, commands = run(current, not_written())
    assert [c.attempt for c in commands if isinstance(c, FailJob)] == [1]


def test_a_drain_that_ends_with_its_attempt_fails_nothing_more() -> None:
    current, _ = run(state(), requested("stop", DRAIN))
    _, commands = run(current, FAILOVER)
    assert aborted(commands) == [(1, FailureReason.JOB_FAILOVER)]
    assert not [c for c in commands if isinstance(c, FailJob)]


@pytest.mark.parametrize("kind", [SAVEPOINT, STOP, DRAIN])
def test_a_savepoint_goes_where_it_was_asked_to(kind: CheckpointKind) -> None:
    current, (trigger,) = run(state(), requested("s", kind, target="/backup/s"))
    assert isinstance(trigger, TriggerCheckpoint)
    assert trigger.barrier.options == BarrierOptions(kind, target="/backup/s")
    _, commands = run(current, *acks(), written())
    (done,) = [c.checkpoint for c in commands if isinstance(c, RecordCompleted)]
    assert (done.kind, done.target) == (kind, "/backup/s")


def test_savepoints_and_stops_need_no_clock() -> None:
    current, commands = run(state(interval_ms=None), requested("s", SAVEPOINT))
    assert triggered(commands) == [1]
    current, _ = run(current, *acks(), written())
    current, commands = run(current, requested("stop", STOP), decline(checkpoint_id=2))
    assert triggered(commands) == [2]
    assert next_due_ms(current) is None
    check_invariants(current)


# Going back, and on again.

BRANCH = line((2, 5, 9), (1, 1, 2))  # Attempt 2 went on from checkpoint 2.


def four(**settings: object) -> CoordinatorState:
    """The job took four checkpoints in its first attempt, and does not run."""
    own = tuple(completed(n) for n in (1, 2, 3, 4))
    return state(running=False, completed=own, next_id=CheckpointId(5), **settings)


def abandoned(current: CoordinatorState) -> dict[int, int]:
    return {
        c.checkpoint_id: c.abandoned_at_ms
        for c in current.completed
        if c.abandoned_at_ms is not None
    }


def test_going_back_abandons_what_lies_beside_the_new_line() -> None:
    current, commands = run(four(), started(2, restored_from=2, lineage=BRANCH), now_ms=100)
    assert commands == [RecordAbandoned((CheckpointId(3), CheckpointId(4)))]
    assert abandoned(current) == {3: 100, 4: 100}
    assert current.latest_completed_id == 2
    check_invariants(current)


def test_what_is_abandoned_does_not_count_among_those_retained() -> None:
    current, _ = run(four(retained_max=2), started(2, lineage=BRANCH))
    _, commands = run(current, requested(), *acks(5, attempt=2), written(5))
    assert discarded(commands) == [1]
    current, commands = run(current, requested(), *acks(5, attempt=2), written(5))
    assert [c.checkpoint_id for c in current.completed] == [2, 3, 4, 5]
    assert current.latest_completed_id == 5


def test_going_on_from_an_abandoned_branch_reclaims_it_and_abandons_the_other() -> None:
    current, _ = run(four(), started(2, restored_from=2, lineage=BRANCH), now_ms=100)
    current, _ = run(current, requested(), *acks(5, attempt=2), written(5))
    current, _ = run(current, CheckpointingStopped(AttemptNumber(2), FailureReason.JOB_FAILOVER))
    forward = line((3, 6, 99), (1, 1, 4))
    current, commands = run(current, started(3, restored_from=4, lineage=forward), now_ms=300)
    assert commands == [
        RecordAbandoned((CheckpointId(5),)),
        RecordReclaimed((CheckpointId(3), CheckpointId(4))),
    ]
    assert abandoned(current) == {5: 300}
    assert current.latest_completed_id == 4


def test_the_base_of_a_checkpoint_whose_manifest_is_being_written_is_not_let_go() -> None:
    """Its attempt is over, and the next one went back behind its base: the manifest may come."""
    before = four(abandoned_ttl_ms=0, tolerable_failures=1)
    current, _ = run(before, started(2, restored_from=4, lineage=line((2, 5, 99), (1, 1, 4))))
    current, commands = run(current, requested(), *acks(5, attempt=2))
    assert commands[0] == TriggerCheckpoint(
        AttemptNumber(2), barrier(5, base_id=4), started(2).plan.entries()
    )
    current, _ = run(current, CheckpointingStopped(AttemptNumber(2), FailureReason.JOB_FAILOVER))
    behind = line((3, 6, 99), (1, 1, 3))
    current, _ = run(current, started(3, restored_from=3, lineage=behind), now_ms=100)
    assert abandoned(current) == {4: 100}
    current, commands = run(current, Tick(), now_ms=200)
    assert discarded(commands) == []
    current, _ = run(current, not_written(5), now_ms=200)
    assert discarded(run(current, Tick(), now_ms=200)[1]) == [4]


def test_of_an_unknown_line_nothing_is_abandoned() -> None:
    current, commands = run(four(), started(2, restored_from=2))
    assert (commands, abandoned(current)) == ([], {})


def test_what_stays_abandoned_is_let_go_in_time_and_only_while_the_job_runs() -> None:
    current, _ = run(four(abandoned_ttl_ms=50), started(2, lineage=BRANCH), now_ms=100)
    assert next_due_ms(current) == 150
    _, commands = run(current, Tick(), now_ms=149)
    assert commands == []
    halted, _ = run(current, CheckpointingStopped(AttemptNumber(2), FailureReason.JOB_FAILOVER))
    assert next_due_ms(halted) is None
    assert run(halted, Tick(), now_ms=150)[1] == []
    current, commands = run(current, Tick(), now_ms=150)
    assert discarded(commands) == [3, 4]
    assert [c.checkpoint_id for c in current.completed] == [1, 2]
    assert next_due_ms(current) is None


def test_a_job_that_keeps_nothing_at_its_end_keeps_nothing_abandoned() -> None:
    current, _ = run(four(), started(2, lineage=BRANCH))
    current, commands = run(current, JobEnded(JobStatus.FINISHED))
    assert discarded(commands) == [1, 2, 3, 4]


def test_since_when_one_is_abandoned_survives_another_look_at_the_storage() -> None:
    current, _ = run(four(), started(2, lineage=BRANCH), now_ms=100)
    current, _ = run(current, CheckpointingStopped(AttemptNumber(2), FailureReason.JOB_FAILOVER))
    restored = CheckpointsRestored(tuple(completed(n) for n in (2, 4)), CheckpointId(5))
    current, _ = run(current, restored, now_ms=200)
    assert abandoned(current) == {4: 100}


def test_a_checkpoint_of_the_attempt_before_that_completes_late_is_abandoned_at_once() -> None:
    """Its successor had gone on from an older one before the manifest was known to exist."""
    current, _ = run(state(), requested(), *acks(), FAILOVER, started(2))
    current, commands = run(current, written(), now_ms=70)
    assert RecordAbandoned((CheckpointId(1),)) in commands
    assert abandoned(current) == {1: 70}
    assert current.latest_completed_id is None
    check_invariants(current)


def test_a_second_stop_waits_for_the_first() -> None:
    current, _ = run(state(), requested("one", STOP))
    second = step(current, requested("two", STOP), 0)
    assert second.result is TriggerResult.POSTPONED


# Subtasks that end


def test_sources_that_ended_are_not_triggered_and_count_as_acknowledged() -> None:
    current, _ = run(state(), finished("source-0"))
    current, commands = run(current, requested())
    assert commands == [TriggerCheckpoint(ATTEMPT, barrier(1, base_id=0), (subtask("source-1"),))]
    assert current.pending[0].missing == subtasks("source-1", "parse-1", "sink-0", "sink-1")
    assert current.pending[0].finished == subtasks("source-0")


def test_a_subtask_that_ends_instead_of_acknowledging_completes_the_checkpoint() -> None:
    current, _ = run(state(), requested(), ack("source-1"), ack("sink-0"), ack("sink-1"))
    current, [command] = run(current, finished("source-0"))
    assert isinstance(command, WriteManifest)
    assert command.checkpoint.finished == subtasks("source-0")
    assert step(current, finished("source-0"), 0).result is AckResult.DUPLICATE


def test_those_whose_inputs_all_ended_get_the_barrier_injected() -> None:
    """A checkpoint is triggered, but both sources end before the command reaches them: no barrier
    will ever come to the sinks, so they are triggered themselves."""
    current, _ = run(state(), requested(), ack("sink-1"))
    current, commands = run(current, finished("source-0"))
    assert commands == []
    current, commands = run(current, finished("source-1"))
    assert commands == [TriggerCheckpoint(ATTEMPT, barrier(1, base_id=0), (subtask("sink-0"),))]
    _, commands = run(current, ack("sink-0"))
    assert [type(c) for c in commands] == [WriteManifest]
    current, commands = run(state(plan=plan(finished=("source-0", "source-1"))), requested())
    assert [c.sources for c in commands if isinstance(c, TriggerCheckpoint)] == [
        (subtask("sink-0"), subtask("sink-1"))
    ]


def test_a_barrier_is_injected_where_only_one_of_several_paths_ended() -> None:
    source, mapped = OperatorId("source"), OperatorId("mapped")
    one_to_one = CheckpointPlan(
        chains=(
            PlannedChain(source, (source,), ((), ())),
            PlannedChain(
                mapped, (mapped,), ((SubtaskRange(source, 0, 0),), (SubtaskRange(source, 1, 1),))
            ),
        )
    )
    assert one_to_one.without(subtask("source-0")).entries() == (
        subtask("source-1"),
        subtask("mapped-0"),
    )


# What no correct peer sends


@pytest.mark.parametrize(
    ("event", "problem"),
    [
        (ack("source-0", 5), "checkpoint 5 was never triggered"),
        (ack("source-0", 0), "checkpoint 0 was never triggered"),
        (ack("source-0", attempt=2), "attempt 2 reports, but 1 is the newest"),
        (replace(ack("source-0"), chain=subtask("sink-0")), "the chain runs sink-0"),
        (replace(ack("source-0"), chain=subtask("source-9")), "source-9 is no chain"),
        (replace(ack("source-0"), operators=()), "for nothing; the chain runs parse-0, source-0"),
        (decline("other-0"), "other-0 is no chain"),
        (decline(reason=FailureReason.JOB_FAILOVER), "which is no reason of a subtask"),
        (written(1), "no manifest was requested for checkpoint 1"),
        (written(2), "checkpoint 2 was never triggered"),
        (TriggerFailed(CheckpointId(2), ""), "checkpoint 2 was never triggered"),
        (finished("other-0"), "other-0 is no chain"),
        (started(2), "attempt 2 started while attempt 1 runs"),
        (CheckpointingStopped(ATTEMPT, FailureReason.IO_EXCEPTION), "no reason"),
        (JobEnded(JobStatus.RUNNING), "running is not a final job status"),
        (CheckpointsRestored((), CheckpointId(9)), "only before the job runs"),
        (given_up(2), "checkpoint 2 was never triggered"),
        (given_up(attempt=2), "attempt 2 reports, but 1 is the newest"),
        (given_up(reason=FailureReason.CHECKPOINT_EXPIRED), "no reason for a driver to give"),
    ],
)
def test_what_only_a_bug_can_send_is_an_error(event: CoordinatorEvent, problem: str) -> None:
    current, _ = run(state(), requested())
    with pytest.raises(ProtocolError, match=problem):
        step(current, event, 0)


@pytest.mark.parametrize(
    ("event", "problem"),
    [
        (CheckpointsRestored((completed(1), completed(1)), CheckpointId(2)), "twice"),
        (CheckpointsRestored((completed(3, kind=SAVEPOINT),), CheckpointId(4)), "savepoints"),
        (CheckpointsRestored((completed(3),), CheckpointId(3)), "but checkpoint 3 exists"),
    ],
)
def test_a_storage_that_contradicts_itself_is_an_error(
    event: CheckpointsRestored, problem: str
) -> None:
    with pytest.raises(ProtocolError, match=problem):
        step(CoordinatorState(), event, 0)


def test_a_job_that_ended_cannot_start_again() -> None:
    current, _ = run(state(), JobEnded(JobStatus.CANCELED))
    with pytest.raises(ProtocolError, match="is over: the job canceled"):
        step(current, started(2), 0)


# The job master and the coordinator apart.


def test_a_checkpoint_that_the_job_master_gave_up_is_aborted_and_is_no_failure() -> None:
    current, _ = run(state(tolerable_failures=0), requested(), ack("source-0"))
    done = step(current, given_up(cause="no answer"), 50)
    assert done.result is AckResult.ACCEPTED
    assert done.state.pending == ()
    assert done.state.failures.in_a_row == 0
    commands = list(done.commands)
    assert commands[0] == CheckpointAborted(ATTEMPT, CheckpointId(1), None)
    assert aborted(commands) == [(1, FailureReason.CONTROL_PLANE_AWAY)]
    assert DiscardPending(CheckpointId(1)) in commands
    assert not [c for c in commands if isinstance(c, FailJob)]
    late = step(done.state, ack("sink-0", handles=(handle(),)), 60)
    assert (late.result, late.commands) == (AckResult.LATE, (DiscardHandles((handle(),)),))


def test_what_waited_for_a_checkpoint_that_was_given_up_is_triggered() -> None:
    current, _ = run(state(), requested("r1"), requested("r2"))
    _, commands = run(current, given_up())
    assert triggered(commands) == [2]


def test_a_checkpoint_whose_manifest_is_being_written_cannot_be_given_up() -> None:
    """All had acknowledged before: the job master was about to be asked for the manifest."""
    current, _ = run(state(), requested(), *acks())
    done = step(current, given_up(), 0)
    assert (done.state, done.commands, done.result) == (current, (), AckResult.LATE)
    current, commands = run(current, written())
    assert CheckpointCompleted(ATTEMPT, CheckpointId(1)) in commands


def test_what_was_given_up_twice_or_in_another_attempt_changes_nothing() -> None:
    current, _ = run(state(), requested(), given_up())
    assert step(current, given_up(), 0).result is AckResult.LATE
    current, _ = run(current, FAILOVER, started(2), requested("r2"))
    stale = step(current, given_up(2), 0)
    assert (stale.state, stale.commands) == (current, ())
    assert stale.result is AckResult.STALE_ATTEMPT


def test_time_that_was_lost_counts_against_no_checkpoint() -> None:
    current, _ = run(state(timeout_ms=100), requested())
    current, commands = run(current, TimeLost(1_000), now_ms=1_050)
    assert commands == []
    assert next_due_ms(current) == 1_100
    current, commands = run(current, Tick(), now_ms=1_099)
    assert aborted(commands) == []
    _, commands = run(current, Tick(), now_ms=1_100)
    assert aborted(commands) == [(1, FailureReason.CHECKPOINT_EXPIRED)]


def test_time_cannot_be_lost_backwards_nor_for_a_manifest() -> None:
    current, _ = run(state(timeout_ms=100), requested("r1"))
    assert run(current, TimeLost(-50)) == (current, [])
    current, _ = run(current, *acks())
    assert run(current, TimeLost(1_000)) == (current, [])


def test_a_job_that_is_started_again_keeps_its_checkpoints_and_numbers() -> None:
    current, _ = run(state(), requested(), *acks(), written(), JobEnded(JobStatus.CANCELED))
    config = CheckpointConfig(interval_ms=70)
    again = reopened(current, config)
    check_invariants(again)
    assert (again.ended, again.config, again.completed) == (None, config, current.completed)
    again, commands = run(again, started(2, config=config, restored_from=1), requested("r2"))
    assert triggered(commands) == [2]


def test_only_a_job_that_ended_and_settled_everything_is_started_again() -> None:
    running, _ = run(state(), requested())
    writing, _ = run(running, *acks(), JobEnded(JobStatus.CANCELED))
    for current in (running, writing):
        with pytest.raises(ProtocolError, match="only a job that has ended"):
            reopened(current, CheckpointConfig())


def test_a_checkpoint_that_a_replaced_driver_completed_is_aborted_no_more() -> None:
    """It was given up here; the driver had written its manifest, and its successor found it."""
    current, _ = run(state(), requested(), *acks(), not_written(), FAILOVER)
    assert current.aborted_ids == (1,)
    current, _ = run(current, CheckpointsRestored((completed(1),), CheckpointId(2)))
    check_invariants(current)
    assert current.aborted_ids == ()
    assert current.latest_completed_id == 1


def test_a_checkpoint_changes_status_only_as_the_table_says() -> None:
    with pytest.raises(ProtocolError, match="cannot go from pending to completed"):
        pending().moved_to(CheckpointStatus.COMPLETED)


def test_invariants_name_what_is_broken() -> None:
    broken = state(pending=(pending(1), pending(1)), next_id=CheckpointId(1))
    with pytest.raises(ProtocolError, match="pending ids grow; no id was taken before its time"):
        check_invariants(broken)
