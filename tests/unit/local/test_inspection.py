"""An inspection on its way in one process: from the control plane to a worker, and back."""

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

from tests.simulation.clock import SimClock
from weir.common import WatermarkStrategy
from weir.config import JobConfig
from weir.datastream import StreamExecutionEnvironment
from weir.datastream.connectors import DataGeneratorSource
from weir.datastream.execution import capturing
from weir.ids import AttemptNumber, JobId, OperatorId
from weir.jobmaster.job_master import JobMaster
from weir.local.cluster import InProcessCluster
from weir.local.event_queue import EventQueue, Latencies
from weir.protocol.driver_messages import DriverEvent
from weir.protocol.inspection import Inspected, InspectionKind, InspectSubtask
from weir.protocol.lifecycle import JobStatus
from weir.storage.memory import MemoryStore
from weir.worker.versions import installed_versions


class Control:
    """The control plane's place at the job master: keeps what is posted."""

    is_away = False
    claim = b""

    def __init__(self) -> None:
        self.answers: list[Inspected] = []

    def post(self, event: DriverEvent) -> None:
        if isinstance(event, Inspected):
            self.answers.append(event)


class Job:
    """A job of two subtasks a chain that never ends, in simulated time."""

    def __init__(self) -> None:
        env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(2)
        source = DataGeneratorSource(
            lambda indices: pa.record_batch({"n": pa.array(indices)}),
            None,
            rows_per_second=1_000,
            vectorised=True,
        )
        (
            env.from_source(source, WatermarkStrategy.no_watermarks(), "numbers")
            .map_batches(lambda batch: pa.record_batch({"twice": pc.add(batch["n"], batch["n"])}))
            .uid("doubled")
            .key_by("twice")
            .map(lambda row: row)
            .print()
        )
        with capturing() as capture:
            env.execute("doubled")
        graph, clock = capture.jobs[0].graph, SimClock()
        self.control, self.events = Control(), EventQueue(clock)
        self.seen: list[object] = []  # By readers in the driver's process.
        config = JobConfig(parallelism=2)
        cluster = InProcessCluster(
            graph, config, JobId("doubled"), events=self.events, conditions=Latencies()
        )
        self.cluster = cluster
        self.master = JobMaster(
            graph,
            config,
            JobId("doubled"),
            program=b"",
            store=MemoryStore(),
            versions=installed_versions(),
            cluster=cluster,
            clock=clock,
            emit=self.seen.append,
            collect=lambda subtask, checkpoint_id, payload: None,
            control=self.control,
        )
        cluster.start(self.master)
        self.until(lambda: self.master.status is JobStatus.RUNNING)

    def until(self, condition: Callable[[], object]) -> None:
        for _ in range(100_000):
            if condition():
                return
            assert self.events.run_next()
        raise AssertionError("it never came")

    def ask(self, operator: str, index: int, attempt: int = 1) -> Inspected:
        command = InspectSubtask(
            AttemptNumber(attempt), "r1", InspectionKind.RECORDS, OperatorId(operator), index
        )
        self.cluster.enter(lambda: self.master.on_command(command))
        self.until(lambda: self.control.answers)
        return self.control.answers.pop()


def test_a_request_goes_down_to_the_subtask_and_its_records_come_up() -> None:
    job = Job()
    for index in (0, 1):
        answer = job.ask("doubled", index)
        assert (answer.request_id, answer.index, answer.cause) == ("r1", index, "")
        assert answer.records is not None
        assert answer.records.columns == ("twice",)
        numbers = [int(record.values[0]) for record in answer.records.records]
        assert numbers
        assert all(number % 2 == 0 for number in numbers)
    assert not any(isinstance(event, Inspected) for event in job.seen)


def test_a_request_for_an_attempt_that_is_over_is_answered_by_the_job_master() -> None:
    answer = Job().ask("doubled", 0, attempt=7)
    assert answer.records is None
    assert "restarted" in answer.cause
