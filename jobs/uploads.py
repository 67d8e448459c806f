"""Uploaded pipelines: files named by their content, so that equal content is stored once.

The name of the uploaded file is kept for people to read and is part of no path.
"""

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from django.conf import settings
from django.db import transaction

from controlplane.accounts.models import User
from controlplane.audit.models import record
from controlplane.base import clock
from controlplane.base.errors import Invalid, TooLarge
from jobs.models import Artifact

NAME_LENGTH_MAX = 200


def path_of(artifact: Artifact) -> Path:
    """The path of an artifact's file."""
    return Path(settings.WEIR_UPLOADS) / f"{artifact.digest}.py"


def store(actor: User | None, file_name: str, chunks: Iterable[bytes]) -> Artifact:
    """Store an uploaded Python script; equal content gives the same artifact.

    Raises:
        Invalid: The name is no plain name of a Python script, or the file is empty.
        TooLarge: The file has more than WEIR_UPLOAD_BYTES_MAX bytes.
    """
    _check_name(file_name)
    directory = Path(settings.WEIR_UPLOADS)
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _received(directory, chunks) as (received, digest, size), transaction.atomic():
        artifact, is_new = Artifact.objects.get_or_create(
            digest=digest,
            defaults={
                "file_name": file_name,
                "size": size,
                "uploaded_by": actor,
                "uploaded_at": clock.now(),
            },
        )
        # Also for a known artifact, whose row may have outlived its file; and before the commit, so
        # that a row never names a missing file.
        os.replace(received, path_of(artifact))
        _sync(directory)
        record(
            actor,
            "upload.store",
            f"upload/{digest}",
            after={"file_name": file_name, "size": size, "new": is_new},
        )
    return artifact


@contextlib.contextmanager
def _received(directory: Path, chunks: Iterable[bytes]) -> Iterator[tuple[Path, str, int]]:
    """The chunks in a file of mode 0600, which is deleted afterwards unless it was moved away."""
    size, digest = 0, hashlib.sha256()
    handle, name = tempfile.mkstemp(prefix=".upload-", dir=directory)
    path = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            for chunk in chunks:
                size += len(chunk)
                if size > settings.WEIR_UPLOAD_BYTES_MAX:
                    raise TooLarge(
                        f"the file is larger than {settings.WEIR_UPLOAD_BYTES_MAX} bytes, the most "
                        "that an upload may have"
                    )
                digest.update(chunk)
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
        if size == 0:
            raise Invalid("the file is empty", errors={"file": ["The file is empty."]})
        yield path, digest.hexdigest(), size
    finally:
        path.unlink(missing_ok=True)


def _check_name(name: str) -> None:
    problem = None
    if not name or len(name) > NAME_LENGTH_MAX:
        problem = f"A file name has 1 to {NAME_LENGTH_MAX} characters."
    elif any(c in "/\\" or not c.isprintable() for c in name) or name.startswith("."):
        problem = "Give a plain file name, without directories."
    elif not name.endswith(".py"):
        problem = "A pipeline is a Python script; its name ends in .py."
    if problem is not None:
        raise Invalid(
            f"the file's name {name[:NAME_LENGTH_MAX]!r} is refused: {problem}",
            errors={"file": [problem]},
        )


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
