"""Logins: one door, throttled by address and account, audited and in bounds."""

import json
import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from django.contrib.auth import hashers
from django.core.cache import cache
from django.test import Client
from pytest_django import Settings
from pytest_django.asserts import assertTemplateUsed

from controlplane.accounts import login, refusals, services
from controlplane.accounts.models import Role, User
from controlplane.audit import models as audit
from controlplane.audit.models import AuditEntry
from controlplane.base.limits import counters
from controlplane.base.limits.rates import Rate

PASSWORD = "a-long-enough-password"
HERE, THERE = "203.0.113.7", "198.51.100.2"


@pytest.fixture(autouse=True)
def _limits(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Small limits, empty counters, in the middle of an hour."""
    settings.WEIR_THROTTLE_LOGIN_ADDRESS = Rate(3, 3_600)
    settings.WEIR_THROTTLE_LOGIN_ACCOUNT = Rate(5, 3_600)
    monkeypatch.setattr(counters, "time", SimpleNamespace(time=lambda: 1_800.0))
    cache.clear()
    yield
    cache.clear()


@pytest.fixture
def mara(db: None) -> User:
    return services.create_user(None, "mara", Role.OPERATOR, password=PASSWORD)[0]


@pytest.fixture
def hashes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The passwords that were hashed."""
    seen: list[str] = []
    kind = type(hashers.get_hasher())
    encode = kind.encode

    def noted(self: Any, password: str, *args: Any, **kwargs: Any) -> str:
        seen.append(password)
        return encode(self, password, *args, **kwargs)

    monkeypatch.setattr(kind, "encode", noted)
    return seen


def attempt(
    name: str = "mara", password: str = "wrong", address: str = HERE, page: str = "/login/"
) -> Any:
    """The response to one login by a browser of its own."""
    form = {"username": name, "password": password}
    return Client(REMOTE_ADDR=address).post(page, form)


def entries(action: str) -> list[AuditEntry]:
    return list(AuditEntry.objects.filter(action=action).order_by("pk"))


# Throttles -------------------------------------------------------------------------------------


def test_an_address_that_failed_too_often_is_refused_unlooked_at(
    mara: User, hashes: list[str]
) -> None:
    for number in range(3):
        assert attempt(f"name-{number}").status_code == 200
    looked_at = len(hashes)
    assert looked_at == 3
    for name, password in (("mara", PASSWORD), ("mara", "wrong"), ("no-account", "wrong")):
        refused = attempt(name, password)
        assert refused.status_code == 429
        assert refused.headers["Retry-After"] == "1800"
        text = refused.content.decode()
        assert "Too many logins have failed. Try again in 30 minutes" in text
        assert f'value="{name}"' in text
        assertTemplateUsed(refused, "registration/login.html")
    assert len(hashes) == looked_at
    assert attempt("mara", PASSWORD, THERE).status_code == 302


def test_an_account_that_failed_too_often_is_refused_at_every_new_address(
    mara: User, hashes: list[str]
) -> None:
    for number in range(5):
        assert attempt(address=f"198.51.100.{number}").status_code == 200
    looked_at = len(hashes)
    assert attempt(password=PASSWORD, address=HERE).status_code == 429
    assert len(hashes) == looked_at
    # What was refused for the account's sake does not count against the address.
    for _ in range(3):
        assert attempt("noor", address=HERE).status_code == 200


def test_a_stranger_cannot_lock_an_owner_out(mara: User) -> None:
    assert attempt(password=PASSWORD, address=HERE).status_code == 302
    for number in range(20):
        attempt(address=f"198.51.100.{number}")  # The account's count is over.
        attempt(f"name-{number}", address=HERE)  # The address's count is over.
    assert attempt(password=PASSWORD, address=THERE).status_code == 429
    assert attempt("noor", address=HERE).status_code == 429
    assert attempt(password=PASSWORD, address=HERE).status_code == 302


def test_a_known_address_is_throttled_as_well(mara: User) -> None:
    assert attempt(password=PASSWORD).status_code == 302
    assert [attempt().status_code for _ in range(6)] == [200] * 5 + [429]
    assert attempt(password=PASSWORD).status_code == 429


def test_logins_that_succeed_do_not_count(mara: User) -> None:
    for _ in range(10):
        assert attempt(password=PASSWORD).status_code == 302
    for number in range(10):
        assert attempt(password=PASSWORD, address=f"198.51.100.{number}").status_code == 302


def test_addresses_of_one_ipv6_network_count_together(mara: User) -> None:
    for number in range(3):
        assert attempt(f"name-{number}", address=f"2001:db8::{number}").status_code == 200
    assert attempt(password=PASSWORD, address="2001:db8::ffff").status_code == 429


def test_the_admin_site_has_the_same_door(db: None, hashes: list[str]) -> None:
    services.create_user(None, "root", Role.ADMIN, password=PASSWORD)
    hashes.clear()
    page = Client().get("/admin/")
    led = Client().get(page["Location"])
    assert led["Location"] == "/login/?next=/admin/"
    refused = attempt("root", PASSWORD, page="/admin/login/?next=/admin/")
    assert refused.status_code == 302
    assert refused["Location"].startswith("/login/")
    assert hashes == []

    client = Client()
    done = client.post(
        "/login/?next=/admin/", {"username": "root", "password": PASSWORD, "next": "/admin/"}
    )
    assert done["Location"] == "/admin/"
    assert client.get("/admin/").status_code == 200
    assert client.get("/admin/login/?next=/admin/").status_code == 302
    out = client.post("/admin/logout/")
    assert out["Location"] == "/login/"
    assert [entry.actor_name for entry in entries("user.logout")] == ["root"]


def test_an_account_without_the_role_is_told_so_and_not_sent_in_a_circle(mara: User) -> None:
    client = Client()
    client.force_login(mara)
    led = client.get("/admin/")
    assert client.get(led["Location"]).status_code == 403


def test_an_admin_changes_the_own_password_where_it_is_audited(db: None, hashes: list[str]) -> None:
    """Django's own page would try an old password, as often as one likes."""
    root, _ = services.create_user(None, "root", Role.ADMIN, password=PASSWORD)
    client = Client()
    assert client.get("/admin/password_change/")["Location"].startswith("/login/")
    client.force_login(root)
    hashes.clear()
    tried = client.post("/admin/password_change/", {"old_password": "a guess"})
    page = tried["Location"]
    assert (tried.status_code, hashes) == (302, [])
    assert client.get(page).status_code == 200
    new = {"password1": "pear-tree-on-a-hill", "password2": "pear-tree-on-a-hill"}
    assert client.post(page, {**new, "usable_password": "true"}).status_code == 302
    assert User.objects.get().check_password("pear-tree-on-a-hill")
    assert [entry.actor_name for entry in entries("user.change")] == ["root"]


# Audit -----------------------------------------------------------------------------------------


def test_a_login_and_a_logout_are_audited(mara: User) -> None:
    client = Client(REMOTE_ADDR=HERE)
    client.post("/login/", {"username": "mara", "password": PASSWORD})
    client.post("/logout/")
    client.post("/logout/")  # There is no login to end.
    for action in ("user.login", "user.logout"):
        (entry,) = entries(action)
        assert (entry.actor, entry.target, entry.address) == (mara, "user/mara", HERE)
        assert entry.request_id


def test_failed_logins_of_a_source_are_one_entry(mara: User) -> None:
    for _ in range(3):
        attempt()
    attempt()
    (entry,) = entries("user.login_failed")
    assert (entry.actor, entry.actor_name, entry.target) == (None, "unknown client", "user/mara")
    assert (entry.count, entry.address) == (3, HERE)
    assert entry.last_at is not None
    assert entry.last_at > entry.at
    (throttled,) = entries("user.login_throttled")
    assert throttled.count == 1


def test_a_name_that_is_no_account_is_not_kept(db: None) -> None:
    """People type passwords into the field of the name."""
    attempt("my-secret-password")
    (entry,) = entries("user.login_failed")
    assert entry.target == "user"
    assert "my-secret-password" not in json.dumps([entry.target, entry.after, entry.fold])


def test_entries_of_refusals_are_bounded(
    mara: User, monkeypatch: pytest.MonkeyPatch, settings: Settings
) -> None:
    monkeypatch.setattr(audit, "REFUSAL_ENTRIES_MAX", 10)
    for number in range(30):
        attempt(f"name-{number}", address=f"198.51.100.{number}")
    failed = entries("user.login_failed")
    assert len(failed) == 11
    assert sum(entry.count for entry in failed) == 30
    assert (failed[-1].target, failed[-1].address, failed[-1].count) == ("others", None, 20)


def test_refused_access_is_audited_by_account_or_address(
    mara: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refusals, "RATE", Rate(4, 3_600))
    client = Client(REMOTE_ADDR=HERE)
    client.force_login(mara)
    for _ in range(3):
        assert client.get("/audit/").status_code == 403
    assert client.get("/api/v1/users").status_code == 403
    stranger = Client(REMOTE_ADDR=THERE, headers={"Authorization": "Bearer weir_unknown"})
    for _ in range(6):
        assert stranger.get("/api/v1/jobs?q=secret").status_code == 401
    by_mara, by_stranger = entries("access.refused")
    assert (by_mara.actor, by_mara.count) == (mara, 4)
    assert by_mara.after == {"status": 403, "method": "GET", "path": "/audit/"}
    assert (by_stranger.actor_name, by_stranger.address) == ("unknown client", THERE)
    assert by_stranger.count == 4  # Beyond its rate a refusal is in the access log only.
    assert by_stranger.after == {"status": 401, "method": "GET", "path": "/api/v1/jobs"}


def test_the_page_shows_how_often(mara: User) -> None:
    attempt()
    attempt()
    client = Client()
    client.force_login(services.create_user(None, "root", Role.ADMIN)[0])
    text = re.sub(r"<[^>]+>|\s+", " ", client.get("/audit/").content.decode())
    assert re.search(r"unknown client +Failed to log in +2 times +user\.login_failed", text)


def test_the_wait_is_said_in_words() -> None:
    said = [login.TooManyAttempts(seconds).detail for seconds in (1, 30, 60, 61, 1_800)]
    assert [re.search(r"again in (.+?);", one)[1] for one in said] == [  # type: ignore[index]
        "a second", "30 seconds", "a minute", "2 minutes", "30 minutes",
    ]  # fmt: skip
