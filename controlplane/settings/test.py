"""Settings of the tests, whose fixtures start PostgreSQL and Redis and set their URLs."""

from controlplane.base import env
from controlplane.settings.base import *  # noqa: F403
from controlplane.settings.base import DATABASES, REST_FRAMEWORK

SECRET_KEY = "for-tests-only"
WEIR_ENCRYPTION_KEYS = [b"Zm9yLXRlc3RzLW9ubHktZm9yLXRlc3RzLW9ubHktMTI="]
DEBUG = False
WEIR_STUCK_AFTER_S = env.integer("WEIR_STUCK_AFTER_S", 0)  # A busy machine ends no test,
WEIR_DRIVER_SILENT_MS = 60_000  # nor makes a driver silent whose test computes meanwhile.
ALLOWED_HOSTS = ["testserver", "127.0.0.1", "localhost"]
PASSWORD_HASHERS = [
    "django.contrib.auth.hashers.MD5PasswordHasher"
]  # Fast; the default one is slow.
# A test computes while its transaction is open, for minutes on a busy machine.
DATABASES["default"]["OPTIONS"]["options"] += " -c idle_in_transaction_session_timeout=0"
CACHES = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}
REST_FRAMEWORK = REST_FRAMEWORK | {
    "DEFAULT_THROTTLE_RATES": {"anon": "100000/min", "user": "100000/min"}
}
