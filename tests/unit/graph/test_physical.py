"""Chains, channels and gates, as driver and slots both derive them."""

import pytest

from tests.builders import edge, graph, node, subtask
from weir.graph.logical import Chaining, Partitioning
from weir.graph.physical import ExecutionGraph
from weir.ids import OperatorId

WORDS = graph(
    [node("source", 2), node("parse", 2), node("count", 3), node("sink", 3)],
    [
        edge("source", "parse"),
        edge("parse", "count", Partitioning.HASH),
        edge("count", "sink"),
    ],
)


def pairs(partitioning: Partitioning, senders: int, receivers: int) -> list[tuple[int, int]]:
    joined = graph(
        [node("source", senders), node("sink", receivers, chaining=Chaining.HEAD)],
        [edge("source", "sink", partitioning)],
    )
    return [(c.sender.index, c.receiver.index) for c in ExecutionGraph(joined).channels]


def test_forward_edges_make_a_chain() -> None:
    plan = ExecutionGraph(WORDS)
    assert [chain.operators for chain in plan.chains] == [("source", "parse"), ("count", "sink")]
    assert plan.chain_of(OperatorId("parse")).head == "source"
    assert [len(chain.inner_edges) for chain in plan.chains] == [1, 1]


def test_a_job_needs_as_many_slots_as_its_highest_parallelism() -> None:
    assert ExecutionGraph(WORDS).slot_count == 3


def test_subtasks_are_named_by_chain_operator_source_and_sink() -> None:
    plan = ExecutionGraph(WORDS)
    assert list(map(str, plan.chain_subtasks)) == [
        "source-0", "source-1", "count-0", "count-1", "count-2",
    ]  # fmt: skip
    assert len(plan.operator_subtasks) == 10
    assert list(map(str, plan.source_subtasks)) == ["source-0", "source-1"]
    assert list(map(str, plan.sink_subtasks)) == ["sink-0", "sink-1", "sink-2"]


def test_channels_are_numbered_densely_and_alike_wherever_they_are_derived() -> None:
    channels = ExecutionGraph(WORDS).channels
    assert [channel.id for channel in channels] == list(range(6))
    assert channels == ExecutionGraph(WORDS).channels


def test_gates_hold_their_channels_in_order_of_the_other_end() -> None:
    plan = ExecutionGraph(WORDS)
    (inputs,) = plan.inputs[subtask("count-1")]
    assert [str(channel.sender) for channel in inputs] == ["source-0", "source-1"]
    assert [channel.receiver_index for channel in inputs] == [0, 1]
    (outputs,) = plan.outputs[subtask("source-1")]
    assert [str(channel.receiver) for channel in outputs] == ["count-0", "count-1", "count-2"]
    assert [channel.sender_index for channel in outputs] == [0, 1, 2]


def test_two_edges_between_the_same_operators_are_two_gates() -> None:
    plan = ExecutionGraph(
        graph(
            [node("source"), node("join")],
            [
                edge("source", "join", Partitioning.HASH),
                edge("source", "join", Partitioning.HASH, input_index=1),
            ],
        )
    )
    assert [len(gate) for gate in plan.inputs[subtask("join-0")]] == [1, 1]
    assert [len(gate) for gate in plan.outputs[subtask("source-0")]] == [1, 1]


@pytest.mark.parametrize(
    ("upstream", "downstream"),
    [(Chaining.NEVER, Chaining.ALWAYS), (Chaining.ALWAYS, Chaining.HEAD)],
)
def test_chaining_can_be_refused_at_either_end(upstream: Chaining, downstream: Chaining) -> None:
    plan = ExecutionGraph(
        graph(
            [node("source", chaining=upstream), node("map", chaining=downstream)],
            [edge("source", "map")],
        )
    )
    assert len(plan.chains) == 2
    assert len(plan.channels) == 1


def test_an_operator_with_two_inputs_starts_a_chain() -> None:
    plan = ExecutionGraph(
        graph(
            [node("source"), node("source2"), node("union")],
            [edge("source", "union"), edge("source2", "union")],
        )
    )
    assert len(plan.chains) == 3


def test_a_chain_may_branch() -> None:
    plan = ExecutionGraph(
        graph(
            [node("source"), node("main"), node("late")],
            [edge("source", "main"), edge("source", "late", side_tag="late")],
        )
    )
    assert [chain.operators for chain in plan.chains] == [("source", "main", "late")]


@pytest.mark.parametrize(
    ("senders", "receivers", "joined"),
    [
        (2, 4, [(0, 0), (0, 1), (1, 2), (1, 3)]),
        (4, 2, [(0, 0), (1, 0), (2, 1), (3, 1)]),
        (2, 3, [(0, 0), (0, 1), (1, 2)]),
        (3, 2, [(0, 0), (1, 0), (2, 1)]),
    ],
)
def test_rescale_joins_neighbours_only(
    senders: int, receivers: int, joined: list[tuple[int, int]]
) -> None:
    assert pairs(Partitioning.RESCALE, senders, receivers) == joined


def test_forward_joins_equals_and_everything_else_joins_all_to_all() -> None:
    assert pairs(Partitioning.FORWARD, 3, 3) == [(0, 0), (1, 1), (2, 2)]
    others = set(Partitioning) - {Partitioning.FORWARD, Partitioning.RESCALE}
    for partitioning in others:
        assert pairs(partitioning, 2, 2) == [(0, 0), (0, 1), (1, 0), (1, 1)]
