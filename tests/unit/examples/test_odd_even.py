"""Odd and even: two sources feed both sums, and a checkpoint has both."""

from collections.abc import Callable

from weir.examples.odd_even import build
from weir.testing import PipelineHarness

pytest_plugins = ["weir.testing.pytest_plugin"]


def test_both_sources_feed_both_sums(pipeline_harness: Callable[..., PipelineHarness]) -> None:
    job = pipeline_harness(build)
    job.send(1, 2, 3, to="from one")
    job.send(1_000, 1_001, to="from a thousand")
    assert job.state("sum", "even") == {"reduced": 1_002}
    assert job.state("sum", "odd") == {"reduced": 1_005}
    assert sorted(job.output()) == [1, 2, 4, 1_002, 1_005]


def test_a_killed_sum_goes_on(pipeline_harness: Callable[..., PipelineHarness]) -> None:
    job = pipeline_harness(build)
    job.send(2, to="from one")
    job.checkpoint()
    job.send(1_000, to="from a thousand")
    job.kill(slot=1)  # Where "even" belongs.
    assert job.restarts == 1
    assert job.state("sum", "even") == {"reduced": 1_002}
    job.finish()
    assert job.committed() == [2, 1_002]
