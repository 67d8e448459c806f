"""The drivers of jobs, what they are told, and the pulse of those that watch them."""

from django.db import models
from django.db.models import Q

from jobs.models.choices import LIVE_DRIVERS, DriverStatus
from jobs.models.job import Job


class Driver(models.Model):
    """One launched Spark application of a job. Only the newest may speak for it."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="drivers")
    number = models.IntegerField()  # 1 for the job's first.
    status = models.CharField(max_length=16, choices=DriverStatus, default=DriverStatus.REQUESTED)
    cause = models.TextField(blank=True)  # Why it was lost or ended.
    token_digest = models.CharField(max_length=64, unique=True, null=True)  # From its launch on.
    created_at = models.DateTimeField()
    launch_expires_at = models.DateTimeField(null=True, blank=True)  # Claimed by a launcher until.
    launched_by = models.CharField(max_length=200, blank=True)  # The launcher's host name.
    boot_id = models.CharField(max_length=64, blank=True)
    pid = models.IntegerField(null=True, blank=True)  # Of spark-submit, which leads its session.
    process_started_at = models.FloatField(null=True, blank=True)  # Seconds since boot.
    directory = models.CharField(max_length=500, blank=True)  # Job file and logs.
    spark_application = models.CharField(max_length=200, blank=True)
    slots = models.JSONField(default=dict)  # Slot index -> host and pid of its Spark task.
    heard_at = models.DateTimeField(null=True, blank=True)
    sent_at = models.DateTimeField(null=True, blank=True)  # Its message of ``heard_at``.
    heartbeat_due_at = models.DateTimeField(null=True, blank=True)
    stop_requested_at = models.DateTimeField(null=True, blank=True)  # A launcher ends the process.
    stopped_at = models.DateTimeField(null=True, blank=True)  # A launcher saw its end.
    ended_at = models.DateTimeField(null=True, blank=True)
    # Its threads' work and wait for a processor of late, as weir's DriverLoad; empty: not reported.
    load = models.JSONField(default=dict, db_default={}, blank=True)
    applied_up_to = models.BigIntegerField(default=0)  # Number of its last applied event.
    commands_taken = models.BigIntegerField(default=0)

    class Meta:
        ordering = ["job", "-number"]
        indexes = [
            models.Index(
                fields=["heartbeat_due_at"],
                condition=Q(status__in=["starting", "running"]),
                name="driver_heartbeats",
            ),
            models.Index(fields=["status", "created_at"]),
            models.Index(
                fields=["stop_requested_at"],
                condition=Q(stopped_at__isnull=True),
                name="driver_stops",
            ),
            models.Index(fields=["ended_at", "id"], name="driver_age"),
        ]
        constraints = [
            models.UniqueConstraint(fields=["job", "number"], name="driver_number"),
            models.UniqueConstraint(
                fields=["job"], condition=Q(status__in=LIVE_DRIVERS), name="driver_one_live"
            ),
            models.CheckConstraint(
                condition=Q(status__in=DriverStatus.values), name="driver_status"
            ),
        ]

    def __str__(self) -> str:
        return f"driver {self.number} of {self.job_id}"


class OutboxCommand(models.Model):
    """A command on its way to a job's driver, numbered by its id, which grows by the job's lock."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="outbox")
    message = models.JSONField()  # weir.protocol.wire.encode of a DriverCommand.
    created_at = models.DateTimeField()

    class Meta:
        ordering = ["id"]
        indexes = [models.Index(fields=["job", "id"])]


class ControlPlanePulse(models.Model):
    """The time of the control plane's last tick over its drivers; there is one row.

    A driver that was silent while no tick ran is not lost: overdue heartbeats count only once
    drivers had a whole timeout since ``resumed_at`` to report.
    """

    id = models.SmallIntegerField(primary_key=True, default=1)
    ticked_at = models.DateTimeField()
    resumed_at = models.DateTimeField()

    class Meta:
        constraints = [models.CheckConstraint(condition=Q(id=1), name="pulse_single")]

    def __str__(self) -> str:
        return f"pulse at {self.ticked_at}"
