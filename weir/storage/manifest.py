"""The manifest: the contents of a completed checkpoint, as one checksummed JSON file.

::

    {"format": "weir-checkpoint", "version": 2, "checksum": <XXH3-128 of the body>,
     "manifest": {...} or "tombstone": {...}}

The checksum is over the body's JSON without spaces and with sorted keys, so damage is detected
before any of the body is used. A reader refuses a version newer than its own, by number. A
*tombstone* under the same name says that the checkpoint was given up and will never complete.
"""

import io
import json
import re
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec

from weir.errors import CorruptStateError, ProtocolError, RestoreError, WeirError
from weir.ids import AttemptNumber, CheckpointId, JobId, OperatorId, StateHandle
from weir.protocol.deployment import Versions
from weir.protocol.elements import CheckpointKind
from weir.protocol.messages import GateAlignment, OperatorAck, SnapshotMetrics
from weir.protocol.wire import from_wire, to_wire
from weir.storage.layout import (
    SAVEPOINT_MANIFEST,
    JobLayout,
    parse_manifest_path,
    savepoint_state,
    within,
    writer_of_shared,
)
from weir.storage.store import CheckpointStore, PathNotFoundError, checksum_of, new_checksum
from weir.wire.mirrors import Convert, Mirrors, MisfitError, check_free_form

FORMAT = "weir-checkpoint"
# 1 knew no savepoints, 2 no records under way, 3 no state backends, 4 no shared files; all are read
# still. A checkpoint is written as the oldest version that can say it, so that an older Weir reads
# it.
VERSION = 5

_SORTED = msgspec.json.Encoder(order="sorted")
_EXPONENT = re.compile(rb"[:,\[]-?[0-9.]+e")
_VERIFY_PIECE_BYTES = 4 << 20
_FALL_BACK = "restore from another checkpoint of the job (`weir checkpoints URI` lists them)"


@dataclass(frozen=True, slots=True)
class OperatorSummary:
    """Properties of an operator by which a restore matches and rescales it."""

    uid: OperatorId
    name: str
    parallelism: int
    max_parallelism: int
    is_source: bool = False
    files: str | None = None  # The directory that a file sink commits its output to.


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The contents of one completed checkpoint."""

    job_id: JobId
    job_name: str
    checkpoint_id: CheckpointId
    parent_id: CheckpointId | None  # The attempt's last completed or restored checkpoint.
    kind: CheckpointKind
    attempt: AttemptNumber
    triggered_ms: int
    completed_ms: int
    versions: Versions
    operators: tuple[OperatorSummary, ...]
    acks: tuple[OperatorAck, ...]  # One per operator subtask: its state handles and measurements.
    # Savepoints: the directory that the state was written to. None: the job's own directory.
    location: str | None = None
    # The records that each source had emitted since the job began. Empty: not known.
    source_records: dict[str, Any] = field(default_factory=dict)
    # The backend that state per key was in; the form of the state does not depend on it.
    state_backend: str = "hashmap"

    @property
    def handles(self) -> tuple[StateHandle, ...]:
        """All state handles of the checkpoint."""
        return tuple(handle for ack in self.acks for handle in ack.handles)

    @property
    def shared_paths(self) -> frozenset[str]:
        """The state files that other checkpoints of the job may name as well."""
        return frozenset(
            handle.path
            for handle in self.handles
            if handle.path is not None and writer_of_shared(handle.path) is not None
        )

    @property
    def identity(self) -> tuple[JobId, CheckpointId, AttemptNumber, int]:
        """The identity of the checkpoint; a copy has the same."""
        return self.job_id, self.checkpoint_id, self.attempt, self.triggered_ms

    @property
    def state_size(self) -> int:
        """The size of all handles together, in bytes."""
        return sum(handle.size for handle in self.handles)

    @property
    def in_flight_size(self) -> int:
        """The size of the records under way among them, in bytes."""
        return sum(ack.metrics.bytes_persisted_in_flight for ack in self.acks)

    @property
    def is_unaligned(self) -> bool:
        """Whether barriers overtook records, at some subtask at least."""
        return any(ack.metrics.unaligned for ack in self.acks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tombstone:
    """A record in the manifest's place: the checkpoint was given up for ever."""

    job_id: JobId
    checkpoint_id: CheckpointId
    attempt: AttemptNumber
    given_up_ms: int
    reason: str


@dataclass(frozen=True, slots=True)
class StoredCheckpoint:
    """A checkpoint in the storage, or the reason why its manifest cannot be used."""

    checkpoint_id: CheckpointId
    manifest: Manifest | Tombstone | None
    error: WeirError | None = None


# What versions brought; older ones are written without.
_BROUGHT_BY_4: dict[type, frozenset[str]] = {Manifest: frozenset({"state_backend"})}
_BROUGHT_BY_3: dict[type, frozenset[str]] = {
    GateAlignment: frozenset({"in_flight"}),
    SnapshotMetrics: frozenset({"bytes_persisted_at_outputs", "switched", "switched_ms"}),
}
_MIRRORS = {
    version: Mirrors(are_read=False, cuts_prose=False, are_bounded=False, without=without)
    for version, without in (
        (2, {**_BROUGHT_BY_3, **_BROUGHT_BY_4}),
        (3, _BROUGHT_BY_4),
        (4, {}),
        (VERSION, {}),
    )
}
# Described here, by the thread that imports, as ``weir.wire.mirrors`` wants it.
for _mirrors in _MIRRORS.values():
    _mirrors.struct(Manifest)
    _mirrors.struct(Tombstone)
_READ = Mirrors(are_read=True, cuts_prose=False, are_bounded=False)
_READERS = {
    cls: (msgspec.json.Decoder(_READ.struct(cls)), cast("Convert", _READ.converter(cls)))
    for cls in (Manifest, Tombstone)
}


def dump(manifest: Manifest | Tombstone) -> bytes:
    """The manifest as the bytes to store."""
    form = "manifest" if isinstance(manifest, Manifest) else "tombstone"
    version = _version_of(manifest)
    body = _body(manifest, version)
    whole = {
        "format": FORMAT,
        "version": version,
        "checksum": checksum_of(body),
        form: msgspec.Raw(body),
    }
    return msgspec.json.format(msgspec.json.encode(whole), indent=1)


def _version_of(manifest: Manifest | Tombstone) -> int:
    if not isinstance(manifest, Manifest):
        return 2
    if manifest.shared_paths:
        return VERSION
    if manifest.state_backend != "hashmap":
        return 4
    return 3 if any(handle.kind == "channel" for handle in manifest.handles) else 2


def load(data: bytes, path: str = "manifest") -> Manifest | Tombstone:
    """Read what ``dump`` wrote; ``path`` names the file in errors.

    Raises:
        CorruptStateError: The bytes are damaged.
        RestoreError: A newer version of Weir wrote them.
    """
    try:
        whole = json.loads(data)
        if whole["format"] != FORMAT:
            raise ValueError(f"its format is {whole['format']!r}")
        version = int(whole["version"])
    except (ValueError, KeyError, TypeError, RecursionError) as cause:
        raise _corrupt(path, f"it is no manifest ({cause})") from cause
    if version > VERSION:
        raise RestoreError(
            f"{path} has manifest version {version}, this Weir reads up to version {VERSION}; "
            "restore it with the version of Weir that wrote it, or a newer one"
        )
    try:
        cls, form = (Tombstone, "tombstone") if "tombstone" in whole else (Manifest, "manifest")
        return _read_body(cls, _checked(whole[form], whole["checksum"]))
    except (ValueError, KeyError, TypeError, ProtocolError) as cause:
        raise _corrupt(path, f"it is damaged ({cause})") from cause


def list_checkpoints(store: CheckpointStore, job: JobId) -> list[StoredCheckpoint]:
    """Every checkpoint of a job that has a manifest, newest first, damaged ones included."""
    keys = [parse_manifest_path(path) for path in store.list(JobLayout(job).directory)]
    ids = sorted((key[1] for key in keys if key is not None), reverse=True)
    return [_stored(store, job, checkpoint) for checkpoint in ids]


def find_jobs(store: CheckpointStore, name: str) -> list[JobId]:
    """The jobs of this name that have a completed checkpoint, the latest completion first.

    A job without a readable manifest has no name and is left out.
    """
    ids: dict[JobId, list[CheckpointId]] = {}
    for path in store.list():
        if key := parse_manifest_path(path):
            ids.setdefault(key[0], []).append(key[1])
    completed: list[tuple[int, JobId]] = []
    for job, checkpoints in ids.items():
        for checkpoint in sorted(checkpoints, reverse=True):
            manifest = _stored(store, job, checkpoint).manifest
            if isinstance(manifest, Manifest):
                if manifest.job_name == name:
                    completed.append((manifest.completed_ms, job))
                break
    return [job for _, job in sorted(completed, reverse=True)]


def read_handle(store: CheckpointStore, directory: str, handle: StateHandle) -> bytes:
    """The bytes behind a handle, after a check of size and checksum.

    ``directory`` is what its path is relative to: a job's directory, or "" in a savepoint's own.

    Raises:
        CorruptStateError: The bytes are damaged or missing.
        StorageError: The storage failed.
    """
    if handle.inline is not None:
        data, path = handle.inline, f"inline state {handle.name}"
    else:
        path = _path(directory, handle)
        try:
            data = _read(store, path, handle.size)
        except PathNotFoundError as cause:
            raise _corrupt(path, "it is missing") from cause
    if problem := _difference(handle, len(data), checksum_of(data)):
        raise _corrupt(path, problem)
    return data


def verify(
    store: CheckpointStore,
    manifest: Manifest,
    directory: str | None = None,
    *,
    reads: bool = True,
) -> None:
    """Compare every file of a checkpoint with its handle.

    Args:
        directory: Holds its files; None: the job's directory.
        reads: Whether files are read for their checksums; else each is to be there with its size.

    Raises:
        CorruptStateError: Some are damaged or missing; all of them are named.
        StorageError: The storage failed.
    """
    if directory is None:
        directory = JobLayout(manifest.job_id).directory
    problems = []
    for handle in manifest.handles:
        if handle.inline is not None:
            size, checksum = len(handle.inline), checksum_of(handle.inline)
            path = f"inline state {handle.name}"
        else:
            path = _path(directory, handle)
            try:
                if not reads:
                    if not _has_size(store, path, handle.size):
                        problems.append(f"{path}: it does not have its {handle.size} bytes")
                    continue
                size, checksum = _measured(store, path)
            except PathNotFoundError:
                problems.append(f"{path}: it is missing")
                continue
        if problem := _difference(handle, size, checksum):
            problems.append(f"{path}: {problem}")
    if problems:
        raise CorruptStateError(
            f"checkpoint {manifest.checkpoint_id} of job {manifest.job_id} is not whole: "
            f"{'; '.join(problems)}; {_FALL_BACK}"
        )


def discard_savepoint(
    store: CheckpointStore, job: JobId, checkpoint: CheckpointId, attempt: AttemptNumber
) -> None:
    """Delete the files of an aborted savepoint in its directory, which is ``store``.

    A directory that holds another savepoint is left alone: its state files could have the same
    names.

    Raises:
        StorageError: The storage failed.
    """
    try:
        manifest = load(store.read(SAVEPOINT_MANIFEST))
        if (manifest.job_id, manifest.checkpoint_id, manifest.attempt) != (
            job,
            checkpoint,
            attempt,
        ):
            return
    except PathNotFoundError:
        pass
    except (CorruptStateError, RestoreError):
        return  # An unreadable manifest is not this savepoint's.
    store.delete(SAVEPOINT_MANIFEST)
    store.delete_prefix(savepoint_state(checkpoint, attempt))


def _stored(store: CheckpointStore, job: JobId, checkpoint: CheckpointId) -> StoredCheckpoint:
    path = JobLayout(job).manifest(checkpoint)
    try:
        return StoredCheckpoint(checkpoint, load(store.read(path), path))
    except (CorruptStateError, RestoreError, PathNotFoundError) as error:
        return StoredCheckpoint(checkpoint, None, error)


def _path(directory: str, handle: StateHandle) -> str:
    if handle.path is None:
        raise CorruptStateError(f"state {handle.name} has neither a path nor bytes; {_FALL_BACK}")
    return within(directory, handle.path)


def _read(store: CheckpointStore, path: str, size: int) -> bytes:
    """A file that should have this size: in ranges if it is large, which storages may require."""
    if size <= _VERIFY_PIECE_BYTES:
        return store.read(path)
    data = io.BytesIO()  # Whose value is no copy.
    while data.tell() <= size and (
        piece := store.read_range(path, data.tell(), _VERIFY_PIECE_BYTES)
    ):
        data.write(piece)
    if not data.tell() and not store.exists(path):
        raise PathNotFoundError(f"the checkpoint storage has no file {path}")
    return data.getvalue()


def _has_size(store: CheckpointStore, path: str, size: int) -> bool:
    """Whether a file has this size, by its last byte and that behind it."""
    return len(store.read_range(path, max(size - 1, 0), 2)) == min(size, 1)


def _measured(store: CheckpointStore, path: str) -> tuple[int, str]:
    size, checksum = 0, new_checksum()
    while piece := store.read_range(path, size, _VERIFY_PIECE_BYTES):
        checksum.update(piece)
        size += len(piece)
    if not size and not store.exists(path):
        raise PathNotFoundError(f"the checkpoint storage has no file {path}")
    return size, checksum.hexdigest()


def _difference(handle: StateHandle, size: int, checksum: str) -> str:
    if size != handle.size:
        return f"it has {size} bytes instead of {handle.size}"
    return "" if checksum == handle.checksum else "its checksum does not match"


def _corrupt(path: str, problem: str) -> CorruptStateError:
    return CorruptStateError(f"{path} cannot be used: {problem}; {_FALL_BACK}")


def _body(manifest: Manifest | Tombstone, version: int) -> bytes:
    """The canonical JSON of ``to_wire``, in a tenth of its time; it has the last word on a refusal.

    msgspec writes the same but for characters that need escapes and some numbers.
    """
    try:
        struct = _MIRRORS[version].struct(type(manifest))
        filled = msgspec.convert(manifest, struct, from_attributes=True)
        if isinstance(manifest, Manifest):
            check_free_form(manifest.source_records)
        written = _SORTED.encode(filled)
        if not _is_written_otherwise(written):
            return written
        return _canonical(msgspec.to_builtins(filled, order="deterministic"), allow_nan=False)
    except (
        msgspec.MsgspecError, MisfitError, ValueError, TypeError, RecursionError, OverflowError,
    ):  # fmt: skip
        return _canonical(to_wire(manifest))


def _checked(body: Any, checksum: object) -> bytes:
    """The canonical JSON of a body that was read, whose checksum is this one; msgspec's if it is.

    Raises:
        ValueError: The body has another checksum.
    """
    with suppress(msgspec.MsgspecError, ValueError, OverflowError, RecursionError):
        if checksum_of(written := _SORTED.encode(body)) == checksum:
            return written
    if checksum_of(written := _canonical(body)) != checksum:
        raise ValueError("its checksum does not match")
    return written


def _read_body(cls: type[Manifest] | type[Tombstone], body: bytes) -> Manifest | Tombstone:
    """The ``from_wire`` of a body's JSON, in a third of its time; it has the last word."""
    decoder, convert = _READERS[cls]
    try:
        return cast("Manifest | Tombstone", convert(decoder.decode(body)))
    except (msgspec.MsgspecError, MisfitError, ValueError, RecursionError):
        return from_wire(cls, json.loads(body))


def _is_written_otherwise(body: bytes) -> bool:
    """Whether the canonical JSON may differ: in a character that it escapes, or in an exponent."""
    if not body.isascii() or b"\\" in body or b"\x7f" in body:
        return True
    return b"0.0000" in body or _EXPONENT.search(body) is not None


def _canonical(body: Any, *, allow_nan: bool = True) -> bytes:
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=allow_nan)
    return text.encode()
