"""The batch of records, as Python rows and as Arrow columns.

Per-record functions read rows, vectorised ones read columns; a batch converts itself when the other
form is read and keeps the result. Rows need a declared type, or rows that carry field names, to
become columns.
"""

import pickle
from collections.abc import Iterator, Sequence
from typing import Any, Self

import cloudpickle
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from weir.common.inferred_schema import InferredSchema
from weir.common.ownership import own_rows
from weir.common.row import rows_of
from weir.common.typeinfo import RowTypeInfo, TypeInformation
from weir.common.watermarks import Watermarks

Timestamps = npt.NDArray[np.int64]
Indices = npt.NDArray[np.int64]


class Batch:
    """Records in order, with their event times where those were assigned.

    ``is_columnar`` tells the form in which the records were made. The other form is a conversion,
    which never takes its place: a record does not depend on earlier readers of the batch.

    ``watermarks`` are those between the records. Slicing, ``share`` and ``concat`` keep them; a
    batch that is made of others in any other way has none unless its maker places them.

    Shape: ``timestamps`` is None or holds one int64 per record, milliseconds since the epoch.
    """

    __slots__ = ("_columns", "_rows", "_size", "is_columnar", "timestamps", "type", "watermarks")

    def __init__(
        self,
        *,
        rows: list[Any] | None = None,
        columns: pa.RecordBatch | None = None,
        type: TypeInformation | None = None,
        timestamps: Timestamps | None = None,
        watermarks: Watermarks | None = None,
    ) -> None:
        self._rows = rows
        self._columns = columns
        self._size = -1
        self.is_columnar = columns is not None
        self.type = type
        self.timestamps = timestamps
        self.watermarks = watermarks

    @classmethod
    def of_rows(
        cls,
        rows: list[Any],
        type: TypeInformation | None = None,
        timestamps: Timestamps | None = None,
        watermarks: Watermarks | None = None,
    ) -> Self:
        """A batch over Python objects; the list is taken over, not copied."""
        return cls(rows=rows, type=type, timestamps=timestamps, watermarks=watermarks)

    @classmethod
    def of_columns(
        cls,
        columns: pa.RecordBatch,
        type: TypeInformation | None = None,
        timestamps: Timestamps | None = None,
        watermarks: Watermarks | None = None,
    ) -> Self:
        """A batch over Arrow columns. A ``type`` that is no row type reads the only column."""
        return cls(columns=columns, type=type, timestamps=timestamps, watermarks=watermarks)

    def __len__(self) -> int:
        return len(self._rows) if self._rows is not None else int(self.columns.num_rows)

    @property
    def rows(self) -> list[Any]:
        """The records as Python objects; not to be changed."""
        if self._rows is None:
            batch = self.columns
            if isinstance(self.type, RowTypeInfo):
                self._rows = self.type.from_arrow(batch.to_struct_array())
            elif self.type is not None:
                self._rows = self.type.from_arrow(batch.column(0))
            else:
                values = zip(*(column.to_pylist() for column in batch.columns), strict=True)
                self._rows = rows_of(batch.schema.names, values)
        return self._rows

    @property
    def columns(self) -> pa.RecordBatch:
        """The records as Arrow columns.

        Raises:
            SchemaError: The rows do not fit their type, or have neither a type nor field names.
        """
        if self._columns is None:
            self._columns = _to_columns(self._rows or [], self.type)
        return self._columns

    def columns_of(self, inferred: InferredSchema) -> pa.RecordBatch:
        """The records as Arrow columns; undeclared ones by the schema of those before them.

        Raises:
            SchemaError: The records do not fit.
        """
        if self._columns is None:
            self._columns = _to_columns(self._rows or [], self.type, inferred)
        return self._columns

    @property
    def size(self) -> int:
        """The size in bytes, exact for columns and estimated from a sample for rows."""
        if self._size < 0:
            if self._columns is not None:
                self._size = int(self._columns.nbytes)
            else:
                assert self._rows is not None
                sample = self._rows[:: max(1, len(self._rows) // 4)][:5]
                self._size = _pickled_size(sample) * len(self._rows) // max(1, len(sample))
        return self._size

    def know_size(self, size: int) -> None:
        """The size is known: Arrow takes as long to add it up as to send a small batch."""
        self._size = size

    def slice(self, start: int, stop: int) -> "Batch":
        """Records ``start`` to ``stop`` (excluded), without copying columns."""
        part = Batch(
            rows=None if self._rows is None else self._rows[start:stop],
            columns=None if self._columns is None else self._columns.slice(start, stop - start),
            type=self.type,
            timestamps=None if self.timestamps is None else self.timestamps[start:stop],
            watermarks=None if self.watermarks is None else self.watermarks.within(start, stop),
        )
        part.is_columnar = self.is_columnar
        return part

    def marked(self, watermarks: Watermarks | None) -> "Batch":
        """The same records with these watermarks instead."""
        if watermarks is self.watermarks:
            return self
        made = Batch(
            rows=self._rows,
            columns=self._columns,
            type=self.type,
            timestamps=self.timestamps,
            watermarks=watermarks,
        )
        made.is_columnar = self.is_columnar
        made._size = self._size
        return made

    def cut(self) -> "Iterator[tuple[Batch, int | None]]":
        """The records up to each watermark, which follows them, and the rest, followed by None.

        There may be no records before the first watermark, and none behind the last.
        """
        bare, start = self.marked(None), 0
        if self.watermarks is not None:
            behind, times_ms = self.watermarks.behind, self.watermarks.times_ms
            for stop, time_ms in zip(behind.tolist(), times_ms.tolist(), strict=True):
                yield bare.slice(start, stop), time_ms
                start = stop
        if start < len(self):
            yield bare.slice(start, len(self)), None

    def share(self, indices: Indices) -> "Batch":
        """The records at these ascending positions, and the watermarks between them."""
        if self.watermarks is None:
            return self.take(indices)
        return self.take(indices).marked(self.watermarks.among(indices))

    def take(self, indices: Indices) -> "Batch":
        """The records at these positions, in that order, without watermarks."""
        timestamps = None if self.timestamps is None else self.timestamps[indices]
        if self.is_columnar:
            return Batch.of_columns(self.columns.take(pa.array(indices)), self.type, timestamps)
        rows = self.rows
        return Batch.of_rows([rows[i] for i in indices.tolist()], self.type, timestamps)

    def copied(self) -> "Batch":
        """The batch for a second consumer, whose changes to records the first one does not see."""
        if self.type is not None and not self.type.is_mutable:
            return self
        if not self.is_columnar:
            rows = own_rows(self.rows)
            if rows is self.rows:
                return self
            return Batch.of_rows(rows, self.type, self.timestamps, self.watermarks)
        if self.type is None and not any(
            pa.types.is_nested(kind) for kind in self.columns.schema.types
        ):
            return self
        # Makes its own rows.
        return Batch.of_columns(self.columns, self.type, self.timestamps, self.watermarks)

    def __repr__(self) -> str:
        return f"Batch({len(self)} {'columnar' if self.is_columnar else 'row'} records)"


def concat(batches: Sequence[Batch]) -> Batch:
    """All records of batches of one kind (same form, type and schema), in order."""
    first = batches[0]
    timestamps = (
        None
        if first.timestamps is None
        else np.concatenate([b.timestamps for b in batches if b.timestamps is not None])
    )
    watermarks = Watermarks.joined([(len(b), b.watermarks) for b in batches])
    if first.is_columnar:
        columns = pa.concat_batches([b.columns for b in batches])
        return Batch.of_columns(columns, first.type, timestamps, watermarks)
    rows = [row for b in batches for row in b.rows]
    return Batch.of_rows(rows, first.type, timestamps, watermarks)


def can_concat(one: Batch, other: Batch) -> bool:
    """Whether ``concat`` may join these two."""
    return (
        one.is_columnar == other.is_columnar
        and one.type is other.type
        and (one.timestamps is None) == (other.timestamps is None)
        and (not one.is_columnar or one.columns.schema == other.columns.schema)
    )


def _to_columns(
    rows: list[Any], type: TypeInformation | None, inferred: InferredSchema | None = None
) -> pa.RecordBatch:
    if type is not None:
        array = type.to_arrow(rows)
        if isinstance(type, RowTypeInfo):
            return pa.RecordBatch.from_struct_array(array)
        return pa.RecordBatch.from_arrays([array], names=["value"])
    return (inferred or InferredSchema()).columns(rows)


def _pickled_size(sample: list[Any]) -> int:
    try:
        return len(pickle.dumps(sample))
    except (pickle.PicklingError, AttributeError, TypeError):
        return len(cloudpickle.dumps(sample))  # Classes that the script itself defines.


def builtin_name(value: object) -> str:
    """The name of the class of ``value``, for messages."""
    return value.__class__.__name__
