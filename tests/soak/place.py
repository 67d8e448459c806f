"""The directories of one round, and what the job is told of it: a file that the pipeline reads."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # The job reads this module, and has no use for the generator.
    from tests.soak.drawn import Drawn
    from tests.soak.schedule import Schedule

RECORDS = 30_000  # Of each source: more than a round lets pass before it hurries,
RATE = 120.0  # a second.


@dataclass(frozen=True, slots=True)
class Place:
    """The directory of a round."""

    root: Path

    @property
    def told(self) -> Path:
        """The settings of the job and its programs."""
        return self.root / "round.json"

    @property
    def numbered(self) -> Path:
        """The output of the numbered records."""
        return self.root / "output" / "numbered"

    @property
    def inputs(self) -> Path:
        """The files that Parquet sources read."""
        return self.root / "inputs"

    @property
    def offset(self) -> Path:
        """The file with the error of the wall clock."""
        return self.root / "clock-offset"

    @property
    def hurry(self) -> Path:
        """The file that lets the sources keep to no rate any more."""
        return self.root / "hurry"

    @property
    def logs(self) -> Path:
        """The logs of the round's drivers and their events."""
        return self.root / "logs"

    def output_of(self, number: int) -> Path:
        """The directory of the outputs of a program."""
        return self.root / "output" / f"program-{number}"

    def tell(self, schedule: "Schedule", drawn: "Sequence[Drawn]") -> None:
        """Make the directories, and write what the pipeline reads."""
        for directory in (self.inputs, self.logs, self.numbered.parent):
            directory.mkdir(parents=True)
        programs = [{"text": one.text, "outputs": one.outputs} for one in drawn]
        self.told.write_text(json.dumps(schedule.as_json() | {"programs": programs}, indent=1))

    def read(self) -> dict[str, Any]:
        """The settings of the job and its programs."""
        told: dict[str, Any] = json.loads(self.told.read_text())
        return told
