"""``weir checkpoints``: the jobs, checkpoints and savepoints in a storage, and their condition."""

from dataclasses import dataclass
from enum import StrEnum
from typing import IO, Any

from rich.console import Console

from weir.cli import formats
from weir.cli.clean import leftovers
from weir.cli.output import console, print_json, table
from weir.cli.uri import Place, find_place, jobs_in, name_of, not_there
from weir.errors import ConfigError, CorruptStateError, RestoreError, StorageError
from weir.ids import CheckpointId, JobId
from weir.protocol.lineage import NO_END, UNKNOWN, Lineage, lineage_of
from weir.storage.attempt_bases import bases_of
from weir.storage.layout import JobLayout
from weir.storage.manifest import Manifest, StoredCheckpoint, list_checkpoints, verify
from weir.storage.store import CheckpointStore, store_for


class Condition(StrEnum):
    """Whether a checkpoint can be restored from."""

    WHOLE = "whole"
    UNREAD = "not verified"  # Its manifest is good; its state files were not read.
    DAMAGED = "damaged"
    MOVED = "not at its place"  # A savepoint whose directory was moved, or deleted by hand.
    GIVEN_UP = "given up"  # A tombstone: the checkpoint never completed and never will.


@dataclass(frozen=True, slots=True)
class Listed:
    """A checkpoint and its condition."""

    checkpoint_id: CheckpointId
    condition: Condition
    manifest: Manifest | None
    reason: str = ""  # Why it is damaged or was given up.
    given_up_ms: int | None = None
    # The job was restored from an older checkpoint: only a restore request comes back to this one.
    is_abandoned: bool = False


@dataclass(frozen=True, slots=True)
class ListedJob:
    """A job and its checkpoints and savepoints, newest first."""

    job_id: JobId
    name: str | None  # None: no manifest could be read.
    checkpoints: tuple[Listed, ...]
    notes: tuple[str, ...] = ()  # Questions that a damaged file leaves open.
    leftovers: int = 0  # Files that nothing needs, and no driver sweeps any more.


def list_jobs(place: Place, *, read_files: bool) -> list[ListedJob]:
    """The jobs at ``place``, the one with the newest checkpoint last.

    Raises:
        RestoreError: The storage holds no job.
        StorageError: The storage cannot be listed.
    """
    wanted = jobs_in(place.store) if place.job is None else {place.job}
    jobs = [_job(place.store, job, read_files=read_files) for job in wanted]
    if not jobs:
        raise RestoreError(
            f"{place.storage} holds no job; give the directory that the job has as --storage"
        )
    return sorted(jobs, key=lambda job: (_completed_ms(job), job.job_id))


def run(uri: str, *, read_files: bool, as_json: bool, out: IO[str]) -> int:
    """Print the jobs and checkpoints at ``uri``; 1 if a checkpoint is damaged, else 0."""
    place = find_place(uri)
    jobs = list_jobs(place, read_files=read_files)
    if as_json:
        print_json({"storage": place.storage, "jobs": [_job_as_json(job) for job in jobs]}, out)
    else:
        screen = console(out)
        for index, job in enumerate(jobs):
            if index:
                screen.print()
            _print_job(screen, place, job)
    damaged = any(c.condition is Condition.DAMAGED for job in jobs for c in job.checkpoints)
    return 1 if damaged else 0


def _job(store: CheckpointStore, job: JobId, *, read_files: bool) -> ListedJob:
    line, notes = UNKNOWN, []
    try:
        line = newest_line(store, job)
    except CorruptStateError as error:
        notes.append(f"which checkpoints are abandoned is not known: {error}")
    listed = tuple(
        _listed(store, stored, line, read_files=read_files)
        for stored in list_checkpoints(store, job)
    )
    name = next((c.manifest.job_name for c in listed if c.manifest is not None), None)
    return ListedJob(job, name, listed, tuple(notes), _leftovers(store, job, notes))


def _leftovers(store: CheckpointStore, job: JobId, notes: list[str]) -> int:
    """The number of files that ``weir clean`` would delete, but for records of a finished job."""
    try:
        left = leftovers(store, job)
    except (RestoreError, StorageError) as error:
        notes.append(f"which files nothing needs is not known: {error}")
        return 0
    if left.may_run:
        return 0
    if left.known.is_finished and left.is_cleared:
        # The records of a job that finished are small, and no sign of anything gone wrong.
        return sum(not left.known.is_record(file) for file in left.plan.delete)
    return len(left.plan.delete)


def newest_line(store: CheckpointStore, job: JobId) -> Lineage:
    """The lineage of a job's newest attempt; ``UNKNOWN`` where no attempt noted its base.

    Raises:
        CorruptStateError: The note of an attempt's base is damaged.
        StorageError: The storage failed.
    """
    bases = bases_of(store, job)
    return lineage_of(max(bases), NO_END, bases) if bases else UNKNOWN


def _listed(
    store: CheckpointStore, stored: StoredCheckpoint, line: Lineage, *, read_files: bool
) -> Listed:
    manifest, number = stored.manifest, stored.checkpoint_id
    if manifest is None:
        return Listed(number, Condition.DAMAGED, None, str(stored.error))
    if not isinstance(manifest, Manifest):
        at = manifest.given_up_ms
        return Listed(number, Condition.GIVEN_UP, None, manifest.reason, given_up_ms=at)
    condition, reason = _condition(store, manifest, read_files=read_files)
    is_abandoned = line != UNKNOWN and not line.holds(manifest.attempt, number)
    return Listed(number, condition, manifest, reason, is_abandoned=is_abandoned)


def _condition(
    store: CheckpointStore, manifest: Manifest, *, read_files: bool
) -> tuple[Condition, str]:
    try:
        if problem := not_there(manifest):
            return Condition.MOVED, problem
        if not read_files:
            return Condition.UNREAD, ""
        if manifest.location is None:
            verify(store, manifest)
        else:
            verify(store_for(manifest.location), manifest, "")
    except (CorruptStateError, StorageError, RestoreError, ConfigError) as error:
        return Condition.DAMAGED, str(error)
    return Condition.WHOLE, ""


def _completed_ms(job: ListedJob) -> int:
    return max((c.manifest.completed_ms for c in job.checkpoints if c.manifest), default=0)


_STYLES = {
    Condition.WHOLE: "green",
    Condition.UNREAD: "",
    Condition.DAMAGED: "bold red",
    Condition.MOVED: "yellow",
    Condition.GIVEN_UP: "dim",
}


def _print_job(screen: Console, place: Place, job: ListedJob) -> None:
    directory = f"{place.storage}/{JobLayout(job.job_id).directory}"
    screen.print(f"{job.name or '(name unknown)'}  {directory}", style="bold", soft_wrap=True)
    if not job.checkpoints:
        screen.print("no checkpoint; a job that finishes deletes its checkpoints")
    savepoints = [listed for listed in job.checkpoints if _is_savepoint(listed)]
    checkpoints = [listed for listed in job.checkpoints if not _is_savepoint(listed)]
    if checkpoints:
        shown = table(
            *("id", "kind", "completed at", "duration", "size", "in flight", "operators", "parent"),
            *("attempt", "condition"),
            right=("id", "duration", "size", "in flight", "operators", "parent", "attempt"),
        )
        for listed in checkpoints:
            shown.add_row(*_cells(listed), style=_STYLES[listed.condition])
        screen.print(shown)
    if savepoints:
        shown = table(
            *("id", "savepoint", "kind", "completed at", "duration", "size", "condition"),
            right=("id", "duration", "size"),
        )
        for listed in savepoints:
            shown.add_row(*_savepoint_cells(listed), style=_STYLES[listed.condition])
        screen.print(shown)
        for listed in savepoints:
            if listed.condition is not Condition.MOVED:
                screen.print(f"savepoint {listed.checkpoint_id}: {_where(listed)}", soft_wrap=True)
    for listed in job.checkpoints:
        if listed.reason:
            said = f"checkpoint {listed.checkpoint_id} {_verb(listed)}{listed.reason}"
            screen.print(said, soft_wrap=True)
    if any(listed.is_abandoned for listed in job.checkpoints):
        screen.print(
            "abandoned: the job was restored from an older checkpoint; `weir run --restore` can "
            "still restore an abandoned one until it is deleted",
            soft_wrap=True,
        )
    if job.leftovers:
        screen.print(
            f"{formats.counted(job.leftovers, 'file')} left behind that nothing needs; "
            f"`weir clean {directory}` shows and deletes them",
            style="yellow",
            soft_wrap=True,
        )
    for note in job.notes:
        screen.print(note, style="yellow", soft_wrap=True)


def _is_savepoint(listed: Listed) -> bool:
    return listed.manifest is not None and listed.manifest.location is not None


def _verb(listed: Listed) -> str:
    if listed.given_up_ms is not None:
        return f"was given up at {formats.moment(listed.given_up_ms)}: "
    return "cannot be used here: " if listed.condition is Condition.MOVED else "is damaged: "


def _said(listed: Listed) -> str:
    said = listed.condition.value
    return f"{said}, abandoned" if listed.is_abandoned else said


def _cells(listed: Listed) -> list[str]:
    manifest = listed.manifest
    if manifest is None:
        return [str(listed.checkpoint_id), *["-"] * 8, _said(listed)]
    return [
        str(listed.checkpoint_id),
        f"unaligned {manifest.kind}" if manifest.is_unaligned else manifest.kind.value,
        formats.moment(manifest.completed_ms),
        formats.duration(manifest.completed_ms - manifest.triggered_ms),
        formats.size(manifest.state_size),
        formats.size(manifest.in_flight_size),
        str(len(manifest.operators)),
        "-" if manifest.parent_id is None else str(manifest.parent_id),
        str(manifest.attempt),
        _said(listed),
    ]


def _savepoint_cells(listed: Listed) -> list[str]:
    manifest = listed.manifest
    assert manifest is not None
    assert manifest.location is not None
    return [
        str(listed.checkpoint_id),
        name_of(manifest.location),
        manifest.kind.value,
        formats.moment(manifest.completed_ms),
        formats.duration(manifest.completed_ms - manifest.triggered_ms),
        formats.size(manifest.state_size),
        _said(listed),
    ]


def _where(listed: Listed) -> str:
    assert listed.manifest is not None
    return listed.manifest.location or ""


def _job_as_json(job: ListedJob) -> dict[str, Any]:
    return {
        "job_id": job.job_id,
        "name": job.name,
        "leftover_files": job.leftovers,
        "checkpoints": [_as_json(listed) for listed in job.checkpoints],
    }


def _as_json(listed: Listed) -> dict[str, Any]:
    said: dict[str, Any] = {
        "checkpoint_id": listed.checkpoint_id,
        "condition": listed.condition.value,
        "reason": listed.reason or None,
        "given_up_ms": listed.given_up_ms,
        "abandoned": listed.is_abandoned,
    }
    if listed.manifest is None:
        return said
    return said | manifest_as_json(listed.manifest)


def manifest_as_json(manifest: Manifest) -> dict[str, Any]:
    """A manifest's figures of its checkpoint as a whole."""
    return {
        "kind": manifest.kind.value,
        "savepoint": None if manifest.location is None else name_of(manifest.location),
        "location": manifest.location,
        "parent_id": manifest.parent_id,
        "attempt": manifest.attempt,
        "triggered_ms": manifest.triggered_ms,
        "completed_ms": manifest.completed_ms,
        "duration_ms": manifest.completed_ms - manifest.triggered_ms,
        "state_size": manifest.state_size,
        "unaligned": manifest.is_unaligned,
        "bytes_persisted_in_flight": manifest.in_flight_size,
        "versions": {
            "weir": manifest.versions.weir,
            "python": manifest.versions.python,
            "pyarrow": manifest.versions.pyarrow,
        },
        "operators": [
            {
                "uid": op.uid,
                "name": op.name,
                "parallelism": op.parallelism,
                "max_parallelism": op.max_parallelism,
            }
            for op in manifest.operators
        ],
    }
