"""Jobs whose driver will say nothing more of a checkpoint."""

from datetime import datetime

from django.conf import settings
from django.db.models import Exists, OuterRef, Q

from controlplane import clock
from jobs.models import LIVE_DRIVERS, Driver, DriverStatus


def is_driverless(job: str, now: datetime) -> Q:
    """Whether the job in column ``job`` has no driver that may still speak.

    One that ended its job itself winds up: it may be writing a manifest, and will say what came of
    it. It is waited for while it is heard of.
    """
    since = now - clock.milliseconds(settings.WEIR_DRIVER_SILENT_MS)
    winds_up = Q(status=DriverStatus.ENDED, stop_requested_at__isnull=True, heard_at__gte=since)
    speaking = Driver.objects.filter(winds_up | Q(status__in=LIVE_DRIVERS), job=OuterRef(job))
    return ~Q(Exists(speaking))
