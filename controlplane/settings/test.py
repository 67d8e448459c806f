"""Settings of the tests, whose fixtures start PostgreSQL and Redis and set their URLs."""

from controlplane.settings.base import *  # noqa: F403
from controlplane.settings.base import REST_FRAMEWORK

SECRET_KEY = "for-tests-only"
DEBUG = False
ALLOWED_HOSTS = ["testserver", "127.0.0.1", "localhost"]
PASSWORD_HASHERS = [
    "django.contrib.auth.hashers.MD5PasswordHasher"
]  # Fast; the default one is slow.
CACHES = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}
REST_FRAMEWORK = REST_FRAMEWORK | {
    "DEFAULT_THROTTLE_RATES": {"anon": "100000/min", "user": "100000/min"}
}
