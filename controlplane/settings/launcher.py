"""Settings of a launcher alone: no secret of the web service is in its environment.

A launcher starts user code, so it has as little as it needs: no ``SECRET_KEY`` (it signs nothing
that another process reads, and gets a random one), and, with a role of its own in ``DATABASE_URL``,
no rows of accounts, tokens and sessions (``controlplane.launcher_role``).
"""

import os
import secrets

from django.core.exceptions import ImproperlyConfigured

from controlplane.base import env
from controlplane.settings.base import *  # noqa: F403

if "SECRET_KEY" in os.environ or "SECRET_KEY_FILE" in os.environ:
    raise ImproperlyConfigured(
        "SECRET_KEY is set for the launcher, which starts user code and needs none; leave it out "
        "of the launcher's environment"
    )
SECRET_KEY = secrets.token_urlsafe(48)
env.text("DATABASE_URL")
env.text("REDIS_URL")
env.text("WEIR_URL")

DEBUG = False
ALLOWED_HOSTS: list[str] = []
