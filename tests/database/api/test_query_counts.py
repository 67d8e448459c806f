"""A list costs the same number of queries with one row as with twenty."""

from collections.abc import Callable
from typing import Any

import pytest
from pytest_django import DjangoAssertNumQueries
from rest_framework.test import APIClient

from controlplane.accounts.models import User
from jobs.models import Job, JobException
from tests.database.api import rows
from tests.database.api.conftest import API, client_of

Fill = Callable[[Job, int], Any]


def _exception(job: Job, n: int) -> None:
    JobException.objects.create(job=job, at=job.created_at, kind="driver", text=str(n))


# Path -> what one more row is, queries of the view besides those of the token.
LISTS: dict[str, tuple[Fill, int]] = {
    "jobs": (lambda job, n: rows.checkpoint(rows.job(created_by=job.created_by)), 2),
    "jobs/{job}/attempts": (lambda job, n: rows.attempt(job.drivers.get(number=2), 10 + n), 3),
    "jobs/{job}/drivers": (lambda job, n: rows.driver(job, 10 + n, status="ended"), 2),
    "jobs/{job}/exceptions": (_exception, 2),
    "jobs/{job}/operations": (lambda job, n: rows.operation(job, job.created_by), 2),
    "jobs/{job}/subtasks": (
        lambda job, n: job.subtasks.create(
            chain="more", index=n, attempt=1, updated_at=job.created_at
        ),
        2,
    ),
    "jobs/{job}/checkpoints": (
        lambda job, n: rows.checkpoint(job, 10 + n, parent=job.checkpoints.get(number=2)),
        2,
    ),
    "jobs/{job}/checkpoints/2/acks": (
        lambda job, n: rows.ack(job.checkpoints.get(number=2), "more", n),
        3,
    ),
    "jobs/{job}/checkpoints/2/channels": (
        lambda job, n: rows.alignment(job.checkpoints.get(number=2), "more", n),
        3,
    ),
    "checkpoints": (
        lambda job, n: rows.checkpoint(job, 10 + n, parent=job.checkpoints.get(number=2)),
        1,
    ),
    "jobs/{job}/savepoints": (
        lambda job, n: rows.savepoint(job, 10 + n, created_by=job.created_by),
        2,
    ),
    "savepoints": (lambda job, n: rows.savepoint(rows.job(), created_by=job.created_by), 1),
    "operations": (lambda job, n: rows.operation(rows.job(), job.created_by), 1),
    "uploads": (lambda job, n: rows.upload(str(n).encode(), job.created_by), 1),
    "audit": (lambda job, n: rows.user(), 1),
    "tokens": (lambda job, n: rows.secret_of(rows.user()), 1),
    "users": (lambda job, n: rows.user(), 1),
}


@pytest.mark.parametrize("path", LISTS)
def test_queries_do_not_grow_with_the_rows(
    admin: User, path: str, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    fill, count = LISTS[path]
    job = rows.everything(admin)
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
    job = rows.everything(operator)
    api.get(f"{API}me")
    with django_assert_num_queries(5):  # Token, job, last checkpoint, newest driver, forks.
        assert api.get(f"{API}jobs/{job.pk}").status_code == 200
