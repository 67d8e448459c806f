"""A driver that waits for its storage at the worst moment, while another one takes the job over.

Random faults hardly ever meet that moment, so here each seed does: the first driver is about to
create a manifest, and the next driver claims its attempt and chooses its checkpoint before that
manifest is there. Where the first driver has looked at the fence already, its second look saves the
job. Where it has not, either look does, so that only a bug in both shows.
"""

from typing import Any

import pytest

from tests.simulation.catching import Show
from tests.simulation.simulation import Simulation, SimulationFailed
from weir.ids import AttemptNumber
from weir.jobmaster.fence import Act, Fence

pytestmark = pytest.mark.whole

SEEDS = 20


class TakenOver(Simulation):
    """A run without faults in which this happens once, before or after the first look."""

    def __init__(self, seed: int, *, before: bool) -> None:
        super().__init__(seed, faulty=False)
        self.before = before
        self.is_taken_over = False
        self._left = 1 + seed % 3  # Manifests until then.

    def looked(self, act: Act) -> None:
        """A driver is about to look at the fence, or looked and goes on."""
        if act is not Act.WRITE_MANIFEST or self.is_taken_over:
            return
        self._left -= 1
        if not self._left:
            self.is_taken_over = True
            self._wait()

    def _wait(self) -> None:
        """Let the world go on, until the next driver has chosen."""
        driver, process = self.driver, self.process
        self.driver = self.process = None
        self._start_application()
        while self._newest not in self._attempts and self._events.run_next():
            self.outcome.steps += 1
        self.driver, self.process = driver, process


class BothAtOnce(Simulation):
    """Two drivers are started for one job, and each sees no attempt before its own."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, faulty=False)

    def _start_application(self) -> None:
        super()._start_application()
        if len(self._applications) == 1:
            super()._start_application()


def taken_over(
    seed: int, monkeypatch: pytest.MonkeyPatch, *without: Act, before: bool = False
) -> bool:
    """Run one seed, without some looks at the fence; whether the occasion arose."""
    simulation = TakenOver(seed, before=before)
    production = Fence.check

    def check(fence: Fence, act: Any) -> None:
        if before:
            simulation.looked(act)
        if act not in without:
            production(fence, act)
        if not before:
            simulation.looked(act)

    with monkeypatch.context() as patch:
        patch.setattr(Fence, "check", check)
        simulation.run()
    return simulation.is_taken_over


@pytest.mark.parametrize("before", [False, True])
def test_a_driver_that_is_taken_over_at_its_manifest_counts_nothing(
    monkeypatch: pytest.MonkeyPatch, before: bool
) -> None:
    arose = [taken_over(seed, monkeypatch, before=before) for seed in range(SEEDS)]
    assert sum(arose) > SEEDS / 2


def test_a_manifest_that_is_counted_without_a_second_look_is_caught(
    monkeypatch: pytest.MonkeyPatch, show: Show
) -> None:
    for seed in range(SEEDS):
        try:
            taken_over(seed, monkeypatch, Act.COUNT_MANIFEST)
        except SimulationFailed as failure:
            show(f"a manifest counts without a second look: caught at seed {seed}: {failure}")
            return
    pytest.fail(f"not caught in {SEEDS} seeds")


def test_either_look_keeps_a_driver_that_was_taken_over_before_both_from_counting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for without in (Act.WRITE_MANIFEST, Act.COUNT_MANIFEST):
        arose = [taken_over(seed, monkeypatch, without, before=True) for seed in range(SEEDS)]
        assert sum(arose) > SEEDS / 2, without


def test_a_manifest_that_is_counted_without_any_look_is_caught(
    monkeypatch: pytest.MonkeyPatch, show: Show
) -> None:
    """Each of the two fences covers for the other: this is the bug that removes both at once."""
    both = Act.WRITE_MANIFEST, Act.COUNT_MANIFEST
    for seed in range(SEEDS):
        try:
            taken_over(seed, monkeypatch, *both, before=True)
        except SimulationFailed as failure:
            show(f"a manifest counts without any look: caught at seed {seed}: {failure}")
            return
    pytest.fail(f"not caught in {SEEDS} seeds")


def test_of_two_drivers_that_claim_one_attempt_one_runs_the_job() -> None:
    for seed in range(SEEDS):
        simulation = BothAtOnce(seed)
        assert simulation.run().attempts >= 1
        assert len(simulation._applications) == 2


def test_an_attempt_that_two_drivers_claim_is_caught(
    monkeypatch: pytest.MonkeyPatch, show: Show
) -> None:
    production = Fence.claim

    def claim(fence: Fence, attempt: AttemptNumber) -> bool:
        production(fence, attempt)
        return True  # Although another driver has.

    monkeypatch.setattr(Fence, "claim", claim)
    for seed in range(SEEDS):
        try:
            BothAtOnce(seed).run()
        except SimulationFailed as failure:
            show(f"two drivers claim one attempt: caught at seed {seed}: {failure}")
            return
    pytest.fail(f"not caught in {SEEDS} seeds")
