"""What is asked of a job and takes several steps: what comes next, and how each one ends.

``advance`` folds what happens to the job into an operation that is under way; the commands say what
whoever runs the control plane has to do in the same transaction. Nothing in between can be lost:
either a step and its commands are stored together, or the event comes again, and what comes again
changes nothing::

    savepoint   SAVING ─────────────────────────────────> succeeded
    stop        SAVING ──> ENDING ──────────────────────> succeeded once the job FINISHED
    rescale    [SAVING ──>] RELAUNCHING ────────────────> succeeded once the job runs again
    rollback               RELAUNCHING ─────────────────> the same
    fork       [SAVING ──>] (the other job is submitted) > succeeded

A savepoint that fails leaves the job as it is. One that was taken is kept whatever becomes of the
rest, and the error names it; so while an operation saves, not even the end of the job ends it: the
manifest may be durable already, and whoever takes checkpoints always answers. A stop whose
savepoint is durable is completed by the job's next attempt, should the one that was to end fail; so
it fails only with the job.
"""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TypeAlias, assert_never

from weir.errors import ProtocolError
from weir.protocol.elements import CheckpointKind
from weir.protocol.lifecycle import JobStatus


class OperationKind(StrEnum):
    """The operations that take several steps."""

    SAVEPOINT = "savepoint"
    STOP = "stop"
    RESCALE = "rescale"
    ROLLBACK = "rollback"
    FORK = "fork"


class Phase(StrEnum):
    """What an operation that is under way waits for."""

    ACCEPTED = "accepted"  # To be begun.
    SAVING = "saving"  # The checkpoint or savepoint that it asked for.
    ENDING = "ending"  # The job's end.
    RELAUNCHING = "relaunching"  # The job's running again, under its next driver.
    DONE = "done"  # Nothing any more.


@dataclass(frozen=True, slots=True)
class OperationState:
    """Where one operation stands."""

    kind: OperationKind
    phase: Phase = Phase.ACCEPTED
    drains: bool = False  # Stop: whether sources end and windows close first.
    restore: str | None = None  # Rollback, fork: the URI to go on from. None: taken first.
    saved: str | None = None  # The URI of the savepoint or checkpoint that it took.
    ended: JobStatus | None = None  # How the job ended while this saved,
    cause: str = ""  # and why.


# What happens.


@dataclass(frozen=True, slots=True)
class Begun:
    """The operation was accepted; ``is_running`` says whether the job runs."""

    is_running: bool


@dataclass(frozen=True, slots=True)
class Saved:
    """The checkpoint or savepoint that it asked for completed."""

    uri: str


@dataclass(frozen=True, slots=True)
class NotSaved:
    """It was refused or aborted."""

    error: str


@dataclass(frozen=True, slots=True)
class JobReached:
    """The job reached a status; the operation's own relaunch has happened before."""

    status: JobStatus
    cause: str = ""


@dataclass(frozen=True, slots=True)
class OutOfTime:
    """The deadline passed, or a later operation made this one pointless."""

    error: str


OperationEvent: TypeAlias = Begun | Saved | NotSaved | JobReached | OutOfTime


# What to do.


@dataclass(frozen=True, slots=True)
class Save:
    """Ask the coordinator for a checkpoint or savepoint with the operation's id."""

    kind: CheckpointKind


@dataclass(frozen=True, slots=True)
class Relaunch:
    """End the job's driver and request its next one.

    ``restore`` None: from the newest checkpoint; else the job goes back to, or on from, that one.
    """

    restore: str | None


@dataclass(frozen=True, slots=True)
class SubmitFork:
    """Submit the other job, which begins with this savepoint."""

    restore: str


@dataclass(frozen=True, slots=True)
class Succeed:
    """The operation is done."""

    saved: str | None


@dataclass(frozen=True, slots=True)
class Fail:
    """The operation came to nothing, or not to all of it."""

    error: str


OperationCommand: TypeAlias = Save | Relaunch | SubmitFork | Succeed | Fail


@dataclass(frozen=True, slots=True)
class OperationStep:
    """What one event led to."""

    state: OperationState
    commands: tuple[OperationCommand, ...] = ()


_ENDS = frozenset({JobStatus.FINISHED, JobStatus.FAILED, JobStatus.CANCELED})
_STOPS = {False: CheckpointKind.STOP_SUSPEND, True: CheckpointKind.STOP_DRAIN}


def advance(state: OperationState, event: OperationEvent) -> OperationStep:
    """Fold one event into an operation.

    Raises:
        ProtocolError: A savepoint came to an operation that had asked for none, or a rollback was
            begun that goes back to nothing.
    """
    if state.phase is Phase.DONE:
        return OperationStep(state)
    match event:
        case Begun(is_running):
            return _begin(state, is_running=is_running)
        case Saved(uri):
            return _saved(state, uri)
        case NotSaved(error):
            _check_saving(state)
            return _fail(state, error)
        case JobReached(status, cause):
            return _reached(state, status, cause)
        case OutOfTime(error):
            return _fail(state, error)
        case _:
            assert_never(event)


def _begin(state: OperationState, *, is_running: bool) -> OperationStep:
    if state.phase is not Phase.ACCEPTED:
        return OperationStep(state)
    match state.kind:
        case OperationKind.SAVEPOINT:
            return _save(state, CheckpointKind.SAVEPOINT)
        case OperationKind.STOP:
            return _save(state, _STOPS[state.drains])
        case OperationKind.ROLLBACK if state.restore is None:
            raise ProtocolError("a rollback needs something to go back to")
        case OperationKind.ROLLBACK:
            return _relaunch(state, state.restore)
        case OperationKind.RESCALE if is_running:
            return _save(state, CheckpointKind.CHECKPOINT)
        case OperationKind.RESCALE:
            return _relaunch(state, None)
        case OperationKind.FORK if state.restore is not None:
            return _fork(state, state.restore)
        case OperationKind.FORK:
            return _save(state, CheckpointKind.SAVEPOINT)
        case _:
            assert_never(state.kind)


def _saved(state: OperationState, uri: str) -> OperationStep:
    if state.saved == uri:
        return OperationStep(state)
    _check_saving(state)
    state = replace(state, saved=uri)
    match state.kind:
        case OperationKind.SAVEPOINT:
            return _succeed(state)
        case OperationKind.FORK:
            return _fork(state, uri)
        case OperationKind.STOP if state.ended is None:
            return OperationStep(replace(state, phase=Phase.ENDING))
        case OperationKind.STOP if state.ended is JobStatus.FINISHED:
            return _succeed(state)
        case OperationKind.RESCALE if state.ended is None:
            return _relaunch(state, None)
        case _:
            assert state.ended is not None, f"a {state.kind} does not save"
            return _fail(state, _told(state.ended, state.cause))


def _reached(state: OperationState, status: JobStatus, cause: str) -> OperationStep:
    match state.phase, status:
        case Phase.RELAUNCHING, JobStatus.RUNNING | JobStatus.FINISHED:
            return _succeed(state)
        case Phase.ENDING, JobStatus.FINISHED:
            return _succeed(state)
        case Phase.SAVING, _ if status in _ENDS and state.ended is None:
            return OperationStep(replace(state, ended=status, cause=cause))
        case Phase.SAVING, _:
            return OperationStep(state)
        case _ if status in _ENDS:
            return _fail(state, _told(status, cause))
        case _:
            return OperationStep(state)  # On its way.


def _save(state: OperationState, kind: CheckpointKind) -> OperationStep:
    return OperationStep(replace(state, phase=Phase.SAVING), (Save(kind),))


def _relaunch(state: OperationState, restore: str | None) -> OperationStep:
    return OperationStep(replace(state, phase=Phase.RELAUNCHING), (Relaunch(restore),))


def _fork(state: OperationState, restore: str) -> OperationStep:
    return OperationStep(
        replace(state, phase=Phase.DONE), (SubmitFork(restore), Succeed(state.saved))
    )


def _succeed(state: OperationState) -> OperationStep:
    return OperationStep(replace(state, phase=Phase.DONE), (Succeed(state.saved),))


def _fail(state: OperationState, error: str) -> OperationStep:
    if state.saved is not None:
        what = "checkpoint" if state.kind is OperationKind.RESCALE else "savepoint"
        error = f"{error}; the {what} was taken and is kept: {state.saved}"
    return OperationStep(replace(state, phase=Phase.DONE), (Fail(error),))


def _told(status: JobStatus, cause: str) -> str:
    return f"the job is {status}{f': {cause}' if cause else ''}"


def _check_saving(state: OperationState) -> None:
    if state.phase is not Phase.SAVING:
        raise ProtocolError(f"a {state.kind} that is {state.phase} did not ask for a savepoint")
