"""Event streams and polls: one client takes its share of them, and others are served."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection

import pytest
from django.db import transaction

from controlplane.audit.models import AuditEntry
from controlplane.base import clock
from controlplane.embedded.redis import Redis
from jobs.drivers import outbox
from jobs.models import Job
from tests import factories
from tests.process.controlplane.test_streams import PATH, cookie, watched
from tests.process.controlplane.web import Web
from tests.waiting import wait_until
from weir.protocol.driver_messages import CancelJob
from weir.protocol.messages import SCHEMA_VERSION

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def job() -> Job:
    return factories.job("orders", id="orders-1")


def test_one_account_takes_its_share_of_streams(
    start_web: Callable[..., Web], redis: Redis, job: Job
) -> None:
    web = start_web(redis.url, WEIR_STREAMS_PER_USER_MAX="3", WEIR_STREAMS_PER_ADDRESS_MAX="5")
    greedy, other, third = (
        cookie(factories.user(name=name)) for name in ("greedy", "other", "third")
    )
    with ExitStack() as open_streams:
        for _ in range(3):
            _, events = open_streams.enter_context(watched(web, greedy))
            next(events)
        refused = web.request("GET", PATH, Cookie=greedy)
        assert (refused.status, refused.json["code"]) == (429, "throttled")
        assert "this account has 3 event streams open" in refused.json["detail"]
        assert refused.headers["retry-after"] == "1"
        for _ in range(2):
            _, events = open_streams.enter_context(watched(web, other))
            next(events)
        refused = web.request("GET", PATH, Cookie=third, X_Forwarded_For="198.51.100.1")
        assert refused.status == 429
        assert "this address has 5" in refused.json["detail"]
    wait_until(lambda: web.metric("weir_web_event_streams") == 0, "the streams have ended")
    with watched(web, greedy) as (_, events):
        assert next(events).data["id"] == job.pk


def test_addresses_behind_a_trusted_proxy_have_shares_of_their_own(
    start_web: Callable[..., Web], redis: Redis, job: Job
) -> None:
    web = start_web(
        redis.url, WEIR_STREAMS_PER_ADDRESS_MAX="1", WEIR_TRUSTED_PROXIES="127.0.0.1, ::1"
    )
    session = cookie(factories.user())
    with web.open("GET", PATH, Cookie=session, X_Forwarded_For="203.0.113.1") as one:
        assert one.status == 200
        again = web.request("GET", PATH, Cookie=session, X_Forwarded_For="203.0.113.1")
        assert again.status == 429
        with web.open("GET", PATH, Cookie=session, X_Forwarded_For="203.0.113.2") as two:
            assert two.status == 200
    denied = web.request("GET", "/api/v1/users", Cookie=session, X_Forwarded_For="203.0.113.3")
    assert denied.status == 403
    assert AuditEntry.objects.get(action="access.refused").address == "203.0.113.3"


@contextmanager
def polling(web: Web, job: Job, token: str) -> Iterator[HTTPConnection]:
    """A poll that waits."""
    connection = web.connect()
    connection.request(
        "GET",
        f"/gateway/v1/jobs/{job.pk}/commands?after=0&wait=30",
        headers={
            "Authorization": f"Bearer {token}",
            "Weir-Schema-Version": str(SCHEMA_VERSION),
        },
    )
    try:
        yield connection
    finally:
        connection.close()


def test_one_driver_takes_its_share_of_polls(
    start_web: Callable[..., Web], redis: Redis, job: Job
) -> None:
    web = start_web(redis.url, WEIR_POLLS_PER_JOB_MAX="4")
    other = factories.job("orders", id="other-1")
    factories.driver(job, token="driver's")
    factories.driver(other, token="other's")
    with ExitStack() as polls:
        waiting = [polls.enter_context(polling(web, job, "driver's")) for _ in range(4)]
        wait_until(lambda: web.metric("weir_web_command_polls") == 4, "four polls wait")
        with polling(web, job, "driver's") as fifth:
            assert fifth.getresponse().status == 429
        with polling(web, other, "other's") as another:
            wait_until(lambda: web.metric("weir_web_command_polls") >= 5, "the other's poll waits")
            with transaction.atomic():
                locked = Job.objects.select_for_update().get(pk=other.pk)
                outbox.enqueue(locked, [CancelJob("enough")], clock.now())
            assert another.getresponse().status == 200
        assert len(waiting) == 4


def test_a_strangers_polls_take_no_share(web: Web, redis: Redis) -> None:
    job = factories.job("orders", id="orders-2")  # Polls of the test before may still be open.
    factories.driver(job, token="driver's")
    with ExitStack() as polls:
        for _ in range(10):
            stranger = polls.enter_context(polling(web, job, "made up"))
            assert stranger.getresponse().status == 401
        with polling(web, job, "driver's") as own:
            with transaction.atomic():
                locked = Job.objects.select_for_update().get(pk=job.pk)
                outbox.enqueue(locked, [CancelJob("enough")], clock.now())
            assert own.getresponse().status == 200


def test_answers_beside_django_are_stored_nowhere(web: Web, job: Job) -> None:
    for path in ("/healthz", "/gateway/v1/jobs/orders-1/commands", PATH):
        assert web.request("GET", path).headers["cache-control"] == "no-store"


def test_refusals_beside_django_are_in_the_audit_log(web: Web, redis: Redis, job: Job) -> None:
    for _ in range(3):
        assert web.request("GET", PATH).status == 401
    wait_until(lambda: AuditEntry.objects.exists(), "the first refusal is noted")
    wait_until(lambda: AuditEntry.objects.get().count == 3, "the others are counted")
    entry = AuditEntry.objects.get()
    assert (entry.action, entry.address, entry.after) == (
        "access.refused",
        "127.0.0.1",
        {"status": 401, "method": "GET", "path": PATH},
    )
