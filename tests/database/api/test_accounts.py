"""Accounts, roles and tokens: no user gives away more than they have."""

import json
import threading
from datetime import timedelta
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.test import Client
from django.utils import timezone
from rest_framework.test import APIClient

from controlplane.accounts import services
from controlplane.accounts.models import Role, Token, User, digest_of
from controlplane.audit.models import AuditEntry
from controlplane.base.errors import Forbidden, WrongState
from tests import factories
from tests.database.api.conftest import API, client_of, login_of


def audited(action: str) -> AuditEntry:
    return AuditEntry.objects.get(action=action)


# Tokens -------------------------------------------------------------------------------------------


def test_a_token_is_shown_once_and_kept_as_a_digest(operator: User) -> None:
    api = login_of(operator)
    made = api.post(f"{API}tokens", {"name": "ci", "role": "operator"})
    assert made.status_code == 201, made.content
    secret = made.json()["secret"]

    assert secret.startswith(made.json()["hint"])
    token = Token.objects.get(pk=made.json()["id"])
    assert token.digest == digest_of(secret)
    assert secret not in api.get(f"{API}tokens").content.decode()
    assert secret not in json.dumps(audited("token.create").after)

    client = APIClient()
    client.credentials(HTTP_AUTHORIZATION=f"bearer {secret}")
    assert client.get(f"{API}me").json() == {
        "username": "mara",
        "role": "operator",
        "user_role": "operator",
        "token": "ci",
    }


def test_a_token_has_at_most_the_role_of_its_maker(operator: User) -> None:
    refused = login_of(operator).post(f"{API}tokens", {"name": "more", "role": "admin"})
    assert refused.status_code == 403
    assert "operator at most" in refused.json()["detail"]
    with pytest.raises(Forbidden):
        services.create_token(None, operator, "more", Role.ADMIN)


def test_a_token_loses_what_its_user_loses(operator: User) -> None:
    api = client_of(operator)
    assert api.get(f"{API}me").json()["role"] == "operator"
    services.set_role(None, operator.pk, Role.VIEWER)
    assert api.get(f"{API}me").json()["role"] == "viewer"
    assert api.post(f"{API}jobs", {}).status_code == 403


def test_a_token_makes_no_successor_and_revokes_none(operator: User) -> None:
    """A leaked token must not outlive its end, nor shut its owner's other programs out."""
    api = client_of(operator)
    assert api.post(f"{API}tokens", {"name": "next"}).status_code == 403
    token = Token.objects.get()
    refused = api.delete(f"{API}tokens/{token.pk}")
    assert (refused.status_code, refused.json()["code"]) == (403, "permission_denied")
    assert "log in" in refused.json()["detail"]
    token.refresh_from_db()
    assert token.revoked_at is None


def test_a_token_ends_after_ninety_days_unless_asked_otherwise(operator: User) -> None:
    api = login_of(operator)
    ends = {}
    for name, more in {"plain": {}, "endless": {"expires_at": None}}.items():
        made = api.post(f"{API}tokens", {"name": name} | more)
        assert (made.status_code, made.json()["role"]) == (201, "viewer"), made.content
        ends[name] = Token.objects.get(name=name).expires_at
    assert ends["endless"] is None
    assert timedelta(days=89.9) < ends["plain"] - timezone.now() < timedelta(days=90.1)


def test_the_first_use_of_a_token_is_audited_once(operator: User) -> None:
    api = client_of(operator)
    token = Token.objects.get()
    for _ in range(3):
        assert api.get(f"{API}me").status_code == 200
    entry = audited("token.first_use")
    assert (entry.actor, entry.target, entry.address) == (
        operator,
        f"token/{token.pk}",
        "127.0.0.1",
    )


def test_answers_of_the_api_are_stored_nowhere(operator: User, anonymous: APIClient) -> None:
    for answer in (client_of(operator).get(f"{API}me"), anonymous.get(f"{API}me")):
        assert answer["Cache-Control"] == "no-store"


def test_others_tokens_are_unknown_to_an_operator_and_open_to_an_admin(
    operator: User, admin: User
) -> None:
    factories.secret_of(admin)
    foreign = Token.objects.get(user=admin)
    api = client_of(operator)
    assert api.get(f"{API}tokens/{foreign.pk}").status_code == 404
    assert login_of(operator).delete(f"{API}tokens/{foreign.pk}").status_code == 404
    assert {row["username"] for row in api.get(f"{API}tokens").json()["results"]} == {"mara"}
    everybody = client_of(admin).get(f"{API}tokens").json()["results"]
    assert {row["username"] for row in everybody} == {"mara", "root"}
    foreign.refresh_from_db()
    assert foreign.revoked_at is None


def test_an_operators_token_of_an_admin_sees_its_own_only(operator: User, admin: User) -> None:
    factories.secret_of(operator)
    shown = client_of(admin, "operator").get(f"{API}tokens").json()["results"]
    assert {row["username"] for row in shown} == {"root"}


def test_revoking_ends_a_token_at_once_and_may_be_repeated(operator: User) -> None:
    api = client_of(operator)
    token = Token.objects.get()
    assert login_of(operator).delete(f"{API}tokens/{token.pk}").status_code == 204
    assert login_of(operator).delete(f"{API}tokens/{token.pk}").status_code == 204
    assert api.get(f"{API}me").json()["code"] == "authentication_failed"
    assert audited("token.revoke").actor_name == "mara"


def test_a_token_expires(operator: User) -> None:
    in_past = {"name": "late", "expires_at": (timezone.now() - timedelta(1)).isoformat()}
    refused = login_of(operator).post(f"{API}tokens", in_past)
    assert refused.status_code == 400
    assert list(refused.json()["errors"]) == ["expires_at"]

    api = client_of(operator)
    Token.objects.update(expires_at=timezone.now() + timedelta(hours=1))
    assert api.get(f"{API}me").status_code == 200
    Token.objects.update(expires_at=timezone.now())
    answer = api.get(f"{API}me")
    assert answer.status_code == 401
    assert "expired" in answer.json()["detail"]


def test_last_use_is_written_once_a_minute(operator: User) -> None:
    api = client_of(operator)
    api.get(f"{API}me")
    first = Token.objects.get().last_used_at
    assert first is not None
    api.get(f"{API}me")
    assert Token.objects.get().last_used_at == first
    Token.objects.update(last_used_at=first - timedelta(seconds=61))
    api.get(f"{API}me")
    assert Token.objects.get().last_used_at >= first


@pytest.mark.parametrize(
    "header",
    ["Bearer", "Bearer  ", "Bearer a b", "Bearer " + "x" * 10_000, "Bearer \u00fc", "Bearer weir_"],
)
def test_what_is_no_token_is_refused(anonymous: APIClient, header: str) -> None:
    answer = anonymous.get(f"{API}me", HTTP_AUTHORIZATION=header)
    assert answer.status_code == 401
    assert answer["WWW-Authenticate"] == 'Bearer realm="weir"'
    assert answer.json()["code"] == "authentication_failed"


def test_a_session_needs_the_csrf_token(operator: User) -> None:
    client = Client(enforce_csrf_checks=True)
    client.login(username="mara", password=factories.PASSWORD)
    job = factories.job()
    refused = client.post(f"{API}jobs/{job.pk}/cancel", content_type="application/json")
    assert refused.status_code == 403
    assert "CSRF" in refused.json()["detail"]
    job.refresh_from_db()
    assert job.desired == "running"


# Users --------------------------------------------------------------------------------------------


def test_an_admin_makes_an_account(admin: User) -> None:
    made = login_of(admin).post(f"{API}users", {"username": "noor", "role": "operator"})
    assert made.status_code == 201, made.content
    assert len(made.json()["password"]) >= 20
    client = APIClient()
    assert client.login(username="noor", password=made.json()["password"])
    assert client.get(f"{API}me").json()["role"] == "operator"
    entry = AuditEntry.objects.get(action="user.create", target="user/noor")
    assert (entry.actor_name, entry.after) == ("root", {"role": "operator", "is_active": True})
    assert made.json()["password"] not in json.dumps(entry.after)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"username": "root"}, "username"),
        ({"username": "a b"}, "username"),
        ({"username": "x" * 151}, "username"),
        ({}, "username"),
        ({"username": "noor", "role": "king"}, "role"),
        ({"username": "noor", "is_superuser": True}, "is_superuser"),
    ],
)
def test_an_account_that_cannot_be(admin: User, body: dict[str, Any], field: str) -> None:
    refused = login_of(admin).post(f"{API}users", body)
    assert refused.status_code == 400
    assert field in refused.json()["errors"]
    assert not User.objects.filter(username="noor").exists()


def test_roles_change_and_djangos_flags_follow(admin: User, operator: User) -> None:
    api = login_of(admin)
    changed = api.patch(f"{API}users/{operator.pk}", {"role": "admin"})
    assert changed.json()["role"] == "admin"
    operator.refresh_from_db()
    assert (operator.is_staff, operator.is_superuser) == (True, True)
    api.patch(f"{API}users/{operator.pk}", {"role": "viewer"})
    operator.refresh_from_db()
    assert (operator.role, operator.is_staff, operator.is_superuser) == ("viewer", False, False)
    entry = AuditEntry.objects.filter(action="user.set_role").first()
    assert entry is not None
    assert (entry.before["role"], entry.after["role"]) == ("admin", "viewer")


@pytest.mark.parametrize("change", [{"role": "viewer"}, {"is_active": False}])
def test_the_last_admin_stays(admin: User, change: dict[str, Any]) -> None:
    closed = factories.user(Role.ADMIN)
    services.set_active(None, closed.pk, False)
    refused = login_of(admin).patch(f"{API}users/{admin.pk}", change)
    assert refused.status_code == 409
    admin.refresh_from_db()
    assert (admin.role, admin.is_active) == ("admin", True)


def test_a_half_refused_change_changes_nothing(admin: User) -> None:
    other = factories.user(Role.ADMIN)
    services.set_role(None, other.pk, Role.OPERATOR)
    api = login_of(admin)
    refused = api.patch(f"{API}users/{admin.pk}", {"role": "admin", "is_active": False})
    assert refused.status_code == 409
    admin.refresh_from_db()
    assert admin.is_active


@pytest.mark.django_db(transaction=True)
def test_two_admins_who_demote_each_other_leave_one() -> None:
    """Each sees the other as the admin who stays, unless one waits for the other."""
    users = [factories.user(Role.ADMIN), factories.user(Role.ADMIN)]
    barrier = threading.Barrier(2)
    outcomes: list[object] = []

    def demote(user: User) -> None:
        try:
            barrier.wait(10)
            outcomes.append(services.set_role(None, user.pk, Role.VIEWER))
        except WrongState as refusal:
            outcomes.append(refusal)
        finally:
            connection.close()

    threads = [threading.Thread(target=demote, args=[user]) for user in users]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(isinstance(one, User) for one in outcomes) == [False, True]
    assert User.objects.filter(role=Role.ADMIN).count() == 1


def test_a_closed_account_is_out(operator: User) -> None:
    token, session = client_of(operator), login_of(operator)
    services.set_active(None, operator.pk, False)
    assert token.get(f"{API}me").status_code == 401
    assert session.get(f"{API}me").status_code == 401


# Commands -----------------------------------------------------------------------------------------


def run(*words: str) -> list[str]:
    out = StringIO()
    call_command(*words, stdout=out)
    return out.getvalue().splitlines()


def test_accounts_by_command(db: None) -> None:
    name, role, password = run("weir_user", "noor", "--role", "operator")
    assert (name, role) == ("user noor", "role operator")
    client = APIClient()
    assert client.login(username="noor", password=password.removeprefix("password "))
    assert run("weir_user", "noor", "--role", "admin") == ["user noor", "role admin"]
    with pytest.raises(CommandError, match="last admin"):
        run("weir_user", "noor", "--close")
    renewed = run("weir_user", "noor", "--new-password")[-1].removeprefix("password ")
    assert client.login(username="noor", password=renewed)


def test_tokens_by_command(operator: User, tmp_path: Path) -> None:
    (secret,) = run("weir_token", "mara", "--name", "ci", "--role", "viewer", "--days", "7")
    client = APIClient()
    client.credentials(HTTP_AUTHORIZATION=f"Bearer {secret}")
    assert client.get(f"{API}me").json()["role"] == "viewer"
    left = Token.objects.get().expires_at - timezone.now()
    assert timedelta(days=6.9) < left < timedelta(days=7.1)

    file = tmp_path / "access.json"
    words = ("weir_token", "mara", "--name", "tests", "--file", str(file))
    assert run(*words, "--role", "operator", "--no-end") == []
    assert file.stat().st_mode & 0o777 == 0o600
    client.credentials(HTTP_AUTHORIZATION=f"Bearer {json.loads(file.read_text())['token']}")
    assert client.get(f"{API}me").json()["role"] == "operator"
    assert Token.objects.get(name="tests").expires_at is None

    run("weir_token", "mara", "--name", "plain")
    plain = Token.objects.get(name="plain")
    assert plain.role == "viewer"  # As by the API.
    assert timedelta(days=89.9) < plain.expires_at - timezone.now() < timedelta(days=90.1)

    with pytest.raises(CommandError, match="operator at most"):
        run("weir_token", "mara", "--name", "more", "--role", "admin")
    with pytest.raises(CommandError, match="no open account"):
        run("weir_token", "stranger", "--name", "x")


def test_the_account_of_a_local_control_plane(db: None) -> None:
    user = services.ensure_account("operator", "a-password-in-a-file", Role.OPERATOR)
    assert (user.role, user.check_password("a-password-in-a-file")) == ("operator", True)
    services.set_role(None, user.pk, Role.ADMIN)
    again = services.ensure_account("operator", "another-password-now", Role.OPERATOR)
    assert (again.pk, again.role) == (user.pk, "admin")
    assert again.check_password("another-password-now")


# Admin site ---------------------------------------------------------------------------------------


def test_the_admin_site_changes_accounts_by_the_services(admin: User, operator: User) -> None:
    client = Client()
    client.force_login(admin)
    page = f"/admin/accounts/user/{operator.pk}/change/"
    assert client.get(page).status_code == 200
    form = {"username": "mara", "role": "viewer", "is_active": "on", "email": "m@example.org"}
    assert client.post(page, form).status_code == 302
    operator.refresh_from_db()
    assert (operator.role, operator.email) == ("viewer", "m@example.org")
    assert audited("user.set_role").actor_name == "root"
    assert audited("user.change").actor_name == "root"

    own = f"/admin/accounts/user/{admin.pk}/change/"
    refused = client.post(own, {"username": "root", "role": "viewer", "is_active": "on"})
    assert refused.status_code == 200
    assert "last admin" in refused.content.decode()


def test_the_admin_site_shows_tokens_and_audit_entries_but_edits_neither(
    admin: User, operator: User
) -> None:
    factories.secret_of(operator)
    token, entry = Token.objects.get(), factories.audit_entry()
    client = Client()
    client.force_login(admin)
    for path, pk in (("accounts/token", token.pk), ("audit/auditentry", entry.pk)):
        assert client.get(f"/admin/{path}/").status_code == 200
        shown = client.get(f"/admin/{path}/{pk}/change/")
        assert shown.status_code == 200
        assert token.digest not in shown.content.decode()
        assert client.post(f"/admin/{path}/{pk}/change/", {}).status_code == 403
        assert client.post(f"/admin/{path}/{pk}/delete/", {"post": "yes"}).status_code == 403
        assert client.get(f"/admin/{path}/add/").status_code == 403
    revoke = {"action": "revoke", "_selected_action": [token.pk]}
    assert client.post("/admin/accounts/token/", revoke).status_code == 302
    token.refresh_from_db()
    assert token.revoked_at is not None
