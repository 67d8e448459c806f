"""The cost of attempts, from values: takeovers, outages and the figures of a job's reliability."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from frontend.attempts import figures
from frontend.job.outages import Deployment, outages, summary, takeover
from tests.browser.plotly_figures import is_valid

BEGUN = datetime(2026, 11, 21, 12, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return BEGUN + timedelta(seconds=seconds)


def deployment(
    number: int,
    started: float,
    running: float | None,
    ended: float | None = None,
    end: str = "",
    *,
    gave_up: bool = False,
    driver: int = 1,
    requested: float = 0,
    **reported: float,
) -> Deployment:
    return Deployment(
        number=number,
        driver=driver,
        requested_at=at(requested),
        started_at=at(started),
        running_at=None if running is None else at(running),
        ended_at=None if ended is None else at(ended),
        end=end,
        gave_up=gave_up,
        **reported,
    )


FAILED = deployment(1, 0, 1, 100, "failed")


def test_the_first_attempt_replaces_none() -> None:
    assert takeover(FAILED, None) is None


def test_what_a_recovery_reports_adds_up_to_its_downtime() -> None:
    it = deployment(2, 103, 105, backoff_ms=1_000.0, redeploy_ms=1_500.0, restore_ms=500.0)
    took = takeover(it, FAILED)
    assert took is not None
    # 5 s in all: what is not reported went by before the failure was noticed.
    assert (took.delay_ms, took.redeploy_ms, took.restore_ms) == (3_000, 1_500, 500)
    assert took.down_ms == 5_000
    assert not took.is_driver_new


def test_reported_parts_count_where_the_clocks_saw_less() -> None:
    it = deployment(2, 101, 101.5, backoff_ms=1_000.0, redeploy_ms=1_500.0, restore_ms=500.0)
    took = takeover(it, FAILED)
    assert took is not None
    assert (took.delay_ms, took.down_ms) == (1_000, 3_000)


def test_the_takeover_of_a_new_driver_is_seen_from_here() -> None:
    it = deployment(2, 108, 109, driver=2, requested=102)
    took = takeover(it, FAILED)
    assert took is not None
    assert took.is_driver_new
    assert (took.delay_ms, took.redeploy_ms, took.restore_ms) == (2_000, 6_000, 1_000)
    assert took.down_ms == 9_000


def test_what_is_not_known_yet_is_none() -> None:
    took = takeover(deployment(2, 108, None, driver=2, requested=102), FAILED)
    assert took is not None
    assert (took.delay_ms, took.redeploy_ms) == (2_000, 6_000)
    assert (took.restore_ms, took.down_ms) == (None, None)


def test_what_was_asked_for_is_planned() -> None:
    rolled_back = replace(FAILED, end="canceled")
    took = takeover(deployment(2, 104, 105, driver=2, requested=100), rolled_back)
    assert took is not None
    assert took.is_planned
    assert not took.was_over


def test_a_job_suspended_with_its_control_plane_is_down_as_planned_however_long() -> None:
    suspended = replace(FAILED, end="suspended")
    again = deployment(2, 40_004, 40_005, driver=2, requested=40_000)
    took = takeover(again, suspended)
    assert took is not None
    assert took.is_planned
    assert not took.was_over
    (outage,) = outages([suspended, again], is_over=False)
    assert outage.is_planned
    assert summary([suspended, again], at(40_010), is_over=False).failures == 0


@pytest.mark.parametrize("end", ["finished", "canceled"])
def test_a_job_that_was_over_was_not_down(end: str) -> None:
    over = replace(FAILED, end=end)
    again = deployment(2, 4_004, 4_005, driver=2, requested=4_000)
    took = takeover(again, over)
    assert took is not None
    assert took.was_over
    assert took.down_ms is None
    assert outages([over, again], is_over=False) == []


def test_attempts_that_never_ran_are_one_outage() -> None:
    line = [FAILED, deployment(2, 101, None, 103, "failed"), deployment(3, 104, 106)]
    (outage,) = outages(line, is_over=False)
    assert (outage.begins, outage.ends, outage.is_planned) == (at(100), at(106), False)


def test_a_job_that_waits_for_its_next_attempt_is_down_until_now() -> None:
    (outage,) = outages([FAILED], is_over=False)
    assert outage.ends is None
    assert outage.duration_ms(at(130)) == 30_000
    assert outages([FAILED], is_over=True) == []


def line() -> list[Deployment]:
    return [
        FAILED,  # Up 99 s, down 5 s.
        deployment(2, 103, 105, 205, "failed"),  # Up 100 s, down 10 s.
        deployment(3, 214, 215, 300, "canceled", driver=2, requested=206),  # Up 85 s, down 2 s.
        deployment(4, 301, 302, driver=3, requested=300),  # Up until now.
    ]


def test_availability_and_failures_are_those_of_the_times_it_was_up_and_down() -> None:
    reliability = summary(line(), at(1_018), is_over=False)
    assert (reliability.up_ms, reliability.down_ms) == (1_000_000, 17_000)
    assert reliability.availability == pytest.approx(1_000 / 1_017)
    assert (reliability.failures, reliability.planned) == (2, 1)
    assert reliability.between_failures_ms == 500_000
    assert (reliability.recovery_p50_ms, reliability.recovery_max_ms) == (7_500, 10_000)
    assert reliability.since == at(1)


def test_the_failure_that_ended_a_job_counts_but_is_no_downtime() -> None:
    reliability = summary([FAILED], at(5_000), is_over=True)
    assert (reliability.failures, reliability.down_ms, reliability.availability) == (1, 0, 1)
    assert reliability.recovery_p50_ms is None


GAVE_UP = replace(FAILED, gave_up=True)


def test_a_job_that_failed_for_good_was_over_until_a_user_restarted_it() -> None:
    """However long that took: no restart was tried meanwhile."""
    again = deployment(2, 4_004, 4_005, driver=2, requested=4_000)
    took = takeover(again, GAVE_UP)
    assert took is not None
    assert (took.was_over, took.down_ms, took.is_planned) == (True, None, False)
    assert outages([GAVE_UP, again], is_over=False) == []
    reliability = summary([GAVE_UP, again], at(4_104), is_over=False)
    assert (reliability.up_ms, reliability.down_ms) == (198_000, 0)
    assert reliability.availability == 1
    assert (reliability.failures, reliability.between_failures_ms) == (1, 198_000)
    assert reliability.recovery_p50_ms is None
    # As it was before the restart.
    assert summary([GAVE_UP], at(4_000), is_over=True).failures == 1


def test_the_same_failure_that_a_restart_followed_by_itself_is_downtime() -> None:
    again = deployment(2, 4_004, 4_005, driver=2, requested=4_000)
    (outage,) = outages([FAILED, again], is_over=False)
    assert outage.duration_ms(at(9_999)) == 3_905_000


def test_a_job_is_down_while_its_restart_strategy_tries_and_over_once_it_gives_up() -> None:
    tries = [
        FAILED,
        deployment(2, 101, None, 103, "failed"),
        deployment(3, 110, None, 120, "failed", gave_up=True),
    ]
    again = deployment(4, 4_004, 4_005, driver=2, requested=4_000)
    for line, is_over in ((tries, True), ([*tries, again], False)):
        reliability = summary(line, at(4_005), is_over=is_over)
        assert (reliability.down_ms, reliability.failures) == (20_000, 1)
        assert reliability.recovery_max_ms is None


def test_a_planned_restart_that_came_to_nothing_was_planned_downtime() -> None:
    stopped = deployment(1, 0, 1, 100, "canceled")
    failed = deployment(2, 102, None, 130, "failed", driver=2, requested=101, gave_up=True)
    again = deployment(3, 4_004, 4_005, driver=3, requested=4_000)
    reliability = summary([stopped, failed, again], at(4_005), is_over=False)
    assert (reliability.down_ms, reliability.failures, reliability.planned) == (30_000, 0, 1)


def test_a_job_that_never_ran_has_no_availability() -> None:
    reliability = summary([deployment(1, 0, None)], at(10), is_over=False)
    assert (reliability.availability, reliability.between_failures_ms, reliability.since) == (
        None,
        None,
        None,
    )


# The figure ---------------------------------------------------------------------------------------


def traces(**options: Any) -> dict[str, dict[str, Any]]:
    given = {"deployments": line(), "before": None, "now": at(400), "is_over": False} | options
    figure = figures.recovery(**given)
    assert is_valid(figure)
    return {trace["name"]: trace for trace in figure["data"]}


def test_the_timeline_shows_when_it_was_up_and_down() -> None:
    by_name = traces()
    up, down = by_name["Up"], by_name["Down"]
    assert up["base"][0] == "2026-11-21T12:00:01.000Z"
    assert up["x"] == [99_000, 100_000, 85_000, 98_000]
    assert down["base"][0] == "2026-11-21T12:01:40.000Z"
    assert down["x"] == [5_000, 10_000]
    planned = by_name["Down as requested"]
    assert (planned["x"], planned["marker"]["color"]) == ([2_000], "var(--idle)")
    assert "as requested" in planned["customdata"][0]
    assert len(by_name["Failed"]["x"]) == 2
    assert by_name["Driver replaced"]["x"] == [
        "2026-11-21T12:03:34.000Z",
        "2026-11-21T12:05:01.000Z",
    ]


def test_what_is_down_now_grows_until_now() -> None:
    by_name = traces(deployments=[FAILED], now=at(130))
    assert by_name["Down"]["x"] == [30_000]
    assert "Down" not in traces(deployments=[FAILED], now=at(130), is_over=True)


def test_each_takeover_is_a_stack_of_its_parts() -> None:
    by_name = traces()
    assert by_name["Redeploy"]["x"] == ["2", "3", "4"]
    stacks = zip(*(by_name[name]["y"] for name in ("Detection and delay", "Redeploy", "Restore")),
                 strict=True)  # fmt: skip
    assert [sum(part or 0 for part in stack) for stack in stacks] == [5, 10, 2]


def test_without_a_takeover_the_timeline_has_all_the_room() -> None:
    figure = figures.recovery(line()[:1], None, at(400), is_over=False)
    assert figure["layout"]["yaxis"]["domain"] == [0, 1]
    assert "yaxis2" not in figure["layout"]


def test_one_takeover_is_no_wider_than_one_of_many() -> None:
    def gap(deployments: list[Deployment]) -> float:
        return figures.recovery(deployments, None, at(400), is_over=False)["layout"]["bargap"]

    assert gap(line()[:2]) > 0.9
    many = [FAILED, *(replace(line()[1], number=number) for number in range(2, 20))]
    assert gap(many) == pytest.approx(0.35)


def test_the_first_of_a_page_is_held_against_the_one_before_it() -> None:
    by_name = traces(deployments=line()[1:], before=FAILED)
    assert by_name["Down"]["x"] == [5_000, 10_000]


def test_colours_are_names_of_the_style_sheet() -> None:
    for trace in traces().values():
        assert trace["marker"]["color"].startswith("var(--")
