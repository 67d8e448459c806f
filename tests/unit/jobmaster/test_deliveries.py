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
from weir.ids import CheckpointId
from weir.jobmaster.collected_output import PRINTED_MAX, Deliveries
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

ONE = CheckpointId(1)


def test_lines_are_written_and_records_kept_each_in_order() -> None:
    lines: list[str] = []
    deliveries = Deliveries(JOB, lines.append)
    deliveries.collect(subtask("print-0"), ONE, encode_rows(["out> 1", "out> 2"]))
    deliveries.collect(subtask("collect-1"), ONE, encode_rows([(1, "a")]))
    deliveries.collect(subtask("collect-0"), ONE, encode_rows([(2, "b"), (3, "c")]))
    assert lines == ["out> 1", "out> 2"]
    assert deliveries.collected == [(1, "a"), (2, "b"), (3, "c")]


def test_rows_that_come_again_are_taken_back_and_lines_are_counted() -> None:
    lines: list[str] = []
    deliveries = Deliveries(JOB, lines.append)
    for number in (1, 2, 1, 3):  # The rows of one checkpoint need not come in a row.
        named = [f"{number}a", f"{number}b"]
        for sink in ("print-0", "collect-0", "collect-1"):
            deliveries.collect(subtask(sink), CheckpointId(number), encode_rows(named))
    kept = deliveries.collected
    assert deliveries.take_back(lambda number: number in (2, 3)) == 4
    assert deliveries.collected is kept
    assert deliveries.collected == ["1a", "1b"] * 4
    assert len(lines) == 8, "what is printed stays printed"
    assert deliveries.take_back(lambda number: number in (2, 3)) == 0
    assert deliveries.take_back(lambda number: True) == 4
    assert deliveries.collected == []


def test_lines_of_a_job_that_prints_for_ever_take_no_memory() -> None:
    deliveries = Deliveries(JOB, lambda line: None)
    line = encode_rows(["line"])
    for number in range(1, PRINTED_MAX + 11):
        deliveries.collect(subtask("print-0"), CheckpointId(number), line)
    assert deliveries.take_back(lambda number: True) == PRINTED_MAX


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
            deliveries.collect(subtask("collect-0"), ONE, payload)
    assert not Attack.ran
    assert deliveries.collected == []
    allowed = Deliveries(JOB, print, pickles=True)
    allowed.collect(subtask("collect-0"), ONE, encode_rows([Attack()], pickles=True))
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
