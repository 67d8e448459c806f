"""Filters of endpoints and deliveries."""

import django_filters

from controlplane.base.rest.filters import ChoicesFilter, after, before
from controlplane.deliveries.models import DELIVERY_STATUSES, NOTICE_SEVERITIES


class DeliveryFilter(django_filters.FilterSet):
    """The filters of deliveries."""

    endpoint = django_filters.UUIDFilter(field_name="endpoint_id")
    status = ChoicesFilter(DELIVERY_STATUSES)
    severity = ChoicesFilter(NOTICE_SEVERITIES)
    alert = django_filters.CharFilter(help_text="The alert's id.")
    job = django_filters.CharFilter(help_text="The job's id.")
    created_after = after("created_at")
    created_before = before("created_at")
