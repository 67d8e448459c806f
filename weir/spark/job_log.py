"""The log of a job that a plain ``python pipeline.py`` runs: start, restarts, checkpoints, end.

Everything goes through ``logging``; ``weir.common.stderr_log`` says where to.
"""

import logging

from weir.common.tracebacks import headline_of, operator_first, without_own_frames
from weir.config import JobConfig
from weir.graph.logical import JobGraph
from weir.graph.physical import ExecutionGraph
from weir.ids import JobId
from weir.protocol.events import (
    AttemptStarted,
    CheckpointSettled,
    JobChanged,
    JobEvent,
    Notice,
)
from weir.protocol.lifecycle import JobStatus

logger = logging.getLogger(__name__)


class JobLog:
    """Logs the events of one job."""

    def __init__(self, job_id: JobId, graph: JobGraph, config: JobConfig) -> None:
        """Log the start."""
        self._name = f"{graph.name} ({job_id})"
        self._cause = ""
        self._began_ms: float | None = None
        self._completed_count = 0
        slots = ExecutionGraph(graph).slot_count
        noun = "slot" if slots == 1 else "slots"
        logger.info("%s starts: %d %s, %s", self._name, slots, noun, _checkpoints(config))
        checkpoints = config.checkpoints
        if checkpoints.interval_ms is not None and checkpoints.storage is None:
            logger.warning(
                "checkpoints are kept in the driver's memory and are lost with it; "
                "env.get_checkpoint_config().set_checkpoint_storage(DIRECTORY) keeps them"
            )

    def on_event(self, event: JobEvent) -> None:
        """Log an event, most often with nothing."""
        match event:
            case JobChanged():
                self._changed(event)
            case AttemptStarted() if event.attempt > 1 or event.restored_checkpoint is not None:
                since = "the beginning"
                if event.restored_checkpoint is not None:
                    since = f"checkpoint {event.restored_checkpoint}"
                note = f" ({event.note})" if event.note else ""
                logger.info("attempt %d starts from %s%s", event.attempt, since, note)
            case CheckpointSettled() if event.failure is None:
                self._completed_count += 1
                logger.debug(
                    "checkpoint %d completed in %d ms", event.checkpoint_id, event.duration_ms
                )
            case CheckpointSettled():
                cause = f": {_told(event.cause)}" if event.cause else ""
                logger.warning(
                    "checkpoint %d failed after %.1f s: %s%s",
                    event.checkpoint_id,
                    event.duration_ms / 1_000,
                    event.failure,
                    cause,
                )
            case Notice():
                logger.warning("%s", event.text)

    def _changed(self, event: JobChanged) -> None:
        if self._began_ms is None:
            self._began_ms = event.at_ms
        seconds = (event.at_ms - self._began_ms) / 1_000
        match event.status:
            case JobStatus.FAILING:
                self._cause = event.cause
            case JobStatus.RESTARTING:
                logger.warning("%s restarts: %s", self._name, _told(self._cause))
            case JobStatus.RUNNING:
                logger.info("%s runs", self._name)
            case JobStatus.FINISHED | JobStatus.CANCELED:
                count = self._completed_count
                noun = "checkpoint" if count == 1 else "checkpoints"
                end = f"{event.status} after {seconds:.1f} s"
                logger.info("%s %s, %d %s", self._name, end, count, noun)
            case JobStatus.FAILED:  # The exception that the script gets has the traceback.
                said = headline_of(event.cause) or event.cause.partition("\n")[0]
                logger.debug("the whole cause: %s", event.cause)
                logger.error("%s failed after %.1f s: %s", self._name, seconds, said)


def _told(cause: str) -> str:
    return without_own_frames(operator_first(cause)).rstrip()


def _checkpoints(config: JobConfig) -> str:
    checkpoints = config.checkpoints
    if checkpoints.interval_ms is None:
        return "no checkpoints"
    where = "in memory" if checkpoints.storage is None else f"in {checkpoints.storage}"
    return f"a checkpoint every {checkpoints.interval_ms / 1_000:g} s, kept {where}"
