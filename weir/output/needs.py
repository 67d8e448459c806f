"""The needs of a job's files: what needs each of them, or that nothing does; pure.

A job that ends well leaves no file without a use. A driver that is killed leaves what it had begun:
state of a checkpoint without a manifest, files of sinks that no checkpoint covers, temporary files.
One rule says of every file what needs it, and all deletion of leftovers goes by it: the sweep of a
driver at its start and end, and ``weir clean``. It is a function of names and manifests alone::

    file                              needed by
    ────────────────────────────────  ────────────────────────────────────────────────────────────
    <job>/attempts, restored, over,   the job itself: its fence, its line, its end, its sinks
      finished, outputs, requests
    <job>/chk-<n>/manifest            any restore, until the coordinator discards it; a
                                      tombstone keeps its number from being completed or used again
    <job>/chk-<n>/<a>/…               checkpoint n, if its manifest names the file; else attempt a,
                                      for as long as a may run
    <job>/shared/<a>-<n>/…            each checkpoint whose manifest names the file; likewise
    savepoints/<job>/<name>/…         the savepoint, in the same way
    <sink>/_pending/<job>/<a>/part-…  a checkpoint on whose line a wrote it: restored, it commits
    <sink>/_withdrawn/<job>/<a>/…       the file or puts it back; and the line that the job is on
    <sink>/_pending/<job>/<a>/…       attempt a, for as long as it may run: it has seen no barrier
    <sink>/_claims/<job>/<a>          attempt a, for as long as it may run

So no file of another job, of a newer attempt, of a savepoint under way, or of an abandoned branch
goes: another job's files are not looked at; the newest attempt may run, unless it is known to be
over; an abandoned checkpoint keeps its manifest, and with it its files and its output, until the
coordinator lets it go. A file stays as well where its owner is in doubt: a manifest beside it is
damaged or a newer Weir's, the bases of the attempts cannot be read, or its name is none of Weir's.

A driver that was replaced may be frozen between its look at the fence and its manifest. So a
tombstone takes the manifest's key before the state goes (``Plan.give_up``): a manifest that was
created first keeps its files, and after it none can be created. The key of a number that the newest
attempt may still use is left alone. A savepoint's own manifest can appear that late without its
state; its client was told that it failed, and a restore from it is refused.
"""

import re
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import TypeAlias

from weir.errors import WeirError
from weir.ids import AttemptNumber, CheckpointId, JobId
from weir.output.output_files import CLAIMS, CommittedName
from weir.protocol.lineage import ANY_ATTEMPT, NO_END, AttemptBase, Lineage, lineage_of
from weir.protocol.pending import SAVEPOINT_KINDS
from weir.storage.layout import SAVEPOINT_MANIFEST, writer_of_shared
from weir.storage.manifest import Manifest, StoredCheckpoint, Tombstone
from weir.storage.shared_files import unneeded
from weir.storage.store import is_temporary

_CHECKPOINT = re.compile(r"chk-(\d+)/(.+)")
_OF_ATTEMPT = re.compile(r"(\d+)/(.+)")
_OF_SAVEPOINT = re.compile(r"(\d+)-(\d+)/(.+)")
_PROBE = re.compile(r"probe-(\d+)")
_OWN_RECORDS = re.compile(r"attempts/\d+|restored/\d+-\d+|over/\d+|finished|outputs")
_REQUEST = re.compile(r"requests/[^/]+\.(json|taken)")
_BEING_WRITTEN = re.compile(r".+-\d+-\d+\.(parquet|text)")


@dataclass(frozen=True, slots=True, order=True)
class StoredFile:
    """A file in the job's directory; the path is relative to that."""

    path: str


@dataclass(frozen=True, slots=True, order=True)
class SavepointFile:
    """A file in the directory of a savepoint; the path is relative to that."""

    location: str
    path: str


@dataclass(frozen=True, slots=True, order=True)
class OutputFile:
    """A file of a sink that is not committed output: it waits, or was withdrawn."""

    directory: str  # The sink's.
    path: str  # Relative to that.
    attempt: AttemptNumber
    is_withdrawn: bool


File: TypeAlias = StoredFile | SavepointFile | OutputFile


class Reason(StrEnum):
    """The kinds of need."""

    RECORD = "the job's own record"
    REQUEST = "a request for a savepoint, which its client removes"
    NUMBER = "keeps the number of a checkpoint that was given up from being used again"
    CHECKPOINT = "checkpoint {0}"
    SAVEPOINT = "savepoint {0}"
    BORROWED = "another job, which began with checkpoint {0} and has completed none since"
    LINE = "the line of checkpoints that the job is on"
    ATTEMPT = "attempt {0}, which may run"
    DOUBT = "in doubt, so it stays: {0}"


@dataclass(frozen=True, slots=True)
class Need:
    """The reason to keep a file."""

    reason: Reason
    subject: int | str = ""

    def __str__(self) -> str:
        return self.reason.format(self.subject)


@dataclass(frozen=True)
class Known:
    """A job as its files show it."""

    job_id: JobId
    newest: AttemptNumber  # The newest attempt that is recorded; 0: none.
    may_run: bool  # That attempt is not known to be over.
    is_finished: bool  # The job finished: it needs none of its checkpoints.
    bases: Mapping[AttemptNumber, AttemptBase] | None  # None: they cannot be read.
    stored: Mapping[CheckpointId, StoredCheckpoint]  # All that have a manifest's key.
    savepoints: Mapping[str, Manifest | Tombstone | WeirError] = field(default_factory=dict)
    borrowed: Set[CheckpointId] = frozenset()  # Other jobs have no other restore point.

    @cached_property
    def next_id(self) -> CheckpointId:
        """The first number that the newest attempt uses itself; 0: not known."""
        return max((base.next_id for base in (self.bases or {}).values()), default=CheckpointId(0))

    @cached_property
    def restorable(self) -> dict[CheckpointId, Manifest]:
        """The checkpoints and savepoints that the job, or another one, may be restored from."""
        return {
            number: stored.manifest
            for number, stored in self.stored.items()
            if isinstance(stored.manifest, Manifest)
            and not (self._is_let_go(stored.manifest) and number not in self.borrowed)
        }

    @cached_property
    def is_read(self) -> bool:
        """Whether the lines of all checkpoints are known."""
        manifests = [one.manifest for one in self.stored.values()] + [*self.savepoints.values()]
        return bool(self.bases) and all(isinstance(m, Manifest | Tombstone) for m in manifests)

    @cached_property
    def lines(self) -> dict[CheckpointId, Lineage]:
        """The line behind each checkpoint that may be restored; 0: the one that the job is on."""
        bases = self.bases or {}
        # A driver may have died between the two manifests of a savepoint.
        beside = (m for m in self.savepoints.values() if isinstance(m, Manifest))
        own = {m.checkpoint_id: m for m in beside if m.job_id == self.job_id} | self.restorable
        lines = {n: lineage_of(m.attempt, n, bases) for n, m in own.items()}
        if self.may_run and bases:
            lines[CheckpointId(0)] = lineage_of(max(bases), NO_END, bases)
        return lines

    @cached_property
    def named(self) -> dict[CheckpointId, frozenset[str]]:
        """The state files of each checkpoint that may be restored."""
        return {
            n: frozenset(handle.path for handle in m.handles if handle.path is not None)
            for n, m in self.restorable.items()
        }

    @property
    def has_nothing_to_restore(self) -> bool:
        """Whether nothing of the job can be restored, nor may it be running."""
        unread = any(one.manifest is None for one in self.stored.values())
        return not (self.may_run or self.restorable or unread or self.savepoints)

    def runs(self, attempt: AttemptNumber) -> bool:
        """Whether this attempt, or one that is not recorded, may run."""
        return attempt > self.newest or (attempt == self.newest and self.may_run)

    def is_record(self, file: File) -> bool:
        """Whether a file is one of the job's own records, or a tombstone."""
        if not isinstance(file, StoredFile):
            return False
        number = checkpoint_of(file)
        if number is None:
            return _OWN_RECORDS.fullmatch(file.path) is not None
        stored = self.stored.get(number)
        is_manifest = file.path.endswith(f"/{SAVEPOINT_MANIFEST}")
        return is_manifest and stored is not None and isinstance(stored.manifest, Tombstone)

    def _is_let_go(self, manifest: Manifest) -> bool:
        return self.is_finished and not self.may_run and manifest.kind not in SAVEPOINT_KINDS


@dataclass(frozen=True, slots=True)
class Plan:
    """A sweep that is to come, in this order; the rest of the files is needed."""

    give_up: tuple[CheckpointId, ...]  # Their manifest's key is to be taken by a tombstone.
    delete: tuple[File, ...]  # Manifests first.
    needs: Mapping[File, Need]  # Of every other file.


def plan(known: Known, files: Iterable[File], *, clears: bool = False) -> Plan:
    """The sweep of a job's files.

    Args:
        clears: The job's own records go as well, where nothing of it can be restored.
    """
    if clears and known.has_nothing_to_restore:
        return Plan((), tuple(sorted(files, key=_order)), {})
    needs: dict[File, Need] = {}
    delete: list[File] = []
    give_up: set[CheckpointId] = set()
    for file in files:
        need = need_of(known, file)
        if need is not None:
            needs[file] = need
            continue
        delete.append(file)
        number = checkpoint_of(file)
        if number is not None and number not in known.stored:
            give_up.add(number)
    return Plan(tuple(sorted(give_up)), tuple(sorted(delete, key=_order)), needs)


def need_of(known: Known, file: File) -> Need | None:
    """The need of one file; None: nothing needs it."""
    match file:
        case StoredFile(path):
            return _need_of_stored(known, path)
        case SavepointFile(location, path):
            return _need_in_savepoint(known, location, path)
        case OutputFile():
            return _need_of_output(known, file)


def checkpoint_of(file: File) -> CheckpointId | None:
    """The checkpoint of the job that a file was written for; None: for none."""
    if not isinstance(file, StoredFile):
        return None
    if (writer := writer_of_shared(file.path)) is not None:
        return writer[1]
    match = _CHECKPOINT.fullmatch(file.path)
    return None if match is None else CheckpointId(int(match[1]))


def _order(file: File) -> tuple[int, str, str]:
    """Manifests first: without its own the rest is no checkpoint to restore.

    The job's records come last, so that a sweep that is cut off can still be repeated.
    """
    rank = 1
    if file.path.rpartition("/")[2] == SAVEPOINT_MANIFEST:
        rank = 0
    elif isinstance(file, StoredFile) and _OWN_RECORDS.fullmatch(file.path):
        rank = 3 if file.path.startswith("attempts/") else 2
    return rank, type(file).__name__, file.path


def _doubt(why: str) -> Need:
    return Need(Reason.DOUBT, why)


def _of_attempt(known: Known, attempt: AttemptNumber) -> Need | None:
    return Need(Reason.ATTEMPT, attempt) if known.runs(attempt) else None


# The job's directory.


def _need_of_stored(known: Known, path: str) -> Need | None:
    if (match := _CHECKPOINT.fullmatch(path)) is not None:
        return _need_in_checkpoint(known, CheckpointId(int(match[1])), match[2], path)
    if (writer := writer_of_shared(path)) is not None:
        return _need_of_shared(known, *writer, path)
    if is_temporary(path):
        return _of_attempt(known, known.newest)
    if _OWN_RECORDS.fullmatch(path):
        return Need(Reason.RECORD)
    if _REQUEST.fullmatch(path):
        return Need(Reason.REQUEST)
    return _doubt("its name is none of Weir's")


def _need_in_checkpoint(known: Known, number: CheckpointId, inside: str, path: str) -> Need | None:
    stored = known.stored.get(number)
    if stored is not None and stored.manifest is None:
        return _doubt(f"the manifest of checkpoint {number} cannot be read")
    if inside == SAVEPOINT_MANIFEST:
        return _need_of_manifest(known, number)
    if number in known.restorable:
        manifest = known.restorable[number]
        is_mark = manifest.location is not None and inside == f"{manifest.attempt}/savepoint"
        if is_mark or path in known.named[number]:
            return _restorable(known, number)
    match = _OF_ATTEMPT.fullmatch(inside)
    if match is not None and (need := _of_attempt(known, AttemptNumber(int(match[1])))) is not None:
        return need
    if known.may_run and number >= known.next_id and (stored is None or match is None):
        return _doubt(f"the newest attempt may use checkpoint number {number}")
    # A temporary file beside the directories of attempts was to become a manifest.
    is_known = match is not None or is_temporary(inside)
    return None if is_known else _doubt("its name is none of Weir's")


def _need_of_shared(
    known: Known, attempt: AttemptNumber, number: CheckpointId, path: str
) -> Need | None:
    if not unneeded((path,), known.restorable.values()):
        return next(_restorable(known, n) for n in known.restorable if path in known.named[n])
    if any(stored.manifest is None for stored in known.stored.values()):
        return _doubt("a manifest that may name it cannot be read")
    if known.may_run and number >= known.next_id and number not in known.stored:
        return _of_attempt(known, attempt) or _doubt(
            f"the newest attempt may use checkpoint number {number}"
        )
    return _of_attempt(known, attempt)


def _need_of_manifest(known: Known, number: CheckpointId) -> Need | None:
    stored = known.stored.get(number)
    if stored is None:
        return _doubt("it was created just now")
    if isinstance(stored.manifest, Tombstone):
        return Need(Reason.NUMBER)
    return _restorable(known, number)


def _restorable(known: Known, number: CheckpointId) -> Need | None:
    manifest = known.restorable.get(number)
    if manifest is None:
        return None
    if manifest.kind in SAVEPOINT_KINDS:
        return Need(Reason.SAVEPOINT, number)
    is_borrowed = known.is_finished and number in known.borrowed
    return Need(Reason.BORROWED if is_borrowed else Reason.CHECKPOINT, number)


# A savepoint's own directory.


def _need_in_savepoint(known: Known, location: str, path: str) -> Need | None:
    manifest = known.savepoints.get(location)
    if manifest is not None:
        if not isinstance(manifest, Manifest) or manifest.job_id != known.job_id:
            return _doubt("the manifest beside it cannot be read, or is another job's")
        named = {handle.path for handle in manifest.handles}
        if path == SAVEPOINT_MANIFEST or path in named:
            return Need(Reason.SAVEPOINT, manifest.checkpoint_id)
    if (match := _OF_SAVEPOINT.fullmatch(path) or _PROBE.fullmatch(path)) is not None:
        return _of_attempt(known, AttemptNumber(int(match[1])))
    if is_temporary(path):
        return _of_attempt(known, known.newest)
    return _doubt("its name is none of Weir's, or it was created just now")


# A sink's directory.


def _need_of_output(known: Known, file: OutputFile) -> Need | None:
    if file.attempt != ANY_ATTEMPT and known.runs(file.attempt):
        return Need(Reason.ATTEMPT, file.attempt)
    if file.path.startswith(f"{CLAIMS}/"):
        return None
    base_name = file.path.rpartition("/")[2]
    name = CommittedName.parse(base_name)
    if name is None or name.checkpoint_id == 0:
        if name is None and not _BEING_WRITTEN.fullmatch(base_name):
            return _doubt("its name is none of Weir's")
        # It was closed by no barrier, so no checkpoint names it.
        return None if not file.is_withdrawn else _doubt("its checkpoint is not known")
    if not known.is_read:
        return _doubt("the lines of the job's checkpoints are not all known")
    for number, line in known.lines.items():
        if _is_on(line, file.attempt, name.checkpoint_id):
            if not number:
                return Need(Reason.LINE)
            return _restorable(known, number) or Need(Reason.SAVEPOINT, number)
    return None


def _is_on(line: Lineage, attempt: AttemptNumber, checkpoint_id: CheckpointId) -> bool:
    if attempt == ANY_ATTEMPT:
        return checkpoint_id in line
    return line.holds(attempt, checkpoint_id)
