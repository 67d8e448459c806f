"""Several jobs of one environment: what runs again, what does not, and records as they come."""

import gc
import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.waiting import wait_until
from weir.common import WatermarkStrategy
from weir.config import RestartConfig, RestartStrategyKind
from weir.datastream import DataStream, ExecutionOptions, StreamExecutionEnvironment
from weir.datastream.connectors import DataGeneratorSource
from weir.datastream.execution import capturing, overriding
from weir.errors import GraphError, JobFailedError, SubtaskError
from weir.protocol.events import JobChanged, JobEvent
from weir.protocol.lifecycle import JobStatus
from weir.spark import submit


@pytest.fixture
def env() -> Iterator[StreamExecutionEnvironment]:
    with overriding(ExecutionOptions(master="in-process")):
        yield StreamExecutionEnvironment.get_execution_environment()


@pytest.fixture
def ends() -> Iterator[list[JobStatus]]:
    """The ends of the jobs of the test, in order."""
    ended: list[JobStatus] = []

    def note(event: JobEvent) -> None:
        if isinstance(event, JobChanged) and event.status in ("finished", "failed", "canceled"):
            ended.append(event.status)

    submit.listen(note)
    yield ended
    submit.unlisten(note)


def names(env: StreamExecutionEnvironment) -> list[str]:
    return [operator.uid for operator in env.get_job_graph().operators]


def endless(env: StreamExecutionEnvironment) -> DataStream:
    source = DataGeneratorSource(lambda index: index, rows_per_second=1_000)
    return env.from_source(source, WatermarkStrategy.no_watermarks(), "numbers")


def read_into(read: list[Any], records: Iterator[Any]) -> None:
    for record in records:
        read.append(record)


def job_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "weir-job"]


# What runs ---------------------------------------------------------------------------------------


def test_a_stream_is_collected_as_often_as_one_likes(env: StreamExecutionEnvironment) -> None:
    doubled = env.from_collection([1, 2, 3]).map(lambda n: 2 * n)
    assert list(doubled.execute_and_collect()) == [2, 4, 6]
    assert list(doubled.execute_and_collect()) == [2, 4, 6]
    assert doubled.map(str).execute_and_collect(limit=2) == ["2", "4"]


def test_a_sink_that_was_executed_is_not_executed_again(
    env: StreamExecutionEnvironment, capsys: pytest.CaptureFixture[str]
) -> None:
    numbers = env.from_collection([1, 2])
    numbers.print("first")
    env.execute()
    numbers.print("second")
    env.execute()
    assert capsys.readouterr().out.split("\n") == [
        "first> 1",
        "first> 2",
        "second> 1",
        "second> 2",
        "",
    ]


def test_without_a_new_sink_there_is_nothing_to_execute(env: StreamExecutionEnvironment) -> None:
    env.from_collection([1]).print()
    with capturing() as capture:
        env.execute()
        with pytest.raises(GraphError, match="attach a sink"):
            env.execute()
    assert len(capture.jobs) == 1


def test_ids_of_a_later_job_are_those_of_its_own_operators(env: StreamExecutionEnvironment) -> None:
    numbers = env.from_collection([1, 2])
    numbers.map(str).print()
    expected = names(env)
    with capturing():
        env.execute()
    numbers.map(str).print()
    assert names(env) == expected == ["collection-source-1", "map-1", "print-to-std-out-1"]


def test_what_leads_to_no_sink_is_not_run_and_said(
    env: StreamExecutionEnvironment, caplog: pytest.LogCaptureFixture
) -> None:
    numbers = env.from_collection([1, 2])
    numbers.map(lambda n: n / 0).map(str)  # An earlier attempt, given up.
    numbers.print()
    assert names(env) == ["collection-source-1", "print-to-std-out-1"]
    with caplog.at_level(logging.WARNING):
        env.execute()
    (record,) = caplog.records
    assert record.getMessage().startswith("'Map' (test_running_again.py:")
    assert "is not run" in record.getMessage()


def test_without_any_sink_all_operators_run(env: StreamExecutionEnvironment) -> None:
    env.from_collection([1, 2]).map(SEEN.append)
    env.execute()
    assert SEEN == [1, 2]


SEEN: list[int] = []


# Failures ----------------------------------------------------------------------------------------


def test_a_job_that_failed_leaves_nothing_to_the_next(env: StreamExecutionEnvironment) -> None:
    numbers = env.from_collection([1, 2])
    numbers.map(lambda n: n / 0).print()
    with pytest.raises(JobFailedError, match="ZeroDivisionError"):
        env.execute()
    assert list(numbers.execute_and_collect()) == [1, 2]


def test_a_graph_that_cannot_be_built_leaves_nothing_either(
    env: StreamExecutionEnvironment,
) -> None:
    numbers = env.from_collection([1, 2])
    numbers.map(str).uid("same").print()
    numbers.map(str).uid("same").print()
    with pytest.raises(GraphError, match="uid used twice"):
        env.execute()
    assert list(numbers.execute_and_collect()) == [1, 2]


def test_the_reader_gets_the_records_before_a_failure_and_then_the_failure(
    env: StreamExecutionEnvironment,
) -> None:
    def checked(number: int) -> int:
        if number == 30:
            raise ValueError("thirty")
        return number

    records = env.from_collection(range(100)).map(checked).execute_and_collect()
    read: list[Any] = []
    with pytest.raises(JobFailedError, match="thirty"):
        read_into(read, records)
    assert read == list(range(len(read)))
    assert 0 < len(read) <= 30  # Slices before the failing one.
    assert list(records) == []


def test_read_records_that_come_again_end_the_job(
    env: StreamExecutionEnvironment, ends: list[JobStatus]
) -> None:
    """Without checkpoints a restart begins anew, and what was read cannot be taken back."""
    read = threading.Event()
    env.set_restart_strategy(
        RestartConfig(kind=RestartStrategyKind.FIXED_DELAY, attempts_max=1, delay_ms=0)
    )
    WAITING.append(read)
    stream = endless(env).map(_fails_once)
    with stream.execute_and_collect() as records:
        assert next(records) == 0
        read.set()
        with pytest.raises(JobFailedError, match="enable checkpointing"):
            read_into([], records)
    assert FAILED
    assert ends == [JobStatus.CANCELED]


FAILED: list[int] = []
WAITING: list[threading.Event] = []


def _fails_once(number: int) -> int:
    """Fails on a record of a later slice than the first, which the test has read by then."""
    if number == 100 and not FAILED:
        WAITING.pop().wait(10)
        FAILED.append(number)
        raise SubtaskError("once")
    return number


# Records as they come ----------------------------------------------------------------------------


@pytest.mark.parametrize("interval_ms", [None, 20])
def test_records_of_an_endless_stream_are_read_while_it_runs(
    env: StreamExecutionEnvironment, interval_ms: int | None, ends: list[JobStatus]
) -> None:
    if interval_ms is not None:
        env.enable_checkpointing(interval_ms)
    with endless(env).execute_and_collect() as records:
        assert [next(records) for _ in range(100)] == list(range(100))
        assert job_threads()
        assert not ends
    assert ends == [JobStatus.CANCELED]
    assert not job_threads()
    assert next(records, "closed") == "closed"


def test_an_iterator_that_is_let_go_of_ends_its_job(
    env: StreamExecutionEnvironment, ends: list[JobStatus]
) -> None:
    for record in endless(env).execute_and_collect():
        if record == 3:
            break
    gc.collect()
    wait_until(lambda: bool(ends), lambda: "the job ends")
    assert ends == [JobStatus.CANCELED]
    assert not job_threads()


def test_two_streams_are_read_side_by_side(env: StreamExecutionEnvironment) -> None:
    stream = endless(env)
    with stream.execute_and_collect() as one, stream.execute_and_collect() as other:
        assert [next(one), next(other), next(other), next(one)] == [0, 0, 1, 1]
