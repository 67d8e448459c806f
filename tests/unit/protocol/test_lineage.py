"""Which checkpoints another one builds on."""

from dataclasses import replace

import pytest

from tests.builders import line
from weir.ids import AttemptNumber, CheckpointId, JobId
from weir.protocol.lineage import (
    ANY_ATTEMPT,
    NO_END,
    UNKNOWN,
    AttemptBase,
    Lineage,
    lineage_of,
    output_lineage_of,
)


def base(
    attempt: int, next_id: int, *restored: int, job: str | None = None
) -> tuple[AttemptNumber, AttemptBase]:
    """``restored`` is the checkpoint that the attempt went on from, and whose that is."""
    checkpoint_id = CheckpointId(restored[0]) if restored else None
    origin = AttemptNumber(restored[1]) if restored else None
    number = AttemptNumber(attempt)
    foreign = None if job is None else JobId(job)
    return number, AttemptBase(number, CheckpointId(next_id), checkpoint_id, origin, foreign)


# Of the package's drawing: forth, back to 4, and back again to 6.
BASES = dict([base(1, 1), base(2, 7, 4, 1), base(3, 9, 6, 1)])


def lineage(attempt: int, last: int) -> Lineage:
    return lineage_of(AttemptNumber(attempt), CheckpointId(last), BASES)


@pytest.mark.parametrize(
    ("attempt", "last", "expected"),
    [
        (1, 6, line((1, 1, 6))),
        (2, 8, line((2, 7, 8), (1, 1, 4))),
        (3, 9, line((3, 9, 9), (1, 1, 6))),
        (3, NO_END, line((3, 9, NO_END), (1, 1, 6))),
        (2, 4, line((1, 1, 4))),  # It has taken none of its own.
    ],
)
def test_the_line_follows_what_each_attempt_went_on_from(
    attempt: int, last: int, expected: Lineage
) -> None:
    assert lineage(attempt, last) == expected


def test_a_line_holds_what_lies_on_it_and_of_that_attempt() -> None:
    held = lineage(2, 8)
    assert [n for n in range(1, 10) if n in held] == [1, 2, 3, 4, 7, 8]
    assert held.holds(AttemptNumber(1), CheckpointId(4))
    assert not held.holds(AttemptNumber(1), CheckpointId(7)), "attempt 1 completed it late"
    assert 1 not in UNKNOWN


def test_a_fork_begins_with_all_that_its_origin_had() -> None:
    bases = dict([base(1, 8, 7, 3, job="origin")])
    assert lineage_of(AttemptNumber(1), NO_END, bases) == line((1, 8, NO_END), (ANY_ATTEMPT, 1, 7))


def test_output_that_was_left_when_the_job_went_back_stays() -> None:
    first, (number, back) = base(1, 1), base(2, 7, 4, 1)
    bases = dict([first, (number, replace(back, rewinds_output=False))])
    assert lineage_of(number, CheckpointId(8), bases) == line((2, 7, 8), (1, 1, 4))
    assert output_lineage_of(number, CheckpointId(8), bases) == line((2, 7, 8), (ANY_ATTEMPT, 1, 6))


def test_an_attempt_that_went_on_from_itself_ends_the_line() -> None:
    """A storage that was put together by hand must not keep a driver busy for ever."""
    assert lineage_of(AttemptNumber(1), CheckpointId(2), dict([base(1, 2, 1, 1)])) == line(
        (1, 2, 2), (ANY_ATTEMPT, 1, 1)
    )


def test_where_a_base_is_not_known_everything_before_counts() -> None:
    assert lineage_of(AttemptNumber(5), CheckpointId(9), {}) == line((ANY_ATTEMPT, 1, 9))
