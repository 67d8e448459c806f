"""Committed output that reaches the driver: what sinks print, and what they collect."""

import pickle
from collections.abc import Callable
from typing import Any

from weir.graph.logical import JobGraph
from weir.ids import SubtaskId
from weir.operators.sinks.collect_sink import is_print


class Deliveries:
    """Sorts what subtasks deliver by the operator that did."""

    def __init__(self, graph: JobGraph, write: Callable[[str], None]) -> None:
        """``write`` gets every printed line."""
        self._printing = {op.uid for op in graph.operators if is_print(op.factory)}
        self._write = write
        self.collected: list[Any] = []  # In the order of delivery.

    def collect(self, subtask: SubtaskId, payload: bytes) -> None:
        """Take in one delivery.

        It was pickled by a worker of this job, which proved to know the attempt's secret.
        """
        rows = pickle.loads(payload)
        if subtask.operator in self._printing:
            for line in rows:
                self._write(line)
        else:
            self.collected += rows
