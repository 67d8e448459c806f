"""A run with a kill gives what a run without one does, unless the pipeline is wrong."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.unit.testing.pipelines import reading, totals
from weir.datastream import KeyedProcessFunction, StreamExecutionEnvironment
from weir.errors import ConfigError
from weir.testing import KillPoint, Timed, assert_same_output, compare_outputs, run

READINGS = [Timed(reading("abc"[n % 3], n), n) for n in range(25)]


@pytest.mark.parametrize("point", list(KillPoint))
@pytest.mark.parametrize("kill_at", [1, 3])
def test_a_killed_run_commits_what_an_undisturbed_one_does(point: KillPoint, kill_at: int) -> None:
    undisturbed = run(totals, READINGS, parallelism=2)
    killed = run(totals, READINGS, parallelism=2, kill=point, kill_at=kill_at)
    assert (undisturbed.restarts, killed.restarts) == (0, 1)
    assert (undisturbed.checkpoints, killed.checkpoints) == (
        4,
        4 if point is KillPoint.COMMIT else 3,
    )
    assert len(undisturbed.outputs["out"]) == 25
    for sink, expected in undisturbed.outputs.items():
        assert_same_output(expected, killed.outputs[sink], key=lambda record: record[0])


def test_state_beside_the_snapshot_is_noticed() -> None:
    """The bug that the comparison is for: a total that only the object holds."""

    class Forgetful(KeyedProcessFunction):
        def open(self, runtime_context: Any) -> None:
            self.totals: dict[str, int] = {}

        def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
            total = self.totals.get(value.sensor, 0) + value.value
            self.totals[value.sensor] = total
            yield value.sensor, total

    def forgetful(env: StreamExecutionEnvironment) -> None:
        env.from_collection([]).key_by(lambda row: row.sensor).process(Forgetful()).print()

    killed = run(forgetful, READINGS, kill=KillPoint.COMMIT)
    difference = compare_outputs(run(forgetful, READINGS).output, killed.output)
    assert difference.lost
    assert difference.unexpected


def test_a_kill_that_never_comes_is_refused() -> None:
    with pytest.raises(ConfigError, match="make for 3 checkpoints"):
        run(totals, READINGS, kill=KillPoint.WRITE, kill_at=4)


def test_an_input_without_a_source_is_refused() -> None:
    with pytest.raises(ConfigError, match="no operator is called 'other'"):
        run(totals, {"other": READINGS})
