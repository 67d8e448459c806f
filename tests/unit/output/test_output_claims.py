"""The claims by which machines tell whether they see the driver's output."""

from pathlib import Path

import pytest

from weir.errors import StorageError
from weir.ids import AttemptNumber, JobId
from weir.output.output_claims import check_output_claimed, claim_output, release_output

JOB = JobId("a job/of two")
FIRST, SECOND = AttemptNumber(1), AttemptNumber(2)


def test_a_machine_that_sees_the_claim_goes_on_and_another_is_named(tmp_path: Path) -> None:
    here, elsewhere = str(tmp_path / "here"), str(tmp_path / "elsewhere")
    claim_output(here, JOB, FIRST)
    check_output_claimed(here, JOB, FIRST)
    for directory, job, attempt in (
        (elsewhere, JOB, FIRST), (here, JobId("other"), FIRST), (here, JOB, SECOND)
    ):  # fmt: skip
        with pytest.raises(StorageError, match=f"{directory} is not the job's output on"):
            check_output_claimed(directory, job, attempt)
    assert not Path(elsewhere).exists()


def test_a_claim_replaces_those_of_earlier_attempts_alone(tmp_path: Path) -> None:
    output = str(tmp_path)
    for attempt in (FIRST, SECOND, AttemptNumber(10)):
        claim_output(output, JOB, attempt)
    claim_output(output, JobId("other"), FIRST)
    claim_output(output, JOB, SECOND)  # A driver that was slow; its successor has begun.
    check_output_claimed(output, JOB, AttemptNumber(10))
    check_output_claimed(output, JobId("other"), FIRST)
    with pytest.raises(StorageError, match="attempt 10 of the job has begun meanwhile"):
        check_output_claimed(output, JOB, FIRST)


def test_a_released_claim_leaves_nothing_but_those_of_others(tmp_path: Path) -> None:
    output, unwritten = str(tmp_path), str(tmp_path / "unwritten")
    claim_output(output, JOB, SECOND)
    release_output({output, unwritten}, JOB, FIRST)
    check_output_claimed(output, JOB, SECOND)
    (tmp_path / "part-op-0-1-0.parquet").touch()
    release_output({output, unwritten}, JOB, SECOND)
    assert [path.name for path in tmp_path.iterdir()] == ["part-op-0-1-0.parquet"]
