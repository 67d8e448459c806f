"""A managed driver, started by the control plane: its events, its end and its exit code.

The driver's last event decides how the job continues, so it posts exactly one of these: the job
reached an end (``JobChanged``), no job ran and a retry would not help (``PipelineFailed``), or the
driver ends and the job does not (``DriverLost``). It is posted behind all other events, once no
manifest is being written any more. A *fenced* driver posts no last event.

All other events of the job are posted by the job itself, to the gateway's client.
"""

import dataclasses
import logging
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from weir.channels.authority import Protection
from weir.common.clock import SystemClock
from weir.config import JobConfig
from weir.errors import ConfigError
from weir.graph.logical import JobGraph
from weir.graph.physical import ExecutionGraph
from weir.ids import JobId
from weir.jobmaster.job_master import JobMaster
from weir.jobmaster.restorer import NO_PROGRESS, JobProgress
from weir.managed.gateway_client import FLUSH_MAX_S, Gateway
from weir.managed.gateway_line import GatewayAddress
from weir.protocol.driver_messages import (
    DriverCommand,
    DriverLost,
    EdgeDescription,
    JobPlanned,
    OperatorDescription,
    PipelineFailed,
)
from weir.protocol.lifecycle import JobStatus
from weir.protocol.wire import to_wire
from weir.secrets import job_secrets
from weir.worker.versions import installed_versions

logger = logging.getLogger(__name__)

EXIT_ENDED, EXIT_FAILED, EXIT_NOTHING_RAN = 0, 1, 2
EXIT_LEFT = 75  # EX_TEMPFAIL: another driver can go on.
EXIT_FENCED = 76
EXIT_REFUSED = 77


class Stopped(BaseException):
    """The driver has to end before the script has called ``env.execute()``.

    Not an ``Exception``, so that no script catches it by accident.
    """


class ManagedDriver:
    """The managed driver's connection to the control plane, from its start to its exit."""

    def __init__(
        self,
        job_id: JobId,
        address: GatewayAddress,
        alone_max_s: float | None = None,
        progress: JobProgress = NO_PROGRESS,
    ) -> None:
        self.job_id = job_id
        self.progress = progress  # The job's under earlier drivers.
        self.clock = SystemClock()  # The job's as well, so that all events have one clock.
        self.is_planned = False  # ``JobPlanned`` was posted.
        self._gateway = Gateway(address, self, clock=self.clock, alone_max_s=alone_max_s)
        # A signal may come while its own thread holds the lock.
        self._lock = threading.RLock()
        self._job: JobMaster | None = None
        self._call: Callable[[Callable[[], None]], None] | None = None
        self._early: list[Callable[[JobMaster], None]] = []  # For the job once it is attached.
        self._stop_cause: str | None = None
        self._exit_code: int | None = None
        self._is_over = False
        self._was_hurried = False
        self._is_dismissed = False  # The control plane fenced or refused this driver, or is gone.

    # The driver's life.

    def start(self) -> None:
        """Connect, and handle SIGTERM and SIGINT, which end the driver, not the job."""
        self._take_signals()
        self._gateway.start()

    def close(self) -> int:
        """Post the last events; returns the exit code."""
        is_flushed = self._gateway.close(FLUSH_MAX_S)
        if not is_flushed and not self._is_dismissed:
            logger.error(
                "the control plane stayed away, and did not get the last events of job %s",
                self.job_id,
            )
        return EXIT_LEFT if self._exit_code is None else self._exit_code

    def pipeline_failed(self, cause: str) -> None:
        """The script failed before its job ran, and would fail again."""
        self._exit(EXIT_NOTHING_RAN)
        self._is_over = True
        self._gateway.post_last(PipelineFailed(self.clock.now_ms(), cause))

    def leave(self, cause: str) -> None:
        """Post that the driver ends without its job, unless the last event was posted already."""
        if not self._is_over:
            self._is_over = True
            self._exit(EXIT_LEFT)
            self._gateway.post_last(DriverLost(self.clock.now_ms(), cause))

    # Called by ``env.execute()``.

    def check(self, config: JobConfig) -> None:
        """Refuse a job that cannot run under the control plane.

        Raises:
            ConfigError: The message says what to change.
        """
        if self.is_planned:
            raise ConfigError(
                "a script that the control plane runs has one job, and this one has called "
                "env.execute() before; put both into one pipeline, or submit two scripts"
            )
        if config.checkpoints.storage is None:
            raise ConfigError(
                "a job of the control plane outlives its drivers and needs checkpoint storage; "
                "submit it with one, or call set_checkpoint_storage(...)"
            )

    def plan(
        self,
        graph: JobGraph,
        config: JobConfig,
        spark_application: str,
        protection: Protection,
    ) -> None:
        """Post the plan of the job that is about to run."""
        self._take_signals()  # Spark has installed a handler of its own.
        now_ms = self.clock.now_ms()
        plan = planned(graph, config, spark_application, now_ms)
        settings = {**plan.settings, "network": protection.value}
        self._gateway.post(dataclasses.replace(plan, settings=settings))
        self.is_planned = True

    @property
    def control(self) -> Gateway:
        """The control plane, as the job posts to it."""
        return self._gateway

    def attached(self, job: JobMaster, call: Callable[[Callable[[], None]], None]) -> None:
        """Attach the job, which is about to run on the thread behind ``call``."""
        with self._lock:
            self._job, self._call = job, call
            early, self._early = self._early, []
        for action in early:
            self._with_job(action)

    def over(self, job: JobMaster) -> None:
        """The job reached its end, or this driver left it: post the last event."""
        if job.left is not None:
            self.leave(job.left)
            return
        self._is_over = True
        self._exit(EXIT_FAILED if job.status is JobStatus.FAILED else EXIT_ENDED)
        assert job.end is not None
        self._gateway.post_last(job.end)

    def _with_job(self, action: Callable[[JobMaster], None]) -> None:
        """Run an action on the job's thread, now or as soon as the job is attached."""
        with self._lock:
            job, call = self._job, self._call
            if job is None or call is None:
                self._early.append(action)
                return
        call(lambda: action(job))

    # From the control plane, and from signals.

    def on_command(self, command: DriverCommand) -> None:
        """Pass a command of the control plane to the job."""
        self._with_job(lambda job: job.on_command(command))

    def on_fenced(self, reason: str) -> None:
        """Another driver has the job, or the job is over."""
        self._is_dismissed = True
        if self._is_over:  # The answer to the last event was lost, perhaps.
            logger.info("the control plane has ended this driver: %s", reason)
            return
        cause = f"fenced: {reason}"
        logger.error("the control plane refuses this driver, which ends at once: %s", reason)
        self._exit(EXIT_FENCED)
        self._stop(cause, lambda job: job.fence(cause))

    def on_refused(self, cause: str) -> None:
        """The control plane refuses this driver's requests."""
        self._is_dismissed = True
        logger.error("the control plane refuses this driver's requests, so it ends: %s", cause)
        if not self._is_over:
            self._exit(EXIT_REFUSED)
            self._stop(cause, lambda job: job.leave(cause))

    def on_alone(self, cause: str) -> None:
        """No control plane has answered for as long as this driver was to wait."""
        self._is_dismissed = True
        logger.error("this driver ends without its job: %s", cause)
        if not self._is_over:
            self._exit(EXIT_LEFT)
            self._stop(cause, lambda job: job.leave(cause))

    def _stop(self, cause: str, action: Callable[[JobMaster], None]) -> None:
        with self._lock:
            self._stop_cause = cause
            is_attached = self._call is not None
        self._with_job(action)
        if not is_attached:  # The script runs, and only a signal interrupts it.
            main = threading.main_thread().ident
            assert main is not None
            signal.pthread_kill(main, signal.SIGTERM)

    def _take_signals(self) -> None:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        name = signal.Signals(number).name
        cause = self._stop_cause or f"{name} was sent to the driver"
        if self._is_over:
            # Only the last event is left to be posted, which takes a moment if the control plane
            # answers.
            if self._gateway.is_away or self._was_hurried:
                logger.warning("%s: events that the control plane has not got are lost", name)
                self._gateway.end()
            self._was_hurried = True
        elif self._call is not None:
            self._with_job(lambda job: job.leave(cause))
        else:
            raise Stopped(cause)

    def _exit(self, code: int) -> None:
        """Set the exit code, unless an earlier reason to exit has set it."""
        if self._exit_code is None:
            self._exit_code = code


def planned(graph: JobGraph, config: JobConfig, spark_application: str, now_ms: int) -> JobPlanned:
    """The plan of a job for the control plane: its graph and settings, without its code."""
    plan = ExecutionGraph(graph)
    settings: dict[str, Any] = dataclasses.asdict(config)
    # The first two have fields of their own; the parameters are the pipeline's, perhaps secrets.
    for name in ("checkpoints", "restart", "parameters"):
        del settings[name]
    masker = job_secrets.masker()
    settings["channels"] = to_wire(config.channels)
    settings["state"] = to_wire(config.state)
    return JobPlanned(
        at_ms=now_ms,
        name=masker.text(graph.name),
        operators=tuple(
            OperatorDescription(
                uid=op.uid,
                name=masker.text(op.name),
                parallelism=op.parallelism,
                max_parallelism=op.max_parallelism,
                chain=plan.chain_of(op.uid).head,
                is_source=op.is_source,
                is_sink=op.is_sink,
                is_keyed=op.keyed,
                files=op.files,
            )
            for op in graph.operators
        ),
        edges=tuple(
            EdgeDescription(
                edge.source,
                edge.target,
                edge.partitioning.value,
                edge.input_index,
                edge.side_tag,
            )
            for edge in graph.edges
        ),
        checkpoints=config.checkpoints,
        restart=config.restart,
        slot_count=plan.slot_count,
        versions=installed_versions(),
        spark_application=spark_application,
        settings=masker.data(settings),
    )
