"""Stalls that were noted while a checkpoint was under way, and had nothing to do with it."""

from dataclasses import replace

import pytest

from checkpoints import verdict
from checkpoints.verdict_facts import Seen, Stall
from tests.checkpoints.verdict_cases import IDLE, LINE, T0, Case, seen
from weir.protocol.lifecycle import SubtaskStatus

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
    found = verdict.of(facts)
    assert found.culprits == ("hourly-0",)
    assert "stuck" not in found.headline
    assert found.stack == ""
