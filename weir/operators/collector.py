"""Collects the records that a process function yields, with their event times, by output."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from weir.common.batch import Batch, Timestamps
from weir.common.ownership import IMMUTABLE
from weir.common.typeinfo import TypeInformation
from weir.operators.base import OperatorContext
from weir.operators.hand_over import HandOver
from weir.operators.output_tag import OutputTag


class Collector:
    """Collects the records that a process function yields, by output, until ``flush`` emits them.

    Order within each output is the order of yielding.
    """

    def __init__(self, ctx: OperatorContext, output_type: TypeInformation | None) -> None:
        self._ctx = ctx
        self._hand_over = HandOver(ctx, output_type)
        self._main: list[Any] = []
        self._main_times: list[int | None] = []
        self._sides: dict[str, _Side] = {}

    def __len__(self) -> int:
        return len(self._main)

    def take(self, yielded: Iterable[Any], timestamp: int | None) -> None:
        """Keep all ``yielded`` records with this event time."""
        main, times, own = self._main, self._main_times, self._hand_over.own
        for value in yielded:
            if type(value) is tuple:
                for item in value:  # Most often there is nothing to copy and no tag.
                    if type(item) not in IMMUTABLE:
                        break
                else:
                    main.append(value)
                    times.append(timestamp)
                    continue
                if len(value) == 2 and isinstance(value[0], OutputTag):
                    self._side(value[0]).take(value[1], timestamp)
                    continue
            main.append(value if own is None or type(value) in IMMUTABLE else own(value))
            times.append(timestamp)

    def mark(self) -> tuple[int, dict[str, int]]:
        """The number of records kept so far, by output, for ``withdraw``."""
        return len(self._main), {tag: len(side.rows) for tag, side in self._sides.items()}

    def withdraw(self, mark: tuple[int, dict[str, int]]) -> None:
        """Drop the records that were kept since ``mark``."""
        main, sides = mark
        del self._main[main:], self._main_times[main:]
        for tag, side in self._sides.items():
            side.withdraw(sides.get(tag, 0))

    def flush(self) -> None:
        """Emit the records that were kept.

        Raises:
            SchemaError: A record does not fit the declared type of its output.
        """
        if self._main:
            rows, times = self._main, self._main_times
            self._main, self._main_times = [], []
            self._ctx.output.emit(self._hand_over.batch(rows, timestamps_of(times)))
        for side in self._sides.values():
            if side.rows:
                self._ctx.output.emit_side(side.tag.tag_id, side.taken())

    def _side(self, tag: OutputTag) -> "_Side":
        side = self._sides.get(tag.tag_id)
        if side is None:
            side = self._sides[tag.tag_id] = _Side(tag, HandOver(self._ctx, tag.type_info))
        return side


class _Side:
    """The records for one side output."""

    def __init__(self, tag: OutputTag, hand_over: HandOver) -> None:
        self.tag = tag
        self.rows: list[Any] = []
        self._times: list[int | None] = []
        self._hand_over = hand_over

    def take(self, value: Any, timestamp: int | None) -> None:
        own = self._hand_over.own
        self.rows.append(value if own is None else own(value))
        self._times.append(timestamp)

    def withdraw(self, count: int) -> None:
        """Drop all records but the first ``count``."""
        del self.rows[count:], self._times[count:]

    def taken(self) -> Batch:
        """Take out all records, as a batch."""
        rows, times = self.rows, self._times
        self.rows, self._times = [], []
        return self._hand_over.batch(rows, timestamps_of(times))


def times_of(batch: Batch) -> list[int | None]:
    """The event time of every record; all None if the batch has none."""
    if batch.timestamps is None:
        return [None] * len(batch)
    times: list[int | None] = batch.timestamps.tolist()
    return times


def timestamps_of(times: list[int | None]) -> Timestamps | None:
    """The times as an array; None: a record has no time, so the batch gets none."""
    if not times or None in times:
        return None
    return np.array(times, np.int64)
