"""Uploaded pipelines: files named by their content, so that equal content is stored once.

The name of the uploaded file is kept for people to read and is part of no path.

An upload that no job uses is removed some time after it was last uploaded. Storing and removing
equal content exclude each other by an advisory lock; a submission locks the upload's row.
"""

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from pathlib import Path
from threading import Event
from typing import TypeVar

from django.conf import settings
from django.db import transaction
from django.db.models import Exists, OuterRef, Q

from controlplane.accounts.models import User
from controlplane.audit.models import record
from controlplane.base import advisory_locks, clock
from controlplane.base.errors import Invalid, NotFound, Refusal, TooLarge, existing
from controlplane.base.threads import FileOnThreads, Unavailable
from controlplane.base.ticks import Budget
from jobs import pipeline_files
from jobs.models import OPEN_OPERATIONS, Artifact, Job, Operation

R = TypeVar("R")

NAME_LENGTH_MAX = 200
JOBS_NAMED_MAX = 10  # In the refusal to delete an upload.
REMOVED_MAX = 200  # In one look.


class UploadInUse(Refusal):
    """The upload is needed; ``needed_by`` names jobs that have it."""

    code = "upload_in_use"
    status = 409
    title = "The upload is in use"


UNUSED = ~Q(Exists(Job.objects.filter(artifact=OuterRef("pk"))))


def path_of(artifact: Artifact) -> Path:
    """The path of an artifact's file."""
    return Path(settings.WEIR_UPLOADS) / f"{artifact.digest}.py"


def store(actor: User | None, file_name: str, chunks: Iterable[bytes]) -> Artifact:
    """Store an uploaded Python script; equal content gives the same artifact.

    Raises:
        Invalid: The name is no plain name of a Python script, or the file is empty.
        TooLarge: The file has more than WEIR_UPLOAD_BYTES_MAX bytes.
        Unavailable: The file server of the uploads does not answer.
    """
    _check_name(file_name)
    with _received(chunks) as (received, digest, size), transaction.atomic():
        advisory_locks.lock([_lock_name(digest)])
        artifact, is_new = Artifact.objects.get_or_create(
            digest=digest,
            defaults={
                "file_name": file_name,
                "size": size,
                "uploaded_by": actor,
                "uploaded_at": clock.now(),
            },
        )
        if not is_new:
            artifact.uploaded_at = clock.now()  # Its age begins anew.
            artifact.save(update_fields=["uploaded_at"])
        # Also for a known artifact, whose row may have outlived its file; and before the commit, so
        # that a row never names a missing file.
        pipeline_files.reach(lambda: _place(received, path_of(artifact)))
        record(
            actor,
            "upload.store",
            f"upload/{digest}",
            after={"file_name": file_name, "size": size, "new": is_new},
        )
    return artifact


def one(digest: str) -> Artifact:
    """An upload.

    Raises:
        NotFound: There is none with this digest.
    """
    rows = Artifact.objects.select_related("uploaded_by").filter(pk=digest)
    return existing(rows, f"There is no upload {digest}.")


def opened(artifact: Artifact) -> FileOnThreads:
    """The file of an upload, to be read and closed: it lies on a file server, perhaps.

    Raises:
        NotFound: The file is not on this machine.
        Unavailable: Its file server does not answer.
        OSError: It cannot be read.
    """
    file = _reached(artifact, lambda: path_of(artifact).open("rb"))
    return FileOnThreads(pipeline_files.threads, file)


def beginning(artifact: Artifact, length: int) -> bytes:
    """The first bytes of an upload, ``length`` at most.

    Raises:
        NotFound, Unavailable, OSError: See ``opened``.
    """

    def read() -> bytes:  # Closed on its thread, too: closing waits for a read that hangs.
        with path_of(artifact).open("rb") as file:
            return file.read(length)

    return _reached(artifact, read)


def _reached(artifact: Artifact, function: Callable[[], R]) -> R:
    try:
        return pipeline_files.reach(function)
    except FileNotFoundError as error:
        raise NotFound(f"The file of the upload {artifact.pk} is not on this machine.") from error


def rename(actor: User | None, digest: str, file_name: str) -> Artifact:
    """Change the name under which an upload is listed.

    Raises:
        NotFound: There is no such upload.
        Invalid: The name is no plain name of a Python script.
    """
    _check_name(file_name, "file_name")
    with transaction.atomic():
        rows = Artifact.objects.select_for_update(of=("self",)).select_related("uploaded_by")
        artifact = existing(rows.filter(pk=digest), f"There is no upload {digest}.")
        before = artifact.file_name
        if before != file_name:
            artifact.file_name = file_name
            artifact.save(update_fields=["file_name"])
            changed = {"before": {"file_name": before}, "after": {"file_name": file_name}}
            record(actor, "upload.rename", f"upload/{digest}", **changed)
    return artifact


def delete(actor: User | None, digest: str) -> None:
    """Delete an upload that nothing uses, and its file.

    Raises:
        NotFound: There is no such upload.
        UploadInUse: A job has it, or an operation that has not ended names it.
    """
    with transaction.atomic():
        advisory_locks.lock([_lock_name(digest)])
        rows = Artifact.objects.select_for_update(of=("self",)).filter(pk=digest)
        artifact = existing(rows, f"There is no upload {digest}.")
        users = Job.objects.filter(artifact=artifact).order_by("-created_at", "id")
        jobs = list(users.values_list("pk", flat=True)[:JOBS_NAMED_MAX])
        if jobs or _is_asked_for(digest):
            by = f"the jobs {', '.join(jobs)} have" if jobs else "an operation under way has"
            raise UploadInUse(f"{by} the upload {digest}; it is kept as long", needed_by=jobs)
        record(actor, "upload.delete", f"upload/{digest}", before={"file_name": artifact.file_name})
        _drop(artifact)


def remove_unused(older: datetime | None, most: int | None, budget: Budget) -> int:
    """Remove the uploads from before ``older`` that no job uses, and their files; return how many.

    Raises:
        FileNotFoundError: Their directory is not on this machine; the message says what to do.
    """
    if older is None:
        return 0
    unused = Artifact.objects.filter(UNUSED, uploaded_at__lt=older).order_by("uploaded_at", "pk")
    digests = list(unused.values_list("pk", flat=True)[:REMOVED_MAX])
    directory = Path(settings.WEIR_UPLOADS)
    if digests and not pipeline_files.reach(directory.is_dir):
        raise FileNotFoundError(
            f"old uploads cannot be removed, because {directory} is not on this machine; mount the "
            "web service's WEIR_UPLOADS for the worker, too"
        )
    count = 0
    for digest in digests:
        if budget.is_spent:
            break
        count += _remove(digest, older)
    return count


def _remove(digest: str, older: datetime) -> bool:
    with transaction.atomic():
        advisory_locks.lock([_lock_name(digest)])
        rows = Artifact.objects.select_for_update(skip_locked=True, of=("self",))
        artifact = rows.filter(UNUSED, pk=digest, uploaded_at__lt=older).first()
        if artifact is None or _is_asked_for(digest):
            return False
        _drop(artifact)
    return True


def _drop(artifact: Artifact) -> None:
    path = path_of(artifact)
    artifact.delete()
    # Before the commit, for after it an equal file may be uploaded. Should the commit fail, the
    # row is left without a file, and the next look removes it.
    pipeline_files.reach(lambda: path.unlink(missing_ok=True))


def _is_asked_for(digest: str) -> bool:
    """Whether an operation that has not ended names the upload, as a fork does before its job."""
    asked = Operation.objects.filter(status__in=OPEN_OPERATIONS).values_list(
        "parameters", flat=True
    )
    return any(digest in json.dumps(parameters) for parameters in asked)


def _lock_name(digest: str) -> str:
    return f"upload {digest}"


@contextlib.contextmanager
def _received(chunks: Iterable[bytes]) -> Iterator[tuple[Path, str, int]]:
    """The chunks in a file of mode 0640, which is deleted where it does not get its own name.

    Its group, the directory's where that is setgid, is the one by which drivers read it.
    """
    is_late = Event()
    try:
        path, digest, size = pipeline_files.reach(
            lambda: _receive(chunks, is_late), wait_s=pipeline_files.WRITE_WAIT_S
        )
    except Unavailable:
        is_late.set()
        raise
    try:
        yield path, digest, size
    except BaseException:
        pipeline_files.reach(lambda: path.unlink(missing_ok=True))
        raise


def _receive(chunks: Iterable[bytes], is_late: Event) -> tuple[Path, str, int]:
    size, digest = 0, hashlib.sha256()
    directory = Path(settings.WEIR_UPLOADS)
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
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
            os.fchmod(file.fileno(), 0o640)
            os.fsync(file.fileno())
        if size == 0:
            raise Invalid("the file is empty", errors={"file": ["The file is empty."]})
        if is_late.is_set():
            raise TimeoutError("the request that sent it is over")
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return path, digest.hexdigest(), size


def _place(received: Path, path: Path) -> None:
    os.replace(received, path)
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _check_name(name: str, field: str = "file") -> None:
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
            errors={field: [problem]},
        )
