"""Requests that the OpenAPI document allows, and that it does not, sent by schemathesis."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import schemathesis
from django.core.handlers.wsgi import WSGIHandler
from django.core.signals import request_finished, request_started
from django.db import close_old_connections, transaction
from django.db.models.functions import Now
from drf_spectacular.generators import SchemaGenerator
from hypothesis import HealthCheck, settings
from pytest_django import DjangoDbBlocker
from schemathesis import Case, GenerationMode
from schemathesis.checks import load_all_checks
from schemathesis.config import GenerationConfig, ProjectConfig, ProjectsConfig, SchemathesisConfig
from schemathesis.generation.feedback import FeedbackSources
from schemathesis.generation.hypothesis import builder
from schemathesis.generation.hypothesis.reporting import ignore_hypothesis_output
from schemathesis.pytest._test_builder import build_operation_test
from schemathesis.python._constants.orchestrator import make_constants_value_source
from schemathesis.specs.openapi.checks import ignored_auth, positive_data_acceptance

from controlplane.accounts.models import Role, Token, User, digest_of
from controlplane.deliveries.models import Delivery
from controlplane.secrets import services as secrets
from jobs.drivers import driver_files
from jobs.models import Artifact, Driver
from tests import factories
from tests.database.api import whole_jobs
from tests.database.kept_rows import kept_rows

ADMIN = "root"
JOB = "seeded"
OPERATION = "00000000-0000-4000-8000-000000000001"
SAVEPOINT = "00000000-0000-4000-8000-000000000002"
ENDPOINT = "00000000-0000-4000-8000-000000000003"
DELIVERY = "00000000-0000-4000-8000-000000000004"
RULE = "00000000-0000-4000-8000-000000000005"
ALERT = "00000000-0000-4000-8000-000000000006"
SILENCE = "00000000-0000-4000-8000-000000000007"
STORED = "WAREHOUSE_PASSWORD"
# Of an operation some of whose calls could not be drawn.
UNTESTED = (
    builder.InvalidHeadersExampleMark,
    builder.InvalidRegexMark,
    builder.MissingPathParameters,
    builder.NonSerializableMark,
    builder.UnsatisfiableExampleMark,
    builder.UnserializablePayloadMark,
)
RUN = settings(
    max_examples=5,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),  # The fixtures are meant to last for all examples.
)


def operations(*modes: GenerationMode) -> pytest.MarkDecorator:
    """Run a test for each operation of the API, with calls of these modes.

    The calls are drawn when the test runs. ``schema.parametrize()`` draws all of them while tests
    are collected, in every worker of a run: 4 s of a processor.
    """
    generation = GenerationConfig(modes=list(modes), allow_x00=GenerationMode.NEGATIVE in modes)
    projects = ProjectsConfig(default=ProjectConfig(generation=generation))
    schema = schemathesis.openapi.from_dict(
        SchemaGenerator().get_schema(request=None, public=True),
        config=SchemathesisConfig(projects=projects),
    )
    schema.app = WSGIHandler()
    schema = schema.exclude(path="/events/jobs/{job_id}")  # Beside Django.
    feedback = FeedbackSources(constants_value_source=make_constants_value_source(schema))
    builders = {
        operation.label: partial(
            build_operation_test,
            config=schema.config,
            operation=operation,
            given_kwargs={},
            feedback=feedback,
        )
        for operation in (result.ok() for result in schema.get_all_operations())
    }
    return pytest.mark.parametrize("built", builders.values(), ids=builders.keys())


def run(built: Callable[..., Any], test: Callable[[Case], None]) -> None:
    """Draw the calls of an operation, and test each."""
    load_all_checks()
    drawn = built(test_func=RUN(test))
    with ignore_hypothesis_output():
        drawn()
    assert not [mark.attr_name for mark in UNTESTED if mark.is_set(drawn)]


@pytest.fixture(scope="module")
def kept(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[tuple[str, Driver]]:
    """An admin's token, and the driver whose log there is.

    The API has something of everything, some of it under known names.
    """
    with kept_rows(django_db_blocker):
        admin = factories.user(Role.ADMIN, ADMIN)
        whole_jobs.everything(admin)
        job = whole_jobs.everything(admin, id=JOB)
        factories.operation(job, admin, id=OPERATION)
        secrets.store(admin, STORED, "correct horse battery staple")
        factories.savepoint(job, number=7, by=admin, id=SAVEPOINT)
        endpoint = factories.endpoint("https://8.8.8.8/hook", id=ENDPOINT)
        given_up = factories.delivery(endpoint, status="given_up")
        Delivery.objects.filter(pk=given_up.pk).update(id=DELIVERY)
        rule = factories.rule("checkpoint_duration", id=RULE)
        factories.alert(rule, job, id=ALERT)
        factories.silence(id=SILENCE, rule=rule)
        yield factories.secret_of(admin), job.drivers.get(number=2)


@pytest.fixture
def token(kept: tuple[str, Driver], db: None) -> Iterator[str]:
    """An admin's token, which was used just now."""
    secret, driver = kept
    path = driver_files.log_path(driver)
    path.parent.mkdir(parents=True)
    path.write_text("started")
    # Each call is rolled back, and would note the token's first use.
    Token.objects.filter(digest=digest_of(secret)).update(last_used_at=Now())
    # The test's connection is in a transaction that has to outlast the requests.
    for signal in (request_started, request_finished):
        signal.disconnect(close_old_connections)
    yield secret
    for signal in (request_started, request_finished):
        signal.connect(close_old_connections)


def check(case: Case, token: str, *excluded: Any) -> None:
    """Call and compare with the document; all changes are rolled back."""
    with transaction.atomic():
        headers = {
            "Authorization": f"Bearer {token}",
            "Accept-Encoding": "identity",  # Responses are not decompressed in this process.
        }
        case.call_and_validate(headers=headers, excluded_checks=list(excluded))
        transaction.set_rollback(True)


@pytest.mark.whole
@operations(GenerationMode.NEGATIVE)
def test_what_the_document_does_not_allow_is_refused(built: Callable[..., Any], token: str) -> None:
    # A schema does not say which uploads, scripts and modules there are, and so its examples.
    run(built, lambda case: check(case, token, positive_data_acceptance))


@pytest.mark.whole
@operations(GenerationMode.POSITIVE)
def test_what_the_document_allows_is_answered_as_it_says(
    built: Callable[..., Any], token: str
) -> None:
    run(built, lambda case: check_answer(case, token))


def check_answer(case: Case, token: str) -> None:
    """Ask for rows that are there, so that the answers are not all 404."""
    user = User.objects.get(username=ADMIN)
    digest = Artifact.objects.values_list("pk", flat=True).first() or "0" * 64
    names = {"job_id": JOB, "number": 2, "id": user.pk, "name": STORED, "digest": digest}
    names["uid"] = "totals"
    if "operations" in case.path:
        names["id"] = OPERATION
    elif "savepoints" in case.path:
        names["id"] = SAVEPOINT
    elif "endpoints" in case.path:
        names["id"] = ENDPOINT
    elif "deliveries" in case.path:
        names["id"] = DELIVERY
    elif "rules" in case.path:
        names["id"] = RULE
    elif "alerts" in case.path:
        names["id"] = ALERT
    elif "silences" in case.path:
        names["id"] = SILENCE
    elif "tokens" in case.path:
        names["id"] = user.tokens.get().pk
    case.path_parameters = {name: names[name] for name in case.path_parameters or {}}
    if case.query:
        case.query.pop("cursor", None)
    # The test above asks without a token.
    is_reading = case.method == "GET"
    check(case, token, ignored_auth, *([] if is_reading else [positive_data_acceptance]))
