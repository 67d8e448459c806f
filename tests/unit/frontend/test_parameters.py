import pytest

from frontend.base.query_parameters import whole_number


@pytest.mark.parametrize(
    ("text", "number"),
    [("0", 0), ("7", 7), ("07", 7), ("999", 999)]
    + [(text, None) for text in (None, "", "-1", "1.5", " 1", "1000", "0007", "²", "٣", "\0")],
)
def test_only_what_is_a_number_within_bounds_is_one(text: str | None, number: int | None) -> None:
    assert whole_number(text, 999) == number
