"""Settings of a web process that shares its cache with the test that plays the driver."""

from controlplane.settings import base
from controlplane.settings.test import *  # noqa: F403

CACHES = base.CACHES
