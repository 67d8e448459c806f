"""Evidence and verdicts of checkpoints whose driver tells of them, on a real database."""

from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pytest_django import DjangoAssertNumQueries

from checkpoints.models import Checkpoint, SubtaskAck
from checkpoints.operations import savepoints
from checkpoints.verdict import evidence, queries
from checkpoints.verdict.facts import Call, CpuWait, DriverSeen
from controlplane.base import clock
from jobs.drivers import drivers
from jobs.models import Driver, Subtask
from tests import builders as protocol
from tests import factories
from tests.database.checkpoints.line import Line
from tests.database.controlplane.moved_clock import MovedClock
from tests.database.frontend import flights
from tests.database.jobs import builders as jobs
from weir.ids import AttemptNumber, CheckpointId, OperatorId
from weir.protocol.driver_messages import DriverLoad
from weir.protocol.lifecycle import FailureReason, JobStatus, SubtaskStatus
from weir.protocol.messages import (
    AlignmentProgress,
    CheckpointingStopped,
    CheckpointRequested,
    GateProgress,
    ManifestWritten,
    SampledCall,
    SubtaskMetrics,
    SubtaskStalled,
    ThreadsBeside,
)

STACK = '  File "/srv/orders.py", line 41, in enrich\n    rates = get(url)\n'


def triggered(line: Line) -> Checkpoint:
    """The next checkpoint of subtasks that run, under way."""
    line.post(*(jobs.subtask_changed(n, SubtaskStatus.RUNNING) for n in protocol.CHAINS))
    line.post(CheckpointRequested("a"))
    (number,) = line.triggered()
    return line.checkpoint(number)


def measured(
    name: str, at_ms: float, busy: float, records: int = 0, cpu_wait: float = 0.0
) -> SubtaskMetrics:
    """A measurement at ``at_ms`` of the attempt, of a subtask that was busy for a share of it."""
    return SubtaskMetrics(
        attempt=AttemptNumber(1),
        chain=protocol.subtask(name),
        records_in=records,
        records_out=0,
        bytes_in=0,
        bytes_out=0,
        busy_ms=at_ms * busy,
        idle_ms=at_ms * (1 - busy),
        back_pressured_ms=0.0,
        watermark_ms=None,
        cpu_wait_ms=at_ms * cpu_wait,
    )


def stalled(name: str, ms: float = 4_000.0, since_ms: int | None = None) -> SubtaskStalled:
    since = clock.now_ms() if since_ms is None else since_ms
    return SubtaskStalled(AttemptNumber(1), protocol.subtask(name), since, ms, STACK)


def aligning(number: int, arrived: tuple[float | None, ...] = (0.0, None)) -> AlignmentProgress:
    """``sink-0`` has the barrier of ``source-0``, and waits for that of ``source-1``."""
    count = len(arrived)
    gate = GateProgress(
        0, ("source-0", "source-1"), arrived, (9.0,) * count, (0,) * count, (False,) * count
    )
    chain = protocol.subtask("sink-0")
    return AlignmentProgress(
        AttemptNumber(1), CheckpointId(number), chain, clock.now_ms(), 9_000.0, (gate,)
    )


def kept(line: Line, number: int) -> Any:
    return Checkpoint.objects.values_list("evidence", flat=True).get(job=line.job_id, number=number)


def test_a_completed_checkpoint_keeps_what_its_subtasks_did(line: Line) -> None:
    row = triggered(line)
    names = protocol.CHAINS
    line.post(*(measured(name, 1_000, 0.1) for name in names))
    line.post(*(measured(name, 3_000, 0.9 if name == "sink-1" else 0.2, 500) for name in names))
    line.complete(row.number)
    recorded = evidence.read(kept(line, row.number))
    assert recorded.missing_count == 0
    assert recorded.chains["sink"].count == 2
    rates = recorded.rates(("sink", 1))
    assert rates is not None
    assert rates.busy == pytest.approx(1.0)
    assert rates.records_in_per_s == pytest.approx(250.0)
    assert recorded.rates(("source", 0)) is not None


def test_a_checkpoint_keeps_which_slots_waited_for_a_processor(line: Line) -> None:
    """The subtasks of a slot report one after the other: the larger of their shares counts."""
    row = triggered(line)
    waits = {"source-0": 0.4, "sink-0": 0.6, "source-1": 0.01, "sink-1": 0.02}
    line.post(*(measured(name, 1_000, 0.1, cpu_wait=share) for name, share in waits.items()))
    line.post(*(measured(name, 3_000, 0.3, cpu_wait=share) for name, share in waits.items()))
    line.complete(row.number)
    stored = kept(line, row.number)
    assert stored["cpu_waits"] == {"0": {"share": 0.6, "busiest": 0.4}}
    assert evidence.read(stored).cpu_waits == {0: CpuWait(0.6, 0.4)}
    del stored["cpu_waits"]  # As an earlier version stored it.
    assert evidence.read(stored).cpu_waits == {}


def test_a_checkpoint_keeps_the_drivers_load_its_hosts_pressure_and_where_subtasks_worked(
    line: Line,
) -> None:
    row = triggered(line)
    call = SampledCall(OperatorId("map"), "parse", "/srv/orders.py", 41, 0.75)
    beside = ThreadsBeside(21.5, 0.9, 0.1, "prefetch", "/srv/orders.py", 77)
    for at_ms in (1_000, 3_000):
        one = replace(
            measured("sink-1", at_ms, 0.9, 500),
            cpu_pressure_ms=at_ms * 0.8,
            calls=(call,),
            beside=beside,
        )
        line.post(one, load=DriverLoad(2_000.0, 100.0, 300.0))
    under_way = queries.facts_of(line.checkpoint(row.number)).evidence
    assert under_way.subtasks["sink", 1].records == 500
    line.post(
        *protocol.acks(row.number),
        ManifestWritten(CheckpointId(row.number)),
        load=DriverLoad(2_000.0, 100.0, 300.0),
    )
    line.post(load=DriverLoad(2_000.0, 100.0, 0.0))  # Of later, when it had a processor.
    recorded = evidence.read(kept(line, row.number))
    for seen in (under_way, recorded):
        assert seen.driver == DriverSeen(2_000.0, 100.0, 300.0)
        assert seen.cpu_waits == {1: CpuWait(0.0, 0.9, 0.8)}
        assert {slot: asdict(one) for slot, one in seen.beside.items()} == {1: asdict(beside)}
        rates = seen.rates(("sink", 1))
        assert rates is not None
        assert rates.calls == [Call("map", "parse", "/srv/orders.py", 41, 0.75)]
    line.post()  # An earlier version's driver reports no load.
    assert line.driver.load == {}


def test_records_and_writing_are_told_of_the_checkpoint_before_and_of_each_operator(
    line: Line,
) -> None:
    row = triggered(line)
    line.complete(row.number)
    first = queries.facts_of(line.checkpoint(row.number))
    assert (first.records_before, first.records_since) == ({}, {})
    line.post(CheckpointRequested("b"))
    (number,) = line.triggered()
    acks = [
        replace(
            ack,
            operators=tuple(
                replace(one, metrics=replace(one.metrics, records=700)) for one in ack.operators
            ),
            writing_ms=tuple(2.5 + place for place, _ in enumerate(ack.operators)),
        )
        for ack in protocol.acks(number)
    ]
    line.post(*acks, ManifestWritten(CheckpointId(number)))
    facts = queries.facts_of(line.checkpoint(number))
    assert facts.records_since == dict.fromkeys(facts.acks, 700)
    assert len(facts.acks) == len(protocol.CHAINS)
    for ack in acks:
        told = facts.acks[str(ack.chain.operator), ack.chain.index].writing_ms
        uids = [str(one.subtask.operator) for one in ack.operators]
        assert told == dict(zip(uids, ack.writing_ms, strict=True))
    by_first = queries.facts_of(line.checkpoint(row.number))
    assert not any(ack.writing_ms for ack in by_first.acks.values())


@pytest.mark.parametrize(("ago_s", "is_told"), [(2, False), (9, True)])
def test_a_driver_that_is_silent_is_told_while_a_checkpoint_waits(
    line: Line, ago_s: int, is_told: bool
) -> None:
    row = triggered(line)
    Driver.objects.filter(job=line.job_id).update(heard_at=clock.now() - timedelta(seconds=ago_s))
    verdict = queries.of_checkpoint(line.checkpoint(row.number))
    assert ("because the driver is frozen or cut off" in verdict.headline) is is_told


def test_a_lost_driver_is_told_of_a_manifest_that_is_being_written(line: Line) -> None:
    row = triggered(line)
    line.post(*protocol.acks(row.number))
    drivers.lost(line.job, line.driver, "the driver's process 7 ended, killed by SIGKILL\nlog")
    verdict = queries.of_checkpoint(line.checkpoint(row.number))
    assert verdict.headline == (
        "All subtasks have acknowledged; the driver was lost while it wrote the manifest: the "
        "driver's process 7 ended, killed by SIGKILL."
    )


def test_the_longest_waits_for_a_processor_are_kept_of_many_slots() -> None:
    now = datetime(2026, 3, 1, tzinfo=UTC)
    rows = [
        evidence.Row("map", index, 1, "running", shares(cpu_wait=index / 100), None, now)
        for index in range(100)
    ]
    waits = evidence.read(evidence.take(rows, number=1, attempt=1, now_ms=0)).cpu_waits
    assert sorted(waits) == list(range(100 - evidence.CPU_WAITS_KEPT, 100))


def shares(**given: float) -> dict[str, float]:
    """A row's rates."""
    return {
        "busy": 0.5, "back_pressured": 0.2, "idle": 0.3, "records_in_per_s": 10.0, **given,
    }  # fmt: skip


def test_a_stall_that_was_over_before_the_end_is_still_told(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The row forgets it with the next measurement; the checkpoint that it made long does not."""
    clock_of_all = MovedClock(monkeypatch)
    row = triggered(line)
    triggered_ms = clock.to_ms(row.triggered_at)
    line.post(stalled("sink-1", 1_500, triggered_ms))
    clock_of_all.pass_time(4.0)
    line.post(stalled("sink-1", 4_000, triggered_ms), stalled("sink-0", 1_200, triggered_ms))
    line.post(measured("sink-1", 9_000, 0.5))
    assert not Subtask.objects.filter(job=line.job_id, chain="sink", index=1).get().stall
    line.complete(row.number)
    recorded = evidence.read(kept(line, row.number))
    assert [(key, stall.stalled_ms) for key, stall in recorded.stalled.items()] == [
        (("sink", 1), 4_000.0),
        (("sink", 0), 1_200.0),
    ]
    verdict = queries.of_checkpoint(line.checkpoint(row.number))
    assert verdict.headline == "sink-1 was stuck in enrich (orders.py:41) for 4.00 s."
    assert verdict.stack == STACK


def test_an_aborted_checkpoint_keeps_who_never_acknowledged_and_what_they_did(line: Line) -> None:
    row = triggered(line)
    line.post(protocol.ack("source-0", row.number), protocol.ack("sink-1", row.number))
    line.post(aligning(row.number))
    line.post(protocol.decline("source-1", row.number, cause="OSError: no"))
    recorded = evidence.read(kept(line, row.number))
    assert sorted(recorded.missing) == [("sink", 0), ("source", 1)]
    waits = recorded.subtasks["sink", 0].aligning
    assert waits is not None
    assert (waits.missing, waits.missing_count) == (["source-1"], 1)
    verdict = queries.of_checkpoint(line.checkpoint(row.number))
    assert verdict.headline == "A subtask declined the checkpoint: source-1: OSError: no."


def test_an_alignment_of_another_checkpoint_says_nothing_of_this_one(line: Line) -> None:
    row = triggered(line)
    line.post(aligning(row.number - 1))
    line.post(protocol.decline("source-1", row.number))
    recorded = evidence.read(kept(line, row.number))
    assert recorded.subtasks["sink", 0].aligning is None


def test_a_checkpoint_under_way_is_judged_by_the_rows_of_now(line: Line) -> None:
    row = triggered(line)
    line.post(protocol.ack("source-0", row.number), protocol.ack("sink-1", row.number))
    line.post(aligning(row.number), stalled("source-1", 6_000))
    verdict = queries.of_checkpoint(line.checkpoint(row.number))
    assert verdict.tone == "warn"
    assert "source-1 has been stuck in enrich (orders.py:41) for 6.00 s" in verdict.headline
    assert "sink-0: aligning for 9.00 s, without the barrier of source-1" in " ".join(
        verdict.because
    )


def test_who_says_nothing_while_others_do_is_silent(line: Line) -> None:
    row = triggered(line)
    line.post(protocol.ack("source-0", row.number), protocol.ack("sink-1", row.number))
    ago = clock.now() - timedelta(minutes=9)
    silent = Subtask.objects.filter(job=line.job_id, chain="source", index=1)
    silent.update(updated_at=ago)
    verdict = queries.of_checkpoint(line.checkpoint(row.number))
    assert any(text.startswith("source-1: reported nothing for ") for text in verdict.because)
    Subtask.objects.filter(job=line.job_id).update(updated_at=ago)  # No subtask reported.
    verdict = queries.of_checkpoint(line.checkpoint(row.number))
    assert not any("reported nothing" in text for text in verdict.because)


def test_a_failed_attempt_gives_the_checkpoint_its_cause(line: Line) -> None:
    row = triggered(line)
    cause = "sink-1 failed\nTraceback (most recent call last):\n  File x\nValueError: bad row"
    line.post(
        jobs.subtask_changed("sink-1", SubtaskStatus.FAILED, cause="ValueError: bad row"),
        jobs.changed(JobStatus.FAILING, cause),
    )
    line.post(CheckpointingStopped(AttemptNumber(1), FailureReason.JOB_FAILOVER))
    verdict = queries.of_checkpoint(line.checkpoint(row.number))
    assert verdict.headline == (
        "The job failed while the checkpoint was under way: sink-1: ValueError: bad row."
    )
    assert verdict.culprits == ("sink-1",)


def test_what_was_said_before_settling_is_said_after_it(line: Line) -> None:
    """The same picture is taken of what is under way and of what was given up."""
    row = triggered(line)
    line.post(protocol.ack("source-0", row.number), protocol.ack("sink-1", row.number))
    line.post(aligning(row.number), measured("source-1", 1_000, 0.1))
    line.post(measured("source-1", 3_000, 0.9))
    before = queries.of_checkpoint(line.checkpoint(row.number))
    expired = FailureReason.CONTROL_PLANE_AWAY
    line.post(protocol.given_up(row.number, reason=expired))
    after = queries.of_checkpoint(line.checkpoint(row.number))
    told = ("sink-0: aligning", "Busy shares of ")
    doing = [text for text in before.because if text.startswith(told)]
    assert len(doing) == 2
    assert set(doing) <= set(after.because)


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("mode", "timeout_ms", "is_aligned"),
    [
        ("exactly_once", None, True),
        ("exactly_once", 0, False),
        ("exactly_once", 500, False),
        ("at_least_once", None, False),
        ("stop_the_world", None, False),
    ],
)
def test_the_settings_say_whether_barriers_wait_for_records(
    mode: str, timeout_ms: int | None, is_aligned: bool
) -> None:
    config = {"mode": mode, "alignment_timeout_ms": timeout_ms}
    checkpoint = factories.checkpoint(factories.job(checkpoint_config=config), 1)
    times = queries.facts_of(checkpoint).times
    assert times.is_aligned is is_aligned
    assert times.stops_the_world is (mode == "stop_the_world")


@pytest.mark.django_db
def test_an_unaligned_snapshot_is_not_called_slow_to_write_while_barriers_are_to_come() -> None:
    checkpoint = factories.checkpoint(factories.job(), 1, in_flight_bytes=7_000)
    took = {"start_delay_ms": 10.0, "alignment_ms": 2_000.0, "async_ms": 2_030.0}
    factories.acknowledge(checkpoint, "sink", 0, unaligned=True, **took)
    factories.acknowledge(checkpoint, "sink", 1, **took)
    facts = queries.facts_of(checkpoint)
    assert facts.times.in_flight_bytes == 7_000
    assert (facts.acks["sink", 0].left_ms, facts.acks["sink", 0].async_ms) == (2_010.0, 30.0)
    assert facts.acks["sink", 1].async_ms == 2_030.0, "its barriers were in before it began"


def test_code_of_an_upload_is_told_by_its_files_name(
    line: Line, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    digest = factories.upload(file_name="orders.py").digest
    row = triggered(line)
    line.post(stalled("source-1", 6_000))
    rows = Subtask.objects.filter(job=line.job_id, chain="source", index=1)
    stored = STACK.replace("/srv/orders.py", f"/var/weir/uploads/{digest}.py")
    rows.update(stall={**rows.get().stall, "stack": stored})
    row = line.checkpoint(row.number)
    with django_assert_num_queries(11):
        verdict = queries.of_checkpoint(row)
    assert "source-1 has been stuck in enrich (orders.py:41) for 6.00 s" in verdict.headline
    assert verdict.stack.startswith('  File "orders.py", line 41, in enrich\n')


def test_the_number_of_queries_is_fixed(
    line: Line, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    row = triggered(line)
    with django_assert_num_queries(10):
        queries.of_checkpoint(row)
    line.complete(row.number)
    done = Checkpoint.objects.get(pk=row.pk)
    with django_assert_num_queries(9):  # Its evidence, instead of the subtasks.
        queries.of_checkpoint(done)


def test_rows_are_read_without_their_evidence(
    line: Line, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    row = triggered(line)
    line.complete(row.number)
    (reread,) = line.job.checkpoints.all()
    assert "evidence" in reread.get_deferred_fields()


def test_evidence_is_small_for_any_size() -> None:
    now = clock.from_ms(0)
    rates = {"busy": 0.5, "back_pressured": 0.2, "idle": 0.3, "records_in_per_s": 10.0}
    senders = [f"a-{n}" for n in range(200)]
    waits = {
        "checkpoint": 1,
        "since_ms": 1,
        "waited_ms": 5.0,
        "gates": [
            {
                "gate": 0,
                "upstream": senders,
                "arrived_ms": [None] * 200,
                "blocked_ms": [0.0] * 200,
                "bytes_during": [0] * 200,
                "ended": [False] * 200,
            }
        ],
    }
    stall = {"since_ms": 1, "stalled_ms": 2_000.0, "stack": "x" * 100_000}
    rows = [
        evidence.Row(chain, index, 1, "running", rates, stall if index == 7 else None, now, waits)
        for chain in ("a", "b", "c", "d", "e")
        for index in range(200)
    ]
    value = evidence.take(rows, number=1, attempt=1, now_ms=1, missing={row.key for row in rows})
    assert value["missing_count"] == 1_000
    assert len(value["missing"]) == evidence.MISSING_KEPT
    assert len(value["subtasks"]) <= 5 * 2 * evidence.KEPT_PER_CHAIN + evidence.MISSING_KEPT + 5
    assert evidence.read(value).missing[0] == ("a", 7)  # Who explains most comes first.
    assert len(str(value)) < 80_000


def test_of_alignments_so_many_are_read_and_the_others_are_known_of(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = triggered(line)
    other = replace(aligning(row.number), chain=protocol.subtask("sink-1"))
    line.post(aligning(row.number), other)
    monkeypatch.setattr(evidence, "ALIGNING_BYTES_READ", 1_000)
    of_sinks = [subtask for subtask in rows_read(line, row.number) if subtask.chain == "sink"]
    assert [bool(subtask.aligning) for subtask in of_sinks] == [True, True]
    assert not any(subtask.is_left_out for subtask in of_sinks)
    size = len(str(of_sinks[0].aligning))
    monkeypatch.setattr(evidence, "ALIGNING_BYTES_READ", size * 3 // 2)
    of_sinks = [subtask for subtask in rows_read(line, row.number) if subtask.chain == "sink"]
    assert [bool(subtask.aligning) for subtask in of_sinks] == [True, False]
    assert [subtask.is_left_out for subtask in of_sinks] == [False, True]
    assert all(subtask.aligns(row.number) for subtask in of_sinks)
    # Who waits explains nothing: who is waited for comes first, whether or not all was read.
    verdict = queries.of_checkpoint(line.checkpoint(row.number))
    assert set(verdict.culprits) <= {"source-0", "source-1"}
    kept = evidence.take(
        rows_read(line, row.number),
        number=row.number,
        attempt=1,
        now_ms=clock.now_ms(),
        missing={subtask.key for subtask in rows_read(line, row.number)},
    )
    assert kept["missing"][-2:] == ["sink-0", "sink-1"]


def test_alignments_of_other_checkpoints_are_not_read(line: Line) -> None:
    row = triggered(line)
    line.post(aligning(row.number))
    for numbers in ([], [row.number + 1]):
        subtasks = evidence.rows_of(line.job_id, aligning=numbers)
        assert not any(one.aligning or one.is_left_out for one in subtasks)


def rows_read(line: Line, number: int) -> list[evidence.Row]:
    return evidence.rows_of(line.job_id, aligning=[number])


def test_a_manifest_alone_keeps_no_evidence_twice(line: Line) -> None:
    row = triggered(line)
    line.complete(row.number)
    before = kept(line, row.number)
    line.post(ManifestWritten(CheckpointId(row.number)))
    assert kept(line, row.number) == before


def test_a_checkpoint_settles_even_if_its_evidence_fails(
    line: Line, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    row = triggered(line)
    line.post(stalled("sink-1"))

    def broken(*_: Any, **__: Any) -> Any:
        raise KeyError("busy")

    monkeypatch.setattr(evidence, "take", broken)
    line.complete(row.number)
    assert line.checkpoint(row.number).status == "completed"
    assert list(kept(line, row.number)["stalls"]) == ["sink-1"]
    assert f"no evidence is kept of checkpoint {row.number}" in caplog.text


def test_an_alignment_whose_arrays_differ_in_length_is_no_reason_to_fail(line: Line) -> None:
    row = triggered(line)
    report = aligning(row.number)
    gate = replace(report.gates[0], ended=(), arrived_ms=(0.0,))
    line.post(replace(report, gates=(gate,)))
    line.post(protocol.decline("source-1", row.number, cause="OSError: no"))
    verdict = queries.of_checkpoint(line.checkpoint(row.number))
    assert verdict.headline == "A subtask declined the checkpoint: source-1: OSError: no."
    recorded = evidence.read(kept(line, row.number))
    assert len(recorded.missing) == 4


@pytest.mark.django_db
def test_sizes_whose_sum_is_larger_than_a_column_are_no_reason_to_fail() -> None:
    job = flights.running()
    savepoints.request_checkpoint(None, job.pk)
    flights.complete(job, 1)
    largest = 2**63 - 1
    assert SubtaskAck.objects.update(state_bytes=largest, written_bytes=largest) > 1
    assert queries.of_checkpoint(Checkpoint.objects.get(job=job, number=1)) is not None
