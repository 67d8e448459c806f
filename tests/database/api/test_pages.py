"""Pages by position: complete, in order, even if rows are added meanwhile."""

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone
from rest_framework.test import APIClient

from controlplane.base.rest.pagination import PAGE_SIZE, PAGE_SIZE_MAX, Cursor
from jobs.models import Job
from tests import factories
from tests.database.api.conftest import API


def pages(api: APIClient, url: str, link: str = "next") -> list[list[Any]]:
    """The pages from ``url`` on, following links."""
    listed = []
    next_url: str | None = url
    while next_url is not None:
        answer = api.get(next_url)
        assert answer.status_code == 200, answer.content
        listed.append(answer.json()["results"])
        next_url = answer.json()[link]
    return listed


def ids(listed: list[list[Any]], name: str = "id") -> list[Any]:
    return [row[name] for page in listed for row in page]


@pytest.mark.parametrize("ordering", ["created_at", "-created_at", "id", "-id"])
def test_pages_are_the_whole_list_in_order(api: APIClient, ordering: str) -> None:
    """Half of the jobs were created in the same microsecond."""
    now = timezone.now()
    for n in range(13):
        factories.job(created_at=now if n % 2 else now + timedelta(seconds=n))

    listed = pages(api, f"{API}jobs?page_size=3&ordering={ordering}")

    column = ordering.lstrip("-")
    wanted = sorted(
        Job.objects.all(),
        key=lambda job: (getattr(job, column), job.pk),
        reverse=ordering.startswith("-"),
    )
    assert ids(listed) == [job.pk for job in wanted]
    assert [len(page) for page in listed] == [3, 3, 3, 3, 1]


def test_pages_backwards_are_the_same_pages(api: APIClient) -> None:
    now = timezone.now()
    for _ in range(8):
        factories.job(created_at=now)
    forwards = pages(api, f"{API}jobs?page_size=3")
    last = f"{API}jobs?page_size=3"
    while (following := api.get(last).json()["next"]) is not None:
        last = following

    backwards = pages(api, last, "previous")

    assert [sorted(ids([page])) for page in backwards] == [
        sorted(ids([page])) for page in reversed(forwards)
    ]
    assert backwards == list(reversed(forwards))


def test_rows_added_while_paging_move_nothing(api: APIClient) -> None:
    """Newest first: a job that comes in front shifts no page; an offset would repeat a row."""
    jobs = [factories.job(created_at=timezone.now() - timedelta(hours=n)) for n in range(9)]
    seen = []
    url: str | None = f"{API}jobs?page_size=2"
    while url is not None:
        answer = api.get(url).json()
        seen += [row["id"] for row in answer["results"]]
        url = answer["next"]
        factories.job("late", created_at=timezone.now())

    assert seen == [job.pk for job in jobs]


def test_rows_that_go_while_paging_skip_no_other(api: APIClient) -> None:
    jobs = [factories.job(created_at=timezone.now() - timedelta(hours=n)) for n in range(6)]
    first = api.get(f"{API}jobs?page_size=2").json()
    jobs[0].delete()
    jobs[1].delete()

    assert ids(pages(api, first["next"])) == [job.pk for job in jobs[2:]]


def test_filters_stay_on_all_pages(api: APIClient) -> None:
    for n in range(5):
        factories.job("failed", status="failed", ended_at=timezone.now())
        factories.job(f"fine-{n}")

    listed = pages(api, f"{API}jobs?page_size=2&status=failed")

    assert [row["status"] for page in listed for row in page] == ["failed"] * 5


def test_page_sizes(api: APIClient) -> None:
    for _ in range(PAGE_SIZE_MAX + 1):
        factories.job()
    assert len(api.get(f"{API}jobs").json()["results"]) == PAGE_SIZE
    most = api.get(f"{API}jobs?page_size={PAGE_SIZE_MAX}").json()
    assert len(most["results"]) == PAGE_SIZE_MAX
    assert most["next"] is not None


@pytest.mark.parametrize("size", ["", "0", "-1", "201", "many", "1.5", "٣", "9" * 40])
def test_a_page_size_out_of_bounds_is_refused(api: APIClient, size: str) -> None:
    answer = api.get(f"{API}jobs", {"page_size": size})
    assert answer.status_code == 400
    assert list(answer.json()["errors"]) == ["page_size"]


@pytest.mark.parametrize(
    "cursor",
    [
        "garbage",
        "%00",
        "x" * 5_000,
        Cursor("-created_at", ("not a time", "job")).encode(),
        Cursor("-created_at", ("2026-01-01T00:00:00", "job")).encode(),  # In which zone?
        Cursor("-created_at", ("2026-01-01T00:00:00Z", "job\0")).encode(),
        Cursor("-created_at", ("2026-01-01T00:00:00Z", {"a": 1})).encode(),
        Cursor("-created_at", ("2026-01-01T00:00:00Z",)).encode(),
        Cursor("-created_at", (None, "job")).encode(),
        Cursor("id", ("job",)).encode(),  # Of another ordering.
        Cursor("-created_at", (10**400, "job")).encode(),
    ],
)
def test_a_cursor_that_makes_no_sense_is_refused(api: APIClient, cursor: str) -> None:
    answer = api.get(f"{API}jobs", {"cursor": cursor})
    assert answer.status_code == 400, answer.content
    assert list(answer.json()["errors"]) == ["cursor"]


@pytest.mark.parametrize("ordering", ["name", "created_by__password", "", "--id", "created_at,id"])
def test_only_indexed_columns_order(api: APIClient, ordering: str) -> None:
    answer = api.get(f"{API}jobs", {"ordering": ordering})
    assert answer.status_code == 400
    assert "created_at" in answer.json()["errors"]["ordering"][0]


@pytest.mark.parametrize(
    ("ordering", "key"),
    [
        ("place", lambda c: (c["operator"], c["index"], c["gate"], c["channel"])),
        ("blocked_ms", lambda c: (c["blocked_ms"], c["operator"], c["index"])),
        ("arrived_ms", lambda c: (-1 if c["arrived_ms"] is None else c["arrived_ms"],)),
        ("in_flight_bytes", lambda c: (c["in_flight_bytes"], c["operator"], c["index"])),
    ],
)
def test_channels_are_paged_one_by_one(api: APIClient, ordering: str, key: Any) -> None:
    """Stored as one row per gate; pages cut through the rows."""
    job = factories.job()
    checkpoint = factories.checkpoint(job)
    factories.gate_alignment(factories.checkpoint(job, 2), "other", 0, [0.0, 4.0])
    for index in range(3):
        for gate in range(2):
            arrived = (float(index), 7.0 + gate, None, 2.0, 2.0)
            in_flight = [0, 2**40, 7, index, 0] if gate else None
            factories.gate_alignment(
                checkpoint, "totals", index, arrived, gate=gate, in_flight=in_flight
            )
    url = f"{API}jobs/{job.pk}/checkpoints/1/channels?page_size=4&ordering="

    up = [row for page in pages(api, url + ordering) for row in page]
    down = [row for page in pages(api, url + "-" + ordering) for row in page]

    assert len(up) == 3 * 2 * 5
    assert len({(c["index"], c["gate"], c["channel"]) for c in up}) == len(up)
    assert [key(c) for c in up] == sorted(key(c) for c in up)
    assert up == list(reversed(down))
