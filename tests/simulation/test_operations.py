"""Jobs that are stopped, rolled back, rescaled, upgraded, forked while all dies between two steps.

``python -m tests.simulation.simulation --operations SEED`` tells the story of one.
"""

from collections import Counter

import pytest

from tests.seeds import share
from tests.simulation.operations import STEP_FAULTS
from tests.simulation.simulation import OPERATION_POINTS, Outcome, simulate
from weir.config import CheckpointingMode
from weir.protocol.operations import OperationKind, Phase

BLOCK = 50
BLOCKS = share(300, block=BLOCK) // BLOCK

# Where an operation may stand: what each kind goes through.
STEPS = {
    OperationKind.SAVEPOINT: {Phase.SAVING, Phase.DONE},
    OperationKind.STOP: {Phase.SAVING, Phase.ENDING, Phase.DONE},
    OperationKind.RESCALE: {Phase.SAVING, Phase.RELAUNCHING, Phase.DONE},
    OperationKind.ROLLBACK: {Phase.RELAUNCHING, Phase.DONE},
    OperationKind.FORK: {Phase.SAVING, Phase.FORKING, Phase.DONE},
    OperationKind.UPGRADE: {Phase.SAVING, Phase.ENDING, Phase.RELAUNCHING, Phase.DONE},
}

outcomes: list[Outcome] = []


@pytest.mark.parametrize("first", range(0, BLOCK * BLOCKS, BLOCK))
def test_no_twin_no_lost_savepoint_no_file_that_is_needed(first: int) -> None:
    outcomes.extend(simulate(seed, operations=True) for seed in range(first, first + BLOCK))


def total() -> Outcome:
    if len(outcomes) < BLOCK * BLOCKS:
        pytest.skip("only together with all blocks")
    whole = Outcome(0, outcomes[0].mode)
    for outcome in outcomes:
        whole.fired += outcome.fired
        whole.operations += outcome.operations
        whole.attempts += outcome.attempts
    return whole


@pytest.mark.whole
def test_operations_of_every_kind_succeeded_and_failed(capsys: pytest.CaptureFixture[str]) -> None:
    happened = total().operations
    with capsys.disabled():
        print(f"\n  {len(outcomes)} seeds, {total().attempts} attempts: {told(happened)}")
    for kind in OperationKind:
        assert happened[f"{kind} succeeded"] > BLOCK / 2
        assert happened[f"{kind} failed"] > 0


@pytest.mark.whole
@pytest.mark.parametrize(
    "what",
    [
        "refused as another one was under way",
        "savepoint under a name in use",
        "savepoint deleted",
        "fork of a savepoint that was moved",
        "rolled forward again",
        "failed with its savepoint kept",
        "short deadline",
        "request withdrawn",
        "upgrade refused",
        "upgrade to what does not run",
        "taken back",
        "runs again as before",
        "stopped",
        "resumed",
    ],
)
def test_it_happened(what: str) -> None:
    assert total().operations[what] > 0


@pytest.mark.whole
def test_a_fault_of_every_kind_fired_after_every_step() -> None:
    happened = total().operations
    wanted = {
        f"{kind}.{phase}: {action}"
        for kind, phases in STEPS.items()
        for phase in phases
        for action in STEP_FAULTS
    }
    assert not {what for what in wanted if not happened[what]}


@pytest.mark.whole
def test_a_fault_fired_at_every_point_of_a_savepoint_and_a_rewind() -> None:
    fired = total().fired
    wanted = {
        f"{point}: {action}"
        for point, (actions, _) in OPERATION_POINTS.items()
        for action in actions
    }
    assert not {what for what in wanted if not fired[what]}


@pytest.mark.parametrize("seed", range(20))
def test_without_faults_operations_lose_nothing(seed: int) -> None:
    outcome = simulate(seed, faulty=False, operations=True)
    assert outcome.records > 0
    assert outcome.lost == 0
    if outcome.mode is not CheckpointingMode.AT_LEAST_ONCE:
        assert (outcome.duplicated, outcome.out_of_order) == (0, 0)


def told(counts: Counter[str]) -> str:
    return "; ".join(f"{what} {count}" for what, count in counts.most_common() if ":" not in what)
