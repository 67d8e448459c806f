"""The audit log's pages, and what they make of an entry."""

import re
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from controlplane.accounts.models import Role
from controlplane.audit.models import record
from controlplane.base import clock
from controlplane.base.rest.pagination import PAGE_SIZE
from frontend.about import audit_changes
from frontend.about.audit_changes import Change
from frontend.about.audit_log import ACTIONS
from jobs.redaction import HIDDEN
from tests import factories
from tests.database.frontend import flights

SCRIPT = "<script>alert(1)</script>"


def text_of(page: str) -> str:
    """The text of the table's rows."""
    body = page[page.index("<tbody>") :] if "<tbody>" in page else ""
    return " ".join(re.sub(r"<[^>]+>", " ", body).split())


@pytest.fixture
def admin(db: None) -> Client:
    client = Client()
    client.force_login(factories.user(Role.ADMIN))
    return client


# What changed ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after", "changes"),
    [
        (None, None, []),
        ({"a": 1}, {"a": 1}, []),
        ({"a": "x", "b": 1}, {"a": "y", "b": 1}, [Change("a", "x", "y")]),
        (None, {"a": "x", "b": "", "c": None, "d": {}}, [Change("a", None, "x")]),
        ({"a": "x"}, None, [Change("a", "x", None)]),
        (
            {"labels": {"team": "a", "on": True}},
            {"labels": {"team": "b", "on": True}, "n": [1, 2]},
            [Change("labels.team", "a", "b"), Change("n", None, "[1, 2]")],
        ),
        ({"on": False}, {"on": True}, [Change("on", "false", "true")]),
        (
            {"spark_conf": {"spark.app.password": "old"}},
            {"spark_conf": {"spark.app.password": "new"}},
            [Change("spark_conf.spark.app.password", HIDDEN, HIDDEN)],
        ),
        (None, {"storage": "s3://me:pw@bucket/a"}, [Change("storage", None, f"s3://{HIDDEN}@bucket/a")]),
    ],
)  # fmt: skip
def test_changes_are_the_values_that_differ(
    before: dict[str, Any] | None, after: dict[str, Any] | None, changes: list[Change]
) -> None:
    assert audit_changes.list_changes(before, after) == changes


def test_changes_are_bounded() -> None:
    changes = audit_changes.list_changes(None, {f"n{n}": "x" * 10_000 for n in range(1_000)})
    assert len(changes) == audit_changes.CHANGES_MAX
    assert {len(change.after or "") for change in changes} == {audit_changes.VALUE_CHARACTERS_MAX}


# Who may ---------------------------------------------------------------------------------------


def test_only_admins_see_it(
    client: Client, viewer: Client, operator: Client, admin: Client
) -> None:
    job = flights.running()
    for address in ("/audit/", f"/jobs/{job.pk}/audit/"):
        assert client.get(address)["Location"] == f"/login/?next={address}"
        for browser in (viewer, operator):
            assert browser.get(address).status_code == 403
            assert f'href="{address}"' not in browser.get(f"/jobs/{job.pk}/").content.decode()
        assert admin.get(address).status_code == 200
        assert f'href="{address}"' in admin.get(f"/jobs/{job.pk}/").content.decode()
    assert admin.get("/jobs/none/audit/").status_code == 404


# The page --------------------------------------------------------------------------------------


def test_an_entry_says_who_did_what_to_what_from_where(admin: Client) -> None:
    job = flights.running()
    mara = factories.user(Role.OPERATOR, "mara")
    factories.audit_entry(
        target=f"job/{job.pk}",
        actor=mara,
        before={"desired": "running"},
        after={"desired": "canceled"},
        address="192.0.2.7",
        request_id="abc",
    )
    record(None, "driver.lost", "job/gone")
    page = admin.get("/audit/").content.decode()
    said = text_of(page)
    assert "mara Requested to cancel the job job.cancel" in said
    assert "desired running → became canceled 192.0.2.7" in said
    assert f'<a href="/jobs/{job.pk}/" title="job/{job.pk}">job/{job.pk}</a>' in page
    assert "control plane Lost its driver driver.lost job/gone –" in said
    assert "/jobs/gone/" not in page


def test_an_empty_log_and_an_empty_answer_say_so(admin: Client) -> None:
    assert "No entries yet" in admin.get("/audit/").content.decode()
    assert "No matching entries" in admin.get("/audit/?actor=stranger").content.decode()


def test_filters_narrow_it_and_stay_filled_in(admin: Client) -> None:
    now = clock.now()
    factories.audit_entry("job.cancel", "job/a", actor_name="mara", at=now - timedelta(days=3))
    factories.audit_entry("job.restart", "job/b", actor_name="mara")
    factories.audit_entry("user.create", "user/job.", actor_name="root")

    def shown(**query: str) -> set[str]:
        page = admin.get("/audit/", query).content.decode()
        for value in query.values():
            assert f'value="{value}"' in page
        return set(re.findall(r"job/a|job/b|user/job\.", text_of(page)))

    assert shown() == {"job/a", "job/b", "user/job."}
    assert shown(actor="mara") == {"job/a", "job/b"}
    assert shown(actor="mar") == set()
    assert shown(action="job.") == {"job/a", "job/b"}
    assert shown(target="job/b") == {"job/b"}
    assert shown(after=(now - timedelta(days=1)).strftime("%Y-%m-%dT%H:%M")) == {
        "job/b",
        "user/job.",
    }
    assert shown(before=(now - timedelta(days=1)).strftime("%Y-%m-%dT%H:%M:%S")) == {"job/a"}
    assert shown(action="user.", actor="mara") == set()


def test_what_is_no_time_is_said(admin: Client) -> None:
    factories.audit_entry()
    page = admin.get("/audit/?after=yesterday").content.decode()
    assert 'role="alert" id="audit-errors"' in page
    assert "mara" not in text_of(page)


def test_pages_go_on_after_the_last_entry_with_new_ones_in_between(admin: Client) -> None:
    for n in range(PAGE_SIZE + 20):
        factories.audit_entry(target=f"job/{n:03}", actor_name="mara")
    factories.audit_entry(actor_name="root")

    def targets(page: str) -> list[str]:
        return re.findall(r"job/(\d{3})", text_of(page))

    first = admin.get("/audit/?actor=mara").content.decode()
    assert targets(first) == [f"{n:03}" for n in range(PAGE_SIZE + 19, 19, -1)]
    older = re.search(r'rel="next" href="([^"]+)"', first)
    assert older is not None
    factories.audit_entry(target="job/999", actor_name="mara")
    second = admin.get(older[1].replace("&amp;", "&")).content.decode()
    assert targets(second) == [f"{n:03}" for n in range(19, -1, -1)]
    assert 'rel="next"' not in second
    newer = re.search(r'rel="prev" href="([^"]+)"', second)
    assert newer is not None
    assert targets(admin.get(newer[1].replace("&amp;", "&")).content.decode()) == targets(first)


@pytest.mark.parametrize(
    "query", ["cursor=nonsense", "cursor=W10", "ordering=actor", "page_size=-1"]
)
def test_a_link_that_leads_nowhere_leads_to_the_newest_entries(admin: Client, query: str) -> None:
    factories.audit_entry()
    page = admin.get(f"/audit/?actor=mara&{query}")
    assert page.status_code == 200
    assert "That link does not fit these filters" in page.content.decode()
    assert "mara" in text_of(page.content.decode())


def test_a_job_s_log_is_about_it_and_its_savepoints(admin: Client) -> None:
    job, other = flights.running(), flights.running("other")
    savepoint = factories.savepoint(job, "mine", 1)
    foreign = factories.savepoint(other, "theirs", 1)
    for target in (
        f"job/{job.pk}", f"savepoint/{savepoint.pk}", f"job/{other.pk}", f"savepoint/{foreign.pk}",
        f"job/{job.pk}0",
    ):  # fmt: skip
        factories.audit_entry(target=target)
    page = admin.get(f"/jobs/{job.pk}/audit/").content.decode()
    assert re.findall(r'href="([^"]+)" title="([^"]+)">([^<]+)', page) == [
        (
            f"/jobs/{job.pk}/savepoints/",
            f"savepoint/{savepoint.pk}",
            f"savepoint mine of {job.pk}",
        ),
        (f"/jobs/{job.pk}/", f"job/{job.pk}", f"job/{job.pk}"),
    ]


def test_the_number_of_queries_is_fixed(admin: Client) -> None:
    job = flights.running()
    asked = []
    for more in (1, 30):
        for n in range(more):
            factories.audit_entry(target=f"job/{job.pk}")
            factories.audit_entry(
                target=f"savepoint/{factories.savepoint(job, f's-{more}-{n}', 100 * more + n).pk}"
            )
        with CaptureQueriesContext(connection) as queries:
            admin.get("/audit/")
            admin.get(f"/jobs/{job.pk}/audit/")
        asked.append(len(queries))
    assert asked[0] == asked[1]


def test_text_of_others_is_escaped(admin: Client) -> None:
    factories.user(name=SCRIPT)
    factories.audit_entry(
        SCRIPT, f"job/{SCRIPT}", actor_name=SCRIPT, before={SCRIPT: SCRIPT}, after={"a": SCRIPT}
    )
    for query in ({}, {"actor": SCRIPT, "action": SCRIPT, "target": SCRIPT, "after": SCRIPT}):
        page = admin.get("/audit/", query).content.decode()
        assert SCRIPT not in page
        assert "&lt;script&gt;" in page


def test_values_that_are_no_objects_are_shown_all_the_same(admin: Client) -> None:
    factories.audit_entry(before=3, after=["x"])
    assert "value 3 → became [&quot;x&quot;]" in text_of(admin.get("/audit/").content.decode())


def test_every_action_is_named_as_it_is_recorded() -> None:
    assert all(re.fullmatch(r"[a-z]+\.[a-z_]+", action) for action in ACTIONS)
