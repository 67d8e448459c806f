"""Attempts: the deployments of a job, their workers, and the graph as it ran."""

from django.db import models
from django.db.models import Q

from jobs.models.choices import enum_choices
from jobs.models.driver import Driver
from jobs.models.job import Job
from weir.bounds import PARALLELISM_MAX
from weir.protocol.lifecycle import SubtaskStatus
from weir.protocol.slot_memory import MemorySource


class Attempt(models.Model):
    """One deployment of the graph onto slots, as the driver reported it."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="attempts")
    driver = models.ForeignKey(Driver, on_delete=models.CASCADE, related_name="attempts")
    number = models.IntegerField()
    restored_checkpoint = models.BigIntegerField(null=True, blank=True)  # None: the beginning.
    started_at = models.DateTimeField()
    running_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)
    end = models.CharField(max_length=16, blank=True)  # An AttemptEnd; empty: it runs.
    # Whether the job failed for good with it: no restart followed but one that a user asked for.
    gave_up = models.BooleanField(default=False, db_default=False)
    cause = models.TextField(blank=True)
    # The recovery that led to it; empty for the first attempt.
    recovery_cause = models.TextField(blank=True)
    backoff_ms = models.FloatField(null=True, blank=True)
    redeploy_ms = models.FloatField(null=True, blank=True)
    restore_ms = models.FloatField(null=True, blank=True)
    catch_up_ms = models.FloatField(null=True, blank=True)
    restored_bytes = models.BigIntegerField(null=True, blank=True)
    # Of these, from copies on the slots' own disks; null: the job keeps none, or it is not known.
    restored_local_bytes = models.BigIntegerField(null=True, blank=True)
    replayed_records = models.BigIntegerField(null=True, blank=True)

    class Meta:
        ordering = ["job", "-number"]
        indexes = [models.Index(fields=["ended_at", "id"], name="attempt_age")]
        constraints = [
            models.UniqueConstraint(fields=["job", "number"], name="attempt_number"),
        ]

    def __str__(self) -> str:
        return f"attempt {self.number} of {self.job_id}"


class Worker(models.Model):
    """A worker process of an attempt."""

    attempt = models.ForeignKey(Attempt, on_delete=models.CASCADE, related_name="workers")
    slot_index = models.IntegerField()
    host = models.CharField(max_length=200, blank=True)
    pid = models.IntegerField()
    started_at = models.DateTimeField()
    # Its resident memory, as last reported, within a hundredth; null: it reported none.
    memory_bytes = models.BigIntegerField(null=True, blank=True)
    memory_limit_bytes = models.BigIntegerField(null=True, blank=True)  # Null: there is none.
    # Of MemorySource; empty: there is no limit.
    memory_limit_source = models.CharField(
        max_length=16, choices=enum_choices(MemorySource), blank=True, default="", db_default=""
    )

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["attempt", "slot_index"], name="worker_slot"),
        ]


class Operator(models.Model):
    """One operator of the submitted graph."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="operators")
    uid = models.CharField(max_length=300)
    name = models.CharField(max_length=300)
    position = models.IntegerField()  # In topological order.
    parallelism = models.IntegerField()
    max_parallelism = models.IntegerField(null=True, blank=True)
    chain = models.CharField(max_length=300)  # The uid of its chain's head.
    is_source = models.BooleanField()
    is_sink = models.BooleanField()
    is_keyed = models.BooleanField()
    files = models.CharField(max_length=1_000, null=True, blank=True)  # A file sink's directory.

    class Meta:
        ordering = ["job", "position"]
        constraints = [
            models.UniqueConstraint(fields=["job", "uid"], name="operator_uid"),
            models.CheckConstraint(
                condition=Q(parallelism__range=(1, PARALLELISM_MAX)), name="operator_parallelism"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.name} of {self.job_id}"


class Edge(models.Model):
    """One edge of the submitted graph."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="edges")
    position = models.IntegerField()  # As in the graph: gates are numbered by it.
    source = models.CharField(max_length=300)
    target = models.CharField(max_length=300)
    partitioning = models.CharField(max_length=16)
    input_index = models.IntegerField()
    side_tag = models.CharField(max_length=300, null=True, blank=True)

    class Meta:
        ordering = ["job", "position"]
        constraints = [
            models.UniqueConstraint(fields=["job", "position"], name="edge_position"),
        ]


class Subtask(models.Model):
    """One chain subtask of the newest attempt: status, counters, rates, alignment and stall.

    Counters and rates are those of its latest measurement. ``aligning`` is its latest report of an
    alignment in progress, and is history once the subtask has acknowledged that checkpoint, or the
    checkpoint has ended. The rows of a failed attempt stay until the next attempt begins.
    """

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="subtasks")
    chain = models.CharField(max_length=300)
    index = models.IntegerField()
    attempt = models.IntegerField()
    status = models.CharField(
        max_length=16, choices=enum_choices(SubtaskStatus), default=SubtaskStatus.DEPLOYING.value
    )
    metrics = models.JSONField(default=dict)  # weir.protocol.messages.SubtaskMetrics' counters.
    samples = models.JSONField(default=list)  # Samples of the counters for jobs.events.rates.
    # The result of jobs.events.rates.over; empty: not known yet, or the subtask has ended.
    rates = models.JSONField(default=dict)
    bad_marks = models.JSONField(default=list)  # Marks of jobs.events.bad_records.
    # messages.AlignmentProgress: checkpoint, since_ms, waited_ms and, by gate, the arrivals.
    aligning = models.JSONField(null=True, blank=True)
    # messages.SubtaskStalled: since_ms, stalled_ms, stack. Null: not stalled.
    stall = models.JSONField(null=True, blank=True)
    updated_at = models.DateTimeField()

    class Meta:
        ordering = ["job", "chain", "index"]
        constraints = [
            models.UniqueConstraint(fields=["job", "chain", "index"], name="subtask_place"),
        ]


class ChainSample(models.Model):
    """The counters of a chain at one moment, summed over its subtasks; see ``jobs.chain_series``.

    Counters only grow within an attempt, so that the mean of any time between two samples is exact
    without the samples between them. They are floats, which no sum overflows.
    """

    id = models.BigAutoField(primary_key=True)
    # Without an index of its own: that of ``chain_sample_moment`` begins with it.
    job = models.ForeignKey(
        Job, on_delete=models.CASCADE, related_name="chain_samples", db_index=False
    )
    chain = models.CharField(max_length=300)  # The uid of its head.
    at = models.DateTimeField()  # Of the newest report in it.
    is_first_of_minute = models.BooleanField()  # The others go after an hour.
    attempt = models.IntegerField()
    running = models.IntegerField()  # Subtasks.
    records_in = models.FloatField()
    records_out = models.FloatField()
    busy_ms = models.FloatField()
    idle_ms = models.FloatField()
    back_pressured_ms = models.FloatField()
    # The busy share of the busiest subtask in its last seconds, 0 to 1; null: not known yet.
    busiest = models.FloatField(null=True, blank=True)
    watermark_ms = models.BigIntegerField(null=True, blank=True)  # The lowest of running subtasks.
    # Bytes of each operator's state in the job's newest completed checkpoint, by the uid.
    state_bytes = models.JSONField(default=dict)

    class Meta:
        ordering = ["job", "chain", "at"]
        indexes = [
            models.Index(fields=["at", "id"], name="chain_sample_age"),
            models.Index(
                fields=["at"], condition=Q(is_first_of_minute=False), name="chain_sample_fine"
            ),
        ]
        constraints = [
            models.UniqueConstraint(fields=["job", "chain", "at"], name="chain_sample_moment"),
        ]

    def __str__(self) -> str:
        return f"{self.chain} of {self.job_id} at {self.at}"
