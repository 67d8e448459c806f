"""Passwords are hashed on threads of their own, and logins without end hold up no user."""

import http.client
import json
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

import pytest
from django.contrib.auth import hashers
from django.test import Client

from controlplane.accounts import services
from controlplane.accounts.models import Role
from controlplane.base import threads
from controlplane.embedded.redis import Redis
from tests import factories
from tests.process.controlplane.test_streams import cookie, served_here
from tests.process.controlplane.web import Web

PASSWORD = "a-long-enough-password"
LOOPS = 40
PAGES = 20

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def hashing_threads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the threads that hashed a password."""
    names: list[str] = []
    kind = type(hashers.get_hasher())
    encode = kind.encode

    def noted(self: Any, *args: Any, **kwargs: Any) -> str:
        names.append(threading.current_thread().name)
        return encode(self, *args, **kwargs)

    monkeypatch.setattr(kind, "encode", noted)
    return names


def test_every_request_that_hashes_runs_on_the_threads_for_it(
    redis: Redis, hashing_threads: list[str]
) -> None:
    admin = services.create_user(None, "root", Role.ADMIN, password=PASSWORD)[0]
    client = Client()
    client.force_login(admin)
    csrf = client.get("/admin/accounts/user/add/").cookies["csrftoken"].value
    session = f"sessionid={client.cookies['sessionid'].value}; csrftoken={csrf}"
    requests = {
        "/login/": {"username": "root", "password": "wrong"},
        "/api/v1/users": {"username": "noor"},
        "/admin/accounts/user/add/": {
            "username": "aya", "usable_password": "true", "password1": PASSWORD,
            "password2": PASSWORD,
        },
        # The last one: it ends the session.
        f"/admin/accounts/user/{admin.pk}/password/": {
            "usable_password": "true", "password1": PASSWORD + "!", "password2": PASSWORD + "!",
        },
    }  # fmt: skip
    threads.close()
    try:
        with served_here() as web:
            for path, form in requests.items():
                hashing_threads.clear()
                is_api = path.startswith("/api/")
                kind = "application/json" if is_api else "application/x-www-form-urlencoded"
                answer = web.request(
                    "POST",
                    path,
                    (json.dumps(form) if is_api else urlencode(form)).encode(),
                    Cookie=session if path != "/login/" else f"csrftoken={csrf}",
                    X_CSRFToken=csrf,
                    Content_Type=kind,
                )
                assert answer.status < 400, (path, answer)
                assert hashing_threads, path
                assert all(name.startswith("weir-password") for name in hashing_threads), path
    finally:
        threads.close()


def test_login_loops_hold_up_no_user(start_web: Callable[..., Web], redis: Redis) -> None:
    """Forty anonymous loops with real hashes; another user's pages come about as before.

    The throttle is off: what is left is that hashes have a thread of their own.
    """
    web = start_web(
        redis.url,
        DJANGO_SETTINGS_MODULE="controlplane.settings.dev",  # With the hasher of production.
        SECRET_KEY="for-tests-only",
        WEIR_THROTTLE_LOGIN_ADDRESS="1000000/s",
        WEIR_THROTTLE_LOGIN_ACCOUNT="1000000/s",
    )
    session = cookie(factories.user(name="vera"))
    stop, statuses = threading.Event(), Counter[int]()

    def loop() -> None:
        csrf = web.request("GET", "/login/").headers["set-cookie"].split("=")[1].split(";")[0]
        form = urlencode({"csrfmiddlewaretoken": csrf, "username": "vera", "password": "wrong"})
        while not stop.is_set():
            answer = web.request(
                "POST",
                "/login/",
                form.encode(),
                Cookie=f"csrftoken={csrf}",
                Content_Type="application/x-www-form-urlencoded",
            )
            statuses[answer.status] += 1

    loops = [threading.Thread(target=loop) for _ in range(LOOPS)]
    for one in loops:
        one.start()
    try:
        deadline = time.monotonic() + 60
        while statuses[429] < LOOPS or not statuses[200]:  # The places of this address are taken.
            assert time.monotonic() < deadline, statuses
            time.sleep(0.05)
        before = statuses[200]
        for _ in range(PAGES):
            assert web.request("GET", "/jobs/", Cookie=session).status == 200
        hashed = statuses[200] - before
    finally:
        stop.set()
        for one in loops:
            one.join(60)
    # A page that waited among them would come after as many hashes as there are loops.
    assert hashed < PAGES * LOOPS / 4, statuses


def test_login_loops_are_refused_without_a_hash(web: Web, redis: Redis) -> None:
    factories.user(name="vera")
    connection = http.client.HTTPConnection("127.0.0.1", web.port, timeout=120)
    connection.request("GET", "/login/")
    response = connection.getresponse()
    response.read()
    csrf = (response.getheader("set-cookie") or "").split("=")[1].split(";")[0]
    form = urlencode({"csrfmiddlewaretoken": csrf, "username": "vera", "password": "wrong"})
    headers = {
        "Cookie": f"csrftoken={csrf}",
        "Content-Type": "application/x-www-form-urlencoded",
        "X-Forwarded-For": "198.51.100.1",  # Of no trusted proxy: changes nothing.
    }
    statuses = Counter[int]()
    for number in range(45):
        headers["X-Forwarded-For"] = f"198.51.100.{number}"
        connection.request("POST", "/login/", form, headers)
        response = connection.getresponse()
        response.read()
        statuses[response.status] += 1
        if response.status == 429:
            break
    connection.close()
    assert set(statuses) == {200, 429}
    assert statuses[200] <= 40  # Two windows of a minute at most.
