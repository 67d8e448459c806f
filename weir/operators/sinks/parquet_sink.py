"""Parquet files as a sink, exactly once, by two phases.

::

    <path>/part-<operator>-<subtask>-<checkpoint>-<counter>.parquet     committed
    <path>/_pending/<job>/<attempt>/<operator>-<subtask>-<n>.parquet    being written
    <path>/_pending/<job>/<attempt>/part-….parquet                      waiting
    <path>/_withdrawn/<job>/<attempt>/part-….parquet                    withdrawn by a rewind

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
began. The footer of a file names the job that wrote it: another job may write to this directory.

In a fork the list is that of its origin. The origin commits the files as long as it can; a job that
*adopts* them, since the origin is over or the job claims its savepoint, commits them in its stead:
in the origin's directory and under the names that the origin gave. So it makes no difference which
of the two commits a file, nor whether both do.
"""

import logging
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq

from weir.common.batch import Batch
from weir.errors import ConfigError, CorruptStateError, SchemaError, StorageError, UserError
from weir.fault_points import reach
from weir.ids import AttemptNumber, CheckpointId
from weir.operators.base import Operator, OperatorContext
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
    from weir.ids import StateHandle
    from weir.state.store import OperatorStateStore, SnapshotPart
    from weir.storage.writer import StoredSnapshotWriter

logger = logging.getLogger(__name__)

ROW_GROUP_ROWS = 32_768  # Encoding one row group blocks the loop for some milliseconds.
ROW_GROUP_BYTES = 16 << 20
NO_CHECKPOINT = CheckpointId(0)  # In the names of files that no checkpoint confirms.
CREATE_TRIES = 3  # A neighbour may remove the still empty directory in between.
JOB_KEY, ATTEMPT_KEY = b"weir.job", b"weir.attempt"  # In the footer: the file's writer.


class ParquetSink(Sink):
    """Writes records as Parquet files into the directory ``path``, each record exactly once.

    The schema is that of the first batch unless given. A job that starts without a restore refuses
    a directory that already holds files of its operator: it could not tell them from its own.

    Raises:
        ConfigError: ``rows_per_file`` is less than 1, or ``path`` is a file.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        rows_per_file: int = 1_000_000,
        *,
        schema: pa.Schema | None = None,
    ) -> None:
        if rows_per_file < 1:
            raise ConfigError(f"rows_per_file is {rows_per_file}; it must be at least 1")
        if os.path.isfile(path):
            raise ConfigError(
                f"{os.fspath(path)} is a file; ParquetSink writes a directory of files: give it "
                "the path of one, which need not exist"
            )
        self.path = os.path.abspath(path)  # Executors have working directories of their own.
        self.rows_per_file = rows_per_file
        self.schema = schema

    @property
    def commits_to(self) -> str:
        return self.path

    def moved_below(self, directory: str) -> Sink:
        moved = copy(self)
        moved.path = os.path.abspath(directory)
        return moved

    def create_operator_factory(self) -> Callable[[], Operator]:
        return partial(ParquetSinkOperator, self.path, self.rows_per_file, self.schema)


@dataclass(frozen=True, slots=True)
class PendingCommit:
    """A file that waits for its final place; names are relative to the sink's directory."""

    pending: str
    final: str

    @property
    def attempt(self) -> AttemptNumber:
        """The attempt that wrote the file."""
        return AttemptNumber(int(Path(self.pending).parent.name))


class ParquetSinkOperator(Operator):
    """Writes and commits one subtask's share of the output."""

    def __init__(self, path: str, rows_per_file: int, schema: pa.Schema | None) -> None:
        self._root = Path(path)
        self._rows_per_file = rows_per_file
        self._schema = schema
        self._current: PartFile | None = None
        self._full: list[PartFile] = []  # Of the interval that is still open.
        self._intervals: PendingCommits[list[tuple[PartFile, PendingCommit]]] = PendingCommits()
        self._numbered = 0
        self._saved_id = NO_CHECKPOINT  # The newest checkpoint restored, or taken here.
        self._spared: set[int] = set()  # Checkpoints off the line whose output is meant to stay.
        self._moved_in: set[Path] = set()  # Directories whose names are not durable yet.

    def declare(self, state: "OperatorStateStore") -> None:
        self._state = state.list_state("commits", "union")

    def open(self, ctx: OperatorContext) -> None:
        super().open(ctx)
        operator = quote(ctx.subtask.operator, safe="")
        self._stem = f"{operator}-{ctx.subtask.index}"
        self._job_directory = pending_directory(self._root, ctx.job_id)
        self._directory = self._job_directory / str(ctx.attempt)
        self._withdrawn = withdrawn_directory(self._root, ctx.job_id)
        self._being_written = re.compile(rf"{re.escape(operator)}-(\d+)-\d+\.parquet")
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

    def on_batch(self, batch: Batch, input_index: int) -> None:
        columns = self._fit(self.columns_of(batch))
        while columns.num_rows:
            if self._current is None:
                name = f"{self._stem}-{self._numbered}.parquet"
                self._numbered += 1
                writer = {JOB_KEY: self.ctx.job_id.encode(), ATTEMPT_KEY: b"%d" % self.ctx.attempt}
                self._current = PartFile(self._directory / name, columns.schema, writer)
            room = self._rows_per_file - self._current.rows
            self._current.write(columns.slice(0, room))
            columns = columns.slice(room)
            if self._current.rows == self._rows_per_file:
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
        return [_SealFiles([file for _, files in self._intervals.waiting() for file, _ in files])]

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
        _SealFiles([file for file, _ in named]).seal()
        self._commit([commit for _, commit in named], last)

    def close(self) -> None:
        # No barrier has passed them, so no checkpoint names them.
        for file in self._full if self._current is None else (*self._full, self._current):
            file.abandon()
        self._full, self._current = [], None
        if not self._intervals.waiting():
            remove_empty(self._directory, self._job_directory, self._root / PENDING)

    def _swap(self, checkpoint_id: CheckpointId) -> "list[tuple[PartFile, PendingCommit]]":
        """Close the interval: the files written so far belong to this checkpoint."""
        files = self._full if self._current is None else [*self._full, self._current]
        self._full, self._current = [], None
        named = []
        for counter, file in enumerate(files):
            final = f"part-{self._stem}-{checkpoint_id}-{counter}.parquet"
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

    def _fit(self, columns: pa.RecordBatch) -> pa.RecordBatch:
        """The columns in the schema of this sink's files; their own order does not matter.

        Raises:
            SchemaError: A column is missing, cannot be converted, or is not in the schema.
        """
        if self._schema is None:
            self._schema = columns.schema
        if columns.schema.equals(self._schema):
            return columns
        if more := Counter(columns.schema.names) - Counter(self._schema.names):
            raise self._misfit(columns, f"it has no column for {', '.join(more)}")
        try:
            return columns.select(self._schema.names).cast(self._schema)
        except (KeyError, ValueError, pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise self._misfit(columns, str(error)) from error

    def _misfit(self, columns: pa.RecordBatch, why: str) -> SchemaError:
        return SchemaError(
            f"records for {self._root} do not fit its schema: {why}. The schema is\n"
            f"{self._schema}\nand the records have\n{columns.schema}\nThe schema is that of the "
            "first batch unless it is given. Declare output_type on the operator before the sink, "
            "or give the sink a schema; columns that are not to be written must be left out before "
            "the sink"
        )

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
            and (attempt := self._wrote(path, by_default=restored_id > 0)) is not None
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

    def _wrote(self, path: Path, *, by_default: bool) -> AttemptNumber | None:
        """The attempt of this job that wrote a file; None: another job did."""
        footer = _footer(path) or {}
        job = footer.get(JOB_KEY)
        if job is None:
            return ANY_ATTEMPT if by_default else None
        if job != self.ctx.job_id.encode():
            return None
        return AttemptNumber(int(footer.get(ATTEMPT_KEY, ANY_ATTEMPT)))

    def _withdraw(self, path: Path, attempt: AttemptNumber) -> None:
        directory = self._withdrawn / str(attempt)
        _move(path, directory / path.name)
        self._moved_in.update((directory, *directory.parents[:3], path.parent))

    def _return(self, path: Path) -> None:
        _move(path, self._root / path.name)
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
            footer = _footer(path)
        except FileNotFoundError:
            return  # A process of the older attempt has committed it just now.
        # A file without a footer was never acknowledged, so no checkpoint covers it.
        if name.checkpoint_id == NO_CHECKPOINT or footer is None:
            path.unlink(missing_ok=True)
        else:
            self._withdraw(path, attempt)


class PartFile:
    """A Parquet file while it is written: open, complete, then sealed, in that order.

    One thread uses it at a time: the loop until the barrier, the snapshot thread until the
    acknowledgement. Only sealing may run on both: at the end of a job without checkpoints a
    savepoint may still be written.
    """

    def __init__(self, path: Path, schema: pa.Schema, metadata: dict[bytes, bytes]) -> None:
        self.path = path
        self.rows = 0
        self._buffer: list[pa.RecordBatch] = []
        self._buffered_rows = 0
        self._buffered_bytes = 0
        self._sealed = False
        self._failure: Exception | None = None
        self._sealing = Lock()
        self._writer: pq.ParquetWriter | None = _create(path, schema)
        self._writer.add_key_value_metadata(metadata)

    def write(self, columns: pa.RecordBatch) -> None:
        """Add rows."""
        self._buffer.append(columns)
        self.rows += columns.num_rows
        self._buffered_rows += columns.num_rows
        self._buffered_bytes += columns.nbytes
        if self._buffered_rows >= ROW_GROUP_ROWS or self._buffered_bytes >= ROW_GROUP_BYTES:
            self._write_row_group()

    def rename(self, path: Path) -> None:
        """Give the file another name in the same directory, whether it is complete or not."""
        self.path.rename(path)
        self.path = path

    def complete(self) -> None:
        """Write the buffered rows and the footer; the file is not durable yet."""
        if self._writer is None:
            return
        if self._buffer:
            self._write_row_group()
        self._writer.close()
        self._writer = None

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

    def abandon(self) -> None:
        """Delete the file, which no checkpoint names."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        self.path.unlink(missing_ok=True)

    def _write_row_group(self) -> None:
        assert self._writer is not None
        self._writer.write_table(pa.Table.from_batches(self._buffer))
        self._buffer = []
        self._buffered_rows = self._buffered_bytes = 0


class _SealFiles:
    """A snapshot part that stores no state but seals files, which are durable by themselves."""

    def __init__(self, files: list[PartFile]) -> None:
        self._files = files

    def write(self, writer: "StoredSnapshotWriter") -> "Sequence[StateHandle]":
        self.seal()
        return ()

    def release(self) -> None:
        """Nothing to release: later snapshots share nothing with this part."""

    def seal(self) -> None:
        for file in self._files:
            file.seal()


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


def committed_files(directory: Path) -> list[Path]:
    """The committed files of a sink, in an order that keeps the order of rows within each key."""
    named = [
        (name.checkpoint_id, name.subtask, name.counter, path)
        for path in directory.iterdir()
        if (name := CommittedName.parse(path.name)) is not None
    ]
    return [path for *_, path in sorted(named)]


def fsync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    _fsync(path, os.O_RDONLY | os.O_DIRECTORY)


def _fsync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _create(path: Path, schema: pa.Schema) -> pq.ParquetWriter:
    for tries_left in reversed(range(CREATE_TRIES)):
        try:
            if not path.parent.is_dir():
                path.parent.mkdir(parents=True, exist_ok=True)
                for directory in path.parents[1:4]:  # Of the job, ``_pending`` and the sink.
                    fsync_directory(directory)
            return pq.ParquetWriter(path, schema)
        except FileNotFoundError:
            if not tries_left:
                raise
    raise AssertionError("unreachable")


def _footer(path: Path) -> dict[bytes, bytes] | None:
    """The key-value pairs in a file's footer; None: the file has none and is not whole."""
    try:
        return pq.read_metadata(path).metadata or {}
    except pa.ArrowInvalid:
        return None


def _move(path: Path, to: Path) -> None:
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
