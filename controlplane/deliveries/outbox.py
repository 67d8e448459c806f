"""The outbox: notices become rows in the transaction of their alert."""

from collections.abc import Iterable

from controlplane.base import clock, wakeups
from controlplane.deliveries.models import Delivery, Endpoint
from controlplane.deliveries.notice import Notice, bounded


def post(notice: Notice, endpoints: Iterable[Endpoint]) -> list[Delivery]:
    """Queue a notice for each enabled endpoint, inside the caller's transaction.

    The notices of an alert are posted in the order of their sequence. Posting one again changes
    nothing. A disabled endpoint gets none; to which endpoints an alert goes is the caller's choice.

    Returns:
        The deliveries of the notice to the enabled endpoints, also those that there were already.

    Raises:
        ValueError: The notice has no id, sequence or time zone.
    """
    notice = bounded(notice)
    enabled = {endpoint.pk: endpoint for endpoint in endpoints if endpoint.is_enabled}
    now, stored = clock.now(), notice.to_json()
    Delivery.objects.bulk_create(
        [
            Delivery(
                endpoint=endpoint,
                alert=notice.alert,
                sequence=notice.sequence,
                notice=stored,
                notice_status=notice.status,
                severity=notice.severity,
                rule=notice.rule,
                job=notice.job,
                created_at=now,
                queued_at=now,
                next_at=now,
            )
            for endpoint in enabled.values()
        ],
        ignore_conflicts=True,
    )
    wakeups.keep_awake_on_commit()
    rows = Delivery.objects.filter(
        endpoint__in=enabled, alert=notice.alert, sequence=notice.sequence
    )
    return list(rows.order_by("endpoint__name"))
