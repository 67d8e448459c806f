"""Secrets by the API: stored, listed by name, named by submissions, and never shown."""

from pathlib import Path
from typing import Any

import pytest
from pytest_django.fixtures import Settings
from rest_framework.test import APIClient

from controlplane.accounts.models import Role, User
from controlplane.secrets import services
from jobs.models import Job
from tests import factories
from tests.database.api.conftest import API, client_of

pytestmark = pytest.mark.django_db

VALUE = "correct horse battery staple"
SUBMISSION = {"name": "a", "pipeline": {"kind": "module", "module": "weir.examples.flights"}}


def test_a_secret_is_stored_replaced_listed_and_deleted(api: APIClient) -> None:
    made = api.put(f"{API}secrets/PASSWORD", {"value": VALUE})
    assert made.status_code == 201
    assert set(made.json()) == {"name", "created_at", "set_at", "set_by"}
    replaced = api.put(f"{API}secrets/PASSWORD", {"value": "another"})
    assert replaced.status_code == 200
    assert replaced.json()["created_at"] == made.json()["created_at"]
    assert services.values_of(["PASSWORD"]) == {"PASSWORD": "another"}
    (listed,) = api.get(f"{API}secrets").json()["results"]
    assert listed == api.get(f"{API}secrets/PASSWORD").json() == replaced.json()
    assert listed["set_by"] == "mara"
    assert api.delete(f"{API}secrets/PASSWORD").status_code == 204
    assert api.delete(f"{API}secrets/PASSWORD").status_code == 404
    assert api.get(f"{API}secrets/PASSWORD").status_code == 404


def test_no_answer_shows_a_value_to_any_role(api: APIClient, admin_api: APIClient) -> None:
    api.put(f"{API}secrets/PASSWORD", {"value": VALUE})
    viewer = client_of(factories.user(Role.VIEWER))
    for client in (viewer, api, admin_api):
        for path in ("secrets", "secrets/PASSWORD"):
            response = client.get(f"{API}{path}")
            assert response.status_code == 200
            assert VALUE not in response.content.decode()
    assert VALUE not in admin_api.get(f"{API}audit").content.decode()


def test_a_viewer_can_neither_store_nor_delete(api: APIClient) -> None:
    api.put(f"{API}secrets/PASSWORD", {"value": VALUE})
    viewer = client_of(factories.user(Role.VIEWER))
    assert viewer.put(f"{API}secrets/PASSWORD", {"value": "x"}).status_code == 403
    assert viewer.delete(f"{API}secrets/PASSWORD").status_code == 403
    assert services.values_of(["PASSWORD"]) == {"PASSWORD": VALUE}


@pytest.mark.parametrize(
    ("name", "body", "field"),
    [
        ("with-dash", {"value": VALUE}, "name"),
        ("PASSWORD", {"value": ""}, "value"),
        ("PASSWORD", {"value": VALUE * 1_000}, "value"),
        ("PASSWORD", {}, "value"),
        ("PASSWORD", {"value": VALUE, "note": "x"}, "note"),
    ],
)
def test_what_cannot_be_stored_is_refused_by_field_and_not_repeated(
    api: APIClient, name: str, body: dict[str, Any], field: str
) -> None:
    response = api.put(f"{API}secrets/{name}", body)
    assert response.status_code == 400
    assert field in response.json()["errors"]
    assert VALUE not in response.content.decode()


@pytest.mark.parametrize("name", ["a%00b", "..", "x" * 2_000, "%F0%9F%94%91", "A_FILE"])
def test_a_path_that_names_no_secret_is_no_error_of_the_server(api: APIClient, name: str) -> None:
    assert api.get(f"{API}secrets/{name}").status_code == 404
    assert api.delete(f"{API}secrets/{name}").status_code == 404
    assert api.put(f"{API}secrets/{name}", {"value": VALUE}).status_code in (400, 404)


def test_a_control_plane_without_keys_says_which_setting_it_needs(
    api: APIClient, settings: Settings
) -> None:
    settings.WEIR_ENCRYPTION_KEYS = []
    response = api.put(f"{API}secrets/PASSWORD", {"value": VALUE})
    assert response.status_code == 503
    assert "WEIR_ENCRYPTION_KEYS" in response.json()["detail"]


def test_a_submission_names_secrets_that_exist(api: APIClient, tmp_path: Path) -> None:
    services.store(None, "B", VALUE)
    services.store(None, "A", VALUE)
    done = api.post(f"{API}jobs", {**SUBMISSION, "secrets": ["B", "A", "B"]})
    assert done.status_code == 202, done.json()
    job = api.get(f"{API}jobs/{done.json()['job']}").json()
    assert job["options"]["secrets"] == ["A", "B"]
    assert done.json()["parameters"]["options"]["secrets"] == ["B", "A", "B"]


@pytest.mark.parametrize(
    "names", [["GONE"], ["with-dash"], [""], "A", [7], ["A" * 65], [f"S{i}" for i in range(33)]]
)
def test_a_submission_with_other_names_is_refused(
    api: APIClient, operator: User, names: Any
) -> None:
    response = api.post(f"{API}jobs", {**SUBMISSION, "secrets": names})
    assert response.status_code == 400
    assert any(name.startswith("secrets") for name in response.json()["errors"])
    assert not Job.objects.exists()


def test_drivers_in_the_cluster_get_no_secrets(api: APIClient, settings: Settings) -> None:
    """No descriptor reaches them."""
    services.store(None, "A", VALUE)
    settings.WEIR_SPARK_DEPLOY_MODE, settings.WEIR_SPARK_MASTER = "cluster", "yarn"
    response = api.post(f"{API}jobs", {**SUBMISSION, "secrets": ["A"]})
    assert response.status_code == 400
    (said,) = response.json()["errors"]["secrets"]
    assert "WEIR_SPARK_DEPLOY_MODE=client" in said
