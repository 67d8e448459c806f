"""The slow sink: totals by key reach it, at the rate that its argument sets."""

from collections.abc import Callable

from weir.examples.slow_sink import KEYS, build
from weir.testing import PipelineHarness

pytest_plugins = ["weir.testing.pytest_plugin"]


def test_totals_by_key_reach_the_sink(pipeline_harness: Callable[..., PipelineHarness]) -> None:
    job = pipeline_harness(build, parameters={"rows_per_second": "1000000"})
    job.send(1, KEYS + 1, 2)
    job.send(2 * KEYS + 1)
    assert sorted(job.output()) == [(1, KEYS + 2), (1, 3 * KEYS + 3), (2, 2)]
