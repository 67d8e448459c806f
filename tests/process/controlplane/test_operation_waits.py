"""Requests that wait for an operation, at the real web process."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from controlplane.accounts.models import Role
from controlplane.embedded.redis import Redis
from jobs import operations
from jobs.models import Operation
from tests import factories
from tests.process.controlplane.web import Web
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def operation(web: Web, redis: Redis) -> Operation:
    """An operation that goes on."""
    return factories.operation(factories.job(), status="running")


@pytest.fixture
def token(operation: Operation) -> dict[str, str]:
    """The header of a viewer's request."""
    return {"Authorization": f"Bearer {factories.secret_of(factories.user(Role.VIEWER))}"}


def path(operation: Operation, wait_s: float) -> str:
    return f"/api/v1/operations/{operation.pk}?wait={wait_s:g}"


def test_the_answer_comes_with_the_end(
    web: Web, operation: Operation, token: dict[str, str]
) -> None:
    """More requests wait than there are threads for the database: others are answered meanwhile."""
    with ThreadPoolExecutor(12) as pool:
        waiting = [pool.submit(web.request, "GET", path(operation, 30), **token) for _ in range(12)]
        wait_until(
            lambda: web.request("GET", "/api/v1/me", **token).status == 200, "others are answered"
        )
        assert not any(one.done() for one in waiting)
        operations.succeed(operation, {"job": operation.job_id})
        answers = [one.result(20) for one in waiting]
    assert {(one.status, one.json["status"]) for one in answers} == {(200, "succeeded")}


def test_the_answer_comes_when_the_time_is_over(
    web: Web, operation: Operation, token: dict[str, str]
) -> None:
    began = time.monotonic()
    answer = web.request("GET", path(operation, 0.3), **token)
    assert time.monotonic() - began >= 0.3
    assert (answer.status, answer.json["status"]) == (200, "running")


def test_what_is_refused_or_has_ended_does_not_wait(
    web: Web, operation: Operation, token: dict[str, str]
) -> None:
    """Each would hold the test up for the whole time, and the client gives up before."""
    assert web.request("GET", path(operation, 30)).status == 401
    unknown = "/api/v1/operations/00000000-0000-4000-8000-000000000000?wait=30"
    assert web.request("GET", unknown, **token).status == 404
    for wrong in ("31", "-1", "soon", "nan"):
        answer = web.request("GET", f"/api/v1/operations/{operation.pk}?wait={wrong}", **token)
        assert (answer.status, list(answer.json["errors"])) == (400, ["wait"])
    operations.succeed(operation, {})
    assert web.request("GET", path(operation, 30), **token).json["status"] == "succeeded"
