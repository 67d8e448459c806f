import json
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import frontend
from checkpoints.models import Checkpoint
from checkpoints.verdict.facts import Gate
from controlplane.alerts.models import Alert
from frontend.base import alignment
from frontend.base.alignment import Aligned
from frontend.job import figures
from frontend.job import history as past
from jobs.models import Attempt, Driver, JobException
from tests.browser.plotly_figures import is_valid
from weir.protocol.lifecycle import CheckpointStatus

CSS = (Path(frontend.__file__).parent / "static/frontend/weir.css").read_text()


def checkpoint(number: int, **columns: Any) -> Checkpoint:
    """A row that is in no database."""
    return Checkpoint(
        **{
            "number": number,
            "status": CheckpointStatus.COMPLETED,
            "triggered_at": datetime(2026, 3, 1, tzinfo=UTC) + timedelta(seconds=number),
            "duration_ms": 200,
            "start_delay_ms": 5,
            "alignment_ms": 100,
            "sync_ms": 2.5,
            "async_ms": 80,
            "last_subtask": {
                "subtask": "hourly-1",
                "start_delay_ms": 5,
                "alignment_ms": 100,
                "sync_ms": 2.5,
                "async_ms": 80,
            },
            "state_bytes": 1_000,
            "written_bytes": 400,
            "subtask_count": 18,
            "acknowledged_count": 18,
            **columns,
        }
    )


def gate(
    operator: str = "hourly",
    index: int = 0,
    arrived_ms: Sequence[float | None] = (0, 30),
    **kw: Any,
) -> Gate:
    last = max((ms for ms in arrived_ms if ms is not None), default=0)
    return Gate(
        **{
            "operator": operator,
            "index": index,
            "gate": 0,
            "upstream": [f"flights-{n}" for n in range(len(arrived_ms))],
            "arrived_ms": list(arrived_ms),
            "blocked_ms": [0 if ms is None else last - ms for ms in arrived_ms],
            "bytes_during": [0 if ms is None else int(ms) * 100 for ms in arrived_ms],
            **kw,
        }
    )


def aligned(gates: Sequence[Gate]) -> Aligned:
    """The alignment of a checkpoint of these gates, with as many of the slowest as are shown."""
    slowest = sorted(range(len(gates)), key=lambda at: -gates[at].slowest_ms)[: figures.GATES_SHOWN]
    return Aligned(
        [gates[at] for at in sorted(slowest)],
        alignment.gate_counts(gates),
        len(gates),
        sum(len(one.upstream) for one in gates),
        max((len(one.upstream) for one in gates), default=0),
        max((max(one.blocked_ms, default=0.0) for one in gates), default=0.0),
    )


def traces(figure: figures.Figure) -> dict[str, dict[str, Any]]:
    return {trace["name"]: trace for trace in figure["data"]}


NOW = datetime(2026, 3, 1, 1, tzinfo=UTC)


def history(checkpoints: Sequence[Checkpoint], **about: Any) -> figures.Figure:
    return figures.history(checkpoints, address=lambda number: f"/c/{number}/", now=NOW, **about)


def second(number: float) -> str:
    return f"2026-03-01T00:00:{number:06.3f}Z"


def test_history_stacks_the_phases_in_their_order_in_seconds_over_time() -> None:
    slower = checkpoint(2)
    slower.last_subtask["async_ms"] = 90
    figure = history([slower, checkpoint(1)])
    bars = [trace for trace in figure["data"] if trace["type"] == "bar"]
    times = [second(1), second(2)]
    assert [(bar["name"], bar["x"], bar["y"]) for bar in bars] == [
        ("Start delay", times, [0.005, 0.005]),
        ("Alignment", times, [0.1, 0.1]),
        ("Synchronous part", times, [0.0025, 0.0025]),
        ("Asynchronous part", times, [0.08, 0.09]),
    ]
    assert figure["layout"]["barmode"] == "stack"
    assert figure["layout"]["xaxis"]["type"] == "date"
    assert traces(figure)["End to end"]["y"] == [0.2, 0.2]
    assert traces(figure)["State size"]["y"] == [1_000, 1_000]
    assert is_valid(figure)


def test_no_bar_is_higher_than_the_checkpoint_took_and_no_phase_of_another_subtask_is_in_it() -> (
    None
):
    """The longest start delay was another subtask's; the clock of the last one goes ahead."""
    row = checkpoint(1, start_delay_ms=150, duration_ms=90)
    by_name = traces(history([row]))
    heights = [by_name[name]["y"][0] for _, name, _ in figures.PHASES]
    assert heights == pytest.approx([0.005, 0.085, 0, 0])
    assert sum(heights) == pytest.approx(by_name["End to end"]["y"][0])
    assert "of %{customdata[3]}" in by_name["Alignment"]["hovertemplate"]
    assert by_name["Alignment"]["customdata"][0][3] == "hourly-1"


def test_where_the_phases_of_the_last_subtask_are_not_kept_the_bar_says_so() -> None:
    figure = history([checkpoint(1, last_subtask=None), checkpoint(2)])
    by_name = traces(figure)
    assert (by_name["Phases not kept"]["x"], by_name["Phases not kept"]["y"]) == (
        [second(1)],
        [0.2],
    )
    assert by_name["Alignment"]["x"] == [second(2)]
    assert is_valid(figure)
    nothing = history([checkpoint(1, last_subtask=None, status=CheckpointStatus.FAILED)])
    assert [trace["type"] for trace in nothing["data"]] == ["scatter"]  # None acknowledged.


def test_every_mark_of_a_checkpoint_leads_to_its_page() -> None:
    failed = checkpoint(3, status=CheckpointStatus.FAILED, reason="checkpoint_expired")
    figure = history([checkpoint(1), checkpoint(2), failed])
    for trace in figure["data"]:
        numbers = [3] if trace["name"] == "Failed" else [1, 2]
        if trace["type"] == "bar":
            numbers = [1, 2, 3]
        assert [about[-1] for about in trace["customdata"]] == [f"/c/{n}/" for n in numbers]


def test_history_marks_what_failed_with_its_reason_and_leaves_its_size_out() -> None:
    failed = checkpoint(
        2,
        status=CheckpointStatus.FAILED,
        reason="checkpoint_expired",
        duration_ms=600,
        acknowledged_count=11,
        state_bytes=0,
    )
    by_name = traces(history([failed, checkpoint(1)]))
    assert by_name["Failed"]["x"] == [second(2)]
    because = "timed out before all subtasks acknowledged"
    assert by_name["Failed"]["customdata"] == [
        ["2", second(2), "600 ms", because, "11 of 18", "/c/2/"]
    ]
    assert by_name["End to end"]["x"] == by_name["State size"]["x"] == [second(1)]
    assert "Failed" not in traces(history([checkpoint(1)]))


def attempt(number: int, begun: float, running: float | None, ended: float | None = None) -> Any:
    def at(seconds: float | None) -> datetime | None:
        return None if seconds is None else datetime.fromisoformat(second(seconds))

    return Attempt(
        driver=Driver(number=1, created_at=at(0)),
        number=number,
        started_at=at(begun),
        running_at=at(running),
        ended_at=at(ended),
        restored_checkpoint=7,
        recovery_cause="slot 1: <b>killed</b>",
    )


def test_the_time_in_which_the_job_was_down_is_shaded_and_marked() -> None:
    downs = past.down_times([attempt(1, 0, 1, ended=10), attempt(2, 12, 14)], is_over=False)
    figure = history([checkpoint(1), checkpoint(20)], downs=downs)
    (shape,) = figure["layout"]["shapes"]
    assert (shape["x0"], shape["x1"]) == (second(10), second(14))
    trace = traces(figure)["Recovery"]
    assert trace["x"] == [second(12)]
    assert trace["customdata"] == [
        ["2", second(10), "4.00 s", "slot 1: &lt;b&gt;killed&lt;/b&gt;", ", restored checkpoint 7"]
    ]
    assert is_valid(figure)


@pytest.mark.parametrize("end", ["canceled", "suspended"])
def test_a_restart_that_was_asked_for_is_no_recovery_and_shaded_in_grey(end: str) -> None:
    before = attempt(1, 0, 1, ended=10)
    before.end, before.cause = end, "restarted by <i>olga</i>"
    downs = past.down_times([before, attempt(2, 12, 14)], is_over=False)
    figure = history([checkpoint(1), checkpoint(20)], downs=downs)
    by_name = traces(figure)
    assert "Recovery" not in by_name
    (about,) = by_name["Planned restart"]["customdata"]
    assert about[3] == "restarted by &lt;i&gt;olga&lt;/i&gt;"
    assert by_name["Planned restart"]["marker"]["color"] == "var(--quiet)"
    (shape,) = figure["layout"]["shapes"]
    assert (shape["fillcolor"], shape["line"]["color"]) == ("var(--idle-back)", "var(--quiet)")


def test_the_time_in_which_a_job_was_over_is_not_shaded() -> None:
    cancelled = attempt(1, 0, 1, ended=2)
    cancelled.end = "canceled"
    resumed = attempt(2, 50, 52)
    resumed.driver = Driver(number=2, created_at=resumed.started_at)
    assert past.down_times([cancelled, resumed], is_over=False) == []
    assert past.down_times([cancelled], is_over=True) == []


def test_an_attempt_that_never_ran_does_not_make_two_outages_of_one() -> None:
    attempts = [attempt(1, 0, 1, ended=10), attempt(2, 12, None, ended=13), attempt(3, 15, 16)]
    (down,) = past.down_times(attempts, is_over=False)
    assert (down.attempt, down.until) == (attempts[2], attempts[2].running_at)
    # Its end is known, and no attempt has begun since.
    (down,) = past.down_times(attempts[:1], is_over=False)
    assert (down.attempt, down.since, down.until) == (None, attempts[0].ended_at, None)
    figure = history([checkpoint(1)], downs=[down])
    assert traces(figure)["Recovery"]["customdata"][0][0] == "none yet"
    assert is_valid(figure)


def test_planned_ends_have_a_mark_that_is_not_that_of_failures() -> None:
    aborted = checkpoint(2, status=CheckpointStatus.ABORTED, reason="job_rescaled", duration_ms=60)
    figure = history([aborted, checkpoint(1)])
    by_name = traces(figure)
    assert "Failed" not in by_name
    assert by_name["Aborted"]["x"] == [second(2)]
    assert by_name["Aborted"]["customdata"][0][3] == "the job was rescaled"
    assert by_name["End to end"]["x"] == by_name["State size"]["x"] == [second(1)]
    assert is_valid(figure)


def test_a_job_that_is_not_back_is_shaded_until_now() -> None:
    (down,) = past.down_times([attempt(1, 0, 1, ended=10), attempt(2, 12, None)], is_over=False)
    figure = history([checkpoint(1)], downs=[down])
    assert figure["layout"]["shapes"][0]["x1"] == "2026-03-01T01:00:00.000Z"
    assert "so far" in traces(figure)["Recovery"]["customdata"][0][2]


def test_exceptions_are_marked_on_the_same_axis_with_their_headline() -> None:
    row = JobException(at=datetime.fromisoformat(second(5)), kind="attempt", text="<i>x</i>\nmore")
    figure = history([checkpoint(1)], exceptions=[row])
    trace = traces(figure)["Exception"]
    assert trace["x"] == [second(5)]
    assert trace["customdata"] == [[second(5), "Attempt failed", "&lt;i&gt;x&lt;/i&gt;"]]
    assert is_valid(figure)


def test_bars_keep_apart_and_can_be_seen_beside_a_long_gap() -> None:
    def width_s(numbers: Sequence[int]) -> float:
        return history([checkpoint(n) for n in numbers])["data"][0]["width"] / 1_000

    assert width_s(range(10)) == pytest.approx(0.7)
    assert width_s([*range(10), 40_000]) == pytest.approx(100)  # A part of all that is shown.
    assert width_s([1]) == 1


def test_of_very_many_checkpoints_the_longest_and_the_failed_are_drawn() -> None:
    rows = [checkpoint(n) for n in range(1, 5_001)]
    rows[2_502].duration_ms = 9_000
    rows[4_000].status = CheckpointStatus.FAILED
    drawn = past.drawn(rows)
    assert len(drawn) <= past.BARS_MAX + 1
    assert rows[2_502] in drawn
    assert rows[4_000] in drawn
    assert drawn == sorted(drawn, key=lambda row: row.number)
    assert past.drawn(rows[:1_000]) == rows[:1_000]
    assert len(json.dumps(history(rows))) < 1_500_000


def axes_of(figure: figures.Figure) -> set[str]:
    axes = {key.replace("axis", "") for key in figure["layout"] if re.match(r"[xy]axis", key)}
    assert figure["layout"]["xaxis"]["anchor"] in axes
    return axes


def test_no_axis_is_left_without_values() -> None:
    """Plotly draws the line of such an axis at NaN, and the browser complains."""
    failed = checkpoint(1, status=CheckpointStatus.FAILED, reason="checkpoint_expired")
    exceptions = [JobException(at=NOW, kind="attempt", text="x")]
    for rows, about, axes in (
        ([failed], {}, {"x", "y"}),
        ([failed], {"exceptions": exceptions}, {"x", "y", "y3"}),
        ([failed, checkpoint(2)], {}, {"x", "y", "y2"}),
    ):
        figure = history(rows, **about)
        assert axes_of(figure) == axes
        assert all(trace["x"] for trace in figure["data"])
        assert {trace.get("yaxis", "y") for trace in figure["data"]} | {"x"} == axes


def test_history_of_nothing_is_a_figure() -> None:
    assert is_valid(history([]))


def test_few_channels_are_bars_of_arrival_and_blocked_time() -> None:
    figure = figures.alignment(
        aligned([gate(arrived_ms=[0, 30]), gate(index=1, arrived_ms=[12, 0])])
    )
    labels = ["flights-0 → hourly-0", "flights-1 → hourly-0", "flights-0 → hourly-1",
              "flights-1 → hourly-1"]  # fmt: skip
    by_name = traces(figure)
    assert by_name["Until the barrier arrived"]["y"] == labels
    assert by_name["Until the barrier arrived"]["x"] == [0, 0.03, 0.012, 0]
    assert by_name["Blocked"]["x"] == [0.03, 0, 0, 0.012]
    assert is_valid(figure)


@pytest.mark.parametrize(("arrived_ms", "is_wide"), [(0.03, False), (9, False), (30, True)])
def test_an_alignment_of_microseconds_is_no_wide_bar(arrived_ms: float, is_wide: bool) -> None:
    figure = figures.alignment(aligned([gate(arrived_ms=[0, arrived_ms])]))
    assert figure["layout"]["xaxis"].get("range") == (None if is_wide else [0, 0.01])
    assert figures.heat_scale(arrived_ms / 1_000, "x")["zmax"] == max(0.01, arrived_ms / 1_000)


def test_a_subtask_with_two_inputs_names_them() -> None:
    labels = figures.alignment(aligned([gate("join"), gate("join", gate=1)]))["data"][0]["y"]
    assert labels == [
        "flights-0 → join-0 input 1",
        "flights-1 → join-0 input 1",
        "flights-0 → join-0 input 2",
        "flights-1 → join-0 input 2",
    ]


def test_many_channels_are_a_heat_map_with_the_first_subtask_on_top() -> None:
    gates = [gate(index=n, arrived_ms=[float(n), 0, None, 5]) for n in range(8)]
    figure = figures.alignment(aligned(gates))
    (heat,) = figure["data"]
    assert heat["y"] == [f"hourly-{n}" for n in reversed(range(8))]  # Drawn from the bottom.
    assert heat["x"] == [0, 1, 2, 3]
    assert heat["z"][0] == [0.007, 0, None, 0.005]
    assert heat["customdata"][0][0] == ["flights-0", "7 ms", "0 ms", "700 B"]
    assert is_valid(figure)


def test_a_heat_map_stays_small_and_keeps_the_slowest() -> None:
    gates = [gate("wide", n, [0.0] * 199 + [500.0 if n == 777 else 10.0]) for n in range(1_000)]
    figure = figures.alignment(aligned(gates))
    (heat,) = figure["data"]
    assert "wide-777" in heat["y"]
    assert len(heat["y"]) * 200 == figures.HEAT_CELLS_MAX
    assert "15 slowest of 1,000" in figure["layout"]["xaxis"]["title"]["text"]
    assert len(json.dumps(figure)) < 220_000
    narrow = [gate("narrow", n, [0.0, 5.0]) for n in range(100)]
    rows = figures.alignment(aligned(narrow))["data"][0]["y"]
    assert rows == [f"narrow-{n}" for n in reversed(range(figures.HEAT_ROWS_MAX))]


def test_gates_of_different_width_fill_up_with_gaps() -> None:
    gates = [gate("a", n, [0.0, 1.0]) for n in range(5)] + [
        gate("b", n, [0.0] * 6) for n in range(5)
    ]
    (heat,) = figures.alignment(aligned(gates))["data"]
    assert {len(row) for row in heat["z"]} == {6} == {len(row) for row in heat["customdata"]}


def test_names_with_markup_are_shown_and_not_obeyed() -> None:
    name = '<a href="javascript:alert(1)">x</a>'
    for count in (1, 20):
        text = json.dumps(figures.alignment(aligned([gate(name, n) for n in range(count)])))
        assert "<a" not in text
        assert "&lt;a" in text


@pytest.mark.parametrize("count", [1, 20])
def test_every_colour_of_a_figure_is_in_the_style_sheet(count: int) -> None:
    figure = [
        history(
            [checkpoint(1)],
            downs=past.down_times([attempt(1, 0, 1, ended=10), attempt(2, 12, 14)], is_over=False),
            exceptions=[JobException(at=NOW, kind="driver", text="x")],
        ),
        figures.alignment(aligned([gate(index=n) for n in range(count)])),
    ]
    names = set(re.findall(r"var\((--[\w-]+)\)", json.dumps(figure)))
    light, dark = CSS.split("@media (prefers-color-scheme: dark)", 1)
    assert names
    assert {name for name in names if f"{name}:" not in light or f"{name}:" not in dark} == set()


def test_the_slowest_channel_is_named_with_what_it_cost() -> None:
    gates = [gate(arrived_ms=[0, 30]), gate("totals", 1, [412.0, 0])]
    assert alignment.sentence(aligned(gates)) == (
        "Slowest channel: flights-0 → totals-1. Its barrier arrived 412 ms after the first one, "
        "behind 41.2 kB; meanwhile other channels were blocked for up to 412 ms."
    )


def test_an_unaligned_checkpoint_blocked_nothing() -> None:
    sentence = alignment.sentence(aligned([gate(arrived_ms=[0, 30], blocked_ms=[0, 0])]))
    assert sentence.endswith("; no channel was blocked meanwhile.")


def test_barriers_that_came_together_hold_no_subtask() -> None:
    assert "arrived together" in alignment.sentence(aligned([gate(arrived_ms=[0, 0.4])]))
    assert "arrived together" in alignment.sentence(aligned([gate(arrived_ms=[None, None])]))
    assert alignment.sentence(aligned([])) == (
        "No subtask reported channels for this checkpoint: there was nothing to align."
    )


def test_the_slowest_come_first_and_ended_channels_last() -> None:
    channels = alignment.slowest(aligned([gate(arrived_ms=[None, 3, 9, 0])]), 4)
    assert [channel.arrived_ms for channel in channels] == [9, 3, 0, None]


def test_alerts_are_marked_where_they_began_and_lead_to_their_pages() -> None:
    began = datetime(2026, 3, 1, 0, 0, 2, tzinfo=UTC)
    firing = Alert(
        rule_name="<b>slow</b>", severity="critical", summary="It took 48 s.", began_at=began
    )
    over = Alert(
        rule_name="late", severity="info", state="resolved", summary="x" * 500, began_at=began
    )
    over.ended_at = began + timedelta(seconds=5)
    figure = history([checkpoint(1)], alerts=[firing, over])
    marks = traces(figure)["Alert"]
    assert marks["x"] == [second(2)] * 2
    assert marks["marker"]["color"] == ["var(--bad)", "var(--warn)"]
    assert marks["marker"]["symbol"] == ["star", "star-open"]
    assert [about[-1] for about in marks["customdata"]] == [
        f"/alerts/{firing.pk}",
        f"/alerts/{over.pk}",
    ]
    assert marks["customdata"][0][1] == "&lt;b&gt;slow&lt;/b&gt;"
    assert marks["customdata"][1][3] == f"resolved {second(7)}"
    assert len(marks["customdata"][1][2]) <= 120
    assert is_valid(figure)
    assert "Alert" not in traces(history([checkpoint(1)]))
