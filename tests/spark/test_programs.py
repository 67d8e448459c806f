"""Random programs on real Spark: records cross processes, and the sinks hand them to the driver."""

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from pyspark import SparkContext

from tests.programs.build import write
from tests.programs.check import canonical, meaning_of
from tests.programs.generate import programs
from tests.programs.model import Program
from tests.programs.run import Variation
from tests.programs.source_text import body_of, script_of
from tests.programs.values import remove_files
from tests.spark.harness import environment
from weir.config import RestartConfig, RestartStrategyKind
from weir.errors import WeirError

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

PROGRAMS = 20
# A running aggregate in columns has as many rows as there were slices.
AVOID = frozenset({"columns"})


def test_programs_give_what_they_mean(local: SparkContext, tmp_path: Path) -> None:
    drawn = 0

    @seed(1)
    @settings(
        max_examples=PROGRAMS,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(programs(AVOID))
    def draw(program: Program) -> None:
        nonlocal drawn
        drawn += 1
        text = body_of(program)
        meaning = meaning_of(text)
        parallelism = 1 + drawn % 3
        env = environment(tmp_path / f"checkpoints-{drawn}", parallelism=parallelism)
        env.set_restart_strategy(RestartConfig(kind=RestartStrategyKind.NONE))
        script = script_of(program, Variation(parallelism=parallelism))
        cause, collected = "", ()
        try:
            write(text, env)
            collected = env.execute(f"program {drawn}").collected
        except WeirError as error:
            cause = str(error)
        if meaning.refusal is not None:
            assert cause, f"must fail: {meaning.refusal}\n{script}"
            return
        assert not cause, f"{cause}\n{script}"
        # The driver does not tell which sink a record comes from.
        wanted = [row for rows in meaning.outputs.values() for row in rows]
        assert Counter(map(canonical, collected)) == Counter(map(canonical, wanted)), script

    try:
        draw()
    finally:
        remove_files()
    assert drawn >= PROGRAMS / 2
