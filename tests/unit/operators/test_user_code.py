"""Errors of user code: which of them have a place, at which they are recognised."""

import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.operators.operator_harness import Harness
from weir.errors import SchemaError, StorageError, SubtaskError
from weir.operators.functions import MapFunction, RuntimeContext
from weir.operators.stateless import MapBatchesOperator, MapOperator
from weir.operators.user_code import failure_at, failure_on


def raised_by(function: Callable[[], Any]) -> Exception:
    """The error of a function, on a record."""
    try:
        function()
    except Exception as error:
        return failure_on("'op'", {"id": 7}, error)
    raise AssertionError("it raised nothing")


def place_in(function: Callable[[], Any]) -> str | None:
    error = raised_by(function)
    assert isinstance(error, SubtaskError)
    return error.place


def chained(cause: Exception, *, hidden: bool = False) -> Callable[[], None]:
    def fail() -> None:
        try:
            raise cause
        except Exception:
            if hidden:
                raise ValueError("no price") from None
            raise ValueError("no price")  # noqa: B904

    return fail


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (lambda: {}["price"], "KeyError"),
        (lambda: [][0], "IndexError"),
        (lambda: 1 / 0, "ZeroDivisionError"),
        (lambda: int("n/a"), "ValueError"),
        (lambda: b"\xff".decode(), "UnicodeDecodeError"),
        (lambda: "a" + 1, "TypeError"),  # type: ignore[operator]
        (lambda: None.price, "AttributeError"),  # type: ignore[attr-defined]
        (lambda: missing, "NameError"),  # type: ignore[name-defined]  # noqa: F821
        (chained(KeyError("price")), "ValueError"),
        (chained(ConnectionError(), hidden=True), "ValueError"),
    ],
)
def test_an_error_that_only_the_program_can_make_has_a_place(
    function: Callable[[], Any], name: str
) -> None:
    assert place_in(function) == f"'op' fails on the record {{'id': 7}} with {name}"


@pytest.mark.parametrize(
    "function",
    [
        lambda: socket.create_connection(("127.0.0.1", 1)),
        lambda: Path("/nowhere/at/all").read_text(),
        lambda: json.loads("<html>"),  # A server's answer, perhaps.
        chained(TimeoutError()),
        chained(ConnectionResetError()),
        chained(json.JSONDecodeError("not JSON", "<html>", 0)),
    ],
)
def test_an_error_from_outside_has_none_even_as_a_cause(function: Callable[[], Any]) -> None:
    assert place_in(function) is None


def test_the_address_of_an_object_is_no_part_of_the_place() -> None:
    class Order:
        pass

    places = set()
    for record in (one := Order(), Order()):
        error = failure_on("'op'", [record], KeyError("price"))
        assert isinstance(error, SubtaskError)
        assert f"{id(record):x}" in str(error)
        places.add(error.place)
    assert one is not record
    (place,) = places
    assert place is not None
    assert "Order object>] with KeyError" in place


def test_errors_of_weir_keep_their_kind() -> None:
    storage = StorageError("full")
    assert failure_on("'op'", 1, storage) is storage
    assert isinstance(failure_on("'op'", 1, SchemaError("no column")), SchemaError)


def test_the_place_names_the_record_that_failed() -> None:
    records = [1, 2, 0, 4]
    left = iter(records)
    try:
        _ = [1 / record for record in left]
    except ZeroDivisionError as error:
        failure = failure_at("'op'", records, left, error)
    assert isinstance(failure, SubtaskError)
    assert failure.place == "'op' fails on the record 0 with ZeroDivisionError"


def test_the_place_in_a_batch_is_the_same_however_the_batch_is_cut() -> None:
    places = set()
    for rows in (1, 5):
        harness = Harness(lambda: MapBatchesOperator(lambda batch: batch["missing"]), keyed=False)
        with pytest.raises(SubtaskError, match=f"batch of {rows} rows") as raised:
            harness.columns(id=list(range(rows)))
        places.add(raised.value.place)
    assert places == {"'op' fails on a batch (id) with KeyError"}


class Unopened(MapFunction):
    """Needs what is not there yet."""

    def open(self, runtime_context: RuntimeContext) -> None:
        raise KeyError("the table")

    def map(self, value: Any) -> Any:
        return value


def test_open_has_no_place() -> None:
    with pytest.raises(SubtaskError, match=r"'op' failed in open\(\): KeyError") as raised:
        Harness(lambda: MapOperator(Unopened()), keyed=False)
    assert raised.value.place is None
