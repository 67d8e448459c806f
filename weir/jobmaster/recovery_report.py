"""The report of a recovery: how long each of its steps took, and how many records it repeats."""

from dataclasses import dataclass

from weir.ids import AttemptNumber
from weir.jobmaster.attempt import Attempt
from weir.protocol.events import CaughtUp, Recovered


@dataclass(slots=True)
class _Failure:
    """The failure that is being recovered from, and the measurements so far."""

    cause: str
    failed_at_ms: int
    backoff_ms: float
    source_records: int  # Emitted by the failed attempt's sources, as far as reported.
    workers_at_ms: int = 0


@dataclass(frozen=True, slots=True)
class _CatchUp:
    attempt: AttemptNumber
    records: int  # To reach.
    since_ms: int


class RecoveryReport:
    """Measures from a failure until its successor runs, and until the sources have caught up."""

    def __init__(self) -> None:
        self._failure: _Failure | None = None
        self._catch_up: _CatchUp | None = None

    @property
    def is_catching_up(self) -> bool:
        """Whether the sources are to reach again what the failed attempt had reached."""
        return self._catch_up is not None

    def stop_catching_up(self) -> None:
        """The attempt failed before it had caught up."""
        self._catch_up = None

    def restarting(
        self, cause: str, now_ms: int, *, backoff_ms: float, source_records: int
    ) -> None:
        """An attempt failed, and is replaced after the restart strategy's delay."""
        if self._failure is not None:  # This attempt never ran: its predecessor got further.
            source_records = max(source_records, self._failure.source_records)
        self._failure = _Failure(cause, now_ms, backoff_ms, source_records)

    def deploying(self, now_ms: int) -> None:
        """All workers listen."""
        if self._failure is not None:
            self._failure.workers_at_ms = now_ms

    def running(self, attempt: Attempt, restored_records: int, now_ms: int) -> Recovered | None:
        """All subtasks run; the report, where an attempt had failed."""
        failure, self._failure = self._failure, None
        if failure is None:
            return None
        assert attempt.choice is not None
        replayed = max(0, failure.source_records - restored_records)
        begun_ms = failure.failed_at_ms + failure.backoff_ms
        self._catch_up = _CatchUp(attempt.number, replayed, now_ms) if replayed else None
        return Recovered(
            at_ms=now_ms,
            attempt=attempt.number,
            cause=failure.cause,
            restored_checkpoint=attempt.choice.checkpoint_id,
            backoff_ms=failure.backoff_ms,
            redeploy_ms=max(0.0, failure.workers_at_ms - begun_ms),
            restore_ms=float(now_ms - failure.workers_at_ms),
            restored_bytes=attempt.restored_bytes,
            replayed_records=replayed,
            restored_local_bytes=attempt.restored_local_bytes,
        )

    def progressed(self, source_records: int, now_ms: int) -> CaughtUp | None:
        """The sources have emitted so many records; the report, once they have caught up."""
        catch_up = self._catch_up
        if catch_up is None or source_records < catch_up.records:
            return None
        self._catch_up = None
        return CaughtUp(now_ms, catch_up.attempt, float(now_ms - catch_up.since_ms))
