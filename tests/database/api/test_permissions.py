"""Every endpoint × everybody who may ask: one table, held against the URL conf."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from django.urls import get_resolver
from django.urls.resolvers import URLPattern, URLResolver
from django.utils import timezone
from pytest_django import DjangoDbBlocker
from rest_framework.test import APIClient

from controlplane.accounts import services as accounts
from controlplane.accounts.models import Role, Token
from tests import factories
from tests.database.api.conftest import API, client_of, login_of
from tests.database.kept_rows import kept_rows

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
UNKNOWN_UUID = "00000000-0000-4000-8000-000000000000"

# Who may, by least role. A star: only with a login, not with a token.
TABLE = {
    ("GET", ""): "viewer",
    ("GET", "alerts"): "viewer",
    ("GET", "alerts/{id}"): "viewer",
    ("POST", "alerts/{id}/acknowledge"): "operator",
    ("GET", "audit"): "admin",
    ("GET", "checkpoints"): "viewer",
    ("GET", "deliveries"): "viewer",
    ("GET", "deliveries/{id}"): "viewer",
    ("POST", "deliveries/{id}/redeliver"): "operator",
    ("GET", "docs"): "viewer",
    ("GET", "endpoints"): "viewer",
    ("POST", "endpoints"): "admin",
    ("GET", "endpoints/{id}"): "viewer",
    ("PATCH", "endpoints/{id}"): "admin",
    ("DELETE", "endpoints/{id}"): "admin",
    ("POST", "endpoints/{id}/redeliver"): "operator",
    ("POST", "endpoints/{id}/secret"): "admin",
    ("POST", "endpoints/{id}/test"): "operator",
    ("GET", "jobs"): "viewer",
    ("POST", "jobs"): "operator",
    ("GET", "jobs/{job_id}"): "viewer",
    ("PATCH", "jobs/{job_id}"): "operator",
    ("DELETE", "jobs/{job_id}"): "operator",
    ("GET", "jobs/{job_id}/attempts"): "viewer",
    ("POST", "jobs/{job_id}/cancel"): "operator",
    ("POST", "jobs/{job_id}/checkpoint"): "operator",
    ("GET", "jobs/{job_id}/checkpoints"): "viewer",
    ("GET", "jobs/{job_id}/checkpoints/{number}"): "viewer",
    ("GET", "jobs/{job_id}/checkpoints/{number}/acks"): "viewer",
    ("GET", "jobs/{job_id}/checkpoints/{number}/channels"): "viewer",
    ("GET", "jobs/{job_id}/checkpoints/{number}/verdict"): "viewer",
    ("GET", "jobs/{job_id}/drivers"): "viewer",
    ("GET", "jobs/{job_id}/drivers/{number}/log"): "operator",
    ("GET", "jobs/{job_id}/events"): "viewer",
    ("GET", "jobs/{job_id}/exceptions"): "viewer",
    ("GET", "jobs/{job_id}/graph"): "viewer",
    ("GET", "jobs/{job_id}/operations"): "viewer",
    ("GET", "jobs/{job_id}/inspections/{id}"): "viewer",
    ("GET", "jobs/{job_id}/operators/{uid}/series"): "viewer",
    ("POST", "jobs/{job_id}/operators/{uid}/stacks"): "viewer",
    ("POST", "jobs/{job_id}/operators/{uid}/records"): "operator",
    ("POST", "jobs/{job_id}/comparisons"): "operator",
    ("POST", "jobs/{job_id}/fork"): "operator",
    ("POST", "jobs/{job_id}/previews"): "operator",
    ("POST", "jobs/{job_id}/rescale"): "operator",
    ("POST", "jobs/{job_id}/restart"): "operator",
    ("POST", "jobs/{job_id}/rollback"): "operator",
    ("GET", "jobs/{job_id}/savepoints"): "viewer",
    ("POST", "jobs/{job_id}/savepoints"): "operator",
    ("POST", "jobs/{job_id}/stop"): "operator",
    ("GET", "jobs/{job_id}/subtasks"): "viewer",
    ("POST", "jobs/{job_id}/upgrade"): "operator",
    ("GET", "me"): "viewer",
    ("GET", "operations"): "viewer",
    ("GET", "operations/{id}"): "viewer",
    ("GET", "rules"): "viewer",
    ("POST", "rules"): "admin",
    ("GET", "rules/kinds"): "viewer",
    ("POST", "rules/try"): "operator",
    ("GET", "rules/{id}"): "viewer",
    ("PATCH", "rules/{id}"): "admin",
    ("DELETE", "rules/{id}"): "admin",
    ("GET", "savepoints"): "viewer",
    ("GET", "savepoints/{id}"): "viewer",
    ("PATCH", "savepoints/{id}"): "operator",
    ("DELETE", "savepoints/{id}"): "operator",
    ("GET", "schema"): "viewer",
    ("GET", "secrets"): "viewer",
    ("GET", "secrets/{name}"): "viewer",
    ("PUT", "secrets/{name}"): "operator",
    ("DELETE", "secrets/{name}"): "operator",
    ("GET", "silences"): "viewer",
    ("POST", "silences"): "operator",
    ("GET", "silences/{id}"): "viewer",
    ("POST", "silences/{id}/end"): "operator",
    ("GET", "tokens"): "operator",
    ("POST", "tokens"): "operator*",
    ("GET", "tokens/{id}"): "operator",
    ("DELETE", "tokens/{id}"): "operator*",
    ("GET", "uploads"): "viewer",
    ("POST", "uploads"): "operator",
    ("GET", "uploads/{digest}"): "viewer",
    ("PATCH", "uploads/{digest}"): "operator",
    ("DELETE", "uploads/{digest}"): "operator",
    ("GET", "uploads/{digest}/file"): "operator",
    ("GET", "users"): "admin",
    ("POST", "users"): "admin*",
    ("GET", "users/{id}"): "admin",
    ("PATCH", "users/{id}"): "admin*",
}


def _endpoints() -> set[tuple[str, str]]:
    """The methods and paths that the URL conf serves below /api/v1/."""
    endpoints = set()

    def walk(patterns: list[URLPattern | URLResolver], prefix: str) -> None:
        for pattern in patterns:
            here = prefix + str(pattern.pattern)
            if isinstance(pattern, URLResolver):
                walk(pattern.url_patterns, here)
            elif here.startswith(API.lstrip("/")):
                view = pattern.callback.cls
                methods = [m for m in METHODS if hasattr(view, m.lower())]
                endpoints.update((m, _plain(here.removeprefix(API.lstrip("/")))) for m in methods)

    walk(get_resolver().url_patterns, "")
    return endpoints


def _plain(route: str) -> str:
    """``jobs/<job:job_id>`` -> ``jobs/{job_id}``."""
    parts = [
        f"{{{part[1:-1].partition(':')[2]}}}" if part.startswith("<") else part
        for part in route.split("/")
    ]
    return "/".join(parts)


def test_every_endpoint_has_a_row() -> None:
    assert _endpoints() == set(TABLE)


@dataclass(frozen=True)
class Callers:
    """Everybody who may ask, by role or by what is wrong."""

    logins: dict[str, APIClient]
    tokens: dict[str, APIClient]
    viewing: APIClient  # An operator's token that may only read.
    wrong: dict[str, APIClient]


@pytest.fixture(scope="module")
def callers(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[Callers]:
    """Accounts, logged in, and their tokens, which have been used before."""
    with kept_rows(django_db_blocker):
        users = {role: factories.user(role) for role in Role.values}
        callers = Callers(
            {role: login_of(user) for role, user in users.items()},
            {role: client_of(user) for role, user in users.items()},
            client_of(users["operator"], "viewer"),
            {wrong: _with(_secret(wrong)) for wrong in ("expired", "revoked", "closed", "foreign")},
        )
        for client in (*callers.tokens.values(), callers.viewing):
            assert client.get(f"{API}me").status_code == 200
        yield callers


@pytest.mark.parametrize(("method", "path"), sorted(TABLE, key=lambda one: one[::-1]))
def test_who_may(callers: Callers, db: None, method: str, path: str) -> None:
    least, login_only = TABLE[method, path].rstrip("*"), TABLE[method, path].endswith("*")
    parts = {"job_id": "unknown", "number": 1, "id": _id(path), "name": "UNKNOWN", "uid": "u"}
    url = API + path.format(**parts, digest="0" * 64)

    def asked(client: APIClient) -> Any:
        return getattr(client, method.lower())(url)

    if path == "docs":
        assert asked(APIClient()).status_code == 302  # To the login.
    else:
        refused = asked(APIClient())
        _is_problem(refused, 401, "not_authenticated")
        assert refused["WWW-Authenticate"].startswith("Bearer")
    for role in Role.values:
        may = Role(role).rank >= Role(least).rank
        _check(asked(callers.logins[role]), may)
        _check(asked(callers.tokens[role]), may and not login_only)
    _check(asked(callers.viewing), least == "viewer")
    assert set(callers.wrong) == {"expired", "revoked", "closed", "foreign"}
    for client in callers.wrong.values():
        _is_problem(asked(client), 401, "authentication_failed")


def _id(path: str) -> object:
    has_number = path.startswith(("tokens", "users"))
    return 999_999 if has_number else UNKNOWN_UUID


def _check(response: Any, may: bool) -> None:
    if may:  # Past the door: what is asked for may be unknown, or said wrongly.
        assert response.status_code in (200, 201, 202, 204, 400, 404, 415), response.content
    else:
        _is_problem(response, 403, "permission_denied")


def _is_problem(response: Any, status: int, code: str) -> None:
    assert response.status_code == status, response.content
    assert response["Content-Type"] == "application/problem+json"
    assert response.json()["code"] == code


def _with(secret: str) -> APIClient:
    client = APIClient()
    client.credentials(HTTP_AUTHORIZATION=f"Bearer {secret}")
    return client


def _secret(wrong: str) -> str:
    owner = factories.user(Role.ADMIN)
    secret = factories.secret_of(owner)
    token = owner.tokens.get()
    match wrong:
        case "expired":
            Token.objects.filter(pk=token.pk).update(
                expires_at=timezone.now() - timedelta(seconds=1)
            )
        case "revoked":
            accounts.revoke(None, token)
        case "closed":
            accounts.set_active(None, owner.pk, False)
        case "foreign":
            return "weir_" + "x" * 43
    return secret
