"""The flights as a source that repeats: each round is the same year again, a year later.

Event time therefore always advances, an ``id`` belongs to one flight only, and a position is
(round, row group, row).
"""

import os
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from weir.common.batch import Batch
from weir.datastream.connectors import ParquetSource, SplitReader
from weir.errors import ConfigError

YEAR_MS = (
    365 * 24 * 3_600_000
)  # The length of 2013; a whole number of hours, so windows keep their bounds.
FLIGHTS = 336_776


class ReplayedFlights(ParquetSource):
    """The flights of a Parquet file ``rounds`` times; 0 never ends.

    One subtask reads the whole file, so that the replay keeps the order in which the flights left.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        rounds: int = 1,
        rows_per_second: float | None = None,
    ) -> None:
        super().__init__(path, rows_per_second=rows_per_second, split_by="file")
        if rounds < 0:
            raise ConfigError(f"rounds is {rounds}; it cannot be negative, and 0 never ends")
        self.rounds = rounds
        self.bounded = rounds != 0

    def open(self, split: dict[str, Any], position: Any) -> SplitReader:
        round_index, within = position or (0, None)
        return _ReplayReader(self, split, round_index, within)

    def open_file(self, split: dict[str, Any], position: Any) -> SplitReader:
        """A reader of one round from ``position`` on."""
        return super().open(split, position)


class _ReplayReader(SplitReader):
    def __init__(
        self, source: ReplayedFlights, split: dict[str, Any], round_index: int, within: Any
    ) -> None:
        self._source = source
        self._split = split
        self._round = round_index
        self._file = source.open_file(split, within)

    @property
    def position(self) -> list[Any]:
        return [self._round, self._file.position]

    def read(self, rows_max: int) -> Batch | None:
        batch = self._file.read(rows_max)
        while batch is None:
            if self._round + 1 == self._source.rounds:
                return None
            self._round += 1
            self._file.close()
            self._file = self._source.open_file(self._split, None)
            batch = self._file.read(rows_max)
        return batch if self._round == 0 else Batch.of_columns(later(batch.columns, self._round))

    def close(self) -> None:
        self._file.close()


def later(flights: pa.RecordBatch, years: int) -> pa.RecordBatch:
    """The same flights ``years`` later, under ids of their own."""
    steps = {"id": FLIGHTS, "scheduled_ms": YEAR_MS, "departed_ms": YEAR_MS}
    for name, step in steps.items():
        index = flights.schema.get_field_index(name)
        shifted = pc.add(flights.column(index), step * years)
        flights = flights.set_column(index, flights.schema.field(index), shifted)
    return flights
