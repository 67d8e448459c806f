"""Parquet files as a sink, exactly once, by two phases.

::

    <path>/part-<operator>-<subtask>-<checkpoint>-<counter>.parquet     committed
    <path>/_pending/<job>/<attempt>/<operator>-<subtask>-<n>.parquet    being written, or waiting
    <path>/_withdrawn/<job>/<attempt>/part-….parquet                    taken back by a rewind

First phase: the barrier of checkpoint n swaps to a new file; the old one is closed and synced on
the snapshot thread, before the acknowledgement. Second phase: when checkpoint n or a later one
completed, a rename gives the file its final name and the directory is synced. ``<checkpoint>`` is
the one whose barrier closed the file. Which pending files become which final ones is in the
snapshot, so a restore finishes what a crash left between completion and rename.

The snapshot's list is *union* state: after rescaling every subtask sees the whole list, and each
commits and cleans for the old subtasks ``s % parallelism == index``. With split state one subtask
could clean away, as a leftover, the file that another was still to commit.

Opening cleans up: leftovers of older attempts go, and where a job goes on from an older checkpoint
than it had committed, the newer files are moved to ``_withdrawn``, for their records come again.
"""

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq

from weir.common.batch import Batch
from weir.errors import ConfigError, CorruptStateError, SchemaError, StorageError, UserError
from weir.ids import CheckpointId
from weir.operators.base import Operator, OperatorContext
from weir.operators.intervals import Intervals, Sink
from weir.testing.faults import reach

if TYPE_CHECKING:
    from weir.ids import StateHandle
    from weir.state.store import SnapshotPart
    from weir.storage.writer import StoredSnapshotWriter

ROW_GROUP_ROWS = 32_768  # Encoding one takes the loop some milliseconds.
ROW_GROUP_BYTES = 16 << 20
NO_CHECKPOINT = CheckpointId(0)  # In the names of files that no checkpoint confirms.
_COMMITTED = re.compile(r"part-.+-(\d+)-(\d+)-(\d+)\.parquet")  # Subtask, checkpoint, counter.
CREATE_TRIES = 3  # A neighbour may remove the still empty directory in between.


class ParquetSink(Sink):
    """Writes records as Parquet files into the directory ``path``, each record exactly once.

    The schema is that of the first batch unless given. A job that starts afresh refuses a directory
    that already holds files of its operator: it could not tell them from its own.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        rows_per_file: int = 1_000_000,
        *,
        schema: pa.Schema | None = None,
    ) -> None:
        if rows_per_file < 1:
            raise ConfigError(f"rows_per_file is {rows_per_file}; at least 1")
        self.path = os.path.abspath(path)  # Executors have working directories of their own.
        self.rows_per_file = rows_per_file
        self.schema = schema

    def create_operator_factory(self) -> Callable[[], Operator]:
        return partial(ParquetSinkOperator, self.path, self.rows_per_file, self.schema)


@dataclass(frozen=True, slots=True)
class PendingCommit:
    """A file that waits for its final name; names are relative to the sink's directory."""

    pending: str
    final: str


class ParquetSinkOperator(Operator):
    """One subtask's share of the output."""

    def __init__(self, path: str, rows_per_file: int, schema: pa.Schema | None) -> None:
        self._root = Path(path)
        self._rows_per_file = rows_per_file
        self._schema = schema
        self._current: PartFile | None = None
        self._full: list[PartFile] = []  # Of the interval that is still open.
        self._intervals: Intervals[list[tuple[PartFile, PendingCommit]]] = Intervals()
        self._numbered = 0

    def open(self, ctx: OperatorContext) -> None:
        super().open(ctx)
        operator, job = quote(ctx.subtask.operator, safe=""), quote(ctx.job_id, safe="")
        self._stem = f"{operator}-{ctx.subtask.index}"
        self._job_directory = self._root / "_pending" / job
        self._directory = self._job_directory / str(ctx.attempt)
        self._withdrawn = self._root / "_withdrawn" / job / str(ctx.attempt)
        self._committed_name = re.compile(rf"part-{re.escape(operator)}-(\d+)-(\d+)-\d+\.parquet")
        self._pending_name = re.compile(rf"{re.escape(operator)}-(\d+)-\d+\.parquet")
        self._root.mkdir(parents=True, exist_ok=True)
        self._state = ctx.state.list_state("commits", "union")
        restored = self._state.get()
        mine = [item for item in restored if item["job"] == ctx.job_id]
        if mine:
            self._withdraw_after(max(item["checkpoint"] for item in mine))
            commits = [
                PendingCommit(*names)
                for item in mine
                if self._stands_in_for(item["subtask"])
                for names in item["commits"]
            ]
            self._commit(commits, CheckpointId(max(item["checkpoint"] for item in mine)))
        elif not restored and not ctx.state.restored:
            self._refuse_foreign_output()
        self._remove_leftovers()

    def on_batch(self, batch: Batch, input_index: int) -> None:
        columns = self._fit(batch.columns)
        while columns.num_rows:
            if self._current is None:
                name = f"{self._stem}-{self._numbered}.parquet"
                self._numbered += 1
                self._current = PartFile(self._directory / name, columns.schema)
            room = self._rows_per_file - self._current.rows
            self._current.write(columns.slice(0, room))
            columns = columns.slice(room)
            if self._current.rows == self._rows_per_file:
                self._current.complete()
                self._full.append(self._current)
                self._current = None

    def prepare_snapshot(self, checkpoint_id: CheckpointId) -> None:
        self._swap(checkpoint_id)
        item = {
            "job": self.ctx.job_id,
            "subtask": self.ctx.subtask.index,
            "checkpoint": checkpoint_id,
            "commits": [
                [commit.pending, commit.final]
                for _, files in self._intervals.waiting()
                for _, commit in files
            ],
        }
        self._state.update([item])

    def snapshot(self, checkpoint_id: CheckpointId) -> "Sequence[SnapshotPart]":
        # All that wait, not only this interval's: the writing for an earlier checkpoint may have
        # been cancelled before it got to its files.
        return [_SealFiles([file for _, files in self._intervals.waiting() for file, _ in files])]

    def on_checkpoint_completed(self, checkpoint_id: CheckpointId) -> None:
        done = self._intervals.complete(checkpoint_id)
        self._commit([commit for _, files in done for _, commit in files], checkpoint_id)

    def finish(self) -> None:
        if not self.ctx.checkpointing:
            self._swap(NO_CHECKPOINT)
            _SealFiles([f for _, files in self._intervals.waiting() for f, _ in files]).seal()
            self.on_checkpoint_completed(NO_CHECKPOINT)

    def close(self) -> None:
        if self._current is not None:
            self._current.abandon()
        elif not self._full and not self._intervals.waiting():
            _remove_empty(self._directory, self._job_directory, self._root / "_pending")

    def _swap(self, checkpoint_id: CheckpointId) -> None:
        """Close the interval: what was written so far belongs to this checkpoint."""
        files = self._full if self._current is None else [*self._full, self._current]
        self._full, self._current = [], None
        if not files:
            return
        named = [
            (
                file,
                PendingCommit(
                    str(file.path.relative_to(self._root)),
                    f"part-{self._stem}-{checkpoint_id}-{counter}.parquet",
                ),
            )
            for counter, file in enumerate(files)
        ]
        self._intervals.close(checkpoint_id, named)

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

    def _fit(self, columns: pa.RecordBatch) -> pa.RecordBatch:
        """The columns in the schema of this sink's files."""
        if self._schema is None:
            self._schema = columns.schema
        if columns.schema.equals(self._schema):
            return columns
        try:
            return columns.select(self._schema.names).cast(self._schema)
        except (KeyError, ValueError, pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise SchemaError(
                f"records for {self._root} do not fit its schema: {error}. It is\n{self._schema}\n"
                f"and these are\n{columns.schema}\nDeclare output_type on the operator before the "
                "sink, or give the sink a schema"
            ) from error

    def _stands_in_for(self, subtask: int) -> bool:
        """Whether this subtask looks after the files of that one, perhaps of a wider attempt."""
        return subtask % self.ctx.parallelism == self.ctx.subtask.index

    def _committed(self) -> Iterator[tuple[Path, int]]:
        """This subtask's final files and their checkpoints."""
        for path in self._root.iterdir():
            match = self._committed_name.fullmatch(path.name)
            if match and self._stands_in_for(int(match[1])):
                yield path, int(match[2])

    def _refuse_foreign_output(self) -> None:
        if found := next(self._committed(), None):
            raise UserError(
                f"{self._root} already holds output of {self.ctx.name} from another run, such as "
                f"{found[0].name}; write to an empty directory, move those files away, or restore "
                "the run they belong to"
            )

    def _withdraw_after(self, checkpoint_id: int) -> None:
        newer = [path for path, committed_by in self._committed() if committed_by > checkpoint_id]
        if newer:
            self._withdrawn.mkdir(parents=True, exist_ok=True)
            for path in newer:
                path.rename(self._withdrawn / path.name)
            fsync_directory(self._withdrawn)
            fsync_directory(self._root)

    def _remove_leftovers(self) -> None:
        """Remove pending files of older attempts; what the restored snapshot named is committed."""
        if not self._job_directory.is_dir():
            return
        for attempt in self._job_directory.iterdir():
            if not attempt.name.isdecimal() or int(attempt.name) >= self.ctx.attempt:
                continue
            try:
                for path in list(attempt.iterdir()):
                    match = self._pending_name.fullmatch(path.name)
                    if match and self._stands_in_for(int(match[1])):
                        path.unlink()
            except FileNotFoundError:
                continue  # Another subtask emptied and removed the directory.
            _remove_empty(attempt)


class PartFile:
    """A Parquet file while it is written: open, complete, then sealed, in that order.

    One thread uses it at a time: the loop until the barrier, the snapshot thread until the
    acknowledgement.
    """

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self.path = path
        self.rows = 0
        self._buffer: list[pa.RecordBatch] = []
        self._buffered_rows = 0
        self._buffered_bytes = 0
        self._sealed = False
        self._failure: Exception | None = None
        self._writer: pq.ParquetWriter | None = _create(path, schema)

    def write(self, columns: pa.RecordBatch) -> None:
        """Add rows."""
        self._buffer.append(columns)
        self.rows += columns.num_rows
        self._buffered_rows += columns.num_rows
        self._buffered_bytes += columns.nbytes
        if self._buffered_rows >= ROW_GROUP_ROWS or self._buffered_bytes >= ROW_GROUP_BYTES:
            self._write_row_group()

    def complete(self) -> None:
        """Write what is left and the footer; not yet durable."""
        if self._writer is None:
            return
        if self._buffer:
            self._write_row_group()
        self._writer.close()
        self._writer = None

    def seal(self) -> None:
        """Make the file whole and durable.

        Raises:
            StorageError: It cannot be; now or at an earlier try. The rows in it are lost to this
                attempt, so no later checkpoint may pass over it either.
        """
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
        """Let go of the file without what is still in memory."""
        if self._writer is not None:
            self._writer.close()

    def _write_row_group(self) -> None:
        assert self._writer is not None
        self._writer.write_table(pa.Table.from_batches(self._buffer))
        self._buffer = []
        self._buffered_rows = self._buffered_bytes = 0


class _SealFiles:
    """The part of a snapshot that has nothing to store: the files are their own storage."""

    def __init__(self, files: list[PartFile]) -> None:
        self._files = files

    def write(self, writer: "StoredSnapshotWriter") -> "Sequence[StateHandle]":
        self.seal()
        return ()

    def release(self) -> None:
        """Nothing is held that later snapshots would have to leave alone."""

    def seal(self) -> None:
        for file in self._files:
            file.seal()


def rename_once(pending: Path, final: Path) -> None:
    """Rename, or find that it was done before.

    Raises:
        UserError: Another file has the final name; somebody else writes to this directory.
        CorruptStateError: There is neither; the rows are lost.
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
        if not final.exists():  # It does if an older attempt's process was quicker: same commit.
            raise CorruptStateError(
                f"the checkpoint covers {final}, but neither it nor {pending} exists: its rows are "
                "lost. Put the file back, or restore an older checkpoint"
            ) from error


def committed_files(directory: Path) -> list[Path]:
    """The files that are output, ordered so that the rows of one key are in the order they came."""
    found = [
        (int(match[2]), int(match[1]), int(match[3]), path)
        for path in directory.iterdir()
        if (match := _COMMITTED.fullmatch(path.name))
    ]
    return [path for *_, path in sorted(found)]


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
                for directory in path.parents[1:4]:  # Of job, of pending, and the sink's own.
                    fsync_directory(directory)
            return pq.ParquetWriter(path, schema)
        except FileNotFoundError:
            if not tries_left:
                raise
    raise AssertionError("unreachable")


def _remove_empty(*directories: Path) -> None:
    """Remove directories, innermost first, up to the first one that is in use."""
    for directory in directories:
        try:
            directory.rmdir()
        except OSError:
            return  # Not empty, or already gone.
