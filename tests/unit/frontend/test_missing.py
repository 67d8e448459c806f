"""The subtasks of a chain whose acknowledgements are missing, in words."""

import pytest

from checkpoints.models import Checkpoint
from frontend.checkpoint.details import _missing


@pytest.mark.parametrize(
    ("missing", "acknowledged", "text"),
    [
        ([], 2, ""),
        ([0, 1], 0, "waiting for all 2"),
        ([1, 2], 1, "waiting for totals-1, totals-2"),
        ([0], 0, "waiting for totals-0"),
    ],
)
def test_all_are_missing_only_where_none_acknowledged(
    missing: list[int], acknowledged: int, text: str
) -> None:
    assert _missing(Checkpoint(settled_at=None), "totals", missing, acknowledged) == text
