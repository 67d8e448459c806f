"""A checkpoint's manifest, read for its page, with the positions of its sources.

The storage may be slow or unreachable. So a few threads of their own read it, and a request waits a
few seconds at most before the page says what is wrong.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from checkpoints.catalog import locations
from checkpoints.models import Checkpoint
from controlplane.base.threads import FILES_WAIT_S, FileThreads
from frontend.checkpoint.positions import is_begun, position_words, split_words
from jobs.models import Job
from weir.errors import StorageError, WeirError
from weir.ids import CheckpointId, StateHandle
from weir.storage.layout import SAVEPOINT_MANIFEST, JobLayout
from weir.storage.manifest import Manifest, Tombstone, load, read_handle
from weir.storage.store import CheckpointStore, store_for
from weir.storage.writer import load_items

MANIFEST_BYTES_MAX = 64 << 20  # 9,000 subtasks with 5 kB of inline state each.
POSITION_BYTES_MAX = 16 << 20  # Of all sources together.
SPLITS_SHOWN = 50  # Of one source.

_SPLITS = "splits"  # The name of the state in which a source keeps its splits.


class NotReadable(Exception):
    """The manifest cannot be shown; the text is for the page."""


@dataclass(frozen=True, slots=True)
class Split:
    """A split of a source, with its subtask and its position."""

    subtask: str
    split: str
    position: str


@dataclass(frozen=True, slots=True)
class SourcePositions:
    """The positions of one source, from which a restore resumes."""

    uid: str
    name: str
    records: int | None  # Emitted since the job began. None: not known.
    begun: int
    waiting: int  # Splits that are not begun.
    splits: tuple[Split, ...]  # The first ``SPLITS_SHOWN``, begun ones before the others.
    problem: str = ""  # The reason why positions are missing.

    @property
    def left_out(self) -> int:
        """The number of unfinished splits that are not in ``splits``."""
        return self.begun + self.waiting - len(self.splits)


@dataclass(frozen=True, slots=True)
class Stored:
    """The contents of a manifest. Units: bytes."""

    path: str
    size: int
    weir_version: str
    pieces: int
    inline_pieces: int
    inline_bytes: int
    file_bytes: int
    sources: tuple[SourcePositions, ...]


_readers = FileThreads(2, "manifest")


def read(job: Job, checkpoint: Checkpoint, *, wait_s: float = FILES_WAIT_S) -> Stored:
    """The contents of a completed checkpoint's manifest.

    Raises:
        NotReadable: It is missing, damaged, too large, or the storage did not answer in time.
    """
    try:
        return _readers.run(lambda: _read(job, checkpoint), wait_s=wait_s)
    except TimeoutError as error:
        raise NotReadable(str(error)) from error
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
            f"it is larger than {MANIFEST_BYTES_MAX >> 20} MiB; read it with `weir inspect`"
        )
    manifest = load(data, shown)
    if isinstance(manifest, Tombstone):
        raise StorageError(f"the checkpoint was aborted: {manifest.reason}")
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
    left, sources = POSITION_BYTES_MAX, []
    for op in manifest.operators:
        if not op.is_source:
            continue
        handles = kept[op.uid]
        left -= sum(handle.size for _, handle in handles)
        records = manifest.source_records.get(op.uid)
        known = records if type(records) is int else None
        if not handles:
            nothing = "The source keeps no splits: its positions are in state of its own."
            sources.append(SourcePositions(op.uid, op.name, known, 0, 0, (), nothing))
        elif left < 0:
            much = "The positions are too large to show here; read them with `weir inspect`."
            sources.append(SourcePositions(op.uid, op.name, known, 0, 0, (), much))
        else:
            sources.append(_positions(op.uid, op.name, known, handles, store, directory))
    return tuple(sources)


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
                    other = "The source’s state is not splits and positions."
                    return SourcePositions(uid, name, records, 0, 0, (), other)
                items.append((subtask, item))
    except WeirError as error:
        return SourcePositions(
            uid, name, records, 0, 0, (), f"The positions cannot be read: {error}"
        )
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
