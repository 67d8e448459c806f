"""Threads of user code that keep the interpreter lock from a slot: named instead of what waits."""

from dataclasses import replace
from typing import Any

import pytest

from checkpoints.verdict import judge
from checkpoints.verdict.facts import Aligning, CpuWait, Edge, Facts, Key, Seen, Slot, Stall
from checkpoints.verdict.facts import ThreadsBeside as Beside
from checkpoints.verdict.judge import Verdict
from checkpoints.verdict.result import Cause
from checkpoints.verdict.starvation import LOCK_SHARE, LOCK_WAIT_MS
from tests.unit.checkpoints.verdict_cases import IDLE, LINE, T0, Case, busy, expired, held, seen
from weir.protocol.lifecycle import SubtaskStatus

ALL_IDLE = dict.fromkeys(LINE.subtasks(), IDLE)
THREADS = Beside(38.0, 0.93, 0.07, "prefetch", "/srv/orders.py", 77)
LATE = (("enrich", 1), ("hourly", 2))


def verdict(case: Case, **given: Any) -> Verdict:
    return judge.judge_checkpoint(case.run(**given))


def test_they_are_named_with_slot_share_and_line() -> None:
    judgement = verdict(Case(channel_ms={LATE: 5_000}, rates=ALL_IDLE, beside={2: THREADS}))
    assert judgement.tone == "warn"
    assert judgement.headline == (
        "Threads of the job's own code kept the interpreter lock from slot 2 (host node-2, process "
        "4702), where hourly-2 ran: they used 93 % of a processor, most of it in prefetch "
        "(orders.py:77); the barrier of enrich-1 reached hourly-2 5.00 s after the first one."
    )
    assert any("waited 38 ms for the interpreter lock on" in line for line in judgement.because)
    assert judgement.advice[0].startswith("Let these threads do less, or move their work into")
    assert judgement.culprits == ("hourly-2",)
    assert judgement.cause is Cause.LOCKED


def test_without_a_frame_of_the_users_no_line_is_named() -> None:
    beside = replace(THREADS, function="", file="", line=0)
    judgement = verdict(Case(channel_ms={LATE: 5_000}, rates=ALL_IDLE, beside={2: beside}))
    assert "they used 93 % of a processor; the barrier of enrich-1" in judgement.headline


@pytest.mark.parametrize(
    ("change", "is_named"),
    [
        ({}, True),
        ({"lock_wait_ms": LOCK_WAIT_MS}, True),
        ({"lock_wait_ms": LOCK_WAIT_MS - 0.1}, False),  # They compute without the lock.
        ({"cpu_share": LOCK_SHARE}, True),
        ({"cpu_share": LOCK_SHARE - 0.01}, False),
        ({"loop_share": LOCK_SHARE - 0.01}, True),
        ({"loop_share": LOCK_SHARE}, False),  # The loop had it for as long as it wanted.
    ],
)
def test_they_are_accused_if_they_compute_the_lock_is_rare_and_the_loop_hardly_runs(
    change: dict[str, float], is_named: bool
) -> None:
    beside = replace(THREADS, **change)
    judgement = verdict(Case(channel_ms={LATE: 5_000}, rates=ALL_IDLE, beside={2: beside}))
    assert judgement.headline.startswith("Threads of the job's own code") is is_named
    assert judgement.headline.startswith("The channel enrich-1 → hourly-2 held") is not is_named


def test_threads_of_another_slot_are_not_accused() -> None:
    judgement = verdict(Case(channel_ms={LATE: 5_000}, rates=ALL_IDLE, beside={0: THREADS}))
    assert judgement.headline.startswith("The channel enrich-1 → hourly-2 held")


def test_they_come_before_the_busy_operator_of_their_slot_and_the_processors_of_the_host() -> None:
    rates = ALL_IDLE | {("hourly", 2): busy(0.97)}
    case = Case(front_ms={("hourly", 2): 5_000}, rates=rates, cpu_wait={2: 0.6})
    assert verdict(case).cause is Cause.STARVED
    case.beside = {2: THREADS}
    assert verdict(case).cause is Cause.LOCKED


def test_a_stuck_call_comes_before_them() -> None:
    stalls = {("hourly", 1): Stall(T0 + 100, 4_800.0, '  File "/srv/orders.py", line 4, in f\n')}
    evidence = seen(LINE, ALL_IDLE, stalls=stalls, beside={1: THREADS})
    judgement = verdict(Case(front_ms={("hourly", 1): 5_000}), evidence=evidence)
    assert judgement.cause is Cause.STUCK


def test_two_subtasks_of_such_a_slot_are_told_once() -> None:
    case = Case(
        front_ms={("enrich", 1): 2_000, ("hourly", 1): 3_000}, rates=ALL_IDLE, beside={1: THREADS}
    )
    judgement = verdict(case)
    assert judgement.headline.startswith("Threads of the job's own code kept")
    assert judgement.culprits == ("hourly-1",)
    case.beside[0] = THREADS
    case.front_ms = {("enrich", 0): 2_000, ("hourly", 1): 3_000}
    assert verdict(case).culprits == ("hourly-1", "enrich-0")


def test_back_pressure_leads_to_their_slot() -> None:
    rates = ALL_IDLE | {("enrich", 1): held(0.9)}
    case = Case(front_ms={("enrich", 1): 5_000}, rates=rates, beside={0: THREADS})
    assert verdict(case).culprits == ("hourly-0",)
    case.beside = {1: THREADS}
    case.rates = rates | {("hourly", 0): busy(0.99)}
    assert verdict(case).culprits == ("hourly-0",)  # What is held back does not lack the lock.


def test_a_sender_in_their_slot_is_named() -> None:
    judgement = verdict(Case(channel_ms={LATE: 5_000}, rates=ALL_IDLE, beside={1: THREADS}))
    assert judgement.culprits == ("enrich-1",)


@pytest.mark.parametrize("part", ["sync_ms", "async_ms"])
def test_a_slow_copy_and_a_slow_write_in_their_slot(part: str) -> None:
    slow: dict[str, Any] = {part: {("hourly", 1): 8_000.0}}
    case = Case(rates=ALL_IDLE, written=dict.fromkeys(LINE.subtasks(), 2_000_000), **slow)
    alone = verdict(case).headline
    case.beside = {1: THREADS}
    told = verdict(case).headline
    assert not alone.startswith("Threads")
    assert told.startswith("Threads of the job's own code kept the interpreter lock from slot 1 ")
    assert alone[1:] in told


def test_acknowledgements_that_took_long_from_their_slot() -> None:
    case = Case(rates=ALL_IDLE, async_ms={("sink", 1): 6.0})
    facts = case.run()
    acks = {
        key: replace(ack, acknowledged_at_ms=ack.acknowledged_at_ms + 9_000 * (key == ("sink", 1)))
        for key, ack in facts.acks.items()
    }
    late = replace(facts.times, duration_ms=9_100.0, settled_at_ms=T0 + 9_100)
    judged = judge.judge_checkpoint(replace(facts, acks=acks, times=late))
    assert judged.headline.startswith("The acknowledgements took 9.00 s from the subtasks")
    evidence = replace(facts.evidence, beside={1: THREADS})
    judged = judge.judge_checkpoint(replace(facts, acks=acks, times=late, evidence=evidence))
    assert judged.headline.startswith("Threads of the job's own code kept the interpreter lock")
    assert "; the acknowledgements took 9.00 s from the subtasks" in judged.headline
    assert not any("control plane" in line for line in judged.advice)


def waits(*missing: tuple[Key, Seen]) -> Facts:
    """An expired checkpoint without these subtasks, with threads in slot 1."""
    evidence = seen(LINE, ALL_IDLE, cpu_waits={1: CpuWait(0.3, 0.0)}, beside={1: THREADS})
    return Facts(
        times=expired(),
        operators=LINE.operators,
        edges=[Edge(*edge) for edge in LINE.edges],
        evidence=replace(
            evidence,
            subtasks={**evidence.subtasks, **dict(missing)},
            missing=[key for key, _ in missing],
            missing_count=len(missing),
        ),
        slots={1: Slot("node-1", 4_701)},
    )


@pytest.mark.parametrize(
    "missing",
    [
        (("hourly", 1), Seen(SubtaskStatus.RUNNING, rates=IDLE)),
        (("hourly", 1), Seen(SubtaskStatus.RUNNING, rates=IDLE, sent_on=True)),  # Being written.
        (
            ("hourly", 2),  # The barrier is on its way from there.
            Seen(SubtaskStatus.RUNNING, IDLE, Aligning(T0, 590_000.0, ["enrich-1"], 1)),
        ),
    ],
)
def test_an_expired_checkpoint_names_them(missing: tuple[Key, Seen]) -> None:
    judgement = judge.judge_checkpoint(waits(missing))
    assert "because threads of the job's own code kept the interpreter lock" in judgement.headline
    assert judgement.cause is Cause.LOCKED


def test_an_expired_checkpoint_names_them_once() -> None:
    lost = Seen(SubtaskStatus.RUNNING, rates=IDLE, sent_on=True)
    judgement = judge.judge_checkpoint(waits((("hourly", 1), lost), (("enrich", 1), lost)))
    assert judgement.headline.count("interpreter lock") == 1
    assert not any(line.startswith("Also: ") for line in judgement.because)
