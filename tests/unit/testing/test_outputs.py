"""Outputs compared: lost, duplicated, unexpected and out of order are counted apart."""

from typing import Any

import pytest

from weir.common import Row
from weir.errors import UserError
from weir.testing import OutputDifference, assert_same_output, compare_outputs

A, B, C = ("a", 1), ("a", 2), ("b", 1)


def first(record: Any) -> Any:
    return record[0]


@pytest.mark.parametrize(
    ("actual", "difference"),
    [
        ([A, B, C], OutputDifference()),
        ([C, A, B], OutputDifference()),  # Keys do not wait for each other.
        ([A, C], OutputDifference(lost=(B,))),
        ([A, B, C, A], OutputDifference(duplicated=(A,))),
        ([A, B, C, ("c", 9)], OutputDifference(unexpected=(("c", 9),))),
        ([B, A, C], OutputDifference(out_of_order=(A,))),
        ([B, B, ("a", 0)], OutputDifference((A, C), (B,), (("a", 0),), ())),
    ],
)
def test_each_kind_of_difference_is_told(actual: list[Any], difference: OutputDifference) -> None:
    assert compare_outputs([A, B, C], actual, key=first) == difference
    assert difference.is_empty == (actual in ([A, B, C], [C, A, B]))


def test_without_a_key_no_order_is_compared() -> None:
    assert compare_outputs([A, B, C], [C, B, A]).is_empty


def test_equal_records_are_counted_and_keep_their_order() -> None:
    assert compare_outputs([A, B, A], [A, B, A], key=first).is_empty
    assert compare_outputs([A, B, A], [A, B], key=first) == OutputDifference(lost=(A,))
    assert compare_outputs([A, B], [A, A, B], key=first) == OutputDifference(duplicated=(A,))


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ({"a": [1, {2}]}, {"a": [1, {2}]}, True),
        ({"a": [1, {2}]}, {"a": [1, {3}]}, False),
        (float("nan"), float("nan"), True),
        ((1,), [1], False),
        (1, True, False),
        (1, 1.0, False),
        (Row(a=1), Row(a=1), True),
        (Row(a=1), Row(b=1), False),
    ],
)
def test_records_are_the_same_by_value_and_type(one: Any, other: Any, same: bool) -> None:
    assert compare_outputs([one], [other]).is_empty is same


def test_an_assertion_says_how_many_and_which() -> None:
    with pytest.raises(AssertionError, match=r"lost 1 \(\('a', 2\)\); duplicated 0; unexpected 7"):
        assert_same_output([A, B], [A, *range(7)])


def test_records_that_cannot_be_hashed_are_refused() -> None:
    class Odd:
        __hash__ = None  # type: ignore[assignment]

    with pytest.raises(UserError, match="cannot be compared"):
        compare_outputs([Odd()], [])
