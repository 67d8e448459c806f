"""``BlackHoleSink``: a sink that counts and drops its records."""

from collections.abc import Callable

from weir.common.batch import Batch
from weir.operators.base import Operator
from weir.operators.sinks.pending_commits import Sink


class BlackHoleSink(Sink):
    """Counts and drops records; for measuring the pipeline before it."""

    def create_operator_factory(self) -> Callable[[], Operator]:
        return BlackHoleOperator


class BlackHoleOperator(Operator):
    """Counts records; the count belongs to this process and is not part of a snapshot."""

    def __init__(self) -> None:
        self.count = 0

    @property
    def carries_watermarks(self) -> bool:
        return True

    def on_batch(self, batch: Batch, input_index: int) -> None:
        self.count += len(batch)
