"""The sweep: deliveries that no attempt will settle, and admins who do not know yet.

A delivery to a disabled endpoint waits for the endpoint's return until its time has passed; one to
a deleted endpoint is given up at once.
"""

import logging
from datetime import timedelta

from django.conf import settings
from django.db import transaction
from django.db.models import F, Q

from controlplane.accounts.models import Role, User
from controlplane.base import clock
from controlplane.base.ticks import run_all
from controlplane.deliveries.machine import DeliveryStatus
from controlplane.deliveries.models import PENDING, Delivery, Endpoint
from controlplane.deliveries.policy import policy
from controlplane.deliveries.receivers.base import Mail
from controlplane.deliveries.sending import mail

logger = logging.getLogger(__name__)

BATCH = 500
TOLD_WITHIN = timedelta(days=1)  # An e-mail that cannot be sent for so long is not tried again.


def sweep() -> None:
    """Give up what is overdue, and tell admins."""
    run_all(give_up_unsent, tell_admins)


def give_up_unsent() -> int:
    """Give up deliveries to disabled endpoints whose time has passed; return their number."""
    count = 0
    waiting = Endpoint.objects.filter(is_enabled=False, deliveries__status=PENDING)
    for endpoint_id in waiting.order_by("pk").distinct().values_list("pk", flat=True):
        with transaction.atomic():
            count += _give_up_of(Endpoint.objects.select_for_update().get(pk=endpoint_id))
    return count


def _give_up_of(endpoint: Endpoint) -> int:
    if endpoint.is_enabled:  # By a person, just now.
        return 0
    now, was = clock.now(), "disabled" if endpoint.deleted_at is None else "deleted"
    unsent = Delivery.objects.filter(
        Q(leased_until=None) | Q(leased_until__lte=now), endpoint=endpoint, status=PENDING
    )
    if endpoint.deleted_at is None:
        unsent = unsent.filter(queued_at__lte=now - policy().give_up_after)
    batch = list(unsent.values_list("pk", flat=True)[:BATCH])
    count = Delivery.objects.filter(pk__in=batch, status=PENDING).update(
        status=DeliveryStatus.GIVEN_UP,
        next_at=None,
        leased_until=None,
        settled_at=now,
        error=f"the endpoint was {was} before it took the notice",
    )
    Endpoint.objects.filter(pk=endpoint.pk).update(given_up_count=F("given_up_count") + count)
    return count


def tell_admins() -> int:
    """Write to the admins about endpoints that Weir disabled; return the number of endpoints.

    Without a server for e-mail, or an admin with an address, the audit log and the pages tell it.
    """
    recipients = tuple(
        User.objects.filter(Q(role=Role.ADMIN) | Q(is_superuser=True), is_active=True)
        .exclude(email="")
        .order_by("pk")
        .values_list("email", flat=True)
    )
    if not recipients or not mail.is_configured():
        return 0
    now = clock.now()
    told = 0
    for endpoint in Endpoint.objects.filter(
        is_enabled=False, deleted_at=None, admins_told_at=None, disabled_at__gt=now - TOLD_WITHIN
    ).exclude(disabled_reason=""):
        outcome = mail.send(_mail_about(endpoint, recipients))
        if outcome.error:
            logger.warning("admins were not told of %s: %s", endpoint.name, outcome.error)
            continue
        Endpoint.objects.filter(pk=endpoint.pk).update(admins_told_at=now)
        told += 1
    return told


def _mail_about(endpoint: Endpoint, recipients: tuple[str, ...]) -> Mail:
    name = " ".join(endpoint.name.split())
    return Mail(
        recipients=recipients,
        subject=f"[Weir] The endpoint {name} was disabled",
        text=(
            f"Weir has disabled the endpoint {name} ({endpoint.kind}): "
            f"{endpoint.disabled_reason}.\n"
            "\n"
            "It gets no alerts until an admin enables it again. Notices that were under way wait "
            "for that for up to a day; older ones can be delivered again by hand.\n"
            "\n"
            f"{settings.WEIR_URL}\n"
        ),
    )
