"""The steps of an operation for its page, each done, current or still ahead. Pure.

Most steps are the phases of ``weir.protocol.operations``; the takeover by a new driver is shown as
two, which the job's status tells apart.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from controlplane.base.formatting import plural
from jobs.models import Operation, OperationKind, OperationStatus
from weir.protocol.lifecycle import JobStatus
from weir.protocol.operations import Phase


class StepState(StrEnum):
    """The state of a step."""

    DONE = "done"
    CURRENT = "current"
    AHEAD = "ahead"
    FAILED = "failed"
    SKIPPED = "skipped"


TONES = {
    StepState.DONE: ("good", "done"),
    StepState.CURRENT: ("busy", "under way"),
    StepState.AHEAD: ("idle", "to come"),
    StepState.FAILED: ("bad", "failed"),
    StepState.SKIPPED: ("idle", "not started"),
}


@dataclass(frozen=True, slots=True)
class Step:
    """One step, in words."""

    text: str
    state: StepState

    def as_json(self) -> dict[str, str]:
        """The step as a value of the page."""
        tone, said = TONES[self.state]
        return {"text": self.text, "state": self.state.value, "tone": tone, "said": said}


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """Acknowledgements of an operation's checkpoint or savepoint."""

    count: int
    expected: int
    is_durable: bool = False  # The manifest is written.

    def as_json(self) -> dict[str, str | int]:
        """The values of a progress bar."""
        subtasks = plural(self.expected, "subtask")
        if not self.expected:
            text = "the barriers are being sent"
        elif self.count < self.expected or self.is_durable:
            text = f"{self.count:,} of {subtasks} acknowledged"
        else:
            text = f"all {subtasks} acknowledged; the manifest is being written"
        return {"value": self.count, "most": max(self.expected, 1), "text": text}


_SAVING = "A savepoint is taken"
_CHECKING = "The new pipeline is checked against the newest checkpoint"
_ENDING = "The job ends with it, and all its output is committed"
_LAUNCHING = "The old driver ends, and a new one is launched"
_RESTORING = "Subtasks are deployed and their state is restored"
_FORKING = "The new job is submitted and comes to run"
_RETURNING = "The job is taken back to how it was"
_ONE_STEP = {
    OperationKind.SAVEPOINT: _SAVING,
    OperationKind.CHECKPOINT: "A checkpoint is taken",
    OperationKind.DISCARD: "The savepoint’s files are deleted",
    OperationKind.CANCEL: "The subtasks stop, and the driver ends",
    OperationKind.PREVIEW: "The preview is computed; the job is not touched",
    OperationKind.COMPARE: "The outputs are read and compared",
}


def operation_steps(operation: Operation, job_status: str) -> list[Step]:
    """The operation's steps in order; ``job_status`` is the progress of a new driver."""
    texts = _texts(operation)
    progress, has_failed = operation.progress or {}, operation.status != OperationStatus.SUCCEEDED
    if progress.get("error") and has_failed:
        at = _late_at(operation, texts)
        return [
            *_marked(texts, at, StepState.FAILED, StepState.SKIPPED),
            _return_step(operation, progress),
        ]
    match operation.status:
        case OperationStatus.SUCCEEDED:
            return [Step(text, StepState.DONE) for text in texts]
        case OperationStatus.PENDING:
            return [Step(text, StepState.AHEAD) for text in texts]
        case OperationStatus.RUNNING:
            return _marked(texts, _current(operation, job_status, texts), StepState.CURRENT)
    stopped = _stopped(operation, texts)
    return _marked(texts, stopped, StepState.FAILED, StepState.SKIPPED)


def _return_step(operation: Operation, progress: Mapping[str, Any]) -> Step:
    """The step after a change with which the job did not come to run."""
    if operation.status in (OperationStatus.PENDING, OperationStatus.RUNNING):
        return Step(_RETURNING, StepState.CURRENT)
    has_returned = progress.get("has_returned")
    return Step(_RETURNING, StepState.DONE if has_returned else StepState.FAILED)


def _texts(operation: Operation) -> list[str]:
    kind, progress = OperationKind(operation.kind), operation.progress or {}
    match kind:
        case OperationKind.STOP:
            drains = progress.get("drains")
            last = (
                "The sources have ended, windows close, and the job ends"
                if drains
                else "The job ends"
            )
            return [_SAVING, last]
        case OperationKind.ROLLBACK | OperationKind.RESTART:
            return [_LAUNCHING, _RESTORING]
        case OperationKind.SUBMIT:
            return ["The driver is launched", "Subtasks are deployed"]
        case OperationKind.RESCALE:
            relaunches_at_once = progress.get("phase") == Phase.RELAUNCHING and not progress.get(
                "saved"
            )
            taken = [] if relaunches_at_once else ["A checkpoint is taken"]
            return [*taken, _LAUNCHING, _RESTORING]
        case OperationKind.UPGRADE:
            checked = [_CHECKING] if progress.get("checks") else []
            stops = progress.get("saved") or not (
                progress.get("is_changed") or progress.get("before") is None
            )
            return [*checked, *([_SAVING, _ENDING] if stops else []), _LAUNCHING, _RESTORING]
        case OperationKind.FORK:
            taken = [] if progress.get("restore") else [_SAVING]
            return [*taken, _FORKING]
    return [_ONE_STEP[kind]]


def _current(operation: Operation, job_status: str, texts: Sequence[str]) -> int:
    phase = (operation.progress or {}).get("phase")
    relaunches = phase == Phase.RELAUNCHING or operation.kind in (
        OperationKind.RESTART,
        OperationKind.SUBMIT,
    )
    if relaunches:
        return len(texts) - (1 if job_status == JobStatus.INITIALIZING else 2)
    if operation.kind == OperationKind.UPGRADE and phase in _OF_PHASE:
        return texts.index(_OF_PHASE[Phase(phase)])
    return len(texts) - 1 if phase in (Phase.ENDING, Phase.FORKING) else 0


_OF_PHASE = {Phase.SAVING: _SAVING, Phase.ENDING: _ENDING, Phase.LAUNCH_DUE: _LAUNCHING}


def _late_at(operation: Operation, texts: Sequence[str]) -> int:
    """The step that failed or was late, so that the job is taken back."""
    progress = operation.progress or {}
    if operation.kind != OperationKind.UPGRADE or progress.get("is_changed"):
        return len(texts) - 1
    return texts.index(_ENDING if progress.get("saved") else _SAVING)


def _stopped(operation: Operation, texts: Sequence[str]) -> int:
    """The step at which the operation ended; a savepoint or checkpoint taken before stays done."""
    if operation.kind == OperationKind.UPGRADE:
        return _upgrade_stopped(operation, texts)
    saved = (operation.progress or {}).get("saved")
    saves = texts[0].endswith("is taken")
    return 1 if saved and saves and len(texts) > 1 else 0


def _upgrade_stopped(operation: Operation, texts: Sequence[str]) -> int:
    progress = operation.progress or {}
    if progress.get("is_changed"):
        return len(texts) - 1
    if progress.get("saved"):
        return texts.index(_ENDING)
    return 1 if progress.get("is_checked") else 0


def _marked(
    texts: Sequence[str], at: int, state: StepState, rest: StepState = StepState.AHEAD
) -> list[Step]:
    return [
        Step(text, StepState.DONE if here < at else state if here == at else rest)
        for here, text in enumerate(texts)
    ]
