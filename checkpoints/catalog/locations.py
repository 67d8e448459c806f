"""Locations of a job's checkpoints in the storage."""

import re
from collections.abc import Iterable

from jobs.models import Job
from weir.ids import CheckpointId, JobId, StateHandle
from weir.storage.layout import JobLayout
from weir.storage.store import CheckpointStore, store_for

# Relative to the job's directory, or a savepoint's own.
_STATE_FILE = re.compile(r"(?:chk-|(?:shared/)?\d+-)(\d+)/")


def storage_of(job: Job) -> str:
    """The root of the job's storage, as its pipeline says, or else its submission."""
    planned = (job.checkpoint_config or {}).get("storage")
    return str(planned or job.storage)


def store_of(job: Job) -> CheckpointStore:
    """The store at the root of the job's storage.

    Raises:
        ConfigError: This process cannot work with such a storage.
    """
    return store_for(storage_of(job))


def layout_of(job: Job) -> JobLayout:
    """The layout of the job's directory: the paths of its files in the storage."""
    return JobLayout(JobId(job.pk))


def path_of(job: Job, number: CheckpointId) -> str:
    """The URI of a checkpoint, as a restore is given it."""
    return f"{storage_of(job).rstrip('/')}/{layout_of(job).checkpoint(number)}"


def numbers_of(handles: Iterable[StateHandle]) -> set[CheckpointId]:
    """The checkpoints whose files the handles name."""
    matches = (_STATE_FILE.match(handle.path or "") for handle in handles)
    return {CheckpointId(int(match[1])) for match in matches if match}
