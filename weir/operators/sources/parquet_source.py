"""Parquet files as a source: a position is (row group, row); files must not change meanwhile.

A split is one row group, so that all subtasks share even a single file, or with
``split_by="file"`` one file, whose rows then keep their order. Every split carries the size and the
modification time of its file, which are checked whenever the file is opened, the first time as well
as after a restore: a position in another file would mean other records.

Files of several partitions overlap in event time, and their names do not tell it. Where the event
time is a column, the statistics of the row groups do: see ``discover_in_event_time``.

Columns that no consumer reads are not decoded, and row groups that a filter rules out by their
statistics are passed over (``narrowed``). That changes neither splits nor positions, which count
the rows of the file: another program may restore them.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from itertools import groupby
from operator import itemgetter
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from weir.common.batch import Batch
from weir.errors import ConfigError, UserError
from weir.operators.expressions import can_rule_out, ruled_out
from weir.operators.sources.input_files import check_unchanged, identity, list_files
from weir.operators.sources.parquet_statistics import lowest_time_ms
from weir.operators.sources.split_source import Source, SplitReader

DECODE_ROWS = 65_536  # Decoded at a time, and emitted in slices.


class ParquetSource(Source):
    """The rows of a Parquet file, of all ``*.parquet`` files below a directory, or of a glob.

    Names that start with ``_`` or ``.`` below a directory are left out, as in Spark. The path must
    mean the same files on every machine of the cluster.

    Raises:
        ConfigError: ``split_by`` is neither ``row_group`` nor ``file``.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        columns: Sequence[str] | None = None,
        rows_per_second: float | None = None,
        *,
        split_by: Literal["row_group", "file"] = "row_group",
    ) -> None:
        super().__init__(rows_per_second)
        if split_by not in ("row_group", "file"):
            raise ConfigError(f"split_by is {split_by!r}; it must be 'row_group' or 'file'")
        self.path = os.path.abspath(path)  # Executors have working directories of their own.
        self.columns = None if columns is None else list(columns)
        self.split_by = split_by
        self.decoded = self.columns  # Fewer, where no consumer reads the others.
        self.filters: list[pc.Expression] = []  # No consumer reads rows of which one is not true.

    def narrowed(
        self,
        columns_read: Callable[[pa.Schema], frozenset[str] | None],
        filters: Sequence[pc.Expression] = (),
    ) -> Source:
        if type(self).open is not ParquetSource.open:
            return self  # It may make further columns of those that are not read.
        _, schema = self._read_footer(list_files(self.path, "Parquet", ".parquet")[0])
        if len(set(schema.names)) < len(schema.names):
            return self
        made = copy(self)
        made.filters = [each for each in filters if can_rule_out(each, schema)]
        names = columns_read(schema)
        # A consumer that names a column which is not there says so when it gets records: its
        # message lists all columns. A name with a dot could be that of a nested field.
        if names and names.issubset(schema.names) and not any("." in name for name in names):
            made.decoded = [name for name in schema.names if name in names]
        return made

    def discover(self, parallelism: int) -> list[dict[str, Any]]:
        splits: list[dict[str, Any]] = []
        first: tuple[str, pa.Schema] | None = None
        for path in list_files(self.path, "Parquet", ".parquet"):
            unchanged = identity(path)
            metadata, schema = self._read_footer(path)
            if first is None:
                first = path, schema
            elif not schema.equals(first[1]):
                raise UserError(
                    f"{path} and {first[0]} have different columns, so they are not one stream:\n"
                    f"{schema}\nagainst\n{first[1]}\nRead them as two sources, or name columns "
                    "that they share"
                )
            groups = [i for i in range(metadata.num_row_groups) if metadata.row_group(i).num_rows]
            parts = [groups] if self.split_by == "file" else [[group] for group in groups]
            splits += [{**unchanged, "row_groups": part} for part in parts if part]
        return splits

    def discover_in_event_time(self, parallelism: int, column: str) -> list[dict[str, Any]]:
        """All splits, each with its lowest time if the statistics of its row groups tell it.

        If the lowest times of all splits are known, the splits are in their order, else by name.
        """
        splits = [
            split if lowest is None else {**split, "lowest": {"column": column, "ms": lowest}}
            for split, lowest in _with_lowest_ms(self.discover(parallelism), column)
        ]
        if all("lowest" in split for split in splits):
            splits.sort(key=lambda split: split["lowest"]["ms"])  # Stable: then by name.
        return splits

    def lowest_ms(self, split: dict[str, Any], column: str) -> int | None:
        """The least time in ``column`` of the split's rows, as noted when the job began."""
        lowest = split.get("lowest", {})
        return lowest["ms"] if lowest.get("column") == column else None

    def open(self, split: dict[str, Any], position: Any) -> SplitReader:
        # Checked before opening, for a message that names the cause, and after, because only an
        # open file can no longer be replaced.
        check_unchanged(split)
        file = pq.ParquetFile(split["path"])
        groups: list[int] = split["row_groups"]
        try:
            left_out = [ruled_out(split["path"], groups, each) for each in self.filters]
            check_unchanged(split)
        except BaseException:
            file.close()
            raise
        group, row = position or (groups[0], 0)
        return _ParquetReader(
            file, groups, self.decoded, group, row, frozenset[int]().union(*left_out)
        )

    def _read_footer(self, path: str) -> tuple[pq.FileMetaData, pa.Schema]:
        try:
            with pq.ParquetFile(path) as file:
                metadata, schema = file.metadata, file.schema_arrow
        except pa.ArrowInvalid as error:
            raise UserError(f"{path} is not a Parquet file, or a damaged one: {error}") from error
        if self.columns is None:
            return metadata, schema
        if missing := [name for name in self.columns if name not in schema.names]:
            raise UserError(
                f"{path} has no column {', '.join(missing)}; it has {', '.join(schema.names)}"
            )
        return metadata, pa.schema([schema.field(name) for name in self.columns])


class _ParquetReader(SplitReader):
    def __init__(
        self,
        file: pq.ParquetFile,
        groups: list[int],
        columns: list[str] | None,
        group: int,
        row: int,
        left_out: frozenset[int],
    ) -> None:
        self._file = file
        self._left_out = left_out  # Row groups of which no row is needed.
        self._columns = columns
        self._groups = groups[groups.index(group) :]  # The one being read and those after it.
        self._row = row
        self._skip = row
        self._decoded: Iterator[pa.RecordBatch] | None = None
        self._chunk: pa.RecordBatch | None = None
        self._taken = 0

    @property
    def position(self) -> list[int]:
        return [self._groups[0], self._row]

    def read(self, rows_max: int) -> Batch | None:
        while self._chunk is None or self._taken == self._chunk.num_rows:
            if not self._decode():
                return None
        columns = self._chunk.slice(self._taken, rows_max)
        self._taken += columns.num_rows
        self._row += columns.num_rows
        return Batch.of_columns(columns)

    def close(self) -> None:
        self._file.close()

    def _decode(self) -> bool:
        """Decode the next rows, or go to the next row group; False: there is none."""
        if self._decoded is None:
            read = [] if self._groups[0] in self._left_out else [self._groups[0]]
            self._decoded = self._file.iter_batches(
                DECODE_ROWS, row_groups=read, columns=self._columns, use_threads=False
            )
        chunk = next(self._decoded, None)
        if chunk is None:
            if len(self._groups) == 1:
                return False
            del self._groups[0]
            self._row = self._skip = 0
            self._decoded = None
            return True
        if self._columns is not None and chunk.schema.names != self._columns:
            chunk = chunk.select(self._columns)  # Else in the file's order, not the requested one.
        self._taken = min(self._skip, chunk.num_rows)
        self._skip -= self._taken
        self._chunk = chunk
        return True


def _with_lowest_ms(
    splits: list[dict[str, Any]], column: str
) -> Iterator[tuple[dict[str, Any], int | None]]:
    """Every split with its lowest time in milliseconds; None: it is not known."""
    for path, parts in groupby(splits, key=itemgetter("path")):
        with pq.ParquetFile(path) as file:
            for split in parts:
                lowest = [lowest_time_ms(file, group, column) for group in split["row_groups"]]
                known = [at for at in lowest if at is not None]
                yield split, min(known) if len(known) == len(lowest) else None
