"""The OpenAPI document: valid, complete, and what the API really does."""

from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from django.core.management import call_command
from drf_spectacular.generators import SchemaGenerator
from jsonschema import Draft202012Validator, FormatChecker
from rest_framework.test import APIClient
from rest_framework.views import APIView

from controlplane import schema_words
from controlplane.base.rest.known_parameters import known_parameters
from controlplane.schema_words import PROPERTIES
from tests.database.api.conftest import API
from tests.database.api.test_permissions import TABLE

# Beside Django, for browsers with a session only.
STREAM = ("GET", "/events/jobs/{job_id}")
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
    assert set(operations(document)) == (set(TABLE) | {STREAM}) - undocumented


def test_every_operation_says_what_a_client_needs(document: dict[str, Any]) -> None:
    names = [operation["operationId"] for operation in operations(document).values()]
    assert len(set(names)) == len(names)
    tags = {tag["name"] for tag in document["tags"]}
    for which, operation in operations(document).items():
        assert operation["summary"], which
        assert operation["description"], which
        assert set(operation["tags"]) <= tags, which
        assert ({"token": []} in operation["security"]) == (which != STREAM), which
        assert {"session": []} in operation["security"], which
        assert {"401", "default"} <= set(operation["responses"]), which
        assert "403" in operation["responses"] or which == STREAM
        for parameter in operation.get("parameters", ()):
            assert parameter["schema"], (which, parameter["name"])


def properties(name: str, schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """All properties below a schema, by their dotted names."""
    for inner, shape in schema.get("properties", {}).items():
        yield f"{name}.{inner}", shape
        yield from properties(f"{name}.{inner}", shape)


def test_every_property_has_a_description(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    told = [one for name, schema in schemas.items() for one in properties(name, schema)]
    assert len(told) > 500
    assert [name for name, shape in told if not shape.get("description")] == []


def test_no_description_is_left_over() -> None:
    schemas = SchemaGenerator().get_schema(request=None, public=True)["components"]["schemas"]
    for name, schema in schemas.items():
        for dotted, shape in properties(name, schema):
            key = dotted.rpartition(".")[2]
            if shape.get("description") in (PROPERTIES.get(dotted), PROPERTIES.get(key)):
                shape.pop("description")
    assert schema_words.describe(schemas) == set(PROPERTIES)


def test_every_body_of_success_has_an_example_that_is_valid(document: dict[str, Any]) -> None:
    count = 0
    for which, operation in operations(document).items():
        for status, response in operation["responses"].items():
            for content in response.get("content", {}).values():
                if not status.startswith("2"):
                    continue
                named = [one["value"] for one in content.get("examples", {}).values()]
                examples = named or [content["example"]]
                whole = {**content["schema"], "components": document["components"]}
                validator = Draft202012Validator(whole, format_checker=FormatChecker())
                for example in examples:
                    problems = [error.message for error in validator.iter_errors(example)]
                    assert problems == [], (which, status)
                    count += 1
    assert count > 70


def test_the_parameters_of_the_document_are_those_that_are_known(document: dict[str, Any]) -> None:
    """A parameter that is documented and refused, or the other way round, would be a lie."""
    count = 0
    for path, view in views():
        for method in METHODS:
            operation = document["paths"].get(path, {}).get(method)
            if operation is None:
                continue
            parameters = operation.get("parameters", ())
            named = {one["name"] for one in parameters if one["in"] == "query"}
            known = set(known_parameters(view, method.upper()))
            # The format of the answer is documented where there is a choice.
            assert known - {"format"} == named - {"format"}, (method, path)
            count += len(named)
    assert count > 100


def views() -> Iterator[tuple[str, type[APIView]]]:
    generator = SchemaGenerator()
    generator._initialise_endpoints()
    for path, _, _, callback in generator.endpoints:
        yield path, callback.cls


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
    assert 'href="/jobs/">← Back to the dashboard</a>' in text
    assert "frontend/api_docs.js" in text  # Dark where the browser is.
    assert "<script>" not in text
    assert "http://" not in text.replace("http://testserver", "")
    assert "https://" not in text
    answer = anonymous.get(f"{API}docs")
    assert (answer.status_code, answer["Location"]) == (302, f"/login/?next={API}docs")
