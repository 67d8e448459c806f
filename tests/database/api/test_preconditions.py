"""``ETag`` and ``If-Match``: no change is made to another version than its sender has seen."""

from collections.abc import Callable
from typing import Any

import pytest
from pytest_django import Settings
from rest_framework.test import APIClient

from controlplane.accounts.models import User
from controlplane.audit.models import AuditEntry
from controlplane.secrets import services as secrets
from tests import factories
from tests.database.api.conftest import API, login_of
from tests.database.api.test_jobs import is_problem

# By the kind of object: the address of one, and a change of it.
OBJECTS: dict[str, tuple[Callable[[], str], dict[str, Any]]] = {
    "job": (lambda: f"jobs/{factories.job().pk}", {"name": "renamed"}),
    "savepoint": (
        lambda: f"savepoints/{factories.savepoint(factories.job(), number=7).pk}",
        {"note": "changed"},
    ),
    "rule": (lambda: f"rules/{factories.rule('checkpoint_duration').pk}", {"hold_s": 7}),
    "endpoint": (
        lambda: f"endpoints/{factories.endpoint('https://8.8.8.8/hook').pk}",
        {"description": "changed"},
    ),
    "user": (lambda: f"users/{factories.user().pk}", {"role": "operator"}),
}


@pytest.mark.parametrize("kind", OBJECTS)
def test_second_of_two_who_saw_the_same_version_is_refused(admin: User, kind: str) -> None:
    made, change = OBJECTS[kind]
    api, url = login_of(admin), API + made()
    seen = api.get(url)["ETag"]
    first = api.patch(url, change, format="json", headers={"If-Match": seen})
    assert first.status_code == 200, first.content
    assert first["ETag"] == api.get(url)["ETag"] != seen
    entries = AuditEntry.objects.count()
    second = api.patch(url, change, format="json", headers={"If-Match": seen})
    is_problem(second, 412, "precondition_failed")
    assert AuditEntry.objects.count() == entries
    for tags in (f'"another", {first["ETag"]}', "*"):
        again = api.patch(url, change, format="json", headers={"If-Match": tags})
        assert again.status_code == 200, again.content


def test_secret_is_stored_and_deleted_in_the_version_that_was_seen(api: APIClient) -> None:
    url = f"{API}secrets/WAREHOUSE"
    body = {"value": "correct horse"}
    absent = api.put(url, body, format="json", headers={"If-Match": '"seen"'})
    is_problem(absent, 412, "precondition_failed")
    seen = api.put(url, body, format="json")["ETag"]
    replaced = api.put(url, body, format="json", headers={"If-Match": seen})
    assert replaced.status_code == 200
    late = api.delete(url, headers={"If-Match": seen})
    is_problem(late, 412, "precondition_failed")
    assert secrets.one("WAREHOUSE")
    assert api.delete(url, headers={"If-Match": replaced["ETag"]}).status_code == 204


def test_what_changes_by_itself_is_no_other_version(api: APIClient) -> None:
    job = factories.job()
    url = f"{API}jobs/{job.pk}"
    seen = api.get(url)["ETag"]
    type(job).objects.filter(pk=job.pk).update(status="restarting", cause="slot lost")
    assert api.get(url)["ETag"] == seen


def test_server_may_want_the_version_with_each_change(api: APIClient, settings: Settings) -> None:
    settings.WEIR_REQUIRE_IF_MATCH = True
    url = f"{API}jobs/{factories.job().pk}"
    is_problem(api.patch(url, {"name": "b"}, format="json"), 428, "precondition_required")
    given = {"If-Match": api.get(url)["ETag"]}
    assert api.patch(url, {"name": "b"}, format="json", headers=given).status_code == 200
    assert api.put(f"{API}secrets/NEW", {"value": "x"}, format="json").status_code == 201
