"""Committed output that reaches the driver: printed lines and collected rows."""

import pickle
from collections.abc import Callable
from typing import Any

from weir.graph.logical import JobGraph
from weir.ids import SubtaskId
from weir.operators.sinks.collect_sink import is_print


class Deliveries:
    """The driver's end of print and collect sinks: prints lines, keeps collected rows."""

    def __init__(self, graph: JobGraph, write: Callable[[str], None]) -> None:
        """Prepare; ``write`` receives every printed line."""
        self._printing = {op.uid for op in graph.operators if is_print(op.factory)}
        self._write = write
        self.collected: list[Any] = []  # In the order of delivery.

    def collect(self, subtask: SubtaskId, payload: bytes) -> None:
        """Print or keep one delivery.

        Unpickling is safe: a worker of this job made it, which proved to know the attempt's secret.
        """
        rows = pickle.loads(payload)
        if subtask.operator in self._printing:
            for line in rows:
                self._write(line)
        else:
            self.collected += rows
