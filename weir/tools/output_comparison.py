"""The comparison of two Parquet outputs, such as those of a job and its fork.

Rows are matched by *key*: the key columns and the window columns together. Only committed files
count. First whole rows are compared as multisets, so a row that occurs twice has to occur twice on
the other side; the remaining rows are then paired by key: a pair *differs*, and a row without a
partner is *only* on its side.

Window columns tell the progress of each side. A fork begins where its savepoint was taken and may
be behind its origin, which is no difference: rows of windows before the other side's first or after
its last are counted apart, as *earlier* and *later*. The last window of the side that is behind may
be incomplete, so rows missing from it count as later too. Without window columns the progress is
not known, and every row counts.

Memory: rows are read in as many passes as keep ``PASS_BYTES`` of Parquet data, before compression,
and ``PASS_ROWS`` rows of both sides together in a pass; each pass takes the keys of one share of
all hashes. With evenly spread keys that was 1.5 GB of memory for twenty million rows, none of them
equal. The rows of one key are never split.
"""

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from weir.errors import ConfigError, CorruptStateError, StorageError
from weir.operators.sinks.parquet_sink import committed_files
from weir.state.codec import key_groups_of

PASS_BYTES = 256 << 20
PASS_ROWS = 4_000_000
PASSES_MAX = 4_096
BATCH_ROWS = 65_536
SAMPLES_MAX = 1_000  # Of each kind, also for a higher limit: the result is stored as one document.
TEXT_MAX = 200  # Characters of one value in a sample.
TRIES = 3  # A rollback may withdraw files while they are read.

_Indices = npt.NDArray[np.int64]
_LEFT, _RIGHT = "left", "right"  # Counts of whole rows; the columns of the data are c0, c1 ...


@dataclass(slots=True)
class Side:
    """The figures of one output, in rows unless said otherwise."""

    path: str
    files: int = 0
    rows: int = 0
    first: str | None = None  # Its first window, and its last.
    last: str | None = None
    earlier: int = 0  # Before the other side's first window.
    later: int = 0  # After the other side's last window, which may not have them yet.
    only: int = 0
    duplicates: int = 0  # Rows beyond the first of their key.
    columns: tuple[str, ...] = ()  # Missing on the other side; not compared.


@dataclass(slots=True)
class ColumnDifference:
    """The differences of one column among rows of the same key."""

    name: str
    count: int = 0
    largest: float | None = None  # Absolute, of numbers.


@dataclass(slots=True)
class Comparison:
    """The result of comparing two outputs."""

    key: tuple[str, ...]
    window: tuple[str, ...]
    left: Side
    right: Side
    complete_from: str | None = None  # The first compared window,
    complete_to: str | None = None  # and the last. None: all.
    equal: int = 0
    different: int = 0
    columns: list[ColumnDifference] = field(default_factory=list)
    only_left: list[dict[str, Any]] = field(default_factory=list)
    only_right: list[dict[str, Any]] = field(default_factory=list)
    differing: list[dict[str, Any]] = field(default_factory=list)  # Pairs of [left, right].
    twice_left: list[dict[str, Any]] = field(default_factory=list)
    twice_right: list[dict[str, Any]] = field(default_factory=list)

    @property
    def is_equal(self) -> bool:
        """Whether both sides are equal in the windows that both should have."""
        sides = (self.left, self.right)
        return not self.different and not any(side.only or side.columns for side in sides)


def compare(
    left: str | Path,
    right: str | Path,
    *,
    key: Sequence[str] = (),
    window: Sequence[str] = (),
    limit: int = 10,
) -> Comparison:
    """Compare the committed files in two directories of Parquet sinks.

    Args:
        key: Key columns; without any, all columns that hold no floating point numbers.
        window: Window columns; the first tells the progress of each side.
        limit: Samples of each kind.

    Raises:
        ConfigError: A directory or a column does not exist.
        StorageError: Files vanished while they were read, at every try.
    """
    for tries_left in reversed(range(TRIES)):
        try:
            return _Run(_Output(Path(left)), _Output(Path(right)), key, window, limit).run()
        except FileNotFoundError as error:
            if not tries_left:
                raise StorageError(
                    f"{error.filename or error} vanished while it was read, perhaps because one of "
                    "the jobs is being rolled back; compare again when that is done"
                ) from error
    raise AssertionError("unreachable")


class _Output:
    """The committed files of one side."""

    def __init__(self, directory: Path) -> None:
        if not directory.is_dir():
            raise ConfigError(f"there is no directory {directory}; give that of a Parquet sink")
        self.directory = directory
        self.files = committed_files(directory)
        if not self.files:
            self._refuse_parent()
        self.rows = self.size = 0
        schemas = []
        for path in self.files:
            with _opened(path) as file:
                self.rows += file.metadata.num_rows
                groups = range(file.metadata.num_row_groups)
                self.size += sum(file.metadata.row_group(i).total_byte_size for i in groups)
                schemas.append(
                    pa.schema([(f.name, _plain_type(f.type)) for f in file.schema_arrow])
                )
        self.schema = _unified(schemas, f"the files in {directory}")

    def side(self) -> Side:
        return Side(str(self.directory), files=len(self.files), rows=self.rows)

    def batches(self, schema: pa.Schema) -> Iterator[pa.Table]:
        """All rows with the columns of ``schema``, under the names c0, c1 and so on."""
        for path in self.files:
            with _opened(path) as file:
                present = [name for name in schema.names if name in file.schema_arrow.names]
                for batch in file.iter_batches(BATCH_ROWS, columns=present):
                    yield _fitted(batch, schema)

    def _refuse_parent(self) -> None:
        inside = [path for path in sorted(self.directory.iterdir()) if path.is_dir()]
        outputs = [path.name for path in inside if path.name[0] not in "._" and _has_output(path)]
        if outputs:
            raise ConfigError(
                f"{self.directory} holds no output of its own but that of several sinks; give the "
                f"directory of one: {', '.join(outputs)}"
            )


class _Run:
    """One comparison under way."""

    def __init__(
        self,
        left: _Output,
        right: _Output,
        key: Sequence[str],
        window: Sequence[str],
        limit: int,
    ) -> None:
        self._outputs = (left, right)
        self._limit = min(limit, SAMPLES_MAX)
        schemas = [output.schema for output in self._outputs if output.files]
        shared = [name for name in schemas[0].names if name in schemas[-1].names] if schemas else []
        if schemas:
            _check_columns([*key, *window], shared, left, right)
        picked = [pa.schema([schema.field(name) for name in shared]) for schema in schemas]
        self._schema = _unified(picked, f"{left.directory} and {right.directory}")
        self._types = {f"c{i}": each for i, each in enumerate(self._schema.types)}
        keys = tuple(dict.fromkeys(key)) or _exact(self._schema)
        windows = tuple(dict.fromkeys(window))
        self._key = [self._column(name) for name in dict.fromkeys(keys + windows)] if shared else []
        self._values = [column for column in self._types if column not in self._key]
        self._window = self._column(windows[0]) if windows and shared else None
        self._found = Comparison(keys, windows, left.side(), right.side())
        self._found.columns = [ColumnDifference(self._name(column)) for column in self._values]
        self._sides = (self._found.left, self._found.right)
        for output, side in zip(self._outputs, self._sides, strict=True):
            side.columns = tuple(name for name in output.schema.names if name not in shared)
        # The windows that both sides should have, and the index of the side that is behind.
        self._from: pa.Scalar | None = None
        self._to: pa.Scalar | None = None
        self._behind: int | None = None

    def run(self) -> Comparison:
        if not self._schema.names:
            return self._found
        if self._window is not None and not self._find_range(self._window):
            return self._found
        passes = self._passes()
        for number in range(passes):
            rows = [self._rows(index, number, passes) for index in (0, 1)]
            self._compare(*rows)
        return self._found

    @property
    def _numbered(self) -> pa.Schema:
        return pa.schema(list(self._types.items()))

    def _column(self, name: str) -> str:
        return f"c{self._schema.get_field_index(name)}"

    def _name(self, column: str) -> str:
        return str(self._schema.names[int(column[1:])])

    # The compared range.

    def _find_range(self, window: str) -> bool:
        """Determine the windows that both sides have; False where one side has none yet."""
        schema = pa.schema([self._schema.field(self._name(window))])
        ends = [
            _least_and_greatest(output.batches(schema), schema.names[0]) for output in self._outputs
        ]
        for side, (least, greatest) in zip(self._sides, ends, strict=True):
            side.first, side.last = _text(least), _text(greatest)
        begun = [least is not None for least, _ in ends]
        if not all(begun):
            for index, has_begun in enumerate(begun):
                if has_begun:
                    self._sides[index].later = self._sides[index].rows
            return not any(begun)  # Then all rows, if there are any, have no window.
        (first, last), (other_first, other_last) = ends
        self._from = other_first if _is_less(first, other_first) else first
        self._to = last if _is_less(last, other_last) else other_last
        if _is_less(last, other_last):
            self._behind = 0
        elif _is_less(other_last, last):
            self._behind = 1
        self._found.complete_from, self._found.complete_to = _text(self._from), _text(self._to)
        return True

    def _passes(self) -> int:
        size, rows = (sum(getattr(o, name) for o in self._outputs) for name in ("size", "rows"))
        needed = max(math.ceil(size / PASS_BYTES), math.ceil(rows / PASS_ROWS), 1)
        return min(needed, PASSES_MAX) if self._hashed() else 1

    def _hashed(self) -> list[str]:
        """Key columns whose values have hashes; rows of one key agree on any of them."""
        return [column for column in self._key if _has_hash(self._types[column])]

    def _rows(self, index: int, number: int, passes: int) -> pa.Table:
        """One side's rows of one pass, within the compared windows."""
        taken = []
        for table in self._outputs[index].batches(self._schema):
            if passes > 1:
                columns = [table[name].combine_chunks() for name in self._hashed()]
                groups = key_groups_of(columns, PASSES_MAX) % np.uint16(passes)
                table = table.filter(pa.array(groups == number))
            if self._window is not None and self._from is not None:
                table = self._in_range(table, self._sides[index])
            if table.num_rows:
                taken.append(table)
        return pa.concat_tables(taken) if taken else self._numbered.empty_table()

    def _in_range(self, table: pa.Table, side: Side) -> pa.Table:
        windows = table[self._window]
        earlier = pc.fill_null(pc.less(windows, self._from), False)
        later = pc.fill_null(pc.greater(windows, self._to), False)
        side.earlier += pc.sum(earlier).as_py() or 0
        side.later += pc.sum(later).as_py() or 0
        return table.filter(pc.invert(pc.or_(earlier, later)))

    # The comparison itself.

    def _compare(self, left: pa.Table, right: pa.Table) -> None:
        rows = pa.concat_tables([_counting(left, 1, 0), _counting(right, 0, 1)])
        names = list(self._types)
        rows = _summed(rows, names)
        self._count_duplicates(rows)
        on_left, on_right = _ints(rows[_LEFT]), _ints(rows[_RIGHT])
        both = np.minimum(on_left, on_right)
        self._found.equal += int(both.sum())
        lefts, rights = on_left - both, on_right - both
        rest = np.flatnonzero(lefts + rights)
        if len(rest):
            self._pair(rows.take(pa.array(rest)).select(names), lefts[rest], rights[rest])

    def _count_duplicates(self, rows: pa.Table) -> None:
        keys = _summed(rows, self._key)
        for side, name, samples in (
            (self._found.left, _LEFT, self._found.twice_left),
            (self._found.right, _RIGHT, self._found.twice_right),
        ):
            counts = _ints(keys[name])
            repeated = np.flatnonzero(counts > 1)
            side.duplicates += int(counts[repeated].sum()) - len(repeated)
            shown = self._shown(keys, repeated, self._key, samples)
            for sample, count in zip(shown, counts[repeated].tolist(), strict=False):
                samples.append({"row": sample, "count": count})

    def _pair(self, rest: pa.Table, lefts: _Indices, rights: _Indices) -> None:
        """Pair the remaining rows by key, in their order."""
        groups = _groups(rest, self._key)
        left, right = (np.repeat(np.arange(len(counts)), counts) for counts in (lefts, rights))
        width = max(len(left), len(right), 1)
        left_codes, right_codes = (
            groups[rows] * width + _ordinals(groups[rows]) for rows in (left, right)
        )
        _, in_left, in_right = np.intersect1d(
            left_codes, right_codes, assume_unique=True, return_indices=True
        )
        self._compare_pairs(rest, left[in_left], right[in_right])
        self._count_single(0, rest, np.delete(left, in_left), self._found.only_left)
        self._count_single(1, rest, np.delete(right, in_right), self._found.only_right)

    def _compare_pairs(self, rest: pa.Table, left: _Indices, right: _Indices) -> None:
        differs = np.zeros(len(left), bool)
        unequal: dict[str, npt.NDArray[np.bool_]] = {}
        for column, difference in zip(self._values, self._found.columns, strict=True):
            ours, theirs = (rest[column].take(pa.array(rows)) for rows in (left, right))
            unequal[difference.name] = mask = _unequal(ours, theirs)
            differs |= mask
            difference.count += int(np.count_nonzero(mask))
            largest = _largest_difference(ours, theirs, mask)
            if largest is not None:
                difference.largest = max(largest, difference.largest or 0.0)
        different = np.flatnonzero(differs)
        self._found.equal += len(left) - len(different)
        self._found.different += len(different)
        samples, columns = self._found.differing, list(self._types)
        shown = [self._shown(rest, rows[different], columns, samples) for rows in (left, right)]
        for at, ours, theirs in zip(different.tolist(), *shown, strict=False):
            changed = [name for name, mask in unequal.items() if mask[at]]
            samples.append(
                {
                    "key": {name: ours[name] for name in map(self._name, self._key)},
                    "columns": {name: [ours[name], theirs[name]] for name in changed},
                }
            )

    def _count_single(
        self, index: int, rest: pa.Table, rows: _Indices, samples: list[dict[str, Any]]
    ) -> None:
        """Count rows without a partner: missing on the other side, or later than its progress."""
        if self._behind == 1 - index and len(rows):
            windows = rest[self._window].take(pa.array(rows))
            is_last = pc.fill_null(pc.equal(windows, self._to), False).to_numpy()
            self._sides[index].later += int(np.count_nonzero(is_last))
            rows = rows[~is_last]
        self._sides[index].only += len(rows)
        samples += self._shown(rest, rows, list(self._types), samples)

    def _shown(
        self, table: pa.Table, rows: _Indices, columns: Sequence[str], so_far: list[dict[str, Any]]
    ) -> list[dict[str, Any]]:
        """Samples of these rows, as many as the limit still allows."""
        picked = table.select(columns).take(pa.array(rows[: self._limit - len(so_far)]))
        shown = [[_value(item) for item in picked[name]] for name in columns]
        names = [self._name(column) for column in columns]
        return [dict(zip(names, row, strict=True)) for row in zip(*shown, strict=True)]


# Columns.


def _exact(schema: pa.Schema) -> tuple[str, ...]:
    exact = tuple(f.name for f in schema if not pa.types.is_floating(f.type))
    return exact or tuple(schema.names)


def _check_columns(
    wanted: Sequence[str], shared: Sequence[str], left: _Output, right: _Output
) -> None:
    if missing := [name for name in dict.fromkeys(wanted) if name not in shared]:
        sides = [
            f"{output.directory} has {', '.join(output.schema.names)}"
            for output in (left, right)
            if output.files
        ]
        raise ConfigError(f"no column {', '.join(missing)} on both sides: {'; '.join(sides)}")


def _unified(schemas: Sequence[pa.Schema], what: str) -> pa.Schema:
    try:
        return pa.unify_schemas(schemas, promote_options="permissive") if schemas else pa.schema([])
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise ConfigError(f"{what} cannot be compared: {error}") from error


def _plain_type(kind: pa.DataType) -> pa.DataType:
    """The type in which values are grouped and compared."""
    if pa.types.is_dictionary(kind):
        return _plain_type(kind.value_type)
    if pa.types.is_nested(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_binary_view(kind):
        return pa.binary()
    return pa.float32() if pa.types.is_float16(kind) else kind


def _fitted(batch: pa.RecordBatch, schema: pa.Schema) -> pa.Table:
    """The columns of ``schema``, numbered; those that a file lacks are null."""
    columns = []
    for column in schema:
        at = batch.schema.get_field_index(column.name)
        if at < 0:
            columns.append(pa.nulls(batch.num_rows, column.type))
            continue
        array = batch.column(at)
        if pa.types.is_nested(array.type):
            # JSON, since Arrow cannot group by nested values; a loop, but such columns are rare.
            array = pa.array(
                [None if v is None else json.dumps(v, default=str) for v in array.to_pylist()],
                pa.string(),
            )
        columns.append(array.cast(column.type))
    return pa.table(columns, names=[f"c{i}" for i in range(len(columns))])


def _has_hash(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(
        types.is_integer(kind)
        or types.is_boolean(kind)
        or types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_timestamp(kind)
        or types.is_date(kind)
    )


def _least_and_greatest(
    tables: Iterator[pa.Table], name: str
) -> tuple[pa.Scalar | None, pa.Scalar | None]:
    least = greatest = None
    for table in tables:
        try:
            ends = pc.min_max(table["c0"])
        except pa.ArrowNotImplementedError as error:
            raise ConfigError(
                f"column {name} cannot be a window: values of type {table['c0'].type} have no order"
            ) from error
        if not ends["min"].is_valid:
            continue
        if least is None or _is_less(ends["min"], least):
            least = ends["min"]
        if greatest is None or _is_less(greatest, ends["max"]):
            greatest = ends["max"]
    return least, greatest


def _is_less(one: pa.Scalar, other: pa.Scalar) -> bool:
    return bool(pc.less(one, other).as_py())


# Rows.


def _counting(rows: pa.Table, left: int, right: int) -> pa.Table:
    for name, count in ((_LEFT, left), (_RIGHT, right)):
        rows = rows.append_column(name, pa.array(np.full(rows.num_rows, count, np.int64)))
    return rows


def _summed(rows: pa.Table, names: Sequence[str]) -> pa.Table:
    """One row per group, with its counts on each side; null equals null here."""
    groups = rows.group_by(names, use_threads=False)  # Keeps their order.
    summed = groups.aggregate([(_LEFT, "sum"), (_RIGHT, "sum")])
    summed = summed.select([*names, f"{_LEFT}_sum", f"{_RIGHT}_sum"])
    return summed.rename_columns([*names, _LEFT, _RIGHT])


def _ints(column: pa.ChunkedArray) -> _Indices:
    numbers: _Indices = column.to_numpy()
    return numbers


def _groups(rows: pa.Table, names: Sequence[str]) -> _Indices:
    """A number for every row, equal for rows that agree in all these columns."""
    groups: _Indices = np.zeros(rows.num_rows, np.int64)
    for name in names:
        column = rows[name].combine_chunks()
        encoded = pc.dictionary_encode(column, null_encoding="encode")
        codes = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        groups = groups * (len(encoded.dictionary) + 1) + codes
        groups = np.unique(groups, return_inverse=True)[1].astype(np.int64)
    return groups


def _ordinals(groups: _Indices) -> _Indices:
    """The position of each row within its group."""
    order = np.argsort(groups, kind="stable")
    in_order = groups[order]
    is_first = np.append(True, in_order[1:] != in_order[:-1])[: len(order)]
    places = np.arange(len(order))
    ordinals = np.empty(len(order), np.int64)
    ordinals[order] = places - np.maximum.accumulate(np.where(is_first, places, 0))
    return ordinals


def _unequal(ours: pa.ChunkedArray, theirs: pa.ChunkedArray) -> npt.NDArray[np.bool_]:
    """A mask of the rows in which two columns differ; null equals null and NaN equals NaN."""
    if pa.types.is_null(ours.type):
        return np.zeros(len(ours), bool)
    equal = pc.fill_null(pc.equal(ours, theirs), False)
    equal = pc.or_(equal, pc.and_(pc.is_null(ours), pc.is_null(theirs)))
    if pa.types.is_floating(ours.type):
        both = pc.and_(pc.is_nan(ours), pc.is_nan(theirs))
        equal = pc.or_(equal, pc.fill_null(both, False))
    unequal: npt.NDArray[np.bool_] = ~equal.to_numpy()
    return unequal


def _largest_difference(
    ours: pa.ChunkedArray, theirs: pa.ChunkedArray, unequal: npt.NDArray[np.bool_]
) -> float | None:
    kind = ours.type
    is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    if not is_number or not unequal.any():
        return None
    mask = pa.array(unequal)
    one, other = (
        column.filter(mask).cast(pa.float64(), safe=False).to_numpy() for column in (ours, theirs)
    )
    with np.errstate(invalid="ignore"):  # Infinity less infinity.
        distances = np.abs(one - other)
    distances = distances[np.isfinite(distances)]  # Null against a number has no distance.
    return float(distances.max()) if len(distances) else None


# Files and samples.


@contextmanager
def _opened(path: Path) -> Iterator[pq.ParquetFile]:
    try:
        with pq.ParquetFile(path) as file:
            yield file
    except pa.ArrowInvalid as error:
        raise CorruptStateError(
            f"{path} is not a Parquet file, or a damaged one: {error}"
        ) from error


def _has_output(directory: Path) -> bool:
    return bool(committed_files(directory))


def _text(value: pa.Scalar | None) -> str | None:
    return None if value is None else str(_value(value))


def _value(value: pa.Scalar) -> Any:
    """A value as JSON, with text cut to ``TEXT_MAX`` characters."""
    try:
        plain = value.as_py()
    except (ValueError, OverflowError):  # Nanoseconds, or a date that Python does not have.
        plain = str(value.value)
    if plain is None or isinstance(plain, (bool, int)):
        return plain
    if isinstance(plain, float) and math.isfinite(plain):
        return plain
    text = plain.hex() if isinstance(plain, bytes) else str(plain)
    return text if len(text) <= TEXT_MAX else f"{text[: TEXT_MAX - 1]}…"
