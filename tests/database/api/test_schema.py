"""The OpenAPI document: valid, complete, and what the API really does."""

from typing import Any

import pytest
import yaml
from django.core.management import call_command
from rest_framework.test import APIClient

from tests.database.api.conftest import API
from tests.database.api.test_permissions import TABLE

METHODS = ("get", "post", "put", "patch", "delete")


@pytest.fixture
def document(api: APIClient) -> dict[str, Any]:
    answer = api.get(f"{API}schema?format=json")
    assert answer.status_code == 200
    schema: dict[str, Any] = answer.json()
    return schema


def operations(document: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    return {
        (method.upper(), path.removeprefix(API)): operation
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
        if method in METHODS
    }


def test_the_document_is_valid_and_made_without_a_warning(tmp_path: Any) -> None:
    target = tmp_path / "schema.yml"
    call_command("spectacular", validate=True, fail_on_warn=True, file=str(target))
    assert yaml.safe_load(target.read_text())["openapi"].startswith("3.1")


def test_every_endpoint_is_in_it(document: dict[str, Any]) -> None:
    undocumented = {("GET", "schema"), ("GET", "docs")}
    assert set(operations(document)) == set(TABLE) - undocumented


def test_every_operation_says_what_a_client_needs(document: dict[str, Any]) -> None:
    names = [operation["operationId"] for operation in operations(document).values()]
    assert len(set(names)) == len(names)
    tags = {tag["name"] for tag in document["tags"]}
    for which, operation in operations(document).items():
        assert operation["summary"], which
        assert operation["description"], which
        assert set(operation["tags"]) <= tags, which
        assert {"token": []} in operation["security"], which
        assert {"session": []} in operation["security"], which
        assert {"401", "403", "default"} <= set(operation["responses"]), which
        for parameter in operation.get("parameters", ()):
            assert parameter["schema"], (which, parameter["name"])


def test_enums_have_names_of_their_own(document: dict[str, Any]) -> None:
    enums = {name for name, schema in document["components"]["schemas"].items() if "enum" in schema}
    assert enums >= {"CheckpointStatus", "FailureReason", "JobStatus", "OperationStatus", "Role"}
    assert not [name for name in enums if name.endswith("Enum") and name != "BlankEnum"]


def test_the_page_beside_it_keeps_its_script_in_a_file(
    api: APIClient, anonymous: APIClient
) -> None:
    page = api.get(f"{API}docs")
    assert page.status_code == 200
    text = page.content.decode()
    assert "swagger-ui" in text
    assert "<script>" not in text
    assert "http://" not in text.replace("http://testserver", "")
    assert "https://" not in text
    answer = anonymous.get(f"{API}docs")
    assert (answer.status_code, answer["Location"]) == (302, f"/login/?next={API}docs")
