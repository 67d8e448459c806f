"""Filters of rules, alerts and silences."""

import django_filters
from django.db.models import QuerySet

from controlplane.alerts.models import ALERT_STATES, RULE_KINDS, Silence
from controlplane.base import clock
from controlplane.base.rest.filters import ChoicesFilter, TrueOrFalseFilter, after, before
from controlplane.deliveries.models import NOTICE_SEVERITIES


class RuleFilter(django_filters.FilterSet):
    """The filters of rules."""

    kind = ChoicesFilter(RULE_KINDS)
    severity = ChoicesFilter(NOTICE_SEVERITIES)
    is_enabled = TrueOrFalseFilter()


class AlertFilter(django_filters.FilterSet):
    """The filters of alerts."""

    state = ChoicesFilter(ALERT_STATES)
    severity = ChoicesFilter(NOTICE_SEVERITIES)
    kind = ChoicesFilter(RULE_KINDS)
    rule = django_filters.UUIDFilter(field_name="rule_id")
    job = django_filters.CharFilter(help_text="The job's id.")
    is_acknowledged = TrueOrFalseFilter(
        field_name="acknowledged_at", lookup_expr="isnull", exclude=True
    )
    is_silenced = TrueOrFalseFilter()
    fired_after = after("fired_at")
    fired_before = before("fired_at")


class SilenceFilter(django_filters.FilterSet):
    """The filters of silences."""

    is_over = TrueOrFalseFilter(method="filter_over", help_text="Its time has passed.")
    job = django_filters.CharFilter(help_text="The job's id.")
    rule = django_filters.UUIDFilter(field_name="rule_id")

    def filter_over(self, rows: QuerySet[Silence], name: str, value: bool) -> QuerySet[Silence]:
        """The silences that are over, or those that are not."""
        now = clock.now()
        return rows.filter(until_at__lte=now) if value else rows.filter(until_at__gt=now)
