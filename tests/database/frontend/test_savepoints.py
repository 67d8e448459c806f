"""The page of a job's savepoints, and the tree of what was restored from what."""

import re
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from checkpoints.models import Checkpoint, Savepoint
from controlplane.base import clock
from frontend.savepoints import tree_queries, tree_rows
from jobs.models import Attempt, Job
from tests import factories
from tests.database.frontend import flights, rows_recovery
from tests.database.frontend.reading import words
from weir.protocol.lifecycle import CheckpointStatus

pytestmark = pytest.mark.django_db
SCRIPT = "<script>alert(1)</script>"


@pytest.fixture
def job(db: None) -> Job:
    return flights.running()


def address(job: Job, more: str = "") -> str:
    return f"/jobs/{job.pk}/savepoints/{more}"


def listed(client: Client, job: Job, **wanted: str) -> list[str]:
    entries = client.get(address(job, "data"), wanted).json()["savepoints"]
    return [one["name"] for one in entries]


# The list -----------------------------------------------------------------------------------------


def test_every_role_that_may_look_sees_it(client: Client, viewer: Client, job: Job) -> None:
    for more in ("", "data", "lineage"):
        assert client.get(address(job, more)).status_code == 302
        assert viewer.get(address(job, more)).status_code == 200
        assert viewer.get(f"/jobs/none/savepoints/{more}").status_code == 404


def test_without_a_savepoint_the_page_says_what_one_is(viewer: Client, job: Job) -> None:
    page = words(viewer.get(address(job)))
    assert "No savepoint yet. A savepoint is a checkpoint with a name" in page
    assert "Find by name" not in page


def test_a_savepoint_says_what_it_is_where_it_lies_and_who_needs_it(
    viewer: Client, job: Job
) -> None:
    by = factories.user(name="ada")
    made = factories.savepoint(
        job, "first", 20, by=by, note="before the upgrade", labels={"env": "prod"}
    )
    factories.job("fork", restore_uri=made.location, restore_job=job, restore_number=20)
    (savepoint,) = viewer.get(address(job, "data")).json()["savepoints"]
    assert (savepoint["checkpoint"], savepoint["size"], savepoint["took"]) == (
        "checkpoint 20",
        "1.24 MB",
        "212 ms",
    )
    assert savepoint["checkpoint_url"] == f"/jobs/{job.pk}/checkpoints/20/"
    assert savepoint["event_time"] == "2025-01-01 03:00:00 UTC"
    assert savepoint["needed_by"].endswith("until it has a checkpoint of its own from there")
    page = words(viewer.get(address(job)))
    for said in ("by ada", "before the upgrade", "env: prod", made.location, "In use: fork-"):
        assert said in page


def test_a_savepoint_that_cannot_be_deleted_says_why(viewer: Client, job: Job) -> None:
    made = factories.savepoint(job, "first", 20)
    (savepoint,) = viewer.get(address(job, "data")).json()["savepoints"]
    assert savepoint["problem"] == ""
    Savepoint.objects.update(deleted_at=clock.now())
    assert made.checkpoint is not None
    made.checkpoint.discard_error = "the bucket is away\nat line 7"
    made.checkpoint.save()
    (savepoint,) = viewer.get(address(job, "data")).json()["savepoints"]
    assert savepoint["problem"] == "the bucket is away"
    page = words(viewer.get(address(job)))
    assert "cannot be deleted so far, and are tried again: the bucket is away" in page


def test_buttons_are_for_who_may_act(viewer: Client, operator: Client, job: Job) -> None:
    made = factories.savepoint(job, "first", 20)
    acts = [
        f"/jobs/{job.pk}/{name}"
        for name in ("savepoint", "rollback", "fork", "rescale", "preview", "compare")
    ]
    acts += [f"/jobs/{job.pk}/savepoints/{made.pk}/{name}" for name in ("describe", "delete")]
    acts.append(f"/jobs/{job.pk}/rollback?savepoint={made.pk}")
    seen = viewer.get(address(job)).content.decode()
    offered = operator.get(address(job)).content.decode()
    for act in acts:
        assert f'"{act}"' not in seen, act
        assert f'"{act}"' in offered, act
    assert "/rollback" not in viewer.get(address(job, "lineage")).content.decode()
    assert "/rollback" in operator.get(address(job, "lineage")).content.decode()


def test_a_button_that_cannot_be_pressed_says_why(operator: Client, job: Job) -> None:
    factories.operation(job, None, "rescale", "running")
    page = operator.get(address(job))
    assert "Rescale under way: wait for its end." in words(page)
    assert re.search(r'action="[^"]*/savepoint"><button[^>]* disabled', page.content.decode())


def test_a_savepoint_that_is_being_taken_counts_its_acknowledgements(
    viewer: Client, job: Job
) -> None:
    asked = factories.operation(job, None, "savepoint", "running")
    factories.savepoint(job, "waits", None, operation=asked)
    made = factories.savepoint(job, "first", 20, status=CheckpointStatus.PENDING)
    factories.acknowledge_chain(made.checkpoint, "hourly", 0)
    entries = {one["name"]: one for one in viewer.get(address(job, "data")).json()["savepoints"]}
    assert entries["waits"]["progress"] is None
    assert entries["waits"]["status"]["text"] == "Requested"
    assert entries["first"]["progress"] == {
        "value": 4,
        "most": 18,
        "text": "4 of 18 subtasks acknowledged",
    }
    assert entries["first"]["restore"] == entries["first"]["delete"] == ""


@pytest.mark.parametrize(
    ("wanted", "names"),
    [
        ("", ["other", "nightly-2", "nightly-1"]),
        ("NIGHTLY", ["nightly-2", "nightly-1"]),
        ("env: prod", ["nightly-1"]),
        ("env", ["nightly-2", "nightly-1"]),
        ("upgrade", ["other"]),
        ("%", []),
        ("env: ", ["nightly-2", "nightly-1"]),
        ("\0nightly-1", ["nightly-1"]),
        ("nothing", []),
    ],
)
def test_savepoints_are_found_by_name_note_and_label(
    viewer: Client, job: Job, wanted: str, names: list[str]
) -> None:
    now = clock.now()
    for at, (name, labels, note) in enumerate(
        (
            ("nightly-1", {"env": "prod"}, ""),
            ("nightly-2", {"env": "test"}, ""),
            ("other", {}, "before the upgrade"),
        )
    ):
        made = factories.savepoint(job, name, 20 + at, labels=labels, note=note)
        made.created_at = now + timedelta(seconds=at)
        made.save()
    assert listed(viewer, job, wanted=wanted) == names
    if not names:
        page = words(viewer.get(address(job), {"wanted": wanted}))
        assert f"No savepoint of this job matches “{wanted}”." in page
        assert "Show all" in page


def test_many_savepoints_come_page_by_page(viewer: Client, job: Job) -> None:
    for number in range(1, 31):
        factories.savepoint(job, f"nightly-{number}", number)
    assert len(listed(viewer, job)) == 25
    assert listed(viewer, job, page="2") == [f"nightly-{number}" for number in (5, 4, 3, 2, 1)]
    assert listed(viewer, job, page="9") == listed(viewer, job, page="2")
    page = viewer.get(address(job), {"wanted": "nightly"})
    assert "30 savepoints" in words(page)
    assert 'href="?wanted=nightly&amp;page=2"' in page.content.decode()


def test_words_of_others_are_text(operator: Client, job: Job) -> None:
    factories.savepoint(job, "first", 20, note=SCRIPT, labels={SCRIPT: SCRIPT})
    factories.job(SCRIPT, origin=job, id="fork-1", origin_uri=f"/s/{SCRIPT}")
    page = operator.get(address(job), {"wanted": SCRIPT})
    assert SCRIPT not in page.content.decode()
    assert SCRIPT in words(page)


def test_what_has_not_changed_is_not_sent_again(viewer: Client, job: Job) -> None:
    made = factories.savepoint(job, "first", 20)
    for more in ("data", "lineage"):
        etag = viewer.get(address(job, more))["ETag"]
        known = {"If-None-Match": etag}
        assert viewer.get(address(job, more), headers=known).status_code == 304
        made.name = f"{made.name}-again"
        made.save()
        again = viewer.get(address(job, more), headers=known)
        assert again.status_code == 200
        assert made.name in again.content.decode()


def test_queries_do_not_grow_with_what_there_is(viewer: Client, job: Job) -> None:
    def count() -> int:
        with CaptureQueriesContext(
            connection,
        ) as captured:
            viewer.get(address(job))
        return len(captured)

    eventful(job)
    factories.savepoint(job, "first", 90)
    few = count()
    for number in range(100, 130):
        factories.savepoint(job, f"nightly-{number}", number)
        factories.job(f"fork-{number}", origin=job, restore_job=job, restore_number=number)
    assert count() == few + 1 <= 20  # How many forks are not drawn is counted.


# The tree -----------------------------------------------------------------------------------------


def taken(job: Job, attempt: int, numbers: range, **columns: Any) -> None:
    now = clock.now()
    Checkpoint.objects.bulk_create(
        Checkpoint(
            **{
                "job": job,
                "number": number,
                "attempt": attempt,
                "kind": "checkpoint",
                "status": CheckpointStatus.SUBSUMED,
                "triggered_at": now,
                "settled_at": now,
                "duration_ms": 200,
                "subtask_count": 18,
                "acknowledged_count": 18,
                **columns,
            }
        )
        for number in numbers
    )


def eventful(job: Job) -> None:
    """Gone back from 60 to 20, and on from there; a fork of 10."""
    Attempt.objects.filter(job=job).delete()
    job.drivers.all().delete()
    rows_recovery.eventful(job)
    Attempt.objects.filter(job=job, number=2).update(restored_checkpoint=30)
    Attempt.objects.filter(job=job, number=3).update(restored_checkpoint=50)
    Attempt.objects.filter(job=job, number=4).update(restored_checkpoint=20)
    taken(job, 1, range(1, 31))
    taken(job, 2, range(31, 51))
    taken(job, 3, range(51, 61))
    taken(job, 4, range(61, 71))
    Checkpoint.objects.filter(number__in=(20, 70)).update(status=CheckpointStatus.COMPLETED)


def tree(job: Job) -> tree_rows.Tree:
    job.refresh_from_db()
    drawn = tree_rows.build_tree(job)
    assert drawn is not None
    return drawn


def told(job: Job) -> list[str]:
    return [" ".join([*item.names, item.text, *item.tags]) for item in tree(job).items]


def test_the_tree_says_what_was_restored_from_what(job: Job) -> None:
    eventful(job)
    assert told(job) == [
        "The beginning: empty state",
        "19 more checkpoints",
        "Checkpoint 20",
        "39 more checkpoints",
        "Checkpoint 60 left behind",
        "Attempt 4 restored checkpoint 20",
        "9 more checkpoints",
        "Checkpoint 70 newest",
    ]
    went_back = tree(job).items[5]
    assert went_back.more == rows_recovery.ROLLED_BACK
    assert went_back.url == f"/jobs/{job.pk}/recovery/?attempt=4#attempt-4"


def test_what_is_left_behind_is_drawn_beside_the_line_and_said(viewer: Client, job: Job) -> None:
    eventful(job)
    drawn = tree(job)
    by_text = {item.text: item for item in drawn.items}
    left, line = by_text["Checkpoint 60"], by_text["Checkpoint 20"]
    assert left.x > line.x == by_text["Checkpoint 70"].x
    assert left.dot == "point left gone"
    assert [curve.kind for curve in line.curves] == ["left"]
    page = viewer.get(address(job, "lineage")).content.decode()
    assert page.count("<circle") == 5
    assert "style=" not in page
    assert 'aria-hidden="true"' in page


def test_savepoints_and_forks_are_named_points(job: Job) -> None:
    eventful(job)
    factories.savepoint(job, "first", 71, status=CheckpointStatus.COMPLETED)
    Checkpoint.objects.filter(number=71).update(attempt=4)
    fork = factories.job("trial", origin=job, origin_uri="/s/chk-10", restore_number=10)
    assert told(job)[-2:] == ["Checkpoint 70 newest", "first Checkpoint 71"]
    by_text = {item.text: item for item in tree(job).items}
    at = told(job).index("Checkpoint 10")
    assert told(job)[at + 1] == "trial fork"
    assert by_text["trial"].url == f"/jobs/{fork.pk}/savepoints/"
    assert by_text["trial"].more == f"{fork.pk}, restored from chk-10"
    assert [curve.kind for curve in by_text["Checkpoint 10"].curves] == ["fork"]


def test_a_fork_begins_with_its_origin(job: Job) -> None:
    fork = factories.job("trial", origin=job, origin_uri="/s/chk-10")
    factories.attempt(factories.driver(fork), restored_checkpoint=10)
    taken(fork, 1, range(11, 14))
    start, *_ = tree(fork).items
    assert (start.text, start.tags) == (f"Checkpoint 10 of {job.pk}", ["forked from"])
    assert start.url == f"/jobs/{job.pk}/savepoints/"
    assert told(fork)[1:] == ["2 more checkpoints", "Checkpoint 13 newest"]


def test_where_the_job_goes_on_next_is_marked(job: Job) -> None:
    eventful(job)
    job.restore_uri, job.restore_job, job.restore_number = "/s/chk-40", job, 40
    job.save()
    assert "Checkpoint 40 restored next left behind" in told(job)


def test_only_what_is_kept_can_be_gone_back_to(job: Job) -> None:
    eventful(job)
    links = {item.text: item.links for item in tree(job).items}
    assert links["Checkpoint 60"] == []
    assert ("Roll back here", f"/jobs/{job.pk}/rollback?checkpoint=20") in links["Checkpoint 20"]


def test_files_are_said_to_be_deleted_once_they_are(job: Job) -> None:
    eventful(job)

    def said() -> str:
        return next(item.more for item in tree(job).items if item.text == "Checkpoint 60")

    Checkpoint.objects.update(discarded_at=None)
    assert said() == "no longer kept"
    Checkpoint.objects.update(discarded_at=clock.now())
    assert said() == "files deleted"


def test_before_the_first_attempt_there_is_no_tree(viewer: Client) -> None:
    assert tree_rows.build_tree(factories.job("new")) is None


def test_failed_checkpoints_are_not_counted(job: Job) -> None:
    eventful(job)
    Checkpoint.objects.filter(number__in=(5, 6)).update(status=CheckpointStatus.FAILED)
    assert told(job)[1] == "17 more checkpoints"


def test_what_completed_is_counted_in_each_span(job: Job) -> None:
    taken(job, 1, range(1, 31))
    assert tree_queries.count_in(job, [(1, 10), (11, 11), (21, 40)]) == [10, 1, 10]
    assert tree_queries.count_in(job, []) == []


def test_a_job_with_many_checkpoints_is_a_handful_of_rows(job: Job) -> None:
    taken(job, 1, range(1, 5_001))
    assert told(job) == [
        "The beginning: empty state",
        "4,999 more checkpoints",
        "Checkpoint 5,000 newest",
    ]


def test_a_gap_of_a_hundred_thousand_is_bounded_and_not_counted(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    eventful(job)
    monkeypatch.setattr(tree_rows, "COUNTED_MAX", 30)
    Checkpoint.objects.filter(number__in=(5, 30)).update(status=CheckpointStatus.FAILED)
    assert [text for text in told(job) if "more" in text] == [
        "18 more checkpoints",
        "Up to 39 more checkpoints, failed ones included",
        "9 more checkpoints",
    ]


def test_of_hundreds_of_rollbacks_the_newest_are_drawn(viewer: Client, job: Job) -> None:
    eventful(job)
    driver = job.drivers.latest("number")
    for attempt in range(5, 305):
        factories.attempt(driver, attempt, restored_checkpoint=20)
        taken(job, attempt, range(10 * attempt + 50, 10 * attempt + 55))
    items = tree(job).items
    assert len(items) <= tree_rows.ROWS_MAX + 1
    assert items[0].kind == "cut"
    assert int(items[0].text.split()[0]) > 400
    assert "newest" in items[-1].tags
    assert len(viewer.get(address(job)).content) < 150_000
