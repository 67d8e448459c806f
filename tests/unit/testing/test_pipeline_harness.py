"""A pipeline stepped by hand: nothing happens between two calls, and all that follows in one."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.unit.testing.pipelines import Totals, by_minute, reading, totals
from weir.common import Row, WatermarkStrategy
from weir.datastream import ProcessFunction, StreamExecutionEnvironment
from weir.datastream.connectors import DataGeneratorSource, NumberSequenceSource, ParquetSink
from weir.errors import ConfigError, JobFailedError, SchemaError, UserError
from weir.operators.sinks.parquet_sink import committed_files
from weir.protocol.lifecycle import JobStatus
from weir.testing import KillPoint, PipelineHarness, Timed, Watermark

pytest_plugins = ["weir.testing.pytest_plugin"]

Make = Callable[..., PipelineHarness]


# Input and time ----------------------------------------------------------------------------------


@pytest.mark.parametrize("parallelism", [1, 2])
def test_event_time_moves_by_watermarks_alone(pipeline_harness: Make, parallelism: int) -> None:
    job = pipeline_harness(totals, parallelism=parallelism)
    job.send(Timed(reading("a", 1), 0), Timed(reading("b", 5), 1_000), Timed(reading("a", 2), 500))
    assert sorted(job.output("out")) == [("a", 1), ("a", 3), ("b", 5)]
    assert job.timers("totals", "a") == {"event_time": [60_000, 60_500], "processing_time": []}
    job.advance_processing_time(1_000_000)
    assert job.output("quiet") == []
    job.advance_watermark(60_999)
    assert job.output("quiet") == [("a", 60_000), ("a", 60_500)]
    job.send(Watermark(61_000))
    assert job.output("quiet")[-1] == ("b", 61_000)


def test_processing_time_moves_by_hand_alone(pipeline_harness: Make) -> None:
    job = pipeline_harness(partial(totals, by_processing_time=True), start_ms=1_000)
    job.send(reading("a", 1))
    job.advance_processing_time(30_000)
    job.send(reading("b", 1))
    assert job.timers("totals", "b")["processing_time"] == [91_000]
    job.advance_processing_time(29_999)
    assert job.output("quiet") == []
    job.advance_processing_time(1)
    assert job.output("quiet") == [("a", 61_000)]
    job.advance_processing_time(365 * 86_400_000)
    assert job.output("quiet") == [("a", 61_000), ("b", 91_000)]
    assert job.processing_time_ms == 61_000 + 365 * 86_400_000
    assert job.restarts == 0


def test_a_timer_fires_at_its_very_millisecond(pipeline_harness: Make) -> None:
    """The worker's loop sleeps for seconds as a float, which may end a moment before the timer."""

    class Alarm(Totals):
        def process_element(self, value: Any, ctx: Any) -> None:
            ctx.timer_service().register_processing_time_timer(value)

        def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
            yield timestamp

    job = pipeline_harness(
        lambda env: env.from_collection([]).key_by(lambda n: n).process(Alarm()).print()
    )
    assert int(1_001 / 1_000 * 1e9) < 1_001_000_000
    job.send(1_001)
    job.advance_processing_time(1_001)
    assert job.output() == [1_001]


def test_records_with_and_without_event_time_mix(pipeline_harness: Make) -> None:
    class Times(ProcessFunction):
        def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
            yield value, ctx.timestamp()

    job = pipeline_harness(lambda env: env.from_collection([]).process(Times()).print())
    job.send("a", Timed("b", 2), Timed("c", 3), "d")
    assert job.output() == [("a", None), ("b", 2), ("c", 3), ("d", None)]


def test_a_source_that_assigns_event_time_still_does(pipeline_harness: Make) -> None:
    job = pipeline_harness(by_minute)
    job.send(Row(shop="a", amount=3, at=1_000), Row(shop="a", amount=4, at=2_000))
    assert job.output() == []
    job.send(Row(shop="a", amount=9, at=60_001))
    assert [(row.window_start, row.revenue) for row in job.output()] == [(0, 7)]
    job.send(Row(shop="a", amount=1, at=3_000))  # Late by now.
    job.finish()
    assert [(row.window_start, row.revenue) for row in job.output()] == [(0, 7), (60_000, 9)]


def test_two_sources_hold_each_other_back(pipeline_harness: Make) -> None:
    def build(env: StreamExecutionEnvironment) -> None:
        left, right = (
            env.from_source(
                DataGeneratorSource(lambda index: index), WatermarkStrategy.no_watermarks(), name
            )
            for name in ("left", "right")
        )
        left.union(right).key_by(lambda row: row.sensor).process(Totals()).uid("totals").print()

    job = pipeline_harness(build)
    job.send(Timed(reading("a", 1), 0), to="left")
    job.advance_watermark(60_000, source="left")
    assert job.timers("totals", "a")["event_time"] == [60_000]
    job.advance_watermark(60_000, source="right")
    assert job.timers("totals", "a")["event_time"] == []


def test_finish_ends_event_time_and_commits(pipeline_harness: Make) -> None:
    job = pipeline_harness(totals)
    job.send(Timed(reading("a", 1), 0))
    assert (job.output("out"), job.committed("out")) == ([("a", 1)], [])
    job.finish()
    assert job.status is JobStatus.FINISHED
    assert (job.committed("out"), job.committed("quiet")) == ([("a", 1)], [("a", 60_000)])


# Checkpoints and kills ---------------------------------------------------------------------------


def test_a_kill_goes_back_to_the_newest_checkpoint(pipeline_harness: Make) -> None:
    job = pipeline_harness(totals, parallelism=2)
    job.send(Timed(reading("a", 1), 0))
    assert job.checkpoint() == 1
    job.send(Timed(reading("a", 2), 1))
    before = job.state("totals", "a"), job.timers("totals", "a")
    job.kill()
    assert job.restarts == 1
    assert (job.state("totals", "a"), job.timers("totals", "a")) == before  # Read once more.
    assert job.output("out") == [("a", 1), ("a", 3)]
    assert job.committed("out") == [("a", 1)]
    job.kill(slot=1)
    job.finish()
    assert job.committed("out") == [("a", 1), ("a", 3)]


@pytest.mark.parametrize(
    ("point", "restored"),
    [(KillPoint.SNAPSHOT, None), (KillPoint.WRITE, None), (KillPoint.COMMIT, 1)],
)
def test_a_kill_in_a_checkpoint_loses_it_before_its_commit(
    pipeline_harness: Make, point: KillPoint, restored: int | None
) -> None:
    job = pipeline_harness(totals)
    job.send(Timed(reading("a", 1), 0))
    assert job.kill_in_checkpoint(point) == restored
    assert job.restarts == 1
    job.send(Timed(reading("a", 2), 1))
    assert job.output("out") == [("a", 1), ("a", 3)]
    job.finish()
    assert job.committed("out") == [("a", 1), ("a", 3)]


def test_a_watermark_does_not_go_back_with_a_restart(pipeline_harness: Make) -> None:
    job = pipeline_harness(totals)
    job.advance_watermark(60_000)
    job.checkpoint()
    job.kill()
    job.send(Timed(reading("a", 1), 0))
    job.advance_watermark(60_000)  # No news.
    assert job.timers("totals", "a")["event_time"] == [60_000]
    job.advance_watermark(60_001)
    assert job.output("quiet") == [("a", 60_000)]


def test_nothing_is_checkpointed_by_itself(pipeline_harness: Make) -> None:
    def build(env: StreamExecutionEnvironment) -> None:
        env.enable_checkpointing(10)
        totals(env)

    job = pipeline_harness(build)
    job.send(Timed(reading("a", 1), 0))
    job.advance_processing_time(86_400_000)
    assert job.committed("out") == []
    job.checkpoint()
    assert job.committed("out") == [("a", 1)]


# What there is to see ----------------------------------------------------------------------------


def test_state_is_seen_by_operator_and_key(pipeline_harness: Make) -> None:
    job = pipeline_harness(totals, parallelism=3)
    job.send(*(Timed(reading(sensor, n), 0) for n, sensor in enumerate("abcdef")))
    assert [job.state("totals", sensor) for sensor in "abf"] == [
        {"total": 0},
        {"total": 1},
        {"total": 5},
    ]
    assert job.state("totals", "unknown") == {}


def test_vectorised_state_is_seen_by_column(pipeline_harness: Make) -> None:
    job = pipeline_harness(
        lambda env: (
            env.from_collection([Row(shop="", amount=0)])
            .key_by("shop")
            .aggregate_batches(n=("*", "count"), total=("amount", "sum"))
            .uid("sums")
            .print()
        )
    )
    job.send(Row(shop="a", amount=3), Row(shop="b", amount=4), Row(shop="a", amount=5))
    assert job.state("sums", "a")["aggregates"] == {
        "count(*)": 2,
        "sum(amount)": 8,
        "seen(amount)": 1,
    }


def test_state_is_a_copy(pipeline_harness: Make) -> None:
    job = pipeline_harness(
        lambda env: env.from_collection([]).key_by(len).reduce(lambda a, b: a + b).print()
    )
    job.send([1], [2])
    job.state("reduce-1", 1)["reduced"].append(3)
    assert job.state("reduce-1", 1) == {"reduced": [1, 2]}


@dataclass(frozen=True)
class Reading:
    """A record of a class of the test's own."""

    value: int


def test_output_keeps_records_of_any_class(pipeline_harness: Make) -> None:
    job = pipeline_harness(lambda env: env.from_collection([]).map(Reading).print())
    job.send(1, 2)
    job.checkpoint()
    job.kill()
    assert job.output() == [Reading(1), Reading(2)]


# Pipelines ---------------------------------------------------------------------------------------


def test_a_script_runs_up_to_its_job_with_its_arguments(
    pipeline_harness: Make, tmp_path: Path
) -> None:
    script = tmp_path / "doubled.py"
    script.write_text(
        "from weir.datastream import StreamExecutionEnvironment\n"
        "env = StreamExecutionEnvironment.get_execution_environment()\n"
        "times = int(env.get_job_parameter('times', '2'))\n"
        "env.from_collection([1]).map(lambda n: n * times).print()\n"
        "env.execute('first')\n"
        "env.from_collection([1]).map(str).print()\n"
        "env.execute('second')\n"
    )
    job = pipeline_harness(script, job="first", parameters={"times": "3"})
    job.send(5, 7)
    assert job.output() == [15, 21]
    with pytest.raises(ConfigError, match="executes 'first', 'second'; choose one"):
        PipelineHarness(script)


def test_own_sources_and_sinks_are_left_as_they_are(pipeline_harness: Make, tmp_path: Path) -> None:
    job = pipeline_harness(
        lambda env: (
            env.from_collection([Row(n=1), Row(n=2)]).sink_to(ParquetSink(tmp_path)).uid("files")
        ),
        own_sources=["collection-source-1"],
        own_sinks=["files"],
    )
    assert (job.sources, job.sinks) == ([], [])
    job.finish()
    assert len(committed_files(tmp_path)) == 1


# Errors ------------------------------------------------------------------------------------------


def test_a_function_that_fails_fails_the_call(pipeline_harness: Make) -> None:
    job = pipeline_harness(lambda env: env.from_collection([]).map(lambda n: 1 // n).print())
    job.send(1)
    with pytest.raises(JobFailedError, match="failed on the record 0: ZeroDivisionError"):
        job.send(0)
    with pytest.raises(ConfigError, match="use a new harness"):
        job.send(1)


@pytest.mark.parametrize(
    ("use", "error", "says"),
    [
        (lambda job: job.send(1, to="nowhere"), ConfigError, "give one of the ids readings-1"),
        (lambda job: job.output(), ConfigError, "has 2 sinks; name one of out, quiet"),
        (lambda job: job.state("out", "a"), UserError, "keyed"),
        (lambda job: job.kill(slot=4), ConfigError, "no slot 4; the job has 0 to 0"),
        (lambda job: job.advance_processing_time(-1), ConfigError, "does not go back"),
        (lambda job: (job.finish(), job.send(1)), ConfigError, "the job is finished"),
    ],
)
def test_a_wrong_call_says_what_to_do(
    pipeline_harness: Make, use: Callable[[PipelineHarness], Any], error: type, says: str
) -> None:
    job = pipeline_harness(totals)
    with pytest.raises(error, match=says):
        use(job)


def test_a_record_of_another_type_is_refused_and_nothing_of_the_call_is_fed(
    pipeline_harness: Make,
) -> None:
    job = pipeline_harness(
        lambda env: env.from_source(
            NumberSequenceSource(1, 2), WatermarkStrategy.no_watermarks(), "numbers"
        ).print()
    )
    with pytest.raises(SchemaError):
        job.send(1, "two")
    job.send(3)
    assert job.output() == [3]


def test_a_source_of_its_own_without_an_end_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'readings' \(pipelines.py:\d+\) never ends"):
        PipelineHarness(totals, own_sources=["readings"])


def test_timers_without_end_are_refused(
    pipeline_harness: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Endless(Totals):
        def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
            ctx.timer_service().register_event_time_timer(timestamp)
            yield timestamp

    job = pipeline_harness(
        lambda env: (
            env.from_collection([]).key_by(lambda row: row.sensor).process(Endless()).print()
        )
    )
    job.send(Timed(reading("a", 1), 0))
    monkeypatch.setattr("weir.testing.pipeline_harness.ACTIONS_MAX", 50)
    with pytest.raises(ConfigError, match="does not come to rest"):
        job.advance_watermark(60_000)
