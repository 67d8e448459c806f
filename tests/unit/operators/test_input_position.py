"""The position of a subtask's input, in words."""

import pytest

from weir.operators.input_position import InputPosition


@pytest.mark.parametrize(
    ("position", "words"),
    [
        (InputPosition(), "before the first input record"),
        (InputPosition(None, 4_000, 4_500), "in the input records 4,001 to 4,500 of the attempt"),
        (InputPosition({"rows": 9}, None, 4), "from the start up to 4 in the split {'rows': 9}"),
        (
            InputPosition({"path": "a.parquet"}, [0, 100], [1, 0]),
            "from position [0, 100] up to [1, 0] in the split {'path': 'a.parquet'}",
        ),
        (InputPosition({"rows": 9}, 4), "from position 4 on in the split {'rows': 9}"),
    ],
)
def test_it_says_where_to_look(position: InputPosition, words: str) -> None:
    assert str(position) == words
