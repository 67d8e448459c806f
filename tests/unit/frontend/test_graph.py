"""The operator graph: where it is drawn, and what it shows of a moment."""

import json
import re
from datetime import UTC, datetime
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import frontend
from checkpoints.models import Checkpoint
from frontend.graph import layout as graph_layout
from frontend.graph import picture as graph
from frontend.graph import state as graph_state
from frontend.graph.layout import Box, Line, layout
from frontend.graph.picture import Graph
from frontend.graph.state import Waiting, WaitingGate
from jobs.models import Edge, Operator
from tests import factories
from weir.protocol.lifecycle import CheckpointStatus

GRAPH_CSS = (Path(frontend.__file__).parent / "static/frontend/graph.css").read_text()

# Where it is drawn ----------------------------------------------------------------------------


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[Box], list[Line]]:
    """A graph without cycles, of boxes of any height, in an order of its own."""
    count = draw(st.integers(1, 24))
    boxes = [Box(f"b{n}", 200.0, draw(st.sampled_from([60.0, 120.0, 300.0]))) for n in range(count)]
    ends = st.tuples(st.integers(0, count - 1), st.integers(0, count - 1))
    pairs = draw(st.lists(ends.filter(lambda pair: pair[0] != pair[1]), max_size=40))
    lines = []
    for one, other in pairs:
        source, target = sorted((one, other))
        lines.append(
            Line(
                f"b{source}",
                f"b{target}",
                leaves_at=draw(st.floats(0, boxes[source].height)),
                enters_at=draw(st.floats(0, boxes[target].height)),
            )
        )
    return draw(st.permutations(boxes)), draw(st.permutations(lines))


@given(graphs())
def test_boxes_do_not_overlap_and_lie_within_the_picture(
    graph: tuple[list[Box], list[Line]],
) -> None:
    boxes, lines = graph
    drawn = layout(boxes, lines)
    for box in boxes:
        x, y = drawn.corners[box.key]
        assert x >= 0
        assert y >= -1e-6
        assert x + box.width <= drawn.width + 1e-6
        assert y + box.height <= drawn.height + 1e-6
    for one, other in combinations(boxes, 2):
        (x, y), (u, v) = drawn.corners[one.key], drawn.corners[other.key]
        beside = x + one.width < u or u + other.width < x
        above = y + one.height < v or v + other.height < y
        assert beside or above, (one, other)


@given(graphs())
def test_lines_go_forward_between_the_boxes_and_over_none_of_them(
    graph: tuple[list[Box], list[Line]],
) -> None:
    boxes, lines = graph
    drawn = layout(boxes, lines)
    for line, route in zip(lines, drawn.routes, strict=True):
        assert route == sorted(route, key=lambda point: point[0])
        (x, y), (u, v) = drawn.corners[line.source], drawn.corners[line.target]
        assert route[0] == (x + 200.0, y + line.leaves_at)
        assert route[-1] == (u, v + line.enters_at)
        assert x + 200.0 < u
        for (left, height), (right, _) in zip(route[1:-1:2], route[2:-1:2], strict=True):
            assert right - left == 200.0  # A whole layer is passed at one height …
            for box in boxes:
                x, y = drawn.corners[box.key]
                assert x != left or not y < height < y + box.height  # … beside its boxes.


@given(graphs())
def test_the_same_graph_is_drawn_in_the_same_way(graph: tuple[list[Box], list[Line]]) -> None:
    assert layout(*graph) == layout(*graph)


def test_a_line_of_boxes_is_straight() -> None:
    boxes = [Box("a", 200, 100), Box("b", 200, 300), Box("c", 200, 50)]
    drawn = layout(boxes, [Line("a", "b", 20, 20), Line("b", "c", 250, 20)])
    assert [route[0][1] == route[-1][1] for route in drawn.routes] == [True, True]
    assert drawn.width == 600 + 2 * graph_layout.BETWEEN_LAYERS


def test_lines_that_need_not_cross_do_not() -> None:
    names = ["a0", "a1", "a2", "b0", "b1", "b2"]
    boxes = [Box(name, 200, 100) for name in names]
    drawn = layout(boxes, [Line(f"a{n}", f"b{2 - n}", 20, 20) for n in range(3)])
    assert all(route[0][1] == route[-1][1] for route in drawn.routes)


def test_a_single_box_and_nothing_at_all_are_drawn() -> None:
    assert layout([Box("a", 200, 100)], []).corners == {"a": (0.0, 0.0)}
    assert layout([], []).width == 0


# The graph of a job ----------------------------------------------------------------------------


def operator(uid: str, chain: str | None = None, **columns: Any) -> Operator:
    """A row that is in no database."""
    return Operator(
        **{
            "uid": uid,
            "name": uid.title(),
            "chain": chain or uid,
            "parallelism": 2,
            "is_source": False,
            "is_sink": False,
            **columns,
        }
    )


def edge(position: int, source: str, target: str, partitioning: str = "hash") -> Edge:
    return Edge(position=position, source=source, target=target, partitioning=partitioning)


def flights() -> Graph:
    """The graph of the flights example, as rows say it."""
    operators = [
        operator(uid, chain, is_source=is_source, is_sink=is_sink)
        for uid, _, chain, is_source, is_sink, _ in factories.FLIGHTS
    ]
    return graph.build_graph(
        operators, [edge(n, *ends) for n, ends in enumerate(factories.FLIGHTS_EDGES)]
    )


def line(*uids: str, parallelism: int = 2) -> Graph:
    """Chains of one operator each, one behind the other."""
    operators = [operator(uid, parallelism=parallelism) for uid in uids]
    return graph.build_graph(operators, [edge(n, *ends) for n, ends in enumerate(pairwise(uids))])


def test_a_chain_is_one_box_with_its_operators_depth_first() -> None:
    chain_graph = flights()
    assert [chain.uid for chain in chain_graph.chains] == ["flights", "hourly", "totals"]
    hourly = chain_graph.chains[1]
    assert [member.uid for member in hourly.members] == [
        "hourly", "mean-delay", "hourly-sink", "late-sink",
    ]  # fmt: skip
    assert hourly.parents == (0, 1, 0)
    assert (chain_graph.chains[0].role, hourly.role) == ("source", "sink")


def test_edges_between_chains_are_input_gates_in_their_order() -> None:
    operators = [operator("a"), operator("b"), operator("join")]
    chain_graph = graph.build_graph(
        operators, [edge(5, "b", "join"), edge(2, "a", "join"), edge(7, "b", "join")]
    )
    assert [(link.position, link.source, link.gate) for link in chain_graph.links] == [
        (2, "a", 0), (5, "b", 1), (7, "b", 2),
    ]  # fmt: skip
    assert chain_graph.links[0].name == "a → join (hash)"


def test_the_same_rows_have_the_same_revision_and_others_have_another() -> None:
    assert flights().revision == flights().revision
    assert line("a", "b").revision != line("a", "b", parallelism=3).revision


def test_rows_of_a_chain_lie_in_its_box_and_lines_begin_at_theirs() -> None:
    chain_graph = flights()
    picture = graph.picture(chain_graph, state(chain_graph))
    assert picture is not None
    boxes = {chain["uid"]: chain for chain in picture["chains"]}
    for box in boxes.values():
        ys = [row["y"] for row in box["rows"]]
        assert ys == sorted(set(ys))
        assert ys[0] > 0
        assert ys[-1] < box["divider"] < box["height"]
        assert box["x"] + box["width"] <= picture["width"]
        assert box["y"] + box["height"] <= picture["height"]
    (watermarks,) = [row for row in boxes["flights"]["rows"] if row["uid"] == "flights-watermarks"]
    begins_at = float(picture["links"][0]["path"].split("C")[0].split()[1])
    assert begins_at == pytest.approx(boxes["flights"]["y"] + watermarks["y"], abs=0.1)


def test_branches_of_a_chain_are_joined_to_the_row_that_feeds_them() -> None:
    chain_graph = flights()
    picture = graph.picture(chain_graph, state(chain_graph))
    assert picture is not None
    hourly = picture["chains"][1]
    assert [row["x"] for row in hourly["rows"]] == [26, 39, 39, 26]  # late-sink follows hourly.
    assert hourly["joints"].count("M") == 3


def test_a_long_chain_says_how_many_operators_are_not_drawn() -> None:
    uids = [f"step-{n}" for n in range(40)]
    operators = [operator("out"), *(operator(uid, uids[0]) for uid in uids)]
    edges = [edge(n, *ends, "forward") for n, ends in enumerate(pairwise(uids))]
    chain_graph = graph.build_graph(operators, [*edges, edge(99, uids[-1], "out")])
    picture = graph.picture(chain_graph, state(chain_graph))
    assert picture is not None
    chain = next(chain for chain in picture["chains"] if chain["uid"] == "step-0")
    assert len(chain["rows"]) == graph.ROWS_MAX - 1
    assert chain["more"]["text"] == "and 29 more operators"
    assert "step-39" in chain["more"]["names"]


def test_a_long_name_is_cut_and_shown_whole_on_hover() -> None:
    name = "a-very-long-name-of-an-operator-that-its-author-chose"
    chain_graph = line("a", name)
    picture = graph.picture(chain_graph, state(chain_graph))
    assert picture is not None
    (row,) = picture["chains"][1]["rows"]
    assert row["text"].endswith("…")
    assert len(row["text"]) <= graph.HEAD_CHARACTERS
    assert row["uid"] == name


@pytest.mark.parametrize("layers", [1, 2, 3, 5])
def test_the_graph_is_as_wide_as_its_card_and_the_style_sheet_knows_how_wide_that_is(
    layers: int,
) -> None:
    chain_graph = line(*"abcde"[:layers])
    picture = graph.picture(chain_graph, state(chain_graph))
    assert picture is not None
    assert picture["layers"] == layers
    least = re.search(rf'#graph\[data-layers="{layers}"\] {{ min-width: (\d+)px', GRAPH_CSS)
    assert (layers < 3) is (least is not None)  # Others keep their own width.
    assert least is None or int(least[1]) == picture["width"]
    assert (picture["width"] > graph.CARD_WIDTH) is (layers > 3)
    assert layers != 3 or picture["width"] == pytest.approx(graph.CARD_WIDTH, abs=1)


def test_no_graph_has_no_picture() -> None:
    nothing = graph.build_graph([], [])
    assert graph.picture(nothing, state(nothing)) is None


# What it shows of a moment ---------------------------------------------------------------------

NOW = datetime(2026, 3, 1, tzinfo=UTC)
NOW_MS = NOW.timestamp() * 1_000


def checkpoint(status: CheckpointStatus = CheckpointStatus.PENDING, **columns: Any) -> Checkpoint:
    settled = None if status == CheckpointStatus.PENDING else NOW
    return Checkpoint(
        **{"number": 4, "status": status, "settled_at": settled, "has_details": True, **columns}
    )


def state(of: Graph, **parts: Any) -> dict[str, Any]:
    """The state that the graph shows, of a checkpoint that is under way unless told otherwise."""
    moment = {"now": NOW, "checkpoint": checkpoint(), "chains": {}, "acknowledged": {}, **parts}
    shown = graph_state.graph_state(of, graph_state.Moment(**moment))
    assert json.loads(json.dumps(shown)) == shown
    return shown


def gate(*has_come: bool, upstream: str = "a", number: int = 0) -> WaitingGate:
    return WaitingGate(number, [f"{upstream}-{n}" for n in range(len(has_come))], list(has_come))


def waiting(chain: str, index: int, *gates: WaitingGate, since_s: float = 4.0) -> Waiting:
    return Waiting(chain, index, NOW_MS - since_s * 1_000, gates)


def barriers(shown: dict[str, Any]) -> list[str]:
    return [link["barrier"] for link in shown["links"]]


def test_a_barrier_is_not_sent_then_on_its_way_then_through() -> None:
    pair = line("a", "b")
    assert barriers(state(pair)) == ["not-sent"]
    assert barriers(state(pair, acknowledged={"a": [1]})) == ["on-its-way"]
    shown = state(pair, acknowledged={"a": [0, 1], "b": [0]})
    assert (shown["links"][0]["text"], barriers(shown)) == ("▸ 1/2 arrived", ["on-its-way"])
    assert barriers(state(pair, acknowledged={"a": [0, 1], "b": [0, 1]})) == ["through"]


def test_an_edge_shows_the_data_in_flight_once_its_barrier_is_through() -> None:
    join = graph.build_graph(
        [operator("a"), operator("b"), operator("join")],
        [edge(0, "a", "join"), edge(1, "b", "join")],
    )
    moment = {
        "in_flight": {("join", 1): 6_600_000},
        "checkpoint": checkpoint(CheckpointStatus.COMPLETED),
    }
    everybody = {"a": [0, 1], "b": [0, 1], "join": [0, 1]}
    links = state(join, acknowledged=everybody, **moment)["links"]
    assert [link["text"] for link in links] == ["✓", "✓ +6.60 MB"]
    assert "6.60 MB of records that it overtook are in the checkpoint" in links[1]["title"]
    waits = state(
        join, acknowledged={"a": [0, 1], "b": [0, 1], "join": [0]}, in_flight={("join", 1): 9}
    )
    assert waits["links"][1]["text"] == "▸ 1/2 arrived"


def test_an_alignment_shows_how_many_barriers_have_come_one_after_the_other() -> None:
    pair = line("a", "b", parallelism=4)
    shown = []
    for came in range(1, 5):
        gates = gate(*(n < came for n in range(4)))
        moment = state(
            pair,
            acknowledged={"a": list(range(came))},
            waiting=[waiting("b", index, gates) for index in range(4)],
        )
        shown.append(moment["links"][0]["text"])
    assert shown == ["◐ 1/4 aligning", "◐ 2/4 aligning", "◐ 3/4 aligning", "✓"]


def test_a_gate_is_through_only_when_everybody_who_is_missing_says_so() -> None:
    pair = line("a", "b")
    complete = waiting("b", 0, gate(True, True))
    acknowledged = {"a": [0, 1]}
    assert barriers(state(pair, waiting=[complete], acknowledged=acknowledged)) == ["on-its-way"]
    both = [complete, waiting("b", 1, gate(True, True))]
    assert barriers(state(pair, waiting=both, acknowledged=acknowledged)) == ["through"]


def test_the_input_that_holds_a_join_is_told_from_the_one_that_has_come() -> None:
    join = graph.build_graph(
        [operator("a"), operator("b"), operator("join")],
        [edge(0, "a", "join"), edge(1, "b", "join")],
    )
    gates = (gate(True, True), gate(False, False, upstream="b", number=1))
    held = [waiting("join", index, *gates) for index in range(2)]
    shown = state(join, waiting=held, acknowledged={"a": [0, 1]})
    assert barriers(shown) == ["through", "not-sent"]
    assert [link["slow"] for link in shown["links"]] == ["", "▲ b-0"]
    assert "join-0 waits for it" in shown["links"][1]["title"]
    assert shown["slow"] == "Waiting for b-0 → join-0"


def test_who_waits_itself_is_not_the_one_that_holds_the_barrier() -> None:
    trio = line("a", "b", "c")
    shown = state(
        trio,
        acknowledged={"a": [0]},
        waiting=[
            waiting("c", 0, gate(True, False, upstream="b"), since_s=9),
            waiting("b", 1, gate(True, False), since_s=3),
        ],
    )
    assert shown["slow"] == "Waiting for a-1 → b-1"
    assert [link["took_ago"] for link in shown["links"]] == ["3 s", ""]


def test_of_several_that_are_missing_the_one_most_wait_for_is_named() -> None:
    pair = line("a", "b", parallelism=3)
    rows_ = [
        waiting("b", 0, gate(False, False, True), since_s=9),
        waiting("b", 1, gate(True, False, True)),
        waiting("b", 2, gate(True, False, True)),
    ]
    assert state(pair, waiting=rows_)["slow"] == "Waiting for a-1 → b-0"


def test_an_alignment_is_over_with_its_acknowledgement() -> None:
    pair = line("a", "b")
    shown = state(
        pair,
        acknowledged={"a": [0, 1], "b": [0, 1]},
        waiting=[waiting("b", 0, gate(True, False))],
    )
    assert (shown["slow"], barriers(shown)) == ("", ["through"])


@pytest.mark.parametrize(
    "status", [CheckpointStatus.COMPLETED, CheckpointStatus.SUBSUMED, CheckpointStatus.DISCARDED]
)
def test_a_completed_checkpoint_went_through_everywhere(status: CheckpointStatus) -> None:
    shown = state(flights(), checkpoint=checkpoint(status))
    assert set(barriers(shown)) == {"through"}


def test_a_failed_checkpoint_stays_where_it_was_given_up() -> None:
    slow = graph_state.settled_slow(line("a", "b"), "a-1", "b-0", "4 s", "came never", "bad")
    shown = state(
        line("a", "b"),
        checkpoint=checkpoint(CheckpointStatus.FAILED),
        acknowledged={"a": [0]},
        slow=slow,
    )
    assert barriers(shown) == ["on-its-way"]
    assert shown["chains"][0]["missing"] == "never acknowledged: a-1"
    assert (shown["links"][0]["tone"], shown["links"][0]["took_ago"]) == ("bad", "4 s")
    assert shown["slow"] == "Slowest channel: a-1 → b-0; its barrier came never"


def test_the_slow_channel_of_another_graph_is_marked_nowhere() -> None:
    assert graph_state.settled_slow(line("a", "b"), "gone-1", "b-0", "", "", "warn") is None


def test_without_a_checkpoint_nothing_is_said_of_barriers() -> None:
    shown = state(flights(), checkpoint=None)
    assert set(barriers(shown)) == {""}
    assert {chain["state"] for chain in shown["chains"]} == {""}
    assert {chain["says"] for chain in shown["chains"]} == {""}


def test_a_chain_fills_as_its_subtasks_acknowledge() -> None:
    pair = line("a", "b", parallelism=4)
    gone = graph_state.ChainSubtasks(total=4, running=3, finished=frozenset({3}))
    shown = state(pair, acknowledged={"a": [0, 2]}, chains={"b": gone})
    a, b = shown["chains"]
    assert (a["fraction"], a["says"], a["missing"]) == (
        0.5, "2/4 acknowledged", "waiting for a-1, a-3",
    )  # fmt: skip
    assert (b["fraction"], b["count"]) == (0.0, "0/3")  # b-3 had finished, and was not asked.


def test_bad_records_are_counted_at_their_operator() -> None:
    def having(count: int) -> graph_state.ChainSubtasks:
        return graph_state.ChainSubtasks(2, 2, frozenset(), bad_records=count)

    none, some, many = state(
        line("a", "b", "c"), chains={"a": having(0), "b": having(12), "c": having(12_345)}
    )["chains"]
    assert (none["bad"], none["bad_title"]) == ("", "")
    assert some["bad"] == "12 bad"
    assert many["bad"] == "12.3k bad"
    assert many["bad_title"].startswith("Bad records since the attempt began: 12,345.")


def test_a_watermark_says_how_far_it_is_behind() -> None:
    def at(seconds: float) -> graph_state.ChainSubtasks:
        reached = int(NOW_MS - seconds * 1_000)
        return graph_state.ChainSubtasks(2, 2, frozenset(), watermark_ms=reached)

    shown = state(line("a", "b"), chains={"a": at(2), "b": at(65)})
    assert shown["chains"][1]["watermark"] == "watermark 2026-02-28 23:58:55 UTC"
    assert shown["chains"][1]["watermark_title"].endswith(
        "; 1 min 03 s behind the furthest operator, 1 min 05 s behind the clock"
    )
    replay = state(line("a"), chains={"a": at(400 * 86_400)})["chains"][0]["watermark_title"]
    assert "behind" not in replay  # Event time of a replay has nothing to do with the clock.


@pytest.mark.parametrize(
    ("per_second", "words"),
    [
        (0, "0/s"), (0.44, "0.4/s"), (7.25, "7.2/s"), (840, "840/s"), (999.6, "1.0k/s"),
        (12_400, "12.4k/s"), (840_000, "840k/s"), (3_100_000, "3.1M/s"),
    ],
)  # fmt: skip
def test_rates_are_written_in_three_digits(per_second: float, words: str) -> None:
    assert graph_state.rate(per_second) == words


def test_a_graph_of_sixty_operators_stays_small_and_quick() -> None:
    links = [(f"op-{n}", f"op-{m}") for n in range(59) for m in (n + 1, n + 7) if m < 60]
    operators = [operator(f"op-{n}", parallelism=1_000) for n in range(60)]
    chain_graph = graph.build_graph(operators, [edge(n, *ends) for n, ends in enumerate(links)])
    held = [waiting(f"op-{n}", 0, gate(*[True] * 999, False, upstream="op-0")) for n in range(48)]
    shown = state(chain_graph, waiting=held, acknowledged={"op-0": list(range(999))})
    assert len(json.dumps(shown)) < 80_000
    picture = graph.picture(chain_graph, shown)
    assert picture is not None
    assert len(picture["chains"]) == 60
