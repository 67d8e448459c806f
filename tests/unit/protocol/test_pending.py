"""The plan of a checkpoint as it follows from an execution graph."""

from typing import Any

import pytest

from tests.builders import plan, subtask, subtasks
from weir.errors import ProtocolError
from weir.graph.logical import Edge, JobGraph, Operator, Partitioning
from weir.graph.physical import ExecutionGraph
from weir.ids import OperatorId
from weir.protocol.pending import CheckpointPlan, SubtaskRange


def execution_graph(partitioning: Partitioning, *, sinks: int = 2) -> ExecutionGraph:
    def operator(uid: str, parallelism: int, **kwargs: Any) -> Operator:
        return Operator(OperatorId(uid), uid, parallelism, factory=None, **kwargs)

    source, parse, sink = OperatorId("source"), OperatorId("parse"), OperatorId("sink")
    return ExecutionGraph(
        JobGraph(
            "job",
            (
                operator("source", 2, is_source=True),
                operator("parse", 2),
                operator("sink", sinks, is_sink=True),
            ),
            (Edge(source, parse), Edge(parse, sink, partitioning)),
        )
    )


def test_the_plan_of_a_graph_names_its_chains_their_feeders_and_its_sinks() -> None:
    assert CheckpointPlan.for_graph(execution_graph(Partitioning.HASH)) == plan()


@pytest.mark.parametrize("chain", ["sink-2", "nothing-0"])
def test_a_subtask_outside_the_plan_has_no_operators(chain: str) -> None:
    assert plan().operators_of(subtask("sink-1")) == {subtask("sink-1")}
    with pytest.raises(ProtocolError, match=chain):
        plan().operators_of(subtask(chain))


def test_pointwise_edges_name_only_the_subtasks_that_feed() -> None:
    planned = CheckpointPlan.for_graph(execution_graph(Partitioning.RESCALE, sinks=4))
    source = OperatorId("source")
    assert planned.chains[1].upstream == (
        (SubtaskRange(source, 0, 0),),
        (SubtaskRange(source, 0, 0),),
        (SubtaskRange(source, 1, 1),),
        (SubtaskRange(source, 1, 1),),
    )
    assert planned.without(subtask("source-0")).entries() == (
        subtask("source-1"),
        subtask("sink-0"),
        subtask("sink-1"),
    )


def test_every_operator_subtask_that_runs_must_acknowledge() -> None:
    assert plan().to_acknowledge() == subtasks(
        "source-0", "parse-0", "source-1", "parse-1", "sink-0", "sink-1"
    )
    assert plan(finished=("source-1",)).to_acknowledge() == subtasks(
        "source-0", "parse-0", "sink-0", "sink-1"
    )
