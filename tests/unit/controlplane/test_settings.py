"""Production starts with what it was given, or not at all."""

import os
import subprocess
import sys

import pytest

COMPLETE = {
    "SECRET_KEY": "k" * 50,
    "DATABASE_URL": "postgres://weir:secret@db/weir",
    "REDIS_URL": "redis://:secret@redis/0",
    "WEIR_URL": "https://weir.example",
    "ALLOWED_HOSTS": "weir.example",
}


HOSTS = "from django.conf import settings; print(settings.ALLOWED_HOSTS, settings.DEBUG)"
# The answers to a request that a proxy took by https, and to one that it did not.
ANSWERS = """
import django
django.setup()
from django.conf import settings
from django.test import Client
for scheme in ("https", "http"):
    answer = Client(HTTP_HOST="weir.example", HTTP_X_FORWARDED_PROTO=scheme).get("/login/")
    cookie = answer.cookies[settings.CSRF_COOKIE_NAME]
    cookies = bool(cookie["secure"]), settings.SESSION_COOKIE_SECURE
    hsts = answer.get("Strict-Transport-Security", "")
    print(scheme, answer.status_code, answer.wsgi_request.is_secure(), *cookies, hsts)
"""


def _start(environment: dict[str, str], command: str = HOSTS) -> "subprocess.CompletedProcess[str]":
    kept = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/")}
    return subprocess.run(
        [sys.executable, "-c", command],
        env=kept | {"DJANGO_SETTINGS_MODULE": "controlplane.settings.production"} | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )


def test_production_starts_with_everything_given() -> None:
    done = _start(COMPLETE)
    assert (done.returncode, done.stdout) == (0, "['weir.example'] False\n"), done.stderr


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"SECRET_KEY": None}, "set SECRET_KEY, or SECRET_KEY_FILE"),
        ({"SECRET_KEY": "short"}, "SECRET_KEY is too short or a default"),
        ({"SECRET_KEY": "for-development-on-one-machine-only-" * 2}, "too short or a default"),
        ({"SECRET_KEY": "ChangeMe" * 8}, "too short or a default"),
        ({"DATABASE_URL": None}, "set DATABASE_URL"),
        ({"REDIS_URL": None}, "set REDIS_URL"),
        ({"WEIR_URL": None}, "set WEIR_URL"),
        ({"ALLOWED_HOSTS": None}, "ALLOWED_HOSTS is empty or has"),
        ({"ALLOWED_HOSTS": "*"}, "ALLOWED_HOSTS is empty or has"),
        ({"WEIR_URL": "http://weir.example"}, "is not https"),
        ({"WEIR_URL": "https://ops.example/weir"}, "has a path, and pages are served at the root"),
    ],
)
def test_production_refuses_what_is_missing_or_a_default(
    change: dict[str, str | None], reason: str
) -> None:
    environment = {name: value for name, value in (COMPLETE | change).items() if value is not None}
    done = _start(environment)
    assert done.returncode != 0
    assert reason in done.stderr


def test_plain_http_is_possible_for_who_says_so() -> None:
    done = _start(COMPLETE | {"WEIR_URL": "http://weir.lan", "WEIR_ALLOW_PLAIN_HTTP": "yes"})
    assert done.returncode == 0, done.stderr


def test_cookies_are_for_https_alone_and_browsers_keep_to_it() -> None:
    done = _start(COMPLETE, ANSWERS)
    told = ["https 200 True True True max-age=31536000", "http 200 False True True"]
    assert [line.strip() for line in done.stdout.splitlines()] == told, done.stderr


def test_plain_http_believes_no_proxy_and_has_cookies_all_the_same() -> None:
    plain = {"WEIR_URL": "http://weir.example", "WEIR_ALLOW_PLAIN_HTTP": "yes"}
    done = _start(COMPLETE | plain, ANSWERS)
    told = ["https 200 False False False", "http 200 False False False"]
    assert [line.strip() for line in done.stdout.splitlines()] == told, done.stderr


LAUNCHER = {name: COMPLETE[name] for name in ("DATABASE_URL", "REDIS_URL", "WEIR_URL")}


def _start_launcher(environment: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    return _start({"DJANGO_SETTINGS_MODULE": "controlplane.settings.launcher"} | environment)


def test_launcher_starts_without_a_secret_key() -> None:
    done = _start_launcher(LAUNCHER)
    assert (done.returncode, done.stdout) == (0, "[] False\n"), done.stderr


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"SECRET_KEY": "k" * 50}, "leave it out of the launcher's environment"),
        ({"SECRET_KEY_FILE": "/run/secret"}, "leave it out of the launcher's environment"),
        ({"DATABASE_URL": None}, "set DATABASE_URL"),
        ({"WEIR_LAUNCHER_ROLE": "x"}, "WEIR_LAUNCHER_ROLE is set without WEIR_LAUNCHER_PASSWORD"),
    ],
)
def test_launcher_refuses_a_secret_key_and_what_is_missing(
    change: dict[str, str | None], reason: str
) -> None:
    environment = {name: value for name, value in (LAUNCHER | change).items() if value is not None}
    done = _start_launcher(environment)
    assert done.returncode != 0
    assert reason in done.stderr
