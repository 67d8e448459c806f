from datetime import UTC, datetime, timedelta, timezone

import pytest

from controlplane.base import formatting

DURATIONS = [
    (None, "–"),
    (0, "0 ms"),
    (0.02, "<0.1 ms"),
    (0.4, "0.4 ms"),
    (9, "9 ms"),
    (12.6, "13 ms"),
    (999.4, "999 ms"),
    (999.5, "1.00 s"),
    (1_240, "1.24 s"),
    (9_994, "9.99 s"),
    (12_440, "12.4 s"),
    (59_949, "59.9 s"),
    (59_950, "1 min 00 s"),
    (125_900, "2 min 05 s"),
    (3_599_999, "59 min 59 s"),
    (3_600_000, "1 h 00 min"),
    (11_060_000, "3 h 04 min"),
    (86_399_999, "23 h 59 min"),
    (198_000_000, "2 d 7 h"),
    (-5, "0 ms"),
]
ROUGH = [
    (0, "0 s"),
    (999, "0 s"),
    (59_999, "59 s"),
    (60_000, "1 min 00 s"),
    (3_725_000, "1 h 02 min"),
    (90_061_000, "1 d 1 h"),
    (-1, "0 s"),
]


@pytest.mark.parametrize(("milliseconds", "text"), DURATIONS)
def test_durations_have_three_digits_and_a_unit(milliseconds: float | None, text: str) -> None:
    assert formatting.duration(milliseconds) == text


@pytest.mark.parametrize(("milliseconds", "text"), ROUGH)
def test_what_grows_is_shown_in_whole_seconds(milliseconds: float, text: str) -> None:
    assert formatting.rough_duration(milliseconds) == text
    assert formatting.age(milliseconds) == f"{text} ago"


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (None, "–"),
        (0, "0 B"),
        (999, "999 B"),
        (1_000, "1.00 kB"),
        (20_480, "20.5 kB"),
        (999_499, "999 kB"),
        (999_500, "1.00 MB"),
        (1_440_000, "1.44 MB"),
        (4_461_000_000, "4.46 GB"),
        (7_000_000_000_000_000, "7000 TB"),
    ],
)
def test_sizes_are_decimal_with_three_digits(count: int | None, text: str) -> None:
    assert formatting.size(count) == text


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [(100, "100 ms"), (1_000, "1 s"), (2_500, "2.5 s"), (60_000, "1 min 00 s")],
)
def test_an_interval_reads_as_it_was_set(milliseconds: float, text: str) -> None:
    assert formatting.interval(milliseconds) == text


def test_moments_of_any_time_zone_are_in_utc() -> None:
    at = datetime(2026, 3, 1, 1, 30, 5, 250_000, tzinfo=timezone(timedelta(hours=2)))
    assert formatting.moment(at) == "2026-02-28 23:30:05 UTC"
    assert formatting.iso(at) == "2026-02-28T23:30:05.250Z"
    assert formatting.moment(None) == "–"
    assert formatting.iso(None) is None


def test_a_list_of_names_ends_with_how_many_more_there_are() -> None:
    assert formatting.listed(["a", "b"], 2) == "a, b"
    assert formatting.listed(["a", "b", "c"], 2) == "a, b and 1 more"


def test_nothing_lies_between_a_moment_and_none() -> None:
    at = datetime(2026, 3, 1, tzinfo=UTC)
    assert formatting.milliseconds_between(None, at) is None
    assert formatting.milliseconds_between(at, at + timedelta(seconds=2)) == 2_000
