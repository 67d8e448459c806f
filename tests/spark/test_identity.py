"""As which job a pipeline runs, by what it is to go on from."""

from pathlib import Path

import pytest

from tests.unit.jobmaster.job_harness import JOB, stored_checkpoint
from weir.config import CheckpointConfig, JobConfig
from weir.datastream.execution import ExecutionOptions
from weir.errors import ConfigError, RestoreError
from weir.ids import AttemptNumber, JobId
from weir.protocol.elements import CheckpointKind
from weir.spark.submit import _identity
from weir.storage.catalog import RestoreRequest
from weir.storage.layout import JobLayout
from weir.storage.local import LocalStore
from weir.storage.manifest import dump


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    """The storage of a job that has a checkpoint, and a savepoint in ``one``."""
    store = LocalStore(tmp_path / "storage")
    store.put(JobLayout(JOB).attempt(AttemptNumber(1)), b"")
    stored_checkpoint(store, 1)
    own = str(tmp_path / "one")
    saved = stored_checkpoint(store, 2, kind=CheckpointKind.SAVEPOINT, location=own)
    LocalStore(own).put("manifest", dump(saved))
    return store.root


def identity(storage: Path | None, **options: object) -> tuple[JobId, RestoreRequest | None]:
    settings = CheckpointConfig(storage=None if storage is None else str(storage))
    given = ExecutionOptions(**options)  # type: ignore[arg-type]
    store = LocalStore(storage or "nowhere")
    return _identity("job", JobConfig(checkpoints=settings), given, store)


def test_without_a_restore_it_is_a_new_job(storage: Path) -> None:
    job, request = identity(storage)
    assert job.startswith("job-")
    assert request is None


@pytest.mark.parametrize("what", ["storage/job/chk-1", "storage/job/chk-2", "one"])
def test_in_the_storage_of_the_job_that_took_it_that_job_goes_on(what: str, storage: Path) -> None:
    job, request = identity(storage, restore=str(storage.parent / what))
    assert job == JOB
    assert request is not None


def test_latest_is_the_job_of_that_name(storage: Path) -> None:
    assert identity(storage, restore="latest") == (JOB, None)


@pytest.mark.parametrize("what", ["storage/job/chk-1", "one"])
@pytest.mark.parametrize("how", ["wanted", "elsewhere", "in memory"])
def test_another_job_begins_with_it_where_that_is_wanted_or_the_first_is_not_here(
    what: str, how: str, storage: Path
) -> None:
    place = {"wanted": storage, "elsewhere": storage.parent / "other", "in memory": None}[how]
    job, request = identity(place, restore=str(storage.parent / what), as_new_job=how == "wanted")
    assert job.startswith("job-")
    assert request is not None


def test_what_is_to_come_of_it_goes_with_the_request(storage: Path) -> None:
    _, request = identity(
        storage, restore=str(storage.parent / "one"), rewinds_output=False, claims=True
    )
    assert request is not None
    assert (request.rewinds_output, request.claims) == (False, True)


def test_a_path_does_not_depend_on_where_the_driver_was_started(
    storage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(storage.parent)
    _, request = identity(storage, restore="one")
    assert request is not None
    assert request.storage == str(storage.parent / "one")


def test_what_cannot_be_is_refused_before_anything_runs(storage: Path) -> None:
    with pytest.raises(ConfigError, match="needs the path"):
        identity(storage, restore="latest", as_new_job=True)
    with pytest.raises(RestoreError, match="no checkpoint or savepoint at"):
        identity(storage, restore=str(storage.parent / "nothing"))
