"""Requests to the gateway that its messages allow, and that they do not, sent by schemathesis.

The document is made of the structs that read and write the messages.
"""

from typing import Any

import msgspec
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.config import GenerationConfig, ProjectConfig, ProjectsConfig, SchemathesisConfig

from controlplane.embedded.redis import Redis
from jobs.models import Job
from tests import factories
from tests.process.controlplane.web import Web
from weir.protocol.driver_messages import EventBatch
from weir.wire import batches
from weir.wire.mirrors import Mirrors

TOKEN = "a token of the job's driver"
JOB = "orders-1"
EXAMPLES = 60
HEADERS = {batches.VERSION_HEADER: str(batches.VERSION_MAX)}

pytestmark = [pytest.mark.django_db(transaction=True)]


def document() -> dict[str, Any]:
    """The gateway's two resources as OpenAPI."""
    (batch,), components = msgspec.json.schema_components(
        [Mirrors(are_read=False, cuts_prose=False).struct(EventBatch)],
        ref_template="#/components/schemas/{name}",
    )
    job = {"name": "job_id", "in": "path", "required": True, "schema": {"enum": [JOB, "unknown-1"]}}
    after = {"name": "after", "in": "query", "schema": {"type": "integer", "minimum": 0}}
    wait = {"name": "wait", "in": "query", "schema": {"type": "number", "minimum": 0, "maximum": 0}}
    answers = {"default": {"description": "An answer."}}
    body = {"required": True, "content": {"application/json": {"schema": batch}}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "The gateway", "version": "2"},
        "paths": {
            "/gateway/v1/jobs/{job_id}/events": {
                "post": {"parameters": [job], "requestBody": body, "responses": answers}
            },
            "/gateway/v1/jobs/{job_id}/commands": {
                "get": {"parameters": [job, after, wait], "responses": answers}
            },
        },
        "components": {"schemas": components},
    }


def operations(mode: GenerationMode, web: Web) -> list[Any]:
    """The operations of the document, against a web process."""
    generation = GenerationConfig(modes=[mode], allow_x00=mode is GenerationMode.NEGATIVE)
    base_url = f"http://127.0.0.1:{web.port}"
    projects = ProjectsConfig(default=ProjectConfig(generation=generation, base_url=base_url))
    schema = schemathesis.openapi.from_dict(
        document(), config=SchemathesisConfig(projects=projects)
    )
    return [result.ok() for result in schema.get_all_operations()]


def send(cases: st.SearchStrategy[Any], headers: dict[str, str], statuses: set[int]) -> None:
    """Send requests, and collect the statuses of the answers; none is a failure."""

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(cases)
    def call(case: Any) -> None:
        answer = case.call(headers=headers)
        statuses.add(answer.status_code)
        assert answer.status_code < 500, answer.text

    call()


@pytest.mark.parametrize("is_known", [True, False], ids=["driver", "stranger"])
@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.name.lower())
def test_no_request_fails_the_gateway(
    web: Web, redis: Redis, mode: GenerationMode, is_known: bool
) -> None:
    factories.driver(factories.job("orders", id=JOB), token=TOKEN)
    before = list(Job.objects.values())
    headers = HEADERS | ({"Authorization": f"Bearer {TOKEN}"} if is_known else {})
    statuses: dict[str, set[int]] = {}

    # Reads come first: a drawn event may be of the driver's end.
    for operation in sorted(operations(mode, web), key=lambda operation: operation.method):
        asked = statuses.setdefault(operation.method, set())
        send(operation.as_strategy(generation_mode=mode), headers, asked)
    assert set(statuses) == {"post", "get"}
    every = set.union(*statuses.values())
    if not is_known:
        assert every <= {400, 401, 404, 405}, statuses
        assert list(Job.objects.values()) == before
    elif mode is GenerationMode.NEGATIVE:
        assert 400 in every, statuses
    else:
        assert 200 in statuses["get"], statuses
