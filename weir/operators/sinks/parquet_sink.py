"""Parquet files as a sink, exactly once: ``file_sink_operator`` says how.

::

    <path>/part-<operator>-<subtask>-<checkpoint>-<counter>.parquet    committed

The footer of a file names the job and the attempt that wrote it.
"""

import os
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from weir.common.batch import Batch
from weir.errors import ConfigError, SchemaError
from weir.ids import AttemptNumber, CheckpointId
from weir.operators.base import Operator
from weir.operators.sinks.file_sink_operator import DirectorySink, FileSinkOperator
from weir.operators.sinks.part_files import PartFile, create
from weir.output.output_files import CommittedName
from weir.protocol.lineage import ANY_ATTEMPT

ROW_GROUP_ROWS = 32_768  # Encoding one row group blocks the loop for some milliseconds.
ROW_GROUP_BYTES = 16 << 20
JOB_KEY, ATTEMPT_KEY = b"weir.job", b"weir.attempt"  # In the footer: the file's writer.


class ParquetSink(DirectorySink):
    """Writes records as Parquet files into the directory ``path``, each record exactly once.

    The schema is that of the first batch unless given. A job that starts without a restore refuses
    a directory that already holds files of its operator: it could not tell them from its own.

    Raises:
        ConfigError: ``rows_per_file`` is less than 1, or ``path`` is a file.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        rows_per_file: int = 1_000_000,
        *,
        schema: pa.Schema | None = None,
    ) -> None:
        if rows_per_file < 1:
            raise ConfigError(f"rows_per_file is {rows_per_file}; it must be at least 1")
        super().__init__(path)
        self.rows_per_file = rows_per_file
        self.schema = schema

    def create_operator_factory(self) -> Callable[[], Operator]:
        return partial(ParquetSinkOperator, self.path, self.rows_per_file, self.schema)


class ParquetSinkOperator(FileSinkOperator["ParquetPartFile"]):
    """Writes and commits one subtask's share of the output."""

    extension = ".parquet"

    def __init__(self, path: str, rows_per_file: int, schema: pa.Schema | None) -> None:
        super().__init__(path)
        self._rows_per_file = rows_per_file
        self._schema = schema

    def on_batch(self, batch: Batch, input_index: int) -> None:
        columns = self._fit(self.columns_of(batch))
        while columns.num_rows:
            if self._current is None:
                writer = {JOB_KEY: self.ctx.job_id.encode(), ATTEMPT_KEY: b"%d" % self.ctx.attempt}
                self._current = ParquetPartFile(self.new_path(), columns.schema, writer)
            room = self._rows_per_file - self._current.rows
            self._current.write(columns.slice(0, room))
            columns = columns.slice(room)
            if self._current.rows == self._rows_per_file:
                self.roll()

    def final_name(self, checkpoint_id: CheckpointId, counter: int) -> CommittedName:
        subtask = self.ctx.subtask
        return CommittedName(subtask.operator, subtask.index, checkpoint_id, counter)

    def writer_of(
        self, path: Path, name: CommittedName, *, by_default: bool
    ) -> AttemptNumber | None:
        footer = _footer(path) or {}
        job = footer.get(JOB_KEY)
        if job is None:  # An older version wrote it.
            return ANY_ATTEMPT if by_default else None
        if job != self.ctx.job_id.encode():
            return None
        return AttemptNumber(int(footer.get(ATTEMPT_KEY, ANY_ATTEMPT)))

    def is_whole(self, path: Path) -> bool:
        return _footer(path) is not None

    def _fit(self, columns: pa.RecordBatch) -> pa.RecordBatch:
        """The columns in the schema of this sink's files; their own order does not matter.

        Raises:
            SchemaError: A column is missing, cannot be converted, or is not in the schema.
        """
        if self._schema is None:
            self._schema = columns.schema
        if columns.schema.equals(self._schema):
            return columns
        if more := Counter(columns.schema.names) - Counter(self._schema.names):
            raise self._misfit(columns, f"it has no column for {', '.join(more)}")
        try:
            return columns.select(self._schema.names).cast(self._schema)
        except (KeyError, ValueError, pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise self._misfit(columns, str(error)) from error

    def _misfit(self, columns: pa.RecordBatch, why: str) -> SchemaError:
        return SchemaError(
            f"records for {self._root} do not fit its schema: {why}. The schema is\n"
            f"{self._schema}\nand the records have\n{columns.schema}\nThe schema is that of the "
            "first batch unless it is given. Declare output_type on the operator before the sink, "
            "or give the sink a schema; columns that are not to be written must be left out before "
            "the sink"
        )


class ParquetPartFile(PartFile):
    """A Parquet file while it is written."""

    def __init__(self, path: Path, schema: pa.Schema, metadata: dict[bytes, bytes]) -> None:
        super().__init__(path)
        self._buffer: list[pa.RecordBatch] = []
        self._buffered_rows = 0
        self._buffered_bytes = 0
        self._writer: pq.ParquetWriter | None = create(
            path, lambda path: pq.ParquetWriter(path, schema)
        )
        self._writer.add_key_value_metadata(metadata)

    def write(self, columns: pa.RecordBatch) -> None:
        """Add rows."""
        self._buffer.append(columns)
        self.rows += columns.num_rows
        self._buffered_rows += columns.num_rows
        self._buffered_bytes += columns.nbytes
        if self._buffered_rows >= ROW_GROUP_ROWS or self._buffered_bytes >= ROW_GROUP_BYTES:
            self._write_row_group()

    def complete(self) -> None:
        if self._writer is None:
            return
        if self._buffer:
            self._write_row_group()
        self._writer.close()
        self._writer = None

    def abandon(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        self.path.unlink(missing_ok=True)

    def _write_row_group(self) -> None:
        assert self._writer is not None
        self._writer.write_table(pa.Table.from_batches(self._buffer))
        self._buffer = []
        self._buffered_rows = self._buffered_bytes = 0


def committed_files(directory: Path) -> list[Path]:
    """The committed files of a sink, in an order that keeps the order of rows within each key."""
    named = [
        (name.checkpoint_id, name.subtask, name.counter, path)
        for path in directory.iterdir()
        if (name := CommittedName.parse(path.name)) is not None
    ]
    return [path for *_, path in sorted(named)]


def _footer(path: Path) -> dict[bytes, bytes] | None:
    """The key-value pairs in a file's footer; None: the file has none and is not whole."""
    try:
        return pq.read_metadata(path).metadata or {}
    except pa.ArrowInvalid:
        return None
