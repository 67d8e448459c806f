"""The restored checkpoint on whose files the next one may build."""

import pytest

from weir.ids import AttemptNumber, CheckpointId, JobId
from weir.protocol.deployment import Deploy
from weir.worker.assembly import base_of


@pytest.mark.parametrize(
    ("storage", "restored_storage", "directory", "base"),
    [
        ("/s", "/s", "job", 7),
        ("/s", "/s", "other-job", None),
        ("/s", "/t", "job", None),  # A copy of the job's directory.
        ("/s", "/s/savepoints/job/one", "", None),
        (None, None, "job", None),
    ],
)
def test_a_checkpoint_builds_on_files_of_its_own_job_alone(
    storage: str | None, restored_storage: str | None, directory: str, base: int | None
) -> None:
    deploy = Deploy(
        attempt=AttemptNumber(2), job_id=JobId("job"), slot_addresses=(), storage=storage,
        restored_checkpoint=CheckpointId(7), restored_storage=restored_storage,
        restored_directory=directory, restores=(), max_parallelism=(),
    )  # fmt: skip
    assert base_of(deploy) == base
