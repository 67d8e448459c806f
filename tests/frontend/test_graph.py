"""The operator graph: where it is drawn, and what it shows of a moment."""

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from frontend import graph_layout
from frontend.graph_layout import Box, Line, layout

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
