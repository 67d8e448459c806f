"""A checkpoint's manifest, read for its page: what it says, and where its sources go on.

The storage may be slow, or not there at all. So it is read by few threads of its own and for a
while only: whoever looks is told what is wrong, and a web process never waits for long. What hangs
in there holds its thread until the file system answers; when all of them do, nothing new is begun.
"""

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from checkpoints.catalog import locations
from checkpoints.models import Checkpoint
from frontend.checkpoint.positions import is_begun, position_words, split_words
from jobs.models import Job
from weir.errors import StorageError, WeirError
from weir.ids import CheckpointId, StateHandle
from weir.storage.layout import SAVEPOINT_MANIFEST, JobLayout
from weir.storage.manifest import Manifest, Tombstone, load, read_handle
from weir.storage.store import CheckpointStore, store_for
from weir.storage.writer import load_items

WAIT_S = 4.0
READERS = 2  # Threads.
MANIFEST_BYTES_MAX = 64 << 20  # 9,000 subtasks with 5 kB of inline state each.
POSITION_BYTES_MAX = 16 << 20  # Of all sources together.
SPLITS_SHOWN = 50  # Of one source.

_SPLITS = "splits"  # The state that every source made of splits keeps them in.


class NotReadable(Exception):
    """Why the manifest cannot be shown; its text is for the page."""


@dataclass(frozen=True, slots=True)
class Split:
    """A split of a source, who reads it and where it goes on."""

    subtask: str
    split: str
    position: str


@dataclass(frozen=True, slots=True)
class SourcePositions:
    """Where one source goes on after a restore."""

    uid: str
    name: str
    records: int | None  # Emitted since the job began. None: not known.
    begun: int
    waiting: int  # Splits that are not begun.
    splits: tuple[Split, ...]  # The first of them, those that are begun before the others.
    problem: str = ""  # Why nothing is known.

    @property
    def left_out(self) -> int:
        """Unfinished splits that are not among those shown."""
        return self.begun + self.waiting - len(self.splits)


@dataclass(frozen=True, slots=True)
class Stored:
    """What a manifest says. Units: bytes."""

    path: str
    size: int
    weir_version: str
    pieces: int
    inline_pieces: int
    inline_bytes: int
    file_bytes: int
    sources: tuple[SourcePositions, ...]


class _Readers:
    """A few threads, and no queue before them: who finds all of them taken is told so."""

    def __init__(self, count: int) -> None:
        self._free = threading.BoundedSemaphore(count)
        self._threads = ThreadPoolExecutor(count, thread_name_prefix="manifest")

    def submit(self, job: Job, checkpoint: Checkpoint) -> "Future[Stored]":
        if not self._free.acquire(blocking=False):
            raise NotReadable(
                "Other manifests are being read, or the storage does not answer; try again soon."
            )
        return self._threads.submit(self._run, job, checkpoint)

    def _run(self, job: Job, checkpoint: Checkpoint) -> Stored:
        try:
            return _read(job, checkpoint)
        finally:
            self._free.release()


_readers = _Readers(READERS)


def read(job: Job, checkpoint: Checkpoint, *, wait_s: float = WAIT_S) -> Stored:
    """What the manifest of a completed checkpoint says.

    Raises:
        NotReadable: It is missing, damaged, too large, or the storage did not answer in time.
    """
    future = _readers.submit(job, checkpoint)
    try:
        return future.result(wait_s)
    except TimeoutError as error:
        raise NotReadable(f"The storage did not answer within {wait_s:g} s.") from error
    except (WeirError, OSError) as error:
        raise NotReadable(f"The manifest cannot be read: {error}") from error


def _read(job: Job, checkpoint: Checkpoint) -> Stored:
    if checkpoint.location:
        store, path, directory = store_for(checkpoint.location), SAVEPOINT_MANIFEST, ""
        shown = f"{checkpoint.location.rstrip('/')}/{SAVEPOINT_MANIFEST}"
    else:
        layout: JobLayout = locations.layout_of(job)
        store, path = locations.store_of(job), layout.manifest(CheckpointId(checkpoint.number))
        directory, shown = layout.directory, f"{locations.storage_of(job).rstrip('/')}/{path}"
    data = store.read_range(path, 0, MANIFEST_BYTES_MAX + 1)
    if len(data) > MANIFEST_BYTES_MAX:
        raise StorageError(
            f"it is larger than {MANIFEST_BYTES_MAX >> 20} MiB; `weir inspect` shows it"
        )
    manifest = load(data, shown)
    if isinstance(manifest, Tombstone):
        raise StorageError(f"the checkpoint was given up: {manifest.reason}")
    inline = [handle.size for handle in manifest.handles if handle.inline is not None]
    return Stored(
        path=shown,
        size=len(data),
        weir_version=manifest.versions.weir,
        pieces=len(manifest.handles),
        inline_pieces=len(inline),
        inline_bytes=sum(inline),
        file_bytes=manifest.state_size - sum(inline),
        sources=_sources(manifest, store, directory),
    )


def _sources(
    manifest: Manifest, store: CheckpointStore, directory: str
) -> tuple[SourcePositions, ...]:
    kept: dict[str, list[tuple[str, StateHandle]]] = {
        op.uid: [] for op in manifest.operators if op.is_source
    }
    for ack in manifest.acks:
        if (of_source := kept.get(ack.subtask.operator)) is not None:
            of_source += [
                (str(ack.subtask), handle)
                for handle in ack.handles
                if (handle.kind, handle.name) == ("operator", _SPLITS)
            ]
    left, found = POSITION_BYTES_MAX, []
    for op in manifest.operators:
        if not op.is_source:
            continue
        handles = kept[op.uid]
        left -= sum(handle.size for _, handle in handles)
        records = manifest.source_records.get(op.uid)
        known = records if type(records) is int else None
        if not handles:
            nothing = "It keeps no splits: where it goes on is its own affair."
            found.append(SourcePositions(op.uid, op.name, known, 0, 0, (), nothing))
        elif left < 0:
            much = "Its positions are too long to be shown here; `weir inspect` reads them."
            found.append(SourcePositions(op.uid, op.name, known, 0, 0, (), much))
        else:
            found.append(_positions(op.uid, op.name, known, handles, store, directory))
    return tuple(found)


def _positions(
    uid: str,
    name: str,
    records: int | None,
    handles: Sequence[tuple[str, StateHandle]],
    store: CheckpointStore,
    directory: str,
) -> SourcePositions:
    items: list[tuple[str, Mapping[str, Any]]] = []
    try:
        for subtask, handle in handles:
            for item in load_items(read_handle(store, directory, handle)):
                if not isinstance(item, dict) or not item.keys() >= {"split", "position"}:
                    other = "It keeps something else than splits and positions."
                    return SourcePositions(uid, name, records, 0, 0, (), other)
                items.append((subtask, item))
    except WeirError as error:
        return SourcePositions(uid, name, records, 0, 0, (), f"They cannot be read: {error}")
    begun = [row for row in items if is_begun(row[1])]
    waiting = [row for row in items if not is_begun(row[1])]
    return SourcePositions(
        uid,
        name,
        records,
        len(begun),
        len(waiting),
        tuple(
            Split(
                subtask,
                split_words(item["split"]),
                position_words(item["split"], item["position"]),
            )
            for subtask, item in [*begun, *waiting][:SPLITS_SHOWN]
        ),
    )
