"""The claim of an attempt in each directory that its sinks commit files to.

::

    <path>/_claims/<job>/<attempt>    created by the driver, before it deploys the attempt

A subtask looks for it before its sink opens. Where it is missing, that machine has another
directory under the path, most likely the one below a share that is not mounted: files committed
there would be missing from the output, and none of the job's checkpoints would show it.

A driver that cannot create the file checks nothing. It deletes the claims of its attempts, and
those of earlier drivers, with its next claim and at the end of the job.
"""

import os
import socket
from collections.abc import Collection
from pathlib import Path

from weir.errors import StorageError
from weir.ids import AttemptNumber, JobId
from weir.output.output_files import CLAIMS, claims_directory, remove_empty
from weir.storage.local import make_directories


def claim_output(directory: str, job_id: JobId, attempt: AttemptNumber) -> None:
    """Create the claim of an attempt, and delete those of earlier ones.

    Raises:
        OSError: It cannot be created.
    """
    claims = claims_directory(Path(directory), job_id)
    make_directories(claims)
    (claims / str(attempt)).touch()
    _delete(claims, up_to=attempt - 1)


def check_output_claimed(directory: str, job_id: JobId, attempt: AttemptNumber) -> None:
    """Check that a subtask's machine sees the directory in which the driver claimed the attempt.

    Raises:
        StorageError: The claim is missing, as also once a later attempt has begun.
    """
    claims = claims_directory(Path(directory), job_id)
    if not (claims / str(attempt)).exists():
        if (newest := max(_claimed(claims), default=0)) > attempt:
            raise StorageError(
                f"attempt {newest} of the job has begun meanwhile, and its driver has claimed "
                f"{directory}: attempt {attempt} commits nothing there any more"
            )
        raise StorageError(
            f"{directory} is not the job's output on {socket.gethostname()}: the claim of attempt "
            f"{attempt} is missing there. Mount the same directory on all machines, the driver's "
            "included; files that are committed to another one are missing from the output"
        )


def release_output(directories: Collection[str], job_id: JobId, attempt: AttemptNumber) -> None:
    """Delete the claims of a job that is over: of this attempt, and of earlier ones.

    Raises:
        OSError: One cannot be deleted.
    """
    for root in map(Path, directories):
        claims = claims_directory(root, job_id)
        _delete(claims, up_to=attempt)
        remove_empty(claims, root / CLAIMS)


def _delete(claims: Path, up_to: int) -> None:
    for attempt in _claimed(claims):
        if attempt <= up_to:
            (claims / str(attempt)).unlink(missing_ok=True)


def _claimed(claims: Path) -> list[int]:
    """The attempts with a claim in this directory, in no order."""
    try:
        return [int(name) for name in os.listdir(claims) if name.isdecimal()]
    except FileNotFoundError:
        return []
