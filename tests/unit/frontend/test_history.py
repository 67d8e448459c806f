"""The history of a job's checkpoints: percentiles, and the bars where there are too many rows."""

import pytest

from checkpoints.models import Checkpoint
from frontend.job.history import drawn, percentile
from weir.protocol.lifecycle import CheckpointStatus


@pytest.mark.parametrize(
    ("share", "expected"), [(0.0, 1), (0.25, 1), (0.26, 2), (0.5, 2), (0.95, 4), (1.0, 4)]
)
def test_a_percentile_is_the_least_value_that_so_many_do_not_exceed(
    share: float, expected: int
) -> None:
    assert percentile([4, 1, 3, 2], share) == expected


def test_of_one_value_every_percentile_is_that_one_and_of_none_there_is_none() -> None:
    assert [percentile([7], share) for share in (0.0, 0.5, 1.0)] == [7, 7, 7]
    assert percentile([], 0.5) is None


def row(number: int, duration_ms: int, status: str = CheckpointStatus.COMPLETED) -> Checkpoint:
    return Checkpoint(number=number, duration_ms=duration_ms, status=status)


def test_all_rows_are_drawn_while_there_is_room() -> None:
    rows = [row(number, 10) for number in (3, 1, 2)]
    assert [one.number for one in drawn(rows, at_most=3)] == [1, 2, 3]


def test_of_more_the_longest_of_each_run_and_all_that_failed_are_drawn() -> None:
    rows = [row(number, 10) for number in range(1, 9)]
    rows[1].duration_ms = 90
    rows[2].status = rows[5].status = CheckpointStatus.FAILED
    rows[7].duration_ms = 80
    assert [one.number for one in drawn(rows, at_most=2)] == [2, 3, 6, 8]
