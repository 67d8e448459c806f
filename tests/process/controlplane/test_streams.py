"""Browsers follow a job: who may, what comes, and when it ends."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPResponse

import pytest
import uvicorn
from django.db import OperationalError
from django.test import Client
from pytest_django import Settings

from controlplane import event_streams
from controlplane.accounts.models import User
from controlplane.base import server_losses, wakeups
from controlplane.embedded.redis import Redis
from jobs.models import Job
from tests import factories
from tests.process.controlplane.web import Event, Web, events
from tests.waiting import wait_until

PATH = "/events/jobs/orders-1"

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def job(web: Web, redis: Redis) -> Job:
    """A job to look at, on the database of the fixture's process."""
    return orders()


def orders() -> Job:
    """The job at ``PATH``."""
    return factories.job("orders", id="orders-1")


def cookie(user: User) -> str:
    """The cookie of a user who has logged in."""
    client = Client()
    client.force_login(user)
    return f"sessionid={client.cookies['sessionid'].value}"


@contextmanager
def watched(web: Web, session: str) -> Iterator[tuple[HTTPResponse, Iterator[Event]]]:
    """An open stream and its events."""
    with web.open("GET", PATH, Cookie=session) as stream:
        assert stream.status == 200
        yield stream, events(stream)


def change(name: str) -> None:
    """Something that the page shows."""
    Job.objects.update(name=name)
    wakeups.publish(wakeups.job("orders-1"))


def test_who_is_not_logged_in_is_refused(web: Web, job: Job) -> None:
    for headers in ({}, {"Cookie": "sessionid=madeup"}, {"Cookie": "sessionid="}):
        answer = web.request("GET", PATH, **headers)
        assert (answer.status, answer.json["code"]) == (401, "not_authenticated")


def test_a_closed_account_is_refused(web: Web, job: Job) -> None:
    user = factories.user()
    session = cookie(user)
    User.objects.update(is_active=False)
    assert web.request("GET", PATH, Cookie=session).status == 401


def test_an_unknown_job_is_not_found(web: Web, job: Job) -> None:
    answer = web.request("GET", "/events/jobs/unknown-1", Cookie=cookie(factories.user()))
    assert (answer.status, answer.json["code"]) == (404, "not_found")


@pytest.mark.parametrize("job_id", ["%00", "a%00b", "%0d%0a", "x" * 121])
def test_what_is_no_id_of_a_job_reaches_no_query(web: Web, job_id: str) -> None:
    session = cookie(factories.user())
    assert web.request("GET", f"/events/jobs/{job_id}", Cookie=session).status == 404
    assert web.request("GET", f"/gateway/v1/jobs/{job_id}/commands").status == 404


def test_a_viewer_sees_the_job_at_once(web: Web, job: Job) -> None:
    with watched(web, cookie(factories.user())) as (stream, received):
        assert stream.getheader("Content-Type") == "text/event-stream; charset=utf-8"
        assert stream.getheader("Cache-Control") == "no-store"
        first = next(received)
        assert (first.kind, first.identity) == ("snapshot", "1")
        assert (first.data["id"], first.data["name"]) == ("orders-1", "orders")


def test_the_browser_is_told_when_to_come_again(web: Web, job: Job) -> None:
    with web.open("GET", PATH, Cookie=cookie(factories.user())) as stream:
        assert stream.readline() == b"retry: 2000\n"


def test_a_change_reaches_all_browsers_of_a_job(web: Web, job: Job) -> None:
    session = cookie(factories.user())
    with watched(web, session) as (_, one), watched(web, session) as (_, other):
        assert next(one) == next(other)
        change("renamed")
        events_now = next(one), next(other)
        assert events_now[0] == events_now[1]
        assert (events_now[0].data["name"], events_now[0].identity) == ("renamed", "2")


def test_many_changes_become_few_events_with_the_newest_last(web: Web, job: Job) -> None:
    with watched(web, cookie(factories.user())) as (_, received):
        next(received)
        for number in range(200):
            change(f"name {number}")
        count = 0
        for event in received:
            count += 1
            if event.data["name"] == "name 199":
                break
        assert count < 50


@pytest.mark.parametrize(
    ("took_s", "rests_s"),
    [(0.0, 0.1), (0.02, 0.1), (0.1, 0.1), (0.3, 0.3), (1.0, 1.0), (9.0, 1.0)],
)
def test_a_feed_rests_in_proportion_to_what_a_snapshot_took(took_s: float, rests_s: float) -> None:
    assert event_streams.rest_s(took_s) == pytest.approx(rests_s)


def test_without_redis_a_change_is_found_by_looking_again(
    start_web: Callable[..., Web],
) -> None:
    orders()
    web = start_web("redis://127.0.0.1:1/0")
    with watched(web, cookie(factories.user())) as (_, received):
        next(received)
        Job.objects.update(name="renamed")
        assert next(received).data["name"] == "renamed"


def test_a_stream_ends_with_its_job(web: Web, job: Job) -> None:
    with watched(web, cookie(factories.user())) as (_, received):
        next(received)
        job.delete()
        wakeups.publish(wakeups.job("orders-1"))
        assert list(received) == []


def test_a_browser_that_leaves_is_forgotten(web: Web, job: Job) -> None:
    with watched(web, cookie(factories.user())) as (_, received):
        next(received)
        assert web.metric("weir_web_event_streams") == 1
    wait_until(lambda: web.metric("weir_web_event_streams") == 0, "the stream has ended")


def test_open_streams_end_when_the_process_is_told_to(
    start_web: Callable[..., Web], redis: Redis
) -> None:
    orders()
    web = start_web(redis.url)
    with watched(web, cookie(factories.user())) as (_, received):
        next(received)
        assert web.terminate() < 5
        assert list(received) == []


@contextmanager
def served_here() -> Iterator[Web]:
    """The application in this process, so that a test can change what it waits for."""
    from controlplane.asgi import application

    server = uvicorn.Server(uvicorn.Config(application, port=0, log_config=None))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        wait_until(lambda: server.started, "the server has started")
        yield Web.at(server.servers[0].sockets[0].getsockname()[1])
    finally:
        application.state.hub.close()  # What the signal would do.
        server.should_exit = True
        thread.join()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch, redis: Redis) -> None:
    """Sessions are looked at often, and heartbeats come soon."""
    monkeypatch.setattr(event_streams, "SESSION_CHECK_S", 0.1)
    monkeypatch.setattr(event_streams, "HEARTBEAT_S", 0.05)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("end", ["logout", "account"])
def test_a_stream_ends_with_its_session(end: str) -> None:
    orders()
    session = cookie(factories.user())
    with served_here() as web, watched(web, session) as (_, received):
        next(received)
        if end == "logout":
            client = Client(headers={"Cookie": session})
            client.cookies.load(session)
            client.logout()
        else:
            User.objects.update(is_active=False)
        assert list(received) == []


@pytest.mark.usefixtures("quick")
def test_a_comment_comes_while_nothing_happens() -> None:
    orders()
    with (
        served_here() as web,
        web.open("GET", PATH, Cookie=cookie(factories.user())) as stream,
    ):
        lines = iter(stream.readline, b"")
        assert b":\n" in lines
        assert b":\n" in lines


@pytest.mark.usefixtures("quick")
def test_a_browser_is_told_at_once_that_the_database_is_away_and_gets_the_first_snapshot_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    orders()
    session = cookie(factories.user())
    read, is_away, answers = event_streams._snapshot, threading.Event(), threading.Event()
    answers.set()

    def reached(job_id: str) -> object:
        if is_away.is_set():
            raise OperationalError("the server closed the connection unexpectedly")
        assert answers.wait(20)
        return read(job_id)

    known = event_streams._name_of

    def known_once_it_answers(session_key: str) -> str | None:
        assert answers.wait(20)
        return known(session_key)

    monkeypatch.setattr(event_streams, "_snapshot", reached)
    monkeypatch.setattr(event_streams, "_name_of", known_once_it_answers)
    monkeypatch.setattr(event_streams, "REFRESH_S", 600.0)
    monkeypatch.setattr(event_streams, "HANGS_AFTER_S", 0.3)
    try:
        with served_here() as web, web.open("GET", PATH, Cookie=session) as stream:
            lines = iter(stream.readline, b"")
            assert b"event: snapshot\n" in lines
            is_away.set()
            assert b"event: away\n" in lines
            assert server_losses.database_lost_ms_ago() is not None
            is_away.clear()
            assert b"event: snapshot\n" in lines  # Though nothing has changed.
            server_losses.forget()
            answers.clear()
            assert b"event: away\n" in lines
            assert server_losses.database_lost_ms_ago() is not None
            answers.set()
            assert b"event: snapshot\n" in lines
    finally:
        server_losses.forget()


@pytest.mark.usefixtures("quick")
def test_a_snapshot_is_computed_once_for_all_browsers(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders()
    session = cookie(factories.user())
    calls: list[str] = []
    read = event_streams._snapshot

    def counted(job_id: str) -> object:
        calls.append(job_id)
        return read(job_id)

    monkeypatch.setattr(event_streams, "_snapshot", counted)
    monkeypatch.setattr(event_streams, "LOOK_AGAIN_S", 600.0)
    with served_here() as web, ThreadPoolExecutor(10) as threads:

        def first_two() -> list[str]:
            with watched(web, session) as (_, received):
                names = [next(received).data["name"]]
                seen.release()
                return [*names, next(received).data["name"]]

        seen = threading.Semaphore(0)
        browsers = [threads.submit(first_two) for _ in range(10)]
        for _ in browsers:
            assert seen.acquire(timeout=120)
        before = len(calls)
        change("renamed")
        assert [browser.result() for browser in browsers] == [["orders", "renamed"]] * 10
        assert len(calls) - before <= 2  # A wake-up may fall into a reading under way.
