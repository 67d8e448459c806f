"""Plausible bugs in the sweep of files, each of which the simulation must find."""

import pytest

from tests.simulation.catching import Show, caught_at
from weir.ids import AttemptNumber
from weir.jobmaster.checkpoint_files import CheckpointFiles
from weir.output import needs
from weir.output.needs import Known, Need

pytestmark = pytest.mark.whole


def test_a_sweep_that_does_not_come_is_caught(monkeypatch: pytest.MonkeyPatch, show: Show) -> None:
    monkeypatch.setattr(CheckpointFiles, "sweep", lambda files, *, may_run: None)
    failure = caught_at("nothing is swept", show, first=4)
    assert "the job finished, and" in str(failure)


def test_a_sweep_of_state_that_a_manifest_names_is_caught(
    monkeypatch: pytest.MonkeyPatch, show: Show
) -> None:
    def attempt_alone(known: Known, number: int, inside: str, path: str) -> Need | None:
        attempt = inside.partition("/")[0]
        if not attempt.isdecimal():
            return Need(needs.Reason.DOUBT)
        return needs._of_attempt(known, AttemptNumber(int(attempt)))

    monkeypatch.setattr(needs, "_need_in_checkpoint", attempt_alone)
    failure = caught_at("all state of older attempts is swept", show, first=4)
    assert "needs it" in str(failure)
