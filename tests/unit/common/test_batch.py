"""Batches: one set of records with two faces."""

from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from weir.common.batch import Batch, can_concat, concat
from weir.common.row import Row
from weir.common.typeinfo import Types
from weir.errors import SchemaError

COLUMNS = pa.RecordBatch.from_pydict({"id": [1, 2, 3], "name": ["a", "b", "c"]})
TIMES = np.array([10, 20, 30], np.int64)


def test_columns_read_as_named_rows() -> None:
    rows = Batch.of_columns(COLUMNS).rows
    assert rows == [(1, "a"), (2, "b"), (3, "c")]
    assert rows[0].name == "a"


def test_a_column_of_plain_values_reads_as_those_values() -> None:
    batch = Batch.of_columns(pa.RecordBatch.from_pydict({"value": [1, 2]}), Types.LONG())
    assert batch.rows == [1, 2]


def test_rows_become_columns_by_their_names_or_their_type() -> None:
    for rows, declared in (
        ([Row(id=1, name="a")], None),
        ([{"id": 1, "name": "a"}], None),
        ([(1, "a")], Types.ROW_NAMED(["id", "name"], [Types.LONG(), Types.STRING()])),
    ):
        assert Batch.of_rows(rows, declared).columns.to_pydict() == {"id": [1], "name": ["a"]}


def test_rows_that_nothing_describes_say_what_to_declare() -> None:
    with pytest.raises(SchemaError, match=r"the record 1 of type int.*declare output_type"):
        _ = Batch.of_rows([1, 2]).columns
    with pytest.raises(
        SchemaError, match=r"field .id. of records holds int and str: .*; declare output_type"
    ):
        _ = Batch.of_rows([{"id": 1}, {"id": "a"}]).columns


def test_columns_of_a_declared_type_give_the_records_of_that_type() -> None:
    columns = pa.record_batch({"id": [1, None], "price": ["1.50", None]})
    kinds = [Types.LONG(), Types.BIG_DEC()]
    for kind, first in (
        (Types.TUPLE(kinds), (1, Decimal("1.50"))),
        (Types.ROW_NAMED(["id", "price"], kinds), Row(id=1, price=Decimal("1.50"))),
    ):
        rows = Batch.of_columns(columns, kind).rows
        assert rows == [first, (None, None)]
        assert {type(row) for row in rows} == {type(first)}


def test_slice_and_take_keep_order_times_and_face() -> None:
    for batch in (
        Batch.of_columns(COLUMNS, None, TIMES),
        Batch.of_rows(["a", "b", "c"], None, TIMES),
    ):
        part, chosen = batch.slice(1, 3), batch.take(np.array([2, 0]))
        assert part.rows == batch.rows[1:]
        assert chosen.rows == [batch.rows[2], batch.rows[0]]
        assert part.timestamps is not None
        assert chosen.timestamps is not None
        assert (part.timestamps.tolist(), chosen.timestamps.tolist()) == ([20, 30], [30, 10])
        assert part.is_columnar == chosen.is_columnar == batch.is_columnar


def test_a_record_stays_what_it_is_after_a_look_at_its_columns() -> None:
    """Two streams read the same batch: one by columns, the other must still get its dicts."""
    batch = Batch.of_rows([{"id": 1}, {"id": 2}])
    assert batch.columns.num_rows == 2
    assert not batch.is_columnar
    assert batch.take(np.array([1])).rows == [{"id": 2}]
    assert batch.slice(1, 2).rows == [{"id": 2}]


def test_the_size_of_columns_is_exact_and_that_of_rows_grows_with_them() -> None:
    assert Batch.of_columns(COLUMNS).size == COLUMNS.nbytes
    assert Batch.of_rows([str(i) * 100 for i in range(10)]).size > 1_000
    assert Batch.of_rows([]).size == 0


def test_objects_that_only_cloudpickle_can_take_have_a_size() -> None:
    class Local:
        pass

    assert Batch.of_rows([Local()]).size > 0


def test_batches_of_one_kind_join_in_order() -> None:
    rows = concat([Batch.of_rows(["a"], None, TIMES[:1]), Batch.of_rows(["b"], None, TIMES[1:2])])
    assert rows.rows == ["a", "b"]
    assert rows.timestamps is not None
    assert rows.timestamps.tolist() == [10, 20]
    columns = concat([Batch.of_columns(COLUMNS), Batch.of_columns(COLUMNS)])
    assert columns.columns.column("id").to_pylist() == [1, 2, 3, 1, 2, 3]


@pytest.mark.parametrize(
    "other",
    [
        Batch.of_rows(["a"]),
        Batch.of_columns(COLUMNS, None, TIMES),
        Batch.of_columns(COLUMNS.select(["id"])),
        Batch.of_columns(COLUMNS, Types.LONG()),
    ],
    ids=["face", "times", "schema", "type"],
)
def test_batches_of_different_kinds_do_not_join(other: Batch) -> None:
    assert can_concat(Batch.of_columns(COLUMNS), Batch.of_columns(COLUMNS))
    assert not can_concat(Batch.of_columns(COLUMNS), other)
