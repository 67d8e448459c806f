"""The files of a sink, of any format, between their first record and their final place.

A file is open, complete, sealed, then renamed to its final name, in that order. Here is what the
formats share; ``file_sink_operator`` decides when each step comes.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, TypeVar

from weir.errors import CorruptStateError, StorageError, UserError
from weir.fault_points import reach
from weir.ids import AttemptNumber

if TYPE_CHECKING:
    from weir.ids import StateHandle
    from weir.storage.writer import StoredSnapshotWriter

CREATE_TRIES = 3  # A neighbour may remove the still empty directory in between.

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PendingCommit:
    """A file that waits for its final place; names are relative to the sink's directory."""

    pending: str
    final: str

    @property
    def attempt(self) -> AttemptNumber:
        """The attempt that wrote the file."""
        return AttemptNumber(int(Path(self.pending).parent.name))


class PartFile(ABC):
    """A file while it is written: open, complete, then sealed, in that order.

    One thread uses it at a time: the loop until the barrier, the snapshot thread until the
    acknowledgement. Only sealing may run on both: at the end of a job without checkpoints a
    savepoint may still be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows = 0
        self._sealed = False
        self._failure: Exception | None = None
        self._sealing = Lock()

    @abstractmethod
    def complete(self) -> None:
        """Write what is buffered, and the end of the file; it is not durable yet. Idempotent."""

    @abstractmethod
    def abandon(self) -> None:
        """Close and delete the file, which no checkpoint names."""

    def rename(self, path: Path) -> None:
        """Give the file another name in the same directory, whether it is complete or not."""
        self.path.rename(path)
        self.path = path

    def seal(self) -> None:
        """Make the file whole and durable.

        Raises:
            StorageError: It failed, now or in an earlier call. The rows in the file are lost to
                this attempt, so no later checkpoint may complete without them either.
        """
        with self._sealing:
            if self._sealed:
                return
            if self._failure is None:
                try:
                    reach("sink.before_close", path=self.path.name)
                    self.complete()
                    _fsync(self.path, os.O_RDONLY)
                    fsync_directory(self.path.parent)
                except Exception as error:
                    self._failure = error
            if self._failure is not None:
                raise StorageError(
                    f"{self.path} could not be written: {self._failure}"
                ) from self._failure
            self._sealed = True


class SealFiles:
    """A snapshot part that stores no state but seals files, which are durable by themselves."""

    def __init__(self, files: Iterable[PartFile]) -> None:
        self._files = tuple(files)

    def write(self, writer: "StoredSnapshotWriter") -> "Sequence[StateHandle]":
        self.seal()
        return ()

    def release(self) -> None:
        """Nothing to release: later snapshots share nothing with this part."""

    def seal(self) -> None:
        for file in self._files:
            file.seal()


def create(path: Path, opened: Callable[[Path], T]) -> T:
    """Create a pending file with ``opened``, in a directory that is made durably if need be."""
    for tries_left in reversed(range(CREATE_TRIES)):
        try:
            if not path.parent.is_dir():
                path.parent.mkdir(parents=True, exist_ok=True)
                for directory in path.parents[1:4]:  # Of the job, ``_pending`` and the sink.
                    fsync_directory(directory)
            return opened(path)
        except FileNotFoundError:
            if not tries_left:
                raise
    raise AssertionError("unreachable")


def rename_once(pending: Path, final: Path) -> None:
    """Rename ``pending`` to ``final``, unless that was done before.

    Raises:
        UserError: Another file has the final name, since another job writes to this directory.
        CorruptStateError: Neither file exists; the rows are lost.
    """
    if final.exists():
        if pending.exists():
            raise UserError(
                f"{final} exists and is not the file this job is about to commit under that name: "
                "another job writes to the same directory. Give each job its own; the rows are in "
                f"{pending}"
            )
        return
    try:
        pending.rename(final)
    except FileNotFoundError as error:
        if not final.exists():  # Else an older attempt's process made the same commit.
            raise CorruptStateError(
                f"the checkpoint covers {final}, but neither it nor {pending} exists: its rows are "
                "lost. Put the file back, or restore an older checkpoint"
            ) from error


def move(path: Path, to: Path) -> None:
    """Move a file into another directory, which is created if need be.

    Raises:
        UserError: Another file has the name there.
        StorageError: The file no longer exists.
    """
    if to.exists():
        raise UserError(
            f"{path} cannot be moved to {to}: that file exists already, and both should hold the "
            "same output. Compare the two, and move one of them out of the directory"
        )
    for tries_left in reversed(range(CREATE_TRIES)):
        to.parent.mkdir(parents=True, exist_ok=True)
        try:
            path.rename(to)
            break
        except FileNotFoundError as error:
            if not tries_left or not path.exists():
                raise StorageError(f"{path} was there a moment ago and cannot be moved") from error


def fsync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    _fsync(path, os.O_RDONLY | os.O_DIRECTORY)


def _fsync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
