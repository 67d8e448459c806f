"""The restore choice: the checkpoint that the next attempt restores, assigned to its subtasks.

Without a request it is the newest completed checkpoint on the job's line whose files are all there,
and whole where they are read; a damaged one is passed over, and the user is told. A requested one
is restored, or the attempt fails. A job without checkpoints starts from the beginning; one with
checkpoints of which none is usable fails, because starting over in silence would count everything
twice downstream. For the same reason nothing is restored from a storage that is behind the job: the
newest checkpoint that it is known to have completed is not there. It may not be mounted, a cache of
it may be stale, or it is an earlier copy.

Savepoints belong to their users and are restored on request only, with two exceptions. A savepoint
that was taken to stop the job, and is the newest on the line, is the job's end: the next attempt
commits it and finishes, should the attempt that was to do so have failed. And a savepoint that an
attempt was restored from, on request, counts as any checkpoint does.
"""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from weir.config import JobConfig
from weir.errors import CorruptStateError, RestoreError, StorageError
from weir.graph.physical import ExecutionGraph
from weir.ids import AttemptNumber, CheckpointId, JobId, OperatorId, StateHandle
from weir.output.waiting import Fate, is_over, sentences, waiting_output
from weir.protocol.deployment import OperatorRestore
from weir.protocol.lineage import (
    ANY_ATTEMPT,
    NO_END,
    UNKNOWN,
    AttemptBase,
    Lineage,
    Span,
    lineage_of,
)
from weir.protocol.messages import CheckpointsRestored
from weir.protocol.pending import SAVEPOINT_KINDS, STOP_KINDS, CompletedCheckpoint
from weir.protocol.restore import OperatorSnapshot, RestorePlan, RestoreTarget, plan_restore
from weir.storage.attempt_bases import bases_of, note_base
from weir.storage.catalog import OpenStore, RestoreRequest, StoredState, find_state
from weir.storage.layout import JobLayout, storage_of_savepoint
from weir.storage.manifest import (
    Manifest,
    StoredCheckpoint,
    Tombstone,
    list_checkpoints,
    load,
    verify,
)
from weir.storage.store import CheckpointStore, PathNotFoundError, store_for


class JobFinished(RestoreError):
    """The job has finished: it has no checkpoint to restore, and nothing left to do."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A savepoint that the job may delete once it has enough checkpoints of its own."""

    job_id: JobId
    checkpoint_id: CheckpointId
    attempt: AttemptNumber
    location: str  # The URI that it was restored from.


@dataclass(frozen=True, slots=True)
class RestoreChoice:
    """The checkpoint that an attempt restores; ``manifest`` None means the beginning."""

    plan: RestorePlan
    manifest: Manifest | None = None
    storage: str | None = None  # The storage of the state files; None: the job's own.
    directory: str = ""  # The directory of the state files in that storage.
    notes: tuple[str, ...] = ()  # Remarks on the choice for the user.
    is_requested: bool = False  # A user or the control plane named it.
    lineage: Lineage = UNKNOWN  # Of the manifest's checkpoint.
    rewinds_output: bool = True
    adopts: JobId | None = None  # Another job, whose waiting output this job commits.
    completes_stop: bool = False  # The attempt only commits it, and finishes.
    is_shown: bool = False  # The job ended with it: its waiting rows reached the driver.
    claim: Claim | None = None
    claimed_output: tuple[str, ...] = ()  # Directories of sinks that hold the attempt's claim.

    @property
    def checkpoint_id(self) -> CheckpointId | None:
        """The restored checkpoint's id."""
        return None if self.manifest is None else self.manifest.checkpoint_id

    def had_slots(self, job_id: JobId, count: int) -> bool:
        """Whether this job had so many slots when the checkpoint was taken."""
        manifest = self.manifest
        if manifest is None or manifest.job_id != job_id:
            return False
        return max(operator.parallelism for operator in manifest.operators) >= count

    def restores_of_slot(self, slot_index: int) -> tuple[OperatorRestore, ...]:
        """The state for the subtasks of one slot."""
        return tuple(r for r in self.plan.restores if r.subtask.index == slot_index)


def search(store: CheckpointStore, job_id: JobId) -> CheckpointsRestored:
    """A job's completed checkpoints in the storage, and the next free checkpoint id."""
    completed = tuple(
        CompletedCheckpoint(
            checkpoint_id=manifest.checkpoint_id,
            attempt=manifest.attempt,
            kind=manifest.kind,
            triggered_at_ms=manifest.triggered_ms,
            completed_at_ms=manifest.completed_ms,
            parent_id=manifest.parent_id,
        )
        for manifest in map(_manifest_of, list_checkpoints(store, job_id))
        if manifest is not None and manifest.kind not in SAVEPOINT_KINDS
    )
    directory = JobLayout(job_id).directory
    taken = re.compile(r"/(?:chk-|shared/\d+-)(\d+)/")
    used = (taken.match(path[len(directory) :]) for path in store.list(directory))
    newest = max((int(match[1]) for match in used if match), default=0)
    return CheckpointsRestored(completed[::-1], CheckpointId(newest + 1))


def choose_restore(
    store: CheckpointStore,
    job_id: JobId,
    graph: ExecutionGraph,
    config: JobConfig,
    requested: RestoreRequest | None,
    open_store: OpenStore = store_for,
    *,
    known: int = 0,
    reads: bool = True,
) -> RestoreChoice:
    """Choose the checkpoint and assign its state; reads each of its files once to verify it.

    Args:
        known: The newest checkpoint that the job is known to have completed and kept. Without a
            request, a storage that has neither it nor a newer one is not the job's, or an old copy.
        reads: Whether it does; else files are only to be there with their size, unless a
            checkpoint is requested.

    Raises:
        JobFinished: None was requested, and the job has finished.
        RestoreError: The requested checkpoint does not exist or does not fit the job; or there is
        none on the job's line, although it has begun.
        CorruptStateError: The requested checkpoint is damaged; or all checkpoints of the job are.
        StorageError: The storage failed, or lacks the checkpoint that is known.
    """
    bases = bases_of(store, job_id)
    if requested is not None:
        return _requested(store, job_id, graph, config, requested, bases, open_store)
    if store.exists(JobLayout(job_id).finished):
        raise JobFinished(
            f"job {job_id} has finished: its output is complete and its checkpoints are deleted. "
            "Start it without --restore to run it anew, or give the path of one of its savepoints "
            "to restore that"
        )
    line = _Line(bases)
    stored = list_checkpoints(store, job_id)
    _check_age(stored, known, config.checkpoints.storage)
    usable, beside, passed_over = _sorted_by_line(stored, line)
    for manifest in usable:
        state = _state_of(store, job_id, manifest, open_store)
        try:
            verify(state.store, manifest, state.directory, reads=reads)
        except CorruptStateError as error:
            passed_over[manifest.checkpoint_id] = str(error)
            continue
        notes = tuple(
            f"checkpoint {checkpoint_id} is passed over: {problem}"
            for checkpoint_id, problem in sorted(passed_over.items(), reverse=True)
            if checkpoint_id > manifest.checkpoint_id
        )
        completes_stop = manifest.kind in STOP_KINDS and not line.went_on_from(manifest)
        if completes_stop:
            notes += (
                f"the job was stopped with savepoint {manifest.checkpoint_id}; this attempt only "
                "commits it and finishes",
            )
        return RestoreChoice(
            _assign(graph, config, manifest),
            manifest,
            storage=state.storage or None,
            directory=state.directory,
            notes=notes,
            lineage=lineage_of(manifest.attempt, manifest.checkpoint_id, bases),
            rewinds_output=line.rewinds_to(manifest),
            completes_stop=completes_stop,
        )
    if passed_over:
        raise CorruptStateError(
            "the job has checkpoints, but none of them is whole: "
            + "; ".join(f"checkpoint {n}: {problem}" for n, problem in passed_over.items())
        )
    if (why := line.cannot_begin(beside)) is not None:
        raise RestoreError(f"job {job_id} {why}")
    return RestoreChoice(_assign(graph, config, None))


def _check_age(stored: Sequence[StoredCheckpoint], known: int, storage: str | None) -> None:
    ids = (one.checkpoint_id for one in stored if not isinstance(one.manifest, Tombstone))
    newest = max(ids, default=0)
    if newest < known:
        there = f"the newest there is {newest}" if newest else "none of the job's is there"
        raise StorageError(
            f"checkpoint {known} was completed, and {storage} does not hold it: {there}. Mount the "
            "storage, or put back what it lacks; or roll the job back to a checkpoint that it "
            "holds. To restore an older one unasked would put out again what was put out since"
        )


def _sorted_by_line(
    stored: Sequence[StoredCheckpoint], line: "_Line"
) -> tuple[list[Manifest], list[CheckpointId], dict[CheckpointId, str]]:
    """Usable checkpoints, newest first; ids beside the job's line; problems of unreadable ones."""
    usable: list[Manifest] = []
    beside: list[CheckpointId] = []
    passed_over: dict[CheckpointId, str] = {}
    for one in stored:
        try:
            manifest = _usable(one)
        except CorruptStateError as error:
            passed_over[one.checkpoint_id] = str(error)
            continue
        if manifest is None:
            continue
        if not line.holds(manifest):
            beside.append(manifest.checkpoint_id)
        elif line.counts(manifest):
            usable.append(manifest)
    usable.sort(key=lambda m: (m.attempt, m.checkpoint_id), reverse=True)
    return usable, beside, passed_over


def begin_from(
    store: CheckpointStore, job_id: JobId, attempt: AttemptNumber, choice: RestoreChoice
) -> CheckpointsRestored:
    """Store the attempt's base before anything acts on it; return the job's checkpoints.

    The next checkpoint id is beyond all that were ever used on any line, and beyond the restored
    checkpoint's, which may be another job's: output files are named by these ids.

    Raises:
        StorageError: The storage failed.
    """
    # Only now: the previous driver may have completed a checkpoint until the claim.
    stored = search(store, job_id)
    used = [base.next_id for base in bases_of(store, job_id).values()]
    restored = choice.manifest
    if restored is not None:
        used.append(CheckpointId(restored.checkpoint_id + 1))
    stored = replace(stored, next_id=max([stored.next_id, *used]))
    if choice.completes_stop:
        return stored  # The attempt takes no checkpoint: it only ends.
    if choice.is_requested:
        store.delete(JobLayout(job_id).finished)  # The job is to run again.
    base = AttemptBase(attempt, stored.next_id, rewinds_output=choice.rewinds_output)
    if restored is not None:
        base = replace(
            base,
            restored_id=restored.checkpoint_id,
            restored_attempt=restored.attempt,
            restored_job=None if restored.job_id == job_id else restored.job_id,
        )
    note_base(store, job_id, base)
    return stored


def check_kept(
    store: CheckpointStore, request: RestoreRequest, choice: RestoreChoice, open_store: OpenStore
) -> None:
    """Check that the requested checkpoint was not deleted since it was chosen.

    To be called after the attempt's base is stored. A deletion first leaves its own note and then
    looks for such bases, so that one of the two sees the other.

    Raises:
        RestoreError: It was deleted, or another one is in its place.
        CorruptStateError: Its manifest or tombstone is damaged.
        StorageError: The storage failed.
    """
    manifest = choice.manifest
    if manifest is None:
        return
    state = find_state(request, open_store)
    if state.manifest.identity != manifest.identity:
        raise RestoreError(
            f"{request.uri} was deleted during the restore, and holds another savepoint now"
        )
    if state.storage != manifest.location:
        return  # A copy: a tombstone of the original savepoint is not about this one.
    path = JobLayout(manifest.job_id).manifest(manifest.checkpoint_id)
    roots = {storage_of_savepoint(place) for place in (state.storage, manifest.location or "")}
    for one in (store, *(open_store(root) for root in roots if root is not None)):
        try:
            known = load(one.read(path), path)
        except PathNotFoundError:
            continue
        if isinstance(known, Tombstone) and known.attempt == manifest.attempt:
            raise RestoreError(f"{request.uri} was given up during the restore: {known.reason}")


class _Line:
    """The job's line: the lineage of its newest attempt that has a base.

    Beside it lie the checkpoints that the job went back behind; its sinks have withdrawn the files
    that such a checkpoint counts on. So do those that a driver completed while it was being
    replaced, after its successor had restored an older one.
    """

    def __init__(self, bases: Mapping[AttemptNumber, AttemptBase]) -> None:
        self._newest = bases[max(bases)] if bases else None
        self._lineage = UNKNOWN
        if self._newest is not None:
            self._lineage = lineage_of(self._newest.attempt, NO_END, bases)
        own = (base for base in bases.values() if base.restored_job is None)
        self._gone_on_from = {(base.restored_attempt, base.restored_id) for base in own}

    def holds(self, manifest: Manifest) -> bool:
        """Whether the checkpoint is on the line."""
        if self._newest is None or manifest.attempt > self._newest.attempt:
            return True
        return self._lineage.holds(manifest.attempt, manifest.checkpoint_id)

    def went_on_from(self, manifest: Manifest) -> bool:
        """Whether an attempt was restored from this savepoint on request."""
        return (manifest.attempt, manifest.checkpoint_id) in self._gone_on_from

    def counts(self, manifest: Manifest) -> bool:
        """Whether the job may restore it without a request."""
        is_copy = manifest.kind in SAVEPOINT_KINDS - STOP_KINDS
        return not is_copy or self.went_on_from(manifest)

    def rewinds_to(self, manifest: Manifest) -> bool:
        """Whether sinks withdraw output beside the line when the job restores this checkpoint.

        Not where it was restored with its output kept and no checkpoint has completed since.
        """
        newest = self._newest
        if newest is None or newest.restored_id != manifest.checkpoint_id:
            return True
        return newest.rewinds_output or newest.restored_attempt != manifest.attempt

    def cannot_begin(self, beside: list[CheckpointId]) -> str | None:
        """The reason why a job without a usable checkpoint must not start over; None: it may."""
        newest = self._newest
        if newest is None or newest.restored_id is None:
            return None
        if newest.restored_job is not None:
            return (
                f"began with checkpoint {newest.restored_id} of job {newest.restored_job} and has "
                "completed none of its own: give the path of that checkpoint again"
            )
        if not beside:
            return None  # Its checkpoints were deleted when it ended.
        return (
            f"went back to checkpoint {newest.restored_id}, which is deleted; the only others are "
            f"those that it went back behind: {', '.join(map(str, sorted(beside)))}. Give the "
            "path of the one to restore"
        )


def _state_of(
    store: CheckpointStore, job_id: JobId, manifest: Manifest, open_store: OpenStore
) -> StoredState:
    """The stored state of a checkpoint of the job: its storage and directory."""
    if manifest.location is None:
        return StoredState(manifest, store, "", JobLayout(job_id).directory)
    return StoredState(manifest, open_store(manifest.location), manifest.location, "")


def _requested(
    store: CheckpointStore,
    job_id: JobId,
    graph: ExecutionGraph,
    config: JobConfig,
    request: RestoreRequest,
    bases: Mapping[AttemptNumber, AttemptBase],
    open_store: OpenStore,
) -> RestoreChoice:
    state = find_state(request, open_store)
    manifest = state.manifest
    verify(state.store, manifest, state.directory)
    number = manifest.checkpoint_id
    if manifest.job_id == job_id:
        lineage = lineage_of(manifest.attempt, number, bases)
    else:
        lineage = Lineage((Span(ANY_ATTEMPT, CheckpointId(1), number),))
    claim: Claim | None = None
    notes: tuple[str, ...] = ()
    if request.claims and manifest.kind in SAVEPOINT_KINDS:
        claim = Claim(manifest.job_id, number, manifest.attempt, state.storage)
    elif request.claims:
        notes = (f"{request.uri} is a checkpoint, not a savepoint, so the job does not claim it",)
    fate = Fate.OWN
    if manifest.job_id != job_id:
        is_free = claim is None and is_origin_over(request, state, (store,), open_store)
        fate = Fate.CLAIMED if claim is not None else Fate.OVER if is_free else Fate.LEFT
    waiting = waiting_output(manifest, state.store, state.directory)
    uids = {op.uid for op in graph.graph.operators}
    notes += tuple(sentences(manifest, waiting, fate, uids))
    return RestoreChoice(
        _assign(graph, config, manifest),
        manifest,
        storage=state.storage,
        directory=state.directory,
        notes=notes,
        is_requested=True,
        lineage=lineage,
        rewinds_output=request.rewinds_output,
        is_shown=_is_end(store, job_id, manifest, bases),
        adopts=manifest.job_id if fate in (Fate.OVER, Fate.CLAIMED) else None,
        claim=claim,
    )


def _is_end(
    store: CheckpointStore,
    job_id: JobId,
    manifest: Manifest,
    bases: Mapping[AttemptNumber, AttemptBase],
) -> bool:
    """Whether the job finished by the stop that took this savepoint, and has not run since.

    Then all that had waited was committed, in the attempt that took it or in one that completed the
    stop, which has no base. A savepoint that was carried to another storage is not known to be.
    """
    if manifest.job_id != job_id or manifest.kind not in STOP_KINDS:
        return False
    try:
        finished = store.read(JobLayout(job_id).finished)
    except PathNotFoundError:
        return False
    if not finished.isdigit():
        return False  # An older Weir did not note the attempt.
    return not any(manifest.attempt < attempt <= int(finished) for attempt in bases)


def is_origin_over(
    request: RestoreRequest,
    state: StoredState,
    stores: Sequence[CheckpointStore] = (),
    open_store: OpenStore = store_for,
) -> bool:
    """Whether the job that took the checkpoint is over; False also where that is unknown.

    The end is recorded in that job's storage, which is looked for where the checkpoint is, where it
    was taken, and in ``stores``.

    Raises:
        StorageError: A storage failed.
    """
    if request.origin_is_over:
        return True
    places = (state.storage, state.manifest.location or "")
    roots = {storage_of_savepoint(place) for place in places}
    if request.job_id is not None:
        roots.add(request.storage)
    others = [open_store(root) for root in roots if root is not None]
    return any(is_over(one, state.manifest.job_id) for one in (*stores, *others))


def _usable(stored: StoredCheckpoint) -> Manifest | None:
    if isinstance(stored.error, PathNotFoundError):
        return None  # Discarded by retention since it was listed.
    if stored.error is not None:
        raise stored.error
    return _manifest_of(stored)


def _manifest_of(stored: StoredCheckpoint) -> Manifest | None:
    return stored.manifest if isinstance(stored.manifest, Manifest) else None


def _assign(graph: ExecutionGraph, config: JobConfig, manifest: Manifest | None) -> RestorePlan:
    handles: dict[OperatorId, dict[int, tuple[StateHandle, ...]]] = defaultdict(dict)
    for ack in manifest.acks if manifest else ():
        handles[ack.subtask.operator][ack.subtask.index] = ack.handles
    return plan_restore(
        [
            OperatorSnapshot(op.uid, op.parallelism, op.max_parallelism, handles[op.uid])
            for op in (manifest.operators if manifest else ())
        ],
        [
            RestoreTarget(op.uid, op.parallelism, op.max_parallelism or config.max_parallelism)
            for op in graph.graph.operators
        ],
        graph.open_exchanges,
        allow_non_restored_state=config.allow_non_restored_state,
    )
