"""Whole jobs under seeded faults: nothing lost, nothing twice, nothing out of order.

Each block runs fifty seeds; a failure names its seed, and
``python -m tests.simulation.simulation SEED`` tells its story.
"""

import os
import subprocess
import sys
from collections import Counter

import pytest

from tests.seeds import share
from tests.simulation.simulation import LATER, POINTS, Outcome, Simulation, simulate
from weir.config import CheckpointingMode

BLOCK = 50
BLOCKS = share(1_000, block=BLOCK) // BLOCK

outcomes: dict[int, Outcome] = {}  # By seed.


@pytest.mark.parametrize("first", range(0, BLOCK * BLOCKS, BLOCK))
def test_every_record_counts_when_anything_dies(first: int) -> None:
    block = [simulate(seed) for seed in range(first, first + BLOCK)]
    outcomes.update((outcome.seed, outcome) for outcome in block)
    fired = sum((outcome.fired for outcome in block), Counter[str]())
    assert fired.total() >= BLOCK / 2, "hardly any fault fired, so nothing was shown"


@pytest.mark.whole
def test_faults_of_every_kind_fired(capsys: pytest.CaptureFixture[str]) -> None:
    if len(outcomes) < BLOCK * BLOCKS:
        pytest.skip("only together with all blocks")
    ran = outcomes.values()
    fired = sum((outcome.fired for outcome in ran), Counter[str]())
    aborted = Counter(str(reason) for outcome in ran for reason in outcome.aborted.elements())
    attempts = sum(outcome.attempts for outcome in ran)
    completed = sum(outcome.completed for outcome in ran)
    with capsys.disabled():
        print(f"\n  {len(outcomes)} seeds, {attempts} attempts, {completed} checkpoints")
        print(f"  {fired.total()} faults: {told(fired)}")
        print(f"  aborted checkpoints: {told(aborted)}")
    at_points = {
        f"{point}: {action}" for point, (actions, _) in POINTS.items() for action in actions
    }
    assert fired.keys() == at_points | {f"any time: {action}" for action in LATER}


def told(counts: Counter[str]) -> str:
    return "; ".join(f"{what} {count}" for what, count in counts.most_common())


def test_restarts_read_local_copies_and_notice_damaged_ones() -> None:
    """The runs among these whose slots keep copies, and that some fault restarts."""
    copies = Counter[str]()
    for seed in range(200):
        if seed in outcomes:
            copies += outcomes[seed].copies
        elif (simulation := Simulation(seed)).keeps_copies:
            copies += simulation.run().copies
    assert copies["taken"] > 10_000
    assert copies["taken over"] > 0
    assert copies["damaged"] >= 10


@pytest.mark.whole
def test_at_least_once_repeats_but_loses_nothing() -> None:
    if len(outcomes) < BLOCK * BLOCKS:
        pytest.skip("only together with all blocks")
    repeating = [o for o in outcomes.values() if o.mode is CheckpointingMode.AT_LEAST_ONCE]
    assert sum(outcome.lost for outcome in repeating) == 0
    assert sum(outcome.duplicated for outcome in repeating) > 0


@pytest.mark.parametrize("seed", range(20))
def test_an_undisturbed_run_needs_one_attempt_and_writes_what_it_must(seed: int) -> None:
    outcome = simulate(seed, faulty=False)
    assert outcome.records > 0
    assert not outcome.fired
    assert (outcome.lost, outcome.duplicated, outcome.out_of_order) == (0, 0, 0)


def test_a_seed_replays_exactly_in_another_process() -> None:
    """Not even the order of a set of strings, which changes with every process, may matter."""
    here = Simulation(17, trace=True)
    here.run()
    there = subprocess.run(
        [sys.executable, "-m", "tests.simulation.simulation", "17"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONHASHSEED": "12345"},
    )
    assert here.trace is not None
    assert there.stdout.splitlines()[: len(here.trace)] == "\n".join(here.trace).splitlines()
