"""Which checkpoint the next attempt starts from, and what each subtask gets of it.

Without a request it is the newest completed checkpoint of the job whose files are all whole; one
that is not is passed over, and the user is told. A checkpoint that was asked for by name is taken
or nothing is. No checkpoint at all means the beginning; checkpoints none of which is whole mean
failure, because starting over in silence would count everything twice downstream.
"""

import re
from collections import defaultdict
from dataclasses import dataclass
from urllib.parse import unquote

from weir.config import JobConfig
from weir.errors import CorruptStateError, RestoreError
from weir.graph.physical import ExecutionGraph
from weir.ids import AttemptNumber, CheckpointId, JobId, OperatorId, StateHandle
from weir.protocol.deployment import OperatorRestore
from weir.protocol.messages import CheckpointsRestored
from weir.protocol.pending import SAVEPOINT_KINDS, CompletedCheckpoint
from weir.protocol.restore import OperatorSnapshot, RestorePlan, RestoreTarget, plan_restore
from weir.storage.layout import JobLayout
from weir.storage.manifest import (
    Manifest,
    StoredCheckpoint,
    find_jobs,
    list_checkpoints,
    load,
    verify,
)
from weir.storage.store import CheckpointStore, NotFoundError, store_for

_CHECKPOINT_URI = re.compile(r"(?P<root>.*)/(?P<job>[^/]+)/chk-(?P<id>\d+)/?")


@dataclass(frozen=True, slots=True)
class RestoreRequest:
    """A checkpoint that somebody named: where it lies, whose it is, its number."""

    storage: str
    job_id: JobId
    checkpoint_id: CheckpointId

    @classmethod
    def parse(cls, uri: str) -> "RestoreRequest":
        """Read ``<storage>/<job>/chk-<n>``.

        Raises:
            RestoreError: It is no such path.
        """
        found = _CHECKPOINT_URI.fullmatch(uri)
        if found is None:
            raise RestoreError(
                f"{uri!r} names no checkpoint; give latest, or a path such as "
                "<storage>/<job>/chk-7 (`weir checkpoints <storage>` lists them)"
            )
        return cls(found["root"], JobId(unquote(found["job"])), CheckpointId(int(found["id"])))


@dataclass(frozen=True, slots=True)
class RestoreChoice:
    """What an attempt starts from; ``manifest`` None means the beginning."""

    plan: RestorePlan
    manifest: Manifest | None = None
    storage: str | None = None  # Where the state files are; None: the job's own storage.
    directory: str = ""  # And in which directory of that.
    notes: tuple[str, ...] = ()  # What the user should know of the choice.

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


def latest_job(store: CheckpointStore, name: str) -> JobId:
    """The job of this name that completed a checkpoint last.

    Raises:
        RestoreError: There is none.
    """
    jobs = find_jobs(store, name)
    if not jobs:
        raise RestoreError(
            f"the checkpoint storage holds no completed checkpoint of a job named {name!r}; "
            "check --storage and the job's name, or start without --restore"
        )
    return jobs[0]


def choose_restore(
    store: CheckpointStore,
    job_id: JobId,
    graph: ExecutionGraph,
    config: JobConfig,
    requested: RestoreRequest | None,
) -> RestoreChoice:
    """Choose the checkpoint and assign its state; reads every file of it once to see it whole.

    Raises:
        RestoreError: The checkpoint asked for is not there or does not fit the job.
        CorruptStateError: It is damaged; or the job has checkpoints, and all of them are.
        StorageError: The storage failed.
    """
    if requested is not None:
        return _requested(graph, config, requested)
    passed_over: dict[CheckpointId, str] = {}
    usable: list[Manifest] = []
    for stored in list_checkpoints(store, job_id):
        try:
            manifest = _usable(stored)
        except CorruptStateError as error:
            passed_over[stored.checkpoint_id] = str(error)
            continue
        if manifest is not None:
            usable.append(manifest)
    abandoned = _abandoned(store, job_id, usable)
    usable = [manifest for manifest in usable if manifest.checkpoint_id not in abandoned]
    for manifest in sorted(usable, key=lambda m: (m.attempt, m.checkpoint_id), reverse=True):
        try:
            verify(store, manifest)
        except CorruptStateError as error:
            passed_over[manifest.checkpoint_id] = str(error)
            continue
        notes = tuple(
            f"checkpoint {checkpoint_id} is passed over: {problem}"
            for checkpoint_id, problem in sorted(passed_over.items(), reverse=True)
            if checkpoint_id > manifest.checkpoint_id
        )
        directory = JobLayout(job_id).directory
        plan = _assign(graph, config, manifest)
        return RestoreChoice(plan, manifest, directory=directory, notes=notes)
    if passed_over:
        raise CorruptStateError(
            "the job has checkpoints, but none of them is whole: "
            + "; ".join(f"checkpoint {n}: {problem}" for n, problem in passed_over.items())
        )
    if store.exists(JobLayout(job_id).finished):
        raise RestoreError(
            f"job {job_id} has finished: its output is complete and its checkpoints are deleted. "
            "Start it without --restore to run it anew"
        )
    return RestoreChoice(_assign(graph, config, None))


def record_base(
    store: CheckpointStore, job_id: JobId, attempt: AttemptNumber, choice: RestoreChoice
) -> None:
    """Note what an attempt goes on from, before anything acts on it."""
    own = choice.manifest is not None and choice.manifest.job_id == job_id
    store.put(JobLayout(job_id).base(attempt, choice.checkpoint_id if own else None), b"")


def _abandoned(
    store: CheckpointStore, job_id: JobId, manifests: list[Manifest]
) -> set[CheckpointId]:
    """Checkpoints behind which a later attempt went back.

    A driver that was replaced may complete a checkpoint when its successor has gone on from the one
    before; and somebody may have asked for an older one. The successor's sinks have then removed or
    withdrawn the files that such a checkpoint counts on.
    """
    layout = JobLayout(job_id)
    bases = [layout.base_of(path) for path in store.list(layout.bases)]
    return {
        manifest.checkpoint_id
        for manifest in manifests
        if any(n > manifest.attempt and base < manifest.checkpoint_id for n, base in bases)
    }


def _requested(graph: ExecutionGraph, config: JobConfig, request: RestoreRequest) -> RestoreChoice:
    store = store_for(request.storage)
    path = JobLayout(request.job_id).manifest(request.checkpoint_id)
    if not store.exists(path):
        raise RestoreError(
            f"there is no checkpoint {request.checkpoint_id} of job {request.job_id} in "
            f"{request.storage}; `weir checkpoints {request.storage}` lists what there is"
        )
    manifest = load(store.read(path), path)
    if not isinstance(manifest, Manifest):
        raise RestoreError(f"checkpoint {request.checkpoint_id} was given up: {manifest.reason}")
    verify(store, manifest)
    return RestoreChoice(
        _assign(graph, config, manifest),
        manifest,
        storage=request.storage,
        directory=JobLayout(request.job_id).directory,
    )


def _usable(stored: StoredCheckpoint) -> Manifest | None:
    if isinstance(stored.error, NotFoundError):
        return None  # Let go by retention since it was listed.
    if stored.error is not None:
        raise stored.error
    manifest = _manifest_of(stored)
    return None if manifest is None or manifest.kind in SAVEPOINT_KINDS else manifest


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
