"""The names of a file sink's output, by which a rewind selects the files to withdraw.

::

    <path>/part-<operator>-<subtask>-<checkpoint>-<counter>.parquet    committed
    <path>/part-….<attempt>.<mark><suffix>                             the same, of a text file
    <path>/_pending/<job>/<attempt>/…                                  not committed (yet)
    <path>/_withdrawn/<job>/<attempt>/part-…                           taken back, or never shown
    <path>/_claims/<job>/<attempt>                                     by which machines see it

``<checkpoint>`` is the one whose barrier closed the file; ``<attempt>`` the one that wrote it, 0 if
unknown. Operator and job are percent-encoded. A text file has no footer that could name its job, so
its name has the ``<mark>`` of it, a digest.

A withdrawn file is output of a checkpoint that the job went back behind, or of a savepoint that it
was not restored from. Restoring that checkpoint puts the file back, so the file is deleted no
earlier than every checkpoint and savepoint that may need it.
"""

import hashlib
import os
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from urllib.parse import quote, unquote

from weir import untrusted_files
from weir.ids import AttemptNumber, CheckpointId, JobId, OperatorId
from weir.protocol.lineage import ANY_ATTEMPT, NO_END, Lineage, lineage_of
from weir.storage.attempt_bases import bases_of
from weir.storage.manifest import Manifest, list_checkpoints
from weir.storage.store import CheckpointStore, PathNotFoundError

PENDING = "_pending"
WITHDRAWN = "_withdrawn"
CLAIMS = "_claims"
_COMMITTED = re.compile(
    r"part-(?P<operator>.+)-(?P<subtask>\d+)-(?P<checkpoint>\d+)-(?P<counter>\d+)"
    r"(\.parquet|\.(?P<attempt>\d+)\.(?P<mark>[0-9a-f]{12})(?P<suffix>(\.\w+)*))"
)


@dataclass(frozen=True, slots=True)
class TextWriter:
    """The writer of a text file, and the suffix that its sink was given: empty, or ``.txt``."""

    attempt: AttemptNumber
    mark: str  # Of the job, by ``mark_of``.
    suffix: str = ""

    def __str__(self) -> str:
        return f".{self.attempt}.{self.mark}{self.suffix}"


def mark_of(job_id: JobId) -> str:
    """The digest by which names of text files tell jobs apart."""
    return hashlib.sha256(job_id.encode()).hexdigest()[:12]


@dataclass(frozen=True, slots=True)
class CommittedName:
    """The name of a committed file."""

    operator: OperatorId
    subtask: int
    checkpoint_id: CheckpointId  # 0: written without checkpoints.
    counter: int
    writer: TextWriter | None = None  # None: a Parquet file, whose footer tells it.

    @classmethod
    def parse(cls, name: str) -> Self | None:
        """Read a file's name; None if it is no committed output."""
        match = _COMMITTED.fullmatch(name)
        if match is None:
            return None
        writer = None
        if match["mark"] is not None:
            attempt = AttemptNumber(int(match["attempt"]))
            writer = TextWriter(attempt, match["mark"], match["suffix"])
        return cls(
            OperatorId(unquote(match["operator"])),
            int(match["subtask"]),
            CheckpointId(int(match["checkpoint"])),
            int(match["counter"]),
            writer,
        )

    def __str__(self) -> str:
        operator = quote(self.operator, safe="")
        ending = ".parquet" if self.writer is None else str(self.writer)
        return f"part-{operator}-{self.subtask}-{self.checkpoint_id}-{self.counter}{ending}"


@dataclass(frozen=True, slots=True)
class WithdrawnFile:
    """A withdrawn file."""

    path: Path
    attempt: AttemptNumber
    name: CommittedName

    def is_on(self, lineage: Lineage) -> bool:
        """Whether the file is output of that line."""
        if self.attempt == ANY_ATTEMPT:
            return self.name.checkpoint_id in lineage
        return lineage.holds(self.attempt, self.name.checkpoint_id)


def withdrawn_directory(root: Path, job_id: JobId) -> Path:
    """The directory of a job's withdrawn output; it has one per attempt that wrote files."""
    return root / WITHDRAWN / quote(job_id, safe="")


def pending_directory(root: Path, job_id: JobId) -> Path:
    """The directory of a job's uncommitted output; it has one per attempt that wrote files."""
    return root / PENDING / quote(job_id, safe="")


def claims_directory(root: Path, job_id: JobId) -> Path:
    """The directory of a job's claims, a file per attempt (``weir.output.output_claims``)."""
    return root / CLAIMS / quote(job_id, safe="")


def withdrawn_files(root: Path, job_id: JobId) -> Iterator[WithdrawnFile]:
    """All withdrawn files of a job; they may change meanwhile.

    Raises:
        OSError: The directory exists and cannot be read.
    """
    for attempt in _entries(withdrawn_directory(root, job_id)):
        if not attempt.name.isdecimal():
            continue
        for path in _entries(attempt):
            name = CommittedName.parse(path.name)
            if name is not None:
                yield WithdrawnFile(path, AttemptNumber(int(attempt.name)), name)


def delete_unneeded(
    store: CheckpointStore, job_id: JobId, directories: Collection[str], up_to: CheckpointId
) -> None:
    """Delete withdrawn files of checkpoints up to this one that are on no line that is kept.

    Kept are the line that the job is on, and the line of every checkpoint that ``store`` holds of
    the job. If a manifest cannot be read, nothing is deleted.

    Raises:
        StorageError, CorruptStateError: The bases of the job's attempts cannot be read.
        OSError: A file cannot be deleted. A repeated call deletes the rest.
    """
    withdrawn = {
        Path(directory): [
            file
            for file in withdrawn_files(Path(directory), job_id)
            if file.name.checkpoint_id <= up_to
        ]
        for directory in directories
    }
    if not any(withdrawn.values()):
        return  # The usual case, and far cheaper to check than the lines.
    bases = bases_of(store, job_id)
    stored = list_checkpoints(store, job_id)
    is_known = all(isinstance(each.error, PathNotFoundError | None) for each in stored)
    if not (bases and is_known):
        return
    lines = [lineage_of(max(bases), NO_END, bases)]
    for each in stored:
        if isinstance(each.manifest, Manifest):
            lines.append(lineage_of(each.manifest.attempt, each.checkpoint_id, bases))
    for root, files in withdrawn.items():
        _delete(root, job_id, [f for f in files if not any(f.is_on(line) for line in lines)])


def _delete(root: Path, job_id: JobId, files: Iterable[WithdrawnFile]) -> int:
    count = 0
    for file in files:
        try:
            with untrusted_files.directory(file.path.parent, below=root) as parent:
                os.unlink(file.path.name, dir_fd=parent)
        except FileNotFoundError:
            continue  # Another process deleted it, or the job put it back.
        count += 1
        remove_empty(file.path.parent)
    if count:
        remove_empty(withdrawn_directory(root, job_id), root / WITHDRAWN)
    return count


def remove_empty(*directories: Path) -> None:
    """Remove directories, innermost first, until one is in use."""
    for directory in directories:
        try:
            directory.rmdir()
        except OSError:
            return  # Not empty, or already removed.


def _entries(directory: Path) -> list[Path]:
    try:
        with os.scandir(directory) as entries:
            return sorted(Path(entry.path) for entry in entries)
    except (FileNotFoundError, NotADirectoryError):
        return []  # It does not exist; or another process emptied and removed it.
