"""The charts of an operator: means as steps, panels that have values, units that can be read."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest

from controlplane.base.formatting import iso
from frontend.operator import figures
from jobs.chain_series import Point
from tests.browser.plotly_figures import is_valid

BEGAN = datetime(2026, 3, 1, 12, tzinfo=UTC)


def point(at_s: int, records: float | None = None, **columns: Any) -> Point:
    at = BEGAN + timedelta(seconds=at_s)
    given = {"attempt": 1, "running": 2, "records_in_per_s": records, "busy": records and 0.25}
    return Point(at=at, **given | columns)


def trace(figure: dict[str, Any], name: str) -> dict[str, Any]:
    (one,) = (trace for trace in figure["data"] if trace["name"] == name)
    return dict(one)


def titles(figure: dict[str, Any]) -> list[str]:
    return [note["text"] for note in figure["layout"]["annotations"]]


def at(*seconds: int) -> list[str | None]:
    return [iso(BEGAN + timedelta(seconds=s)) for s in seconds]


def test_a_mean_is_a_step_over_its_own_time_and_no_line_bridges_two_attempts() -> None:
    second = {"attempt": 2}
    figure = figures.series(
        [point(0), point(10, 5), point(20, 7), point(30, **second), point(40, 9, **second)]
    )
    records = trace(figure, "Records in")
    assert records["line"]["shape"] == "vh"  # A value reaches back to the point before it.
    assert records["x"] == at(0, 0, 10, 20, 30, 30, 40)
    assert records["y"] == [None, 5, 5, 7, None, 9, 9]
    assert [shape["x0"] for shape in figure["layout"]["shapes"]] == at(30)
    assert is_valid(figure)


def test_a_panel_without_a_value_is_left_out_and_the_others_share_the_height() -> None:
    figure = figures.series([point(0), point(10, 5, state_bytes=0)])
    assert titles(figure) == ["Records per second", "Shares of the time", "State"]
    domains = [figure["layout"][axis]["domain"] for axis in ("yaxis", "yaxis2", "yaxis3")]
    assert domains[0][1] == 1
    assert domains[2][0] == pytest.approx(0)
    assert all(above[0] > below[1] for above, below in pairwise(domains))
    assert figure["layout"]["xaxis"]["anchor"] == "y3"
    assert {t["name"] for t in figure["data"] if t["showlegend"]} == {"Records in", "Busy"}
    assert is_valid(figure)


def test_no_points_are_an_empty_figure() -> None:
    assert figures.series([])["data"] == []
    assert is_valid(figures.series([]))


@pytest.mark.parametrize(
    ("lag_ms", "value", "suffix", "text"),
    [
        (1_500.0, 1.5, "s", "1.50 s"),
        (-1_500.0, -1.5, "s", "1.50 s ahead"),
        (3_600_000.0, 60, " min", "1 h 00 min"),
        (86_400_000.0, 24, " h", "1 d 0 h"),
        (864_000_000.0, 10, " d", "10 d 0 h"),
    ],
)
def test_a_lag_has_the_unit_of_the_longest(
    lag_ms: float, value: float, suffix: str, text: str
) -> None:
    figure = figures.series([point(0), point(10, lag_ms=0.0), point(20, lag_ms=lag_ms)])
    lag = trace(figure, "Event-time lag")
    assert lag["y"][-2:] == [0, value]
    assert lag["customdata"][-1] == text
    assert figure["layout"]["yaxis"]["ticksuffix"] == suffix
    assert is_valid(figure)
