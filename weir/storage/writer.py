"""The snapshot writer of an operator subtask: small state inline, large state as files.

Everything goes through one writer per subtask and checkpoint, which records its files and can
delete them when the snapshot is cancelled or fails. A savepoint's files go straight into its own
directory, so that nothing has to be copied before it can be moved.
"""

import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from typing import Any, Protocol

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
from weir.storage.attempt_claims import check_claimed
from weir.storage.layout import (
    SAVEPOINT_MANIFEST,
    JobLayout,
    savepoint_state_file,
    shared_file,
    state_file,
    within,
)
from weir.storage.local_copies import CopiedWriter, LocalCopies
from weir.storage.store import (
    CheckpointStore,
    StoreWriter,
    WriteRefusedError,
    checksum_of,
    store_for,
)


class SnapshotCancelled(WeirError):
    """The coordinator aborted the checkpoint while its snapshot was being written."""


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
        is_savepoint: bool = False,
        copies: LocalCopies | None = None,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """Prepare to write.

        Args:
            inline_max: Smaller pieces are kept inline; None keeps everything inline.
            is_savepoint: ``store`` is the savepoint's own directory, not the job's storage.
            copies: Gets a copy of each file of a checkpoint; a savepoint's have none.
            check: Called before the first file is written, to refuse it.
        """
        self.cancelled = cancelled
        self.inline_max = inline_max
        # Whether there may be files that later checkpoints name as well.
        self.shares = inline_max is not None and not is_savepoint
        self._store = store
        self._directory = "" if is_savepoint else JobLayout(job_id).directory
        self._file = savepoint_state_file if is_savepoint else state_file
        self._attempt = attempt
        self._checkpoint_id = checkpoint_id
        self._subtask = subtask
        self._written: list[str] = []
        self._copies = None if is_savepoint else copies
        self._check = check

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
        checksum = checksum_of(data)
        if path is not None:
            self._store.put(within(self._directory, path), data)
            if self._copies is not None:
                self._copies.put(self._checkpoint_id, data, checksum)
        return StateHandle(
            kind=kind,
            name=name,
            size=len(data),
            checksum=checksum,
            path=path,
            inline=data if inline else None,
            key_groups=key_groups,
            mode=mode,
        )

    def path(self, name: str) -> str:
        """The path of a state file, relative to the job or savepoint; recorded as written."""
        return self._recorded(self._file, name)

    def shared_path(self, name: str) -> str:
        """The path of a file that later checkpoints may name as well; recorded likewise."""
        assert self.shares
        return self._recorded(shared_file, name)

    def is_new(self, handle: StateHandle) -> bool:
        """Whether this checkpoint wrote the handle's bytes."""
        return handle.path is None or handle.path in self._written

    def _recorded(
        self, place: Callable[[CheckpointId, AttemptNumber, SubtaskId, str], str], name: str
    ) -> str:
        if not self._written:
            self._check()
        path = place(self._checkpoint_id, self._attempt, self._subtask, name)
        self._written.append(path)
        return path

    def open(self, path: str) -> StoreWriter:
        """Write a large state file piece by piece, under a path that ``path`` gave."""
        stored = self._store.open_writer(within(self._directory, path))
        if self._copies is None:
            return stored
        return CopiedWriter(stored, self._copies.begin(self._checkpoint_id))

    def note(self, handles: Sequence[StateHandle]) -> None:
        """The subtask's part of the checkpoint consists of these, older files among them."""
        if self._copies is not None:
            self._copies.name(self._checkpoint_id, handles)

    def put_items(self, name: str, items: Sequence[Any], mode: str = "split") -> StateHandle:
        """Keep a list of JSON values or bytes as operator state."""
        return self.put("operator", name, dump_items(items), mode=mode)

    def withdraw(self, handle: StateHandle) -> None:
        """Delete the file of a handle that this writer made and that is not needed after all."""
        if handle.path is not None:
            self._store.delete(within(self._directory, handle.path))
            self._written.remove(handle.path)
            if self._copies is not None:
                self._copies.withdrawn(self._checkpoint_id, handle)

    @property
    def has_files(self) -> bool:
        """Whether anything was, or may have been, written to a file."""
        return bool(self._written)

    def discard(self) -> None:
        """Delete all files that were written."""
        for path in self._written:
            self._store.delete(within(self._directory, path))
        self._written.clear()


class WriterFactory(Protocol):
    """Makes the writers of one attempt."""

    def __call__(
        self,
        checkpoint_id: CheckpointId,
        subtask: SubtaskId,
        cancelled: Callable[[], bool],
        target: str | None = None,
    ) -> StoredSnapshotWriter:
        """The writer of one subtask for one checkpoint; ``target``: a savepoint's directory.

        Raises:
            WriteRefusedError: The directory holds a savepoint.
            StorageError: The storage failed.
        """


def writer_factory(
    store: CheckpointStore,
    job_id: JobId,
    attempt: AttemptNumber,
    config: CheckpointConfig,
    *,
    durable: bool,
    open_store: Callable[[str | None], CheckpointStore] = store_for,
    copies: LocalCopies | None = None,
) -> WriterFactory:
    """Writers for the subtasks of one attempt.

    Without durable storage all state is inline, except that of savepoints, which have a directory.

    Their files are refused where the storage lacks the claim of the attempt (``check_claimed``): a
    checkpoint of such files could not be restored.
    """

    def check() -> None:
        if durable:
            check_claimed(store, job_id, attempt)

    def make(
        checkpoint_id: CheckpointId,
        subtask: SubtaskId,
        cancelled: Callable[[], bool],
        target: str | None = None,
    ) -> StoredSnapshotWriter:
        is_savepoint = target is not None
        own = open_store(target) if is_savepoint else store
        if is_savepoint and own.exists(SAVEPOINT_MANIFEST):  # Its files may have the same names.
            raise WriteRefusedError(f"{target} holds a savepoint already; choose another name")
        return StoredSnapshotWriter(
            own,
            job_id,
            attempt,
            checkpoint_id,
            subtask,
            inline_max=config.inline_max_bytes if durable or is_savepoint else None,
            cancelled=cancelled,
            is_savepoint=is_savepoint,
            copies=copies,
            check=check,
        )

    return make


def dump_items(items: Sequence[Any]) -> bytes:
    """A list of JSON values and bytes as JSON; bytes become ``{"base64": ...}``."""
    plain = [{"base64": b64encode(i).decode()} if isinstance(i, bytes) else i for i in items]
    return json.dumps(plain, separators=(",", ":")).encode()


def load_items(data: bytes) -> list[Any]:
    """The list that ``dump_items`` wrote.

    Raises:
        CorruptStateError: The bytes are no such list.
    """
    try:
        items: list[Any] = json.loads(data)
    except ValueError as error:
        raise CorruptStateError(f"operator state is no list of items: {error}") from error
    return [
        b64decode(i["base64"]) if isinstance(i, dict) and i.keys() == {"base64"} else i
        for i in items
    ]
