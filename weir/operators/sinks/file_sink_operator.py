"""Files of any format as output, exactly once, by two phases.

::

    <path>/part-<operator>-<subtask>-<checkpoint>-<counter>…     committed
    <path>/_pending/<job>/<attempt>/<operator>-<subtask>-<n>…    being written
    <path>/_pending/<job>/<attempt>/part-…                       waiting
    <path>/_withdrawn/<job>/<attempt>/part-…                     withdrawn by a rewind

First phase: the barrier of checkpoint n swaps to a new file; the old one is closed and synced on
the snapshot thread, before the acknowledgement. Second phase: when checkpoint n or a later one
completed, a rename gives the file its final place and the directory is synced. ``<checkpoint>`` is
the one whose barrier closed the file. Which pending files become which final ones is in the
snapshot, so a restore finishes what a crash left between completion and rename.

The snapshot's list is *union* state: after rescaling every subtask sees the whole list, and each
commits and cleans for the old subtasks ``s % parallelism == index``. With split state one subtask
could clean away, as a leftover, the file that another was still to commit.

Opening first commits the files that the restored checkpoint covers. Then it removes leftovers of
older attempts; files that had waited are withdrawn, since a savepoint, or a checkpoint that may be
restored later, may need them. Then it makes the output match the line of the restored checkpoint:
files that this job committed off the line move to ``_withdrawn``, for their records come again, and
withdrawn files that are on the line come back. All of this is renames within the subtask's share,
so the next opening finishes what a crash interrupts, and a rollback that is undone ends where it
began. Another job may write to this directory, so every file tells the job that wrote it: a
Parquet file in its footer, a text file in its name.

In a fork the list is that of its origin. The origin commits the files as long as it can; a job that
*adopts* them, since the origin is over or the job claims its savepoint, commits them in its stead:
in the origin's directory and under the names that the origin gave. So it makes no difference which
of the two commits a file, nor whether both do.
"""

import logging
import os
import re
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar
from urllib.parse import quote

from weir.errors import ConfigError, CorruptStateError, UserError
from weir.fault_points import reach
from weir.ids import AttemptNumber, CheckpointId
from weir.operators.base import Operator, OperatorContext
from weir.operators.sinks.part_files import (
    PartFile,
    PendingCommit,
    SealFiles,
    fsync_directory,
    move,
    rename_once,
)
from weir.operators.sinks.pending_commits import PendingCommits, Sink
from weir.output.output_files import (
    PENDING,
    WITHDRAWN,
    CommittedName,
    pending_directory,
    remove_empty,
    withdrawn_directory,
    withdrawn_files,
)
from weir.protocol.lineage import ANY_ATTEMPT, UNKNOWN
from weir.storage.local import make_directories

if TYPE_CHECKING:
    from weir.state.store import OperatorStateStore, SnapshotPart

logger = logging.getLogger(__name__)

NO_CHECKPOINT = CheckpointId(0)  # In the names of files that no checkpoint confirms.

P = TypeVar("P", bound=PartFile)


class DirectorySink(Sink):
    """A sink that commits files to a directory.

    Raises:
        ConfigError: There is a file at the path.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        if os.path.isfile(path):
            raise ConfigError(
                f"{os.fspath(path)} is a file; {type(self).__name__} writes a directory of files: "
                "give it the path of one, which need not exist"
            )
        self.path = os.path.abspath(path)  # Executors have working directories of their own.

    @property
    def commits_to(self) -> str:
        return self.path

    def moved_below(self, directory: str) -> Self:
        moved = copy(self)
        moved.path = os.path.abspath(directory)
        return moved


class FileSinkOperator(Operator, Generic[P]):
    """Writes and commits one subtask's share of the output."""

    extension: ClassVar[str]  # Of files that are being written.

    def __init__(self, path: str) -> None:
        self._root = Path(path)
        self._current: P | None = None
        self._full: list[P] = []  # Of the interval that is still open.
        self._intervals: PendingCommits[list[tuple[P, PendingCommit]]] = PendingCommits()
        self._numbered = 0
        self._saved_id = NO_CHECKPOINT  # The newest checkpoint restored, or taken here.
        self._spared: set[int] = set()  # Checkpoints off the line whose output is meant to stay.
        self._moved_in: set[Path] = set()  # Directories whose names are not durable yet.

    # What a format decides.

    @abstractmethod
    def final_name(self, checkpoint_id: CheckpointId, counter: int) -> CommittedName:
        """The name under which this subtask commits a file."""

    @abstractmethod
    def writer_of(
        self, path: Path, name: CommittedName, *, by_default: bool
    ) -> AttemptNumber | None:
        """The attempt of this job that wrote a committed file; None: another job did.

        ``by_default`` says whether a file that does not tell its job is this one's.
        """

    @abstractmethod
    def is_whole(self, path: Path) -> bool:
        """Whether a pending file may have been sealed; False: it certainly was not.

        Raises:
            FileNotFoundError: It has been committed meanwhile.
        """

    def declare(self, state: "OperatorStateStore") -> None:
        self._state = state.list_state("commits", "union")

    def open(self, ctx: OperatorContext) -> None:
        super().open(ctx)
        operator = quote(ctx.subtask.operator, safe="")
        self._stem = f"{operator}-{ctx.subtask.index}"
        self._job_directory = pending_directory(self._root, ctx.job_id)
        self._directory = self._job_directory / str(ctx.attempt)
        self._withdrawn = withdrawn_directory(self._root, ctx.job_id)
        extension = re.escape(self.extension)
        self._being_written = re.compile(rf"{re.escape(operator)}-(\d+)-\d+{extension}")
        make_directories(self._root)  # Durably: all output would be lost with its name.
        self.declare(ctx.state)
        restored = self._state.get()
        mine = [item for item in restored if item["job"] == ctx.job_id]
        checkpoint_id = CheckpointId(max((item["checkpoint"] for item in mine), default=0))
        behind = (span.last for span in ctx.lineage.spans)
        self._saved_id = max((checkpoint_id, *behind))
        self._spared = {spared for item in mine for spared in item.get("spared", ())}
        commits = [
            PendingCommit(*names)
            for item in mine
            if self._stands_in_for(item["subtask"])
            for names in item["commits"]
        ]
        self._adopt(restored)
        self._put_back(commits)
        self._commit(commits, checkpoint_id)
        # Before the committed files are listed: a process of an older attempt that still commits
        # finds nothing to commit from here on, and the listing has all that it committed.
        self._remove_leftovers()
        self._rewind(checkpoint_id)
        if not restored and not ctx.state.restored:
            self._refuse_foreign_output()
        self._sync_moves()

    @property
    def carries_watermarks(self) -> bool:
        return True

    def new_path(self) -> Path:
        """The path of the next file, in the directory of this attempt's pending files."""
        name = f"{self._stem}-{self._numbered}{self.extension}"
        self._numbered += 1
        return self._directory / name

    def roll(self) -> None:
        """Close the current file, which is full; the next record begins another one."""
        if self._current is not None:
            self._current.complete()
            self._full.append(self._current)
            self._current = None

    def prepare_snapshot(self, checkpoint_id: CheckpointId) -> None:
        if named := self._swap(checkpoint_id):
            self._intervals.close(checkpoint_id, named)
        self._saved_id = checkpoint_id
        waiting = [pair for _, files in self._intervals.waiting() for pair in files]
        item = {
            "job": self.ctx.job_id,
            "subtask": self.ctx.subtask.index,
            "checkpoint": checkpoint_id,
            # The names are relative, and a job that adopts them may write to another directory.
            "directory": str(self._root),
            "commits": [[commit.pending, commit.final] for _, commit in waiting],
            "rows": [file.rows for file, _ in waiting],
            **({"spared": sorted(self._spared)} if self._spared else {}),
        }
        self._state.update([item])

    def snapshot(self, checkpoint_id: CheckpointId) -> "Sequence[SnapshotPart]":
        # All waiting files, not only this interval's: the writing for an earlier checkpoint may
        # have been cancelled before it sealed its files.
        return [SealFiles([file for _, files in self._intervals.waiting() for file, _ in files])]

    def on_checkpoint_completed(self, checkpoint_id: CheckpointId) -> None:
        done = self._intervals.complete(checkpoint_id)
        self._commit([commit for _, files in done for _, commit in files], checkpoint_id)

    def finish(self) -> None:
        if self.ctx.checkpointing:
            return
        # No checkpoint will confirm the files that wait since a savepoint. Rows after it get the
        # next number, so that a rollback to the savepoint withdraws them.
        done = self._intervals.complete(self._saved_id)
        last = CheckpointId(self._saved_id + 1) if self._saved_id else NO_CHECKPOINT
        named = [pair for _, files in done for pair in files] + self._swap(last)
        SealFiles([file for file, _ in named]).seal()
        self._commit([commit for _, commit in named], last)

    def close(self) -> None:
        # No barrier has passed them, so no checkpoint names them.
        for file in self._full if self._current is None else (*self._full, self._current):
            file.abandon()
        self._full, self._current = [], None
        if not self._intervals.waiting():
            remove_empty(self._directory, self._job_directory, self._root / PENDING)

    def _swap(self, checkpoint_id: CheckpointId) -> list[tuple[P, PendingCommit]]:
        """Close the interval: the files written so far belong to this checkpoint."""
        files = self._full if self._current is None else [*self._full, self._current]
        self._full, self._current = [], None
        named = []
        for counter, file in enumerate(files):
            final = str(self.final_name(checkpoint_id, counter))
            # From here on a restore may need the file, even if this attempt fails; its name tells.
            file.rename(self._directory / final)
            named.append((file, PendingCommit(str(file.path.relative_to(self._root)), final)))
        return named

    def _commit(self, commits: Sequence[PendingCommit], checkpoint_id: CheckpointId) -> None:
        """Give files their final names; those that have them already stay as they are."""
        if not commits:
            return
        subtask = str(self.ctx.subtask)
        reach("sink.before_commit", subtask=subtask, id=checkpoint_id)
        for commit in commits:
            rename_once(self._root / commit.pending, self._root / commit.final)
            reach("sink.after_rename", subtask=subtask, id=checkpoint_id)
        fsync_directory(self._root)

    def _adopt(self, restored: Sequence[dict[str, Any]]) -> None:
        """Commit files that another job left waiting, in that job's directory.

        Should that job still run, one of the two finds the commit done. Files that it has withdrawn
        meanwhile stay so: it runs on another line, on which the same records come again.
        """
        subtask = str(self.ctx.subtask)
        for item in restored:
            if item["job"] != self.ctx.adopts or not self._stands_in_for(item["subtask"]):
                continue
            root = Path(item.get("directory", self._root))
            moved: set[Path] = set()
            for commit in (PendingCommit(*names) for names in item["commits"]):
                pending, final = root / commit.pending, root / commit.final
                reach("sink.before_adopt", subtask=subtask, id=item["checkpoint"])
                try:
                    rename_once(pending, final)
                except (CorruptStateError, PermissionError) as error:
                    logger.warning(
                        "pending output of job %s is not committed: %s", item["job"], error
                    )
                else:
                    moved.add(pending.parent)
            if moved:
                fsync_directory(root)
            for directory in moved:
                remove_empty(directory, directory.parent, root / PENDING)

    def _stands_in_for(self, subtask: int) -> bool:
        """Whether this subtask manages the files of ``subtask``, perhaps of a wider attempt."""
        return subtask % self.ctx.parallelism == self.ctx.subtask.index

    def _is_mine(self, name: CommittedName | None) -> bool:
        """Whether this subtask manages the file of that name."""
        return (
            name is not None
            and name.operator == self.ctx.subtask.operator
            and self._stands_in_for(name.subtask)
        )

    def _committed(self) -> Iterator[tuple[Path, CommittedName]]:
        """This subtask's share of the committed files."""
        for path in list(self._root.iterdir()):
            name = CommittedName.parse(path.name)
            if name is not None and self._is_mine(name):
                yield path, name

    def _refuse_foreign_output(self) -> None:
        if committed := next(self._committed(), None):
            raise UserError(
                f"{self._root} already holds output of {self.ctx.name} from another run, such as "
                f"{committed[0].name}; write to an empty directory, move those files away, or "
                "restore the run they belong to"
            )

    # Rewinding.

    def _rewind(self, restored_id: CheckpointId) -> None:
        """Make the output match the line of the restored checkpoint.

        ``restored_id`` is 0 where the checkpoint holds no state of this job.
        """
        beside = [
            (path, name.checkpoint_id, attempt)
            for path, name in self._committed()
            if self._is_beside(name.checkpoint_id, restored_id)
            and (attempt := self.writer_of(path, name, by_default=restored_id > 0)) is not None
        ]
        if not self.ctx.rewinds_output:
            # Noted for the next attempt, which would withdraw those files otherwise.
            self._spared.update(checkpoint_id for _, checkpoint_id, _ in beside)
            return
        subtask = str(self.ctx.subtask)
        for path, checkpoint_id, attempt in beside:
            reach("sink.before_withdraw", subtask=subtask, id=checkpoint_id)
            self._withdraw(path, attempt)
        back = [
            file
            for file in withdrawn_files(self._root, self.ctx.job_id)
            if self._is_mine(file.name) and file.is_on(self.ctx.lineage)
        ]
        for file in back:
            reach("sink.before_return", subtask=subtask, id=file.name.checkpoint_id)
            self._return(file.path)

    def _is_beside(self, checkpoint_id: CheckpointId, restored_id: CheckpointId) -> bool:
        """Whether output committed for a checkpoint is off the line, so that it comes again."""
        if checkpoint_id == NO_CHECKPOINT or checkpoint_id in self._spared:
            return False
        if self.ctx.lineage == UNKNOWN:
            return 0 < restored_id < checkpoint_id
        return checkpoint_id not in self.ctx.lineage

    def _withdraw(self, path: Path, attempt: AttemptNumber) -> None:
        directory = self._withdrawn / str(attempt)
        move(path, directory / path.name)
        self._moved_in.update((directory, *directory.parents[:3], path.parent))

    def _return(self, path: Path) -> None:
        move(path, self._root / path.name)
        self._moved_in.update((self._root, path.parent))
        remove_empty(path.parent, self._withdrawn, self._root / WITHDRAWN)

    def _sync_moves(self) -> None:
        for directory in self._moved_in:
            if directory.is_dir():
                fsync_directory(directory)
        self._moved_in.clear()

    def _put_back(self, commits: Sequence[PendingCommit]) -> None:
        """Bring back withdrawn files that the checkpoint covers, also if nothing is rewound."""
        missing = {
            commit.final: commit.attempt
            for commit in commits
            if not (self._root / commit.final).exists()
            and not (self._root / commit.pending).exists()
        }
        if missing:
            for file in list(withdrawn_files(self._root, self.ctx.job_id)):
                wrote = missing.get(file.path.name)
                if wrote is not None and file.attempt in (wrote, ANY_ATTEMPT):
                    self._return(file.path)

    def _remove_leftovers(self) -> None:
        """Clear the pending directories of older attempts: the restored files are committed."""
        if not self._job_directory.is_dir():
            return
        for attempt in self._job_directory.iterdir():
            if not attempt.name.isdecimal() or int(attempt.name) >= self.ctx.attempt:
                continue
            try:
                paths = list(attempt.iterdir())
            except FileNotFoundError:
                continue  # Another subtask emptied and removed the directory.
            for path in paths:
                self._remove_leftover(path, AttemptNumber(int(attempt.name)))
            remove_empty(attempt)

    def _remove_leftover(self, path: Path, attempt: AttemptNumber) -> None:
        match = self._being_written.fullmatch(path.name)
        if match and self._stands_in_for(int(match[1])):
            path.unlink(missing_ok=True)  # Its writer saw no barrier: else it would be renamed.
            return
        name = CommittedName.parse(path.name)
        if name is None or not self._is_mine(name):
            return
        try:
            is_whole = self.is_whole(path)
        except FileNotFoundError:
            return  # A process of the older attempt has committed it just now.
        # A file that was never sealed was not acknowledged either, so no checkpoint covers it.
        if name.checkpoint_id == NO_CHECKPOINT or not is_whole:
            path.unlink(missing_ok=True)
        else:
            self._withdraw(path, attempt)
