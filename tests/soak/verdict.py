"""The verdict on a round: its output beside what it means, and its storage as ``weir checkpoints``.

A job that has finished, and one that was cancelled, leave no file that nothing needs, and none that
is damaged.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.soak.drawn import Drawn, compare
from tests.soak.place import RECORDS, Place
from tests.soak.schedule import PARALLELISM
from tests.spark.harness import count, rows_of, wrong_numbers
from weir.cli.checkpoints import Condition, ListedJob, list_jobs
from weir.cli.uri import find_place
from weir.ids import JobId

_GOOD = (Condition.WHOLE, Condition.GIVEN_UP)


@dataclass(slots=True)
class Verdict:
    """Figures of a round, and all that is wrong in words."""

    lost: int = 0
    duplicated: int = 0
    out_of_order: int = 0
    unneeded: int = 0
    looks: int = 0  # At the storage.
    wrong: list[str] = field(default_factory=list)

    def output(self, place: Place, drawn: Sequence[Drawn]) -> None:
        """Compare all output of a finished job."""
        rows = rows_of(place.numbered)
        counts = [("numbered records", count(map(_by_split, rows), RECORDS), "")]
        counts += [
            (f"program {number}", *compare(one, place.output_of(number)))
            for number, one in enumerate(drawn)
        ]
        for what, counted, told in counts:
            self.lost += counted.lost
            self.duplicated += counted.duplicated
            self.out_of_order += counted.out_of_order
            if told or counted.lost or counted.duplicated or counted.out_of_order:
                self.wrong.append(f"{what}: {counted} {told}".strip())
        if keys := wrong_numbers(rows):
            self.wrong.append(f"state counted wrong for the keys {sorted(keys)}")

    def storage(self, storage: Path, job: JobId, moment: str) -> None:
        """Look at the files of a job whose driver is over."""
        self.looks += 1
        for listed in _listed(storage, job):
            self.unneeded += listed.leftovers
            if listed.leftovers:
                self.wrong.append(f"{moment}: nothing needs {listed.leftovers} of its files")
            self.wrong += _said(f"{moment}: ", listed.notes)
            for one in listed.checkpoints:
                if one.condition not in _GOOD:
                    told = f"checkpoint {one.checkpoint_id} is {one.condition}: {one.reason}"
                    self.wrong.append(f"{moment}: {told}")


def _by_split(row: Sequence[Any]) -> tuple[Any, ...]:
    """A row with the split beside the reader: after a rescale one subtask may read several."""
    source, position, reader, *others = row
    return source, position, (reader, position % PARALLELISM), *others


def leftovers(storage: Path, job: JobId) -> int:
    """The number of a job's files that nothing needs."""
    return sum(one.leftovers for one in _listed(storage, job))


def _listed(storage: Path, job: JobId) -> list[ListedJob]:
    return list_jobs(find_place(f"{storage}/{job}"), read_files=True)


def _said(before: str, notes: Iterable[str]) -> list[str]:
    return [f"{before}{note}" for note in notes]
