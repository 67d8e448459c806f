"""Rows: tuples whose fields may have names."""

import pickle
from typing import Any

import pytest

from weir.common.row import Row, row_class, rows_of


def test_a_named_row_is_read_by_position_key_and_attribute() -> None:
    row = Row(id=1, name="a")
    assert (row[1], row["name"], row.name) == ("a", "a", "a")  # type: ignore[attr-defined]
    assert row.as_dict() == {"id": 1, "name": "a"}


def test_a_row_equals_the_tuple_of_its_values() -> None:
    assert Row(1, "a") == (1, "a") == Row(id=1, name="a")
    assert hash(Row(1, "a")) == hash((1, "a"))


def test_fields_may_be_called_as_methods_of_a_tuple_are() -> None:
    row: Any = Row(word="a", count=3, index=7)
    assert (row.count, row.index) == (3, 7)


def test_a_field_never_hides_what_a_row_itself_needs() -> None:
    row = Row(field_names=1, as_dict=2, cls=3)
    assert row.as_dict() == {"field_names": 1, "as_dict": 2, "cls": 3}


def test_names_or_positions_but_not_both() -> None:
    with pytest.raises(TypeError, match="not both"):
        Row(1, name="a")


def test_a_missing_field_is_named_beside_the_ones_there_are() -> None:
    with pytest.raises(KeyError, match=r"no field 'x'.*\('id',\)"):
        Row(id=1)["x"]
    with pytest.raises(KeyError, match="no names"):
        Row(1)["x"]
    with pytest.raises(TypeError, match="no field names"):
        Row(1).as_dict()


def test_a_change_is_refused_with_what_to_write_instead() -> None:
    row: Any = Row(id=1, name="a")
    instead = r"Row\(\*\*\{\*\*row\.as_dict\(\), 'id': value\}\)"
    with pytest.raises(AttributeError, match=instead):
        row.id = 2
    with pytest.raises(TypeError, match=instead):
        row["id"] = 2
    with pytest.raises(TypeError, match=r"'name': value"):
        row[1] = "b"
    with pytest.raises(AttributeError, match=r"Row\(\*values\)"):
        Row(1).id = 2  # type: ignore[attr-defined]
    assert row == (1, "a")
    assert Row(**{**row.as_dict(), "id": 2}) == (2, "a")


@pytest.mark.parametrize("row", [Row(1, "a"), Row(id=1, name="a"), Row()])
def test_a_row_survives_pickling_with_its_names(row: Row) -> None:
    again = pickle.loads(pickle.dumps(row))
    assert (again, again.field_names, type(again)) == (row, row.field_names, type(row))


def test_rows_of_the_same_names_share_a_class() -> None:
    first, second = rows_of(["id", "name"], [(1, "a"), (2, "b")])
    assert type(first) is type(second) is row_class(("id", "name"))
    assert repr(second) == "Row(id=2, name='b')"
    assert repr(Row(1, "a")) == "Row(1, 'a')"
