"""Rows of alerting.

::

    Rule ──< Watch ──  Alert        one watch for each job and subject that a rule is concerned with
      │        └── firing: its alert
      └──< Silence
    Evaluator                       one row

Jobs are named by their ids, as text: alerts are kept longer than some jobs, and a rule may be made
before the job is submitted. The rows of ``Watch`` are the machine's whole state.
"""

import uuid

from django.conf import settings
from django.db import models
from django.db.models import Q

from controlplane.alerts.kinds import KINDS
from controlplane.alerts.machine import Phase
from controlplane.alerts.machine import Watch as WatchState
from controlplane.deliveries.models import NOTICE_SEVERITIES, Endpoint
from controlplane.deliveries.notice import SEVERITIES, SUMMARY_LENGTH_MAX

RULE_KINDS = [(kind, kind) for kind in KINDS]
ALERT_STATES = [(state, state) for state in ("firing", "resolved")]
WATCH_PHASES = [(phase.value, phase.value) for phase in Phase if phase is not Phase.INACTIVE]
JOB_LENGTH_MAX, SUBJECT_LENGTH_MAX, NAME_LENGTH_MAX, REASON_LENGTH_MAX = 120, 310, 100, 500
FIRING, RESOLVED = "firing", "resolved"


class Rule(models.Model):
    """A condition on jobs, its severity, and to which endpoints its alerts go."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    name = models.CharField(max_length=NAME_LENGTH_MAX, unique=True)
    description = models.CharField(max_length=500, blank=True)
    kind = models.CharField(max_length=32, choices=RULE_KINDS)
    parameters = models.JSONField(default=dict)  # Of the kind's struct: ``kinds``.
    # The jobs that it is about: one, those whose name fits a pattern, or all where both are empty.
    job = models.CharField(max_length=JOB_LENGTH_MAX, blank=True)
    job_pattern = models.CharField(max_length=NAME_LENGTH_MAX, blank=True)  # As of file names.
    severity = models.CharField(max_length=16, choices=NOTICE_SEVERITIES)
    hold_s = models.PositiveIntegerField(default=0)
    cooldown_s = models.PositiveIntegerField(default=0)
    is_enabled = models.BooleanField(default=True)
    to_all_endpoints = models.BooleanField(default=True)
    endpoints = models.ManyToManyField(Endpoint, blank=True, related_name="rules")
    is_builtin = models.BooleanField(default=False)  # Weir came with it.
    problem = models.TextField(blank=True)  # Why it is set aside; empty: it is evaluated.
    set_aside_at = models.DateTimeField(null=True)
    created_at = models.DateTimeField()
    changed_at = models.DateTimeField()
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+"
    )
    created_by_name = models.CharField(max_length=200)  # Kept when the account is deleted.

    class Meta:
        ordering = ["name"]
        constraints = [
            models.CheckConstraint(condition=Q(kind__in=list(KINDS)), name="rule_kind"),
            models.CheckConstraint(condition=Q(severity__in=SEVERITIES), name="rule_severity"),
            models.CheckConstraint(condition=Q(job="") | Q(job_pattern=""), name="rule_one_scope"),
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def state(self) -> str:
        """``disabled``, ``set_aside`` or ``active``."""
        if not self.is_enabled:
            return "disabled"
        return "set_aside" if self.problem else "active"


class Silence(models.Model):
    """A time in which some alerts fire without notices; empty columns restrict nothing."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    rule = models.ForeignKey(Rule, null=True, on_delete=models.CASCADE, related_name="silences")
    job = models.CharField(max_length=JOB_LENGTH_MAX, blank=True)
    job_pattern = models.CharField(max_length=NAME_LENGTH_MAX, blank=True)
    severity = models.CharField(max_length=16, choices=NOTICE_SEVERITIES, blank=True)
    from_at = models.DateTimeField()
    until_at = models.DateTimeField()
    reason = models.CharField(max_length=REASON_LENGTH_MAX)
    created_at = models.DateTimeField()
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+"
    )
    created_by_name = models.CharField(max_length=200)
    ended_at = models.DateTimeField(null=True)  # By a person, before its time.
    ended_by_name = models.CharField(max_length=200, blank=True)

    class Meta:
        ordering = ["-created_at", "-id"]
        indexes = [
            models.Index(fields=["until_at"], name="silence_until"),
            models.Index(fields=["created_at", "id"], name="silence_created"),
        ]
        constraints = [
            models.CheckConstraint(
                condition=Q(severity="") | Q(severity__in=SEVERITIES), name="silence_severity"
            ),
            models.CheckConstraint(
                condition=Q(job="") | Q(job_pattern=""), name="silence_one_scope"
            ),
        ]

    def __str__(self) -> str:
        return f"silence until {self.until_at:%Y-%m-%d %H:%M}"


class Alert(models.Model):
    """One time that a rule's condition held, from its begin to its end."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    # Null: the rule is deleted. Its words stay as they were when the alert fired.
    rule = models.ForeignKey(
        Rule, null=True, on_delete=models.SET_NULL, related_name="alerts", db_index=False
    )
    rule_name = models.CharField(max_length=NAME_LENGTH_MAX)
    kind = models.CharField(max_length=32, choices=RULE_KINDS)
    severity = models.CharField(max_length=16, choices=NOTICE_SEVERITIES)
    job = models.CharField(max_length=JOB_LENGTH_MAX)  # Its id.
    job_name = models.CharField(max_length=NAME_LENGTH_MAX)
    subject = models.CharField(max_length=SUBJECT_LENGTH_MAX, blank=True)  # E.g. an operator.
    state = models.CharField(max_length=16, choices=ALERT_STATES, default=FIRING)
    began_at = models.DateTimeField()  # The condition's begin.
    fired_at = models.DateTimeField()  # It had held for long enough.
    ended_at = models.DateTimeField(null=True)
    resolution = models.CharField(max_length=200, blank=True)  # Why it ended.
    summary = models.CharField(max_length=SUMMARY_LENGTH_MAX)  # One sentence: the verdict's.
    evidence = models.JSONField(default=list)  # Pairs of name and value.
    labels = models.JSONField(default=dict)
    links = models.JSONField(default=list)  # Pairs of text and absolute URL.
    checkpoint = models.BigIntegerField(null=True)  # The number of the one that it is about.
    acknowledged_at = models.DateTimeField(null=True)
    acknowledged_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+"
    )
    acknowledged_by_name = models.CharField(max_length=200, blank=True)
    silence = models.ForeignKey(  # The one that holds its notice back, or did until it ended.
        Silence, null=True, on_delete=models.SET_NULL, related_name="alerts"
    )
    is_silenced = models.BooleanField(default=False)  # Now, or when it ended.
    sequence = models.PositiveSmallIntegerField(default=0)  # Of its last notice; 0: none.
    told = models.JSONField(default=list)  # Ids of the endpoints that its notices go to.

    class Meta:
        ordering = ["-fired_at", "-id"]
        indexes = [
            models.Index(fields=["fired_at", "id"], name="alert_fired"),
            models.Index(fields=["job", "fired_at", "id"], name="alert_of_job"),
            models.Index(fields=["rule", "fired_at", "id"], name="alert_of_rule"),
            models.Index(fields=["severity"], condition=Q(state="firing"), name="alert_firing"),
        ]
        constraints = [
            models.UniqueConstraint(
                fields=["rule", "job", "subject"],
                condition=Q(state="firing"),
                name="alert_one_firing",
            ),
            models.CheckConstraint(
                condition=Q(state="firing", ended_at=None)
                | Q(state="resolved", ended_at__isnull=False),
                name="alert_ended_when_resolved",
            ),
            models.CheckConstraint(condition=Q(severity__in=SEVERITIES), name="alert_severity"),
        ]

    def __str__(self) -> str:
        return f"{self.rule_name}: {self.job}"

    @property
    def is_firing(self) -> bool:
        """Whether it is not resolved."""
        return self.state == FIRING


class Watch(models.Model):
    """``machine.Watch`` of a rule about a job and a subject; without a row it is inactive."""

    rule = models.ForeignKey(Rule, on_delete=models.CASCADE, related_name="watches")
    job = models.CharField(max_length=JOB_LENGTH_MAX)
    subject = models.CharField(max_length=SUBJECT_LENGTH_MAX, blank=True)
    phase = models.CharField(max_length=16, choices=WATCH_PHASES)
    held_since = models.DateTimeField(null=True)
    clear_since = models.DateTimeField(null=True)
    resolved_at = models.DateTimeField(null=True)
    flaps = models.PositiveIntegerField(default=0)
    alert = models.OneToOneField(  # While it fires.
        Alert, null=True, on_delete=models.SET_NULL, related_name="watch"
    )

    class Meta:
        ordering = ["rule", "job", "subject"]
        verbose_name_plural = "watches"
        constraints = [
            models.UniqueConstraint(fields=["rule", "job", "subject"], name="watch_place"),
            models.CheckConstraint(
                condition=Q(phase__in=[phase for phase, _ in WATCH_PHASES]), name="watch_phase"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.phase}: {self.job} {self.subject}".strip()

    @property
    def value(self) -> WatchState:
        """The columns as the machine's value."""
        return WatchState(
            phase=Phase(self.phase),
            held_since=self.held_since,
            clear_since=self.clear_since,
            resolved_at=self.resolved_at,
            flaps=self.flaps,
        )

    @value.setter
    def value(self, value: WatchState) -> None:
        self.phase, self.flaps = value.phase.value, value.flaps
        self.held_since, self.clear_since = value.held_since, value.clear_since
        self.resolved_at = value.resolved_at


class Evaluator(models.Model):
    """The evaluator's place among the events of jobs, and its counts; there is one row."""

    id = models.SmallIntegerField(primary_key=True, default=1)
    position = models.BigIntegerField(null=True)  # Id of the last event; null: it begins anew.
    rules_version = models.BigIntegerField(default=0)  # Grows with each change of a rule.
    evaluated_at = models.DateTimeField(null=True)
    last_s = models.FloatField(default=0)  # The last round.
    # Counts since the first start; rows of alerts are deleted after a while.
    rounds = models.PositiveBigIntegerField(default=0)
    seconds = models.FloatField(default=0)
    errors = models.PositiveBigIntegerField(default=0)  # Rules set aside, and rounds that failed.
    fired = models.JSONField(default=dict)  # Alerts by kind, and within it by severity.

    class Meta:
        constraints = [models.CheckConstraint(condition=Q(id=1), name="evaluator_single")]

    def __str__(self) -> str:
        return f"evaluator at {self.position}"
