"""Results of operations for their pages, above all of previews and comparisons. Pure."""

import json
import posixpath
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from controlplane.base.formatting import (
    NOTHING,
    duration,
    event_time,
    interval,
    listed,
    milliseconds_between,
    number,
    plural,
    size,
)
from frontend.base.status import OPERATION_KIND
from jobs import redaction
from jobs.models import Job, Operation, OperationKind, OperationStatus

ROWS_MAX = 200  # Per table; the API returns all rows.
COLUMNS_NAMED = 6


@dataclass(frozen=True, slots=True)
class Cell:
    """A text in a table."""

    text: str
    label: str  # Its column's heading.
    is_number: bool
    tone: str = ""  # Set for a value that stands out.

    @property
    def is_empty(self) -> bool:
        """Whether the cell has no value."""
        return self.text == NOTHING


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of texts under headings; the first column names the row."""

    caption: str
    head: tuple[str, ...]
    rows: list[tuple[str, ...]]
    numbers: frozenset[int] = frozenset()  # Columns of numbers, aligned to the right.
    verdict_at: int | None = None  # The column whose texts have tones.

    @property
    def headings(self) -> list[tuple[str, bool]]:
        """The heading of each column, and whether the column holds numbers."""
        return [(text, at in self.numbers) for at, text in enumerate(self.head)]

    @property
    def cells(self) -> list[list[Cell]]:
        """The cells of each row."""
        return [
            [
                Cell(
                    text,
                    self.head[at],
                    at in self.numbers,
                    _TONES.get(text, "") if at == self.verdict_at else "",
                )
                for at, text in enumerate(row)
            ]
            for row in self.rows
        ]


@dataclass(frozen=True, slots=True)
class Outcome:
    """A result: a verdict if there is one, sentences, and tables with the figures."""

    verdict: str = ""
    tone: str = "idle"
    sentences: list[str] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)


def is_of_rollback(operation: Operation) -> bool:
    """Whether the operation previews a rollback."""
    return (
        operation.kind == OperationKind.PREVIEW and operation.parameters.get("kind") == "rollback"
    )


def title(operation: Operation) -> str:
    """The operation in words."""
    kind, given = OPERATION_KIND[OperationKind(operation.kind)], operation.parameters
    match operation.kind, given.get("kind"):
        case OperationKind.PREVIEW, "rollback":
            kind = f"{kind} of a rollback"
        case OperationKind.PREVIEW, "restore":
            kind = f"{kind} of a restore"
        case OperationKind.RESCALE, _ if "parallelism" in given:
            return f"{kind} to parallelism {given['parallelism']}"
        case OperationKind.UPGRADE, _ if "runs" in given:
            return f"{kind} to {_pipeline_name(given['runs'])}"
        case OperationKind.COMPARE, _ if "other" in given:
            return f"{kind} with {given['other']}"
    to = given.get("checkpoint")
    return f"{kind} to checkpoint {to:,}" if _goes_back(operation) and isinstance(to, int) else kind


def _pipeline_name(pipeline: Mapping[str, Any]) -> str:
    """A pipeline in short: its module, or the name of its file."""
    return posixpath.basename(str(pipeline.get("pipeline_target") or "a pipeline"))


def _goes_back(operation: Operation) -> bool:
    return is_of_rollback(operation) or operation.kind == OperationKind.ROLLBACK


def asked(operation: Operation) -> list[tuple[str, str]]:
    """The parameters of a preview or comparison, as names and texts."""
    given = redaction.shown("", operation.parameters)
    parameters: list[tuple[str, Any]] = []
    if is_of_rollback(operation):
        parameters = [("From", given.get("restore"))]
    elif operation.kind == OperationKind.PREVIEW:
        pipeline = given.get("pipeline") or {}
        named = (pipeline.get("kind"), pipeline.get("target") or pipeline.get("artifact_digest"))
        allows = given.get("allow_non_restored_state")
        parameters = [
            ("From", given.get("restore")),
            ("Pipeline", " ".join(filter(None, named))),
            ("Parallelism", given.get("parallelism")),
            (
                "Parameters",
                ", ".join(f"{k}={v}" for k, v in (given.get("parameters") or {}).items()),
            ),
            ("Secrets", ", ".join(given.get("secrets") or ())),
            ("Non-restored state", "allowed" if allows else None),
        ]
    elif operation.kind == OperationKind.UPGRADE:
        runs, was = given.get("runs") or {}, given.get("was") or {}
        options = runs.get("options") or {}
        within = given.get("run_within_s")
        parameters = [
            ("Pipeline", _pipeline_of(runs)),
            ("Before", _pipeline_of(was)),
            ("Parallelism", options.get("parallelism")),
            (
                "Parameters",
                ", ".join(f"{k}={v}" for k, v in (options.get("parameters") or {}).items()),
            ),
            ("Secrets", ", ".join(options.get("secrets") or ())),
            ("Non-restored state", "allowed" if options.get("allow_non_restored_state") else None),
            ("Time to come to run", None if within is None else interval(within * 1_000)),
        ]
    elif operation.kind == OperationKind.COMPARE:
        parameters = [
            ("Key", ", ".join(given.get("keys") or ())),
            ("Window", ", ".join(given.get("windows") or ())),
        ]
    return [(name, str(value)) for name, value in parameters if value]


def _pipeline_of(pipeline: Mapping[str, Any]) -> str:
    digest = str(pipeline.get("artifact_digest") or "")[:12]
    named = (pipeline.get("pipeline_kind"), pipeline.get("pipeline_target"), digest)
    return " ".join(filter(None, named))


def as_form(operation: Operation, job: Job) -> dict[str, Any]:
    """The parameters of a restore's preview as initial values of the fork form.

    Parameters that hold a secret are left out: ``withheld`` names those.
    """
    given = operation.parameters
    parameters = given.get("parameters") or {}
    open_ = {name: text for name, text in parameters.items() if redaction.shown(name, text) == text}
    origin, pipeline = str(given.get("of", "")), given.get("pipeline") or {}
    kind = pipeline.get("kind", "")
    target = pipeline.get("artifact_digest") if kind == "upload" else pipeline.get("target")
    own = job.artifact_id if kind == "upload" else job.pipeline_target
    if (kind, target) == (job.pipeline_kind, own):
        kind = target = ""
    initial = {
        "parameters": open_,
        "withheld": [name for name in parameters if name not in open_],
        "secrets": ", ".join(given.get("secrets") or ()),
        "parallelism": given.get("parallelism"),
        "pipeline_kind": kind,
        "pipeline_target": target,
        "allow_non_restored_state": given.get("allow_non_restored_state"),
    }
    if "/" not in origin:  # A path is not offered by any form.
        initial["target"] = f"checkpoint:{origin}" if origin.isdecimal() else f"savepoint:{origin}"
    return initial


def confirmation(operation: Operation) -> dict[str, Any]:
    """The values of the confirmation form on the page of a rollback's preview."""
    given = operation.parameters
    savepoint = given.get("savepoint")
    result = operation.result or {}
    to = given.get("checkpoint")
    return {
        "is_known": bool(operation.result),
        "again": f"savepoint={savepoint}" if savepoint else f"checkpoint={to}",
        "is_forward": result.get("is_forward", False),
        "where": f"checkpoint {to:,}" if isinstance(to, int) else "the savepoint",
        "target": f"savepoint:{savepoint}"
        if savepoint
        else f"checkpoint:{given.get('checkpoint')}",
        "rewind_output": given.get("rewind_output", True),
    }


def errors(by_field: Mapping[str, Iterable[str]] | None) -> list[str]:
    """The messages of a refusal, each with its field."""
    return [
        f"{name.replace('_', ' ').replace('options.', '')}: {message}"
        for name, messages in (by_field or {}).items()
        for message in messages
    ]


def said(operation: Operation) -> str:
    """The result of an operation that succeeded, in a sentence; empty for others."""
    if operation.status != OperationStatus.SUCCEEDED:
        return ""
    result, given = operation.result or {}, operation.parameters
    took = duration(milliseconds_between(operation.created_at, operation.ended_at))
    name, which = given.get("name"), result.get("checkpoint")
    numbered = f" It is checkpoint {which:,}." if isinstance(which, int) else ""
    match OperationKind(operation.kind):
        case OperationKind.SAVEPOINT:
            return f"Savepoint {name} was taken in {took}.{numbered}"
        case OperationKind.STOP:
            return f"The job was stopped with savepoint {name} in {took}.{numbered}"
        case OperationKind.CHECKPOINT:
            return f"The checkpoint was taken in {took}.{numbered}"
        case OperationKind.ROLLBACK:
            to = given.get("checkpoint")
            where = f"from checkpoint {to:,} " if isinstance(to, int) else ""
            return f"The job is running again {where}after {took}."
        case OperationKind.RESCALE:
            return f"The job is running with parallelism {given.get('parallelism')} after {took}."
        case OperationKind.UPGRADE:
            return f"The job is running {_pipeline_name(given.get('runs') or {})} after {took}."
        case OperationKind.RESTART | OperationKind.SUBMIT:
            return f"The job is running after {took}."
        case OperationKind.FORK:
            return f"The fork runs, {took} after the request."
        case OperationKind.DISCARD:
            return f"Savepoint {name} was deleted with its files."
        case OperationKind.CANCEL:
            return f"The job was cancelled in {took}."
        case OperationKind.PREVIEW | OperationKind.COMPARE:
            return f"Done in {took}."


def operation_outcome(operation: Operation) -> Outcome | None:
    """The result of a preview or comparison; None for others, and until there is one."""
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
        (source.get("name", ""), _split(move["split"]), _at(move["now"]), _at(move["then"]))
        for source in result.get("sources", ())
        for move in source.get("splits", ())
    ]
    tables = []
    if splits:
        count = sum(source.get("split_count") or 0 for source in result.get("sources", ()))
        caption = "Positions of the sources that change"
        if count > len(splits):
            caption += f", {number(len(splits))} of {number(count)}"
        numbers = {at for at in (2, 3) if any(row[at][:1].isdecimal() for row in splits)}
        tables.append(_table(caption, ("Source", "Split", "Now", "Then"), splits, numbers))
    return Outcome(sentences=_sentences(result), tables=tables)


def _split(text: str) -> str:
    """A split without the punctuation of JSON, where that loses nothing."""
    try:
        split = json.loads(text)
    except ValueError:
        return text  # The text was shortened.
    is_plain = isinstance(split, dict) and all(type(v) in (str, int) for v in split.values())
    return ", ".join(f"{name} {value}" for name, value in split.items()) if is_plain else text


def _at(position: str) -> str:
    """A position; a count is formatted as one."""
    return number(int(position)) if position.isascii() and position.isdecimal() else position


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
_TONES = {
    "converted": "warn",
    "cannot be mapped": "bad",
    "dropped": "warn",
    "dropped: its state is left behind": "warn",
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
            op.get("uid"),
            state.get("name"),
            _STATE.get(state.get("verdict"), state.get("verdict")),
            _type(state.get("stored")),
            _type(state.get("declared")),
            size(state.get("size")) if state.get("size") else None,
            "; ".join(filter(None, (*state.get("changes", ()), state.get("note", "")))),
        )
        for op in result.get("operators", ())
        for state in op.get("states", ())
    ]
    tables = []
    if operators:
        head = ("Operator", "Result", "Stored parallelism", "New parallelism", "Notes")
        tables.append(_table("Operators", head, operators, numbers=(2, 3), verdict_at=1))
    if states:
        headings = (
            "Operator", "State", "Result", "Stored as", "Declared as", "Size", "Changes"
        )  # fmt: skip
        tables.append(_table("State", headings, states, numbers=(5,), verdict_at=2))
    return Outcome(
        verdict="The restore would work." if would else "The restore would be refused.",
        tone="good" if would else "bad",
        sentences=_said([*result.get("problems", ()), *result.get("notes", ())]),
        tables=tables,
    )


def _splits(op: Mapping[str, Any]) -> list[str]:
    splits = op.get("splits")
    return [] if splits is None else [f"resumes {plural(splits, 'split')}"]


_COMPOSED = re.compile(r"(?P<form>\w+) of (?P<type>\[.*\])")


def _type(text: str | None) -> str | None:
    """A state's type in short, as ``map of MAP<STRING, ROW<a INT>>``.

    Composed types come as JSON; any other text stays as it is.
    """
    match = _COMPOSED.fullmatch(text or "")
    if match is None:
        return text
    try:
        said = _composed(json.loads(match["type"]))
    except (ValueError, TypeError, IndexError):
        return text
    # The type of a list state is a list already.
    return said if said.startswith(f"{match['form'].upper()}<") else f"{match['form']} of {said}"


def _composed(parts: Any) -> str:
    if isinstance(parts, str):
        return parts
    if parts[0] == "ROW_NAMED" and len(parts[1]) == len(parts[2]):
        named = zip(parts[1], parts[2], strict=True)
        return f"ROW<{', '.join(f'{name} {_composed(part)}' for name, part in named)}>"
    inner = [_composed(part) for part in parts[1:]]
    return f"{_composed(parts[0])}<{', '.join(inner)}>"


def _of_comparison(result: Mapping[str, Any]) -> Outcome:
    """The comparison of each output on both sides, then the figures of the two jobs."""
    outputs: Sequence[Mapping[str, Any]] = result.get("outputs", ())
    jobs: Sequence[Mapping[str, Any]] = result.get("jobs", ())
    names = _names(jobs)
    tables = [table for one in outputs for table in (_sides(one, names), *_samples(one, names))]
    sentences = [said for one in outputs for said in _said_of_output(one, names)]
    if len(jobs) == 2:
        figures = [(words, show(jobs[0]), show(jobs[1])) for words, show in _OF_JOBS]
        tables.append(_table("The jobs", ("", *names), figures, numbers=(1, 2)))
    else:
        sentences += result.get("sentences", ())
    are_equal = all(one.get("is_equal") for one in outputs)
    if are_equal and not any(one.get("equal") for one in outputs):
        verdict, tone = "The jobs have no rows in common yet.", "idle"
    elif are_equal:
        verdict, tone = "The outputs are equal as far as both jobs have progressed.", "good"
    else:
        verdict, tone = "The outputs differ.", "warn"
    return Outcome(verdict=verdict, tone=tone, sentences=_said(sentences), tables=tables)


def _names(jobs: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """The headings of the two jobs' columns."""
    if len(jobs) != 2:
        return "this job", "the other job"
    ours, theirs = (_text(job.get("name") or job.get("job")) for job in jobs)
    if ours == theirs:
        ours, theirs = (_text(job.get("job")) for job in jobs)
    return f"{ours} (this job)", theirs


def _said_of_output(one: Mapping[str, Any], names: tuple[str, str]) -> Iterable[str]:
    """Sentences on one output: equal and different rows, and columns that differ."""
    where = f"output of {one.get('operator', 'the jobs')}"
    counts = [f"{plural(one.get('equal') or 0, 'row')} equal"]
    if one.get("different"):
        counts.append(f"{plural(one['different'], 'row')} with other values")
    sides = list(zip(names, (one.get("left") or {}, one.get("right") or {}), strict=True))
    counts += [f"{plural(s['only'], 'row')} only in {name}" for name, s in sides if s.get("only")]
    said = f"{where}: {', '.join(counts)}"
    if one.get("complete_to") is not None:
        said += f", in windows from {_text(one['complete_from'])} to {_text(one['complete_to'])}"
    yield said
    for name, side in sides:
        if side.get("columns"):
            columns = listed(list(side["columns"]), COLUMNS_NAMED)
            yield f"{where}: columns only in {name}: {columns}; the outputs differ"
    for column in one.get("columns") or ():
        if column.get("count"):
            rows = plural(column["count"], "row")
            largest = column.get("largest")
            by = "" if largest is None else f", by {largest:g} at most"
            yield f"{where}: {column['name']} differs in {rows}{by}"


def _sides(one: Mapping[str, Any], names: tuple[str, str]) -> Table:
    sides = (one.get("left", {}), one.get("right", {}))
    rows = [(words, *(_text(side.get(name)) for side in sides)) for words, name in _OF_SIDES]
    for words, name in (("Equal rows", "equal"), ("Rows with other values", "different")):
        rows.append((words, *[_text(one.get(name))] * 2))
    caption = f"Output of {one.get('operator', 'the jobs')}"
    return _table(caption, ("", *names), rows, numbers=(1, 2))


_OF_JOBS: tuple[tuple[str, Callable[[Mapping[str, Any]], str]], ...] = (
    ("Job", lambda job: _text(job.get("job"))),
    ("State", lambda job: _text(job.get("status"))),
    ("Records read", lambda job: _text(job.get("records"))),
    ("Event time", lambda job: event_time(job.get("watermark_ms"))),
    ("Event time behind the clock", lambda job: duration(job.get("event_time_lag_ms"))),
    ("Newest checkpoint", lambda job: _text(job.get("checkpoint"))),
    ("Size of its state", lambda job: size(job.get("state_bytes"))),
    ("Duration of that checkpoint", lambda job: duration(job.get("duration_ms"))),
)
_OF_SIDES = (
    ("Directory", "path"),
    ("Files", "files"),
    ("Rows", "rows"),
    ("First window", "first"),
    ("Last window", "last"),
    ("Rows before the other’s first window", "earlier"),
    ("Rows after the other’s last window", "later"),
    ("Rows only in this output", "only"),
    ("Rows that repeat a key", "duplicates"),
)


def _samples(one: Mapping[str, Any], names: tuple[str, str]) -> list[Table]:
    tables = []
    # JSON documents in the database do not keep the order of keys.
    by = [*(one.get("key") or ()), *(one.get("window") or ())]
    for at, side in enumerate(("left", "right")):
        rows: list[Mapping[str, Any]] = list(one.get(f"only_{side}") or ())
        if rows:
            head = tuple(dict.fromkeys([*by, *(column for row in rows for column in row)]))
            cells = [tuple(row.get(column) for column in head) for row in rows]
            caption = _of_all(f"Rows only in {names[at]}", rows, one.get(side, {}).get("only"))
            tables.append(_table(caption, head, cells, numbers=_numeric(cells)))
    differing = list(one.get("differing") or ())
    pairs = [
        (_row(pair.get("key", {}), by), column, ours, theirs)
        for pair in differing
        for column, (ours, theirs) in pair.get("columns", {}).items()
    ]
    if pairs:
        caption = _of_all("Values that differ", differing, one.get("different"))
        tables.append(_table(caption, ("Row", "Column", *names), pairs, numbers=(2, 3)))
    for at, side in enumerate(("left", "right")):
        twice = [
            (_row(o.get("row", {}), by), o.get("count")) for o in one.get(f"twice_{side}") or ()
        ]
        if twice:
            caption = f"Repeated keys in {names[at]}"
            tables.append(_table(caption, ("Row", "Rows"), twice, numbers=(1,)))
    return tables


def _of_all(caption: str, shown: Sequence[Any], count: int | None) -> str:
    """A caption with the number of all rows, where only some are shown."""
    if not count or count <= len(shown):
        return caption
    return f"{caption}: {number(len(shown))} of {plural(count, 'row')}"


def _numeric(rows: Sequence[tuple[Any, ...]]) -> set[int]:
    """The columns that hold only numbers."""
    return {
        at
        for at, column in enumerate(zip(*rows, strict=True))
        if any(value is not None for value in column)
        and all(type(value) in (int, float, type(None)) for value in column)
    }


def _row(values: Mapping[str, Any], by: Sequence[str]) -> str:
    names = dict.fromkeys([*(name for name in by if name in values), *values])
    return ", ".join(f"{name}={_text(values[name])}" for name in names)


_UTC = re.compile(r"(?<=\d\d:\d\d)\+00:00$")


def _text(value: Any) -> str:
    if value is None:
        return NOTHING
    is_count = isinstance(value, int) and not isinstance(value, bool)
    return number(value) if is_count else _UTC.sub(" UTC", str(value))


def _sentences(result: Mapping[str, Any]) -> list[str]:
    return _said(result.get("sentences", ()))


def _said(texts: Iterable[Any]) -> list[str]:
    sentences = [str(text) for text in texts if text]
    return [one[:1].upper() + one[1:] + "." * (one[-1] not in ".!?") for one in sentences]


def _table(
    caption: str,
    head: tuple[str, ...],
    rows: Sequence[tuple[Any, ...]],
    numbers: Iterable[int] = (),
    verdict_at: int | None = None,
) -> Table:
    if len(rows) > ROWS_MAX:
        caption += f": the first {ROWS_MAX} of {number(len(rows))}"
    plain = [tuple(_text(value) or NOTHING for value in row) for row in rows[:ROWS_MAX]]
    return Table(caption, head, plain, frozenset(numbers), verdict_at)
