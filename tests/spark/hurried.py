"""A source that keeps its rate until it is told to hurry.

What is done to a job takes as long as the machine lets it, so its input must not run out before;
afterwards the rest should come at once. Apart from the functions, because slots import it.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from weir.datastream.connectors import DataGeneratorSource
from weir.operators.base import Poll, SourceOperator
from weir.operators.sources.split_source import SplitSourceOperator

LOOK_EVERY_MS = 200


class HurriedSource(DataGeneratorSource):
    """Generates ``rate`` records a second; as fast as it can once the file ``hurry`` is there."""

    def __init__(
        self, function: Callable[[int], Any], count: int, rate: float, hurry: Path
    ) -> None:
        super().__init__(function, count, rate)
        self.hurry = hurry

    def create_operator_factory(self, parallelism: int) -> Callable[[], SourceOperator]:
        """As any source's."""
        return partial(_HurriedOperator, self, self.discover(parallelism))


class _HurriedOperator(SplitSourceOperator):
    def __init__(self, source: HurriedSource, splits: list[dict[str, Any]]) -> None:
        super().__init__(source, splits)
        self._hurry = source.hurry
        self._look_ms = 0

    def poll(self, records_max: int) -> Poll:
        now_ms = self.ctx.clock.now_ms()
        if self._rate is not None and now_ms >= self._look_ms:
            self._look_ms = now_ms + LOOK_EVERY_MS
            if self._hurry.exists():
                self._rate = None
        return super().poll(records_max)
