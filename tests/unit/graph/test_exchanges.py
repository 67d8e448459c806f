"""Names of exchanges, and the receivers of records that were under way on them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import edge, graph, node
from weir.graph.exchanges import (
    OVERTAKABLE,
    exchange_name,
    exchanges_of,
    input_name,
    old_receivers,
    output_name,
    output_receiver,
)
from weir.graph.logical import Partitioning
from weir.graph.physical import ExecutionGraph

HASH = Partitioning.HASH


def test_a_name_does_not_change_with_other_edges() -> None:
    nodes = [node("source"), node("source-2"), node("a"), node("b")]
    few = exchanges_of(graph([nodes[0], nodes[2]], [edge("source", "a", HASH)]))
    many = exchanges_of(
        graph(
            nodes,
            [edge("source-2", "b", HASH), edge("a", "b", HASH), edge("source", "a", HASH)],
        )
    )
    assert few[0] == many[2]
    assert len({exchange.name for exchange in many}) == 3


def test_edges_between_the_same_operators_are_told_apart() -> None:
    edges = [
        edge("source", "a", HASH),
        edge("source", "a", HASH),
        edge("source", "a", HASH, input_index=1),
        edge("source", "a", HASH, side_tag="late"),
    ]
    names = [e.name for e in exchanges_of(graph([node("source"), node("a")], edges))]
    assert len(set(names)) == 4


@given(st.lists(st.text(st.sampled_from("a>/+.%0"), min_size=1, max_size=4), min_size=3, max_size=3,
                unique=True))  # fmt: skip
def test_names_of_any_operators_are_told_apart(uids: list[str]) -> None:
    nodes = [node(uids[0], is_source=True), node(uids[1], is_source=True), node(uids[2])]
    edges = [edge(uids[0], uids[2], HASH), edge(uids[1], uids[2], HASH)]
    one, other = exchanges_of(graph(nodes, edges))
    assert one.name != other.name
    for name in (input_name(one, 7), output_name(one, 7)):
        assert exchange_name(name) == one.name
    assert output_receiver(input_name(one, 7)) is None
    assert output_receiver(output_name(one, 7)) == 7


def test_the_name_of_a_long_uid_is_short() -> None:
    long = "a" * 4_000
    nodes, edges = [node("source"), node(long)], [edge("source", long, HASH)]
    (exchange,) = exchanges_of(graph(nodes, edges))
    assert len(exchange.name) < 100
    assert exchange.target == long


def test_an_edge_within_a_chain_has_no_channels() -> None:
    plan = ExecutionGraph(
        graph(
            [node("source"), node("map"), node("sink")],
            [edge("source", "map"), edge("map", "sink", HASH)],
        )
    )
    assert [e.target for e in plan.exchanges] == ["map", "sink"]
    assert [e.target for e in plan.open_exchanges] == ["sink"]


@pytest.mark.parametrize("partitioning", sorted(set(Partitioning) - OVERTAKABLE))
def test_without_a_rule_records_stay_where_they_were(partitioning: Partitioning) -> None:
    assert old_receivers(partitioning, 1, 3, 3, 128) == (1,)
    with pytest.raises(ValueError, match="cannot move"):
        old_receivers(partitioning, 1, 3, 2, 128)


def test_each_rule_of_the_table() -> None:
    def table(partitioning: Partitioning, new: int, old: int) -> list[list[int]]:
        return [list(old_receivers(partitioning, i, new, old, 128)) for i in range(new)]

    assert table(Partitioning.REBALANCE, 2, 5) == [[0, 2, 4], [1, 3]]
    assert table(Partitioning.SHUFFLE, 3, 2) == [[0], [1], []]
    assert table(Partitioning.GLOBAL, 2, 3) == [[0, 1, 2], []]
    assert table(HASH, 3, 2) == [[0], [0, 1], [1]]
    assert table(HASH, 2, 3) == [[0, 1], [1, 2]]
