"""The diagnosis of the last checkpoints: the culprit that comes back, not the newest one's."""

import pytest

from checkpoints.verdict.diagnosis import LAST, Told, diagnose
from checkpoints.verdict.result import Cause, Verdict

WELL = Told("good", None, "")
PLANNED = Told("idle", None, "")


def slow(culprit: str, cause: Cause | None = Cause.BUSY, tone: str = "warn") -> Told:
    return Told(tone, cause, culprit)


@pytest.mark.parametrize(
    ("last", "tone", "headline"),
    [
        ([WELL] * 12, "good", "All the last 10 checkpoints were well."),
        (
            [WELL, slow("map-1"), WELL],
            "good",
            "1 of the last 3 checkpoints was slow or failed, the others were well.",
        ),
        (
            [WELL, *[slow("map-1")] * 7, WELL, WELL],
            "warn",
            "map-1 was slow in 7 of the last 10 checkpoints.",
        ),
        (
            [slow("map-1"), slow("map-0"), slow("map-1"), WELL],
            "warn",
            "map was slow in 3 of the last 4 checkpoints.",
        ),
        (
            [slow("", Cause.STORAGE), slow("map-1"), *[slow("work-0", Cause.STORAGE)] * 2],
            "warn",
            "The checkpoint storage was slow in 3 of the last 4 checkpoints; 1 more was slow or "
            "failed otherwise.",
        ),
        (
            [slow("driver", Cause.FROZEN, "bad"), slow("driver", Cause.FROZEN, "bad"), WELL],
            "bad",
            "The driver was frozen in 2 of the last 3 checkpoints.",
        ),
        (
            [slow("", Cause.STARVED), slow("", Cause.STARVED), WELL],
            "warn",
            "The driver had no processor in 2 of the last 3 checkpoints.",
        ),
        (
            [slow("map-1"), slow("out-0", Cause.SINK), slow("map-0", Cause.STUCK)],
            "warn",
            "3 of the last 3 checkpoints were slow or failed, and no culprit comes back.",
        ),
        (
            [slow("", None, "bad"), slow("", None, "bad"), WELL],
            "bad",
            "2 of the last 3 checkpoints were slow or failed, and no culprit comes back.",
        ),
    ],
)
def test_the_culprit_that_comes_back_is_named(last: list[Told], tone: str, headline: str) -> None:
    diagnosis = diagnose(last)
    assert diagnosis is not None
    assert (diagnosis.tone, diagnosis.headline) == (tone, headline)


def test_a_quick_one_among_slow_ones_changes_a_number_and_no_culprit() -> None:
    last = [slow("map-1")] * LAST
    for newest in (WELL, slow("out-0", Cause.SINK)):
        diagnosis = diagnose([newest, *last])
        assert diagnosis is not None
        assert diagnosis.headline.startswith("map-1 was slow in 9 of the last 10 checkpoints")


def test_every_cause_has_words() -> None:
    for cause in Cause:
        diagnosis = diagnose([slow("map-1", cause)] * 3)
        assert diagnosis is not None
        assert " in 3 of the last 3 checkpoints" in diagnosis.headline


@pytest.mark.parametrize("last", [[], [WELL, WELL], [PLANNED] * 9, [WELL, WELL, PLANNED]])
def test_few_checkpoints_are_judged_one_by_one(last: list[Told]) -> None:
    assert diagnose(last) is None


def test_a_verdict_is_told_by_its_first_culprit() -> None:
    judged = Verdict("warn", "x", culprits=("map-1", "out-0"), cause=Cause.BUSY)
    assert Told.by(judged) == Told("warn", Cause.BUSY, "map-1")
    assert Told.by(Verdict("good", "x")) == WELL
