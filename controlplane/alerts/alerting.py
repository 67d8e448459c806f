"""The only writers of alerts: they fire, resolve, are told and acknowledged.

A notice is posted in the transaction of its alert's change. The endpoints are those of the rule
when the alert is first told; its resolution goes to the same.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from urllib.parse import quote
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.db.models import Count

from controlplane.accounts.models import User
from controlplane.alerts import machine
from controlplane.alerts.errors import AlertOver
from controlplane.alerts.kinds.base import Holding
from controlplane.alerts.matching import Quiet, Scope, silence_of
from controlplane.alerts.models import FIRING, RESOLVED, Alert, Rule, Silence
from controlplane.audit.models import record
from controlplane.base import advisory_locks, clock
from controlplane.base.errors import existing
from controlplane.deliveries.models import Endpoint
from controlplane.deliveries.notice import (
    EVIDENCE_MAX,
    EVIDENCE_NAME_MAX,
    EVIDENCE_VALUE_MAX,
    SUMMARY_LENGTH_MAX,
    Notice,
    cut,
)
from controlplane.deliveries.outbox import post

LOCK = "alerts: evaluate"
CLEARED = "The condition is over."
RULE_CHANGED = "The rule was changed."
RULE_DISABLED = "The rule was disabled."
RULE_DELETED = "The rule was deleted."
RULE_SET_ASIDE = "The rule was set aside: it cannot be evaluated."


def lock() -> None:
    """Wait for the round of the evaluator to end, and keep the next from beginning.

    Changes of rules and alerts take it: the evaluator writes both without locks on rows.
    """
    advisory_locks.lock([LOCK])


def new_alert(
    rule: Rule, job: str, job_name: str, holding: Holding, *, began_at: datetime, now: datetime
) -> Alert:
    """An alert that fires now, not stored yet."""
    labels = {"kind": rule.kind}
    if holding.subject:
        labels["subject"] = holding.subject
    return Alert(
        rule=rule,
        rule_name=rule.name,
        kind=rule.kind,
        severity=rule.severity,
        job=job,
        job_name=cut(job_name, 100),
        subject=holding.subject,
        state=FIRING,
        began_at=min(began_at, now),
        fired_at=now,
        summary=cut(holding.summary, SUMMARY_LENGTH_MAX),
        evidence=[
            [cut(name, EVIDENCE_NAME_MAX), cut(value, EVIDENCE_VALUE_MAX)]
            for name, value in holding.evidence[:EVIDENCE_MAX]
        ],
        labels=labels,
        links=_links(job, holding.checkpoint),
        checkpoint=holding.checkpoint,
    )


def _links(job: str, checkpoint: int | None) -> list[list[str]]:
    page = f"{settings.WEIR_URL}/jobs/{quote(job)}"
    links = [["Job", f"{page}/"]]
    if checkpoint is not None:
        links.insert(0, [f"Checkpoint {checkpoint}", f"{page}/checkpoints/{checkpoint}"])
    return links


def end(alert: Alert, now: datetime, resolution: str) -> None:
    """Resolve an alert that fires; the caller stores and tells it."""
    alert.state, alert.resolution = RESOLVED, resolution
    alert.ended_at = max(now, alert.fired_at)  # The clock may have been set back.


END_COLUMNS = ("state", "ended_at", "resolution")
TOLD_COLUMNS = ("sequence", "told", "is_silenced", "silence")


class Teller:
    """The notices of one transaction; it reads endpoints and silences once."""

    def __init__(self, now: datetime) -> None:
        self._now = now
        self._silences: list[Quiet] | None = None
        self._endpoints: dict[UUID, Endpoint] | None = None
        self._chosen: dict[UUID, list[UUID]] | None = None

    def tell(self, alert: Alert) -> bool:
        """Post the alert's notice if one is due; return whether ``TOLD_COLUMNS`` changed."""
        before = alert.sequence, alert.is_silenced, alert.silence_id
        if alert.is_firing:
            silence = self._silence(alert)
            alert.is_silenced = silence is not None
            alert.silence_id = silence or alert.silence_id
        if machine.notice_due(
            is_firing=alert.is_firing,
            told=alert.sequence,
            is_silenced=alert.is_silenced,
            is_acknowledged=alert.acknowledged_at is not None,
        ):
            self._post(alert)
        return (alert.sequence, alert.is_silenced, alert.silence_id) != before

    def _silence(self, alert: Alert) -> UUID | None:
        if self._silences is None:
            self._silences = [quiet(row) for row in Silence.objects.filter(until_at__gt=self._now)]
        if not self._silences:
            return None
        return silence_of(
            self._silences,
            rule=alert.rule_id,
            job=alert.job,
            job_name=alert.job_name,
            severity=alert.severity,
            now=self._now,
        )

    def _post(self, alert: Alert) -> None:
        endpoints = self._read_endpoints()
        if alert.is_firing:
            alert.told = [str(id) for id in self._told(alert)]
        alert.sequence += 1
        post(
            _notice(alert),
            [endpoints[UUID(id)] for id in alert.told if UUID(id) in endpoints],
        )

    def _read_endpoints(self) -> dict[UUID, Endpoint]:
        if self._endpoints is None:
            rows = Endpoint.objects.filter(is_enabled=True, deleted_at=None).defer("sealed")
            self._endpoints = {row.pk: row for row in rows}
        return self._endpoints

    def _told(self, alert: Alert) -> list[UUID]:
        """The enabled endpoints that an alert's notices go to."""
        enabled = list(self._read_endpoints())
        rule = alert.rule
        if rule is None or rule.to_all_endpoints:
            return enabled
        if self._chosen is None:
            self._chosen = {}
            pairs = Rule.endpoints.through.objects.values_list("rule_id", "endpoint_id")
            for rule_id, endpoint_id in pairs:
                self._chosen.setdefault(rule_id, []).append(endpoint_id)
        return [id for id in self._chosen.get(rule.pk, ()) if id in self._read_endpoints()]


def quiet(row: Silence) -> Quiet:
    """A silence's row as the value that decides."""
    return Quiet(
        id=row.pk,
        scope=Scope(row.job, row.job_pattern),
        rule=row.rule_id,
        severity=row.severity,
        from_at=row.from_at,
        until_at=row.until_at,
    )


def _notice(alert: Alert) -> Notice:
    links = [*alert.links, ["Alert", f"{settings.WEIR_URL}/alerts/{alert.pk}"]]
    return Notice(
        alert=str(alert.pk),
        sequence=alert.sequence,
        status="firing" if alert.is_firing else "resolved",
        severity=alert.severity,  # type: ignore[arg-type]  # A constraint holds it.
        rule=alert.rule_name,
        summary=alert.summary,
        evidence=tuple((name, value) for name, value in alert.evidence),
        labels=alert.labels,
        links=tuple((text, url) for text, url in links),
        job=alert.job,
        job_name=alert.job_name,
        began_at=alert.began_at,
        ended_at=alert.ended_at,
    )


def resolve_of(rule: Rule, resolution: str, now: datetime) -> int:
    """Resolve and tell the rule's alerts and forget its watches; return the number of alerts.

    The caller holds ``lock``.
    """
    firing = list(Alert.objects.filter(rule=rule, state=FIRING))
    resolve_all(firing, resolution, now)
    rule.watches.all().delete()
    return len(firing)


def resolve_all(alerts: Sequence[Alert], resolution: str, now: datetime) -> None:
    """Resolve alerts that fire, store and tell them."""
    teller = Teller(now)
    for alert in alerts:
        end(alert, now, resolution)
        teller.tell(alert)
    Alert.objects.bulk_update(alerts, [*END_COLUMNS, *TOLD_COLUMNS], batch_size=500)


def one(alert_id: UUID) -> Alert:
    """One alert.

    Raises:
        NotFound: There is none with this id.
    """
    return existing(
        Alert.objects.select_related("silence").filter(pk=alert_id),
        f"There is no alert {alert_id}.",
    )


@transaction.atomic
def acknowledge(actor: User | None, alert_id: UUID) -> Alert:
    """Note that a person looks after an alert; again, it changes nothing.

    Raises:
        NotFound: There is no such alert.
        AlertOver: It is resolved.
    """
    lock()
    alert = one(alert_id)
    if not alert.is_firing:
        raise AlertOver("The alert is resolved; there is nothing to look after any more.")
    if alert.acknowledged_at is None:
        alert.acknowledged_at, alert.acknowledged_by = clock.now(), actor
        alert.acknowledged_by_name = "control plane" if actor is None else actor.get_username()
        alert.save(update_fields=["acknowledged_at", "acknowledged_by", "acknowledged_by_name"])
        record(
            actor,
            "alert.acknowledge",
            f"alert/{alert.pk}",
            after={"rule": alert.rule_name, "job": alert.job},
        )
    return alert


def counts() -> Mapping[str, int]:
    """The alerts that fire, by severity: those with any only."""
    rows = Alert.objects.filter(state=FIRING).order_by().values_list("severity")
    return dict(rows.annotate(count=Count("pk")))
