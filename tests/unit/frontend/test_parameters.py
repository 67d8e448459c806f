import pytest

from frontend.base.query_parameters import BIGINT_MAX, whole_number


@pytest.mark.parametrize(
    ("text", "number"),
    [("0", 0), ("7", 7), ("07", 7), ("999", 999)]
    + [(text, None) for text in (None, "", "-1", "1.5", " 1", "1000", "0007", "²", "٣", "\0")],
)
def test_only_what_is_a_number_within_bounds_is_one(text: str | None, number: int | None) -> None:
    assert whole_number(text, 999) == number


def test_the_bound_itself_is_within_and_the_next_number_of_as_many_digits_is_not() -> None:
    assert whole_number(str(BIGINT_MAX), BIGINT_MAX) == BIGINT_MAX
    assert whole_number(str(BIGINT_MAX + 1), BIGINT_MAX) is None
