"""The names of a file sink's output, by which it is known what a rewind takes back.

::

    <path>/part-<operator>-<subtask>-<checkpoint>-<counter>.parquet    committed
    <path>/_pending/<job>/<attempt>/…                                  not committed (yet)
    <path>/_withdrawn/<job>/<attempt>/part-….parquet                   taken back, or never shown

``<checkpoint>`` is the one whose barrier closed the file; ``<attempt>`` the one that wrote it, 0 if
nobody knows. Operator and job are percent-encoded.

A withdrawn file is output of a checkpoint that the job went back behind, or of a savepoint that it
did not go on from. Going on from that one brings the file back, so it is deleted no earlier than
every checkpoint and savepoint that may need it.
"""

import os
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from urllib.parse import quote, unquote

from weir.ids import AttemptNumber, CheckpointId, JobId, OperatorId
from weir.protocol.lineage import ANY_ATTEMPT, NO_END, Lineage, lineage_of
from weir.storage.attempt_bases import bases_of
from weir.storage.manifest import Manifest, list_checkpoints
from weir.storage.store import CheckpointStore, PathNotFoundError

PENDING = "_pending"
WITHDRAWN = "_withdrawn"
_COMMITTED = re.compile(r"part-(.+)-(\d+)-(\d+)-(\d+)\.parquet")


@dataclass(frozen=True, slots=True)
class CommittedName:
    """What the name of a committed file says."""

    operator: OperatorId
    subtask: int
    checkpoint_id: CheckpointId  # 0: written without checkpoints.
    counter: int

    @classmethod
    def parse(cls, name: str) -> Self | None:
        """Read a file's name; None if it is no committed output."""
        found = _COMMITTED.fullmatch(name)
        if found is None:
            return None
        operator = OperatorId(unquote(found[1]))
        return cls(operator, int(found[2]), CheckpointId(int(found[3])), int(found[4]))

    def __str__(self) -> str:
        operator = quote(self.operator, safe="")
        return f"part-{operator}-{self.subtask}-{self.checkpoint_id}-{self.counter}.parquet"


@dataclass(frozen=True, slots=True)
class WithdrawnFile:
    """A file that was taken back."""

    path: Path
    attempt: AttemptNumber
    name: CommittedName

    def is_on(self, lineage: Lineage) -> bool:
        """Whether it is output of that line."""
        if self.attempt == ANY_ATTEMPT:
            return self.name.checkpoint_id in lineage
        return lineage.holds(self.attempt, self.name.checkpoint_id)


def withdrawn_directory(root: Path, job_id: JobId) -> Path:
    """What was taken back of a job's output, in a directory per attempt that wrote it."""
    return root / WITHDRAWN / quote(job_id, safe="")


def pending_directory(root: Path, job_id: JobId) -> Path:
    """What a job has not committed, in a directory per attempt that wrote it."""
    return root / PENDING / quote(job_id, safe="")


def withdrawn_files(root: Path, job_id: JobId) -> Iterator[WithdrawnFile]:
    """Everything that was taken back of a job's output; it may change meanwhile.

    Raises:
        OSError: The directory is there and cannot be read.
    """
    for attempt in _entries(withdrawn_directory(root, job_id)):
        if not attempt.name.isdecimal():
            continue
        for path in _entries(attempt):
            name = CommittedName.parse(path.name)
            if name is not None:
                yield WithdrawnFile(path, AttemptNumber(int(attempt.name)), name)


def delete_withdrawn(directory: str, job_id: JobId, checkpoint_ids: Collection[int]) -> int:
    """Delete what was taken back of these checkpoints; how many files went.

    A file bears the number of the checkpoint whose barrier closed it, which may have been given up:
    then the next one that completed covers it. So who discards a branch names all ids from the
    first one after the branch's base, and none that a checkpoint or savepoint which is kept builds
    on.

    Raises:
        OSError: A file cannot be deleted. Repeating it goes on where it ended.
    """
    root = Path(directory)
    files = [f for f in withdrawn_files(root, job_id) if f.name.checkpoint_id in checkpoint_ids]
    return _delete(root, job_id, files)


def delete_unneeded(
    store: CheckpointStore, job_id: JobId, directories: Collection[str], up_to: CheckpointId
) -> None:
    """Delete what was taken back of checkpoints up to this one and is on no line that is kept.

    Kept are the line that the job is on, and that of everything that ``store`` holds of the job. If
    some of it cannot be read, nothing is deleted.

    Raises:
        StorageError, CorruptStateError: What the job went on from cannot be read.
        OSError: A file cannot be deleted. Repeating it goes on where it ended.
    """
    found = {
        Path(directory): [
            file
            for file in withdrawn_files(Path(directory), job_id)
            if file.name.checkpoint_id <= up_to
        ]
        for directory in directories
    }
    if not any(found.values()):
        return  # Nearly always, and far cheaper to find out than the lines.
    bases = bases_of(store, job_id)
    stored = list_checkpoints(store, job_id)
    is_known = all(isinstance(each.error, PathNotFoundError | None) for each in stored)
    if not (bases and is_known):
        return
    lines = [lineage_of(max(bases), NO_END, bases)]
    for each in stored:
        if isinstance(each.manifest, Manifest):
            lines.append(lineage_of(each.manifest.attempt, each.checkpoint_id, bases))
    for root, files in found.items():
        _delete(root, job_id, [f for f in files if not any(f.is_on(line) for line in lines)])


def _delete(root: Path, job_id: JobId, files: Iterable[WithdrawnFile]) -> int:
    count = 0
    for file in files:
        try:
            file.path.unlink()
        except FileNotFoundError:
            continue  # Somebody else did, or the job took it back.
        count += 1
        remove_empty(file.path.parent)
    if count:
        remove_empty(withdrawn_directory(root, job_id), root / WITHDRAWN)
    return count


def remove_empty(*directories: Path) -> None:
    """Remove directories, innermost first, up to the first one that is in use."""
    for directory in directories:
        try:
            directory.rmdir()
        except OSError:
            return  # Not empty, or already gone.


def _entries(directory: Path) -> list[Path]:
    try:
        with os.scandir(directory) as entries:
            return sorted(Path(entry.path) for entry in entries)
    except (FileNotFoundError, NotADirectoryError):
        return []  # There is none; or a neighbour emptied and removed it.
