"""A driver without a Spark: the runtime's own gateway client, and what a job would tell it.

It takes the control plane's commands and answers them as a job master does, except that snapshots
are acknowledged when the benchmark says so.
"""

import itertools
import queue
import random
import threading
import time

from tests.database.frontend.flights import chain_acknowledged, plan
from tests.database.jobs import builders
from tests.factories import CHAINS, FLIGHTS, FLIGHTS_EDGES
from weir.config import CheckpointConfig, RestartConfig
from weir.ids import AttemptNumber, CheckpointId, JobId, OperatorId, SubtaskId
from weir.managed.gateway_client import Gateway
from weir.managed.gateway_line import GatewayAddress
from weir.protocol.coordinator import FIRST_ID
from weir.protocol.deployment import Versions
from weir.protocol.driver_messages import (
    DriverCommand,
    EdgeDescription,
    JobPlanned,
    OperatorDescription,
)
from weir.protocol.lifecycle import SubtaskStatus
from weir.protocol.messages import (
    CheckpointingStarted,
    CheckpointRequested,
    CheckpointsRestored,
    ManifestWritten,
    SubtaskChanged,
    SubtaskMetrics,
    TriggerCheckpoint,
    WriteManifest,
)

ATTEMPT = AttemptNumber(1)
METRICS_EVERY_S = 0.5  # As a worker process reports.
ANSWER_TIMEOUT_S = 30.0
CHANNELS = 20  # Of a receiving subtask, at most.


class Driver:
    """The driver of a job that runs: the flights example's graph, three chains of 9 operators."""

    def __init__(self, url: str, parallelism: int) -> None:
        self.parallelism = parallelism
        job = builders.submitted(pipeline_kind="module", pipeline_target="tests.e2e.pipeline")
        token = f"token-of-{job.pk}"
        builders.started(job, token)
        self.job_id: str = job.pk
        self._numbers: queue.Queue[CheckpointId] = queue.Queue()
        self._refused = ""
        self._requests = itertools.count(1)
        self._has_ended = threading.Event()
        self._measuring = threading.Thread(target=self._measure, name="measurements")
        self._gateway = Gateway(GatewayAddress(url, JobId(job.pk), token), self)

    def __enter__(self) -> "Driver":
        self._gateway.start()
        for event in (
            self._planned(),
            CheckpointsRestored((), FIRST_ID),
            *builders.coming_up(),
            *(
                SubtaskChanged(ATTEMPT, chain, SubtaskStatus.RUNNING)
                for chain in self.chain_subtasks()
            ),
            CheckpointingStarted(ATTEMPT, plan(self.parallelism)),
        ):
            self._gateway.post(event)
        self._measuring.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._has_ended.set()
        self._measuring.join()
        self._gateway.end()
        self._gateway.close(1.0)

    def chain_subtasks(self) -> list[SubtaskId]:
        """All of them, chain by chain."""
        return [
            SubtaskId(OperatorId(chain), index)
            for chain in CHAINS
            for index in range(self.parallelism)
        ]

    @property
    def expected(self) -> int:
        """The number of operator subtasks that acknowledge a checkpoint."""
        return len(FLIGHTS) * self.parallelism

    def trigger(self) -> CheckpointId:
        """Begin a checkpoint and wait until the sources are told to inject its barrier."""
        self._gateway.post(CheckpointRequested(f"bench-{next(self._requests)}"))
        try:
            return self._numbers.get(timeout=ANSWER_TIMEOUT_S)
        except queue.Empty:
            raise RuntimeError(f"no checkpoint was triggered {self._refused}") from None

    def acknowledge(self, number: CheckpointId, subtask: SubtaskId) -> int:
        """A chain's subtask has its snapshot; gives how many acknowledgements that is."""
        channels = min(CHANNELS, self.parallelism)
        arrived = () if subtask.operator == "flights" else tuple(0.7 * n for n in range(channels))
        message = chain_acknowledged(number, subtask.operator, subtask.index, arrived_ms=arrived)
        self._gateway.post(message)
        return len(message.operators)

    # The gateway's listener.

    def on_command(self, command: DriverCommand) -> None:
        """Answer at once."""
        match command:
            case TriggerCheckpoint():
                self._numbers.put(command.barrier.checkpoint_id)
            case WriteManifest():
                self._gateway.post(ManifestWritten(command.checkpoint.checkpoint_id))
            case _:
                pass  # Nothing that these jobs wait for.

    def on_fenced(self, reason: str) -> None:
        """The benchmark is wrong about something."""
        self._refused = reason

    def on_refused(self, cause: str) -> None:
        """The same."""
        self._refused = cause

    def on_alone(self, cause: str) -> None:
        """The same."""
        self._refused = cause

    # Events.

    def _measure(self) -> None:
        """Report every subtask's counters as often as the worker processes do."""
        chance = random.Random(7)
        started = time.monotonic()
        records = 0
        while not self._has_ended.wait(METRICS_EVERY_S):
            ran_ms = (time.monotonic() - started) * 1_000
            records += chance.randrange(1_000, 2_000)
            for chain in self.chain_subtasks():
                busy = chance.uniform(0.2, 0.5)
                self._gateway.post(
                    SubtaskMetrics(
                        ATTEMPT,
                        chain,
                        records_in=records,
                        records_out=records,
                        bytes_in=100 * records,
                        bytes_out=100 * records,
                        busy_ms=busy * ran_ms,
                        idle_ms=(1 - busy) * ran_ms,
                        back_pressured_ms=0.0,
                        watermark_ms=records,
                    )
                )

    def _planned(self) -> JobPlanned:
        operators = tuple(
            OperatorDescription(
                OperatorId(uid),
                name,
                self.parallelism,
                None,
                OperatorId(chain),
                is_source=is_source,
                is_sink=is_sink,
                is_keyed=is_keyed,
            )
            for uid, name, chain, is_source, is_sink, is_keyed in FLIGHTS
        )
        edges = tuple(
            EdgeDescription(OperatorId(source), OperatorId(target), partitioning, 0, None)
            for source, target, partitioning in FLIGHTS_EDGES
        )
        return JobPlanned(
            at_ms=0,
            name="flights",
            operators=operators,
            edges=edges,
            checkpoints=CheckpointConfig(),
            restart=RestartConfig(),
            slot_count=self.parallelism,
            versions=Versions("0.1", "3.11", "21"),
            spark_application="local-1",
        )
