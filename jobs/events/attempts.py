"""Rows of attempts and their worker processes, from a driver's events."""

from collections import Counter, defaultdict
from collections.abc import Mapping
from datetime import datetime

from jobs import attempt_ends
from jobs.models import Attempt, AttemptEnd, Driver, Job, Worker
from jobs.storable_text import storable
from weir.bounds import COUNT_MAX
from weir.ids import AttemptNumber
from weir.protocol.events import AttemptStarted, CaughtUp, Recovered, WorkerStarted
from weir.protocol.messages import SubtaskChanged

_RESTORED = ("restored_bytes", "restored_local_bytes")  # Of a subtask and of an attempt alike.


class Attempts:
    """Writer of the attempts of one driver; the caller holds the job's lock."""

    def __init__(self, job: Job, driver: Driver, now: datetime) -> None:
        self._job = job
        self._driver = driver
        self._now = now
        self._unsaved: defaultdict[AttemptNumber, Counter[str]] = defaultdict(Counter)

    def newest_number(self) -> int | None:
        """The number of the driver's last attempt; None before its first."""
        newest = self._newest()
        return None if newest is None else newest.number

    def started(self, event: AttemptStarted) -> None:
        """Note the start of an attempt: the graph is being deployed."""
        attempt = self._of(event.attempt)
        if attempt.restored_checkpoint != event.restored_checkpoint:
            attempt.restored_checkpoint = event.restored_checkpoint
            attempt.save(update_fields=["restored_checkpoint"])

    def worker_started(self, event: WorkerStarted) -> None:
        """Note a worker process, possibly before the start of its attempt."""
        slot = self._driver.slots.get(str(event.slot_index), {})
        limit = event.memory_limit
        Worker.objects.update_or_create(
            attempt=self._of(event.attempt),
            slot_index=event.slot_index,
            defaults={
                "host": storable(slot.get("host", ""), 200),
                "pid": event.pid,
                "memory_limit_bytes": None if limit is None else limit.limit_bytes,
                "memory_limit_source": "" if limit is None else limit.source,
                "started_at": self._now,
            },
        )

    def running(self) -> None:
        """Note that all subtasks of the newest attempt run."""
        if (attempt := self._newest()) is not None and attempt.running_at is None:
            attempt.running_at = self._now
            attempt.save(update_fields=["running_at"])

    def restored(self, event: SubtaskChanged) -> None:
        """Note the bytes that a subtask restored.

        A driver tells their sum where it replaced an attempt of its own, and of its first attempt
        nothing.
        """
        if counts := _bytes_in(event.details):
            self._unsaved[event.attempt].update(counts)

    def recovered(self, event: Recovered) -> None:
        """Note the cause and the durations of the recovery that led to an attempt."""
        self._unsaved.pop(event.attempt, None)
        attempt = self._of(event.attempt)
        attempt.recovery_cause = storable(event.cause)
        attempt.backoff_ms = event.backoff_ms
        attempt.redeploy_ms = event.redeploy_ms
        attempt.restore_ms = event.restore_ms
        attempt.restored_bytes = event.restored_bytes
        attempt.restored_local_bytes = event.restored_local_bytes
        attempt.replayed_records = event.replayed_records
        attempt.restored_checkpoint = event.restored_checkpoint
        attempt.save()

    def caught_up(self, event: CaughtUp) -> None:
        """Note that the attempt's sources have reached the positions of its predecessor."""
        attempt = self._of(event.attempt)
        attempt.catch_up_ms = event.catch_up_ms
        attempt.save(update_fields=["catch_up_ms"])

    def ended(self, end: AttemptEnd, cause: str = "") -> None:
        """End the attempt under way, if there is one."""
        attempt_ends.end(self._job, end, self._now, cause)

    def save(self) -> None:
        """Add the bytes that subtasks restored since the last call."""
        for number, sums in self._unsaved.items():
            attempt = Attempt.objects.filter(driver=self._driver, number=number).first()
            if attempt is None or attempt.restored_checkpoint is None:
                continue
            for name, count in sums.items():
                setattr(attempt, name, min((getattr(attempt, name) or 0) + count, COUNT_MAX))
            attempt.save(update_fields=list(sums))
        self._unsaved.clear()

    def _newest(self) -> Attempt | None:
        return Attempt.objects.filter(driver=self._driver).order_by("-number").first()

    def _of(self, number: int) -> Attempt:
        """The row of an attempt, made at its first event, which ends all older attempts."""
        attempt, is_new = Attempt.objects.get_or_create(
            job=self._job,
            number=number,
            defaults={"driver": self._driver, "started_at": self._now},
        )
        if not is_new and attempt.driver_id != self._driver.pk:
            # Its first driver ended before it had claimed the number in the storage.
            attempt.delete()
            return self._of(number)
        if is_new:
            attempt_ends.end(self._job, AttemptEnd.FAILED, self._now, before=number)
            attempt_ends.note_begin(self._job, attempt)
        return attempt


def _bytes_in(details: Mapping[str, object]) -> dict[str, int]:
    """The bytes among the details of a subtask, which no type of theirs checks."""
    return {
        name: count
        for name in _RESTORED
        if isinstance(count := details.get(name), int) and 0 <= count <= COUNT_MAX
    }
