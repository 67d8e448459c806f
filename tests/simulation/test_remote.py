"""The same lives under a control plane that is far away, repeats itself and is gone for a while.

``python -m tests.simulation.simulation --remote SEED`` tells the story of one.
"""

from collections import Counter

import pytest

from tests.seeds import share
from tests.simulation.simulation import Outcome, Simulation

BLOCK = 50
BLOCKS = share(200, block=BLOCK) // BLOCK

seen: Counter[str] = Counter()


def lived(seed: int, *, faulty: bool = True) -> Outcome:
    simulation = Simulation(seed, faulty=faulty, remote=True)
    outcome = simulation.run()
    assert simulation.control is not None
    seen["seeds"] += 1
    seen["outages"] += simulation.control.outages
    seen["given up"] += simulation.control.given_up
    seen["withheld"] += simulation.control.withheld
    return outcome


@pytest.mark.parametrize("first", range(0, BLOCK * BLOCKS, BLOCK))
def test_every_record_counts_when_anything_dies_or_is_away(first: int) -> None:
    fired = sum((lived(seed).fired for seed in range(first, first + BLOCK)), Counter[str]())
    assert fired.total() >= BLOCK / 2, "hardly any fault fired, so nothing was shown"


@pytest.mark.whole
def test_what_is_special_about_a_distant_coordinator_happened(
    capsys: pytest.CaptureFixture[str],
) -> None:
    if seen["seeds"] < BLOCK * BLOCKS:
        pytest.skip("only together with all blocks")
    with capsys.disabled():
        print(f"\n  {dict(seen)}")
    assert seen["outages"] > BLOCK
    assert seen["withheld"] > 0
    assert seen["given up"] > 0


@pytest.mark.parametrize("seed", range(10))
def test_without_faults_one_attempt_is_enough_though_the_control_plane_is_away(seed: int) -> None:
    outcome = lived(seed, faulty=False)
    assert outcome.attempts == 1
    assert outcome.records > 0
    assert (outcome.lost, outcome.duplicated, outcome.out_of_order) == (0, 0, 0)
