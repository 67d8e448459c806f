"""Production settings: nothing starts with a missing setting, or with a default as secret."""

from urllib.parse import urlsplit

from django.core.exceptions import ImproperlyConfigured

from controlplane.base import env
from controlplane.settings.base import *  # noqa: F403
from controlplane.settings.base import WEIR_URL

SECRET_KEY = env.text("SECRET_KEY")
if len(SECRET_KEY) < 40 or "development" in SECRET_KEY or "changeme" in SECRET_KEY.lower():
    raise ImproperlyConfigured(
        "SECRET_KEY is too short or a default; generate one with "
        "python -c 'import secrets; print(secrets.token_urlsafe(48))'"
    )
env.text("DATABASE_URL")
env.text("REDIS_URL")
env.text("WEIR_URL")

DEBUG = False
ALLOWED_HOSTS = env.words("ALLOWED_HOSTS")
if not ALLOWED_HOSTS or "*" in ALLOWED_HOSTS:
    raise ImproperlyConfigured(
        "ALLOWED_HOSTS is empty or has *; name the hosts by which people and drivers reach the web "
        "service, separated by commas"
    )
if urlsplit(WEIR_URL).path:
    raise ImproperlyConfigured(
        f"WEIR_URL={WEIR_URL} has a path, and pages are served at the root of a host alone; give "
        "the web service a host name of its own"
    )
CSRF_TRUSTED_ORIGINS = [WEIR_URL, *env.words("CSRF_TRUSTED_ORIGINS")]

_is_https = WEIR_URL.startswith("https://")
if not _is_https and not env.flag("WEIR_ALLOW_PLAIN_HTTP", False):
    raise ImproperlyConfigured(
        f"WEIR_URL={WEIR_URL} is not https; set WEIR_ALLOW_PLAIN_HTTP=yes in a network you trust"
    )
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = _is_https
SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https") if _is_https else None
SECURE_HSTS_SECONDS = 31_536_000 if _is_https else 0
