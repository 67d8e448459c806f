import re

import pytest

from frontend.overview.sparkline import HEIGHT, SHOWN, STEP, WIDTH, Point, draw
from weir.protocol.lifecycle import CheckpointStatus

SLOW, QUICK = Point(1_000), Point(250)
FAILED = Point(600_000, CheckpointStatus.FAILED)
ABORTED = Point(60, CheckpointStatus.ABORTED, "job_rescaled")


def bars(paths: dict[str, str]) -> list[tuple[float, float]]:
    """The position of each bar, and its height."""
    pairs = re.findall(rf"M([\d.]+) {HEIGHT}V([\d.]+)", paths["bars"])
    return [(float(x), HEIGHT - float(top)) for x, top in pairs]


def test_the_newest_is_at_the_right_and_each_tenfold_duration_one_step_higher() -> None:
    paths = draw([SLOW, QUICK, Point(10_000), Point(100)])
    places, heights = zip(*bars(paths), strict=True)
    assert places == (
        WIDTH - STEP / 2, WIDTH - 1.5 * STEP, WIDTH - 2.5 * STEP, WIDTH - 3.5 * STEP
    )  # fmt: skip
    assert heights == pytest.approx((13, 9.1, 19.5, 6.5))
    assert paths["failed"] == paths["aborted"] == ""


def test_a_bar_does_not_depend_on_the_others() -> None:
    assert bars(draw([QUICK]))[0] == bars(draw([QUICK, Point(600_000)]))[0]
    assert [height for _, height in bars(draw([Point(10**9)]))] == [HEIGHT - 2]


def test_a_failed_one_is_a_cross_and_an_aborted_one_a_dash() -> None:
    paths = draw([QUICK, FAILED, ABORTED])
    assert len(bars(paths)) == 1
    assert paths["failed"].count("M") == 2
    assert paths["failed"].startswith(f"M{WIDTH - 1.5 * STEP - 2:g} ")
    left = WIDTH - 2.5 * STEP - 2
    assert paths["aborted"] == f"M{left:g} {HEIGHT - 5:g}H{left + 4:g}"


def test_what_took_no_time_can_still_be_seen() -> None:
    assert [height for _, height in bars(draw([Point(0), Point(None)]))] == [2, 2]


def test_no_more_are_drawn_than_there_is_room_for() -> None:
    drawn = bars(draw([SLOW] * 100))
    assert len(drawn) == SHOWN
    assert min(x for x, _ in drawn) == STEP / 2


def test_it_says_in_words_what_it_draws() -> None:
    assert draw([])["text"] == "No checkpoint has completed or failed yet."
    assert draw([FAILED])["text"] == "None of the last 1 checkpoint completed: 1 failed."
    assert draw([ABORTED, FAILED, FAILED])["text"] == (
        "None of the last 3 checkpoints completed: 2 failed, 1 aborted (the job was rescaled)."
    )
    assert draw([QUICK])["text"] == (
        "Durations of the last 1 checkpoint: 250 ms; none failed; the newest took 250 ms."
    )
    assert draw([FAILED, QUICK, SLOW])["text"] == (
        "Durations of the last 3 checkpoints: 250 ms to 1.00 s; 1 failed; the newest failed."
    )
    assert draw([ABORTED, QUICK])["text"] == (
        "Durations of the last 2 checkpoints: 250 ms; 1 aborted (the job was rescaled); "
        "the newest was aborted."
    )
