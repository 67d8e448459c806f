"""Checkpoints of which more subtasks are missing than are kept by name."""

from dataclasses import replace

import pytest

from checkpoints.verdict import judge
from checkpoints.verdict.facts import Aligning, Edge, Facts, Seen
from tests.unit.checkpoints.verdict_cases import IDLE, LINE, Case, expired, seen
from weir.protocol.lifecycle import SubtaskStatus


@pytest.mark.parametrize("has_acknowledged", [True, False])
def test_only_who_is_known_to_have_acknowledged_is_said_to_have_sent(
    has_acknowledged: bool,
) -> None:
    """``sink-0`` waits for ``hourly-2``, which may be missing without being kept."""
    evidence = seen(LINE, dict.fromkeys(LINE.subtasks(), IDLE))
    waits = Seen(SubtaskStatus.RUNNING, IDLE, Aligning(0, 500_000.0, ["hourly-2"], 1))
    facts = Facts(
        times=expired(),
        operators=LINE.operators,
        edges=[Edge(*edge) for edge in LINE.edges],
        evidence=replace(
            evidence,
            subtasks={**evidence.subtasks, ("sink", 0): waits},
            missing=[("sink", 0)],
            missing_count=40,
        ),
    )
    if has_acknowledged:
        facts = replace(facts, acks={("hourly", 2): Case().run().acks["hourly", 2]})
    verdict = judge.judge_checkpoint(facts)
    claims = "the barrier that hourly-2 sent had not reached sink-0" in verdict.headline
    assert claims is has_acknowledged
    assert (verdict.channel is not None) is has_acknowledged
    assert verdict.culprits[0] == ("hourly-2" if has_acknowledged else "sink-0")
