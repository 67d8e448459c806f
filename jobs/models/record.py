"""The records that a job keeps: its failures and its facts, in their order."""

from django.db import models
from django.db.models import Q

from jobs.models.choices import JobEventKind
from jobs.models.job import Job


class JobException(models.Model):
    """A failure of an attempt, a driver, a subtask or the pipeline, or a notice."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="exceptions")
    at = models.DateTimeField()
    kind = models.CharField(max_length=16)  # attempt, driver, subtask, pipeline, notice, internal.
    driver_number = models.IntegerField(null=True, blank=True)
    attempt_number = models.IntegerField(null=True, blank=True)
    subtask = models.CharField(max_length=310, blank=True)
    text = models.TextField()  # First line: the failure; the rest: its traceback.

    class Meta:
        ordering = ["-at", "-id"]
        indexes = [
            models.Index(fields=["job", "-at"]),
            models.Index(fields=["at", "id"], name="exception_age"),
        ]


class JobEvent(models.Model):
    """A fact about a job, written in the transaction that makes it one; see ``jobs.job_events``.

    ======================  =================================  =====================================
    kind                    ``reason``                         ``facts``
    ======================  =================================  =====================================
    ``checkpoint.*``        ``FailureReason``; empty:          ``checkpoint``, ``kind``,
                            completed                          ``attempt``, ``duration_ms``,
                                                               ``alignment_ms``, ``state_bytes``,
                                                               ``cause``
    ``attempt.began``                                          ``attempt``, ``driver``
    ``attempt.ended``       ``AttemptEnd``                     ``attempt``, ``driver``, ``cause``
    ``job.changed``         ``JobStatus``                      ``before``, ``cause``
    ``operation.ended``     ``OperationStatus``                ``operation``, ``kind``, ``error``
    ``driver.lost``                                            ``driver``, ``cause``
    ======================  =================================  =====================================

    Causes and errors are headlines. A fact that a request, or the end of the input, led to
    is planned: no alert is due.
    """

    id = models.BigAutoField(primary_key=True)  # Grows with the job's facts.
    # Without an index of its own: ``job_event_order`` begins with it.
    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="events", db_index=False)
    kind = models.CharField(max_length=24, choices=JobEventKind)
    at = models.DateTimeField()
    planned = models.BooleanField()
    reason = models.CharField(max_length=64, blank=True)
    facts = models.JSONField(default=dict)

    class Meta:
        ordering = ["id"]
        indexes = [
            models.Index(fields=["job", "id"], name="job_event_order"),
            models.Index(fields=["at"], name="job_event_age"),  # For retention.
            # For the page of activity: most events are checkpoints that completed.
            models.Index(
                fields=["at", "id"],
                condition=~Q(kind="checkpoint.completed"),
                name="job_event_activity",
            ),
        ]
        constraints = [
            models.CheckConstraint(
                condition=Q(kind__in=JobEventKind.values), name="job_event_kind"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.kind} of {self.job_id}"
