"""``weir checkpoints``: which jobs and checkpoints a storage holds, and whether they are whole."""

from dataclasses import dataclass
from enum import StrEnum
from typing import IO, Any

from rich.console import Console

from weir.cli import formats
from weir.cli.output import console, print_json, table
from weir.cli.place import Place, find_place, jobs_in
from weir.errors import CorruptStateError, RestoreError, StorageError
from weir.ids import CheckpointId, JobId
from weir.storage.layout import JobLayout
from weir.storage.manifest import Manifest, StoredCheckpoint, list_checkpoints, verify
from weir.storage.store import CheckpointStore


class Condition(StrEnum):
    """Whether a checkpoint can be restored from."""

    WHOLE = "whole"
    UNREAD = "not verified"  # Its manifest is good; nobody looked at its files.
    DAMAGED = "damaged"
    GIVEN_UP = "given up"  # A tombstone: it never completed and never will.


@dataclass(frozen=True, slots=True)
class Listed:
    """A checkpoint and its condition."""

    checkpoint_id: CheckpointId
    condition: Condition
    manifest: Manifest | None
    reason: str = ""  # Why it is damaged or was given up.
    given_up_ms: int | None = None


@dataclass(frozen=True, slots=True)
class ListedJob:
    """A job and its checkpoints, newest first."""

    job_id: JobId
    name: str | None  # None: no manifest that could be read says it.
    checkpoints: tuple[Listed, ...]


def list_jobs(place: Place, *, read_files: bool) -> list[ListedJob]:
    """The jobs at a place, the one with the newest checkpoint last.

    Raises:
        RestoreError: There is none.
        StorageError: The storage cannot be listed.
    """
    wanted = jobs_in(place.store) if place.job is None else {place.job}
    jobs = [_job(place.store, job, read_files=read_files) for job in wanted]
    if not jobs:
        raise RestoreError(
            f"{place.storage} holds no job; give the directory that the job got as --storage"
        )
    return sorted(jobs, key=lambda job: (_completed_ms(job), job.job_id))


def run(uri: str, *, read_files: bool, as_json: bool, out: IO[str]) -> int:
    """Print what ``uri`` holds; 1 if something in it is damaged, else 0."""
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
    listed = tuple(
        _listed(store, stored, read_files=read_files) for stored in list_checkpoints(store, job)
    )
    name = next((c.manifest.job_name for c in listed if c.manifest is not None), None)
    return ListedJob(job, name, listed)


def _listed(store: CheckpointStore, stored: StoredCheckpoint, *, read_files: bool) -> Listed:
    manifest, number = stored.manifest, stored.checkpoint_id
    if manifest is None:
        return Listed(number, Condition.DAMAGED, None, str(stored.error))
    if not isinstance(manifest, Manifest):
        at = manifest.given_up_ms
        return Listed(number, Condition.GIVEN_UP, None, manifest.reason, given_up_ms=at)
    if not read_files:
        return Listed(number, Condition.UNREAD, manifest)
    try:
        verify(store, manifest)
    except (CorruptStateError, StorageError) as error:
        return Listed(number, Condition.DAMAGED, manifest, str(error))
    return Listed(number, Condition.WHOLE, manifest)


def _completed_ms(job: ListedJob) -> int:
    return max((c.manifest.completed_ms for c in job.checkpoints if c.manifest), default=0)


_STYLES = {
    Condition.WHOLE: "green",
    Condition.UNREAD: "",
    Condition.DAMAGED: "bold red",
    Condition.GIVEN_UP: "dim",
}


def _print_job(screen: Console, place: Place, job: ListedJob) -> None:
    directory = f"{place.storage}/{JobLayout(job.job_id).directory}"
    screen.print(f"{job.name or '(name unknown)'}  {directory}", style="bold", soft_wrap=True)
    if not job.checkpoints:
        screen.print("no checkpoint; those of a job that finished are deleted")
        return
    shown = table(
        *("id", "kind", "completed at", "duration", "size", "operators", "parent", "attempt"),
        "condition",
        right=("id", "duration", "size", "operators", "parent", "attempt"),
    )
    for listed in job.checkpoints:
        shown.add_row(*_cells(listed), style=_STYLES[listed.condition])
    screen.print(shown)
    for listed in job.checkpoints:
        if listed.reason:
            said = f"checkpoint {listed.checkpoint_id} {_verb(listed)}: {listed.reason}"
            screen.print(said, soft_wrap=True)


def _verb(listed: Listed) -> str:
    if listed.given_up_ms is not None:
        return f"was given up at {formats.moment(listed.given_up_ms)}"
    return "is damaged"


def _cells(listed: Listed) -> list[str]:
    manifest = listed.manifest
    if manifest is None:
        return [str(listed.checkpoint_id), *["-"] * 7, listed.condition.value]
    return [
        str(listed.checkpoint_id),
        manifest.kind.value,
        formats.moment(manifest.completed_ms),
        formats.duration(manifest.completed_ms - manifest.triggered_ms),
        formats.size(manifest.state_size),
        str(len(manifest.operators)),
        "-" if manifest.parent_id is None else str(manifest.parent_id),
        str(manifest.attempt),
        listed.condition.value,
    ]


def _job_as_json(job: ListedJob) -> dict[str, Any]:
    return {
        "job_id": job.job_id,
        "name": job.name,
        "checkpoints": [_as_json(listed) for listed in job.checkpoints],
    }


def _as_json(listed: Listed) -> dict[str, Any]:
    said: dict[str, Any] = {
        "checkpoint_id": listed.checkpoint_id,
        "condition": listed.condition.value,
        "reason": listed.reason or None,
        "given_up_ms": listed.given_up_ms,
    }
    if listed.manifest is None:
        return said
    return said | manifest_as_json(listed.manifest)


def manifest_as_json(manifest: Manifest) -> dict[str, Any]:
    """What a manifest says of its checkpoint as a whole."""
    return {
        "kind": manifest.kind.value,
        "parent_id": manifest.parent_id,
        "attempt": manifest.attempt,
        "triggered_ms": manifest.triggered_ms,
        "completed_ms": manifest.completed_ms,
        "duration_ms": manifest.completed_ms - manifest.triggered_ms,
        "state_size": manifest.state_size,
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
