"""Drivers on the wire: what is refused, and how soon a command arrives."""

import gzip
import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from statistics import median

import pytest
from django.db import connection, transaction

from controlplane.base import clock
from controlplane.driver_http import ASK_AGAIN_S
from controlplane.embedded.postgres import Postgres
from controlplane.embedded.redis import Redis
from jobs.drivers import outbox
from jobs.models import Driver, Job
from tests import factories
from tests.process.controlplane.conftest import GATEWAY_BYTES_MAX
from tests.process.controlplane.web import Answer, Web
from tests.waiting import wait_until
from weir.protocol import wire
from weir.protocol.driver_messages import CancelJob, CommandBatch, EventBatch
from weir.wire.batches import VERSION_MAX

TOKEN = "a token of the job's driver"
EMPTY = json.dumps(wire.to_wire(EventBatch(first_number=1, events=()))).encode()
NO_REDIS = "redis://127.0.0.1:1/0"

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def job(web: Web, redis: Redis) -> Job:
    """A job with a driver that knows ``TOKEN``."""
    return orders()


def orders() -> Job:
    """A job whose driver has not been heard of."""
    job = factories.job("orders", id="orders-1")
    factories.driver(job, token=TOKEN, heard_at=None)
    return job


NO_COMMANDS = {"commands": [], "sent_at_ms": None}


def post(
    web: Web, body: bytes | Iterator[bytes] = EMPTY, *, job_id: str = "orders-1", **headers: str
) -> Answer:
    """Post a batch as the driver does, headers replaced by those given; "" leaves one out."""
    return web.request("POST", f"/gateway/v1/jobs/{job_id}/events", body, **_headers(headers))


def poll(web: Web, after: object = 0, wait: object = 0, **headers: str) -> Answer:
    """Ask for commands as the driver does."""
    path = f"/gateway/v1/jobs/orders-1/commands?after={after}&wait={wait}"
    return web.request("GET", path, **_headers(headers))


def _headers(given: dict[str, str]) -> dict[str, str]:
    usual = {"Authorization": f"Bearer {TOKEN}", "Weir_Schema_Version": "1"}
    return {name: value for name, value in (usual | given).items() if value}


def enqueue(reason: str) -> float:
    """Leave a command for the job's driver; when it was committed."""
    with transaction.atomic():
        outbox.enqueue(Job.objects.select_for_update().get(), [CancelJob(reason)], clock.now())
    return time.monotonic()


def reasons(answer: Answer) -> list[str]:
    """The texts of the commands in an answer."""
    batch = wire.from_wire(CommandBatch, answer.json)
    commands = [numbered.command for numbered in batch.commands]
    assert all(isinstance(command, CancelJob) for command in commands)
    return [command.reason for command in commands if isinstance(command, CancelJob)]


def assert_problem(answer: Answer, status: int, code: str) -> None:
    """The answer is a problem document with this code."""
    assert (answer.status, answer.json["code"]) == (status, code)
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json["detail"]


# Events


def test_a_batch_counts(web: Web, job: Job) -> None:
    answer = post(web)
    assert (answer.status, answer.json) == (200, {"up_to": 0})
    assert Driver.objects.get().heard_at is not None


@pytest.mark.parametrize("version", [str(version) for version in range(1, VERSION_MAX + 1)])
def test_each_answer_names_the_highest_version_of_this_side(
    web: Web, job: Job, version: str
) -> None:
    for answer in (
        post(web, Weir_Schema_Version=version),
        poll(web, Weir_Schema_Version=version),
        post(web, Authorization="Bearer unknown"),
    ):
        assert answer.headers["weir-schema-version"] == str(VERSION_MAX)


def test_a_packed_batch_counts(web: Web, job: Job) -> None:
    answer = post(web, gzip.compress(EMPTY), Content_Encoding="gzip")
    assert (answer.status, answer.json) == (200, {"up_to": 0})


def test_a_batch_in_chunks_counts(web: Web, job: Job) -> None:
    assert post(web, iter([EMPTY[:10], EMPTY[10:]])).status == 200


@pytest.mark.parametrize("header", ["", "Bearer ", "Basic abc", TOKEN])
def test_without_a_token_no_driver_is_known(web: Web, job: Job, header: str) -> None:
    for answer in (post(web, Authorization=header), poll(web, Authorization=header)):
        assert_problem(answer, 401, "not_authenticated")
        assert answer.headers["www-authenticate"] == "Bearer"


def test_a_token_of_another_job_is_refused(web: Web, job: Job) -> None:
    factories.driver(factories.job(), token="a token of the other")
    for answer in (
        post(web, Authorization="Bearer a token of the other"),
        poll(web, Authorization="Bearer a token of the other"),
    ):
        assert_problem(answer, 401, "not_authenticated")


def test_refusals_are_counted_by_their_code(web: Web, job: Job) -> None:
    before = {code: refused(web, code) for code in ("invalid", "not_authenticated", "fenced")}
    assert post(web).status == 200
    for _ in range(2):
        assert post(web, b"no batch").status == 400
    assert post(web, Authorization="Bearer unknown").status == 401
    now = {code: refused(web, code) - count for code, count in before.items()}
    assert now == {"invalid": 2, "not_authenticated": 1, "fenced": 0}


def refused(web: Web, code: str) -> float:
    return web.metric("weir_web_driver_refusals", code=code)


def test_an_unknown_job_is_not_found(web: Web, job: Job) -> None:
    assert_problem(post(web, job_id="unknown-1"), 404, "not_found")
    large = b"x" * (GATEWAY_BYTES_MAX // 2)
    assert_problem(post(web, large, job_id="unknown-1"), 404, "not_found")
    path = "/gateway/v1/jobs/unknown-1/commands?after=0&wait=0"
    assert_problem(web.request("GET", path, **_headers({})), 404, "not_found")


def test_an_older_driver_is_fenced(web: Web, job: Job) -> None:
    Driver.objects.update(status="lost")
    factories.driver(job, 2, token="a token of the newer")
    for answer in (post(web), poll(web, wait=20)):
        assert_problem(answer, 409, "fenced")


@pytest.mark.parametrize("version", ["", "0", str(VERSION_MAX + 1), "one", "1" * 5_000, "²"])
def test_another_version_is_told_what_to_do(web: Web, job: Job, version: str) -> None:
    for answer in (
        post(web, Weir_Schema_Version=version),
        poll(web, Weir_Schema_Version=version),
    ):
        assert_problem(answer, 400, "invalid")
        assert f"this control plane speaks 1 to {VERSION_MAX}" in answer.json["detail"]
        assert answer.json["schema_version"] == VERSION_MAX


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"first_number": "one"}', b"\xff", b"null"])
def test_a_malformed_batch_is_refused(web: Web, job: Job, body: bytes) -> None:
    assert_problem(post(web, body), 400, "invalid")


def test_a_broken_packing_is_refused(web: Web, job: Job) -> None:
    assert_problem(post(web, b"not packed", Content_Encoding="gzip"), 400, "invalid")
    assert_problem(post(web, Content_Encoding="br"), 400, "invalid")


def test_a_body_that_is_too_large_is_refused(web: Web, job: Job) -> None:
    large = b" " * (GATEWAY_BYTES_MAX + 1)
    assert_problem(post(web, large), 413, "too_large")
    assert_problem(post(web, iter([large[:1000], large[1000:]])), 413, "too_large")


def test_a_body_that_is_too_large_once_unpacked_is_refused(web: Web, job: Job) -> None:
    bomb = gzip.compress(bytes(256 << 20))
    assert len(bomb) < GATEWAY_BYTES_MAX
    assert_problem(post(web, bomb, Content_Encoding="gzip"), 413, "too_large")
    assert post(web).status == 200


def test_a_strangers_large_body_is_not_read(web: Web, job: Job) -> None:
    """A request without a token of the job is refused before the end of its body has come."""

    def never_ends() -> Iterator[bytes]:
        yield EMPTY
        go.wait(20)

    go = threading.Event()
    with ThreadPoolExecutor() as threads:
        try:
            path = "/gateway/v1/jobs/orders-1/events"
            headers = _headers({"Authorization": "Bearer unknown"})
            connection = threads.submit(web.request, "POST", path, never_ends(), **headers)
            # The client still sends; the server's log tells that it has answered.
            wait_until(lambda: "events 401" in web.log.read_text(), "the stranger is refused")
        finally:
            go.set()
        assert_problem(connection.result(), 401, "not_authenticated")


def test_another_method_is_not_allowed(web: Web, job: Job) -> None:
    answer = web.request("GET", "/gateway/v1/jobs/orders-1/events", **_headers({}))
    assert_problem(answer, 405, "method_not_allowed")


# Commands


def test_without_commands_the_answer_is_empty(web: Web, job: Job) -> None:
    answer = poll(web)
    assert (answer.status, answer.json) == (200, NO_COMMANDS)


def test_a_poll_waits_as_long_as_it_says(web: Web, job: Job) -> None:
    started = time.monotonic()
    assert poll(web, wait=0.7).json == NO_COMMANDS
    assert 0.7 <= time.monotonic() - started < 25


def test_commands_come_in_order_until_they_are_taken(web: Web, job: Job) -> None:
    for reason in ("one", "two", "three"):
        enqueue(reason)
    first = poll(web, wait=20)
    assert reasons(first) == ["one", "two", "three"]
    assert reasons(poll(web, wait=20)) == ["one", "two", "three"]  # The answer may have been lost.
    taken = first.json["commands"][1]["number"]
    assert reasons(poll(web, after=taken, wait=20)) == ["three"]


@pytest.mark.parametrize(
    ("after", "wait"), [("x", 0), (-1, 0), (2**63, 0), (0, "x"), (0, -1), (0, 31), (0, "nan")]
)
def test_a_malformed_poll_is_refused(web: Web, job: Job, after: object, wait: object) -> None:
    assert_problem(poll(web, after, wait), 400, "invalid")


def test_a_waiting_poll_is_answered_when_a_command_is_committed(web: Web, job: Job) -> None:
    took: list[float] = []
    taken = 0
    with ThreadPoolExecutor() as threads:
        for number in range(20):
            waiting = threads.submit(lambda after: (poll(web, after, 20), time.monotonic()), taken)
            wait_until(lambda: web.metric("weir_web_command_polls") == 1, "the poll waits")
            committed = enqueue(f"number {number}")
            answer, answered = waiting.result()
            took.append(answered - committed)
            assert reasons(answer) == [f"number {number}"]
            taken = answer.json["commands"][-1]["number"]
    # Milliseconds; without the wake-up half of them would take longer than half a second, and on a
    # busy machine one or another does.
    assert median(took) < 0.3, took


def test_a_waiting_poll_holds_no_connection(web: Web, job: Job) -> None:
    before = _database_connections()
    with ThreadPoolExecutor(60) as threads:
        waiting = [threads.submit(poll, web, 0, 20) for _ in range(60)]
        wait_until(lambda: web.metric("weir_web_command_polls") == 60, "all polls wait")
        assert _database_connections() <= before + 8
        enqueue("all")
        assert all(reasons(answer.result()) == ["all"] for answer in waiting)


def _database_connections() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()")
        (count,) = cursor.fetchone()
    assert isinstance(count, int)
    return count


def test_a_client_that_goes_away_is_not_waited_for(web: Web, job: Job) -> None:
    path = "/gateway/v1/jobs/orders-1/commands?after=0&wait=30"
    connection = web.connect()
    connection.request("GET", path, headers=Web.names(_headers({})))
    wait_until(lambda: web.metric("weir_web_command_polls") == 1, "the poll waits")
    connection.close()
    over = 2 * ASK_AGAIN_S  # The poll would have ended by itself after 30 s.
    wait_until(lambda: web.metric("weir_web_command_polls") == 0, "the poll has ended", over)


def test_without_redis_commands_come_within_a_second_or_so(
    start_web: Callable[..., Web],
) -> None:
    orders()
    web = start_web(NO_REDIS)
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(lambda: (poll(web, 0, 20), time.monotonic()))
        wait_until(lambda: web.metric("weir_web_command_polls") == 1, "the poll waits")
        committed = enqueue("late")
        answer, answered = waiting.result()
    assert reasons(answer) == ["late"]
    assert answered - committed < 5


def test_open_polls_end_when_the_process_is_told_to(
    start_web: Callable[..., Web], redis: Redis
) -> None:
    orders()
    web = start_web(redis.url)
    with ThreadPoolExecutor(5) as threads:
        waiting = [threads.submit(poll, web, 0, 30) for _ in range(5)]
        wait_until(lambda: web.metric("weir_web_command_polls") == 5, "all polls wait")
        assert web.terminate() < 5
        assert [answer.result().json for answer in waiting] == [NO_COMMANDS] * 5


def test_the_database_being_away_is_said_and_survived(
    start_web: Callable[..., Web], redis: Redis, away_postgres: Postgres
) -> None:
    web = start_web(redis.url, DATABASE_URL=away_postgres.url)
    for answer in (post(web), poll(web)):
        assert_problem(answer, 404, "not_found")
    away_postgres.kill()
    for answer in (post(web), poll(web)):
        assert_problem(answer, 503, "database_unavailable")
        assert int(answer.headers["retry-after"]) >= 1
    assert web.request("GET", "/healthz").status == 200
    away_postgres.start()
    for answer in (post(web), poll(web)):
        assert_problem(answer, 404, "not_found")
