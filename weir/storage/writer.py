"""Where one operator subtask's snapshot is written: small pieces inline, large ones as files.

Everything goes through one writer per subtask and checkpoint, which knows what it wrote and can
take it back when the snapshot is cancelled or fails.
"""

import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from weir.config import CheckpointConfig
from weir.errors import CorruptStateError, WeirError
from weir.ids import (
    AttemptNumber,
    CheckpointId,
    JobId,
    KeyGroupRange,
    StateHandle,
    SubtaskId,
)
from weir.storage.layout import in_job, state_file
from weir.storage.store import CheckpointStore, StoreWriter, checksum_of


class SnapshotCancelled(WeirError):
    """The coordinator gave the checkpoint up while it was being written."""


class StoredSnapshotWriter:
    """Writes the snapshot of one operator subtask for one checkpoint."""

    def __init__(
        self,
        store: CheckpointStore,
        job_id: JobId,
        attempt: AttemptNumber,
        checkpoint_id: CheckpointId,
        subtask: SubtaskId,
        *,
        inline_max: int | None,
        cancelled: Callable[[], bool],
    ) -> None:
        """Prepare to write; ``inline_max`` None keeps everything inline."""
        self.cancelled = cancelled
        self.inline_max = inline_max
        self._store = store
        self._job_id = job_id
        self._attempt = attempt
        self._checkpoint_id = checkpoint_id
        self._subtask = subtask
        self._written: list[str] = []

    def put(
        self,
        kind: str,
        name: str,
        data: bytes,
        *,
        key_groups: KeyGroupRange | None = None,
        mode: str | None = None,
    ) -> StateHandle:
        """Keep ``data`` under a name: in the handle when it is small, else in a file."""
        inline = self.inline_max is None or len(data) < self.inline_max
        path = None if inline else self.path(name)
        if path is not None:
            self._store.put(in_job(self._job_id, path), data)
        return StateHandle(
            kind=kind,
            name=name,
            size=len(data),
            checksum=checksum_of(data),
            path=path,
            inline=data if inline else None,
            key_groups=key_groups,
            mode=mode,
        )

    def path(self, name: str) -> str:
        """The path of a state file, relative to the job; noted as written."""
        path = state_file(self._checkpoint_id, self._attempt, self._subtask, name)
        self._written.append(path)
        return path

    def open(self, path: str) -> StoreWriter:
        """Write a large state file piece by piece, under a path that ``path`` gave."""
        return self._store.open_writer(in_job(self._job_id, path))

    def put_items(self, name: str, items: Sequence[Any], mode: str = "split") -> StateHandle:
        """Keep a list of JSON values or bytes as operator state."""
        return self.put("operator", name, dump_items(items), mode=mode)

    def discard(self) -> None:
        """Delete whatever was written."""
        for path in self._written:
            self._store.delete(in_job(self._job_id, path))
        self._written.clear()


WriterFactory: TypeAlias = Callable[
    [CheckpointId, SubtaskId, Callable[[], bool]], StoredSnapshotWriter
]


def writer_factory(
    store: CheckpointStore,
    job_id: JobId,
    attempt: AttemptNumber,
    config: CheckpointConfig,
    *,
    durable: bool,
) -> WriterFactory:
    """Writers for the subtasks of one attempt; without durable storage all state is inline."""

    def make(
        checkpoint_id: CheckpointId, subtask: SubtaskId, cancelled: Callable[[], bool]
    ) -> StoredSnapshotWriter:
        return StoredSnapshotWriter(
            store,
            job_id,
            attempt,
            checkpoint_id,
            subtask,
            inline_max=config.inline_max_bytes if durable else None,
            cancelled=cancelled,
        )

    return make


def dump_items(items: Sequence[Any]) -> bytes:
    """A list of JSON values and bytes as JSON; bytes become ``{"base64": ...}``."""
    plain = [{"base64": b64encode(i).decode()} if isinstance(i, bytes) else i for i in items]
    return json.dumps(plain, separators=(",", ":")).encode()


def load_items(data: bytes) -> list[Any]:
    """The list that ``dump_items`` wrote.

    Raises:
        CorruptStateError: It is none.
    """
    try:
        items: list[Any] = json.loads(data)
    except ValueError as error:
        raise CorruptStateError(f"operator state is no list of items: {error}") from error
    return [
        b64decode(i["base64"]) if isinstance(i, dict) and i.keys() == {"base64"} else i
        for i in items
    ]
