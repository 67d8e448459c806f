"""The verdict on a checkpoint, as the API tells it."""

import pytest
from pytest_django import DjangoAssertNumQueries
from rest_framework.test import APIClient

from checkpoints.verdict import queries
from controlplane.accounts.models import User
from frontend.base import verdict_cache as pages
from jobs.models import Job
from tests import factories
from tests.database.api import whole_jobs
from tests.database.api.conftest import API


@pytest.fixture
def job(operator: User) -> Job:
    """A job whose third checkpoint waited for a channel."""
    job = factories.job(created_by=operator)
    whole_jobs.planned(job)
    factories.attempt(factories.driver(job), workers=2)
    checkpoint = factories.checkpoint(job, 3, duration_ms=5_030)
    for chain in ("source", "totals"):
        for index in range(2):
            aligned_ms = 5_000.0 if (chain, index) == ("totals", 0) else 1.0
            factories.acknowledge(checkpoint, chain, index, alignment_ms=aligned_ms)
    for index, last_ms in enumerate((5_000.0, 1.0)):
        factories.gate_alignment(
            checkpoint,
            "totals",
            index,
            [0.0, last_ms],
            upstream="source",
            bytes_during=[0, 0],
        )
    return job


def test_a_late_channel_is_named_with_the_words_of_the_pages(api: APIClient, job: Job) -> None:
    answer = api.get(f"{API}jobs/{job.pk}/checkpoints/3/verdict")
    assert answer.status_code == 200
    verdict = answer.json()
    assert verdict["tone"] == "warn"
    assert verdict["headline"] == (
        "The channel source-1 → totals-0 held the barrier: it came 5.00 s after the first one."
    )
    assert verdict["channel"] == {
        "sender": "source-1",
        "receiver": "totals-0",
        "text": "5.00 s after the first one",
    }
    assert verdict["cause"] == "channel"
    assert verdict["culprits"] == ["source-1", "totals-0"]
    checkpoint = job.checkpoints.get(number=3)
    assert verdict | {"diagnosis": None} == pages.cached_verdict(checkpoint)
    assert verdict["headline"] == queries.of_checkpoint(checkpoint).headline


def test_a_checkpoint_that_never_was_has_none(api: APIClient, job: Job) -> None:
    answer = api.get(f"{API}jobs/{job.pk}/checkpoints/99/verdict")
    assert answer.status_code == 404


def test_queries_do_not_grow_with_the_checkpoint(
    api: APIClient, job: Job, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    api.get(f"{API}me")  # The token's last use is written now, and not again for a minute.
    checkpoint = job.checkpoints.get(number=3)
    for more in (0, 20):
        for index in range(2, 2 + more):
            factories.acknowledge(checkpoint, "totals", index)
            factories.gate_alignment(checkpoint, "totals", index, [0.0, 4.0], upstream="source")
        with django_assert_num_queries(3 + 9):  # Token, job, checkpoint; then the verdict's.
            assert api.get(f"{API}jobs/{job.pk}/checkpoints/3/verdict").status_code == 200
