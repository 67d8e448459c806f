"""The comparison of a run with the meaning of its program.

Values are compared with their types: 1, True and 1.0 differ, so do a tuple, a list and a Row, and
0.0 and -0.0; NaN equals itself.
"""

import struct
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.programs import oracle
from tests.programs.model import Order, Output
from tests.programs.run import Outcome, Variation, run
from weir.common import Row
from weir.errors import WeirError
from weir.protocol.lifecycle import JobStatus

SHOWN = 6


@dataclass(frozen=True, slots=True)
class Meaning:
    """The meaning of a program: its outputs, or a failure that names a record."""

    outputs: dict[str, list[Any]] = field(default_factory=dict)
    refusal: str | None = None
    names: str = ""


class Wrong(AssertionError):
    """A run gave something else than its program means."""


def meaning_of(text: str) -> Meaning:
    """The meaning of a program, as the oracle has it."""
    try:
        return Meaning(oracle.evaluate(text))
    except oracle.Refused as refused:
        return Meaning(refusal=str(refused), names=refused.names)


def check(text: str, outputs: Iterable[Output], meaning: Meaning, variation: Variation) -> Outcome:
    """Run a program under a variation and compare.

    Raises:
        Wrong: It gave something else.
    """
    try:
        outcome = run(text, variation)
    except WeirError as error:
        outcome = Outcome("refused", str(error))
    if variation.windows_ms is not None and outcome.status == JobStatus.FINISHED:
        told = _regrouped(outputs, meaning, outcome)
    else:
        told = difference(outputs, meaning, outcome)
    if told:
        raise Wrong(f"{variation}\n{told}")
    return outcome


def difference(outputs: Iterable[Output], meaning: Meaning, outcome: Outcome) -> str:
    """The differences of a run from the meaning of its program; empty where there are none."""
    if meaning.refusal is not None:
        if outcome.status == JobStatus.FINISHED:
            return f"finished, but must fail: {meaning.refusal}\n{dict(outcome.outputs)}"
        if meaning.names and "record" not in outcome.cause:
            return f"failed without naming a record ({meaning.refusal}):\n{outcome.cause[-800:]}"
        if outcome.status not in (JobStatus.FAILED, "refused"):
            return f"{outcome.status}, but must fail: {outcome.cause}"
        return ""
    if outcome.status != JobStatus.FINISHED:
        return f"{outcome.status}: {outcome.cause[-1_500:]}"
    told = (
        _compared(output, meaning.outputs[output.uid], outcome.outputs.get(output.uid, []))
        for output in outputs
    )
    return "\n".join(text for text in told if text)


def _compared(output: Output, wanted: Sequence[Any], given: Sequence[Any]) -> str:
    if output.order is Order.LAST:
        wanted, given = last_of_keys(wanted), last_of_keys(given)
    lost = Counter(map(canonical, wanted)) - Counter(map(canonical, given))
    more = Counter(map(canonical, given)) - Counter(map(canonical, wanted))
    if lost or more:
        return (
            f"{output.uid}: of {len(wanted)} records {lost.total()} are lost or other, "
            f"{more.total()} are too many or other\n"
            f"  wanted {_shown(wanted, lost)}\n  given  {_shown(given, more)}"
        )
    if output.order in (Order.KEY, Order.TOTAL):
        of_wanted, of_given = _by_key(wanted), _by_key(given)
        for key, values in of_wanted.items():
            if list(map(canonical, values)) != list(map(canonical, of_given[key])):
                return f"{output.uid}: out of order\n  wanted {values}\n  given  {of_given[key]}"
    return ""


def _regrouped(outputs: Iterable[Output], meaning: Meaning, outcome: Outcome) -> str:
    """The differences where windows were of two sizes: every value counts once, in some window."""
    for output in outputs:
        wanted = Counter(_values(meaning.outputs[output.uid]))
        given = Counter(_values(outcome.outputs.get(output.uid, [])))
        if wanted != given:
            lost, more = wanted - given, given - wanted
            return f"{output.uid}: {lost.total()} values are lost, {more.total()} are too many"
    return ""


def _values(rows: Iterable[Any]) -> Iterator[Any]:
    for row in rows:
        value = row["v"] if isinstance(row, dict) else row[2]
        yield from map(canonical, value if isinstance(value, list) else [value])


def _shown(rows: Sequence[Any], wrong: Counter[Any]) -> str:
    picked = [row for row in rows if canonical(row) in wrong]
    return f"{picked[:SHOWN]}{' …' if len(picked) > SHOWN else ''}"


def _by_key(rows: Iterable[Any]) -> dict[Any, list[Any]]:
    groups: dict[Any, list[Any]] = defaultdict(list)
    for row in rows:
        groups[_key(row)].append(row)
    return groups


def last_of_keys(rows: Iterable[Any]) -> list[Any]:
    """The last row of each key."""
    return list({_key(row): row for row in rows}.values())


def _key(row: Any) -> Any:
    first = row["k"] if isinstance(row, dict) else row[0]
    return canonical(0.0 if isinstance(first, float) and first == 0 else first)


def canonical(value: Any) -> Any:
    """A form in which values are equal that are the same in type and content."""
    kind = type(value).__name__
    if isinstance(value, float):
        return kind, "nan" if value != value else struct.pack("!d", value)
    if isinstance(value, Row):
        return "Row", value.field_names, tuple(map(canonical, value))
    if isinstance(value, tuple | list):
        return kind, tuple(map(canonical, value))
    if isinstance(value, dict):
        return kind, tuple((canonical(key), canonical(item)) for key, item in value.items())
    return kind, repr(value)


def show(path: str, variation: Variation) -> None:
    """Run a pasted script once more and print what it means and what it gives."""
    script = Path(path).read_text(encoding="utf-8")
    body = script.partition("get_execution_environment()\n")[2].partition("\nif __name__")[0]
    meaning = meaning_of(body)
    try:
        outcome = run(body, variation)
    except WeirError as error:
        outcome = Outcome("refused", str(error))
    print("wanted:", meaning.refusal or meaning.outputs)
    print("given: ", outcome.cause if outcome.cause else dict(outcome.outputs))
