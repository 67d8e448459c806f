"""Points of a chain's series: means that stay exact with fewer samples, anew for each attempt."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs import chain_series
from jobs.chain_series import Point
from jobs.models import ChainSample
from weir.protocol.elements import MAX_WATERMARK_MS

BEGAN = datetime(2026, 3, 1, 12, tzinfo=UTC)


def sample(at_s: float, records: float = 0, busy_ms: float = 0, **columns: Any) -> ChainSample:
    """Two subtasks, which spend their time busy and idle."""
    whole_ms = 2_000 * at_s
    return ChainSample(
        **{
            "at": BEGAN + timedelta(seconds=at_s),
            "attempt": 1,
            "running": 2,
            "records_in": records,
            "records_out": records / 2,
            "busy_ms": busy_ms,
            "idle_ms": whole_ms - busy_ms,
            "back_pressured_ms": 0.0,
            "state_bytes": {"totals": round(records)},
            **columns,
        }
    )


def points(*samples: ChainSample, **how: Any) -> list[Point]:
    return chain_series.points(samples, "totals", **how)


def test_a_point_is_the_mean_since_the_point_before() -> None:
    first, second = points(
        sample(0, busiest=0.2), sample(10, 1_000, busy_ms=5_000, busiest=0.9, running=1)
    )
    assert first == Point(at=BEGAN, attempt=1, running=2, busiest=0.2, state_bytes=0)
    assert second == Point(
        at=BEGAN + timedelta(seconds=10),
        attempt=1,
        running=1,
        records_in_per_s=100,
        records_out_per_s=50,
        busy=0.25,
        busiest=0.9,
        back_pressured=0,
        state_bytes=1_000,
    )


@given(growth=st.lists(st.integers(0, 10_000), min_size=2, max_size=60), most=st.integers(1, 30))
def test_fewer_points_have_the_same_mean_over_the_whole_time(growth: list[int], most: int) -> None:
    """The area below the line is the number of records, however coarse it is."""
    total, samples = 0, [sample(0)]
    for n, grown in enumerate(growth, 1):
        total += grown
        samples.append(sample(10 * n, total, busy_ms=n))
    made = points(*samples, most=most)
    assert len(made) <= most + 1  # The first has no time before it.
    assert made[-1].at == samples[-1].at
    area = sum(
        (point.records_in_per_s or 0) * (point.at - before.at).total_seconds()
        for before, point in pairwise(made)
    )
    assert area == pytest.approx(total)


def test_a_coarse_point_has_the_worst_of_what_is_no_mean() -> None:
    columns = [{"busiest": b, "watermark_ms": w} for b, w in ((0.1, 0), (0.9, -500), (0.2, 0))]
    samples = [sample(0), *(sample(0.5 + n / 1_000, **c) for n, c in enumerate(columns))]
    _, point = points(*samples, most=1)
    assert point.busiest == 0.9
    assert point.lag_ms == round(BEGAN.timestamp() * 1_000) + 501 + 500


def test_another_attempt_begins_anew_and_what_is_left_of_the_one_before_is_shown() -> None:
    before = [sample(10 * n, 100 * n) for n in range(4)]
    after = [replace_attempt(sample(n), 2) for n in (40, 50)]
    made = points(*before, *after, most=3)
    assert [(point.attempt, point.records_in_per_s) for point in made] == [
        *((1, None), (1, 10), (1, 10)),
        *((2, None), (2, 0)),
    ]


def replace_attempt(row: ChainSample, attempt: int) -> ChainSample:
    row.attempt = attempt
    return row


@pytest.mark.parametrize(
    ("later", "unknown"),
    [
        (sample(0, 100), {"records_in_per_s", "busy"}),  # No time has passed.
        (sample(10, -1), {"records_in_per_s"}),  # The counter went back.
        (sample(10, 1e305, at=BEGAN + timedelta(microseconds=1)), {"records_in_per_s"}),
        (sample(10, busy_ms=-1), {"busy"}),
    ],
)
def test_what_cannot_be_is_not_known(later: ChainSample, unknown: set[str]) -> None:
    _, point = points(sample(0, 0), later)
    assert {
        name for name in ("records_in_per_s", "busy") if getattr(point, name) is None
    } == unknown


def test_there_is_no_lag_without_event_time_and_none_at_its_end() -> None:
    watermarks = (None, MAX_WATERMARK_MS, round(BEGAN.timestamp() * 1_000) - 1_500)
    made = points(*(sample(0, watermark_ms=at) for at in watermarks))
    assert [point.lag_ms for point in made] == [None, None, 1_500]


def test_an_operator_without_state_has_none() -> None:
    assert [p.state_bytes for p in chain_series.points([sample(0)], "hourly")] == [None]
    assert (
        replace(points(sample(0))[0], state_bytes=None)
        == chain_series.points([sample(0)], "hourly")[0]
    )
