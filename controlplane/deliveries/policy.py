"""The bounds of retries, as the settings give them."""

from datetime import timedelta

from django.conf import settings

from controlplane.deliveries.machine import Policy


def policy() -> Policy:
    """The policy of this process."""
    return Policy(
        retry_first=timedelta(milliseconds=settings.WEIR_DELIVERY_RETRY_FIRST_MS),
        give_up_after=timedelta(seconds=settings.WEIR_DELIVERY_GIVE_UP_AFTER_S),
        disable_after=timedelta(seconds=settings.WEIR_ENDPOINT_DISABLE_AFTER_S),
    )
