"""Rows of chain subtasks, folded over a batch of events and written once."""

from collections.abc import Collection
from dataclasses import asdict, fields
from datetime import datetime
from functools import reduce
from operator import or_

from django.db.models import Q

from controlplane.base import clock
from controlplane.base.errors import Invalid
from jobs.drivers.drivers import SUBTASK_ENDS
from jobs.events import bad_records, rates
from jobs.models import Job, Subtask
from jobs.storable_text import storable
from weir.ids import SubtaskId
from weir.protocol.lifecycle import SubtaskStatus
from weir.protocol.messages import (
    AlignmentProgress,
    Measurement,
    SubtaskChanged,
    SubtaskMetrics,
    SubtaskStalled,
)

# Memory is the worker process's; calls and threads are no counters.
_NO_COUNTERS = ("attempt", "chain", "memory_bytes", "calls", "beside")
_COUNTERS = tuple(f.name for f in fields(SubtaskMetrics) if f.name not in _NO_COUNTERS)


class Subtasks:
    """The job's subtask rows while a batch is applied; the caller holds the job's lock."""

    def __init__(self, job: Job, now: datetime, about: Collection[SubtaskId]) -> None:
        """Fold into rows of ``job``; ``about`` names the chain subtasks in the batch."""
        self._job = job
        self._now = now
        self._about = about
        self._rows: dict[tuple[str, int], Subtask] | None = None  # Read when first needed.
        self._has_all = False
        self._touched: dict[tuple[str, int], Subtask] = {}

    def forget(self) -> None:
        """Forget the rows read so far: the database has new ones."""
        self._rows, self._has_all, self._touched = None, False, {}

    def begin(self, attempt: int) -> None:
        """Reset all subtasks: an attempt deploys them."""
        for key, row in self._all().items():
            row.attempt, row.status, row.metrics = attempt, SubtaskStatus.DEPLOYING.value, {}
            row.samples, row.rates, row.aligning, row.stall = [], {}, None, None
            self._touched[key] = row

    def changed(self, event: SubtaskChanged) -> None:
        """Note the status of a subtask."""
        row = self._row(event.chain, event.attempt)
        row.status = event.status.value

    def measured(self, event: SubtaskMetrics) -> None:
        """Note a subtask's latest counters, and the rates since the earlier ones.

        The loop itself sends counters, so it is not stalled.
        """
        row = self._measured(event)
        if row is None:
            return
        if event.bad_records or row.bad_marks:
            before = row.metrics.get("bad_records", 0)
            row.bad_marks = bad_records.marked(
                row.bad_marks, clock.to_ms(self._now), before, event.bad_records
            )
        # Thousands a second: ``dataclasses.asdict`` would cost as much as writing the rows.
        row.metrics = {name: getattr(event, name) for name in _COUNTERS}
        if not self._job.is_over:  # The last counters are kept, but rates are over.
            row.samples = rates.slid(row.samples, rates.sample(row.metrics))
            row.rates = rates.over(row.samples)
            if row.rates and event.calls:
                row.rates["calls"] = [asdict(call) for call in event.calls]
            if row.rates and event.beside:
                row.rates["beside"] = asdict(event.beside)
        row.stall = None

    def aligning(self, event: AlignmentProgress) -> None:
        """Note the progress of a long alignment."""
        row = self._measured(event)
        if row is None:
            return
        row.aligning = {
            "checkpoint": event.checkpoint_id,
            "since_ms": clock.to_ms(self._now) - round(event.waited_ms),  # By the database's clock.
            "waited_ms": event.waited_ms,
            "gates": [
                {
                    "gate": gate.gate_index,
                    "upstream": list(gate.upstream),
                    "arrived_ms": list(gate.arrived_ms),
                    "blocked_ms": list(gate.blocked_ms),
                    "bytes_during": list(gate.bytes_during),
                    "ended": list(gate.ended),
                }
                for gate in event.gates
            ],
        }

    def stalled(self, event: SubtaskStalled) -> None:
        """Note a stall: the loop has been in one call of this subtask for long."""
        row = self._measured(event)
        if row is None:
            return
        row.stall = {
            "since_ms": clock.to_ms(self._now) - round(event.stalled_ms),
            "stalled_ms": event.stalled_ms,
            "stack": storable(event.stack),
        }

    def end(self, *, job_ended: bool) -> None:
        """Mark all subtasks as ended; those that had an end of their own keep it.

        Alignments and stalls of a failed attempt are kept until the next one begins: they explain
        the checkpoints that end with it.
        """
        for key, row in self._all().items():
            if row.status not in SUBTASK_ENDS:
                row.status = SubtaskStatus.CANCELED.value
            row.samples, row.rates = [], {}
            if job_ended:
                row.aligning = row.stall = None
            self._touched[key] = row

    def save(self) -> None:
        """Write the changed rows in one statement."""
        for row in self._touched.values():
            row.updated_at = self._now
        Subtask.objects.bulk_create(
            self._touched.values(),
            update_conflicts=True,
            unique_fields=["job", "chain", "index"],
            update_fields=[
                "attempt",
                "status",
                "metrics",
                "samples",
                "rates",
                "bad_marks",
                "aligning",
                "stall",
                "updated_at",
            ],
        )
        self.forget()

    def _known(self) -> dict[tuple[str, int], Subtask]:
        """The rows of the subtasks in the batch, few of a large job's."""
        if self._rows is None:
            indexes: dict[str, list[int]] = {}
            for subtask in self._about:
                indexes.setdefault(str(subtask.operator), []).append(subtask.index)
            places = (Q(chain=chain, index__in=of) for chain, of in indexes.items())
            self._rows = self._read(reduce(or_, places, Q(pk__in=[])))
        return self._rows

    def _all(self) -> dict[tuple[str, int], Subtask]:
        if not self._has_all:
            self._rows = self._read(Q()) | (self._rows or {})
            self._has_all = True
        return self._known()

    def _read(self, which: Q) -> dict[tuple[str, int], Subtask]:
        rows = Subtask.objects.filter(which, job=self._job)
        return {(row.chain, row.index): row for row in rows}

    def _measured(self, event: Measurement) -> Subtask | None:
        """The row of a measured subtask; None: the measurement comes too late.

        Under load a measurement may arrive after events that were reported after it.
        """
        if self._job.is_over and not isinstance(event, SubtaskMetrics):
            return None
        row = self._known().get((str(event.chain.operator), event.chain.index))
        if row is not None and event.attempt < row.attempt:
            return None
        return self._row(event.chain, event.attempt)

    def _row(self, chain: SubtaskId, attempt: int) -> Subtask:
        """The row of a subtask; the job's plan made it.

        Raises:
            Invalid: The plan has no such subtask.
        """
        key = (str(chain.operator), chain.index)
        known = self._known()
        row = known.get(key)
        if row is None:
            raise Invalid(f"chain: {chain} is no chain subtask of the job's plan")
        row.attempt = attempt
        self._touched[key] = row
        return row
