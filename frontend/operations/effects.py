"""Effects of an operation, for its confirmation, with the job's own numbers. Pure.

Each sentence says what happens to the job, its output or its files. Times are those of the last
such operation; without one, no time is given.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from controlplane.base.formatting import duration, number, plural, size


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """Facts about a job that its effects depend on.

    Units: milliseconds and bytes.
    """

    job: str  # Its name.
    is_over: bool = False
    subtasks: int | None = None  # Operator subtasks that take part in a checkpoint.
    parallelism: int | None = None
    state_bytes: int | None = None  # Of the newest completed checkpoint.
    checkpoint: int | None = None  # The number of that checkpoint.
    checkpoint_ms: float | None = None  # The duration of that checkpoint.
    down_ms: float | None = None  # The downtime before the newest attempt.
    savepoints: str = ""  # The directory of its savepoints.


def list_effects(question: str, known: Known) -> list[str]:
    """Sentences for one of ``confirm.views.QUESTIONS``; none for one without effect on the job."""
    say = _SAYS.get(question)
    return [] if say is None else [sentence for sentence in say(known) if sentence]


def of_deletion(
    *, name: str, location: str, state_bytes: int, checkpoint: int, needed_by: Sequence[str]
) -> list[str]:
    """The effects of deleting a savepoint, or the users that prevent it."""
    if needed_by:
        return [f"{one[:1].upper()}{one[1:]}." for one in needed_by]
    return [
        f"The files of {name} in {location} are deleted: {size(state_bytes)} of state. This "
        "cannot be undone.",
        "No job can be rolled back to it or forked from it any more. Checkpoint "
        f"{number(checkpoint)} stays in the history, as discarded.",
        "The job itself is not affected; nothing needs this savepoint now.",
    ]


def of_archiving(name: str) -> list[str]:
    """The effects of archiving a job."""
    return [
        f"{name} is left out of the list of jobs and of the API's, unless they are asked for "
        "archived ones.",
        "Its checkpoints, savepoints, output and history stay, and retention goes on as before.",
        "It can be brought back at any time; a start of the job does so by itself.",
    ]


def of_unarchiving() -> list[str]:
    """The effects of bringing an archived job back."""
    return ["The job is in the lists again. Nothing else of it changes."]


def _savepoint(known: Known) -> list[str]:
    who = "all subtasks" if known.subtasks is None else f"all {plural(known.subtasks, 'subtask')}"
    return [
        f"The complete state of {who} of {known.job} is written.",
        _how_much(known),
        f"The savepoint gets a directory of its own below {known.savepoints}."
        if known.savepoints
        else "",
        "The job keeps running meanwhile; the savepoint is kept until it is deleted on request.",
    ]


def _stop(known: Known) -> list[str]:
    return [
        f"A savepoint of {known.job} is taken first, and all output before it is committed.",
        _how_much(known),
        "Then all its subtasks end, and so does its Spark application. The job is finished; a "
        "rollback to the savepoint resumes it.",
        "If the savepoint fails, the job keeps running.",
    ]


def _rescale(known: Known) -> list[str]:
    now = (
        "" if known.parallelism is None else f" Its parallelism is {number(known.parallelism)} now."
    )
    if known.is_over:
        first = f"{known.job} resumes from its newest completed checkpoint."
    else:
        first = f"A checkpoint of {known.job} is taken, and its driver is replaced."
    return [
        f"{first}{now}",
        "Keyed state and source splits are redistributed over the new number of subtasks.",
        _how_long(known),
        "File sinks show each record once; if the checkpoint fails, the job goes on as it is.",
    ]


def _upgrade(known: Known) -> list[str]:
    check = f"The new pipeline is checked against the newest checkpoint of {known.job} first; "
    refused = "where it could not restore its state, the upgrade is refused and nothing happens."
    if known.is_over:
        goes_on = f"{known.job} resumes from that checkpoint, with the new pipeline."
        back = ""
    else:
        goes_on = (
            f"A savepoint of {known.job} is taken, the job ends with it, and a new driver runs the "
            "new pipeline from there."
        )
        back = (
            "If it does not come to run in its time, the job goes on with the old pipeline, from "
            "the same savepoint."
        )
    return [
        f"{check}{refused}",
        goes_on,
        _how_much(known),
        _how_long(known),
        back,
        "The job keeps its id, its settings and its history.",
    ]


def _fork(known: Known) -> list[str]:
    return [
        f"A second job is submitted that starts with the state of {known.job}: from your choice "
        "below, or from a savepoint that is taken for the fork.",
        f"{known.job} stays as it is; the fork commits its output that is still pending."
        if known.is_over
        else f"{known.job} goes on untouched, and commits its pending output itself.",
        "Both jobs read the same sources from there on. Give the fork an output of its own.",
    ]


def _rollback(known: Known) -> list[str]:
    return [
        f"{known.job} is not touched yet: a preview first shows how far its sources go back, how "
        "many records are processed again, and which output is taken back.",
        "You confirm the rollback on the page of the preview.",
        _how_long(known),
    ]


def _how_much(known: Known) -> str:
    if known.state_bytes is None or known.checkpoint is None:
        return ""
    return (
        f"Its newest checkpoint, {number(known.checkpoint)}, holds {size(known.state_bytes)} and "
        f"took {duration(known.checkpoint_ms)}."
    )


def _how_long(known: Known) -> str:
    if known.down_ms is None:
        return "The job is down until its next driver runs."
    return (
        f"The job is down until its next driver runs; the last time that took "
        f"{duration(known.down_ms)}."
    )


_SAYS: Mapping[str, Callable[[Known], list[str]]] = {
    "savepoint": _savepoint,
    "stop": _stop,
    "rescale": _rescale,
    "upgrade": _upgrade,
    "fork": _fork,
    "rollback": _rollback,
}
