"""The names of everything in checkpoint storage, in one place.

::

    <job>/attempts/<n>                                   one per attempt, created once: the fence
    <job>/finished                                       the job finished; written before deleting
    <job>/over/<n>                                       it failed or was cancelled in attempt n
    <job>/restored/<n>-<checkpoint>                      the base of attempt n; 0: the beginning
    <job>/chk-<n>/manifest                               the checkpoint exists when this does
    <job>/chk-<n>/<attempt>/<operator>-<index>-<name>    state files, written before it
    <job>/chk-<n>/<attempt>/savepoint                    instead of them: a savepoint's location
    <job>/shared/<attempt>-<n>/<operator>-<index>-<name> state files that later ones may name too
    <job>/outputs                                        the directories that its sinks write to
    <job>/requests/<id>.json, .taken, .answer.json       the savepoint mailbox

A state handle's path is relative to ``<job>/``, so that a job's directory can be moved as a whole.

A *savepoint* is a checkpoint whose state lies in a directory of its own, by default in
``<storage>/savepoints/<job>/<name>``, with a copy of its manifest, so that it can be moved as a
whole. Its paths are relative to that directory::

    manifest                                             the copy, written before the job's own
    <attempt>-<n>/<operator>-<index>-<name>              state files, written before that

It has an id as all checkpoints have, and its ``<job>/chk-<n>/manifest`` makes it complete as theirs
do.

Names come from users and are percent-encoded; a name too long for a file system ends in its digest.
"""

import re
from dataclasses import dataclass
from hashlib import blake2b
from urllib.parse import quote, unquote

from weir.ids import AttemptNumber, CheckpointId, JobId, SubtaskId

_NAME_BYTES_MAX = 200  # File systems allow 255; a temporary name adds a prefix and a suffix.
_SAVEPOINT_STATE = re.compile(r"\d+-(\d+)/")
_SHARED = re.compile(r"shared/(\d+)-(\d+)/.+")
_MANIFEST = re.compile(r"([^/]+)/chk-(\d+)/manifest")


@dataclass(frozen=True, slots=True)
class JobLayout:
    """The paths of one job, as the store takes them."""

    job: JobId

    @property
    def directory(self) -> str:
        """The directory of all files of the job."""
        return _escaped(self.job)

    @property
    def attempts(self) -> str:
        """The directory that holds a file per attempt."""
        return f"{self.directory}/attempts"

    def attempt(self, number: AttemptNumber) -> str:
        """The file that claims this attempt: only its driver could create it."""
        return f"{self.attempts}/{number}"

    def attempt_of(self, path: str) -> AttemptNumber:
        """The attempt that a file below ``attempts`` claims."""
        return AttemptNumber(int(path.rpartition("/")[2]))

    @property
    def finished(self) -> str:
        """The file that marks the job as finished: it has no checkpoint to restore."""
        return f"{self.directory}/finished"

    def over(self, number: AttemptNumber) -> str:
        """The file that marks the job as failed or cancelled in this attempt.

        It counts until a newer attempt runs the job again.
        """
        return f"{self.directory}/over/{number}"

    @property
    def bases(self) -> str:
        """The directory that holds the base of each attempt."""
        return f"{self.directory}/restored"

    def base(self, number: AttemptNumber, restored: CheckpointId | None) -> str:
        """The file of an attempt's base; ``restored`` is a checkpoint of the job itself."""
        return f"{self.bases}/{number}-{restored or 0}"

    def base_of(self, path: str) -> tuple[AttemptNumber, CheckpointId]:
        """The attempt of a file below ``bases``, and the id of its restored checkpoint."""
        number, _, restored = path.rpartition("/")[2].partition("-")
        return AttemptNumber(int(number)), CheckpointId(int(restored))

    @property
    def outputs(self) -> str:
        """The file that names the directories of the job's sinks."""
        return f"{self.directory}/outputs"

    @property
    def requests(self) -> str:
        """The directory of the savepoint mailbox."""
        return f"{self.directory}/requests"

    def request(self, request_id: str) -> str:
        """The file of one request."""
        return f"{self.requests}/{_escaped(request_id)}.json"

    def request_taken(self, request_id: str) -> str:
        """The file that marks the request as taken by a driver."""
        return f"{self.requests}/{_escaped(request_id)}.taken"

    def answer(self, request_id: str) -> str:
        """The file of the answer to a request."""
        return f"{self.requests}/{_escaped(request_id)}.answer.json"

    def checkpoint(self, checkpoint: CheckpointId) -> str:
        """The directory of one checkpoint: deleting it discards the checkpoint."""
        return f"{self.directory}/chk-{checkpoint}"

    def manifest(self, checkpoint: CheckpointId) -> str:
        """The manifest's key, one for all attempts: its creation decides the checkpoint."""
        return f"{self.checkpoint(checkpoint)}/manifest"

    def savepoint_mark(self, checkpoint: CheckpointId, attempt: AttemptNumber) -> str:
        """The file that keeps the id of a savepoint from being taken again.

        Without it a driver that dies between the two manifests of a savepoint would leave a
        savepoint whose id the next driver gives to a checkpoint of another line.
        """
        return f"{self.attempt_state(checkpoint, attempt)}/savepoint"

    def attempt_state(self, checkpoint: CheckpointId, attempt: AttemptNumber) -> str:
        """The directory that the subtasks of one attempt write a checkpoint's files to."""
        return f"{self.checkpoint(checkpoint)}/{attempt}"

    @property
    def shared(self) -> str:
        """The directory of the state files that several checkpoints may name."""
        return f"{self.directory}/shared"

    def shared_state(self, checkpoint: CheckpointId, attempt: AttemptNumber) -> str:
        """The directory that the subtasks of one attempt write a checkpoint's shared files to."""
        return f"{self.shared}/{attempt}-{checkpoint}"


def shared_file(
    checkpoint: CheckpointId, attempt: AttemptNumber, subtask: SubtaskId, name: str
) -> str:
    """The path of one shared state file: relative to the job's directory, named once for ever."""
    return f"shared/{attempt}-{checkpoint}/{_state_file_name(subtask, name)}"


def writer_of_shared(path: str) -> tuple[AttemptNumber, CheckpointId] | None:
    """The attempt and checkpoint that a shared file was written in; None: it is none.

    The path is relative to the job's directory.
    """
    match = _SHARED.fullmatch(path)
    return (AttemptNumber(int(match[1])), CheckpointId(int(match[2]))) if match else None


def state_file(
    checkpoint: CheckpointId, attempt: AttemptNumber, subtask: SubtaskId, name: str
) -> str:
    """The path of one state file as its handle has it: relative to the job's directory."""
    return f"chk-{checkpoint}/{attempt}/{_state_file_name(subtask, name)}"


def _state_file_name(subtask: SubtaskId, name: str) -> str:
    # With no "-" left in the name, the last two of them always bound the index.
    last = _escaped(name).replace("-", "%2D")
    return _shortened(f"{_escaped(subtask.operator)}-{subtask.index}-{last}")


SAVEPOINT_MANIFEST = "manifest"  # Relative to the savepoint's directory.


def savepoint_location(storage: str, job: JobId, name: str) -> str:
    """The default directory of a savepoint, as a path or URI of its own."""
    return f"{storage.rstrip('/')}/{savepoints_directory(job)}/{_escaped(name)}"


def savepoints_directory(job: JobId) -> str:
    """The directory in the storage that holds a job's savepoints by default."""
    return f"savepoints/{_escaped(job)}"


def storage_of_savepoint(location: str) -> str | None:
    """The storage that a savepoint's directory lies in, as it does by default; None: elsewhere."""
    parts = location.rstrip("/").rsplit("/", 3)
    return parts[0] if len(parts) == 4 and parts[1] == "savepoints" else None


def savepoint_id(path: str) -> CheckpointId | None:
    """The savepoint of a path relative to its directory; None: the path is relative to a job's."""
    match = _SAVEPOINT_STATE.match(path)
    return None if match is None else CheckpointId(int(match[1]))


def savepoint_state(checkpoint: CheckpointId, attempt: AttemptNumber) -> str:
    """The directory in a savepoint's own that the subtasks of one attempt write to."""
    return f"{attempt}-{checkpoint}"


def savepoint_state_file(
    checkpoint: CheckpointId, attempt: AttemptNumber, subtask: SubtaskId, name: str
) -> str:
    """The path of one state file of a savepoint: relative to the savepoint's directory."""
    return f"{savepoint_state(checkpoint, attempt)}/{_state_file_name(subtask, name)}"


def in_job(job: JobId, relative: str) -> str:
    """The path in the store of a path that is relative to the job's directory."""
    return within(_escaped(job), relative)


def within(directory: str, relative: str) -> str:
    """The path in the store of one that is relative to a directory; "" is the store itself."""
    return f"{directory}/{relative}" if directory else relative


def parse_manifest_path(path: str) -> tuple[JobId, CheckpointId] | None:
    """The job and checkpoint of a manifest's path, or None for any other file."""
    match = _MANIFEST.fullmatch(path)
    return (JobId(unquote(match[1])), CheckpointId(int(match[2]))) if match else None


def _escaped(name: str) -> str:
    # quote leaves dots alone, and "." or ".." would be directories of their own.
    return quote(name, safe="").replace(".", "%2E")


def _shortened(name: str) -> str:
    if len(name) <= _NAME_BYTES_MAX:
        return name
    digest = blake2b(name.encode(), digest_size=16).hexdigest()
    return f"{name[: _NAME_BYTES_MAX - len(digest) - 1]}~{digest}"
