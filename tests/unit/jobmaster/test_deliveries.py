"""Committed output at the driver."""

import pickle
from typing import Any

import pytest

from tests.builders import edge, graph, node, subtask
from tests.unit.operators.operator_harness import ManualClock
from tests.unit.worker.subtask_harness import JOB as JOB_ID
from tests.unit.worker.subtask_harness import context
from weir.common.row_codec import encode_rows
from weir.errors import ProtocolError
from weir.jobmaster.collected_output import Deliveries
from weir.operators.sinks.collect_sink import CollectSink, PrintSink
from weir.worker.chain_output import ChainOutput, Targets

JOB = graph(
    [
        node("source"),
        node("print", factory=PrintSink("out").create_operator_factory()),
        node("collect", factory=CollectSink().create_operator_factory()),
    ],
    [edge("source", "print"), edge("source", "collect")],
)


def test_lines_are_written_and_records_kept_each_in_order() -> None:
    lines: list[str] = []
    deliveries = Deliveries(JOB, lines.append)
    deliveries.collect(subtask("print-0"), encode_rows(["out> 1", "out> 2"]))
    deliveries.collect(subtask("collect-1"), encode_rows([(1, "a")]))
    deliveries.collect(subtask("collect-0"), encode_rows([(2, "b"), (3, "c")]))
    assert lines == ["out> 1", "out> 2"]
    assert deliveries.collected == [(1, "a"), (2, "b"), (3, "c")]


class Attack:
    """A pickle that runs code where it is read."""

    ran = False

    def __reduce__(self) -> tuple[Any, ...]:
        return setattr, (Attack, "ran", True)


def test_a_slot_cannot_run_code_in_the_driver() -> None:
    """A delivery was a pickle, which the driver read."""
    deliveries = Deliveries(JOB, print)
    for payload in (pickle.dumps([Attack()]), encode_rows([Attack()], pickles=True)):
        with pytest.raises(ProtocolError, match="collect-0 delivered what cannot be read"):
            deliveries.collect(subtask("collect-0"), payload)
    assert not Attack.ran
    assert deliveries.collected == []
    allowed = Deliveries(JOB, print, pickles=True)
    allowed.collect(subtask("collect-0"), encode_rows([Attack()], pickles=True))
    assert Attack.ran  # The occasion arose.


def test_rows_of_several_old_subtasks_are_delivered_together_after_rescaling() -> None:
    """The job master takes each checkpoint id of a subtask once: a second piece would be lost."""
    delivered: list[tuple[int, list[str]]] = []
    ctx = context(ChainOutput(Targets()), ManualClock())
    ctx.deliver = lambda checkpoint_id, rows: delivered.append((checkpoint_id, rows))
    ctx.state.list_state("undelivered", "split").update(
        {"job": job, "checkpoint": checkpoint_id, "rows": [line]}
        for job, checkpoint_id, line in (
            (JOB_ID, 5, "a5"),
            (JOB_ID, 6, "a6"),
            (JOB_ID, 5, "b5"),
            (JOB_ID, 6, "b6"),
            ("other", 6, "a fork's"),
        )
    )
    PrintSink().create_operator_factory()().open(ctx)
    assert delivered == [(5, ["a5", "b5"]), (6, ["a6", "b6"])]
