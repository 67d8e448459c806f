"""Whole jobs in one process whose functions fail again and again: for a bug, and for an outage.

The time is a machine's (``machine_time``), so that minutes of restarts pass at once.
"""

import socket
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from typing import Any

import pytest

from tests.unit.local.machine_time import MachineTime
from weir.common.batch import Batch
from weir.config import RestartConfig
from weir.datastream import StreamExecutionEnvironment
from weir.datastream.execution import capturing
from weir.ids import CheckpointId
from weir.local.cluster import JobResult, run_in_process
from weir.operators.functions import MapFunction, RuntimeContext
from weir.operators.sinks import Sink
from weir.operators.sinks.collect_sink import CollectOperator, CollectSink
from weir.protocol.events import JobChanged
from weir.protocol.lifecycle import JobStatus
from weir.protocol.repeated_errors import LASTING_MS

OUTAGE_MS = 3 * LASTING_MS


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> MachineTime:
    return MachineTime().install(monkeypatch)


class Server:
    """A port that takes connections only after its outage."""

    def __init__(self, machine: MachineTime) -> None:
        self.machine = machine
        self.refused = 0
        self._socket = socket.socket()
        self._socket.bind(("127.0.0.1", 0))
        self.address = self._socket.getsockname()

    def ask(self) -> None:
        """Connect, as a function does that looks something up.

        Raises:
            ConnectionRefusedError: The outage lasts.
        """
        if self.machine.passed_ns >= OUTAGE_MS * 1_000_000:
            self._socket.listen()
        try:
            socket.create_connection(self.address).close()
        except ConnectionRefusedError:
            self.refused += 1
            raise

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def server(machine: MachineTime) -> Iterator[Server]:
    with closing(Server(machine)) as opened:
        yield opened


def run(
    function: Callable[[Any], Any] | MapFunction,
    *,
    where: str = "at the source",
    sink: Sink | None = None,
    **restart: Any,
) -> tuple[JobResult, int]:
    """The job's result, and how often it was restarted."""
    env = StreamExecutionEnvironment.get_execution_environment()
    env.enable_checkpointing(1_000).set_restart_strategy(RestartConfig(**restart))
    numbers = env.from_collection([1, 2, 3])
    stream = numbers if where == "at the source" else numbers.rebalance()
    stream.map(function).sink_to(sink or CollectSink())
    with capturing() as capture:
        env.execute("failing")
    events: list[Any] = []
    job = capture.jobs[0]
    result = run_in_process(job.graph, job.config, emit=events.append)
    changes = [event.status for event in events if isinstance(event, JobChanged)]
    return result, changes.count(JobStatus.RESTARTING)


@pytest.mark.parametrize(
    ("where", "position"),
    [
        ("at the source", "from the start up to 3 in the split {'rows': 3}"),
        ("behind an exchange", "in the input records 1 to 3 of the attempt"),
    ],
)
def test_a_bug_ends_the_job_after_a_minute_with_record_and_position(
    machine: MachineTime, where: str, position: str
) -> None:
    result, restarts = run(lambda value: {1: "one"}[value], where=where)
    assert result.status is JobStatus.FAILED
    assert f"fails on the record 2 with KeyError, {position}: " in result.cause.splitlines()[0]
    assert restarts >= 2
    assert LASTING_MS <= machine.passed_ns / 1e6 < 2 * LASTING_MS


def test_a_server_that_is_away_for_minutes_does_not_end_the_job(
    machine: MachineTime, server: Server
) -> None:
    def look_up(value: Any) -> Any:
        server.ask()
        return value

    result, restarts = run(look_up)
    assert (result.status, result.collected) == (JobStatus.FINISHED, [1, 2, 3])
    assert machine.passed_ns / 1e6 >= OUTAGE_MS
    assert restarts == server.refused >= 3


class ClientError(Exception):
    """The error of a client library."""


class AskingOperator(CollectOperator):
    """Asks a server for every slice, and again before it shows rows."""

    def __init__(self, moment: str, ask: Callable[[], None]) -> None:
        super().__init__()
        self._moment, self._ask = moment, ask

    def on_batch(self, batch: Batch, input_index: int) -> None:
        self._asked("a slice")
        super().on_batch(batch, input_index)

    def on_checkpoint_completed(self, checkpoint_id: CheckpointId) -> None:
        self._asked("a commit")
        super().on_checkpoint_completed(checkpoint_id)

    def _asked(self, moment: str) -> None:
        if moment == self._moment:
            try:
                self._ask()
            except OSError as error:
                raise ClientError(f"cannot write: {error}") from error


class AskingSink(CollectSink):
    """Collects, with a server under it."""

    def __init__(self, moment: str, ask: Callable[[], None]) -> None:
        self._moment, self._ask = moment, ask

    def create_operator_factory(self) -> Callable[[], CollectOperator]:
        return partial(AskingOperator, self._moment, self._ask)


@pytest.mark.parametrize("moment", ["a slice", "a commit"])
def test_a_server_that_is_away_for_minutes_under_a_sink_does_not_end_the_job(
    moment: str, machine: MachineTime, server: Server
) -> None:
    result, restarts = run(lambda value: value, sink=AskingSink(moment, server.ask))
    assert (result.status, result.collected) == (JobStatus.FINISHED, [1, 2, 3])
    assert machine.passed_ns / 1e6 >= OUTAGE_MS
    assert restarts == server.refused >= 3


class Connecting(MapFunction):
    """Connects in ``open``, whose errors are the program's own in name only."""

    def __init__(self, connect: Callable[[], None]) -> None:
        self.connect = connect

    def open(self, runtime_context: RuntimeContext) -> None:
        try:
            self.connect()
        except OSError:
            raise ValueError("there is no server") from None

    def map(self, value: Any) -> Any:
        return value


def test_a_server_that_open_needs_does_not_end_the_job(server: Server) -> None:
    result, restarts = run(Connecting(lambda: server.ask()))  # Each subtask has a copy of its own.
    assert (result.status, result.collected) == (JobStatus.FINISHED, [1, 2, 3])
    assert restarts == server.refused >= 3


def test_a_setting_restarts_for_as_long_as_it_takes(machine: MachineTime) -> None:
    def until_it_is_repaired(value: Any) -> Any:
        return value if machine.passed_ns / 1e6 > OUTAGE_MS else {}[value]

    result, restarts = run(until_it_is_repaired, ends_on_repeated_error=False)
    assert (result.status, result.collected) == (JobStatus.FINISHED, [1, 2, 3])
    assert restarts >= 3
