"""The advice to let barriers overtake records: where it helps, and with the time it would save."""

from dataclasses import replace
from typing import Any

import pytest

from checkpoints.verdict import judge
from checkpoints.verdict.facts import Edge, Evidence, Facts, Key, Seen, Stall
from checkpoints.verdict.judge import Verdict
from tests.unit.checkpoints.verdict_cases import (
    IDLE,
    LINE,
    T0,
    Case,
    busy,
    expired,
    seen,
    times,
)
from weir.protocol.elements import CheckpointKind
from weir.protocol.lifecycle import SubtaskStatus

SLOW: Key = ("hourly", 2)
RATES = dict.fromkeys(LINE.subtasks(), IDLE) | {SLOW: busy(0.97)}
ADVICE = "Where it stays slow, let barriers overtake records: enable_unaligned_checkpoints()."


def behind_records(**given: Any) -> Facts:
    """A completed checkpoint whose barriers waited behind the records of a slow subtask."""
    facts = Case(front_ms={SLOW: 5_000}, async_ms={("sink", 0): 250.0}, rates=RATES).run()
    return replace(facts, times=replace(facts.times, **{"is_aligned": True} | given))


def advised(judgement: Verdict) -> list[str]:
    return [line for line in judgement.advice if "overtake" in line]


def test_a_checkpoint_that_waited_behind_records_is_told_its_time_without_that() -> None:
    judgement = judge.judge_checkpoint(behind_records())
    assert "hourly-2 was slow, busy 97 % of the time" in judgement.headline
    assert "overtake" not in judgement.advice[0], "mending it comes first"
    rest = "Without its wait for barriers this one would have taken about 259 ms."
    assert advised(judgement) == [f"{ADVICE} {rest}"]


@pytest.mark.parametrize(
    "given",
    [
        {"is_aligned": False},
        *({"kind": kind} for kind in CheckpointKind if kind is not CheckpointKind.CHECKPOINT),
    ],
)
def test_no_advice_where_barriers_overtake_already_or_never_may(given: dict[str, Any]) -> None:
    judgement = judge.judge_checkpoint(behind_records(**given))
    assert "hourly-2 was slow" in judgement.headline
    assert advised(judgement) == []


def test_a_slow_checkpoint_that_stops_the_world_is_told_of_the_mode_that_does_not() -> None:
    stopping = {"is_aligned": False, "stops_the_world": True}
    assert judge.judge_checkpoint(behind_records(**stopping)).advice[-1] == judge.AGAINST_STOPPING
    without = [
        behind_records(),
        behind_records(kind=CheckpointKind.SAVEPOINT, **stopping),
        quick(**stopping),
    ]
    for facts in without:
        assert judge.AGAINST_STOPPING not in judge.judge_checkpoint(facts).advice


def quick(**given: Any) -> Facts:
    """A completed checkpoint that nothing held up."""
    facts = Case().run()
    return replace(facts, times=replace(facts.times, **given))


@pytest.mark.parametrize(
    ("partitioning", "count"),
    [
        *((partitioning, 1) for partitioning in ("rebalance", "shuffle", "global")),
        *((partitioning, 0) for partitioning in ("forward", "rescale", "broadcast", "custom")),
    ],
)
def test_the_exchange_decides_whether_it_helps(partitioning: str, count: int) -> None:
    facts = behind_records()
    edges = [
        replace(edge, partitioning=partitioning) if edge.target == "hourly" else edge
        for edge in facts.edges
    ]
    assert len(advised(judge.judge_checkpoint(replace(facts, edges=edges)))) == count


def test_no_advice_for_a_call_that_did_not_return() -> None:
    facts = behind_records()
    stall = Stall(T0, 4_900.0, '  File "/srv/orders.py", line 41, in enrich\n')
    evidence = replace(facts.evidence, stalls={SLOW: stall})
    judgement = judge.judge_checkpoint(replace(facts, evidence=evidence))
    assert "stuck in enrich" in judgement.headline
    assert advised(judgement) == [], "a barrier overtakes no call"


def test_no_advice_where_the_receiver_had_time() -> None:
    late = Case(channel_ms={(("enrich", 1), SLOW): 5_000}, rates=dict.fromkeys(RATES, IDLE)).run()
    facts = replace(late, times=replace(late.times, is_aligned=True))
    judgement = judge.judge_checkpoint(facts)
    assert "The channel enrich-1 → hourly-2 held the barrier" in judgement.headline
    assert advised(judgement) == [], "there was nothing to overtake"


def test_no_advice_for_a_slot_without_a_processor() -> None:
    rates = dict.fromkeys(RATES, IDLE)
    starved = Case(front_ms={SLOW: 5_000}, rates=rates, cpu_wait={2: 0.8}).run()
    facts = replace(starved, times=replace(starved.times, is_aligned=True))
    judgement = judge.judge_checkpoint(facts)
    assert "waited 80 % of the time for a processor" in judgement.headline
    assert advised(judgement) == [], "an unaligned one would wait as long"


def missing(evidence: Evidence, **given: Any) -> Facts:
    """An expired checkpoint that the slow subtask never acknowledged."""
    return Facts(
        times=expired(is_aligned=True, **given),
        operators=LINE.operators,
        edges=[Edge(*edge) for edge in LINE.edges],
        evidence=replace(evidence, missing=[SLOW], missing_count=1),
    )


def test_an_expired_checkpoint_has_the_advice_without_a_time() -> None:
    judgement = judge.judge_checkpoint(missing(seen(LINE, RATES)))
    assert "hourly-2 was slow" in judgement.headline
    assert advised(judgement) == [ADVICE]


def test_a_subtask_that_writes_its_snapshot_has_its_barriers() -> None:
    evidence = seen(LINE, RATES)
    writes = Seen(SubtaskStatus.RUNNING, busy(0.97), sent_on=True)
    evidence = replace(evidence, subtasks={**evidence.subtasks, SLOW: writes})
    judgement = judge.judge_checkpoint(missing(evidence))
    assert "writing its snapshot" in judgement.headline
    assert advised(judgement) == []


def test_records_that_were_kept_are_among_the_numbers() -> None:
    facts = Case().run()
    kept = replace(facts, times=times(duration_ms=300.0, in_flight_bytes=2_500_000))
    numbers = judge.judge_checkpoint(kept).because[-1]
    assert "2.50 MB of records that barriers overtook were kept" in numbers
    assert "overtook" not in " ".join(judge.judge_checkpoint(facts).because)
