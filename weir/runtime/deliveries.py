"""Committed output that reaches the driver: what sinks print, and what they collect."""

import pickle
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from weir.graph.logical import JobGraph
from weir.ids import OperatorId, SubtaskId
from weir.operators.collect_sink import is_print


class Deliveries:
    """Sorts what subtasks deliver by the operator that did."""

    def __init__(self, graph: JobGraph, write: Callable[[str], None]) -> None:
        """``write`` gets every printed line."""
        self._printing = {op.uid for op in graph.operators if is_print(op.factory)}
        self._write = write
        self._collected: dict[OperatorId, list[Any]] = defaultdict(list)

    def collect(self, subtask: SubtaskId, payload: bytes) -> None:
        """Take in one delivery.

        It was pickled by a worker of this job, which proved to know the attempt's secret.
        """
        rows = pickle.loads(payload)
        if subtask.operator in self._printing:
            for line in rows:
                self._write(line)
        else:
            self._collected[subtask.operator] += rows

    @property
    def collected(self) -> Mapping[OperatorId, Sequence[Any]]:
        """What collecting sinks delivered, by their uid, in the order of delivery."""
        return dict(self._collected)

    def count(self) -> int:
        """How many records were collected."""
        return sum(map(len, self._collected.values()))
