"""Alerts and silences as their pages show them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from django.urls import NoReverseMatch, reverse

from controlplane.alerts import alerting
from controlplane.alerts.matching import Quiet, silence_of
from controlplane.alerts.models import Alert, Silence
from controlplane.base.formatting import milliseconds_between, rough_duration
from frontend.base import status
from jobs.models import Job


@dataclass(frozen=True, slots=True)
class Row:
    """One alert."""

    id: UUID
    rule: str
    rule_id: UUID | None
    status: dict[str, str]
    severity: str
    job: str
    job_name: str
    job_url: str  # Empty: the job is deleted.
    subject: str
    summary: str
    evidence: list[tuple[str, str]]
    checkpoint: str
    checkpoint_url: str
    began_at: datetime
    fired_at: datetime
    ended_at: datetime | None
    lasted: str
    resolution: str
    is_firing: bool
    is_silenced: bool  # Now, or when it ended.
    silence: Silence | None
    acknowledged_at: datetime | None
    acknowledged_by: str


def rows(alerts: Iterable[Alert], now: datetime) -> list[Row]:
    """The alerts with links to the jobs that exist, and the silences of now. Two queries."""
    shown = list(alerts)
    wanted = {alert.job for alert in shown}
    known = set(Job.objects.filter(pk__in=wanted).order_by().values_list("pk", flat=True))
    silences = Silence.objects.filter(from_at__lte=now, until_at__gt=now)
    active = {silence.pk: silence for silence in silences}
    quiet = [alerting.quiet(silence) for silence in active.values()]
    return [
        _row(alert, _silence(alert, active, quiet, now), alert.job in known, now) for alert in shown
    ]


def _silence(
    alert: Alert, active: Mapping[UUID, Silence], quiet: Sequence[Quiet], now: datetime
) -> Silence | None:
    """The silence that covers an alert: now while it fires, else the one that did at its end."""
    if not alert.is_firing:
        return alert.silence if alert.is_silenced else None
    id = silence_of(
        quiet,
        rule=alert.rule_id,
        job=alert.job,
        job_name=alert.job_name,
        severity=alert.severity,
        now=now,
    )
    return None if id is None else active[id]


def _row(alert: Alert, silence: Silence | None, has_job: bool, now: datetime) -> Row:
    number = alert.checkpoint
    return Row(
        id=alert.pk,
        rule=alert.rule_name,
        rule_id=alert.rule_id,
        status=status.of_notice(alert.state, alert.severity),
        severity=alert.severity,
        job=alert.job,
        job_name=alert.job_name or alert.job,
        job_url=_address("job-page", alert.job) if has_job else "",
        subject=alert.subject,
        summary=alert.summary,
        evidence=[(str(name), str(value)) for name, value in alert.evidence],
        checkpoint="" if number is None else f"Checkpoint {number:,}",
        checkpoint_url=_address("checkpoint-page", alert.job, number)
        if has_job and number is not None
        else "",
        began_at=alert.began_at,
        fired_at=alert.fired_at,
        ended_at=alert.ended_at,
        lasted=rough_duration(milliseconds_between(alert.began_at, alert.ended_at or now)),
        resolution=alert.resolution,
        is_firing=alert.is_firing,
        is_silenced=silence is not None or (alert.is_silenced and not alert.is_firing),
        silence=silence,
        acknowledged_at=alert.acknowledged_at,
        acknowledged_by=alert.acknowledged_by_name,
    )


def _address(name: str, *parts: object) -> str:
    try:
        return reverse(name, args=parts)
    except NoReverseMatch:  # No checkpoint has this number.
        return ""


@dataclass(frozen=True, slots=True)
class SilenceRow:
    """One silence."""

    id: UUID
    status: dict[str, str]
    scope: list[tuple[str, str]]  # Empty: all alerts.
    reason: str
    from_at: datetime
    until_at: datetime
    by: str
    ended_by: str
    is_over: bool


def silence_row(silence: Silence, now: datetime) -> SilenceRow:
    """The silence of a row with its rule."""
    is_over = silence.until_at <= now
    state = "over" if is_over else "active" if silence.from_at <= now else "planned"
    scope = [
        ("rule", silence.rule.name if silence.rule else ""),
        ("job", silence.job),
        ("jobs", silence.job_pattern),
        ("severity", silence.severity),
    ]
    return SilenceRow(
        id=silence.pk,
        status=status.of_silence(state),
        scope=[(name, value) for name, value in scope if value],
        reason=silence.reason,
        from_at=silence.from_at,
        until_at=silence.until_at,
        by=silence.created_by_name,
        ended_by=silence.ended_by_name,
        is_over=is_over,
    )
