"""The terminal's view of a job: recorded events in, a picture, lines and a table out."""

import io
import re
import threading
from collections.abc import Iterable
from dataclasses import replace

import pytest
from rich.console import Console

from tests.waiting import TIMEOUT_S
from weir.cli import formats
from weir.cli.job_view import JobView, SlowestChannel
from weir.cli.log_lines import PlainLog, introduction, memory_warning, summary
from weir.cli.progress import PrintedLines, Progress
from weir.cli.table import chain_table, render
from weir.config import CheckpointConfig, JobConfig
from weir.graph.logical import Edge, JobGraph, Operator, Partitioning
from weir.ids import AttemptNumber, CheckpointId, JobId, OperatorId, SubtaskId
from weir.protocol.elements import MAX_WATERMARK_MS, CheckpointKind
from weir.protocol.events import (
    AttemptStarted,
    CaughtUp,
    CheckpointSettled,
    CheckpointTriggered,
    JobChanged,
    JobEvent,
    Notice,
    Recovered,
)
from weir.protocol.lifecycle import FailureReason, JobStatus, SubtaskStatus
from weir.protocol.messages import (
    Acknowledged,
    GateAlignment,
    OperatorAck,
    SnapshotMetrics,
    SubtaskChanged,
    SubtaskMetrics,
    SubtaskStalled,
    Switch,
)

ONE = AttemptNumber(1)
SOURCE, SUM, SINK = OperatorId("source"), OperatorId("sum"), OperatorId("sink")
GRAPH = JobGraph(
    "sums",
    (
        Operator(SOURCE, "Numbers", 2, None, is_source=True),
        Operator(SUM, "Sum", 2, None, keyed=True),
        Operator(SINK, "Print", 2, None, is_sink=True),
    ),
    (
        Edge(SOURCE, SUM, Partitioning.HASH),
        Edge(SUM, SINK, Partitioning.FORWARD),
    ),
)
CONFIG = JobConfig(
    name="sums", parallelism=2, checkpoints=CheckpointConfig(interval_ms=1_000, storage="/ckpt")
)
EXPECTED = tuple(SubtaskId(uid, i) for uid in (SOURCE, SUM, SINK) for i in (0, 1))


def view(config: JobConfig = CONFIG) -> JobView:
    return JobView(JobId("sums-1a2b"), GRAPH, config)


def started() -> list[JobEvent]:
    return [
        JobChanged(0, JobStatus.INITIALIZING),
        AttemptStarted(0, ONE, None),
        *(SubtaskChanged(ONE, SubtaskId(u, i), SubtaskStatus.RUNNING) for u, i in heads()),
        JobChanged(100, JobStatus.RUNNING),
    ]


def heads() -> Iterable[tuple[OperatorId, int]]:
    return [(uid, i) for uid in (SOURCE, SUM) for i in (0, 1)]


def triggered(number: int, at_ms: int) -> CheckpointTriggered:
    return CheckpointTriggered(at_ms, CheckpointId(number), CheckpointKind.CHECKPOINT, EXPECTED)


def acked(number: int, uid: OperatorId, index: int) -> Acknowledged:
    """The sum's subtask 0 waits 12 ms for the second source."""
    head = SubtaskId(uid, index)
    if uid == SOURCE:
        return Acknowledged(
            ONE,
            CheckpointId(number),
            head,
            (OperatorAck(head, (), SnapshotMetrics(1, state_size=9)),),
        )
    late = 12.0 if index == 0 else 3.0
    gate = GateAlignment(0, ("source-0", "source-1"), (0.0, late), (late, 0.0), (0, 0))
    timed = SnapshotMetrics(5, late, 2, 8, state_size=600_000, gates=(gate,))
    sink = OperatorAck(SubtaskId(SINK, index), (), replace(timed, gates=(), state_size=0))
    return Acknowledged(ONE, CheckpointId(number), head, (OperatorAck(head, (), timed), sink))


def completed(number: int, at_ms: int) -> list[JobEvent]:
    settled = CheckpointSettled(at_ms + 43, CheckpointId(number), 43, state_size=1_200_018)
    return [triggered(number, at_ms), *(acked(number, u, i) for u, i in heads()), settled]


def metrics(
    uid: OperatorId, index: int, records: int, busy: float, idle: float, cpu_wait: float = 0.0
) -> SubtaskMetrics:
    is_source = uid == SOURCE
    return SubtaskMetrics(
        ONE,
        SubtaskId(uid, index),
        records_in=records,
        records_out=records if is_source else 0,
        bytes_in=0,
        bytes_out=0,
        busy_ms=busy,
        idle_ms=idle,
        back_pressured_ms=0.0,
        watermark_ms=5_000 + index,
        cpu_wait_ms=cpu_wait,
    )


def fold(target: JobView, events: Iterable[JobEvent], now_ms: float = 0) -> list[str]:
    log = PlainLog(target)
    lines = []
    for event in events:
        target.on_event(event, now_ms)
        lines += [line.text for line in log.on_event(event, now_ms)]
    return lines


def stopped(number: int) -> list[JobEvent]:
    kind = CheckpointKind.STOP_SUSPEND
    settled = CheckpointSettled(1_043, CheckpointId(number), 43)
    return [CheckpointTriggered(1_000, CheckpointId(number), kind, EXPECTED), settled]


def test_a_savepoint_is_called_so_and_its_line_stays() -> None:
    target = view()
    log = PlainLog(target)
    lines = []
    for event in stopped(7):
        target.on_event(event, 0)
        lines += log.on_event(event, 0)
    (line,) = lines
    assert line.text.startswith("savepoint 7 completed in 43 ms")
    assert line.lasting


def test_a_stopped_job_says_that_it_can_go_on() -> None:
    target = view()
    fold(target, [*started(), *stopped(7), JobChanged(2_000, JobStatus.FINISHED)])
    assert summary(target, 2_000).endswith(
        "; stopped with savepoint 7, from which the job can be restored"
    )


def test_a_checkpoint_is_one_line_that_names_the_slowest_channel() -> None:
    assert fold(view(), [*started(), *completed(7, 1_000)]) == [
        "job initializing",
        "attempt 1 starts from the beginning",
        "job running",
        "checkpoint 7 completed in 43 ms: 6/6 acknowledged, alignment 12 ms max "
        "(sum-0 from source-1), state 1.2 MB",
    ]


@pytest.mark.parametrize(
    ("switched_ms", "after"),
    [(None, ""), ((606.0, 604.0), " after 604 ms")],
    ids=["first", "timed"],
)
def test_an_unaligned_checkpoint_says_what_its_barriers_overtook(
    switched_ms: tuple[float, float] | None, after: str
) -> None:
    begin, *acks, settled = completed(7, 1_000)
    for index, place in enumerate((2, 3)):  # Those of the sums.
        ack = acks[place]
        assert isinstance(ack, Acknowledged)
        head, *others = ack.operators
        metrics = replace(
            head.metrics,
            unaligned=True,
            bytes_persisted_in_flight=1_000_000 * (index + 1),
            switched=None if switched_ms is None else Switch.INPUT,
            switched_ms=None if switched_ms is None else switched_ms[index],
        )
        acks[place] = replace(ack, operators=(replace(head, metrics=metrics), *others))
    lines = fold(view(), [*started(), begin, *acks, settled])
    assert lines[-1].endswith(f"state 1.2 MB, unaligned{after}: 3.0 MB in flight")


def test_a_failed_checkpoint_says_why_and_who_is_missing() -> None:
    failure = CheckpointSettled(
        1_500, CheckpointId(7), 500, FailureReason.CHECKPOINT_EXPIRED, "Traceback\n x\nlate"
    )
    events = [triggered(7, 1_000), acked(7, SOURCE, 0), acked(7, SUM, 1), failure]
    assert fold(view(), events) == [
        "checkpoint 7 failed after 500 ms: checkpoint_expired: Traceback: late; 3/6 acknowledged, "
        "missing source-1, sum-0, sink-0"
    ]


def test_a_recovery_tells_its_phases() -> None:
    events: list[JobEvent] = [
        JobChanged(10, JobStatus.FAILING, "sum-0 failed\nTraceback\nValueError: three"),
        JobChanged(11, JobStatus.RESTARTING),
        AttemptStarted(12, AttemptNumber(2), CheckpointId(7), "8 is damaged"),
        Recovered(20, AttemptNumber(2), "x", CheckpointId(7), 0.0, 310.0, 45.0, 1_200_000, 12_345),
        CaughtUp(1_200, AttemptNumber(2), 1_180.0),
        Notice(1_300, "old state stays"),
    ]
    assert fold(view(), events) == [
        "job failing: sum-0 failed: ValueError: three",
        "job restarting",
        "attempt 2 starts from checkpoint 7 (8 is damaged)",
        "recovered in attempt 2 from checkpoint 7: backoff 0 ms, redeploy 310 ms, restore 45 ms "
        "(1.2 MB), 12,345 records replayed",
        "attempt 2 caught up after 1.2 s",
        "notice: old state stays",
    ]


def test_a_recovery_tells_how_much_came_from_local_copies() -> None:
    recovered = Recovered(20, AttemptNumber(2), "x", None, 0.0, 1.0, 2.0, 1_200_000, 5)
    for local, told in ((1_100_000, "1.1 MB"), (0, "none")):
        (line,) = fold(view(), [replace(recovered, restored_local_bytes=local)])
        assert f"(1.2 MB, {told} of it from local copies)" in line


def test_metrics_come_at_most_every_ten_seconds() -> None:
    job, log = view(), None
    fold(job, started())
    log = PlainLog(job)
    lines: list[tuple[int, str]] = []
    for now in range(0, 25_000, 500):
        for uid, index in heads():
            event = metrics(uid, index, now, busy=now * 0.25, idle=now * 0.75)
            job.on_event(event, now)
            lines += [(now, line.text) for line in log.on_event(event, now)]
    assert [now for now, _ in lines] == [10_000, 20_000]
    assert lines[0][1] == (
        "records: 2,000/s from the sources, busiest Numbers 25 %, watermark -5.0 s"
    )
    counted = replace(metrics(SUM, 0, 30_000, busy=7_500, idle=22_500), bad_records=1_200)
    job.on_event(counted, 30_000)
    (line,) = log.on_event(counted, 30_000)
    assert ", 1,200 bad, watermark " in line.text


@pytest.mark.parametrize(("share", "told"), [(0.24, False), (0.26, True)])
def test_a_slot_that_waits_for_a_processor_is_told_with_the_rates(share: float, told: bool) -> None:
    job = view()
    fold(job, started())
    log = PlainLog(job)
    lines: list[str] = []
    for now in range(0, 11_000, 500):
        for uid, index in heads():
            waited = now * share if index == 1 else 0.0
            event = metrics(uid, index, now, now * 0.25, now * 0.75, waited)
            job.on_event(event, now)
            lines += [line.text for line in log.on_event(event, now)]
    assert len(lines) == 1
    assert (", a slot without a processor 26 % of the time, " in lines[0]) is told
    assert ("processor" in lines[0]) is told


def test_a_call_that_lasts_is_told_with_its_line_at_most_every_ten_seconds() -> None:
    job = view()
    log = PlainLog(job)
    stack = (
        '  File "pipeline.py", line 9, in look_up\n    ask(key)\n'
        '  File "pipeline.py", line 3, in ask\n    time.sleep(30)\n'
    )
    lines: list[tuple[int, str]] = []
    for now in range(0, 25_000, 1_000):
        event = SubtaskStalled(ONE, SubtaskId(SUM, 1), 0, 1_000.0 + now, stack)
        job.on_event(event, now)
        lines += [(now, line.text) for line in log.on_event(event, now)]
    assert [now for now, _ in lines] == [0, 10_000, 20_000]
    assert lines[0][1] == (
        f'{SUM}-1 has been in one call for 1.0 s: "pipeline.py", line 3, in ask: time.sleep(30)'
    )


def test_the_picture_counts_acknowledgements_of_the_checkpoint_under_way() -> None:
    job = view()
    fold(job, [*started(), *completed(7, 1_000), triggered(8, 2_000), acked(8, SUM, 1)])
    picture = job.picture(2_020)
    numbers, total = picture.chains
    assert (numbers.acknowledged, numbers.expected) == (0, 2)
    assert (total.acknowledged, total.expected) == (2, 4)
    assert (total.alignment_ms, total.start_delay_ms, total.sync_ms, total.async_ms) == (
        12,
        5,
        2,
        8,
    )
    assert total.state_size == 1_200_000
    assert picture.under_way is not None
    assert (picture.under_way.checkpoint_id, picture.under_way.elapsed_ms) == (8, 20)
    assert picture.last is not None
    assert (picture.last.elapsed_ms, picture.last.age_ms) == (43, 2_020 - 1_043)
    assert picture.last.slowest == SlowestChannel(SubtaskId(SUM, 0), "source-1", 12.0, 12.0)


def test_a_single_channel_is_never_the_slowest() -> None:
    job = view()
    head = SubtaskId(SUM, 0)
    gate = GateAlignment(0, ("source-0",), (0.0,), (0.0,), (0,))
    ack = OperatorAck(head, (), SnapshotMetrics(gates=(gate,)))
    settled = CheckpointSettled(1_043, CheckpointId(7), 43)
    events = [triggered(7, 0), Acknowledged(ONE, CheckpointId(7), head, (ack,)), settled]
    assert fold(job, events) == [
        "checkpoint 7 completed in 43 ms: 1/6 acknowledged, alignment 0 ms max, state 0 B"
    ]


def test_rates_are_over_the_last_reports_of_the_attempt() -> None:
    job = view()
    fold(job, started())
    for now, records, busy in ((0, 0, 0.0), (500, 100, 400.0), (1_000, 300, 800.0)):
        for index in (0, 1):
            job.on_event(metrics(SOURCE, index, records, busy, now - busy), now)
    numbers, total = job.picture(1_000).chains
    assert (numbers.records_per_s, numbers.busy, numbers.watermark_ms) == (600.0, 0.8, 5_000)
    assert (total.records_per_s, total.busy) == (None, None)

    job.on_event(AttemptStarted(1_100, AttemptNumber(2), None), 1_100)
    numbers = job.picture(1_200).chains[0]
    assert (numbers.records_per_s, numbers.running, numbers.watermark_ms) == (None, 0, None)


def shown(job: JobView, now_ms: float, width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    console.print(render(job.picture(now_ms), width))
    assert isinstance(console.file, io.StringIO)
    return [re.sub(r" {2,}", "  ", line).rstrip() for line in console.file.getvalue().splitlines()]


def test_the_table_has_a_row_per_chain() -> None:
    job = view()
    fold(job, [*started(), *completed(7, 1_000)])
    assert shown(job, 2_043, 160) == [
        "sums (sums-1a2b)  running  attempt 1  up 2.0 s  0 recoveries",
        "checkpoints: 1 completed, 0 failed; last 7, 1.0 s ago, took 43 ms, 1.2 MB",
        "operators  running  acked  start delay  alignment  sync  async  state  records  busy  "
        "back-pr.  watermark",
        shown(job, 2_043, 160)[3],  # The rule below the header.
        "Numbers  2/2  2/2  1 ms  0 ms  0 ms  0 ms  18 B  -  -  -  -",
        "Sum → Print  2/2  4/4  5 ms  12 ms  2 ms  8 ms  1.2 MB  -  -  -  -",
        "slowest channel of checkpoint 7: sum-0 from source-1, 12 ms after the first barrier; "
        "others were blocked up to 12 ms",
    ]


def test_bad_records_have_a_column_once_there_are_any() -> None:
    job = view()
    fold(job, started())
    fold(job, [metrics(SUM, i, 100, 1, 1) for i in (0, 1)])
    assert "  bad  " not in shown(job, 500, 160)[2]
    fold(job, [replace(metrics(SUM, i, 200, 2, 2), bad_records=600 + i) for i in (0, 1)])
    header, _, numbers, sums = shown(job, 500, 160)[2:6]
    at = header.split("  ").index("bad")
    assert (numbers.split("  ")[at], sums.split("  ")[at]) == ("-", "1,201")
    finished = JobChanged(2, JobStatus.FINISHED)
    fold(job, [finished])
    assert summary(job, 2_500).endswith("0 recoveries, 1,201 bad records left out")


@pytest.mark.parametrize("width", [60, 80, 100, 120, 140, 200])
def test_the_table_fits_the_terminal(width: int) -> None:
    job = view()
    fold(job, [*started(), *completed(7, 1_000)])
    for now in (0, 500, 1_000):
        for uid, index in heads():
            counted = metrics(uid, index, now * 1_000, now * 0.5, now * 0.5)
            job.on_event(replace(counted, bad_records=now), now)
    console = Console(file=io.StringIO(), width=width)
    options = console.options.update(max_width=1_000)
    table = chain_table(job.picture(1_000), width)
    needed = console.measure(table, options=options).minimum
    assert needed <= width


def test_ended_and_failed_subtasks_are_told_apart() -> None:
    job = view()
    ended = [SubtaskChanged(ONE, SubtaskId(SOURCE, i), SubtaskStatus.ENDED) for i in (0, 1)]
    failed = SubtaskChanged(ONE, SubtaskId(SUM, 0), SubtaskStatus.FAILED, "cause")
    fold(job, [*started(), *ended, failed])
    rows = shown(job, 200, 120)[4:]
    assert rows[0].startswith("Numbers  ended  ")
    assert rows[1].startswith("Sum → Print  1/2 (1 failed)  ")


def test_the_introduction_says_how_checkpoints_are_kept() -> None:
    assert introduction(view()) == (
        "sums (sums-1a2b): 2 slots, a checkpoint every 1 s, exactly once, kept in /ckpt"
    )
    assert introduction(view(JobConfig())) == "sums (sums-1a2b): 2 slots, no checkpoints"


def test_only_checkpoints_in_memory_are_warned_of() -> None:
    in_memory = replace(CONFIG, checkpoints=CheckpointConfig(interval_ms=1_000))
    assert memory_warning(CONFIG) is None
    assert memory_warning(JobConfig()) is None
    warning = memory_warning(in_memory)
    assert warning is not None
    assert "lost with it" in warning


def test_the_summary_counts_what_happened() -> None:
    job = view()
    failed = CheckpointSettled(1, CheckpointId(8), 1, FailureReason.CHECKPOINT_DECLINED)
    aborted = CheckpointSettled(1, CheckpointId(9), 1, FailureReason.JOB_FINISHED)
    fold(job, [*started(), *completed(7, 0), failed, aborted, JobChanged(2, JobStatus.FINISHED)])
    assert summary(job, 2_500) == (
        "sums (sums-1a2b) finished after 2.5 s: 1 checkpoint completed, 1 failed, "
        "1 aborted, 0 recoveries"
    )


def progress_threads() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name == "weir-progress"]


def test_elsewhere_than_in_a_terminal_lines_come_without_colours() -> None:
    file = io.StringIO()
    progress = Progress(view(), file, now_ms=lambda: 0.0)
    for event in [*started(), *completed(7, 1_000), JobChanged(9, JobStatus.FINISHED)]:
        progress.on_event(event)
    progress.close()
    lines = file.getvalue().splitlines()
    assert lines[0].startswith("sums (sums-1a2b): 2 slots")
    assert lines[4].startswith("checkpoint 7 completed in 43 ms")
    assert lines[-1].startswith("sums (sums-1a2b) finished after 0 ms: 1 checkpoint completed")
    assert "\x1b" not in file.getvalue()
    assert progress_threads() == []


class StuckTerminal(io.StringIO):
    """Takes what it is given until it is stuck, then nothing until it is released."""

    def __init__(self) -> None:
        super().__init__()
        self.is_stuck = False
        self.is_reached = threading.Event()
        self.is_released = threading.Event()

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if self.is_stuck:
            self.is_reached.set()
            assert self.is_released.wait(TIMEOUT_S)
        return super().write(text)


def test_a_terminal_that_takes_nothing_does_not_hold_the_job_up() -> None:
    """Every event is taken while the terminal still holds the first line of the job."""
    file = StuckTerminal()
    progress = Progress(view(), file, now_ms=lambda: 0.0)
    file.is_stuck = True
    shown = file.getvalue()
    for event in [*started(), *(event for n in range(1, 101) for event in completed(n, 0))]:
        progress.on_event(event)
    assert file.is_reached.wait(TIMEOUT_S)
    progress.on_event(JobChanged(9, JobStatus.FINISHED))
    assert file.getvalue() == shown
    file.is_released.set()
    progress.close()
    assert "sums (sums-1a2b) finished" in file.getvalue()


def test_a_job_that_never_started_has_no_summary() -> None:
    file = io.StringIO()
    Progress(view(), file, now_ms=lambda: 0.0).close()
    assert len(file.getvalue().splitlines()) == 1


def test_printed_lines_wait_until_they_are_whole() -> None:
    under = io.StringIO()
    printed = PrintedLines(under)
    printed.write("one\n\nthr")
    assert printed.take() == "one\n"
    assert printed.take() is None
    printed.write("ee")
    printed.end()
    printed.write("!")
    assert under.getvalue() == "three!"


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0 ms"),
        (0.2, "<1 ms"),
        (43.4, "43 ms"),
        (999.6, "1.0 s"),
        (59_940, "59.9 s"),
        (60_000, "1 min 0 s"),
        (3_600_000, "1 h 0 min"),
    ],
)
def test_durations_keep_the_figures_that_matter(ms: float, text: str) -> None:
    assert formats.duration(ms) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(999, "999 B"), (1_000, "1.0 kB"), (999_960, "1.0 MB"), (5 * 10**12, "5.0 TB")],
)
def test_sizes_are_in_thousands(count: int, text: str) -> None:
    assert formats.size(count) == text


def test_a_watermark_is_a_lag_only_where_it_is_near_the_clock() -> None:
    now = 1_700_000_000_000
    assert formats.watermark(None, now) == "-"
    assert formats.watermark(now - 3_200, now) == "-3.2 s"
    assert formats.watermark(MAX_WATERMARK_MS, now) == "end"
    assert formats.watermark(now - 400 * 86_400_000, now).startswith("2022-10-1")
    assert formats.watermark(10**18, now) == f"{10**18} ms"
