"""The figures of a mode: from events that a job emits to rates, percentiles and counts."""

from dataclasses import replace

import pytest

from tests.builders import edge, graph, node, subtask
from weir.config import CheckpointConfig, CheckpointingMode
from weir.errors import ConfigError
from weir.ids import AttemptNumber, CheckpointId
from weir.protocol.elements import CheckpointKind
from weir.protocol.events import (
    AttemptStarted,
    CheckpointSettled,
    CheckpointTriggered,
    JobChanged,
    JobEvent,
    Recovered,
)
from weir.protocol.lifecycle import CheckpointStatus, FailureReason, JobStatus, SubtaskStatus
from weir.protocol.messages import (
    Acknowledged,
    OperatorAck,
    SnapshotMetrics,
    SubtaskChanged,
    SubtaskMetrics,
)
from weir.tools.checkpoint_modes import MODES, modes_named
from weir.tools.mode_figures import (
    CheckpointFigures,
    Percentiles,
    RunFigures,
    RunMeter,
    Spread,
    combine,
    percentiles,
)

GRAPH = graph(
    [node("source", 2, is_source=True), node("work", 2), node("sink", 2, is_sink=True)],
    [edge("source", "work", partitioning="hash"), edge("work", "sink", partitioning="rebalance")],
)
LIMIT_S = 10.0


class Run:
    """A run whose clock is moved by hand."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.meter = RunMeter(GRAPH, lambda: self.now_s, LIMIT_S)

    def at(self, second: float, *events: JobEvent) -> "Run":
        """Emit events at a second since the job runs."""
        self.now_s = 100.0 + second
        for event in events:
            self.meter.on_event(event)
        return self


def job(status: JobStatus) -> JobChanged:
    return JobChanged(0, status)


def records(chain: str, count: int, attempt: int = 1) -> SubtaskMetrics:
    return SubtaskMetrics(AttemptNumber(attempt), subtask(chain), count, 0, 0, 0, 0, 0, 0, None)


def triggered(number: int, kind: CheckpointKind = CheckpointKind.CHECKPOINT) -> CheckpointTriggered:
    return CheckpointTriggered(0, CheckpointId(number), kind, ())


def settled(number: int, ms: int, failure: FailureReason | None = None) -> CheckpointSettled:
    return CheckpointSettled(0, CheckpointId(number), ms, failure, state_size=70)


def acknowledged(number: int, name: str, **metrics: object) -> Acknowledged:
    measured = replace(SnapshotMetrics(), **metrics)  # type: ignore[arg-type]
    ack = OperatorAck(subtask(name), (), measured)
    return Acknowledged(AttemptNumber(1), CheckpointId(number), subtask(name), (ack,))


def test_rates_leave_out_the_first_fifth_and_add_subtasks_up() -> None:
    run = Run().at(0, job(JobStatus.RUNNING))
    run.at(1, records("source-0", 90_000), records("sink-0", 80_000), records("work-0", 7))
    for second in range(2, 11):
        run.at(second, records("source-0", 90_000 + 100 * second), records("source-1", 20 * second))
        run.at(second, records("sink-0", 80_000 + 30 * second), records("work-0", 999 * second))
    figures = run.at(10, job(JobStatus.CANCELED)).meter.figures()
    assert figures.running_s == 10
    assert figures.source_rate == pytest.approx(120)
    assert figures.sink_rate == pytest.approx(30)


def test_a_run_of_one_report_has_no_rate() -> None:
    run = Run().at(0, job(JobStatus.RUNNING)).at(0.5, records("source-0", 5))
    figures = run.at(0.6, job(JobStatus.FINISHED)).meter.figures()
    assert (figures.source_rate, figures.sink_rate) == (None, None)


def test_reports_of_an_ended_subtask_do_not_slow_the_rate_down() -> None:
    ended = SubtaskChanged(AttemptNumber(1), subtask("source-0"), SubtaskStatus.ENDED)
    run = Run().at(0, job(JobStatus.RUNNING)).at(2, records("source-0", 0))
    run.at(4, records("source-0", 200), ended).at(10, records("source-0", 200))
    assert run.at(10, job(JobStatus.FINISHED)).meter.figures().source_rate == pytest.approx(100)


def test_a_second_attempt_counts_from_zero() -> None:
    run = Run().at(0, job(JobStatus.RUNNING)).at(2, records("source-0", 1_000))
    run.at(4, records("source-0", 1_200), job(JobStatus.RESTARTING))
    run.at(6, AttemptStarted(0, AttemptNumber(2), None), job(JobStatus.RUNNING))
    run.at(6, Recovered(0, AttemptNumber(2), "killed", None, 0, 0, 0, 0, 0))
    run.at(6, records("source-0", 0, attempt=2)).at(10, records("source-0", 400, attempt=2))
    figures = run.at(10, job(JobStatus.CANCELED)).meter.figures()
    assert figures.source_rate == pytest.approx(100)
    assert figures.recoveries == 1
    assert figures.running_s == 10


def test_a_job_has_run_enough_by_the_time_since_it_runs() -> None:
    run = Run().at(50, job(JobStatus.INITIALIZING))
    assert not run.meter.is_enough()
    run.at(60, job(JobStatus.RUNNING)).at(69.9)
    assert not run.meter.is_enough()
    run.at(65, job(JobStatus.RUNNING)).at(70)  # Again, after a recovery: it is no new beginning.
    assert run.meter.is_enough()


def test_a_checkpoint_has_its_longest_alignment_and_its_barriers_at_sinks() -> None:
    run = Run().at(0, job(JobStatus.RUNNING)).at(1, triggered(1))
    run.at(
        2,
        acknowledged(1, "source-0", start_delay_ms=1.0),
        acknowledged(1, "work-0", start_delay_ms=9.0, alignment_ms=40.0),
        acknowledged(1, "sink-0", start_delay_ms=50.0, alignment_ms=5.0),
        acknowledged(
            1, "sink-1", start_delay_ms=60.0, bytes_persisted_in_flight=300, unaligned=True
        ),
        acknowledged(1, "work-1", bytes_persisted_in_flight=4, state_size=12),
        acknowledged(9, "sink-0", start_delay_ms=1e6),  # Of no checkpoint that is known.
        settled(1, 80),
    )
    (one,) = run.at(3, job(JobStatus.CANCELED)).meter.figures().checkpoints
    assert one == CheckpointFigures(
        duration_ms=80,
        status=CheckpointStatus.COMPLETED,
        alignment_ms=40,
        barrier_to_sinks_ms=(55, 60),
        state_bytes=70,
        in_flight_bytes=304,
        is_unaligned=True,
    )


def test_a_checkpoint_under_way_at_the_end_is_as_old_as_it_was_then() -> None:
    run = Run().at(0, job(JobStatus.RUNNING)).at(4, triggered(1)).at(10, job(JobStatus.CANCELED))
    (one,) = run.at(60).meter.figures().checkpoints
    assert (one.status, one.duration_ms) == (CheckpointStatus.PENDING, pytest.approx(6_000))


def test_savepoints_are_no_checkpoints_of_the_mode() -> None:
    run = Run().at(0, job(JobStatus.RUNNING)).at(1, triggered(1, CheckpointKind.SAVEPOINT))
    run.at(2, acknowledged(1, "sink-0"), settled(1, 70), triggered(2), settled(2, 30))
    (one,) = run.at(3, job(JobStatus.CANCELED)).meter.figures().checkpoints
    assert one.duration_ms == 30


def test_percentiles_are_values_by_nearest_rank() -> None:
    assert percentiles([]) is None
    assert percentiles([7.0]) == Percentiles(1, 7, 7, 7, 7)
    assert percentiles([3.0, 1.0, 4.0, 2.0]) == Percentiles(4, 2, 4, 4, 4)
    assert percentiles(range(100, 0, -1)) == Percentiles(100, 50, 95, 99, 100)


def test_runs_of_a_mode_are_taken_together() -> None:
    completed = CheckpointFigures(100.0, CheckpointStatus.COMPLETED, 10.0, (20.0, 30.0), 5, 6, True)
    cut_off = CheckpointFigures(900.0, CheckpointStatus.ABORTED)
    failed = CheckpointFigures(5_000.0, CheckpointStatus.FAILED)
    runs = [
        RunFigures(10, 100, 10, (completed, cut_off)),
        RunFigures(10, 300, None, (replace(completed, duration_ms=200.0), failed), recoveries=2),
        RunFigures(4, 110, 30, (replace(cut_off, duration_ms=700.0),), failure="it broke"),
    ]
    mode = combine("aligned", "aligned", runs)
    assert (mode.runs, mode.running_s, mode.failures) == (3, 24, ("it broke",))
    assert mode.recoveries == 2
    assert mode.source_records_per_s == Spread(110, 100, 300)
    assert mode.sink_records_per_s == Spread(20, 10, 30)
    assert (mode.completed, mode.failed, mode.cut_off) == (2, 1, 2)
    assert mode.cut_off_longest_ms == 900
    assert mode.unaligned == 2
    assert mode.durations_ms == (100, 200)
    assert mode.duration_ms == Percentiles(2, 100, 200, 200, 200)
    assert mode.alignment_ms == Percentiles(2, 10, 10, 10, 10)
    assert mode.barrier_to_sinks_ms == Percentiles(4, 20, 30, 30, 30)
    assert mode.state_bytes == Percentiles(2, 5, 5, 5, 5)
    assert mode.in_flight_bytes == Percentiles(2, 6, 6, 6, 6)


@pytest.mark.parametrize("others", [{"concurrent_max": 3}, {"alignment_timeout_ms": 40}])
def test_each_mode_changes_the_settings_that_make_it_one(others: dict[str, int]) -> None:
    given = CheckpointConfig(
        interval_ms=50, mode=CheckpointingMode.AT_LEAST_ONCE, timeout_ms=77_000, **others
    )
    exactly, at_least = CheckpointingMode.EXACTLY_ONCE, CheckpointingMode.AT_LEAST_ONCE
    stopping = CheckpointingMode.STOP_THE_WORLD
    settings = {
        mode.name: (
            (changed := mode.over(given, interval_ms=400, timeout_ms=150)).interval_ms,
            changed.mode,
            changed.alignment_timeout_ms,
            changed.concurrent_max,
            changed.timeout_ms,
        )
        for mode in MODES
    }
    assert settings == {
        "none": (None, exactly, None, 1, 77_000),
        "stop-the-world": (400, stopping, None, 1, 77_000),
        "aligned": (400, exactly, None, 1, 77_000),
        "at-least-once": (400, at_least, None, 1, 77_000),
        "unaligned": (400, exactly, 0, 1, 77_000),
        "timeout": (400, exactly, 150, 1, 77_000),
    }


def test_modes_are_chosen_by_name_in_their_own_order() -> None:
    assert [mode.name for mode in modes_named(["unaligned", "none"])] == ["none", "unaligned"]
    with pytest.raises(
        ConfigError, match="no mode 'stop', ''; there are none, stop-the-world, aligned"
    ):
        modes_named(["stop", "none", ""])
    with pytest.raises(ConfigError, match="named twice"):
        modes_named(["none", "none"])
