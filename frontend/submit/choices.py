"""Choices in the form of a new job: scripts, uploads, savepoints."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from checkpoints.models import Savepoint
from controlplane.base.formatting import moment, size
from jobs.models import Artifact
from weir.protocol.lifecycle import CheckpointStatus

SCRIPTS_OFFERED = 200
DIRECTORIES_LOOKED_INTO = 500
UPLOADS_OFFERED = 50
SAVEPOINTS_OFFERED = 50

Choice = tuple[str, str]  # The value that is sent, and its label.


def scripts(roots: Sequence[Path]) -> list[str]:
    """Python scripts below the roots, as a submission names them; ``SCRIPTS_OFFERED`` at most."""
    names = sorted({name for root in roots for name in _below(root)})
    return names[:SCRIPTS_OFFERED]


def _below(root: Path) -> Iterator[str]:
    # Links are not followed: they might lead outside the root, where no script may be run.
    for looked_into, (directory, names, files) in enumerate(os.walk(root)):
        if looked_into >= DIRECTORIES_LOOKED_INTO:
            return
        names[:] = sorted(name for name in names if not name.startswith((".", "__")))
        for name in files:
            if name.endswith(".py") and not name.startswith("__"):
                yield str((Path(directory) / name).relative_to(root))


def uploads() -> list[Choice]:
    """The newest uploads by their digests."""
    rows = Artifact.objects.select_related("uploaded_by").order_by("-uploaded_at", "digest")
    return [upload(row) for row in rows[:UPLOADS_OFFERED]]


def upload(of: Artifact) -> Choice:
    """One upload, labelled so that it differs from others of the same name."""
    by = f" by {of.uploaded_by.get_username()}" if of.uploaded_by else ""
    said = f"{of.file_name}, {size(of.size)}, {moment(of.uploaded_at)}{by} ({of.digest[:8]})"
    return of.digest, said


def savepoints() -> list[Choice]:
    """The newest savepoints that can be restored, by location."""
    rows = Savepoint.objects.filter(
        checkpoint__status=CheckpointStatus.COMPLETED, deleted_at=None
    ).select_related("job")
    newest = rows.order_by("-created_at", "-id")[:SAVEPOINTS_OFFERED]
    return [(row.location, f"{row.name} of {row.job.name} ({row.job_id})") for row in newest]
