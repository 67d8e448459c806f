"""Which completed checkpoints stay."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import completed
from weir.config import Retention
from weir.errors import ProtocolError
from weir.protocol.lifecycle import JOB_TRANSITIONS, JobStatus
from weir.protocol.retention import ENDED, is_kept_on_end, subsume


@given(st.integers(0, 20), st.integers(1, 5))
def test_the_newest_are_kept_and_only_the_surplus_is_let_go(count: int, retained_max: int) -> None:
    everything = tuple(completed(n) for n in range(1, count + 1))
    kept, subsumed = subsume(everything, retained_max)
    assert subsumed + kept == everything
    assert len(kept) == min(count, retained_max)


@pytest.mark.parametrize(
    ("retention", "kept"),
    [
        (Retention.NO_EXTERNALIZED_CHECKPOINTS, set()),
        (Retention.DELETE_ON_CANCELLATION, {JobStatus.FAILED}),
        (Retention.RETAIN_ON_CANCELLATION, {JobStatus.FAILED, JobStatus.CANCELED}),
    ],
)
def test_the_table_of_retention_at_the_end(retention: Retention, kept: set[JobStatus]) -> None:
    assert {status for status in ENDED if is_kept_on_end(retention, status)} == kept


def test_ended_are_the_statuses_that_nothing_follows() -> None:
    assert set(JobStatus) - JOB_TRANSITIONS.keys() == ENDED


def test_retention_at_the_end_is_not_asked_before_it() -> None:
    with pytest.raises(ProtocolError, match="failing is not a final job status"):
        is_kept_on_end(Retention.RETAIN_ON_CANCELLATION, JobStatus.FAILING)
