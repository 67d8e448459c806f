"""The programs of a round: drawn from its seed, and their outputs compared with what they mean."""

import base64
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cloudpickle
import pyarrow.parquet as pq
from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.programs.check import Meaning, canonical, difference, last_of_keys, meaning_of
from tests.programs.generate import programs
from tests.programs.model import Order, Output, Program
from tests.programs.run import Outcome
from tests.programs.source_text import body_of
from tests.spark.harness import Count
from weir.operators.sinks.parquet_sink import committed_files
from weir.protocol.lifecycle import JobStatus

DRAWS = 12  # For each program that is wanted; the first ones are small.
ROWS_MIN = 12


@dataclass(frozen=True, slots=True)
class Drawn:
    """A program, the text of its streams, and its meaning."""

    program: Program
    meaning: Meaning

    @property
    def text(self) -> str:
        """The statements that build its streams; its sinks are the soak's own."""
        return "\n".join(stage.text for stage in self.program.stages)

    @property
    def outputs(self) -> list[tuple[str, str, int | None]]:
        """The uid, the stream and the parallelism of each output."""
        return [(one.uid, one.stream, one.parallelism) for one in self.program.outputs]


def draw(number: int, count: int) -> list[Drawn]:
    """The programs of a seed, all different, none of which must fail."""
    met: dict[Program, Meaning] = {}

    @seed(number)
    @settings(
        max_examples=DRAWS * count,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(programs(frozenset({"failing"}), rows_min=ROWS_MIN))
    def one(program: Program) -> None:
        meaning = meaning_of(body_of(program))
        if meaning.refusal is None:
            met[program] = meaning

    one()
    # Those that are drawn last are the largest.
    return [Drawn(*each) for each in list(met.items())[-count:]]


def records_of(directory: Path) -> list[Any]:
    """The records in the committed files of an output, those of one key in their order."""
    if not directory.exists():
        return []
    return [
        cloudpickle.loads(base64.b64decode(row["record"]))
        for path in committed_files(directory)
        for row in pq.read_table(path).to_pylist()
    ]


def compare(drawn: Drawn, directory: Path) -> tuple[Count, str]:
    """The records lost, duplicated and out of order, and the differences in words."""
    given = {one.uid: records_of(directory / one.uid) for one in drawn.program.outputs}
    outcome = Outcome(JobStatus.FINISHED.value, outputs=given)
    lost = duplicated = out_of_order = 0
    for output in drawn.program.outputs:
        one = _count(output, drawn.meaning.outputs[output.uid], given[output.uid])
        lost, duplicated = lost + one.lost, duplicated + one.duplicated
        if not (one.lost or one.duplicated):
            out_of_order += bool(difference([output], drawn.meaning, outcome))
    return Count(lost, duplicated, out_of_order), difference(
        drawn.program.outputs, drawn.meaning, outcome
    )


def _count(output: Output, wanted: list[Any], given: list[Any]) -> Count:
    if output.order is Order.LAST:
        wanted, given = last_of_keys(wanted), last_of_keys(given)
    meant, written = Counter(map(canonical, wanted)), Counter(map(canonical, given))
    return Count((meant - written).total(), (written - meant).total(), 0)
