"""Pictures of one checkpoint, as data."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

import frontend
from checkpoints.verdict.facts import Gate
from frontend.base.alignment import Measure
from frontend.checkpoint import figures
from frontend.checkpoint.queries import ChainSpan, GateSpan, SubtaskPhases
from tests.browser.plotly_figures import is_valid

CSS = (Path(frontend.__file__).parent / "static/frontend/weir.css").read_text()
SCRIPT = "<script>"


def span(chain: str = "hourly", count: int = 1_000, **columns: Any) -> ChainSpan:
    """A chain whose slowest subtask is the seventh."""
    names = ("start_delay", "alignment", "sync", "async")
    phases: dict[str, Any] = {}
    for name in names:
        phases |= {
            f"least_{name}_ms": 1.0,
            f"most_{name}_ms": 100.0,
            f"most_{name}_index": 3,
        }
    return ChainSpan(
        **{
            "chain": chain,
            "slowest": 7,
            "start_delay_ms": 10.0,
            "alignment_ms": 4_700.0,
            "sync_ms": 2.0,
            "async_ms": 88.0,
            "count": count,
            "least_total_ms": 60.0,
            "most_total_ms": 4_800.0,
            **phases,
            **columns,
        }
    )


def subtask(chain: str = "hourly", index: int = 0, **columns: Any) -> SubtaskPhases:
    return SubtaskPhases(
        **{
            "chain": chain,
            "index": index,
            "start_delay_ms": 10.0,
            "alignment_ms": 40.0,
            "sync_ms": 2.0,
            "async_ms": 8.0,
            "acknowledged_ms": 63.0,
            **columns,
        }
    )


def pair(receiver: str = "hourly", sender: str = "flights-0", **columns: Any) -> GateSpan:
    return GateSpan(
        **{
            "receiver": receiver,
            "gate": 0,
            "first_sender": sender,
            "gates": 200,
            "channels": 40_000,
            "most_arrived_ms": 4_500.0,
            "p95_arrived_ms": 300.0,
            "most_blocked_ms": 4_400.0,
            "p95_blocked_ms": 290.0,
            "slowest": 7,
            "in_flight_bytes": 6_600_000,
            **columns,
        }
    )


def gate(
    index: int,
    arrived: list[float | None],
    upstream: str = "flights",
    in_flight: tuple[int, ...] = (),
) -> Gate:
    last = max((ms for ms in arrived if ms is not None), default=0.0)
    return Gate(
        "hourly",
        index,
        0,
        [f"{upstream}-{sender}" for sender in range(len(arrived))],
        arrived,
        [0.0 if ms is None else last - ms for ms in arrived],
        [0 if ms is None else 500 for ms in arrived],
        in_flight,
    )


EVERY = [
    figures.timeline_of_chains([], {}, None),
    figures.timeline_of_chains([span(), span(SCRIPT, 1)], {"hourly": "/x"}, 4_800.0),
    figures.timeline_of_subtasks([], None),
    figures.timeline_of_subtasks([subtask(), subtask(SCRIPT, 1)], 70.0),
    figures.overview_of_subtasks([], None),
    figures.overview_of_subtasks([subtask(SCRIPT, at) for at in range(50)], 70.0),
    figures.pair_map([], [], {}, by=Measure.ARRIVED),
    figures.pair_map([pair(SCRIPT)], [SCRIPT], {}, by=Measure.BLOCKED),
    figures.pair_map([pair(SCRIPT)], [SCRIPT], {}, by=Measure.IN_FLIGHT),
    figures.channel_map([], by=Measure.ARRIVED),
    figures.channel_map([gate(0, [0.0, None, 30.0], SCRIPT)], by=Measure.IN_FLIGHT),
    figures.channel_map([gate(0, [0.0, None, 30.0], SCRIPT)], by=Measure.BLOCKED),
    figures.state_bars([]),
    figures.state_bars([{"uid": SCRIPT, "state_bytes": 5, "before_bytes": 3}]),
]


@pytest.mark.parametrize("figure", EVERY)
def test_figures_are_plotly_s_in_the_style_sheet_s_colours(figure: figures.Figure) -> None:
    assert is_valid(figure)
    for name in re.findall(r"var\((--[\w-]+)\)", json.dumps(figure)):
        assert f"{name}:" in CSS


@pytest.mark.parametrize("figure", EVERY)
def test_names_of_others_are_shown_literally(figure: figures.Figure) -> None:
    assert SCRIPT not in json.dumps(figure)


def test_a_chain_s_row_is_its_slowest_subtask_phase_behind_phase() -> None:
    figure = figures.timeline_of_chains([span()], {}, 5_000.0)
    *bars, ranges = figure["data"]
    assert [bar["name"] for bar in bars] == [
        "Start delay",
        "Alignment",
        "Synchronous part",
        "Asynchronous part",
    ]
    begins = [bar["base"][0] for bar in bars]
    ends = [bar["base"][0] + bar["x"][0] for bar in bars]
    assert begins == [0.0, 0.01, 4.71, 4.712]
    assert ends[:-1] == begins[1:]
    assert bars[1]["customdata"][0] == ["hourly-7, the slowest of 1,000", "4.70 s", "10 ms"]
    assert ranges["x"] == [0.06, 4.8, None]
    assert figure["layout"]["shapes"][0]["x0"] == 5.0


def test_a_chain_leads_to_its_subtasks_by_its_label() -> None:
    figure = figures.timeline_of_chains([span("a<b")], {"a<b": "/there"}, None)
    label = figure["data"][0]["y"][0]
    assert figure["layout"]["meta"]["links"][label] == "/there"
    assert "shapes" not in figure["layout"]  # It has no end yet.


def test_a_subtask_s_row_says_when_its_acknowledgement_came() -> None:
    figure = figures.timeline_of_subtasks([subtask(), subtask(index=1, acknowledged_ms=900)], None)
    *bars, marks = figure["data"]
    assert bars[0]["y"] == ["hourly-0", "hourly-1"]
    assert marks["x"] == [0.063, 0.9]
    assert marks["customdata"] == ["63 ms", "900 ms"]


def test_a_thousand_subtasks_are_four_shapes() -> None:
    figure = figures.overview_of_subtasks([subtask(index=at) for at in range(1_000)], None)
    assert len(figure["data"]) == 4
    assert figure["data"][1]["customdata"][999] == ["hourly-999", "40 ms"]
    assert len(json.dumps(figure)) < 250_000


def test_pairs_of_operators_that_no_edge_joins_stay_empty() -> None:
    spans = [pair(), pair("totals", "late-data-3", most_arrived_ms=20.0)]
    figure = figures.pair_map(spans, ["hourly", "totals"], {"totals": "/t"}, by=Measure.ARRIVED)
    (heat,) = figure["data"]
    assert heat["x"] == ["flights", "late-data"]
    assert heat["z"] == [[4.5, None], [None, 0.02]]
    assert heat["text"] == [["4.50 s", ""], ["", "20 ms"]]
    assert heat["customdata"] == [
        ["at most 4.50 s<br>95 % of the subtasks within 300 ms", ""],
        ["", "at most 20 ms<br>95 % of the subtasks within 300 ms"],
    ]
    assert figure["layout"]["meta"]["links"] == {"totals": "/t"}


def test_channels_of_different_senders_share_one_map() -> None:
    gates = [gate(0, [0.0, 30.0]), gate(1, [5.0], "late")]
    (heat,) = figures.channel_map(gates, by=Measure.ARRIVED)["data"]
    assert heat["x"] == ["flights-0", "flights-1", "late-0"]
    assert heat["y"] == ["hourly-0", "hourly-1"]
    assert heat["z"] == [[0.0, 0.03, None], [None, None, 0.005]]
    (heat,) = figures.channel_map(gates, by=Measure.BLOCKED)["data"]
    assert heat["z"][0] == [0.03, 0.0, None]
    assert heat["customdata"][0][1] == [0.03, 0, 500]


def test_data_in_flight_is_a_map_of_bytes() -> None:
    gates = [gate(0, [0.0, 30.0], in_flight=(700, 0)), gate(1, [0.0, 5.0])]
    (heat,) = figures.channel_map(gates, by=Measure.IN_FLIGHT)["data"]
    assert heat["z"] == [[700, 0], [0, 0]]
    assert (heat["zmax"], heat["colorbar"]["ticksuffix"]) == (700, "B")
    assert heat["customdata"][0][1] == [0.03, 0.0, 500]
    assert heat["hovertemplate"].startswith("%{x} → %{y}<br>%{z:.3s}B persisted in flight<br>")
    (heat,) = figures.pair_map([pair()], ["hourly"], {}, by=Measure.IN_FLIGHT)["data"]
    assert (heat["z"], heat["text"]) == ([[6_600_000]], [["6.60 MB"]])
    assert heat["customdata"] == [["6.60 MB on 40,000 channels"]]


def test_a_channel_whose_sender_had_ended_has_no_arrival() -> None:
    (heat,) = figures.channel_map([gate(0, [0.0, None])], by=Measure.ARRIVED)["data"]
    assert heat["z"] == [[0.0, None]]
    assert heat["zmax"] == 0.01


def test_the_cells_of_a_map_are_bounded() -> None:
    assert figures.heat_rows(200) == 50
    assert figures.heat_rows(10) == figures.HEAT_ROWS_MAX
    assert figures.heat_rows(50_000) == 1
    gates = [gate(at, [float(n) for n in range(200)]) for at in range(figures.heat_rows(200))]
    assert len(json.dumps(figures.channel_map(gates, by=Measure.ARRIVED))) < 500_000


def test_state_that_cannot_be_seen_beside_the_largest_has_no_bar() -> None:
    rows = [
        {"uid": "hourly", "state_bytes": 2_000_000, "before_bytes": 1_000_000},
        {"uid": "totals", "state_bytes": 0, "before_bytes": 900_000},
        {"uid": "sink", "state_bytes": 300, "before_bytes": 300},
    ]
    now, before = figures.state_bars(rows)["data"]
    assert now["y"] == ["hourly", "totals"]
    assert (now["x"], before["x"]) == ([2_000_000, 0], [1_000_000, 900_000])
    alone = figures.state_bars([{"uid": "a", "state_bytes": 5, "before_bytes": None}])
    assert [series["name"] for series in alone["data"]] == ["This checkpoint"]


def test_an_input_is_numbered_where_an_operator_has_several() -> None:
    assert figures.input_name("join", 1, 1) == "join"
    assert figures.input_name("join", 1, 2) == "join input 2"
    assert figures.sender_of("my-source-12") == "my-source"
