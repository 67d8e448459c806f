"""A list costs the same number of queries with one row as with twenty."""

from collections.abc import Callable
from typing import Any

import pytest
from pytest_django import DjangoAssertNumQueries
from rest_framework.test import APIClient

from controlplane.accounts.models import Role, User
from jobs.models import Job
from tests import factories
from tests.database.api import whole_jobs
from tests.database.api.conftest import API, client_of

Fill = Callable[[Job, int], Any]


# Path -> what one more row is, queries of the view besides those of the token.
LISTS: dict[str, tuple[Fill, int]] = {
    "jobs": (lambda job, n: factories.checkpoint(factories.job(created_by=job.created_by)), 2),
    "jobs/{job}/attempts": (
        lambda job, n: factories.attempt(job.drivers.get(number=2), 10 + n, workers=2),
        3,
    ),
    "jobs/{job}/drivers": (lambda job, n: factories.driver(job, 10 + n, status="ended"), 2),
    "jobs/{job}/events": (lambda job, n: factories.event(job, n), 2),
    "jobs/{job}/exceptions": (lambda job, n: factories.exception(job, str(n)), 2),
    "jobs/{job}/operations": (lambda job, n: factories.operation(job, job.created_by), 2),
    "jobs/{job}/subtasks": (
        lambda job, n: factories.subtasks(job, parallelism=1, chains=[f"more-{n}"]),
        2,
    ),
    "jobs/{job}/checkpoints": (
        lambda job, n: factories.checkpoint(job, 10 + n, parent=job.checkpoints.get(number=2)),
        2,
    ),
    "jobs/{job}/checkpoints/2/acks": (
        lambda job, n: factories.acknowledge(job.checkpoints.get(number=2), "more", n),
        3,
    ),
    "jobs/{job}/checkpoints/2/channels": (
        lambda job, n: factories.gate_alignment(
            job.checkpoints.get(number=2), "more", n, [0.0, 4.0]
        ),
        3,
    ),
    "checkpoints": (
        lambda job, n: factories.checkpoint(job, 10 + n, parent=job.checkpoints.get(number=2)),
        1,
    ),
    "jobs/{job}/savepoints": (
        lambda job, n: factories.savepoint(job, number=10 + n, by=job.created_by),
        2,
    ),
    "savepoints": (lambda job, n: factories.savepoint(factories.job(), by=job.created_by), 1),
    "operations": (lambda job, n: factories.operation(factories.job(), job.created_by), 1),
    "uploads": (lambda job, n: factories.upload(str(n).encode(), job.created_by), 1),
    "audit": (lambda job, n: factories.audit_entry(), 1),
    "tokens": (lambda job, n: factories.secret_of(factories.user(Role.OPERATOR)), 1),
    "users": (lambda job, n: factories.user(Role.OPERATOR), 1),
    "endpoints": (lambda job, n: factories.endpoint(), 1),
    "deliveries": (lambda job, n: factories.delivery(factories.endpoint()), 1),
    "rules": (lambda job, n: factories.rule(), 2),
    "alerts": (lambda job, n: factories.alert(factories.rule()), 1),
    "silences": (lambda job, n: factories.silence(rule=factories.rule()), 2),
}


@pytest.mark.parametrize("path", LISTS)
def test_queries_do_not_grow_with_the_rows(
    admin: User, path: str, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    fill, count = LISTS[path]
    job = whole_jobs.everything(admin)
    api = client_of(admin)
    api.get(f"{API}me")  # The token's last use is written now, and not again for a minute.
    url = API + path.format(job=job.pk)
    shown = []
    for more in (1, 20):
        for n in range(more):
            fill(job, 100 * more + n)
        with django_assert_num_queries(1 + count):
            shown.append(len(api.get(url).json()["results"]))
    assert shown[1] >= shown[0] + 20


def test_one_job_is_a_fixed_number_of_queries(
    operator: User, api: APIClient, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    job = whole_jobs.everything(operator)
    api.get(f"{API}me")
    with django_assert_num_queries(5):  # Token, job, last checkpoint, newest driver, forks.
        assert api.get(f"{API}jobs/{job.pk}").status_code == 200
