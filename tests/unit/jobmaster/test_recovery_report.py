"""The report of a recovery: its steps, and the records that are repeated."""

from weir.ids import AttemptNumber
from weir.jobmaster.attempt import Attempt
from weir.jobmaster.recovery_report import RecoveryReport
from weir.jobmaster.restore_choice import RestoreChoice
from weir.protocol.restore import RestorePlan


def attempt(number: int) -> Attempt:
    return Attempt(AttemptNumber(number), choice=RestoreChoice(RestorePlan((), {})))


def test_an_attempt_that_never_ran_does_not_hide_how_far_its_predecessor_got() -> None:
    report = RecoveryReport()
    report.restarting("killed", 1_000, backoff_ms=50.0, source_records=70)
    report.restarting("killed again", 2_000, backoff_ms=100.0, source_records=20)
    report.deploying(2_400)
    recovered = report.running(attempt(3), 20, 2_500)
    assert recovered is not None
    assert (recovered.cause, recovered.replayed_records) == ("killed again", 50)
    steps = recovered.backoff_ms, recovered.redeploy_ms, recovered.restore_ms
    assert steps == (100.0, 300.0, 100.0)
    assert report.progressed(49, 2_600) is None
    caught_up = report.progressed(50, 2_700)
    assert caught_up is not None
    assert (caught_up.attempt, caught_up.catch_up_ms) == (3, 200.0)
    assert report.progressed(60, 2_800) is None, "it is told once"


def test_an_attempt_that_replaced_none_has_nothing_to_report() -> None:
    report = RecoveryReport()
    assert report.running(attempt(1), 0, 5) is None
    assert report.progressed(10, 6) is None


def test_one_damaged_copy_is_told_as_one() -> None:
    damaged = attempt(1)
    assert damaged.damage == ""
    damaged.damaged_copies = ["sink-0: it has 1 bytes instead of 2"]
    assert damaged.damage == (
        "a local copy of state was damaged, and read from the storage instead: "
        "sink-0: it has 1 bytes instead of 2"
    )
