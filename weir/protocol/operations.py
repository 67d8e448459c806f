"""Operations on a job that take several steps, as one state machine.

``advance`` folds an event of the job into an operation that is under way; the control plane
executes the commands in the same transaction. No step can be lost: either a step and its commands
are stored together, or the event comes again, and a repeated event changes nothing::

    savepoint   SAVING ─────────────────────────────────> succeeded
    stop        SAVING ──> ENDING ──────────────────────> succeeded once the job FINISHED
    rescale    [SAVING ──>] RELAUNCHING ────────────────> succeeded once the job runs again
    rollback               RELAUNCHING ─────────────────> the same
    upgrade    [CHECKING ──>] [SAVING ──> ENDING ──> LAUNCH_DUE ──>] RELAUNCHING ──> the same
    fork       [SAVING ──>] FORKING ────────────────────> succeeded once the other job runs

A rescale, rollback or upgrade of a job that ran leaves it no worse: where the job does not come to
run by the deadline, or fails, it is taken back to how it was, and only then the operation fails::

    RELAUNCHING ──> RETURN_DUE ──> RETURNING ──> failed, and the job runs again as before

The way back begins with a tick of its own, since the end of a job is settled first. A job that runs
after all before that tick has not failed: the operation succeeds. A user's cancellation is not
undone.

An upgrade is refused while CHECKING, before the job is touched, where a preview says that the new
pipeline could not restore the job's state. Then the job is stopped with a savepoint, so that its
old sinks commit all that they hold, and a tick launches the new pipeline from it. A stop that was
requested cannot be recalled: an upgrade whose time is over while it is SAVING waits for the answer,
and starts the job again if it was stopped.

A savepoint that fails leaves the job as it is. One that was taken is kept even if a later step
fails, and the error names it; so while an operation is SAVING, not even the end of the job ends it:
the manifest may be durable already, and the coordinator always answers. A stop whose savepoint is
durable is completed by the job's next attempt, should the one that was to end fail; so it fails
only with the job. A fork that was submitted is a job of its own: no end of its origin, and no
other operation on it, ends the operation that waits for it to run.
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
    UPGRADE = "upgrade"


class Phase(StrEnum):
    """The event that an operation under way waits for."""

    ACCEPTED = "accepted"  # To be begun.
    CHECKING = "checking"  # The judgement on the new pipeline.
    SAVING = "saving"  # The checkpoint or savepoint that it requested.
    ENDING = "ending"  # The job's end.
    LAUNCH_DUE = "launch_due"  # The tick that launches the job with its new pipeline.
    RELAUNCHING = "relaunching"  # The job to run again, under its next driver.
    FORKING = "forking"  # The other job, which was submitted, to run.
    RETURN_DUE = "return_due"  # The tick that takes the job back to how it was.
    RETURNING = "returning"  # The job to run again as it was.
    DONE = "done"  # Nothing: it succeeded or failed.


@dataclass(frozen=True, slots=True)
class Before:
    """The job as it was before an operation changed it."""

    parallelism: int | None = None  # None: as the pipeline says, as the next.
    allow_non_restored_state: bool | None = None
    checkpoint: int | None = None  # To restore; None: the newest one.


@dataclass(frozen=True, slots=True)
class OperationState:
    """The state of one operation."""

    kind: OperationKind
    phase: Phase = Phase.ACCEPTED
    drains: bool = False  # Stop: whether sources end and windows close first.
    restore: str | None = None  # Rollback, fork: the URI to restore. None: taken first.
    saved: str | None = None  # The URI of the savepoint or checkpoint that it took.
    ended: JobStatus | None = None  # The status in which the job ended during SAVING,
    cause: str = ""  # and why.
    before: Before | None = (
        None  # To take the job back to; None: it stays as the operation left it.
    )
    checks: bool = False  # Upgrade: there is a checkpoint to check the new pipeline against.
    is_checked: bool = False  # Upgrade: the new pipeline can restore the job's state.
    is_changed: bool = False  # The job was relaunched with the change.
    error: str = ""  # Why the job is taken back.
    has_returned: bool = False  # The job runs again as it was.


# Events.


@dataclass(frozen=True, slots=True)
class Begun:
    """The operation was accepted; ``is_running`` says whether the job runs."""

    is_running: bool


@dataclass(frozen=True, slots=True)
class Checked:
    """The new pipeline can restore the job's state; ``is_running`` says whether the job runs."""

    is_running: bool


@dataclass(frozen=True, slots=True)
class NotChecked:
    """The new pipeline cannot restore the job's state, or that could not be found out."""

    error: str


@dataclass(frozen=True, slots=True)
class Saved:
    """The checkpoint or savepoint that the operation requested completed."""

    uri: str


@dataclass(frozen=True, slots=True)
class NotSaved:
    """The requested checkpoint or savepoint was refused or aborted."""

    error: str


@dataclass(frozen=True, slots=True)
class JobReached:
    """The job reached a status, after the operation's own relaunch where it has one."""

    status: JobStatus
    cause: str = ""


@dataclass(frozen=True, slots=True)
class OutOfTime:
    """The deadline passed."""

    error: str


@dataclass(frozen=True, slots=True)
class Overtaken:
    """A later operation made this one pointless."""

    error: str


@dataclass(frozen=True, slots=True)
class LaunchTick:
    """The job can be launched now: changed, or as it was if it did not come to run."""


@dataclass(frozen=True, slots=True)
class ForkRuns:
    """The forked job runs, or has finished already."""


@dataclass(frozen=True, slots=True)
class ForkFailed:
    """The forked job did not come to run."""

    error: str


OperationEvent: TypeAlias = (
    Begun
    | Checked
    | NotChecked
    | Saved
    | NotSaved
    | JobReached
    | OutOfTime
    | Overtaken
    | LaunchTick
    | ForkRuns
    | ForkFailed
)


# Commands.


@dataclass(frozen=True, slots=True)
class Save:
    """Ask the coordinator for a checkpoint or savepoint with the operation's id."""

    kind: CheckpointKind


@dataclass(frozen=True, slots=True)
class Relaunch:
    """End the job's driver and request its next one.

    ``restore`` is the URI that the job restores; None: its newest checkpoint.
    """

    restore: str | None


@dataclass(frozen=True, slots=True)
class Return:
    """End the job's driver, and request its next one as before the operation.

    ``restore`` is the URI that the job restores; None: as ``before`` says.
    """

    before: Before
    error: str
    restore: str | None = None


@dataclass(frozen=True, slots=True)
class SubmitFork:
    """Submit the forked job, which begins with this savepoint."""

    restore: str


@dataclass(frozen=True, slots=True)
class Succeed:
    """The operation succeeded."""

    saved: str | None


@dataclass(frozen=True, slots=True)
class Fail:
    """The operation failed, although a savepoint may have been taken."""

    error: str


OperationCommand: TypeAlias = Save | Relaunch | Return | SubmitFork | Succeed | Fail


@dataclass(frozen=True, slots=True)
class OperationStep:
    """The outcome of one event: the next state and the commands."""

    state: OperationState
    commands: tuple[OperationCommand, ...] = ()


_ENDS = frozenset({JobStatus.FINISHED, JobStatus.FAILED, JobStatus.CANCELED})
_STOPS = {False: CheckpointKind.STOP_SUSPEND, True: CheckpointKind.STOP_DRAIN}


def advance(state: OperationState, event: OperationEvent) -> OperationStep:
    """Fold one event into an operation.

    Raises:
        ProtocolError: A savepoint came to an operation that had requested none, or a rollback began
            without a checkpoint to restore.
    """
    if state.phase is Phase.DONE:
        return OperationStep(state)
    match event:
        case Begun(is_running):
            return _begin(state, is_running=is_running)
        case Checked(is_running):
            if state.phase is not Phase.CHECKING:
                return OperationStep(state)
            return _upgrade(replace(state, is_checked=True), is_running=is_running)
        case NotChecked(error):
            return _fail(state, error) if state.phase is Phase.CHECKING else OperationStep(state)
        case Saved(uri):
            return _saved(state, uri)
        case NotSaved(error):
            _check_saving(state)
            return _fail(state, _after(state, error))
        case JobReached(status, cause):
            return _reached(state, status, cause)
        case OutOfTime(error):
            return _out_of_time(state, error)
        case Overtaken(error):
            if state.phase is Phase.FORKING:
                return OperationStep(state)
            return _fail(state, _after(state, error))
        case LaunchTick():
            return _launch(state)
        case ForkRuns():
            return _succeed(state) if state.phase is Phase.FORKING else OperationStep(state)
        case ForkFailed(error):
            return _fail(state, error) if state.phase is Phase.FORKING else OperationStep(state)
        case _:
            assert_never(event)


def _begin(state: OperationState, *, is_running: bool) -> OperationStep:
    if state.phase is not Phase.ACCEPTED:
        return OperationStep(state)
    if not is_running and state.kind is not OperationKind.UPGRADE:
        state = replace(state, before=None)  # It can become no worse.
    match state.kind:
        case OperationKind.SAVEPOINT:
            return _save(state, CheckpointKind.SAVEPOINT)
        case OperationKind.STOP:
            return _save(state, _STOPS[state.drains])
        case OperationKind.ROLLBACK if state.restore is None:
            raise ProtocolError("a rollback needs a checkpoint or savepoint to restore")
        case OperationKind.ROLLBACK:
            return _relaunch(state, state.restore)
        case OperationKind.RESCALE if is_running:
            return _save(state, CheckpointKind.CHECKPOINT)
        case OperationKind.RESCALE:
            return _relaunch(state, None)
        case OperationKind.UPGRADE if state.checks:
            return OperationStep(replace(state, phase=Phase.CHECKING))
        case OperationKind.UPGRADE:
            return _upgrade(state, is_running=is_running)
        case OperationKind.FORK if state.restore is not None:
            return _fork(state, state.restore)
        case OperationKind.FORK:
            return _save(state, CheckpointKind.SAVEPOINT)
        case _:
            assert_never(state.kind)


def _upgrade(state: OperationState, *, is_running: bool) -> OperationStep:
    if is_running:
        return _save(state, CheckpointKind.STOP_SUSPEND)
    return _relaunch(state, None)


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
        case OperationKind.UPGRADE if state.ended is not JobStatus.CANCELED:
            return _stopping(state)
        case _:
            assert state.ended is not None, f"a {state.kind} does not save"
            return _fail(state, _told(state.ended, state.cause))


def _stopping(state: OperationState) -> OperationStep:
    """The step of an upgrade whose savepoint is durable: the job has ended with it, or is to."""
    if state.error:
        return _return_due(state, state.error)
    if state.ended is JobStatus.FAILED:
        told = _told(state.ended, state.cause)
        return _fail(state, told) if state.before is None else _return_due(state, told)
    phase = Phase.ENDING if state.ended is None else Phase.LAUNCH_DUE
    return OperationStep(replace(state, phase=phase))


def _reached(state: OperationState, status: JobStatus, cause: str) -> OperationStep:
    is_unchanged = state.kind is OperationKind.UPGRADE and not state.is_changed
    match state.phase, status:
        case Phase.FORKING, _:
            return OperationStep(state)  # Its origin's.
        case Phase.RETURN_DUE, JobStatus.RUNNING | JobStatus.FINISHED if is_unchanged:
            return OperationStep(state)  # Its old pipeline, which was to end.
        case Phase.RELAUNCHING | Phase.RETURN_DUE, JobStatus.RUNNING | JobStatus.FINISHED:
            return _succeed(state)
        case Phase.RELAUNCHING | Phase.ENDING, JobStatus.FAILED if state.before is not None:
            return _return_due(state, _told(status, cause))
        case Phase.RETURN_DUE, JobStatus.FAILED:
            return OperationStep(state)
        case Phase.RETURNING, JobStatus.RUNNING:
            returned = replace(state, has_returned=True)
            return _fail(returned, f"{state.error}; the job runs again as before")
        case Phase.RETURN_DUE, _ if status in _ENDS:
            return _fail(state, f"{state.error}; then {_told(status, cause)}")
        case Phase.RETURNING, _ if status in _ENDS:
            ended = _told(status, cause)
            return _fail(state, f"{state.error}; it was started again as before, then {ended}")
        case Phase.ENDING, JobStatus.FINISHED if state.kind is OperationKind.UPGRADE:
            return OperationStep(replace(state, phase=Phase.LAUNCH_DUE))
        case Phase.LAUNCH_DUE, JobStatus.FINISHED:
            return OperationStep(state)
        case Phase.ENDING, JobStatus.FINISHED:
            return _succeed(state)
        case Phase.SAVING, _ if status in _ENDS and state.ended is None:
            return OperationStep(replace(state, ended=status, cause=cause))
        case Phase.SAVING, _:
            return OperationStep(state)
        case _ if status in _ENDS:
            return _fail(state, _told(status, cause))
        case _:
            return OperationStep(state)  # An intermediate status.


def _save(state: OperationState, kind: CheckpointKind) -> OperationStep:
    return OperationStep(replace(state, phase=Phase.SAVING), (Save(kind),))


def _relaunch(state: OperationState, restore: str | None) -> OperationStep:
    changed = replace(state, phase=Phase.RELAUNCHING, is_changed=True)
    return OperationStep(changed, (Relaunch(restore),))


def _out_of_time(state: OperationState, error: str) -> OperationStep:
    match state.phase:
        case Phase.SAVING if _may_stop(state) and not state.error:
            return OperationStep(replace(state, error=error))
        case Phase.ENDING | Phase.LAUNCH_DUE | Phase.RELAUNCHING if state.before is not None:
            return _return_due(state, error)
        case Phase.RETURN_DUE:
            return _fail(state, f"{state.error}; the job could not be taken back to how it was")
        case Phase.RETURNING:
            said = "it was started again as before, and does not run yet"
            return _fail(state, f"{state.error}; {said}")
        case _:
            return _fail(state, _after(state, error))


def _may_stop(state: OperationState) -> bool:
    """Whether a savepoint that completes later would stop the job, and it is to run again then."""
    return state.kind is OperationKind.UPGRADE and state.before is not None


def _return_due(state: OperationState, error: str) -> OperationStep:
    return OperationStep(replace(state, phase=Phase.RETURN_DUE, error=error))


def _launch(state: OperationState) -> OperationStep:
    if state.phase is Phase.LAUNCH_DUE:
        return _relaunch(state, state.saved)
    if state.phase is not Phase.RETURN_DUE or state.before is None:
        return OperationStep(state)
    restore = state.saved if state.kind is OperationKind.UPGRADE else None
    command = Return(state.before, state.error, restore)
    return OperationStep(replace(state, phase=Phase.RETURNING), (command,))


def _fork(state: OperationState, restore: str) -> OperationStep:
    return OperationStep(replace(state, phase=Phase.FORKING), (SubmitFork(restore),))


def _succeed(state: OperationState) -> OperationStep:
    return OperationStep(replace(state, phase=Phase.DONE), (Succeed(state.saved),))


def _fail(state: OperationState, error: str) -> OperationStep:
    if state.saved is not None:
        what = "checkpoint" if state.kind is OperationKind.RESCALE else "savepoint"
        error = f"{error}; the {what} was taken and is kept: {state.saved}"
    return OperationStep(replace(state, phase=Phase.DONE), (Fail(error),))


def _after(state: OperationState, error: str) -> str:
    return f"{state.error}; {error}" if state.error else error


def _told(status: JobStatus, cause: str) -> str:
    return f"the job is {status}{f': {cause}' if cause else ''}"


def _check_saving(state: OperationState) -> None:
    if state.phase is not Phase.SAVING:
        raise ProtocolError(f"a {state.kind} that is {state.phase} did not request a savepoint")
