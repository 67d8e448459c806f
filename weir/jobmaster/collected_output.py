"""Committed output that reaches the driver: printed lines and collected rows."""

from collections.abc import Callable
from typing import Any

from weir.common.row_codec import decode_rows
from weir.errors import ProtocolError, SchemaError
from weir.graph.logical import JobGraph
from weir.ids import CheckpointId, SubtaskId
from weir.operators.sinks.collect_sink import is_print


class Deliveries:
    """The driver's end of print and collect sinks: prints lines, keeps collected rows."""

    def __init__(
        self, graph: JobGraph, write: Callable[[str], None], *, pickles: bool = False
    ) -> None:
        """Prepare; ``write`` receives every printed line.

        ``pickles``: whether the job allows records that are pickled, which run code in the driver.
        """
        self._pickles = pickles
        self._printing = {op.uid for op in graph.operators if is_print(op.factory)}
        self._write = write
        self.collected: list[Any] = []  # In the order of delivery.

    def collect(self, subtask: SubtaskId, payload: bytes) -> None:
        """Print or keep one delivery.

        Raises:
            ProtocolError: The payload is no delivery of this job.
        """
        try:
            rows = decode_rows(payload, pickles=self._pickles)
        except (ValueError, SchemaError) as error:
            raise ProtocolError(f"{subtask} delivered what cannot be read: {error}") from error
        if subtask.operator in self._printing:
            for line in rows:
                self._write(str(line))
        else:
            self.collected += rows


class DeliveredOnce:
    """Passes each piece of committed output on once, although attempts commit it again."""

    def __init__(self, collect: Callable[[SubtaskId, bytes], None]) -> None:
        self._collect = collect
        self._up_to: dict[SubtaskId, CheckpointId] = {}

    def deliver(self, subtask: SubtaskId, checkpoint_id: CheckpointId, payload: bytes) -> None:
        """A subtask committed this for a checkpoint; 0: the job takes none."""
        if checkpoint_id:
            if checkpoint_id <= self._up_to.get(subtask, 0):
                return  # Delivered by an earlier attempt already.
            self._up_to[subtask] = checkpoint_id
        self._collect(subtask, payload)
