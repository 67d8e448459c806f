import re

from frontend.overview.sparkline import HEIGHT, SHOWN, STEP, WIDTH, Point, draw
from weir.protocol.lifecycle import CheckpointStatus

SLOW, QUICK = Point(1_000), Point(250)
FAILED = Point(600_000, CheckpointStatus.FAILED)


def bars(paths: dict[str, str]) -> list[tuple[float, float]]:
    """The position of each bar, and its height."""
    pairs = re.findall(rf"M([\d.]+) {HEIGHT}V([\d.]+)", paths["bars"])
    return [(float(x), HEIGHT - float(top)) for x, top in pairs]


def test_the_newest_is_at_the_right_and_the_longest_as_high_as_there_is_room() -> None:
    paths = draw([SLOW, QUICK])
    assert bars(paths) == [(WIDTH - STEP / 2, HEIGHT - 2), (WIDTH - 1.5 * STEP, 6.5)]
    assert paths["failed"] == ""


def test_a_failed_one_is_a_cross_and_does_not_set_the_scale() -> None:
    paths = draw([QUICK, FAILED])
    assert bars(paths) == [(WIDTH - STEP / 2, HEIGHT - 2)]
    assert paths["failed"].count("M") == 2
    assert paths["failed"].startswith(f"M{WIDTH - 1.5 * STEP - 2:g} ")


def test_what_took_no_time_can_still_be_seen() -> None:
    assert [height for _, height in bars(draw([SLOW, Point(0), Point(None)]))] == [
        HEIGHT - 2,
        2,
        2,
    ]
    assert [height for _, height in bars(draw([Point(0)]))] == [2]


def test_no_more_are_drawn_than_there_is_room_for() -> None:
    drawn = bars(draw([SLOW] * 100))
    assert len(drawn) == SHOWN
    assert min(x for x, _ in drawn) == STEP / 2


def test_it_says_in_words_what_it_draws() -> None:
    assert draw([])["text"] == "No checkpoint has completed or failed yet."
    assert draw([FAILED])["text"] == "The last checkpoint failed."
    assert draw([FAILED, FAILED])["text"] == "The last 2 checkpoints failed."
    assert draw([QUICK])["text"] == (
        "Durations of the last 1 checkpoint: 250 ms; 0 failed; the newest took 250 ms."
    )
    assert draw([FAILED, QUICK, SLOW])["text"] == (
        "Durations of the last 3 checkpoints: 250 ms to 1.00 s; 1 failed; the newest failed."
    )
