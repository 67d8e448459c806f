"""Waiting output: output that a checkpoint covers and its job has not committed or shown.

A file sink's files wait in its directory until a checkpoint or the end of the job commits them; a
savepoint of a running job commits nothing, so output before its barrier waits for the job's next
checkpoint. The same job, restored from the savepoint, commits it. Another job leaves it to its
*origin*, the job that took the checkpoint, unless the origin is over or the savepoint was claimed:
then no other job would commit it. Rows that wait for the driver to show them stay the origin's in
any case.
"""

from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from weir.errors import CorruptStateError
from weir.ids import JobId, OperatorId
from weir.output.output_files import withdrawn_files
from weir.storage.attempt_claims import newest_attempt
from weir.storage.layout import JobLayout
from weir.storage.manifest import Manifest, OperatorSummary, read_handle
from weir.storage.store import CheckpointStore
from weir.storage.writer import load_items

COMMITS = "commits"  # The state that file sinks keep the names of waiting files in.
UNDELIVERED = "undelivered"  # The state of sinks that deliver rows to the driver.


class Fate(StrEnum):
    """The job that commits waiting output."""

    OWN = "own"  # The origin itself restores, and commits.
    OVER = "over"  # Another job restores and commits: the origin is over.
    CLAIMED = "claimed"  # Another job restores and commits: it claims the savepoint.
    LEFT = "left"  # Another job restores; the origin, not known to be over, commits.
    DROPPED = "dropped"  # No job: the restoring program has no such sink.
    ASKED = "asked"  # No job restores yet; whether the origin is over is not known.
    ASKED_OVER = "asked_over"  # No job restores yet; the origin is over.


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingOutput:
    """The output that one sink had not committed or shown at a checkpoint.

    Units: files and rows. Rows are None where an older version of Weir did not count them.
    """

    uid: OperatorId
    name: str
    directory: str | None  # Of a file sink; None: the rows wait in the checkpoint itself.
    files: int  # Files that still wait; all that the checkpoint names, if there is a problem.
    rows: int | None  # In these files, or in the checkpoint.
    taken_back: int  # Files that the origin withdrew when it restored another line.
    missing: int  # Files that neither wait nor are committed nor withdrawn.
    problem: str = ""  # Why the directory cannot be read.


def is_over(store: CheckpointStore, job_id: JobId) -> bool:
    """Whether the storage records a job's end; it does not where the driver was killed.

    Raises:
        StorageError: The storage failed.
    """
    layout = JobLayout(job_id)
    newest = newest_attempt(store, job_id)
    if not newest:
        return False
    return store.exists(layout.over(newest)) or store.exists(layout.finished)


def items_of(
    manifest: Manifest, store: CheckpointStore, directory: str, uid: OperatorId, state: str
) -> list[Any] | None:
    """The items of an operator state, of all subtasks; None: there is none.

    Raises:
        CorruptStateError: A part of it is damaged or missing.
        StorageError: The storage failed.
    """
    handles = [
        handle
        for ack in manifest.acks
        if ack.subtask.operator == uid
        for handle in ack.handles
        if (handle.kind, handle.name) == ("operator", state)
    ]
    read = [load_items(read_handle(store, directory, handle)) for handle in handles]
    return [item for items in read for item in items] if handles else None


def waiting_output(
    manifest: Manifest, store: CheckpointStore, directory: str
) -> list[WaitingOutput]:
    """The waiting output of every sink of the checkpoint's job.

    Sinks without any are left out, and so is damaged state, which a restore reports.

    Raises:
        StorageError: The storage failed.
    """
    origin = manifest.job_id
    looked: list[WaitingOutput | None] = []
    for op in manifest.operators:
        for state, look in ((COMMITS, _files), (UNDELIVERED, _rows)):
            try:
                items = items_of(manifest, store, directory, op.uid, state) or []
                own = [item for item in items if item["job"] == origin]
                looked.append(look(op, origin, own))
            except (CorruptStateError, KeyError, TypeError, ValueError):
                continue  # Damaged, or a state of the user's own that bears this name.
    return [one for one in looked if one is not None]


def _files(op: OperatorSummary, origin: JobId, items: list[Any]) -> WaitingOutput | None:
    named = [
        (item.get("directory", op.files), pending, final, rows)
        for item in items
        for (pending, final), rows in zip(
            item["commits"], item.get("rows") or [None] * len(item["commits"]), strict=True
        )
    ]
    if not named or named[0][0] is None:
        return None
    root = Path(named[0][0])
    waiting: list[int | None] = []
    taken_back = missing = 0
    problem = ""
    try:
        list(root.iterdir())  # Files of an unreadable directory would seem to be missing.
        withdrawn = {(file.attempt, file.path.name) for file in withdrawn_files(root, origin)}
        for _, pending, final, rows in named:
            attempt = int(Path(pending).parent.name)
            if (root / pending).exists():
                waiting.append(rows)
            elif (root / final).exists():
                continue
            elif (attempt, final) in withdrawn:
                taken_back += 1
            else:
                missing += 1
    except OSError as error:
        problem = f"the directory cannot be read from here: {error.strerror or error}"
        waiting, taken_back, missing = [rows for *_, rows in named], 0, 0
    if not (waiting or taken_back or missing):
        return None
    return WaitingOutput(
        uid=op.uid,
        name=op.name,
        directory=str(root),
        files=len(waiting),
        rows=_total(waiting),
        taken_back=taken_back,
        missing=missing,
        problem=problem,
    )


def _rows(op: OperatorSummary, origin: JobId, items: list[Any]) -> WaitingOutput | None:
    if not items:
        return None
    counts = [
        item.get("count", len(item["rows"]) if isinstance(item["rows"], list) else None)
        for item in items
    ]
    return WaitingOutput(
        uid=op.uid, name=op.name, directory=None, files=0, rows=_total(counts),
        taken_back=0, missing=0,
    )  # fmt: skip


def _total(counts: list[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


# In words.


def sentences(
    manifest: Manifest, waiting: Iterable[WaitingOutput], fate: Fate, uids: Container[OperatorId]
) -> Iterator[str]:
    """The fate of waiting output in words, with advice where a user may want another.

    Output that the restoring job commits as its own is left out. ``uids`` are the operators of the
    restoring program.
    """
    for one in waiting:
        becomes = fate if one.uid in uids else Fate.DROPPED
        if becomes is Fate.OWN:
            continue
        if one.directory is None:
            yield _said_of_rows(manifest, one, becomes)
        else:
            yield from _said_of_files(manifest, one, becomes)


def _said_of_files(manifest: Manifest, one: WaitingOutput, fate: Fate) -> Iterator[str]:
    job, number = manifest.job_id, manifest.checkpoint_id
    if one.files:
        amount = _counted(one.files, "file")
        if one.rows is not None:
            amount = f"{_counted(one.rows, 'row')} in {amount}"
        waits, why, limit = "wait", "", ""
        if one.problem:
            waits = f"waited, when {manifest.kind} {number} was taken,"
            why, limit = f" ({one.problem})", ", as far as its sinks can reach them"
        yield (
            f"{amount} of sink {one.uid} {waits} in {one.directory} to be committed for job {job}"
            f"{why}: {_COMMITTED_BY[fate](job)}{limit if fate in _ADOPTING else ''}"
        )
    if one.taken_back:
        yield (
            f"{_counted(one.taken_back, 'file')} of sink {one.uid} that {manifest.kind} {number} "
            f"covers were taken back in {one.directory}, since job {job} was restored from an "
            f"earlier checkpoint: {job} writes those records again along that line, and only "
            f"{job} itself, restored from here, puts the files back"
        )
    if one.missing:
        yield (
            f"{_counted(one.missing, 'file')} of sink {one.uid} that {manifest.kind} {number} "
            f"covers are not in {one.directory} any more, neither committed nor waiting: put them "
            "back if they were moved by mistake"
        )


_ADOPTING = (Fate.OVER, Fate.CLAIMED)
_COMMITTED_BY: dict[Fate, Callable[[JobId], str]] = {
    Fate.OVER: lambda job: f"{job} is over, so this job commits them there",
    Fate.CLAIMED: lambda job: "the savepoint is claimed, so this job commits them there",
    Fate.LEFT: lambda job: (
        f"{job} is not known to be over, so they are left to it. If {job} is over, and does not "
        f"run again, they will be missing from its output: restore this as {job} itself, or claim "
        "the savepoint"
    ),
    Fate.DROPPED: lambda job: (
        "the program has no sink of this uid, so no job commits them. Restore with a program that "
        "has it, or move the files yourself"
    ),
    Fate.ASKED: lambda job: (
        f"{job} commits them if it runs on; it is not known to be over, so another job restored "
        "from here leaves them to it unless it claims the savepoint"
    ),
    Fate.ASKED_OVER: lambda job: f"any job restored from here commits them, for {job} is over",
}


def _said_of_rows(manifest: Manifest, one: WaitingOutput, fate: Fate) -> str:
    amount = "rows" if one.rows is None else _counted(one.rows, "row")
    job = manifest.job_id
    if fate in (Fate.ASKED, Fate.ASKED_OVER):
        shown = f"{job} shows them if it is restored from here, and another job does not"
    else:
        shown = f"this job does not show them; {job} does, if it runs on itself"
    return (
        f"{amount} of sink {one.uid} had not been shown when {manifest.kind} "
        f"{manifest.checkpoint_id} was taken: {shown}"
    )


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
