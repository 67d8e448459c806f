"""Locations of a job's checkpoints in the storage."""

import re
from collections.abc import Iterable
from datetime import timedelta

from checkpoints.models import Checkpoint
from controlplane.base import clock
from jobs.models import Driver, Job
from weir.errors import StorageError
from weir.ids import AttemptNumber, CheckpointId, JobId, StateHandle
from weir.storage.attempt_claims import ManagedClaim, load_managed, newest_claim
from weir.storage.layout import JobLayout
from weir.storage.store import CheckpointStore, store_for

# After its end all files of a job may be deleted, as by `weir clean`; the claims are among them.
CLEARED_AFTER = timedelta(hours=1)

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


def claimed_store_of(job: Job) -> CheckpointStore:
    """The store of the job, which has shown that it is: it holds the claim of the job's attempt.

    A share that is not mounted on this machine looks like an empty storage. Files are taken for
    deleted there, and a tombstone decides nothing.

    Raises:
        ConfigError: This process cannot work with such a storage.
        StorageError: The claim is missing, or the storage failed.
    """
    store = store_of(job)
    own = Checkpoint.objects.filter(job=job).order_by("-number")
    attempt = own.values_list("attempt", flat=True).first()
    is_cleared = job.ended_at is not None and job.ended_at < clock.now() - CLEARED_AFTER
    if attempt is None or is_cleared:
        return store
    if not store.exists(layout_of(job).attempt(AttemptNumber(attempt))):
        raise StorageError(
            f"the control plane's workers see {storage_of(job)} without attempt {attempt} of the "
            "job: mount it for them as for drivers. Until then nothing is deleted"
        )
    return store


def own_store_of(job: Job) -> CheckpointStore:
    """The claimed store of the job, whose newest attempt no other control plane's driver has.

    Such a driver restores from the files: they are no longer this control plane's to delete. A
    checkpoint may be settled all the same, and has to be, before this one's next driver begins.

    Raises:
        ConfigError: This process cannot work with such a storage.
        StorageError: It is not the job's, or another control plane's driver has claimed the job, or
            the storage failed.
    """
    store = claimed_store_of(job)
    newest, claim = newest_claim(store, JobId(job.pk))
    managed = load_managed(claim)
    if managed is not None and not _is_known(job, managed):
        raise StorageError(
            f"attempt {newest} of the job was claimed in {storage_of(job)} by a driver of the "
            f"control plane at {managed.control_plane}, which this one did not launch. Stop the "
            "control plane whose database is the copy. Until this one's next attempt nothing is "
            "deleted"
        )
    return store


def _is_known(job: Job, managed: ManagedClaim) -> bool:
    """Whether this control plane launched the driver; an older version's claim fits each."""
    return Driver.objects.filter(job=job, token_digest__startswith=managed.driver).exists()


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
