"""The next step in an operation of several steps, and that each operation ends once."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.errors import ProtocolError
from weir.protocol.elements import CheckpointKind
from weir.protocol.lifecycle import JOB_TRANSITIONS, JobStatus
from weir.protocol.operations import (
    Before,
    Begun,
    Checked,
    Fail,
    ForkFailed,
    ForkRuns,
    JobReached,
    LaunchTick,
    NotChecked,
    NotSaved,
    OperationCommand,
    OperationEvent,
    OperationKind,
    OperationState,
    OutOfTime,
    Overtaken,
    Phase,
    Relaunch,
    Return,
    Save,
    Saved,
    SubmitFork,
    Succeed,
    advance,
)
from weir.protocol.wire import from_wire, to_wire

URI = "simulated:/savepoints/job/one"
OLDER = "simulated:/job/chk-3"
KEPT = f"; the savepoint was taken and is kept: {URI}"
ENDS = set(JobStatus) - JOB_TRANSITIONS.keys()

SAVEPOINT = OperationState(OperationKind.SAVEPOINT)
SUSPEND = OperationState(OperationKind.STOP)
DRAIN = OperationState(OperationKind.STOP, drains=True)
RESCALE = OperationState(OperationKind.RESCALE)
ROLLBACK = OperationState(OperationKind.ROLLBACK, restore=OLDER)
FORK = OperationState(OperationKind.FORK)
FORK_OF = OperationState(OperationKind.FORK, restore=OLDER)
WAS = Before(parallelism=2, checkpoint=7)
RESCALE_BACK, ROLLBACK_BACK = replace(RESCALE, before=WAS), replace(ROLLBACK, before=WAS)
UPGRADE = OperationState(OperationKind.UPGRADE, before=WAS)
CHECKED_UPGRADE = replace(UPGRADE, checks=True)
UPGRADES = (UPGRADE, CHECKED_UPGRADE)
KINDS = (
    *(SAVEPOINT, SUSPEND, DRAIN, RESCALE, ROLLBACK, FORK, FORK_OF),
    *(RESCALE_BACK, ROLLBACK_BACK, *UPGRADES),
)

Commands: TypeAlias = tuple[OperationCommand, ...]


def lived(state: OperationState, *events: OperationEvent) -> tuple[OperationState, Commands]:
    """The state that the events lead to, and all their commands."""
    commands: Commands = ()
    for event in events:
        step = advance(state, event)
        state, commands = step.state, commands + step.commands
    return state, commands


RUNS, IDLES = Begun(is_running=True), Begun(is_running=False)
RAN, FINISHED = JobReached(JobStatus.RUNNING), JobReached(JobStatus.FINISHED)
FAILED, CANCELED = (JobReached(s, "it hurt") for s in (JobStatus.FAILED, JobStatus.CANCELED))
HURT = "the job is failed: it hurt"
CAN_RUN, CAN_IDLE = Checked(is_running=True), Checked(is_running=False)
STOPPED = [RUNS, Saved(URI), FINISHED]
STOP = Save(CheckpointKind.STOP_SUSPEND)
BACK = Return(WAS, HURT, URI)


@pytest.mark.parametrize(
    ("state", "events", "commands"),
    [
        (SAVEPOINT, [RUNS, Saved(URI)], [Save(CheckpointKind.SAVEPOINT), Succeed(URI)]),
        (SAVEPOINT, [IDLES, NotSaved("no")], [Save(CheckpointKind.SAVEPOINT), Fail("no")]),
        (
            SUSPEND,
            [RUNS, Saved(URI), FINISHED],
            [Save(CheckpointKind.STOP_SUSPEND), Succeed(URI)],
        ),
        (DRAIN, [RUNS, Saved(URI), FINISHED], [Save(CheckpointKind.STOP_DRAIN), Succeed(URI)]),
        (
            RESCALE,
            [RUNS, Saved(OLDER), RAN],
            [Save(CheckpointKind.CHECKPOINT), Relaunch(None), Succeed(OLDER)],
        ),
        (RESCALE, [IDLES, RAN], [Relaunch(None), Succeed(None)]),
        (ROLLBACK, [RUNS, RAN], [Relaunch(OLDER), Succeed(None)]),
        (ROLLBACK, [IDLES, FINISHED], [Relaunch(OLDER), Succeed(None)]),
        (ROLLBACK_BACK, [RUNS, RAN], [Relaunch(OLDER), Succeed(None)]),
        (
            ROLLBACK_BACK,
            [RUNS, FAILED, LaunchTick(), RAN],
            [Relaunch(OLDER), Return(WAS, HURT), Fail(f"{HURT}; the job runs again as before")],
        ),
        (
            ROLLBACK_BACK,
            [RUNS, OutOfTime("late"), LaunchTick(), FAILED],
            [
                Relaunch(OLDER),
                Return(WAS, "late"),
                Fail(f"late; it was started again as before, then {HURT}"),
            ],
        ),
        (ROLLBACK_BACK, [RUNS, OutOfTime("late"), RAN], [Relaunch(OLDER), Succeed(None)]),
        (ROLLBACK_BACK, [IDLES, FAILED], [Relaunch(OLDER), Fail(HURT)]),
        (
            ROLLBACK_BACK,
            [RUNS, CANCELED],
            [Relaunch(OLDER), Fail("the job is canceled: it hurt")],
        ),
        (
            ROLLBACK_BACK,
            [RUNS, FAILED, Overtaken("overtaken")],
            [Relaunch(OLDER), Fail(f"{HURT}; overtaken")],
        ),
        (
            FORK,
            [RUNS, Saved(URI), ForkRuns()],
            [Save(CheckpointKind.SAVEPOINT), SubmitFork(URI), Succeed(URI)],
        ),
        (FORK_OF, [IDLES, ForkRuns()], [SubmitFork(OLDER), Succeed(None)]),
        # The end of its origin, or another operation on it, is not the end of the fork.
        (
            FORK,
            [RUNS, Saved(URI), FAILED, Overtaken("overtaken"), ForkFailed("it hurt")],
            [Save(CheckpointKind.SAVEPOINT), SubmitFork(URI), Fail(f"it hurt{KEPT}")],
        ),
        (UPGRADE, [*STOPPED, LaunchTick(), RAN], [STOP, Relaunch(URI), Succeed(URI)]),
        (UPGRADE, [IDLES, RAN], [Relaunch(None), Succeed(None)]),
        (replace(UPGRADE, before=None), [IDLES, FAILED], [Relaunch(None), Fail(HURT)]),
        (CHECKED_UPGRADE, [RUNS, NotChecked("no")], [Fail("no")]),
        (CHECKED_UPGRADE, [RUNS, FINISHED], [Fail("the job is finished")]),
        (CHECKED_UPGRADE, [RUNS, CAN_IDLE, RAN], [Relaunch(None), Succeed(None)]),
        (CHECKED_UPGRADE, [RUNS, CAN_RUN, NotSaved("declined")], [STOP, Fail("declined")]),
        # Its own end comes before the answer that its savepoint is durable.
        (
            UPGRADE,
            [RUNS, FINISHED, Saved(URI), LaunchTick(), RAN],
            [STOP, Relaunch(URI), Succeed(URI)],
        ),
        (
            UPGRADE,
            [*STOPPED, LaunchTick(), FAILED, LaunchTick(), RAN],
            [STOP, Relaunch(URI), BACK, Fail(f"{HURT}; the job runs again as before{KEPT}")],
        ),
        # The old pipeline fails while it ends, and is started again.
        (
            UPGRADE,
            [RUNS, Saved(URI), FAILED, LaunchTick(), RAN],
            [STOP, BACK, Fail(f"{HURT}; the job runs again as before{KEPT}")],
        ),
        # The old pipeline, of which another attempt ends with the savepoint, is not the new one.
        (
            UPGRADE,
            [RUNS, Saved(URI), OutOfTime("late"), RAN, FINISHED, LaunchTick(), RAN],
            [STOP, Return(WAS, "late", URI), Fail(f"late; the job runs again as before{KEPT}")],
        ),
        # A stop cannot be recalled: its savepoint may complete after the upgrade's time.
        (
            UPGRADE,
            [RUNS, OutOfTime("late"), Saved(URI), LaunchTick(), RAN],
            [STOP, Return(WAS, "late", URI), Fail(f"late; the job runs again as before{KEPT}")],
        ),
        (UPGRADE, [RUNS, OutOfTime("late"), NotSaved("no")], [STOP, Fail("late; no")]),
        (UPGRADE, [RUNS, OutOfTime("late"), OutOfTime("later")], [STOP, Fail("late; later")]),
        (
            UPGRADE,
            [*STOPPED, OutOfTime("late"), LaunchTick(), RAN],
            [STOP, Return(WAS, "late", URI), Fail(f"late; the job runs again as before{KEPT}")],
        ),
        (UPGRADE, [RUNS, Saved(URI), Overtaken("by it")], [STOP, Fail(f"by it{KEPT}")]),
    ],
)
def test_the_way_of_every_kind(
    state: OperationState, events: list[OperationEvent], commands: list[OperationCommand]
) -> None:
    reached, done = lived(state, *events)
    assert list(done) == commands
    assert reached.phase is Phase.DONE


# Every kind x phase x event.

_WAYS: dict[tuple[str, str], tuple[OperationState, Sequence[OperationEvent]]] = {}
for _state in KINDS:
    _name = f"{_state.kind}{'-drain' * _state.drains}{'-of' * (_state is FORK_OF)}"
    _name += "-back" * (_state.before is not None)
    _WAYS[_name, "accepted"] = _state, []
    if _state not in (ROLLBACK, FORK_OF, ROLLBACK_BACK, *UPGRADES):
        _WAYS[_name, "saving"] = _state, [RUNS]
    if _state in UPGRADES:
        _begins: list[OperationEvent] = [RUNS]
        if _state is CHECKED_UPGRADE:
            _name += "-checked"
            _WAYS[_name, "accepted"] = _state, []
            _WAYS[_name, "checking"] = _state, [RUNS]
            _begins = [RUNS, CAN_RUN]
        _WAYS[_name, "saving"] = _state, _begins
        _WAYS[_name, "ending"] = _state, [*_begins, Saved(URI)]
        _WAYS[_name, "launch_due"] = _state, [*_begins, Saved(URI), FINISHED]
        _WAYS[_name, "relaunching"] = _state, [*_begins, Saved(URI), FINISHED, LaunchTick()]
    if _state in (FORK, FORK_OF):
        _WAYS[_name, "forking"] = _state, [RUNS, *([Saved(URI)] if _state is FORK else [])]
    if _state in (SUSPEND, DRAIN):
        _WAYS[_name, "ending"] = _state, [RUNS, Saved(URI)]
    if _state in (RESCALE, RESCALE_BACK):
        _WAYS[_name, "relaunching"] = _state, [RUNS, Saved(URI)]
    if _state in (ROLLBACK, ROLLBACK_BACK):
        _WAYS[_name, "relaunching"] = _state, [RUNS]
    if _state.before is not None:
        _launched = _WAYS[_name, "relaunching"][1]
        _WAYS[_name, "return_due"] = _state, [*_launched, FAILED]
        _WAYS[_name, "returning"] = _state, [*_launched, FAILED, LaunchTick()]
    _WAYS[_name, "done"] = _state, [OutOfTime("late")]
EVENTS: list[OperationEvent] = [
    *(RUNS, IDLES, Saved(URI), Saved("another"), NotSaved("no"), OutOfTime("late")),
    *(
        Overtaken("overtaken"),
        LaunchTick(),
        ForkRuns(),
        ForkFailed("no"),
        CAN_RUN,
        CAN_IDLE,
        NotChecked("no"),
    ),
    *(JobReached(status, "it hurt") for status in JobStatus),
]


@pytest.mark.parametrize("way", _WAYS, ids="-".join)
def test_every_event_in_every_phase(way: tuple[str, str]) -> None:
    begin, events = _WAYS[way]
    state, _ = lived(begin, *events)
    assert state.phase == way[1]
    for event in EVENTS:
        if error := _expected_error(state, event):
            with pytest.raises(ProtocolError, match=error):
                print(event, advance(state, event))
        else:
            step = advance(state, event)
            assert (step.state.phase, step.commands) == _expected(state, event), event


def _expected_error(state: OperationState, event: OperationEvent) -> str:
    if state.phase in (Phase.SAVING, Phase.DONE) or state.saved == getattr(event, "uri", ""):
        return ""
    return "did not request a savepoint" * isinstance(event, Saved | NotSaved)


def _expected(state: OperationState, event: OperationEvent) -> tuple[Phase, Commands]:
    what = "checkpoint" if state.kind is OperationKind.RESCALE else "savepoint"
    kept = KEPT.replace("savepoint", what, 1) if state.saved else ""
    match state.phase, event:
        case Phase.DONE, _:
            return Phase.DONE, ()
        case Phase.FORKING, ForkRuns():
            return Phase.DONE, (Succeed(state.saved),)
        case Phase.FORKING, ForkFailed(error) | OutOfTime(error):
            return Phase.DONE, (Fail(f"{error}{kept}"),)
        case Phase.FORKING, _:
            return Phase.FORKING, ()
        case Phase.RETURN_DUE | Phase.RETURNING, _:
            return _returned(state, event, kept)
        case Phase.RELAUNCHING, (OutOfTime() | JobReached(JobStatus.FAILED)) if state.before:
            return Phase.RETURN_DUE, ()
        case (Phase.CHECKING | Phase.SAVING | Phase.ENDING | Phase.LAUNCH_DUE, _) if (
            step := _upgrading(state, event)
        ):
            return step
        case _, Checked() | NotChecked():
            return state.phase, ()
        case _, LaunchTick():
            return state.phase, ()
        case _, OutOfTime(error) | Overtaken(error):
            return Phase.DONE, (Fail(f"{error}{kept}"),)
        case Phase.ACCEPTED, Begun(is_running):
            return _begun(state, is_running=is_running)
        case Phase.SAVING, NotSaved(error):
            return Phase.DONE, (Fail(error),)
        case Phase.SAVING, Saved(uri):
            return {
                OperationKind.SAVEPOINT: (Phase.DONE, (Succeed(uri),)),
                OperationKind.STOP: (Phase.ENDING, ()),
                OperationKind.RESCALE: (Phase.RELAUNCHING, (Relaunch(None),)),
                OperationKind.FORK: (Phase.FORKING, (SubmitFork(uri),)),
            }[state.kind]
        case Phase.ENDING, JobReached(JobStatus.FINISHED):
            return Phase.DONE, (Succeed(state.saved),)
        case Phase.RELAUNCHING, JobReached(JobStatus.FINISHED | JobStatus.RUNNING):
            return Phase.DONE, (Succeed(state.saved),)
        case (
            Phase.ACCEPTED | Phase.CHECKING | Phase.ENDING | Phase.LAUNCH_DUE | Phase.RELAUNCHING,
            JobReached(status, cause),
        ) if status in ENDS:
            return Phase.DONE, (Fail(f"the job is {status}: {cause}{kept}"),)
        case _:
            return state.phase, ()


def _upgrading(state: OperationState, event: OperationEvent) -> tuple[Phase, Commands] | None:
    """The steps that only an upgrade has; None for those that others have as well."""
    if state.kind is not OperationKind.UPGRADE:
        return None
    match state.phase, event:
        case Phase.CHECKING, Checked(is_running):
            return (Phase.SAVING, (STOP,)) if is_running else (Phase.RELAUNCHING, (Relaunch(None),))
        case Phase.CHECKING, NotChecked(error):
            return Phase.DONE, (Fail(error),)
        case Phase.SAVING, Saved():
            return Phase.ENDING, ()
        case Phase.SAVING, OutOfTime():
            return Phase.SAVING, ()
        case Phase.ENDING, JobReached(JobStatus.FINISHED):
            return Phase.LAUNCH_DUE, ()
        case Phase.LAUNCH_DUE, JobReached(JobStatus.FINISHED):
            return Phase.LAUNCH_DUE, ()
        case Phase.LAUNCH_DUE, LaunchTick():
            return Phase.RELAUNCHING, (Relaunch(URI),)
        case Phase.ENDING | Phase.LAUNCH_DUE, OutOfTime():
            return Phase.RETURN_DUE, ()
        case Phase.ENDING, JobReached(JobStatus.FAILED):
            return Phase.RETURN_DUE, ()
    return None


def _returned(state: OperationState, event: OperationEvent, kept: str) -> tuple[Phase, Commands]:
    is_due = state.phase is Phase.RETURN_DUE
    match event:
        case LaunchTick() if is_due:
            back = BACK if state.kind is OperationKind.UPGRADE else Return(WAS, HURT)
            return Phase.RETURNING, (back,)
        case JobReached(JobStatus.RUNNING | JobStatus.FINISHED) if is_due:
            return Phase.DONE, (Succeed(state.saved),)
        case JobReached(JobStatus.RUNNING):
            said = "the job runs again as before"
        case JobReached(JobStatus.CANCELED) if is_due:
            said = "then the job is canceled: it hurt"
        case JobReached(status) if status in ENDS and not is_due:
            said = f"it was started again as before, then the job is {status}: it hurt"
        case OutOfTime() if is_due:
            said = "the job could not be taken back to how it was"
        case OutOfTime():
            said = "it was started again as before, and does not run yet"
        case Overtaken(said):
            pass
        case _:
            return state.phase, ()
    return Phase.DONE, (Fail(f"{HURT}; {said}{kept}"),)


def _begun(state: OperationState, *, is_running: bool) -> tuple[Phase, Commands]:
    if state == FORK_OF:
        return Phase.FORKING, (SubmitFork(OLDER),)
    if state in (ROLLBACK, ROLLBACK_BACK):
        return Phase.RELAUNCHING, (Relaunch(OLDER),)
    if state == CHECKED_UPGRADE:
        return Phase.CHECKING, ()
    if state.kind in (OperationKind.RESCALE, OperationKind.UPGRADE) and not is_running:
        return Phase.RELAUNCHING, (Relaunch(None),)
    kinds = {
        OperationKind.STOP: CheckpointKind.STOP_DRAIN
        if state.drains
        else CheckpointKind.STOP_SUSPEND,
        OperationKind.RESCALE: CheckpointKind.CHECKPOINT,
        OperationKind.UPGRADE: CheckpointKind.STOP_SUSPEND,
    }
    return Phase.SAVING, (Save(kinds.get(state.kind, CheckpointKind.SAVEPOINT)),)


@pytest.mark.parametrize(
    ("state", "end", "commands"),
    [
        (SAVEPOINT, FAILED, [Succeed(URI)]),
        (FORK, FAILED, [SubmitFork(URI)]),
        (DRAIN, FINISHED, [Succeed(URI)]),
        (SUSPEND, FAILED, [Fail(f"the job is failed: it hurt{KEPT}")]),
        (
            RESCALE,
            FAILED,
            [Fail(f"the job is failed: it hurt; the checkpoint was taken and is kept: {URI}")],
        ),
    ],
)
def test_a_savepoint_that_is_durable_after_the_jobs_end_is_not_lost(
    state: OperationState, end: JobReached, commands: list[OperationCommand]
) -> None:
    _, (_, *after) = lived(state, RUNS, end, Saved(URI))
    assert after == commands


def test_a_savepoint_that_comes_to_nothing_with_the_job_says_why_it_did() -> None:
    _, (_, *after) = lived(SAVEPOINT, RUNS, FAILED, NotSaved("job_failover"))
    assert after == [Fail("job_failover")]


def test_a_rollback_to_nothing_is_refused() -> None:
    with pytest.raises(ProtocolError, match="a checkpoint or savepoint to restore"):
        advance(replace(ROLLBACK, restore=None), RUNS)


def test_a_state_survives_its_stored_form() -> None:
    for begin, events in _WAYS.values():
        state, _ = lived(begin, *events, *[FAILED][: state_saves(begin, events)])
        assert from_wire(OperationState, to_wire(state)) == state


def state_saves(begin: OperationState, events: Sequence[OperationEvent]) -> int:
    return lived(begin, *events)[0].phase is Phase.SAVING


@given(st.sampled_from(KINDS), st.lists(st.sampled_from(EVENTS), max_size=12))
def test_in_any_case_an_operation_ends_once_and_says_everything_once(
    state: OperationState, events: list[OperationEvent]
) -> None:
    commands: list[OperationCommand] = []
    for event in [*events, OutOfTime("late"), OutOfTime("late again")]:
        for _ in range(2):  # Everything may come again.
            try:
                step = advance(state, event)
            except ProtocolError:
                continue  # No correct coordinator says so.
            assert step.state != state or not step.commands
            state = step.state
            commands += step.commands
    assert state.phase is Phase.DONE
    said = Counter(type(command) for command in commands)
    assert said.total() == len(said)
    assert (said[Succeed], said[Fail]) in ((1, 0), (0, 1))
    assert isinstance(commands[-1], Succeed | Fail)
    if isinstance(commands[-1], Fail) and state.saved is not None:
        assert commands[-1].error.endswith(f"is kept: {state.saved}")
    if isinstance(commands[-1], Succeed):
        assert commands[-1].saved == state.saved


def test_every_phase_was_looked_at() -> None:
    assert {phase for _, phase in _WAYS} == set(Phase)
