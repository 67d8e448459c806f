"""The refusals of a job graph, and the order in which it hands its operators out."""

from collections.abc import Sequence

import pytest

from tests.builders import edge, graph, node
from weir.errors import GraphError
from weir.graph.logical import Edge, Operator, Partitioning


def test_every_operator_comes_after_the_ones_that_feed_it() -> None:
    diamond = graph(
        [node("join"), node("left"), node("right"), node("source")],
        [
            edge("source", "right"),
            edge("source", "left"),
            edge("left", "join"),
            edge("right", "join", input_index=1),
        ],
    )
    order = diamond.topological()
    assert order[0] == "source"
    assert order[-1] == "join"
    assert sorted(order) == ["join", "left", "right", "source"]


def test_an_operator_is_found_by_its_uid() -> None:
    assert graph([node("source", 3)]).operator(node("source").uid).parallelism == 3


@pytest.mark.parametrize(
    ("operators", "edges", "message"),
    [
        ([node("source"), node("source")], [], "uid used twice: source"),
        ([node("map")], [edge("map", "map")], "no source"),
        ([node("source")], [edge("source", "gone")], "names the operator gone"),
        ([node("source"), node("map")], [], "the operator map has no input"),
        (
            [node("source"), node("source2")],
            [edge("source", "source2")],
            "the source source2 cannot have an input",
        ),
        (
            [node("source", 2), node("map", 3)],
            [edge("source", "map")],
            r"forward from source \(parallelism 2\) to map \(3\) needs equal parallelism",
        ),
        (
            [node("source"), node("a"), node("b")],
            [edge("source", "a"), edge("a", "b"), edge("b", "a", input_index=1)],
            "the pipeline has a cycle: .*a.*b",
        ),
    ],
    ids=["uid twice", "no source", "edge to nowhere", "no input", "fed source", "forward", "cycle"],
)
def test_a_graph_that_cannot_run_is_refused_by_name(
    operators: Sequence[Operator], edges: Sequence[Edge], message: str
) -> None:
    with pytest.raises(GraphError, match=message):
        graph(operators, edges)


def test_only_forward_edges_need_equal_parallelism() -> None:
    for partitioning in set(Partitioning) - {Partitioning.FORWARD}:
        graph([node("source", 2), node("map", 3)], [edge("source", "map", partitioning)])
