"""The claims of attempts in a checkpoint storage, as drivers write them."""

from weir.ids import AttemptNumber, JobId
from weir.storage.layout import JobLayout
from weir.storage.store import CheckpointStore


def claim(store: CheckpointStore, job: JobId, attempt: AttemptNumber) -> None:
    """The claim of an attempt: it lies there before anything of the attempt does."""
    store.create_if_absent(JobLayout(job).attempt(attempt), b"")


def unclaimed(store: CheckpointStore, directory: str = "") -> list[str]:
    """All files below a directory but the claims."""
    return [path for path in store.list(directory) if "/attempts/" not in path]
