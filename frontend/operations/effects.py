"""What will happen if somebody confirms, in plain words and with the job's own numbers. Pure.

Each sentence says what is done to this job, to its output and to what lies in the storage. Times
are those that the same thing took last; where nothing is known yet, nothing is said of it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from controlplane.base.formatting import duration, number, plural, size


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What is known of a job when something is asked of it.

    Units: milliseconds and bytes.
    """

    job: str  # Its name.
    is_over: bool = False
    subtasks: int | None = None  # Operator subtasks that take part in a checkpoint.
    parallelism: int | None = None
    state_bytes: int | None = None  # Of the newest completed checkpoint,
    checkpoint: int | None = None  # which has this number
    checkpoint_ms: float | None = None  # and took this long.
    down_ms: float | None = None  # How long it last stood still for a new attempt.
    savepoints: str = ""  # Where its savepoints are put.


def list_effects(question: str, known: Known) -> list[str]:
    """Sentences for one of ``asking.QUESTIONS``; none for what does nothing to the job."""
    say = _SAYS.get(question)
    return [] if say is None else [sentence for sentence in say(known) if sentence]


def of_deletion(
    *, name: str, location: str, state_bytes: int, checkpoint: int, needed_by: Sequence[str]
) -> list[str]:
    """What deleting a savepoint does, or who needs it so that it cannot be deleted."""
    if needed_by:
        return [f"{one[:1].upper()}{one[1:]}." for one in needed_by]
    return [
        f"The files of {name} in {location} are deleted: {size(state_bytes)} of state. Nothing "
        "brings them back.",
        "No job can be rolled back to it or forked from it any more. Checkpoint "
        f"{number(checkpoint)} stays in the history, as one whose files are gone.",
        "The job itself goes on untouched; nothing needs this savepoint now.",
    ]


def _savepoint(known: Known) -> list[str]:
    who = "all subtasks" if known.subtasks is None else f"all {plural(known.subtasks, 'subtask')}"
    return [
        f"The whole state of {who} of {known.job} is written.",
        _how_much(known),
        f"It is put into a directory of its own below {known.savepoints}."
        if known.savepoints
        else "",
        "The job goes on meanwhile; the savepoint is kept until somebody deletes it.",
    ]


def _stop(known: Known) -> list[str]:
    return [
        f"A savepoint of {known.job} is taken first, and what came before it is committed.",
        _how_much(known),
        "Then all its subtasks end, and so does its Spark application. The job is finished; a "
        "rollback to the savepoint takes it up again.",
        "If the savepoint fails, the job goes on.",
    ]


def _rescale(known: Known) -> list[str]:
    now = "" if known.parallelism is None else f" It runs with {number(known.parallelism)} now."
    if known.is_over:
        first = f"{known.job} is taken up again from its newest completed checkpoint."
    else:
        first = f"A checkpoint of {known.job} is taken, and its driver is replaced."
    return [
        f"{first}{now}",
        "Keyed state and the positions of sources are spread over the new number of subtasks.",
        _how_long(known),
        "File sinks show each record once; if the checkpoint fails, the job goes on as it is.",
    ]


def _fork(known: Known) -> list[str]:
    return [
        f"A second job is submitted that begins with the state of {known.job}: from what you "
        "choose below, or from a savepoint that is taken for it.",
        f"{known.job} stays as it is; what still waits to be committed of its output, the second "
        "job commits."
        if known.is_over
        else f"{known.job} goes on untouched, and commits itself what still waits of its output.",
        "Both jobs read the same sources from there on. Give the fork an output of its own.",
    ]


def _rollback(known: Known) -> list[str]:
    return [
        f"Nothing is done to {known.job} yet: first it is worked out how far its sources go back, "
        "how many records are processed again, and which output is taken back.",
        "You confirm it on the page that shows this.",
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
        return "The job stands still until its next driver runs."
    return (
        f"The job stands still until its next driver runs; the last time that took "
        f"{duration(known.down_ms)}."
    )


_SAYS: Mapping[str, Callable[[Known], list[str]]] = {
    "savepoint": _savepoint,
    "stop": _stop,
    "rescale": _rescale,
    "fork": _fork,
    "rollback": _rollback,
}
