"""Where each chain subtask stands, folded over a batch of events and written once."""

from dataclasses import asdict
from datetime import datetime

from jobs.drivers import SUBTASK_ENDS
from jobs.models import Job, Subtask
from weir.ids import SubtaskId
from weir.protocol.lifecycle import SubtaskStatus
from weir.protocol.messages import SubtaskChanged, SubtaskMetrics

_NO_COUNTERS = frozenset({"attempt", "chain"})


class Subtasks:
    """The job's subtask rows while a batch is applied; the caller holds the job's lock."""

    def __init__(self, job: Job, now: datetime) -> None:
        self._job = job
        self._now = now
        self._rows: dict[tuple[str, int], Subtask] | None = None  # Read when first needed.
        self._touched: dict[tuple[str, int], Subtask] = {}

    def forget(self) -> None:
        """The rows were made anew."""
        self._rows, self._touched = None, {}

    def begin(self, attempt: int) -> None:
        """An attempt deploys all of them."""
        for key, row in self._known().items():
            row.attempt, row.status, row.metrics = attempt, SubtaskStatus.DEPLOYING.value, {}
            self._touched[key] = row

    def changed(self, event: SubtaskChanged) -> None:
        """A subtask reached a status."""
        row = self._row(event.chain, event.attempt)
        row.status = event.status.value

    def measured(self, event: SubtaskMetrics) -> None:
        """The latest counters; those before them are not kept."""
        row = self._row(event.chain, event.attempt)
        row.metrics = {k: v for k, v in asdict(event).items() if k not in _NO_COUNTERS}

    def end(self) -> None:
        """None runs any more; those that had an end of their own keep it."""
        for key, row in self._known().items():
            if row.status not in SUBTASK_ENDS:
                row.status = SubtaskStatus.CANCELED.value
                self._touched[key] = row

    def save(self) -> None:
        """Write what changed, in one statement."""
        for row in self._touched.values():
            row.updated_at = self._now
        Subtask.objects.bulk_create(
            self._touched.values(),
            update_conflicts=True,
            unique_fields=["job", "chain", "index"],
            update_fields=["attempt", "status", "metrics", "updated_at"],
        )
        self.forget()

    def _known(self) -> dict[tuple[str, int], Subtask]:
        if self._rows is None:
            rows = Subtask.objects.filter(job=self._job)
            self._rows = {(row.chain, row.index): row for row in rows}
        return self._rows

    def _row(self, chain: SubtaskId, attempt: int) -> Subtask:
        key = (str(chain.operator), chain.index)
        known = self._known()
        row = known.get(key)
        if row is None:
            row = known[key] = Subtask(job=self._job, chain=key[0], index=key[1], attempt=attempt)
        row.attempt = attempt
        self._touched[key] = row
        return row
