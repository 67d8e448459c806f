"""Random programs on real Spark: records cross processes, and the sinks hand them to the driver.

Most of a job's time is the start of its slots and workers, so several programs share one job: as
many pipelines that have nothing in common. A program that must fail has a job of its own.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from pyspark import SparkContext

from tests.programs.build import write
from tests.programs.check import Meaning, difference, meaning_of
from tests.programs.generate import all_but, programs
from tests.programs.model import Program
from tests.programs.run import Outcome, Variation
from tests.programs.source_text import body_of, script_of
from tests.programs.values import remove_files
from tests.spark.harness import environment
from weir.common.row_codec import decode_rows
from weir.config import RestartConfig, RestartStrategyKind
from weir.datastream import StreamExecutionEnvironment
from weir.errors import WeirError
from weir.ids import CheckpointId, SubtaskId
from weir.jobmaster.collected_output import Deliveries
from weir.protocol.lifecycle import JobStatus

JOBS = 4
PROGRAMS = 5  # In each of them.
MUST_FAIL = 2
SEED = 8

Outputs = dict[str, list[Any]]


@dataclass(frozen=True, slots=True)
class Drawn:
    """A program whose sinks have names that no other program's sinks have, and its meaning."""

    program: Program
    meaning: Meaning

    @property
    def text(self) -> str:
        """Its statements."""
        return body_of(self.program)


@cache
def drawn(avoid: frozenset[str], *, must_fail: bool, count: int) -> list[Drawn]:
    """Some programs, all different; the same ones whenever they are asked for."""
    met: dict[Program, Meaning] = {}

    @seed(SEED)
    @settings(
        max_examples=4 * count,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(programs(avoid))
    def draw(program: Program) -> None:
        meaning = meaning_of(body_of(program))
        if (meaning.refusal is not None) is must_fail:
            met[program] = meaning

    draw()
    assert len(met) >= count
    # Those that are drawn one after the other are often alike, and the first ones small.
    spread = list(met.items())[:: len(met) // count][-count:]
    return [_named(number, *one) for number, one in enumerate(spread)]


def _named(number: int, program: Program, meaning: Meaning) -> Drawn:
    def name(uid: str) -> str:
        return f"program-{number}-{uid}"

    outputs = tuple(replace(output, uid=name(output.uid)) for output in program.outputs)
    meant = {name(uid): rows for uid, rows in meaning.outputs.items()}
    return Drawn(replace(program, outputs=outputs), replace(meaning, outputs=meant))


@pytest.fixture(autouse=True, scope="module")
def no_files_left() -> Iterator[None]:
    """Deletes what Parquet sources read."""
    yield
    remove_files()


@pytest.fixture
def outputs(monkeypatch: pytest.MonkeyPatch) -> Outputs:
    """The rows that reach the driver, by the sink that they come from."""
    rows: Outputs = defaultdict(list)
    production = Deliveries.collect

    def collect(
        deliveries: Deliveries, subtask: SubtaskId, checkpoint_id: CheckpointId, payload: bytes
    ) -> None:
        rows[subtask.operator] += decode_rows(payload, pickles=True)
        production(deliveries, subtask, checkpoint_id, payload)

    monkeypatch.setattr(Deliveries, "collect", collect)
    return rows


def job(tmp_path: Path, parallelism: int) -> StreamExecutionEnvironment:
    """An environment whose job fails with its first failure."""
    # A program may declare a state as pickles.
    allowed = {"weir.state.allow-pickled": "true"}
    env = environment(tmp_path / "checkpoints", parallelism=parallelism, settings=allowed)
    return env.set_restart_strategy(RestartConfig(kind=RestartStrategyKind.NONE))


def scripts(of_job: list[Drawn], parallelism: int) -> str:
    """The programs of a job, each to be pasted and run by itself."""
    variation = Variation(parallelism=parallelism)
    return "\n".join(script_of(one.program, variation) for one in of_job)


@pytest.mark.parametrize("number", range(JOBS))
def test_programs_give_what_they_mean(
    number: int, local: SparkContext, tmp_path: Path, outputs: Outputs
) -> None:
    every = drawn(frozenset({"failing"}), must_fail=False, count=JOBS * PROGRAMS)
    of_job = every[number::JOBS]
    parallelism = 1 + number % 3
    env = job(tmp_path, parallelism)
    try:
        for one in of_job:
            write(one.text, env)
        env.execute(f"programs {number}")
    except WeirError as error:
        pytest.fail(f"{error}\n{scripts(of_job, parallelism)}")
    outcome = Outcome(JobStatus.FINISHED.value, outputs=outputs)
    for one in of_job:
        told = difference(one.program.outputs, one.meaning, outcome)
        assert not told, f"{told}\n{scripts([one], parallelism)}"
    assert outputs.keys() <= {uid for one in of_job for uid in one.meaning.outputs}
    assert any(outputs.values())


@pytest.mark.parametrize("number", range(MUST_FAIL))
def test_a_program_that_must_fail_does(number: int, local: SparkContext, tmp_path: Path) -> None:
    avoid = all_but("collection", "generator", "failing")
    one = drawn(avoid, must_fail=True, count=MUST_FAIL)[number]
    parallelism = 2 + number
    env = job(tmp_path, parallelism)
    outcome = Outcome(JobStatus.FINISHED.value)
    try:
        write(one.text, env)
        env.execute(f"program {number} that must fail")
    except WeirError as error:
        outcome = Outcome(JobStatus.FAILED.value, str(error))
    told = difference(one.program.outputs, one.meaning, outcome)
    assert not told, f"{told}\n{scripts([one], parallelism)}"
