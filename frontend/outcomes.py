"""What came of an operation, as its page shows it: above all the answers of previews. Pure."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from frontend.formatting import NOTHING, duration, event_time, number, plural, size
from frontend.status import OPERATION_KIND
from jobs.models import Operation, OperationKind

ROWS_MAX = 200  # Of one table; the API has all.


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of texts under their headings; the first column names the row."""

    caption: str
    head: tuple[str, ...]
    rows: list[tuple[str, ...]]
    numbers: frozenset[int] = frozenset()  # Columns to the right.

    @property
    def headings(self) -> list[tuple[str, bool]]:
        """Each column's, and whether it holds numbers."""
        return [(text, at in self.numbers) for at, text in enumerate(self.head)]

    @property
    def cells(self) -> list[list[tuple[str, bool]]]:
        """Each row's texts, and whether it is a number."""
        return [[(text, at in self.numbers) for at, text in enumerate(row)] for row in self.rows]


@dataclass(frozen=True, slots=True)
class Outcome:
    """An answer: a verdict where there is one, sentences, and the figures behind them."""

    verdict: str = ""
    tone: str = "idle"
    sentences: list[str] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)


def is_of_rollback(operation: Operation) -> bool:
    """Whether it previews a rollback."""
    return (
        operation.kind == OperationKind.PREVIEW and operation.parameters.get("kind") == "rollback"
    )


def title(operation: Operation) -> str:
    """What was asked for, in words."""
    kind = OPERATION_KIND[OperationKind(operation.kind)]
    match operation.kind, operation.parameters.get("kind"):
        case OperationKind.PREVIEW, "rollback":
            kind = f"{kind} of a rollback"
        case OperationKind.PREVIEW, "restore":
            kind = f"{kind} of a restore"
    to = operation.parameters.get("checkpoint")
    return f"{kind} to checkpoint {to:,}" if _goes_back(operation) and isinstance(to, int) else kind


def _goes_back(operation: Operation) -> bool:
    return is_of_rollback(operation) or operation.kind == OperationKind.ROLLBACK


def confirmation(operation: Operation) -> dict[str, Any]:
    """What the form after a rollback's preview sends."""
    given = operation.parameters
    savepoint = given.get("savepoint")
    return {
        "target": f"savepoint:{savepoint}"
        if savepoint
        else f"checkpoint:{given.get('checkpoint')}",
        "rewind_output": given.get("rewind_output", True),
    }


def errors(by_field: Mapping[str, Iterable[str]] | None) -> list[str]:
    """The messages of a refusal, each with the field that it is about."""
    return [
        f"{name.replace('_', ' ').replace('options.', '')}: {message}"
        for name, messages in (by_field or {}).items()
        for message in messages
    ]


def of(operation: Operation) -> Outcome | None:
    """The answer of a preview or a comparison; None where there is none (yet)."""
    result = operation.result
    if not result:
        return None
    if is_of_rollback(operation):
        return _of_rollback(result)
    if operation.kind == OperationKind.PREVIEW:
        return _of_restore(result)
    if operation.kind == OperationKind.COMPARE:
        return _of_comparison(result)
    return None


def _of_rollback(result: Mapping[str, Any]) -> Outcome:
    splits = [
        (source.get("name", ""), move["split"], move["now"], move["then"])
        for source in result.get("sources", ())
        for move in source.get("splits", ())
    ]
    tables = []
    if splits:
        tables.append(
            _table("Positions of the sources", ("Source", "Split", "Now", "Then"), splits)
        )
    return Outcome(sentences=_sentences(result), tables=tables)


_OPERATOR = {
    "kept": "kept",
    "rescaled": "kept, with another parallelism",
    "new": "new: begins empty",
    "dropped": "dropped: its state is left behind",
}
_STATE = {
    "kept": "kept",
    "new": "new: begins empty",
    "changed": "converted",
    "unmappable": "cannot be mapped",
    "dropped": "dropped",
}


def _of_restore(result: Mapping[str, Any]) -> Outcome:
    would = bool(result.get("would_restore"))
    operators = [
        (
            op.get("uid"),
            _OPERATOR.get(op.get("verdict"), op.get("verdict")),
            op.get("stored_parallelism"),
            op.get("parallelism"),
            "; ".join([*_splits(op), *op.get("notes", ())]),
        )
        for op in result.get("operators", ())
    ]
    states = [
        (
            state.get("name"),
            op.get("uid"),
            _STATE.get(state.get("verdict"), state.get("verdict")),
            state.get("stored"),
            state.get("declared"),
            size(state.get("size")) if state.get("size") else None,
            "; ".join(filter(None, (*state.get("changes", ()), state.get("note", "")))),
        )
        for op in result.get("operators", ())
        for state in op.get("states", ())
    ]
    tables = []
    if operators:
        head = ("Operator", "What becomes of it", "Parallelism stored", "In the pipeline", "Notes")
        tables.append(_table("Operators", head, operators, numbers=(2, 3)))
    if states:
        head = (
            "State", "Operator", "What becomes of it", "Stored as", "Declared as", "Size", "Changes"
        )  # fmt: skip
        tables.append(_table("State", head, states, numbers=(5,)))
    return Outcome(
        verdict="The restore would work." if would else "The restore would be refused.",
        tone="good" if would else "bad",
        sentences=_said([*result.get("problems", ()), *result.get("notes", ())]),
        tables=tables,
    )


def _splits(op: Mapping[str, Any]) -> list[str]:
    splits = op.get("splits")
    return [] if splits is None else [f"goes on with {plural(splits, 'split')}"]


def _of_comparison(result: Mapping[str, Any]) -> Outcome:
    """The outputs one after the other, each with what the two sides have; then the jobs."""
    outputs: Sequence[Mapping[str, Any]] = result.get("outputs", ())
    tables = [table for one in outputs for table in (_sides(one), *_samples(one))]
    if len(jobs := result.get("jobs", ())) == 2:
        figures = [(words, show(jobs[0]), show(jobs[1])) for words, show in _OF_JOBS]
        tables.append(_table("The jobs", ("", "This job", "The other"), figures, numbers=(1, 2)))
    are_equal = all(one.get("is_equal") for one in outputs)
    said = "The outputs are the same as far as both have come."
    return Outcome(
        verdict=said if are_equal else "The outputs differ.",
        tone="good" if are_equal else "warn",
        sentences=_sentences(result),
        tables=tables,
    )


def _sides(one: Mapping[str, Any]) -> Table:
    sides = (one.get("left", {}), one.get("right", {}))
    rows = [(words, *(_text(side.get(name)) for side in sides)) for words, name in _OF_SIDES]
    for words, name in (("Rows that are equal", "equal"), ("Rows that differ", "different")):
        rows.append((words, *[_text(one.get(name))] * 2))
    caption = f"Output of {one.get('operator', 'the jobs')}"
    return _table(caption, ("", "This job", "The other"), rows, numbers=(1, 2))


_OF_JOBS: tuple[tuple[str, Callable[[Mapping[str, Any]], str]], ...] = (
    ("Job", lambda job: _text(job.get("job"))),
    ("State", lambda job: _text(job.get("status"))),
    ("Records read", lambda job: _text(job.get("records"))),
    ("Event time", lambda job: event_time(job.get("watermark_ms"))),
    ("Event time behind the clock", lambda job: duration(job.get("event_time_lag_ms"))),
    ("Newest checkpoint", lambda job: _text(job.get("checkpoint"))),
    ("Size of its state", lambda job: size(job.get("state_bytes"))),
    ("How long it took", lambda job: duration(job.get("duration_ms"))),
)
_OF_SIDES = (
    ("Directory", "path"),
    ("Files", "files"),
    ("Rows", "rows"),
    ("First window", "first"),
    ("Last window", "last"),
    ("Before the other’s first window", "earlier"),
    ("After the other’s last window", "later"),
    ("Rows that only it has", "only"),
    ("Rows beyond the first of their key", "duplicates"),
)


def _samples(one: Mapping[str, Any]) -> list[Table]:
    found = []
    for caption, name in (
        ("Rows that only this job’s output has", "only_left"),
        ("Rows that only the other’s output has", "only_right"),
    ):
        rows: list[Mapping[str, Any]] = list(one.get(name) or ())
        if rows:
            head = tuple(dict.fromkeys(column for row in rows for column in row))
            found.append(_table(caption, head, [tuple(row.get(c) for c in head) for row in rows]))
    pairs = [
        (_row(pair.get("key", {})), column, ours, theirs)
        for pair in one.get("differing") or ()
        for column, (ours, theirs) in pair.get("columns", {}).items()
    ]
    if pairs:
        head = ("Row", "Column", "This job", "The other")
        found.append(_table("Values that differ", head, pairs))
    return found


def _row(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={_text(value)}" for name, value in values.items())


def _text(value: Any) -> str:
    if value is None:
        return NOTHING
    is_count = isinstance(value, int) and not isinstance(value, bool)
    return number(value) if is_count else str(value)


def _sentences(result: Mapping[str, Any]) -> list[str]:
    return _said(result.get("sentences", ()))


def _said(texts: Iterable[Any]) -> list[str]:
    found = [str(text) for text in texts if text]
    return [one[:1].upper() + one[1:] + "." * (one[-1] not in ".!?") for one in found]


def _table(
    caption: str,
    head: tuple[str, ...],
    rows: Sequence[tuple[Any, ...]],
    numbers: Iterable[int] = (),
) -> Table:
    if len(rows) > ROWS_MAX:
        caption += f": the first {ROWS_MAX} of {number(len(rows))}"
    plain = [tuple(_text(value) or NOTHING for value in row) for row in rows[:ROWS_MAX]]
    return Table(caption, head, plain, frozenset(numbers))
