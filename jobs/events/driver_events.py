"""Writer of a driver's events into rows. The caller holds the job's lock, and applies each once.

Events for the checkpoint coordinator are skipped here.
"""

import logging
from collections.abc import Collection, Sequence
from datetime import datetime

from controlplane.base import wakeups
from jobs import job_status
from jobs.drivers import drivers
from jobs.events import plans
from jobs.events.attempts import Attempts
from jobs.events.subtasks import Subtasks
from jobs.events.worker_memory import WorkerMemory
from jobs.models import AttemptEnd, DesiredState, Driver, DriverStatus, Job, JobException
from jobs.storable_text import storable
from weir.ids import SubtaskId
from weir.protocol.driver_messages import DriverEvent, DriverLost, JobPlanned, PipelineFailed
from weir.protocol.events import (
    AttemptStarted,
    CaughtUp,
    JobChanged,
    Notice,
    Recovered,
    SlotChanged,
    WorkerStarted,
)
from weir.protocol.lifecycle import JOB_TRANSITIONS, JobStatus, SubtaskStatus
from weir.protocol.messages import (
    AlignmentProgress,
    Measurement,
    SubtaskChanged,
    SubtaskMetrics,
    SubtaskStalled,
)

logger = logging.getLogger(__name__)


def apply(job: Job, driver: Driver, events: Sequence[DriverEvent], now: datetime) -> None:
    """Fold a batch of events of the job's newest driver into the job's rows."""
    if not events:
        return
    about = {event.chain for event in events if isinstance(event, SubtaskChanged | Measurement)}
    fold = _Fold(job, driver, about, now)
    for event in events:
        fold.take(event)
    fold.save()


class _Fold:
    """One batch under way; a row that several of its events change is written once."""

    def __init__(
        self, job: Job, driver: Driver, about: Collection[SubtaskId], now: datetime
    ) -> None:
        self._job = job
        self._driver = driver
        self._now = now
        self._attempts = Attempts(job, driver, self._now)
        self._subtasks = Subtasks(job, self._now, about)
        self._memory = WorkerMemory(job)
        self._exceptions: list[JobException] = []
        self._is_refused = False

    def take(self, event: DriverEvent) -> None:
        if self._is_refused:
            return  # The driver is told to end; the rest of its batch is void.
        match event:
            case JobPlanned():
                self._planned(event)
            case JobChanged():
                self._job_changed(event)
            case AttemptStarted():
                self._attempts.started(event)
                self._subtasks.begin(event.attempt)
                if event.note:
                    self._note("notice", event.note, event.attempt)
            case WorkerStarted():
                self._attempts.worker_started(event)
            case SlotChanged():
                self._slot_changed(event)
            case Recovered():
                self._attempts.recovered(event)
            case CaughtUp():
                self._attempts.caught_up(event)
            case SubtaskChanged():
                self._subtask_changed(event)
            case SubtaskMetrics():
                self._subtasks.measured(event)
                self._memory.measured(event)
            case AlignmentProgress():
                self._subtasks.aligning(event)
            case SubtaskStalled():
                self._subtasks.stalled(event)
            case Notice(_, text):
                self._note("notice", text)
            case PipelineFailed(_, cause):
                self._pipeline_failed(cause)
            case DriverLost(_, cause):
                self.save()
                drivers.lost(self._job, self._driver, cause)
            case _:
                pass  # An event for the coordinator.

    def save(self) -> None:
        """Write the collected changes."""
        self._attempts.save()
        self._subtasks.save()
        self._memory.save()
        JobException.objects.bulk_create(self._exceptions)
        self._exceptions = []
        wakeups.on_commit(wakeups.job(self._job.pk))

    def _planned(self, event: JobPlanned) -> None:
        self._subtasks.forget()
        try:
            plans.store(self._job, self._driver, event, self._now)
        except plans.OutputTaken as taken:
            self._is_refused = True
            cause = str(taken)
            self._note("pipeline", cause)
            drivers.end(self._driver, cause)
            self.save()
            self._conclude(cause)

    def _job_changed(self, event: JobChanged) -> None:
        job, current = self._job, JobStatus(self._job.status)
        if current not in JOB_TRANSITIONS:
            return  # The control plane ended the job first.
        if event.status is current:
            return
        if not job_status.may_follow(current, event.status):
            # Only a bug leads here. The driver's status counts, or no later one would ever fit.
            text = (
                f"driver {self._driver.number} reports {event.status} for a job that is {current}"
            )
            logger.error("%s", text)
            self._note("internal", text)
        known_cause = job.cause
        cause = storable(event.cause)
        if cause and cause != known_cause:
            self._note("attempt", cause, self._attempts.newest_number())
        match event.status:
            case JobStatus.RUNNING:
                self._attempts.running()
            case JobStatus.FAILING | JobStatus.FAILED:
                self._attempts.ended(AttemptEnd.FAILED, cause)
                self._subtasks.end(job_ended=event.status is JobStatus.FAILED)
            case JobStatus.FINISHED | JobStatus.CANCELED:
                self._attempts.ended(AttemptEnd(event.status.value))
                self._subtasks.end(job_ended=True)
        job_status.change(job, event.status, cause, at=self._now)
        if event.status not in JOB_TRANSITIONS:
            drivers.retire(self._driver)

    def _subtask_changed(self, event: SubtaskChanged) -> None:
        self._subtasks.changed(event)
        if event.status is SubtaskStatus.RUNNING:
            self._attempts.restored(event)
        # The first failure becomes the attempt's cause; the ones that follow do not.
        if (
            event.status is SubtaskStatus.FAILED
            and self._job.status in (JobStatus.FAILING.value, JobStatus.RESTARTING.value)
            and "lost_peer" not in event.details
        ):
            text = f"{event.chain} failed\n{event.cause.strip()}"
            self._note("subtask", text, event.attempt, str(event.chain))

    def _slot_changed(self, event: SlotChanged) -> None:
        slots = dict(self._driver.slots)
        if event.registered:
            slots[str(event.slot_index)] = {"host": storable(event.host), "pid": event.pid}
        else:
            slots.pop(str(event.slot_index), None)
        self._driver.slots = slots
        self._driver.save(update_fields=["slots"])

    def _pipeline_failed(self, cause: str) -> None:
        if self._job.is_over:
            return
        cause = storable(cause)
        self._note("pipeline", cause)
        is_canceled = self._job.desired == DesiredState.CANCELED
        self._attempts.ended(AttemptEnd.CANCELED if is_canceled else AttemptEnd.FAILED, cause)
        self._subtasks.end(job_ended=True)
        if self._driver.status != DriverStatus.ENDED:
            drivers.retire(self._driver)
        # The coordinator may never have begun; this is how it learns of the end.
        self.save()
        self._conclude(cause)

    def _conclude(self, cause: str) -> None:
        """End the job: CANCELED where that was asked for, else FAILED."""
        if self._job.desired == DesiredState.CANCELED:
            drivers.conclude(self._job, JobStatus.CANCELED)
        else:
            drivers.conclude(self._job, JobStatus.FAILED, cause)

    def _note(self, kind: str, text: str, attempt: int | None = None, subtask: str = "") -> None:
        if kind == "attempt" and not subtask:
            first, _, _ = text.partition("\n")
            subtask = first.removesuffix(" failed") if first.endswith(" failed") else ""
        self._exceptions.append(
            JobException(
                job=self._job,
                at=self._now,
                kind=kind,
                driver_number=self._driver.number,
                attempt_number=attempt,
                subtask=storable(subtask, 310),
                text=storable(text),
            )
        )
