"""Running aggregates over columns, combined before they cross the exchange.

Every aggregate is made of *parts* that merge by themselves: a sum, a count, a smallest or largest
value, and ``seen``, whether any value was not null; a mean is a sum and a count. A *combiner*
before the exchange turns each slice into one row of parts per key; the *final* operator merges
parts into its table and emits one row per key and slice with the aggregates so far. Where a slice
has hardly fewer keys than rows, the combiner passes every row on as parts of its own, and does not
try to combine the next few slices.

Parts are int64, float64 or a flag, for every type of column; a column's own type (a timestamp, a
narrow integer) travels as metadata of its field and comes back in the result. Nulls do not count:
the sum of nothing is null, as in SQL. Integer sums are 64 bits wide; a sum beyond them is refused
rather than wrapped around. Only the sum after a slice counts, not its steps: where the sum of a
slice overflows, the combiner passes the rows on one by one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from weir.common.batch import Batch
from weir.errors import GraphError, SchemaError, UserError
from weir.operators.base import Operator, OperatorContext
from weir.operators.keys import ColumnKeySelector
from weir.operators.row_groups import Groups, SlotGrouper, group_rows
from weir.operators.tuple_slots import TupleSlots

if TYPE_CHECKING:
    from weir.state.columns.changed_rows import Slots
    from weir.state.columns.column import Column
    from weir.state.columns.table import ColumnarTable

Values = npt.NDArray[Any]

FUNCTIONS = ("sum", "count", "min", "max", "mean")
EVERY_ROW = "*"
_OWN_TYPE = b"weir.type"


@dataclass(frozen=True, slots=True)
class AggregateSpec:
    """One aggregate: ``function`` over ``column``, called ``name``."""

    name: str
    column: str
    function: str


class Part(NamedTuple):  # Hashed and made for every slice, which a named tuple does fastest.
    """One mergeable piece of aggregates: sum, count, min, max or seen, of a column."""

    kind: str
    column: str


def parse_aggregates(aggregates: Mapping[str, tuple[str, str]]) -> tuple[AggregateSpec, ...]:
    """The aggregates of ``total=("amount", "sum"), n=("*", "count")``.

    Raises:
        GraphError: There are none, or one is not a pair of a column and a known function.
    """
    if not aggregates:
        raise GraphError('name at least one aggregate, e.g. total=("amount", "sum")')
    specs = []
    for name, pair in aggregates.items():
        if not (
            isinstance(pair, tuple) and len(pair) == 2 and all(isinstance(p, str) for p in pair)
        ):
            raise GraphError(
                f'{name} must be a pair (column, function), e.g. {name}=("amount", "sum")'
            )
        column, function = pair
        if function not in FUNCTIONS:
            raise GraphError(f"{name}: no aggregate {function!r}; there are {', '.join(FUNCTIONS)}")
        if column == EVERY_ROW and function != "count":
            raise GraphError(f"{name}: {function} needs a column; '*' is for count")
        specs.append(AggregateSpec(name, column, function))
    return tuple(specs)


def parts_of(specs: Sequence[AggregateSpec]) -> tuple[Part, ...]:
    """The parts that these aggregates need, each once."""
    needed: dict[Part, None] = {}
    for spec in specs:
        match spec.function:
            case "count":
                needed[Part("count", spec.column)] = None
            case "mean":
                needed |= {Part("sum", spec.column): None, Part("count", spec.column): None}
            case kind:
                needed |= {Part(kind, spec.column): None, Part("seen", spec.column): None}
    return tuple(needed)


@dataclass(frozen=True, slots=True)
class CombineFactory:
    """Makes the combiner of a running aggregate."""

    selector: ColumnKeySelector
    specs: tuple[AggregateSpec, ...]

    def __call__(self) -> Operator:
        """A new operator."""
        return CombineOperator(self.selector, parts_of(self.specs))


@dataclass(frozen=True, slots=True)
class RunningAggregateFactory:
    """Makes the final operator of a running aggregate."""

    selector: ColumnKeySelector
    specs: tuple[AggregateSpec, ...]

    def __call__(self) -> Operator:
        """A new operator."""
        return RunningAggregateOperator(self.selector, self.specs)


class CombineOperator(Operator):
    """Each slice as one row of parts per key, or per row where that saves little.

    Shape: n rows -> at most n rows: key columns (and further grouping columns), then one column per
    part.
    """

    REDUCTION_MIN = 2  # Grouping costs more than it saves below this many rows per group.
    # After a slice that was hardly reduced; twice as many after each further one.
    SLICES_SKIPPED = 16
    SLICES_SKIPPED_MAX = 256  # At five milliseconds a slice, a second and a half.

    def __init__(self, selector: ColumnKeySelector, parts: tuple[Part, ...]) -> None:
        self._selector = selector
        self._parts = parts
        self._skip = 0
        self._next_skip = self.SLICES_SKIPPED

    @property
    def carries_watermarks(self) -> bool:
        """Always: the row of a group stands where the group's first row stood."""
        return True

    def on_batch(self, batch: Batch, input_index: int) -> None:
        """Combine a slice."""
        self.ctx.output.emit(self.combined(batch))

    def group_columns(self, batch: Batch) -> tuple[list[pa.Array], list[str]]:
        """The columns by which rows are grouped, and their names: the key columns."""
        return self._selector.columns_of(batch), list(self._selector.column_names)

    def kept_apart(self, batch: Batch, columns: list[pa.Array]) -> list[pa.Array]:
        """Further columns by which rows are grouped, and which are not passed on: none."""
        return []

    def combined(self, batch: Batch) -> Batch:
        """The slice as rows of parts."""
        records = self.columns_of(batch)
        columns, names = self.group_columns(batch)
        partial = raw_parts(records, self._parts, self.ctx.name)
        groups = self._groups([*columns, *self.kept_apart(batch, columns)])
        watermarks = batch.watermarks
        if groups is not None and all(sums_fit(p, groups) for p in partial):
            if watermarks is not None:
                groups = groups.in_order
                watermarks = watermarks.among(groups.first_rows)
            columns = [column.take(pa.array(groups.first_rows)) for column in columns]
            partial = [merge_rows(p, groups) for p in partial]
        return Batch.of_columns(part_batch(columns, names, partial), watermarks=watermarks)

    def _groups(self, columns: list[pa.Array]) -> Groups | None:
        if self._skip:
            self._skip -= 1
            return None
        groups = group_rows(columns)
        if len(groups.first_rows) * self.REDUCTION_MIN > len(columns[0]):
            self._skip = self._next_skip
            self._next_skip = min(2 * self._next_skip, self.SLICES_SKIPPED_MAX)
            return None
        self._next_skip = self.SLICES_SKIPPED
        return groups


class RunningAggregateOperator(Operator):
    """Merges parts into a table by key; emits the aggregates of every key of the slice."""

    def __init__(self, selector: ColumnKeySelector, specs: tuple[AggregateSpec, ...]) -> None:
        self._selector = selector
        self._specs = specs
        self._reader = PartReader(parts_of(specs))
        self._table: PartTable | None = None

    @property
    def carries_watermarks(self) -> bool:
        """Always: a key's aggregates of the slice stand where its first row stood."""
        return True

    def on_batch(self, batch: Batch, input_index: int) -> None:
        """Merge a slice and emit the aggregates of its keys."""
        columns = batch.columns
        keys = self._selector.columns_of(batch)
        parts = self._reader.read(columns)
        if self._table is None:
            self._table = PartTable(self.ctx, "aggregates", [key.type for key in keys], parts)
        slots, rows = self._table.merge(keys, parts)
        made = self._table.results(slots, self._specs)
        shown = [key.take(pa.array(rows)) for key in keys]
        names = [*self._selector.column_names, *(spec.name for spec in self._specs)]
        timestamps = None if batch.timestamps is None else batch.timestamps[rows]
        result = pa.RecordBatch.from_arrays([*shown, *made], names=names)
        watermarks = None if batch.watermarks is None else batch.watermarks.among(rows)
        self.ctx.output.emit(Batch.of_columns(result, timestamps=timestamps, watermarks=watermarks))


class PartColumn(NamedTuple):
    """The values of one part, one per row, and the original type of its column."""

    part: Part
    values: Values
    own_type: pa.DataType


class SumBound:
    """An upper bound of the absolute values of a table's column of integer sums.

    Where it stays within 64 bits no single sum has to be checked. It rises with every slice by the
    most that its rows can add to one sum. When it is too high it is taken anew from the column, but
    not before as many rows were added as the column has, so that each row pays for one at most.
    """

    def __init__(self, column: "Column", table: "ColumnarTable") -> None:
        self._column = column
        self._table = table
        self._bound = column.magnitude(table.rows)
        self._rows_since = 0

    def admits(self, values: Values) -> bool:
        """Whether no sum can leave 64 bits with these values; they count as added from now on."""
        added = _magnitude(values) * len(values)
        self._rows_since += len(values)
        if self._bound + added >= _INT64_END and self._rows_since >= self._table.rows:
            self._bound = self._column.magnitude(self._table.rows)
            self._rows_since = 0
        self._bound += added
        return self._bound < _INT64_END


class PartTable:
    """Parts by key in the operator's state, and the aggregates computed from them."""

    def __init__(
        self,
        ctx: OperatorContext,
        name: str,
        key_types: Sequence[pa.DataType],
        parts: Sequence[PartColumn],
        extra: Mapping[str, npt.DTypeLike] | None = None,
    ) -> None:
        self._label = ctx.label
        self._own_types = {p.part: p.own_type for p in parts}
        dtypes: dict[str, npt.DTypeLike] = {_name(p.part): p.values.dtype for p in parts}
        dtypes |= extra or {}
        # A tuple key has no Arrow type that hashes as the tuple does, so it is a Python value.
        key_type = _key_type(key_types[0]) if len(key_types) == 1 else None
        self.table: ColumnarTable = ctx.state.table(name, key_type, dtypes)
        self._columns = {p.part: self.table.column(_name(p.part)) for p in parts}
        self._bounds = {
            p.part: SumBound(self._columns[p.part], self.table)
            for p in parts
            if p.part.kind == "sum" and p.values.dtype == np.int64
        }
        self._ordered = {p.part.column for p in parts if p.part.kind in ("min", "max")}
        self._grouper = SlotGrouper()
        self._tuples: dict[tuple[pa.DataType, ...], TupleSlots] = {}

    def merge(
        self, keys: Sequence[pa.Array], parts: Sequence[PartColumn]
    ) -> "tuple[Slots, npt.NDArray[np.int64]]":
        """Merge rows of parts into the table.

        Shape: n rows -> the k distinct slots they went to, and the first row of each.

        Raises:
            UserError: The sum of an integer column leaves 64 bits.
            SchemaError: A column has another type than before.
        """
        for row_part in parts:
            if row_part.own_type != self._own_types[row_part.part]:
                raise SchemaError(
                    f"the column {row_part.part.column!r} was {self._own_types[row_part.part]} and "
                    f"is {row_part.own_type} now; cast it to one type before the aggregate"
                )
        slots = self._slots_of(keys)
        adds_up = [self._adds_up(row_part) for row_part in parts]  # Each bound learns of the rows.
        if all(adds_up):
            return self._add(slots, parts)
        groups = self._grouper.group(slots, self.table.rows)
        distinct = slots[groups.first_rows]
        seen_before = {
            name: self._columns[Part("seen", name)].gather(distinct) != 0 for name in self._ordered
        }
        for row_part in parts:
            part, values = row_part.part, merge_rows(row_part, groups).values
            column = self._columns[part]
            before = column.gather(distinct)
            merged = _MERGE[part.kind](before, values)
            if part.kind == "sum" and merged.dtype == np.int64:
                self._check_sums(row_part, groups, before, values, merged, keys)
            if part.kind in ("min", "max"):
                # A new row of the table is zero, which is not a smallest value yet.
                merged = np.where(seen_before[part.column], merged, values)
            column.scatter(distinct, merged)
        return distinct, groups.first_rows

    def _adds_up(self, rows: PartColumn) -> bool:
        """Whether the rows can be added one by one: in no order can a sum leave 64 bits."""
        match rows.part.kind:
            case "sum" if rows.part in self._bounds:
                return self._bounds[rows.part].admits(rows.values)
            case "sum" | "count":
                return True
            case "seen":
                return bool(rows.values.all())
            case _:
                return False  # A new row of the table is zero, which is no smallest value.

    def _add(
        self, slots: "Slots", parts: Sequence[PartColumn]
    ) -> "tuple[Slots, npt.NDArray[np.int64]]":
        first_rows = self._grouper.first_rows(slots, self.table.rows)
        distinct = slots[first_rows]
        for part, values, _ in parts:
            if part.kind == "seen":
                self._columns[part].scatter(distinct, 1)
            else:
                self._columns[part].add(slots, values)
        return distinct, first_rows

    def _check_sums(
        self,
        rows: PartColumn,
        groups: Groups,
        before: Values,
        values: Values,
        merged: Values,
        keys: Sequence[pa.Array],
    ) -> None:
        """Check that no integer sum has left 64 bits.

        Raises:
            UserError: A sum has; the message names its key.
        """
        # The sign of a sum that wrapped around is that of neither of its terms.
        if not ((before ^ merged) & (values ^ merged) < 0).any() and sums_fit(rows, groups):
            return
        outside = _outside(rows.values, groups, before)
        if not len(outside):
            return  # Only an intermediate sum overflowed: modulo 2**64 the end result is right.
        at = int(groups.first_rows[outside[0]])
        key = [column[at].as_py() for column in keys]
        raise UserError(
            f"{self._label}: the sum of the integer column {rows.part.column!r} for the key "
            f"{key[0] if len(key) == 1 else tuple(key)!r} leaves 64 bits (-2**63 to 2**63 - 1). "
            "Cast the column to float64 before the aggregate, which rounds sums beyond 2**53; or "
            "sum per record, with sum or reduce, where integers and decimals have no bounds"
        )

    def _slots_of(self, keys: Sequence[pa.Array]) -> "Slots":
        if len(keys) == 1:
            return self.table.slots_of(keys[0])
        kinds = tuple(key.type for key in keys)
        tuples = self._tuples.get(kinds)
        if tuples is None:
            tuples = self._tuples[kinds] = TupleSlots(self.table, kinds)
        return tuples.slots_of(keys)

    def results(self, slots: "Slots", specs: Sequence[AggregateSpec]) -> list[pa.Array]:
        """The aggregates of these slots, one column per aggregate."""
        parts = parts_of(specs)
        return aggregates_of(
            [PartColumn(p, self._columns[p].gather(slots), self._own_types[p]) for p in parts],
            specs,
        )


def aggregates_of(parts: Sequence[PartColumn], specs: Sequence[AggregateSpec]) -> list[pa.Array]:
    """The aggregates that parts make, one column per aggregate.

    Shape: per part n values -> per aggregate n values.
    """
    columns = {p.part: p for p in parts}
    made: list[pa.Array] = []
    for spec in specs:
        match spec.function:
            case "count":
                made.append(pa.array(columns[Part("count", spec.column)].values))
            case "mean":
                counts = columns[Part("count", spec.column)].values
                empty = counts == 0
                sums = columns[Part("sum", spec.column)].values
                mean = sums / np.where(empty, 1, counts)
                made.append(pa.array(mean, pa.float64(), mask=empty))
            case kind:
                empty = columns[Part("seen", spec.column)].values == 0
                rows = columns[Part(kind, spec.column)]
                array = pa.array(rows.values, mask=empty if empty.any() else None)
                made.append(array if kind == "sum" else _restored(array, rows.own_type))
    return made


def raw_parts(columns: pa.RecordBatch, parts: Sequence[Part], operator: str) -> list[PartColumn]:
    """Every row as parts of its own; ``operator`` is the aggregate's name, for messages.

    Shape: n rows -> per part n values.

    Raises:
        SchemaError: A column is missing, or its type does not allow the aggregate.
    """
    count = columns.num_rows
    read: dict[str, tuple[Values, Values | None, pa.DataType]] = {}
    made = []
    for part in parts:
        if part.column == EVERY_ROW:
            made.append(PartColumn(part, np.ones(count, np.int64), pa.int64()))
            continue
        if part.kind in ("count", "seen"):
            dtype: Any = np.int64 if part.kind == "count" else np.uint8
            valid = _valid(_column(columns, part.column))
            ones = np.ones(count, dtype) if valid is None else valid.astype(dtype)
            made.append(PartColumn(part, ones, pa.int64()))
            continue
        if part.column not in read:
            read[part.column] = _numbers(columns, part.column, operator)
        values, valid, own_type = read[part.column]
        if part.kind == "sum" and pa.types.is_temporal(own_type):
            raise SchemaError(f"{part.column!r} is {own_type}, which cannot be summed or averaged")
        if valid is not None:
            values = np.where(valid, values, _identity(part.kind, values.dtype))
        made.append(PartColumn(part, values, own_type))
    return made


def part_batch(
    columns: Sequence[pa.Array], names: Sequence[str], parts: Sequence[PartColumn]
) -> pa.RecordBatch:
    """Grouping columns and parts as they cross the exchange."""
    schema = _part_schema(
        tuple(names),
        tuple(column.type for column in columns),
        tuple((p.part, p.values.dtype, p.own_type) for p in parts),
    )
    return pa.RecordBatch.from_arrays(
        [*columns, *(pa.array(p.values) for p in parts)], schema=schema
    )


@lru_cache(maxsize=256)  # The same for every slice, and slow to make.
def _part_schema(
    names: tuple[str, ...],
    types: tuple[pa.DataType, ...],
    parts: tuple[tuple[Part, np.dtype[Any], pa.DataType], ...],
) -> pa.Schema:
    fields = [pa.field(name, kind) for name, kind in zip(names, types, strict=True)]
    for part, dtype, own_type in parts:
        metadata = {_OWN_TYPE: pa.schema([("", own_type)]).serialize().to_pybytes()}
        fields.append(pa.field(_name(part), pa.from_numpy_dtype(dtype), metadata=metadata))
    return pa.schema(fields)


class PartReader:
    """Reads the parts out of batches that ``part_batch`` made."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = parts
        self._schema: pa.Schema | None = None
        # Part, index of its column and original type, in batches of that schema.
        self._located: list[tuple[Part, int, pa.DataType]] = []

    def missing(self, schema: pa.Schema) -> list[str]:
        """The names of columns that ``read`` needs and a schema lacks."""
        names = [_name(part) for part in self._parts]
        return [name for name in names if name not in schema.names]

    def read(self, columns: pa.RecordBatch) -> list[PartColumn]:
        """The parts of a batch."""
        schema = columns.schema
        if self._schema is None or not schema.equals(self._schema, check_metadata=True):
            self._located = [
                (part, schema.get_field_index(_name(part)), _own_type(schema.field(_name(part))))
                for part in self._parts
            ]
            self._schema = schema
        return [
            PartColumn(part, columns.column(index).to_numpy(), own_type)
            for part, index, own_type in self._located
        ]


def _own_type(field: pa.Field) -> pa.DataType:
    return pa.ipc.read_schema(pa.py_buffer(field.metadata[_OWN_TYPE])).field(0).type


def merge_rows(rows: PartColumn, groups: Groups) -> PartColumn:
    """One value per group of rows."""
    if groups.is_identity:
        return rows
    kind, values = rows.part.kind, rows.values
    if (
        kind == "seen" and values.all()
    ):  # Nearly always true, and far cheaper to check than to merge.
        return PartColumn(rows.part, np.ones(len(groups.first_rows), values.dtype), rows.own_type)
    merged = np.full(len(groups.first_rows), _identity(kind, values.dtype), values.dtype)
    _MERGE[kind].at(merged, groups.codes, values)
    return PartColumn(rows.part, merged, rows.own_type)


def sums_fit(rows: PartColumn, groups: Groups) -> bool:
    """Whether no sum of a group's rows leaves 64 bits; always True for other parts."""
    values = rows.values
    if rows.part.kind != "sum" or values.dtype != np.int64 or groups.is_identity:
        return True
    return _magnitude(values) * len(values) < _INT64_END or not len(_outside(values, groups))


def _magnitude(values: Values) -> int:
    """An upper bound of the absolute values of integers."""
    largest = int(np.bitwise_or.reduce(values))  # No value is above it, unless one is negative,
    if largest < 0:
        largest = max(int(values.max()), -int(values.min()))  # which takes four times as long.
    return largest


def _outside(values: Values, groups: Groups, before: Values | None = None) -> npt.NDArray[np.int64]:
    """The groups whose sum, added to the value ``before``, leaves 64 bits.

    High and low halves are summed separately, each with room for as many rows as a slice may have.
    """
    known = np.zeros(len(groups.first_rows), np.int64) if before is None else before
    high, low = known >> 32, known & 0xFFFF_FFFF
    np.add.at(high, groups.codes, values >> 32)
    np.add.at(low, groups.codes, values & 0xFFFF_FFFF)
    high += low >> 32
    return np.flatnonzero((high < -(1 << 31)) | (high >= 1 << 31))


_INT64_END = 1 << 63
_MERGE: dict[str, np.ufunc] = {
    "sum": np.add,
    "count": np.add,
    "seen": np.maximum,
    "min": np.minimum,
    "max": np.maximum,
}


def _identity(kind: str, dtype: np.dtype[Any]) -> Any:
    if kind not in ("min", "max"):
        return 0
    if dtype.kind == "f":
        return np.inf if kind == "min" else -np.inf
    limits = np.iinfo(dtype)
    return limits.max if kind == "min" else limits.min


def _name(part: Part) -> str:
    return f"{part.kind}({part.column})"


def _key_type(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _column(columns: pa.RecordBatch, name: str) -> pa.Array:
    if name not in columns.schema.names:
        raise SchemaError(
            f"an aggregate names the column {name!r}, which the records do not have; they have "
            f"{', '.join(columns.schema.names)}"
        )
    return columns.column(name)


def _valid(array: pa.Array) -> npt.NDArray[np.bool_] | None:
    if not array.null_count:
        return None
    valid: npt.NDArray[np.bool_] = array.is_valid().to_numpy(zero_copy_only=False)
    return valid


def _numbers(
    columns: pa.RecordBatch, name: str, operator: str
) -> tuple[Values, npt.NDArray[np.bool_] | None, pa.DataType]:
    array = _column(columns, name)
    kind = array.type
    if pa.types.is_floating(kind):
        stored = pa.float64()
    elif pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        stored = pa.int64()
    elif pa.types.is_temporal(kind) and kind.bit_width in (32, 64):
        array = array.view(pa.int32() if kind.bit_width == 32 else pa.int64())
        stored = pa.int64()
    else:
        raise SchemaError(
            f"the column {name!r} is {kind}, which cannot be aggregated in columns; cast it to "
            "float64 or int64 before, or reduce per record"
        )
    valid = _valid(array)
    try:
        array = array.cast(stored)
    except pa.ArrowInvalid as error:  # Only uint64 has values beyond int64.
        raise SchemaError(
            f"{operator!r} aggregates the column {name!r}, which is {kind}, as int64, and that "
            f"cannot hold all of it: {error}. Cast the column to float64 before the aggregate, "
            "which rounds values beyond 2**53, or aggregate per record"
        ) from error
    values = array.to_numpy() if valid is None else array.fill_null(0).to_numpy()
    return values, valid, kind


def _restored(array: pa.Array, own: pa.DataType) -> pa.Array:
    """A smallest or largest value in the original type of its column."""
    if pa.types.is_temporal(own):
        narrow = pa.int32() if own.bit_width == 32 else pa.int64()
        return array.cast(narrow).view(own)
    return array.cast(own)
