"""The memory of worker processes, from the counters of their subtasks.

Counters come twice a second and memory rarely changes much, so a row is written only where the
difference is worth a write. Subtask *i* of each chain runs in slot *i*.
"""

from django.db import connection

from jobs.models import Job
from weir.protocol.messages import SubtaskMetrics

_WORTH = 100  # The part of the memory by which it has to differ.

_WRITE = """
    UPDATE jobs_worker SET memory_bytes = told.bytes
    FROM unnest(%s::bigint[], %s::bigint[], %s::bigint[]) AS told (attempt, slot, bytes)
    JOIN jobs_attempt ON jobs_attempt.job_id = %s AND jobs_attempt.number = told.attempt
    WHERE jobs_worker.attempt_id = jobs_attempt.id
      AND jobs_worker.slot_index = told.slot
      AND (jobs_worker.memory_bytes IS NULL
           OR abs(jobs_worker.memory_bytes - told.bytes) > jobs_worker.memory_bytes / %s)
"""


class WorkerMemory:
    """The newest memory of each worker process in a batch."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._told: dict[tuple[int, int], int] = {}  # By attempt and slot.

    def measured(self, event: SubtaskMetrics) -> None:
        """Note the memory of the slot of a subtask, if its worker knows it."""
        if event.memory_bytes:
            self._told[event.attempt, event.chain.index] = event.memory_bytes

    def save(self) -> None:
        """Write what has changed, in one statement."""
        if not self._told:
            return
        attempts, slots = zip(*self._told, strict=True)
        sizes = list(self._told.values())
        with connection.cursor() as cursor:
            cursor.execute(_WRITE, [list(attempts), list(slots), sizes, self._job.pk, _WORTH])
