"""What a checkpoint covers and its job has not given out: whose it is, and how much of it there is.

A file sink's files wait in its directory until a checkpoint or the end of the job commits them; a
savepoint of a running job commits nothing, so what came before its barrier waits for the job's next
checkpoint. A job that goes on from here commits it. Another job leaves it to its *origin*, the job
that took the checkpoint, unless that one is over or the savepoint was claimed: then nobody else
would. Rows that wait for the driver to show them stay the origin's in any case.
"""

from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from weir.errors import CorruptStateError
from weir.ids import JobId, OperatorId
from weir.output.output_files import withdrawn_files
from weir.storage.layout import JobLayout
from weir.storage.manifest import Manifest, OperatorSummary, read_handle
from weir.storage.store import CheckpointStore
from weir.storage.writer import load_items

COMMITS = "commits"  # The state that Parquet sinks keep the names of waiting files in.
UNDELIVERED = "undelivered"  # And that of sinks which hand rows to the driver.


class Fate(StrEnum):
    """Who commits what waits."""

    OWN = "own"  # The job itself goes on: it does.
    OVER = "over"  # Another job goes on, and the origin is over: the other one does.
    CLAIMED = "claimed"  # As above: it was left the savepoint.
    LEFT = "left"  # Another job goes on, and nobody knows the origin to be over: the origin does.
    DROPPED = "dropped"  # Nobody: the program that goes on has no such sink.
    ASKED = "asked"  # Nobody goes on yet; whether the origin is over is not known.
    ASKED_OVER = "asked_over"  # Nobody goes on yet; the origin is over.


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingOutput:
    """What one sink had not given out at a checkpoint.

    Units: files and rows. Rows are None where an older version of Weir did not note them.
    """

    uid: OperatorId
    name: str
    directory: str | None  # Of a file sink; None: the rows wait in the checkpoint itself.
    files: int  # That still wait; all there were, if there is a problem.
    rows: int | None  # In these files, or in the checkpoint.
    taken_back: int  # Files that the origin withdrew: it went on along another line.
    missing: int  # Files that are neither here nor there any more.
    problem: str = ""  # Why the directory cannot be looked at.


def is_over(store: CheckpointStore, job_id: JobId) -> bool:
    """Whether the storage says that nothing of a job runs: not so of one whose driver was killed.

    Raises:
        StorageError: The storage failed.
    """
    layout = JobLayout(job_id)
    newest = max(map(layout.attempt_of, store.list(layout.attempts)), default=None)
    if newest is None:
        return False
    return store.exists(layout.over(newest)) or store.exists(layout.finished)


def items_of(
    manifest: Manifest, store: CheckpointStore, directory: str, uid: OperatorId, state: str
) -> list[Any] | None:
    """An operator state of all subtasks together; None: there is none.

    Raises:
        CorruptStateError: A piece of it is damaged or missing.
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
    """What every sink of the checkpoint's job still has to give out of it.

    Sinks without anything are left out, and so is state that is damaged: a restore says that.

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
        list(root.iterdir())  # What cannot be seen would look as if it were gone.
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
        problem = f"it cannot be looked at from here: {error.strerror or error}"
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
    """What becomes of it, and what to do where that is not what one would want.

    Of what a job commits by going on itself nothing is said. ``uids`` are the operators of the
    program that goes on.
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
            f"covers were taken back in {one.directory}, since job {job} went on from an earlier "
            f"checkpoint: {job} puts those records out again along that line, and only {job} "
            "itself, restored from here, brings the files back"
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
        f"{job} is not known to be over, so they are left to it. If it is, and does not go on, "
        f"they will be missing from its output: restore this as {job} itself, or claim the "
        "savepoint"
    ),
    Fate.DROPPED: lambda job: (
        "the program has no sink of this uid, so nobody commits them. Restore with a program that "
        "has it, or move the files yourself"
    ),
    Fate.ASKED: lambda job: (
        f"{job} commits them if it goes on; it is not known to be over, so another job that goes "
        "on from here leaves them to it unless that claims the savepoint"
    ),
    Fate.ASKED_OVER: lambda job: f"whichever job goes on from here commits them, for {job} is over",
}


def _said_of_rows(manifest: Manifest, one: WaitingOutput, fate: Fate) -> str:
    amount = "rows" if one.rows is None else _counted(one.rows, "row")
    job = manifest.job_id
    if fate in (Fate.ASKED, Fate.ASKED_OVER):
        shown = f"{job} shows them if it goes on from here, and another job does not"
    else:
        shown = f"this job does not show them; {job} does, if it goes on itself"
    return (
        f"{amount} of sink {one.uid} had not been shown when {manifest.kind} "
        f"{manifest.checkpoint_id} was taken: {shown}"
    )


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
