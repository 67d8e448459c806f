"""The icicle of sampled stacks: boxes, shares, colours, and what is said of them."""

from dataclasses import replace
from itertools import pairwise

from frontend.operator import flames as icicle
from jobs.inspections.flames import Flames
from weir.protocol.inspection import StackFrame

HEAD = StackFrame("head", "Map.on_batch", "operators/map.py", 9)
PARSE = StackFrame("head", "parse", "orders.py", 41)
TAIL = StackFrame("tail", "Sink.on_batch", "operators/sink.py", 7)
GATE = StackFrame("", "OutputGate.emit", "worker/gates.py", 3)
FLAMES = Flames(
    60_000.0,
    [((HEAD, PARSE), 60), ((HEAD, PARSE, TAIL), 30), ((GATE,), 10)],
    work=100,
    others=20,
    runtime=30,
    waiting=50,
)


def drawn(flames: Flames) -> list[tuple[str, int, float, float]]:
    """Label, row, left edge and width of each box."""
    (trace,) = icicle.figure(flames)["data"]
    return list(zip(trace["text"], trace["y"], trace["base"], trace["x"], strict=True))


def test_a_box_lies_below_its_caller_and_operators_have_rows_of_their_own() -> None:
    assert sorted(drawn(FLAMES), key=lambda box: (box[1], box[2])) == [
        ("head", 0, 0.0, 0.9),
        ("OutputGate.emit  worker/gates.py:3", 0, 0.9, 0.1),
        ("Map.on_batch  operators/map.py:9", 1, 0.0, 0.9),
        ("parse  orders.py:41", 2, 0.0, 0.9),
        ("tail", 3, 0.0, 0.3),
        ("Sink.on_batch  operators/sink.py:7", 4, 0.0, 0.3),
    ]


def test_neighbours_do_not_overlap() -> None:
    frames = [StackFrame("m", f"f{n}", "a.py", n) for n in range(40)]
    many = Flames(1.0, [((frame,), n + 3) for n, frame in enumerate(frames)], work=900)
    row = sorted(box[2:] for box in drawn(many) if box[1] == 1)
    assert len(row) == 40
    assert all(left + width <= right + 1e-4 for (left, width), (right, _) in pairwise(row))
    assert abs(sum(width for _, width in row) - 1) < 1e-3


def test_boxes_too_narrow_to_be_seen_are_left_out() -> None:
    rare = StackFrame("m", "rare", "a.py", 1)
    often = StackFrame("m", "often", "a.py", 2)
    labels = [box[0] for box in drawn(Flames(1.0, [((often,), 9_999), ((rare,), 1)], work=10_000))]
    assert labels == ["m", "often  a.py:2"]


def test_operators_differ_in_colour_and_calls_around_them_have_none() -> None:
    (trace,) = icicle.figure(FLAMES)["data"]
    colors = dict(zip(trace["text"], trace["marker"]["color"], strict=True))
    assert colors["head"] == colors["parse  orders.py:41"] != colors["tail"]
    assert colors["OutputGate.emit  worker/gates.py:3"] == "var(--sunken)"


def test_names_are_shown_as_they_are() -> None:
    """Plotly takes tags in a text for formatting."""
    frame = StackFrame("m", "f.<locals>.<lambda>", "<b>.py", 1)
    (trace,) = icicle.figure(Flames(1.0, [((frame,), 1)], work=1))["data"]
    assert trace["text"][1] == "f.&lt;locals&gt;.&lt;lambda&gt;  &lt;b&gt;.py:1"
    assert "<lambda>" not in trace["customdata"][1]


def test_a_box_tells_its_share_of_the_work_and_of_the_time() -> None:
    (trace,) = icicle.figure(FLAMES)["data"]
    told = dict(zip(trace["text"], trace["customdata"], strict=True))
    assert told["Sink.on_batch  operators/sink.py:7"].endswith(
        "Operator: tail<br>30\u00a0% of the work, 15\u00a0% of the time"
    )


def test_the_time_without_work_is_told_apart() -> None:
    assert icicle.summary(replace(FLAMES, subtasks=2)) == (
        "200 samples of the last 60 seconds of 2 subtasks: 50\u00a0% at work, 25\u00a0% idle, "
        "waiting for input, credit or a timer, 10\u00a0% in other subtasks of the slot, "
        "15\u00a0% in Weir’s own loop."
    )
    assert "only just begun" in icicle.summary(Flames(0.0, []))


def test_the_table_has_calls_by_their_own_time() -> None:
    rows = icicle.table(FLAMES)
    assert [(row["function"], row["own"], row["total"]) for row in rows] == [
        ("parse", "60\u00a0%", "90\u00a0%"),
        ("Sink.on_batch", "30\u00a0%", "30\u00a0%"),
        ("OutputGate.emit", "10\u00a0%", "10\u00a0%"),
    ]
    assert rows[0]["place"] == "orders.py:41"


def test_a_figure_without_work_is_empty() -> None:
    assert drawn(Flames(1.0, [], waiting=7)) == []
