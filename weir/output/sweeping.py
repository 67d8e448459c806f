"""The sweep of a job's files: looking at what there is, and deleting what nothing needs.

``weir.output.needs`` decides; here is the I/O around it. Files are listed before manifests are
read, so a checkpoint that completes in between keeps its files. Before anything is deleted the
caller's ``check`` looks at the fence. A sweep that is cut off has done no harm: the next one goes
on. What cannot be looked at stays.
"""

import os
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from urllib.parse import quote

from weir import untrusted_files
from weir.errors import CorruptStateError, RestoreError, WeirError
from weir.ids import AttemptNumber, CheckpointId, JobId
from weir.output.needs import (
    File,
    Known,
    OutputFile,
    Plan,
    SavepointFile,
    StoredFile,
    checkpoint_of,
)
from weir.output.output_files import CLAIMS, PENDING, WITHDRAWN, claims_directory, remove_empty
from weir.output.sink_directories import noted_directories
from weir.protocol.lineage import AttemptBase
from weir.storage.attempt_bases import bases_of
from weir.storage.attempt_claims import newest_attempt
from weir.storage.layout import SAVEPOINT_MANIFEST, JobLayout, savepoints_directory
from weir.storage.manifest import Manifest, Tombstone, dump, list_checkpoints, load
from weir.storage.store import CheckpointStore, PathNotFoundError

_REASON = "its driver ended before it completed, and a later one deleted its state"


def look(
    store: CheckpointStore,
    job_id: JobId,
    *,
    may_run: bool,
    directories: Collection[str] = (),
) -> tuple[Known, list[File]]:
    """A job's files, and what is known of it to tell their needs.

    Args:
        may_run: The newest attempt is not known to be over.
        directories: Directories of sinks, beside those noted in this storage.

    Raises:
        StorageError: The storage failed.
        OSError: A sink's directory cannot be read.
    """
    layout = JobLayout(job_id)
    own = [*store.list(layout.directory), *store.list_temporary(layout.directory)]
    files: list[File] = [StoredFile(path[len(layout.directory) + 1 :]) for path in own]
    beside = savepoints_directory(job_id)
    for path in (*store.list(beside), *store.list_temporary(beside)):
        name, _, inside = path[len(beside) + 1 :].partition("/")
        if inside:
            files.append(SavepointFile(f"{beside}/{name}", inside))
    stored = {one.checkpoint_id: one for one in list_checkpoints(store, job_id)}
    roots = {*directories, *noted_directories(store, job_id).of_storage(store)}
    for root in sorted(roots):
        files += _output_files(root, job_id)
    known = Known(
        job_id=job_id,
        newest=newest_attempt(store, job_id),
        may_run=may_run,
        is_finished=store.exists(layout.finished),
        bases=_bases(store, job_id),
        stored=stored,
        savepoints=_savepoints(store, files),
    )
    return known, files


def carry_out(
    store: CheckpointStore,
    known: Known,
    plan: Plan,
    *,
    check: Callable[[], None],
    now_ms: int,
) -> int:
    """Delete what a plan says; returns the number of files.

    Raises:
        WeirError: ``check`` refused, or the storage failed. A repeated call deletes the rest.
        OSError: A file of a sink cannot be deleted. Likewise.
    """
    if not plan.delete:
        return 0
    check()
    spared = {
        number for number in plan.give_up if not _give_up(store, known, number, now_ms=now_ms)
    }
    doomed = [file for file in plan.delete if checkpoint_of(file) not in spared]
    kept = {_directory(file, known) for file in plan.needs}
    whole: set[str] = set()
    for file in doomed:
        directory = _directory(file, known)
        match file:
            case OutputFile():
                _delete_output(file)
            # Only state has directories of its own, which no newer attempt writes to.
            case _ if directory is not None and directory not in kept:
                if directory not in whole:
                    whole.add(directory)
                    store.delete_prefix(directory)
            case StoredFile(path):
                store.delete(f"{JobLayout(known.job_id).directory}/{path}")
            case SavepointFile(location, path):
                store.delete(f"{location}/{path}")
    return len(doomed)


def described(file: File, storage: str, job_id: JobId) -> str:
    """The path of a file, for people; ``storage`` is the URI of the checkpoint storage."""
    match file:
        case StoredFile(path):
            return f"{storage}/{JobLayout(job_id).directory}/{path}"
        case SavepointFile(location, path):
            return f"{storage}/{location}/{path}"
        case OutputFile(directory, path):
            return f"{directory}/{path}"


def _give_up(store: CheckpointStore, known: Known, number: CheckpointId, *, now_ms: int) -> bool:
    """Take the key of a checkpoint's manifest; False: a manifest has it, which was not seen."""
    path = JobLayout(known.job_id).manifest(number)
    tombstone = Tombstone(
        job_id=known.job_id,
        checkpoint_id=number,
        attempt=known.newest,
        given_up_ms=now_ms,
        reason=_REASON,
    )
    if store.create_if_absent(path, dump(tombstone)):
        return True
    try:
        return isinstance(load(store.read(path), path), Tombstone)
    except (CorruptStateError, RestoreError, PathNotFoundError):
        return False


def _directory(file: File, known: Known) -> str | None:
    """The directory of one attempt's state that a file lies in; None: in no such directory."""
    first, _, rest = file.path.partition("/")
    match file:
        case SavepointFile(location, _) if rest:
            return f"{location}/{first}"
        case StoredFile(path) if checkpoint_of(file) is not None and "/" in rest:
            return f"{JobLayout(known.job_id).directory}/{'/'.join(path.split('/')[:2])}"
        case _:
            return None


def _delete_output(file: OutputFile) -> None:
    root = Path(file.directory)
    path = root / file.path
    untrusted_files.delete(path, below=root)
    inside = path.relative_to(root).parents[:-1]  # The attempt's, the job's, and ``_pending``.
    remove_empty(*(root / parent for parent in inside))


def _bases(store: CheckpointStore, job_id: JobId) -> dict[AttemptNumber, AttemptBase] | None:
    try:
        return bases_of(store, job_id)
    except CorruptStateError:
        return None


def _savepoints(
    store: CheckpointStore, files: Iterable[File]
) -> dict[str, Manifest | Tombstone | WeirError]:
    """The manifests in the directories of savepoints."""
    manifests: dict[str, Manifest | Tombstone | WeirError] = {}
    for location in sorted({file.location for file in files if isinstance(file, SavepointFile)}):
        path = f"{location}/{SAVEPOINT_MANIFEST}"
        try:
            manifests[location] = load(store.read(path), path)
        except PathNotFoundError:
            continue
        except (CorruptStateError, RestoreError) as error:
            manifests[location] = error
    return manifests


def _output_files(root: str, job_id: JobId) -> Iterator[OutputFile]:
    """The files of a job in a sink's directory that are not committed; they may change."""
    job = quote(job_id, safe="")
    for kind in (PENDING, WITHDRAWN):
        for attempt in _names(Path(root, kind, job)):
            if not attempt.isdecimal():
                continue
            for name in _names(Path(root, kind, job, attempt)):
                path = f"{kind}/{job}/{attempt}/{name}"
                yield OutputFile(root, path, AttemptNumber(int(attempt)), kind == WITHDRAWN)
    for attempt in _names(claims_directory(Path(root), job_id)):
        if attempt.isdecimal():
            path = f"{CLAIMS}/{job}/{attempt}"
            yield OutputFile(root, path, AttemptNumber(int(attempt)), is_withdrawn=False)


def _names(directory: Path) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except (FileNotFoundError, NotADirectoryError):
        return []  # It does not exist; or another process emptied and removed it.
