"""Which checkpoint the next attempt starts from, and what each subtask gets of it.

Without a request it is the newest completed checkpoint on the job's line whose files are all whole;
one that is not is passed over, and the user is told. A checkpoint that was asked for by name is
taken or nothing is. No checkpoint at all means the beginning; checkpoints none of which can be used
mean failure, because starting over in silence would count everything twice downstream.

Savepoints belong to whoever took them and are restored by name only, with two exceptions. One that
was to stop the job, and is the newest on the line, is what the job ended with: the next attempt
commits it and finishes, should the one that was to do so have failed. And one that an attempt went
on from, because it was asked to, counts as any checkpoint does.
"""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from weir.config import JobConfig
from weir.errors import CorruptStateError, RestoreError
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
    """The job is over: there is nothing to go on from, and nothing left to do."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A savepoint that the job may delete once it has enough checkpoints of its own."""

    job_id: JobId
    checkpoint_id: CheckpointId
    attempt: AttemptNumber
    location: str  # Where it was restored from.


@dataclass(frozen=True, slots=True)
class RestoreChoice:
    """What an attempt starts from; ``manifest`` None means the beginning."""

    plan: RestorePlan
    manifest: Manifest | None = None
    storage: str | None = None  # Where the state files are; None: the job's own storage.
    directory: str = ""  # And in which directory of that.
    notes: tuple[str, ...] = ()  # What the user should know of the choice.
    is_requested: bool = False  # Somebody named it.
    lineage: Lineage = UNKNOWN  # Of the manifest's checkpoint.
    rewinds_output: bool = True
    adopts: JobId | None = None  # Another job, whose waiting output is this one's to commit.
    completes_stop: bool = False  # All that is left to do is to commit it, and to finish.
    claim: Claim | None = None

    @property
    def checkpoint_id(self) -> CheckpointId | None:
        """The restored checkpoint's number."""
        return None if self.manifest is None else self.manifest.checkpoint_id

    def restores_of_slot(self, slot_index: int) -> tuple[OperatorRestore, ...]:
        """The pieces for the subtasks of one slot."""
        return tuple(r for r in self.plan.restores if r.subtask.index == slot_index)


def search(store: CheckpointStore, job_id: JobId) -> CheckpointsRestored:
    """What the storage holds of a job: its completed checkpoints and the next free number."""
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
    used = (re.match(r"/chk-(\d+)/", path[len(directory) :]) for path in store.list(directory))
    newest = max((int(found[1]) for found in used if found), default=0)
    return CheckpointsRestored(completed[::-1], CheckpointId(newest + 1))


def choose_restore(
    store: CheckpointStore,
    job_id: JobId,
    graph: ExecutionGraph,
    config: JobConfig,
    requested: RestoreRequest | None,
    open_store: OpenStore = store_for,
) -> RestoreChoice:
    """Choose the checkpoint and assign its state; reads every file of it once to see it whole.

    Raises:
        JobFinished: Nothing was asked for, and the job has finished.
        RestoreError: The checkpoint asked for is not there or does not fit the job; or there is
            none on the job's line, although it has begun.
        CorruptStateError: It is damaged; or the job has checkpoints, and all of them are.
        StorageError: The storage failed.
    """
    bases = bases_of(store, job_id)
    if requested is not None:
        return _requested(store, job_id, graph, config, requested, bases, open_store)
    if store.exists(JobLayout(job_id).finished):
        raise JobFinished(
            f"job {job_id} has finished: its output is complete and its checkpoints are deleted. "
            "Start it without --restore to run it anew, or give the path of one of its savepoints "
            "to go on from that"
        )
    line = _Line(bases)
    usable, beside, passed_over = _sorted_by_line(store, job_id, line)
    for manifest in usable:
        state = _state_of(store, job_id, manifest, open_store)
        try:
            verify(state.store, manifest, state.directory)
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
                f"the job was stopped with savepoint {manifest.checkpoint_id}, and all that is "
                "left to do is to commit it and finish",
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


def _sorted_by_line(
    store: CheckpointStore, job_id: JobId, line: "_Line"
) -> tuple[list[Manifest], list[CheckpointId], dict[CheckpointId, str]]:
    """What the job may come back to, the newest first; what lies beside its line; and what cannot
    be read, and why.
    """
    usable: list[Manifest] = []
    beside: list[CheckpointId] = []
    passed_over: dict[CheckpointId, str] = {}
    for stored in list_checkpoints(store, job_id):
        try:
            manifest = _usable(stored)
        except CorruptStateError as error:
            passed_over[stored.checkpoint_id] = str(error)
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
    """Note what an attempt goes on from, before anything acts on it; what else the storage holds.

    Numbers go on beyond all that were ever used on any line, and beyond the restored checkpoint's,
    which may be another job's: output is named by them.

    Raises:
        StorageError: The storage failed.
    """
    # Only now: a driver that this one replaces may have completed one until the claim.
    found = search(store, job_id)
    used = [base.next_id for base in bases_of(store, job_id).values()]
    restored = choice.manifest
    if restored is not None:
        used.append(CheckpointId(restored.checkpoint_id + 1))
    found = replace(found, next_id=max([found.next_id, *used]))
    if choice.completes_stop:
        return found  # Nothing goes on from it: it only ends.
    if choice.is_requested:
        store.delete(JobLayout(job_id).finished)  # It goes on after all.
    base = AttemptBase(attempt, found.next_id, rewinds_output=choice.rewinds_output)
    if restored is not None:
        base = replace(
            base,
            restored_id=restored.checkpoint_id,
            restored_attempt=restored.attempt,
            restored_job=None if restored.job_id == job_id else restored.job_id,
        )
    note_base(store, job_id, base)
    return found


def check_kept(
    store: CheckpointStore, request: RestoreRequest, choice: RestoreChoice, open_store: OpenStore
) -> None:
    """See that what was asked for was not deleted since it was chosen.

    It is called once it is noted that an attempt goes on from it, which is what a deletion looks
    for after it has left its own note: so one of the two sees the other.

    Raises:
        RestoreError: It was deleted, or another one is in its place.
        CorruptStateError: It cannot be told what is there.
        StorageError: The storage failed.
    """
    manifest = choice.manifest
    if manifest is None:
        return
    state = find_state(request, open_store)
    if state.manifest.identity != manifest.identity:
        raise RestoreError(f"{request.uri} was deleted meanwhile, and holds another savepoint now")
    if state.storage != manifest.location:
        return  # A copy: what is said of the savepoint where it was taken is not about this one.
    path = JobLayout(manifest.job_id).manifest(manifest.checkpoint_id)
    roots = {storage_of_savepoint(place) for place in (state.storage, manifest.location or "")}
    for one in (store, *(open_store(root) for root in roots if root is not None)):
        try:
            known = load(one.read(path), path)
        except PathNotFoundError:
            continue
        if isinstance(known, Tombstone) and known.attempt == manifest.attempt:
            raise RestoreError(f"{request.uri} was given up meanwhile: {known.reason}")


class _Line:
    """The line that a job is on: that of its newest attempt that went on from something.

    Beside it lies what the job went back behind; its sinks have withdrawn the files that such a
    checkpoint counts on. So does what a driver completed that was being replaced, whose successor
    had gone on from the one before.
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
        """Whether an attempt was asked to go on from this savepoint."""
        return (manifest.attempt, manifest.checkpoint_id) in self._gone_on_from

    def counts(self, manifest: Manifest) -> bool:
        """Whether the job may come back to it by itself."""
        is_copy = manifest.kind in SAVEPOINT_KINDS - STOP_KINDS
        return not is_copy or self.went_on_from(manifest)

    def rewinds_to(self, manifest: Manifest) -> bool:
        """Whether output beside the line is to be taken back: not where somebody wanted it to stay
        and nothing has completed since.
        """
        newest = self._newest
        if newest is None or newest.restored_id != manifest.checkpoint_id:
            return True
        return newest.rewinds_output or newest.restored_attempt != manifest.attempt

    def cannot_begin(self, beside: list[CheckpointId]) -> str | None:
        """Why a job without anything to go on from must not start over; None: it may."""
        newest = self._newest
        if newest is None or newest.restored_id is None:
            return None
        if newest.restored_job is not None:
            return (
                f"began with checkpoint {newest.restored_id} of job {newest.restored_job} and has "
                "completed none of its own: give that one's path again"
            )
        if not beside:
            return None  # Its checkpoints were deleted when it ended.
        return (
            f"went back to checkpoint {newest.restored_id}, which is gone, and there are only "
            f"others that it went back behind: {', '.join(map(str, sorted(beside)))}. Give the "
            "path of the one to go on from"
        )


def _state_of(
    store: CheckpointStore, job_id: JobId, manifest: Manifest, open_store: OpenStore
) -> StoredState:
    """Where the files of a checkpoint of the job are."""
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
        notes = (f"{request.uri} is no savepoint, so it is not the job's to delete",)
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
        adopts=manifest.job_id if fate in (Fate.OVER, Fate.CLAIMED) else None,
        claim=claim,
    )


def is_origin_over(
    request: RestoreRequest,
    state: StoredState,
    stores: Sequence[CheckpointStore] = (),
    open_store: OpenStore = store_for,
) -> bool:
    """Whether nothing of the job that took a checkpoint runs; False also where that is not known.

    It is noted in that job's storage, which is looked for where the checkpoint is, where it was
    taken, and in ``stores``.

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
        return None  # Let go by retention since it was listed.
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
        allow_non_restored_state=config.allow_non_restored_state,
    )
