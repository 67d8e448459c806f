"""Committed output at the driver."""

import pickle

from tests.builders import edge, graph, node, subtask
from weir.operators.collect_sink import CollectSink, PrintSink
from weir.runtime.deliveries import Deliveries

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
    deliveries.collect(subtask("print-0"), pickle.dumps(["out> 1", "out> 2"]))
    deliveries.collect(subtask("collect-1"), pickle.dumps([(1, "a")]))
    deliveries.collect(subtask("collect-0"), pickle.dumps([(2, "b"), (3, "c")]))
    assert lines == ["out> 1", "out> 2"]
    assert deliveries.collected == [(1, "a"), (2, "b"), (3, "c")]
