"""Errors of a lost database in the log: a line each, and of tasks one now and then."""

import logging
from collections.abc import Iterator

import pytest
from django.conf import settings
from django.db import OperationalError, ProgrammingError
from django.db.utils import DatabaseError

from controlplane.base import server_losses, ticks
from jobs import tasks

LOST = OperationalError("connection refused\n\tIs the server running?\n")


@pytest.fixture(autouse=True)
def losses(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> Iterator[server_losses.LossFilter]:
    """The filter of the console, which has said nothing before."""
    assert "losses" in settings.LOGGING["handlers"]["console"]["filters"]
    losses = server_losses.LossFilter()
    caplog.handler.addFilter(losses)
    monkeypatch.setattr(logging.getLogger(), "handlers", [caplog.handler])
    yield losses
    caplog.handler.removeFilter(losses)


def fail_ticks(monkeypatch: pytest.MonkeyPatch, error: DatabaseError, times: int) -> None:
    """Run a task whose work raises."""

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(tasks, "run_all", fail)
    for _ in range(times):
        assert tasks.tick.apply().failed()


def test_an_outage_is_one_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fail_ticks(monkeypatch, LOST, 3)
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert record.getMessage().startswith("tasks wait for the database: connection refused")
    assert record.exc_info is None


def test_a_loss_that_is_logged_elsewhere_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    for error in (LOST, ProgrammingError("no such column")):
        try:
            raise error
        except DatabaseError:
            logging.getLogger("jobs").exception("the %s failed", "step")
    lost, other = caplog.records
    assert lost.getMessage() == "the step failed: connection refused Is the server running?"
    assert lost.exc_info is None
    assert (other.getMessage(), bool(other.exc_info)) == ("the step failed", True)


def test_an_outage_that_goes_on_is_told_again(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    losses: server_losses.LossFilter,
) -> None:
    monkeypatch.setattr(losses, "_pause", server_losses.Pause(0.0))
    fail_ticks(monkeypatch, LOST, 2)
    assert len(caplog.records) == 2


def test_other_errors_keep_their_tracebacks(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fail_ticks(monkeypatch, ProgrammingError("no such column"), 2)
    assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR"]
    assert all(record.exc_info for record in caplog.records)


def test_the_parts_behind_a_loss_are_left_to_the_next_tick() -> None:
    called: list[str] = []

    def loses() -> None:
        called.append("loses")
        raise LOST

    def breaks() -> None:
        called.append("breaks")
        raise ValueError("broken")

    with pytest.raises(OperationalError):
        ticks.run_all(loses, breaks)
    assert called == ["loses"]
    with pytest.raises(ValueError, match="broken"):
        ticks.run_all(breaks, loses, breaks)
    assert called == ["loses", "breaks", "loses"]
