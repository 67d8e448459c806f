"""``weir clean``: delete the files of jobs that nothing needs, after showing them.

A running driver sweeps by itself. Left to this command are jobs that no driver runs any more: those
that were killed before their first checkpoint, or refused, and those that failed or were cancelled
or killed and are not to run again. What nothing needs is decided by ``weir.output.needs``.

It refuses where the job's driver lives, and where that cannot be told, as on another machine. Else
it claims the next attempt, as a driver would: a driver that lives against all appearance commits
nothing from then on, and ends. Only then it looks again, and deletes.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import IO

from weir.cli import formats
from weir.cli.confirm import confirmed
from weir.cli.delete_savepoint import has_completed
from weir.cli.uri import Place, find_place, jobs_in
from weir.common.clock import SystemClock
from weir.errors import CorruptStateError, RestoreError, StorageError
from weir.ids import AttemptNumber, CheckpointId, JobId
from weir.jobmaster.fence import Act, Fence
from weir.output.needs import (
    File,
    Known,
    OutputFile,
    Plan,
    SavepointFile,
    StoredFile,
    checkpoint_of,
    plan,
)
from weir.output.sink_directories import noted_directories
from weir.output.sweeping import carry_out, described, look
from weir.storage.attempt_bases import bases_of
from weir.storage.attempt_claims import Standing, describe_process, standing
from weir.storage.layout import JobLayout
from weir.storage.store import CheckpointStore, is_temporary

CLEAN, LEFT = 0, 1
_ENDED = (Standing.OVER, Standing.GONE)


@dataclass(frozen=True, slots=True)
class Leftovers:
    """A job's files that nothing needs, and whether they may be deleted."""

    job_id: JobId
    standing: Standing
    pid: int | None  # Of its driver, where that lives on this machine.
    may_run: bool
    known: Known
    plan: Plan

    @property
    def is_cleared(self) -> bool:
        """Whether the job's own records go as well: nothing of it can be restored."""
        return bool(self.plan.delete) and not self.plan.needs


def leftovers(store: CheckpointStore, job: JobId, *, driver_is_gone: bool = False) -> Leftovers:
    """A job's files that nothing needs.

    Args:
        driver_is_gone: Believe so where the job's driver cannot be seen from here.

    Raises:
        RestoreError: The notes of another job are damaged, which may need this job's checkpoints.
        StorageError: The storage failed, or a sink's directory cannot be read.
    """
    stands, pid = standing(store, job)
    may_run = stands not in _ENDED and not (driver_is_gone and stands is not Standing.ALIVE)
    known, files = _look(store, job, may_run=may_run)
    return Leftovers(job, stands, pid, may_run, known, plan(known, files, clears=True))


def run(uri: str, *, is_sure: bool, is_dry: bool, driver_is_gone: bool, out: IO[str]) -> int:
    """Show what nothing needs at ``uri``, a storage or a job in it, and delete it.

    Returns:
        1 if a job is left alone because its driver lives or cannot be seen, or if the deletion was
        not confirmed; else 0.

    Raises:
        RestoreError: There is no job, no terminal can confirm, or a driver began meanwhile.
        StorageError: The storage failed.
    """
    place = find_place(uri)
    if place.checkpoint is not None:
        raise RestoreError(
            f"{uri} is one checkpoint, which its job deletes; give the job's directory"
        )
    store = place.store
    jobs = sorted(jobs_in(store)) if place.job is None else [place.job]
    if not jobs:
        raise RestoreError(
            f"{place.storage} holds no job; give the directory that the job has as --storage"
        )
    is_left = False
    doomed: list[Leftovers] = []
    for job in jobs:
        one = leftovers(store, job, driver_is_gone=driver_is_gone)
        _show(place, one, out)
        is_left |= one.may_run
        if one.plan.delete and not one.may_run:
            doomed.append(one)
    count = sum(len(one.plan.delete) for one in doomed)
    if is_dry or not count:
        return LEFT if is_left else CLEAN
    out.flush()
    question = f"delete {formats.counted(count, 'file')}?"
    advice = "deleting files needs confirmation, and standard input is no terminal; give --yes"
    if not is_sure and not confirmed(question, advice):
        _say("nothing was deleted")
        return LEFT
    for one in doomed:
        deleted = _delete(store, one)
        _say(f"{formats.counted(deleted, 'file')} of job {one.job_id} deleted")
    return LEFT if is_left else CLEAN


def _delete(store: CheckpointStore, shown: Leftovers) -> int:
    job, layout = shown.job_id, JobLayout(shown.job_id)
    fence = Fence(store, job, describe_process())
    attempt = AttemptNumber(shown.known.newest + 1)
    fence.begin_attempt(attempt)
    if not fence.claim(attempt):
        raise RestoreError(
            f"a driver of job {job} has begun attempt {attempt} meanwhile; nothing of it is deleted"
        )
    known, files = _look(store, job, may_run=False)
    try:
        now = plan(known, files, clears=shown.is_cleared)
        count = carry_out(
            store,
            known,
            now,
            check=lambda: fence.check(Act.SWEEP),
            now_ms=SystemClock().now_ms(),
        )
    except OSError as error:
        raise StorageError(f"cannot delete output of job {job}: {error}") from error
    if now.needs:
        store.put(layout.over(attempt), b"")  # Else this claim would look like a driver's.
        return count
    store.delete_prefix(layout.directory)  # Its empty directories.
    return count - 1  # But for this claim.


def _look(store: CheckpointStore, job: JobId, *, may_run: bool) -> tuple[Known, list[File]]:
    try:
        known, files = look(store, job, may_run=may_run)
    except OSError as error:
        raise StorageError(f"cannot look at the output of job {job}: {error}") from error
    if known.is_finished and known.stored and not may_run:
        # Only then checkpoints go that could be restored, and all other jobs have to be asked.
        known = replace(known, borrowed=frozenset(_borrowed(store, job)))
    return known, files


def _borrowed(store: CheckpointStore, job: JobId) -> Iterator[CheckpointId]:
    """The job's checkpoints that another job of the storage has as its only restore point."""
    for other in sorted(jobs_in(store) - {job}):
        try:
            bases = bases_of(store, other)
        except CorruptStateError as error:
            raise RestoreError(
                f"cannot tell whether job {other} needs checkpoints of job {job}: {error}"
            ) from error
        newest = bases[max(bases)] if bases else None
        if newest is None or newest.restored_job != job or newest.restored_id is None:
            continue
        is_done = store.exists(JobLayout(other).finished)
        if not is_done and not has_completed(store, other, newest.next_id):
            yield newest.restored_id


# The listing.


def _show(place: Place, one: Leftovers, out: IO[str]) -> None:
    directory = f"{place.storage}/{JobLayout(one.job_id).directory}"
    says = one.standing.format(one.pid)
    print(f"{directory}: {says}", file=out)
    if one.may_run:
        print(f"  nothing of it is deleted: {_refusal(one)}", file=out)
        return
    if not one.plan.delete:
        print("  every file is needed", file=out)
    for file in one.plan.delete:
        path = described(file, place.storage, one.job_id)
        print(f"  {path}: {unneeded_because(one, file)}", file=out)
    for need in sorted({str(need) for need in one.plan.needs.values()}):
        count = sum(str(other) == need for other in one.plan.needs.values())
        print(f"  kept: {formats.counted(count, 'file')}, needed by: {need}", file=out)
    noted = noted_directories(place.store, one.job_id)
    for directory in sorted(noted.names - noted.of_storage(place.store)):
        print(
            f"  left alone: output that waits in {directory}, which the job noted in "
            f"{noted.storage}: this storage is a copy of that one, or was moved",
            file=out,
        )


def _refusal(one: Leftovers) -> str:
    match one.standing:
        case Standing.ALIVE:
            return "end the driver first; it deletes what it does not need by itself"
        case Standing.MANAGED:
            return "the control plane deletes it; if there is none any more, give --driver-is-gone"
        case _:
            return "if you know that no driver runs the job, give --driver-is-gone"


def unneeded_because(one: Leftovers, file: File) -> str:
    """The reason why nothing needs a file, for people."""
    number = checkpoint_of(file)
    if is_temporary(file.path):
        return "it was being written"
    match file:
        case OutputFile(is_withdrawn=True):
            return "withdrawn output of no checkpoint that can be restored"
        case OutputFile():
            return "output that no checkpoint covers"
        case SavepointFile():
            return "state of a savepoint that was not completed"
        case StoredFile() if number is not None:
            return _about_checkpoint(one.known, number)
        case _:
            return "the job has nothing that could be restored"


def _about_checkpoint(known: Known, number: CheckpointId) -> str:
    stored = known.stored.get(number)
    if stored is None:
        return f"checkpoint {number} was not completed"
    if stored.manifest in known.restorable.values():
        return f"checkpoint {number} does not name it"
    if known.is_finished:
        return "the job has finished"
    return f"checkpoint {number} was given up"


def _say(text: str) -> None:
    print(f"weir: {text}", file=sys.stderr)
