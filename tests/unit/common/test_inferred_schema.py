"""Records of no declared type, where columns are needed of them."""

from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from tests.unit.operators.operator_harness import Harness
from weir.common import Types
from weir.common.inferred_schema import InferredSchema
from weir.common.row import Row
from weir.errors import SchemaError
from weir.operators.stateless import MapBatchesOperator, MapOperator


@pytest.mark.parametrize("slices", [[2], [1, 1]])
@pytest.mark.parametrize(
    ("records", "told"),
    [
        ([{"a": 1}, {"a": 2, "b": 3}], "has the fields a, b, but those before it have a"),
        ([{"a": 1, "b": 3}, {"a": 2}], "has the fields a, but those before it have a, b"),
        ([Row(a=1), Row(a=2, b=3)], "has the fields a, b, but those before it have a"),
        ([{"a": 1}, {"a": 2.5}], "the field 'a' of records holds float and int"),
        ([{"a": 1}, {"a": True}], "the field 'a' of records holds bool and int"),
        ([{"a": 1}, (2,)], "which has no field names"),
    ],
)
def test_what_does_not_fit_is_refused_in_any_slices(
    records: list[Any], slices: list[int], told: str
) -> None:
    harness = Harness(partial(MapBatchesOperator, lambda batch: batch), keyed=False)
    for size in slices[:-1]:
        harness.rows(records[:size])
    with pytest.raises(SchemaError, match=told) as refused:
        harness.rows(records[sum(slices[:-1]) :])
    assert str(refused.value).startswith("'op' needs columns: ")
    assert "declare output_type" in str(refused.value)


def test_the_order_of_fields_does_not_matter_and_null_fits_every_field() -> None:
    schema = InferredSchema()
    assert schema.columns([{"a": None, "b": "x"}]).to_pydict() == {"a": [None], "b": ["x"]}
    assert schema.columns([{"b": "y", "a": 1}]).to_pydict() == {"a": [1], "b": ["y"]}
    last = schema.columns([Row(a=None, b="z")])
    assert last.schema == pa.schema({"a": pa.int64(), "b": pa.string()})


def test_a_nested_field_may_not_lose_a_part_either() -> None:
    schema = InferredSchema()
    schema.columns([{"a": {"x": 1}}])
    with pytest.raises(SchemaError, match=r"'a' of records was struct<x: int64> and is struct"):
        schema.columns([{"a": {"x": 1, "y": 2}}])


def test_a_declared_type_makes_null_of_what_a_record_leaves_out() -> None:
    kind = Types.ROW_NAMED(["a", "b"], [Types.LONG(), Types.LONG()])
    made = Harness(partial(MapOperator, lambda record: record, kind), keyed=False)
    rows = made.rows([{"a": 1}, {"a": 2, "b": 3}])
    assert rows == [(1, None), (2, 3)]
    assert made.output.batches[0].columns.to_pydict() == {"a": [1, 2], "b": [None, 3]}
