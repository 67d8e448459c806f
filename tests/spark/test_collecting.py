"""Records read while their job runs on Spark."""

import pytest

from tests.spark.harness import Listening
from weir.common import WatermarkStrategy
from weir.datastream import StreamExecutionEnvironment
from weir.datastream.connectors import DataGeneratorSource
from weir.protocol.events import JobChanged, JobEvent
from weir.protocol.lifecycle import JobStatus

pytestmark = [pytest.mark.usefixtures("local")]


def test_an_endless_stream_is_read_while_it_runs_and_closing_ends_its_job() -> None:
    ended: list[JobStatus] = []

    def note(event: JobEvent) -> None:
        if isinstance(event, JobChanged):
            ended.append(event.status)

    env = StreamExecutionEnvironment.get_execution_environment()
    env.enable_checkpointing(50)
    source = DataGeneratorSource(lambda index: index, rows_per_second=1_000)
    numbers = env.from_source(source, WatermarkStrategy.no_watermarks(), "numbers")
    with Listening(note), numbers.execute_and_collect() as records:
        assert [next(records) for _ in range(20)] == list(range(20))
        assert ended[-1] is JobStatus.RUNNING
        records.close()
        assert ended[-1] is JobStatus.CANCELED
