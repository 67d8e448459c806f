"""The compatibility preview: the effects of a restore, determined without restoring.

It uses the restore's own code. The state is assigned by ``plan_restore``; each operator is created
by its factory and opened, as subtask 0, on a state store into which every stored file was restored
without its rows; ``weir.state.evolution`` decides about every state that is declared meanwhile. So
all problems for which a restore would be refused are found here, in the same words, and all of them
rather than the first.

Nothing is written, sent or delivered. Sources and sinks are not opened, since opening one may
create files or connections: their declarations come from ``Operator.declare``. A user's function
that has side effects in ``open`` has them here as well. State that a program declares only while it
processes cannot be known: state of that name is kept unchanged until then.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import TypeAlias

from weir.common.batch import Batch
from weir.common.clock import SystemClock
from weir.config import JobConfig
from weir.datastream.execution import CapturedJob, ExecutionOptions, capturing, overriding
from weir.errors import CorruptStateError, RestoreError, UserError, WeirError
from weir.graph.key_groups import key_group_range
from weir.graph.logical import JobGraph, Operator
from weir.graph.physical import ExecutionGraph
from weir.ids import AttemptNumber, JobId, OperatorId, StateHandle, SubtaskId
from weir.operators.base import Operator as RunningOperator
from weir.operators.base import OperatorContext
from weir.operators.user_code import RAISED, named
from weir.output.waiting import Fate, sentences, waiting_output
from weir.protocol.deployment import RestoredHandle
from weir.protocol.restore import OperatorSnapshot, RestoreTarget, plan_restore
from weir.state.evolution import Declaration, Judge, Verdict
from weir.state.state_files import read_head
from weir.state.store import OperatorStateStore
from weir.storage.layout import within
from weir.storage.manifest import Manifest, OperatorSummary, read_handle
from weir.storage.store import CheckpointStore, PathNotFoundError
from weir.storage.writer import load_items
from weir.tools.pipeline_scripts import no_job_ran, run_pipeline

NOT_DECLARED = "not declared when the operator was opened; it is kept unchanged"
NOT_OPENED = "the operator was not opened; it is kept under its name"


class OperatorVerdict(StrEnum):
    """The fate of an operator in a restore."""

    KEPT = "kept"
    RESCALED = "rescaled"
    NEW = "new"
    DROPPED = "dropped"


class StateVerdict(StrEnum):
    """The fate of an operator's state in a restore."""

    KEPT = "kept"
    NEW = "new"
    CHANGED = "changed"  # Converted: the types differ, and can be mapped.
    UNMAPPABLE = "unmappable"
    DROPPED = "dropped"


@dataclass(frozen=True, slots=True)
class StatePreview:
    """One state of an operator.

    Units: ``size`` in bytes, of all its handles.
    """

    name: str
    form: str  # value, list, map, reducing, aggregating, table, timers, split, union, broadcast.
    verdict: StateVerdict
    stored: str | None = None  # Its type in the checkpoint.
    declared: str | None = None  # Its type in the program, where that is known.
    changes: tuple[str, ...] = ()
    note: str = ""
    size: int = 0


@dataclass(frozen=True, slots=True)
class OperatorPreview:
    """One operator of the checkpoint, the program or both; parallelism None: not in that one."""

    uid: str
    name: str
    verdict: OperatorVerdict
    stored_parallelism: int | None = None
    parallelism: int | None = None
    stored_max_parallelism: int | None = None
    max_parallelism: int | None = None
    is_source: bool = False
    splits: int | None = None  # Of a source: its unfinished ones.
    states: tuple[StatePreview, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CompatibilityPreview:
    """The effects of restoring a program from a checkpoint."""

    uri: str
    would_restore: bool
    problems: tuple[str, ...] = ()  # Why not, in the words of the restore.
    job_id: str | None = None  # The job that took the checkpoint; None: it cannot be read.
    job_name: str | None = None
    checkpoint_id: int | None = None
    kind: str | None = None
    operators: tuple[OperatorPreview, ...] = ()
    notes: tuple[str, ...] = ()


def capture_pipeline(
    name: str,
    script: Path | None,
    options: ExecutionOptions,
    *,
    explain: Callable[[Exception], None],
    arguments: Sequence[str] = (),
) -> list[CapturedJob]:
    """The jobs that a script or module would run with these arguments of its own.

    ``explain`` is called with an exception that the script raised after a job, perhaps for lack of
    the job's result.

    Raises:
        UserError: The script runs no job.
        SystemExit: The script ended itself before its first job.
        Exception: Raised by the script before its first job.
    """
    with overriding(options), capturing() as capture:
        try:
            run_pipeline(name, script, arguments)
        except SystemExit:
            if not capture.jobs:
                raise
        except Exception as error:
            if not capture.jobs:
                raise
            explain(error)
    if not capture.jobs:
        raise UserError(no_job_ran(name))
    return capture.jobs


def choose_job(jobs: Sequence[CapturedJob], manifest: Manifest | None) -> CapturedJob:
    """The job of a script that a checkpoint belongs to, by its name.

    Raises:
        UserError: Not exactly one job has that name.
    """
    if len(jobs) == 1:
        return jobs[0]
    named = [job for job in jobs if manifest is not None and job.config.name == manifest.job_name]
    if len(named) == 1:
        return named[0]
    names = ", ".join(repr(job.config.name) for job in jobs)
    raise UserError(
        f"the script runs several jobs, {names}, and not exactly one of them has the name of the "
        "checkpoint's job; give each job a name of its own in env.execute(name)"
    )


def preview_restore(
    graph: JobGraph,
    config: JobConfig,
    manifest: Manifest,
    *,
    uri: str,
    store: CheckpointStore,
    directory: str,
    problems: Iterable[str] = (),
    origin_is_over: bool = False,
) -> CompatibilityPreview:
    """The effects of restoring this program from a checkpoint.

    Args:
        store: The storage of the checkpoint's state files, below ``directory``.
        problems: Known problems of the checkpoint itself.
        origin_is_over: Whether the job that took it is known to be over.

    Raises:
        StorageError: The storage failed.
    """
    whole = _Preview(graph, config, manifest, store, directory)
    whole.problems += problems
    operators = whole.operators()
    waiting = waiting_output(manifest, store, directory)
    fate = Fate.ASKED_OVER if origin_is_over else Fate.ASKED
    uids = {op.uid for op in graph.operators}
    return CompatibilityPreview(
        uri=uri,
        would_restore=not whole.problems,
        problems=tuple(whole.problems),
        job_id=manifest.job_id,
        job_name=manifest.job_name,
        checkpoint_id=manifest.checkpoint_id,
        kind=str(manifest.kind),
        operators=operators,
        notes=tuple(sentences(manifest, waiting, fate, uids)),
    )


def refused(uri: str, error: WeirError) -> CompatibilityPreview:
    """The preview of a restore from a checkpoint that cannot be restored at all."""
    return CompatibilityPreview(uri=uri, would_restore=False, problems=(str(error),))


def snapshots_of(manifest: Manifest) -> list[OperatorSnapshot]:
    """The state of a checkpoint, by operator."""
    handles: dict[OperatorId, dict[int, tuple[StateHandle, ...]]] = defaultdict(dict)
    for ack in manifest.acks:
        handles[ack.subtask.operator][ack.subtask.index] = ack.handles
    return [
        OperatorSnapshot(op.uid, op.parallelism, op.max_parallelism, handles[op.uid])
        for op in manifest.operators
    ]


_Key: TypeAlias = tuple[str, str]  # A group of forms, and the name of a state among them.


@dataclass(slots=True)
class _Held:
    """A state that the checkpoint holds of an operator."""

    name: str
    form: str
    types: list[str] = field(default_factory=list)  # More than one where subtasks differ.
    size: int = 0
    # Keyed state without its rows, once per type, and a handle of each.
    heads: dict[bytes, StateHandle] = field(default_factory=dict)
    problem: str | None = None  # Why it cannot be restored by any program.

    @property
    def shown(self) -> str:
        """Its type, or its several types."""
        return " and ".join(self.types)

    def dropped(self, note: str = "") -> StatePreview:
        """The preview of this state if it is dropped."""
        return StatePreview(
            self.name, self.form, StateVerdict.DROPPED, self.shown, note=note, size=self.size
        )

    def judged(
        self, declarations: Sequence[Declaration], undeclared: str, *, is_keyed: bool
    ) -> StatePreview:
        """The preview of this state; ``undeclared`` is its note if it was not declared."""
        if _group(self.form) != "operator" and not is_keyed:
            return self.dropped("the operator's stream has no key any more")
        verdicts = {declaration.evolution.verdict for declaration in declarations}
        verdict, note = StateVerdict.KEPT, "" if declarations else undeclared
        if self.problem is not None or Verdict.UNMAPPABLE in verdicts:
            verdict, note = StateVerdict.UNMAPPABLE, self.problem or ""
        elif Verdict.CHANGED in verdicts:
            verdict = StateVerdict.CHANGED
        changes = [text for one in declarations for text in one.evolution.differences]
        return StatePreview(
            self.name,
            self.form,
            verdict,
            self.shown,
            declarations[0].declared if declarations else None,
            tuple(dict.fromkeys(changes)),
            note,
            self.size,
        )


class _Preview:
    """One preview under way: visits one operator after the other, and collects the problems."""

    def __init__(
        self,
        graph: JobGraph,
        config: JobConfig,
        manifest: Manifest,
        store: CheckpointStore,
        directory: str,
    ) -> None:
        self.problems: list[str] = []
        self._graph = graph
        self._exchanges = ExecutionGraph(graph).open_exchanges
        self._config = config
        self._store = store
        self._directory = directory
        self._summaries = {op.uid: op for op in manifest.operators}
        self._snapshots = {snapshot.operator: snapshot for snapshot in snapshots_of(manifest)}
        self._targets = {
            op.uid: RestoreTarget(
                op.uid, op.parallelism, op.max_parallelism or config.max_parallelism
            )
            for op in graph.operators
        }

    def operators(self) -> tuple[OperatorPreview, ...]:
        """All operators: those of the program in its order, then those that it no longer has."""
        self._check_plan()
        here = [self._operator(op) for op in self._graph.operators]
        gone = [self._gone(op) for uid, op in self._summaries.items() if uid not in self._targets]
        return (*here, *gone)

    def _check_plan(self) -> None:
        """Record all reasons why the state cannot be assigned."""
        snapshots, targets = self._snapshots.values(), self._targets.values()
        allowed = self._config.allow_non_restored_state
        self._plan_problem(snapshots, targets, allow=allowed)
        self._plan_problem(snapshots, targets, allow=True)
        for uid in self._snapshots.keys() & self._targets.keys():
            # In-flight data concerns all operators together.
            alone = _without_channels(self._snapshots[uid])
            self._plan_problem([alone], [self._targets[uid]], allow=True)

    def _plan_problem(
        self,
        snapshots: Iterable[OperatorSnapshot],
        targets: Iterable[RestoreTarget],
        *,
        allow: bool,
    ) -> None:
        try:
            plan_restore(snapshots, targets, self._exchanges, allow_non_restored_state=allow)
        except RestoreError as error:
            self._problem(str(error))

    def _problem(self, text: str) -> None:
        if text not in self.problems:
            self.problems.append(text)

    def _operator(self, op: Operator) -> OperatorPreview:
        stored = self._summaries.get(op.uid)
        held = self._held(op.uid)
        pieces, groups = self._assigned(op, held)
        declared: list[Declaration] = []
        notes: list[str] = []
        state = self._state_store(op, groups, pieces, held, declared.append)
        undeclared = NOT_OPENED
        if state is not None:
            undeclared = self._declare(op, state, groups, notes)
        verdict = OperatorVerdict.NEW
        if stored is not None:
            is_same = stored.parallelism == op.parallelism
            verdict = OperatorVerdict.KEPT if is_same else OperatorVerdict.RESCALED
        return OperatorPreview(
            op.uid,
            op.name,
            verdict,
            stored_parallelism=None if stored is None else stored.parallelism,
            parallelism=op.parallelism,
            stored_max_parallelism=None if stored is None else stored.max_parallelism,
            max_parallelism=groups,
            is_source=op.is_source,
            splits=self._split_count(op.uid) if op.is_source and stored is not None else None,
            states=tuple(self._judged(op, held, declared, undeclared)),
            notes=tuple(notes),
        )

    def _gone(self, op: OperatorSummary) -> OperatorPreview:
        return OperatorPreview(
            op.uid,
            op.name,
            OperatorVerdict.DROPPED,
            stored_parallelism=op.parallelism,
            stored_max_parallelism=op.max_parallelism,
            is_source=op.is_source,
            states=tuple(state.dropped() for state in self._held(op.uid).values()),
        )

    # The checkpoint's state.

    def _handles(self, uid: OperatorId) -> list[StateHandle]:
        snapshot = self._snapshots.get(uid)
        if snapshot is None:
            return []
        return [handle for index in sorted(snapshot.handles) for handle in snapshot.handles[index]]

    def _held(self, uid: OperatorId) -> dict[_Key, _Held]:
        """The states that the checkpoint holds of an operator."""
        held: dict[_Key, _Held] = {}
        for handle in self._handles(uid):
            if handle.kind == "channel":
                continue
            if handle.kind == "operator":
                assert handle.mode is not None, "plan_restore refuses such a handle"
                one = _Held(handle.name, handle.mode)
                types = f"{handle.mode} state"
            else:
                try:
                    head = read_head(self._reader(handle))
                except (RestoreError, CorruptStateError) as error:
                    self._problem(str(error))
                    one, types = _Held(handle.name, handle.kind, problem=str(error)), ""
                else:
                    one, types = _Held(head.name, head.kind), head.types
                    one.heads[head.empty] = handle
            state = held.setdefault((_group(one.form), one.name), one)
            state.size += handle.size
            for empty, example in one.heads.items():
                state.heads.setdefault(empty, example)
            if types and types not in state.types:
                state.types.append(types)
        return held

    def _assigned(
        self, op: Operator, held: Mapping[_Key, _Held]
    ) -> tuple[list[tuple[RestoredHandle, bytes]], int]:
        """The handles to restore before the operator is opened, with bytes; its max parallelism.

        All keyed state, without rows; of operator state the handles of subtask 0.
        """
        snapshot, target = self._snapshots.get(op.uid), self._targets[op.uid]
        alone = [] if snapshot is None else [_without_channels(snapshot)]
        try:
            plan = plan_restore(alone, [target])
        except RestoreError:  # Recorded already; the operator's declarations are still compared.
            plan = plan_restore(alone, [RestoreTarget(op.uid, alone[0].parallelism)])
        pieces = [
            (RestoredHandle(handle), empty)
            for state in held.values()
            for empty, handle in state.heads.items()
        ]
        for restore in plan.restores:
            if restore.subtask.index == 0:
                for piece in restore.handles:
                    if piece.handle.kind == "operator":
                        try:
                            pieces.append((piece, self._read(piece.handle)))
                        except CorruptStateError as error:
                            self._problem(str(error))
        return pieces, plan.max_parallelism[op.uid]

    def _split_count(self, uid: OperatorId) -> int:
        """The number of splits that a source had not finished."""
        count = 0
        for handle in self._handles(uid):
            if handle.mode == "split":
                try:
                    count += len(load_items(self._read(handle)))
                except CorruptStateError as error:
                    self._problem(str(error))
        return count

    def _read(self, handle: StateHandle) -> bytes:
        return read_handle(self._store, self._directory, handle)

    def _reader(self, handle: StateHandle) -> Callable[[int, int], bytes]:
        """A function that reads parts of a handle's bytes."""

        def read(start: int, length: int) -> bytes:
            if handle.inline is not None:
                return handle.inline[start : start + length]
            if handle.path is None:
                raise CorruptStateError(f"state {handle.name} has neither a path nor bytes")
            path = within(self._directory, handle.path)
            try:
                return self._store.read_range(path, start, length)
            except PathNotFoundError as cause:
                raise CorruptStateError(f"{path} cannot be used: it is missing") from cause

        return read

    # The program's declarations.

    def _state_store(
        self,
        op: Operator,
        groups: int,
        pieces: Iterable[tuple[RestoredHandle, bytes]],
        held: Mapping[_Key, _Held],
        judge: Judge,
    ) -> OperatorStateStore | None:
        """The state store of subtask 0, restored without rows; None where handles contradict."""
        data = {piece.handle: content for piece, content in pieces}

        def restored(handles: Iterable[RestoredHandle]) -> OperatorStateStore:
            return OperatorStateStore(
                key_group_range(groups, min(op.parallelism, groups), 0),
                groups,
                keyed=op.keyed,
                restored=handles,
                read=data.__getitem__,
                allow_pickled_state=self._config.allow_pickled_state,
                operator=op.uid,
                allow_non_restored_state=self._config.allow_non_restored_state,
                judge=judge,
            )

        good: list[RestoredHandle] = []
        for piece, content in pieces:
            try:
                restored([piece])
            except (RestoreError, CorruptStateError) as error:
                self._problem(str(error))
                for state in held.values():
                    if content in state.heads:
                        state.problem = str(error)
            else:
                good.append(piece)
        try:
            return restored(good)
        except (RestoreError, CorruptStateError) as error:
            self._problem(str(error))
            return None

    def _declare(
        self, op: Operator, state: OperatorStateStore, groups: int, notes: list[str]
    ) -> str:
        """Let the operator declare its state; returns the note for states that it did not."""
        opened: RunningOperator | None = None
        try:
            made: RunningOperator = op.factory()
            if made.declare is not None:
                made.declare(state)
            elif op.is_source or op.is_sink:
                return NOT_OPENED
            else:
                opened = made
                made.open(self._context(op, state, groups))
        except WeirError as error:
            self._problem(str(error))
            notes.append("the operator could not be opened")
            return NOT_OPENED
        except RAISED as error:
            self._problem(f"operator {op.uid!r} could not be opened: {named(error)}")
            notes.append("the operator could not be opened")
            return NOT_OPENED
        finally:
            if opened is not None:
                try:
                    opened.close()
                except RAISED as error:  # The restore itself would not call close().
                    notes.append(f"close() raised {named(error)}")
        return NOT_DECLARED

    def _context(self, op: Operator, state: OperatorStateStore, groups: int) -> OperatorContext:
        return OperatorContext(
            job_id=JobId("preview"),
            attempt=AttemptNumber(1),
            subtask=SubtaskId(op.uid, 0),
            name=op.name,
            parallelism=op.parallelism,
            max_parallelism=groups,
            key_groups=state.key_groups,
            output=_Nowhere(),
            state=state,
            clock=SystemClock(),
            parameters=dict(self._config.parameters),
            checkpointing=self._config.checkpoints.interval_ms is not None,
            deliver=lambda checkpoint_id, payload: None,
            on_error=op.on_error,
        )

    def _judged(
        self,
        op: Operator,
        held: Mapping[_Key, _Held],
        declared: Sequence[Declaration],
        undeclared: str,
    ) -> Iterator[StatePreview]:
        """The verdict on every state, stored or declared."""
        by_key: dict[_Key, list[Declaration]] = defaultdict(list)
        for declaration in declared:
            by_key[_group(declaration.form), declaration.name].append(declaration)
            allowed = self._config.allow_non_restored_state
            refusal = declaration.refusal(op.uid, allow_loss=allowed)
            if refusal is not None:
                self._problem(refusal)
        for key, state in held.items():
            yield state.judged(by_key.pop(key, []), undeclared, is_keyed=op.keyed)
        for one, *_ in by_key.values():
            yield StatePreview(one.name, one.form, StateVerdict.NEW, declared=one.declared)


class _Nowhere:
    """The output of an operator that is only opened."""

    def emit(self, batch: Batch) -> None:
        """Drop the records."""

    def emit_side(self, tag: str, batch: Batch) -> None:
        """Drop the records."""

    def emit_watermark(self, timestamp_ms: int) -> None:
        """Drop the watermark."""

    def emit_idle(self) -> None:
        """Drop the idleness."""


def _without_channels(snapshot: OperatorSnapshot) -> OperatorSnapshot:
    return replace(
        snapshot,
        handles={
            index: tuple(handle for handle in handles if handle.kind != "channel")
            for index, handles in snapshot.handles.items()
        },
    )


def _group(form: str) -> str:
    """The forms among which a name is unique."""
    if form in ("split", "union", "broadcast"):
        return "operator"
    return form if form in ("table", "timers") else "state"
