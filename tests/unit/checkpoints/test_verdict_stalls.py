"""Stalls that were noted while a checkpoint was under way, and had nothing to do with it."""

from dataclasses import replace

import pytest

from checkpoints.verdict import judge
from checkpoints.verdict.facts import Edge, Facts, Seen, Stall
from tests.unit.checkpoints.verdict_cases import IDLE, LINE, T0, Case, seen, times
from weir.protocol.lifecycle import CheckpointStatus, SubtaskStatus

STACK = '  File "/srv/orders.py", line 41, in enrich\n    rates = get(url)\n'


@pytest.mark.parametrize("is_over", [True, False])
@pytest.mark.parametrize("since_ms", [500, 2])
def test_a_stall_in_a_slot_that_had_acknowledged_is_not_to_blame(
    is_over: bool, since_ms: int
) -> None:
    """The checkpoint waited for the writing in another slot meanwhile."""
    stall = Stall(T0 + since_ms, 6_000.0, STACK)
    evidence = seen(LINE, dict.fromkeys(LINE.subtasks(), IDLE))
    if is_over:
        evidence = replace(evidence, stalls={("sink", 1): stall})
    else:
        subtasks = {
            **evidence.subtasks,
            ("sink", 1): Seen(SubtaskStatus.RUNNING, IDLE, stall=stall),
        }
        evidence = replace(evidence, subtasks=subtasks)
    facts = replace(Case(async_ms={("hourly", 0): 8_000.0}).run(), evidence=evidence)
    verdict = judge.judge_checkpoint(facts)
    assert verdict.culprits == ("hourly-0",)
    assert "stuck" not in verdict.headline
    assert verdict.stack == ""


@pytest.mark.parametrize("ago_ms", [1_000, 20_000])
def test_no_subtask_is_stuck_in_a_call_that_has_returned(ago_ms: int) -> None:
    """It was noted, and is told of when the checkpoint is over."""
    now_ms = T0 + 60_000
    stall = Stall(now_ms - ago_ms - 4_000, 4_000.0, STACK)
    evidence = replace(
        seen(LINE, dict.fromkeys(LINE.subtasks(), IDLE)),
        stalls={("hourly", 1): stall},
        missing=[("hourly", 1)],
        missing_count=1,
    )
    row = times(status=CheckpointStatus.PENDING, now_ms=now_ms, acknowledged_count=11)
    facts = Facts(row, LINE.operators, [Edge(*edge) for edge in LINE.edges], evidence=evidence)
    verdict = judge.judge_checkpoint(facts)
    is_stuck = ago_ms == 1_000
    assert ("has been stuck in enrich" in verdict.headline) is is_stuck
    assert (verdict.stack != "") is is_stuck
    assert any("stuck" in text for text in verdict.because) is is_stuck
