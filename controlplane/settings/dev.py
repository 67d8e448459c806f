"""Settings of ``manage.py weir_up``: one machine, one person."""

from controlplane.base import env
from controlplane.settings.base import *  # noqa: F403

SECRET_KEY = env.text("SECRET_KEY", "for-development-on-one-machine-only")
DEBUG = env.flag("DEBUG", False)
ALLOWED_HOSTS = ["127.0.0.1", "localhost", "[::1]"]
