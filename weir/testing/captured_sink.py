"""The sink that keeps records for a test, in place of one of the pipeline's.

It commits as ``execute_and_collect`` does: records wait for the checkpoint that covers them. They
stay the very objects that reached the sink, of any class; what travels is their numbers.
"""

from typing import Any

from weir.common.batch import Batch
from weir.operators.sinks.collect_sink import DeliverOperator


class CapturedSinkOperator(DeliverOperator):
    """Keeps each record in ``kept`` and delivers its index there."""

    def __init__(self, kept: list[Any]) -> None:
        self._kept = kept

    def convert(self, batch: Batch) -> list[Any]:
        first = len(self._kept)
        self._kept += batch.rows
        return list(range(first, len(self._kept)))

    def freeze(self, rows: list[Any]) -> Any:
        return rows

    def thaw(self, frozen: Any) -> list[Any]:
        return list(frozen)

    @property
    def uncommitted(self) -> list[int]:
        """The records that no completed checkpoint covers yet."""
        return list(self._rows)  # At rest no checkpoint is under way, for which others would wait.
