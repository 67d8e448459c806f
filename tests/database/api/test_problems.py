"""Errors that no view expects, and everybody's favourite: the database is away."""

import logging
from typing import Any

import pytest
from django.core.exceptions import SuspiciousOperation
from django.db import OperationalError
from django.test import Client
from pytest_django import Settings
from redis.exceptions import ConnectionError as RedisConnectionError
from rest_framework.test import APIClient

from controlplane.accounts.models import User
from controlplane.base.limits import counters, throttling
from controlplane.base.server_losses import Pause
from jobs.api import views
from tests import factories
from tests.database.api.conftest import API, login_of
from tests.database.api.test_jobs import is_problem


def raising(error: Exception) -> Any:
    def ask(*args: Any, **kwargs: Any) -> Any:
        raise error

    return ask


def test_an_unexpected_error_is_logged_under_the_requests_id(
    api: APIClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    job = factories.job()
    monkeypatch.setattr(views.services, "cancel", raising(KeyError("secret detail")))
    with caplog.at_level(logging.ERROR):
        answer = api.post(f"{API}jobs/{job.pk}/cancel", headers={"X-Request-ID": "abc-1"})
    problem = is_problem(answer, 500, "internal_error")
    assert problem["request_id"] == "abc-1"
    assert "secret" not in answer.content.decode()
    assert "secret detail" in caplog.text


def test_the_database_away_is_503(api: APIClient, monkeypatch: pytest.MonkeyPatch) -> None:
    job = factories.job()
    monkeypatch.setattr(views.services, "cancel", raising(OperationalError("gone")))
    answer = api.post(f"{API}jobs/{job.pk}/cancel")
    is_problem(answer, 503, "database_unavailable")
    assert int(answer["Retry-After"]) > 0


def test_the_database_away_before_any_view_is_503(
    operator: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session's row is read by the first access to the request's user."""
    client = login_of(operator)
    monkeypatch.setattr(
        "django.contrib.sessions.backends.db.SessionStore.load", raising(OperationalError("gone"))
    )
    answer = client.get(f"{API}me")
    is_problem(answer, 503, "database_unavailable")


def test_what_is_outside_views_is_a_problem_too(
    operator: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = login_of(operator)
    client.raise_request_exception = False
    middleware = "django.contrib.sessions.middleware.SessionMiddleware.process_request"
    for error, status, code in (
        (RuntimeError("broken"), 500, "internal_error"),
        (SuspiciousOperation("odd"), 400, "bad_request"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(middleware, raising(error))
            is_problem(client.get(f"{API}me"), status, code)


def test_a_host_that_is_not_ours(api: APIClient) -> None:
    is_problem(api.get(f"{API}me", HTTP_HOST="evil.example"), 400, "bad_request")


def test_pages_outside_the_api_stay_pages(db: None) -> None:
    answer = Client().get("/nothing-here")
    assert answer.status_code == 404
    assert answer["Content-Type"].startswith("text/html")


@pytest.fixture
def few(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three requests a minute, counted in memory."""
    from django.core.cache import cache

    cache.clear()
    rates = {"anon": "3/min", "user": "3/min"}
    monkeypatch.setattr(throttling.throttling.SimpleRateThrottle, "THROTTLE_RATES", rates)
    monkeypatch.setattr(counters, "redis_pause", Pause(60.0))


@pytest.mark.usefixtures("few")
def test_too_many_requests_are_told_when_to_come_again(api: APIClient) -> None:
    for _ in range(3):
        assert api.get(f"{API}me").status_code == 200
    answer = api.get(f"{API}me")
    is_problem(answer, 429, "throttled")
    assert 0 < int(answer["Retry-After"]) <= 60


@pytest.mark.usefixtures("few")
def test_without_counters_requests_pass(api: APIClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """They ask for them once: each may wait for Redis, and few threads serve all."""
    cache, asked = throttling.throttling.SimpleRateThrottle.cache, []

    def get(_: object, key: str, *__: object) -> None:
        asked.append(key)
        raise RedisConnectionError("gone")

    monkeypatch.setattr(type(cache), "get", get, raising=False)
    for _ in range(5):
        assert api.get(f"{API}me").status_code == 200
    assert len(asked) == 1


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("secret", [None, "weir_guessed"])
def test_who_is_refused_too_often_is_told_when_to_come_again(
    api: APIClient, anonymous: APIClient, secret: str | None
) -> None:
    if secret is not None:
        anonymous.credentials(HTTP_AUTHORIZATION=f"Bearer {secret}")
    for _ in range(3):
        assert anonymous.get(f"{API}me").status_code == 401
    answer = anonymous.get(f"{API}me")
    is_problem(answer, 429, "throttled")
    assert 0 < int(answer["Retry-After"]) <= 60
    assert api.get(f"{API}me").status_code == 200  # From the same address, with a token.
