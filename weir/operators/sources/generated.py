"""Sources that make their own records: a collection, a range of numbers, a generator."""

import operator
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from weir.common.batch import Batch
from weir.common.column_types import fit_columns
from weir.common.ownership import IMMUTABLE, own
from weir.common.signatures import mismatch
from weir.common.typeinfo import TypeInformation, Types
from weir.errors import ConfigError, SchemaError, SourceChangedError, WeirError
from weir.operators.hand_over import keeps_nothing
from weir.operators.sources.split_source import Source, SplitReader
from weir.operators.user_code import failure_in, short_repr


class CollectionSource(Source):
    """The records of a list, in order; they travel with the pipeline, so keep them few.

    One subtask reads the whole list, to keep its order.
    """

    def __init__(
        self,
        rows: Iterable[Any],
        type_info: TypeInformation | None = None,
        *,
        rows_per_second: float | None = None,
    ) -> None:
        super().__init__(rows_per_second)
        self.rows = list(rows)
        if type_info is not None:
            self.rows = _normal(self.rows, type_info)
        self.type_info = type_info

    def discover(self, parallelism: int) -> list[dict[str, Any]]:
        return [{"rows": len(self.rows)}] if self.rows else []

    def open(self, split: dict[str, Any], position: Any) -> SplitReader:
        if split["rows"] != len(self.rows):
            raise SourceChangedError(
                f"the collection had {split['rows']} records when the checkpoint was taken and "
                f"has {len(self.rows)} now; restore with the same collection, or start afresh"
            )
        return _CollectionReader(self.rows, self.type_info, position or 0)


def _normal(rows: list[Any], kind: TypeInformation) -> list[Any]:
    """The records as the declared type gives them back.

    Raises:
        SchemaError: One does not fit; the message names it and its place.
    """
    try:
        return kind.normalise_all(rows)
    except SchemaError:
        normalise = kind.normaliser()
        for number, row in enumerate(rows, 1):
            try:
                normalise(row)
            except SchemaError as error:
                raise SchemaError(
                    f"record {number} of the collection, {short_repr(row)}, does not fit its "
                    f"type: {error}"
                ) from None
        raise


class _CollectionReader(SplitReader):
    def __init__(self, rows: list[Any], type: TypeInformation | None, index: int) -> None:
        self._rows = rows
        self._type = type
        self._index = index

    @property
    def position(self) -> int:
        return self._index

    def read(self, rows_max: int) -> Batch | None:
        rows = self._rows[self._index : self._index + rows_max]
        self._index += len(rows)
        # Copies: this process may read the collection once more.
        return Batch.of_rows(rows, self._type).copied() if rows else None


class NumberSequenceSource(Source):
    """The integers from ``start`` to ``end``, both included.

    Each subtask reads one contiguous range, in order.
    """

    def __init__(self, start: int, end: int, *, rows_per_second: float | None = None) -> None:
        super().__init__(rows_per_second)
        if not isinstance(start, int) or not isinstance(end, int):
            raise ConfigError(f"a number sequence has whole numbers, not {start!r} and {end!r}")
        if end < start:
            raise ConfigError(f"the sequence ends at {end}, before its start {start}")
        self.start = start
        self.end = end
        self.type_info = Types.LONG()

    def discover(self, parallelism: int) -> list[dict[str, Any]]:
        count = self.end - self.start + 1
        parts = min(parallelism, count)
        bounds = [self.start + count * i // parts for i in range(parts + 1)]
        return [{"next": bounds[i], "end": bounds[i + 1]} for i in range(parts)]

    def open(self, split: dict[str, Any], position: Any) -> SplitReader:
        start = split["next"] if position is None else position
        return _NumberReader(start, split["end"], self.type_info)


class _NumberReader(SplitReader):
    def __init__(self, start: int, end: int, type: TypeInformation | None) -> None:
        self._next = start
        self._end = end  # Excluded.
        self._type = type

    @property
    def position(self) -> int:
        return self._next

    def read(self, rows_max: int) -> Batch | None:
        stop = min(self._end, self._next + rows_max)
        if stop == self._next:
            return None
        numbers = pa.array(np.arange(self._next, stop, dtype=np.int64))
        self._next = stop
        return Batch.of_columns(pa.record_batch([numbers], names=["value"]), self._type)


class DataGeneratorSource(Source):
    """Records that a function makes from their index: 0, 1, 2 and so on.

    The function must make the same record of an index every time: a restored job relies on it.
    Without ``vectorised`` it takes one index and returns one record; with it, it takes an int64
    array and returns a ``pyarrow.RecordBatch`` of as many rows. ``count=None`` never ends. Of p
    subtasks, subtask i makes the records i, i + p, i + 2p …
    """

    def __init__(
        self,
        function: Callable[[Any], Any],
        count: int | None = None,
        rows_per_second: float | None = None,
        *,
        vectorised: bool = False,
        type_info: TypeInformation | None = None,
    ) -> None:
        super().__init__(rows_per_second)
        if count is not None and count < 0:
            raise ConfigError(f"count is {count}; it cannot be negative, and None never ends")
        if not callable(function) or (takes := mismatch(function, 1)) is not None:
            got = f"{function!r}" if not callable(function) else f"one that takes {takes}"
            raise ConfigError(
                f"DataGeneratorSource takes a function of one index, not {got}: lambda index: ..."
            )
        self.function = function
        self.count = count
        self.vectorised = vectorised
        self.type_info = type_info
        self.bounded = count is not None

    def discover(self, parallelism: int) -> list[dict[str, Any]]:
        parts = parallelism if self.count is None else min(parallelism, self.count)
        return [{"first": i, "stride": parts, "count": self.count} for i in range(parts)]

    def open(self, split: dict[str, Any], position: Any) -> SplitReader:
        return _GeneratorReader(self, split, split["first"] if position is None else position)


class _GeneratorReader(SplitReader):
    def __init__(self, source: DataGeneratorSource, split: dict[str, Any], index: int) -> None:
        self._source = source
        self._stride: int = split["stride"]
        self._count: int | None = split["count"]
        self._index = index
        self._keeps_nothing = keeps_nothing(source.function)

    @property
    def position(self) -> int:
        return self._index

    def read(self, rows_max: int) -> Batch | None:
        stop = self._index + rows_max * self._stride
        if self._count is not None:
            stop = min(stop, self._count)
        indices = range(self._index, stop, self._stride)
        if not indices:
            return None
        batch = self._make(indices)
        self._index = indices[-1] + self._stride
        return batch

    def _make(self, indices: range) -> Batch:
        function, type_info = self._source.function, self._source.type_info
        if not self._source.vectorised:
            return Batch.of_rows(self._rows(function, indices), type_info)
        array: npt.NDArray[np.int64] = np.arange(
            indices.start, indices.stop, indices.step, dtype=np.int64
        )
        columns = function(array)
        if not isinstance(columns, pa.RecordBatch) or columns.num_rows != len(indices):
            made = columns.num_rows if isinstance(columns, pa.RecordBatch) else columns
            raise ConfigError(
                f"a vectorised generator must return a RecordBatch of as many rows as it was given "
                f"indices: {len(indices)} were given, it returned {made!r}"
            )
        return Batch.of_columns(
            columns if type_info is None else fit_columns(columns, type_info), type_info
        )

    def _rows(self, function: Callable[[Any], Any], indices: range) -> list[Any]:
        kind, left = self._source.type_info, iter(indices)
        try:
            if self._keeps_nothing:
                rows = [function(index) for index in left]
            else:  # Copied before it is called again: it may return the same object each time.
                rows = [v if type(v := function(i)) in IMMUTABLE else own(v) for i in left]
        except SchemaError as error:
            raise SchemaError(f"the generator's record {_last(indices, left)}: {error}") from error
        except WeirError:
            raise
        except Exception as error:
            where = f"on the index {_last(indices, left)}"
            raise failure_in("the generator function", where, error) from error
        return rows if kind is None else _fitted(rows, indices, kind)


def _fitted(rows: list[Any], indices: range, kind: TypeInformation) -> list[Any]:
    """The records as what is declared."""
    try:
        return kind.normalise_all(rows)
    except SchemaError:
        normalise = kind.normaliser()
        for index, row in zip(indices, rows, strict=True):
            try:
                normalise(row)
            except SchemaError as error:
                raise SchemaError(f"the generator's record {index}: {error}") from error
        raise


def _last(indices: range, left: Iterator[int]) -> int:
    """The index that was taken last."""
    return indices[len(indices) - operator.length_hint(left) - 1]
