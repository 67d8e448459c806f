"""The results of a soak: a line for each round, from which it can be resumed, and its table; pure.

But for ``Log``, which appends the lines: a kill loses the line that is being written, at most.
"""

import json
import os
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import Any

from tests.soak.schedule import Where


class Outcome(StrEnum):
    """The way that a round went."""

    GOOD = "good"
    CALM = "nothing fired"  # It showed nothing, and counts as no success.
    FINDING = "finding"


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A round after it has run."""

    seed: int
    where: Where
    outcome: Outcome
    seconds: float
    struck: Sequence[dict[str, Any]] = field(default_factory=list)  # As ``faults.Struck`` has it.
    checkpoints: int = 0  # The number of the newest.
    attempts: int = 0
    lost: int = 0
    duplicated: int = 0
    out_of_order: int = 0
    unneeded: int = 0
    looks: int = 0  # At the storage, for files that nothing needs.
    wrong: Sequence[str] = field(default_factory=list)


def parse(text: str) -> list[Result]:
    """The results in a file; a last line that was cut off is left out.

    Raises:
        ValueError: A line before the last one is none of a soak's.
    """
    lines = text.splitlines(keepends=True)
    if lines and not lines[-1].endswith("\n"):
        lines.pop()
    known = {one.name for one in fields(Result)}
    results = []
    for number, line in enumerate(lines, 1):
        values = json.loads(line)
        if not isinstance(values, dict) or not values.keys() <= known:
            raise ValueError(f"line {number} is no result of a soak: {line[:80]!r}")
        places = {"where": Where(values["where"]), "outcome": Outcome(values["outcome"])}
        results.append(Result(**values | places))
    return results


@dataclass(slots=True)
class Log:
    """The file of the results."""

    path: Path
    results: list[Result] = field(default_factory=list)

    @classmethod
    def open(cls, path: Path) -> "Log":
        """Read the results that there are; a line that was cut off goes."""
        if not path.exists():
            return cls(path)
        results = parse(path.read_text(encoding="utf-8"))
        path.write_text("".join(map(_line, results)), encoding="utf-8")
        return cls(path, results)

    def append(self, result: Result) -> None:
        """Write one more line, durably."""
        self.results.append(result)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(_line(result))
            file.flush()
            os.fsync(file.fileno())


def _line(result: Result) -> str:
    return json.dumps(asdict(result), separators=(",", ":")) + "\n"


def next_seed(first: int, results: Iterable[Result]) -> int:
    """The seed of the next round."""
    return max((one.seed + 1 for one in results), default=first)


def seconds_left(minutes: float, where: Where, results: Iterable[Result]) -> float:
    """The time that a place has left, of so many minutes."""
    return minutes * 60 - sum(one.seconds for one in results if one.where is where)


# The table -----------------------------------------------------------------------------------


def table(results: Sequence[Result]) -> str:
    """The rounds of each place, and every kind of fault with what came of it."""
    blocks = []
    for where in Where:
        rounds = [one for one in results if one.where is where]
        if rounds:
            blocks.append(_of_place(where, rounds))
    return "\n\n".join(blocks)


def _of_place(where: Where, rounds: Sequence[Result]) -> str:
    outcomes = ", ".join(
        f"{outcome} {sum(one.outcome is outcome for one in rounds)}" for outcome in Outcome
    )
    kinds: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for one in rounds:
        for struck in one.struck:
            row = kinds[struck["kind"]]
            row[0] += 1
            row[1] += struck["fired"]
            row[2] += struck["recovered"]
            row[3] += struck["attempts"]
    total = [sum(row[i] for row in kinds.values()) for i in range(4)]
    width = max([len("kind of fault"), *map(len, kinds)])
    head = f"{'kind of fault':{width}}  planned  fired  recovered  restores"
    body = [f"{kind:{width}}  {_figures(row)}" for kind, row in sorted(kinds.items())]
    figures = (
        ("lost", "lost"),
        ("duplicated", "duplicated"),
        ("out of order", "out_of_order"),
        ("files unneeded", "unneeded"),
        ("looks at a storage", "looks"),
    )
    told = ", ".join(f"{name} {sum(getattr(one, key) for one in rounds)}" for name, key in figures)
    minutes = sum(one.seconds for one in rounds) / 60
    return "\n".join(
        [
            f"{where}: {len(rounds)} rounds in {minutes:.1f} minutes: {outcomes}",
            head,
            *body,
            f"{'all':{width}}  {_figures(total)}",
            told,
        ]
    )


def _figures(row: Sequence[int]) -> str:
    return f"{row[0]:7}  {row[1]:5}  {row[2]:9}  {row[3]:8}"
