"""Every address of the pages: whom it is for, that no parameter breaks it, and no secret is on it.

The addresses are read from the URL conf, so that one that is added has to say here whom it is for.
"""

import re
from collections.abc import Callable, Iterator
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import pytest
from django.test import Client, override_settings
from django.urls import URLPattern, reverse
from pytest_django import DjangoDbBlocker

from checkpoints.operations import savepoints
from controlplane.accounts.models import Role, Token, User
from controlplane.alerts.models import Alert, Rule, Silence
from controlplane.audit import models as audit
from controlplane.deliveries.models import Delivery, Endpoint
from controlplane.embedded.redis import Redis
from controlplane.secrets import services as secrets
from frontend import urls
from frontend.confirm.views import QUESTIONS
from jobs import uploads
from jobs.drivers import driver_files
from jobs.models import Artifact, Job, Operation
from jobs.redaction import HIDDEN
from tests import factories
from tests.database.frontend import flights, rows_checkpoint, rows_operator
from tests.database.kept_rows import kept_files, kept_rows

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("plain_templates")]

_QUESTIONS = {f"job-{name}": Role.OPERATOR for name in QUESTIONS}

# Who may read a page, and who may send its form.
READS = {
    "home": None,
    "login": None,
    "job-list": Role.VIEWER,
    "job-list-data": Role.VIEWER,
    "job-new": Role.OPERATOR,
    "job-page": Role.VIEWER,
    "job-details": Role.VIEWER,
    "job-figure": Role.VIEWER,
    "job-cancel": Role.OPERATOR,
    **_QUESTIONS,
    "job-archive": Role.OPERATOR,
    "job-unarchive": Role.OPERATOR,
    "job-operation": Role.VIEWER,
    "operation-data": Role.VIEWER,
    "savepoint-describe": Role.OPERATOR,
    "savepoint-delete": Role.OPERATOR,
    "job-checkpoints": Role.VIEWER,
    "job-checkpoints-data": Role.VIEWER,
    "checkpoint-page": Role.VIEWER,
    "checkpoint-data": Role.VIEWER,
    "checkpoint-alignment": Role.VIEWER,
    "checkpoint-storage": Role.VIEWER,
    "checkpoint-figure": Role.VIEWER,
    "job-savepoints": Role.VIEWER,
    "savepoints-data": Role.VIEWER,
    "savepoints-lineage": Role.VIEWER,
    "job-recovery": Role.VIEWER,
    "job-recovery-target": Role.OPERATOR,
    "recovery-data": Role.VIEWER,
    "recovery-figure": Role.VIEWER,
    "operator-page": Role.VIEWER,
    "operator-data": Role.VIEWER,
    "operator-figure": Role.VIEWER,
    "inspection-data": Role.VIEWER,
    "inspection-figure": Role.VIEWER,
    "job-slots": Role.VIEWER,
    "slots-data": Role.VIEWER,
    "job-configuration": Role.VIEWER,
    "job-logs": Role.OPERATOR,
    "job-logs-data": Role.OPERATOR,
    "job-logs-download": Role.OPERATOR,
    "audit": Role.ADMIN,
    "audit-export": Role.ADMIN,
    "about": Role.VIEWER,
    "retention": Role.VIEWER,
    "job-audit": Role.ADMIN,
    "activity": Role.VIEWER,
    "account": Role.VIEWER,
    "account-password": Role.VIEWER,
    "token-new": Role.OPERATOR,
    "token-revoke": Role.OPERATOR,
    "account-list": Role.ADMIN,
    "account-page": Role.ADMIN,
    "account-new": Role.ADMIN,
    "account-change": Role.ADMIN,
    "account-password-replace": Role.ADMIN,
    "upload-list": Role.VIEWER,
    "upload-page": Role.OPERATOR,
    "upload-difference": Role.OPERATOR,
    "secret-list": Role.VIEWER,
    "secret-new": Role.OPERATOR,
    "secret-replace": Role.OPERATOR,
    "secret-delete": Role.OPERATOR,
    "alert-list": Role.VIEWER,
    "alert-page": Role.VIEWER,
    "job-alerts": Role.VIEWER,
    "rule-list": Role.VIEWER,
    "rule-page": Role.VIEWER,
    "rule-kinds": Role.ADMIN,
    "rule-new": Role.ADMIN,
    "rule-change": Role.ADMIN,
    "rule-delete": Role.ADMIN,
    "silence-list": Role.VIEWER,
    "silence-new": Role.OPERATOR,
    "endpoint-list": Role.VIEWER,
    "endpoint-kinds": Role.ADMIN,
    "endpoint-new": Role.ADMIN,
    "endpoint-change": Role.ADMIN,
    "endpoint-secret": Role.ADMIN,
    "endpoint-delete": Role.ADMIN,
    "delivery-list": Role.VIEWER,
    "delivery-page": Role.VIEWER,
    "delivery-range": Role.OPERATOR,
}
ACTS = {
    "login": None,
    "logout": None,
    "job-filter-save": Role.VIEWER,
    "job-filter-delete": Role.VIEWER,
    "job-new": Role.OPERATOR,
    "job-checkpoint": Role.OPERATOR,
    "job-cancel": Role.OPERATOR,
    "job-restart": Role.OPERATOR,
    "operator-ask-stacks": Role.VIEWER,
    "operator-ask-records": Role.OPERATOR,
    **_QUESTIONS,
    "job-archive": Role.OPERATOR,
    "job-unarchive": Role.OPERATOR,
    "job-rollback-confirmed": Role.OPERATOR,
    "job-recovery-target": Role.OPERATOR,
    "savepoint-describe": Role.OPERATOR,
    "savepoint-delete": Role.OPERATOR,
    "account-password": Role.VIEWER,
    "session-end": Role.VIEWER,
    "token-new": Role.OPERATOR,
    "token-revoke": Role.OPERATOR,
    "account-new": Role.ADMIN,
    "account-change": Role.ADMIN,
    "account-password-replace": Role.ADMIN,
    "account-logins-end": Role.ADMIN,
    "secret-new": Role.OPERATOR,
    "secret-replace": Role.OPERATOR,
    "secret-delete": Role.OPERATOR,
    "alert-acknowledge": Role.OPERATOR,
    "rule-new": Role.ADMIN,
    "rule-change": Role.ADMIN,
    "rule-switch": Role.ADMIN,
    "rule-delete": Role.ADMIN,
    "silence-new": Role.OPERATOR,
    "silence-end": Role.OPERATOR,
    "endpoint-new": Role.ADMIN,
    "endpoint-change": Role.ADMIN,
    "endpoint-secret": Role.ADMIN,
    "endpoint-delete": Role.ADMIN,
    "endpoint-switch": Role.ADMIN,
    "endpoint-test": Role.OPERATOR,
    "delivery-redeliver": Role.OPERATOR,
    "delivery-range": Role.OPERATOR,
}
GUARDED_READS = {name: role for name, role in READS.items() if role is not None}
GUARDED_ACTS = {name: role for name, role in ACTS.items() if role is not None}

SECRET = "hunter2"
STORED = "WAREHOUSE_PASSWORD"  # A secret of pipelines, whose value is that as well.
OWNER = f"odd-{Role.OPERATOR}"  # An account with a token.
NUMBER = 1  # Of the checkpoint that has acknowledgements, alignments and a manifest.
FIGURES = {"job-figure": ("history", "alignment"), "checkpoint-figure": ("timeline", "state")}

# What of an address's query each page reads.
_TARGET = ("checkpoint", "savepoint", "preview")
_LIST = ("status", "kind", "before", "after")
_ALIGNMENT = ("receiver", "gate", "by", "part")
_AUDIT = ("actor", "action", "target", "after", "before", "cursor", "page_size", "ordering")
_DELIVERIES = ("endpoint", "status", "alert", "job", "created_after", "created_before")
PARAMETERS = {
    "login": ("next",),
    "job-list": ("state", "q", "label", "page"),
    "job-list-data": ("state", "q", "label", "page"),
    "job-new": ("kind", "module", "script", "upload", "file", "parallelism", "restore", "claims"),
    "job-page": ("window",),
    "job-details": ("window",),
    "job-figure": ("window",),
    **dict.fromkeys(_QUESTIONS, _TARGET),
    "job-checkpoints": _LIST,
    "job-checkpoints-data": _LIST,
    "checkpoint-page": ("chain", "all", "sort", "operator", "page"),
    "checkpoint-alignment": _ALIGNMENT,
    "checkpoint-storage": ("part",),
    "checkpoint-figure": ("chain", "all", *_ALIGNMENT),
    "job-savepoints": ("wanted", "page"),
    "savepoints-data": ("wanted", "page"),
    "job-recovery": ("attempt", "page"),
    "recovery-data": ("attempt", "page"),
    "recovery-figure": ("attempt", "page"),
    "operator-page": ("window", "sort", "page", "stacks"),
    "operator-data": ("window", "sort", "page"),
    "operator-figure": ("window",),
    "job-slots": ("sort", "page", "slot"),
    "slots-data": ("sort", "page", "slot"),
    "job-logs": ("driver", "end", "from", "q", "level", "follow"),
    "job-logs-data": ("from", "q", "level"),
    "audit": _AUDIT,
    "audit-export": ("format", *_AUDIT),
    "job-audit": _AUDIT,
    "account-list": ("page",),
    "activity": ("job", "kind", "planned", "cursor", "page_size", "ordering"),
    "upload-list": ("file_name", "uploaded_by", "used", "cursor", "page_size", "ordering"),
    "upload-difference": ("from",),
    "secret-list": ("page",),
    "alert-list": (
        *("state", "severity", "rule", "job", "fired_after", "fired_before"),
        *("cursor", "page_size", "ordering"),
    ),
    "rule-page": ("tried",),
    "silence-list": ("cursor", "is_over", "job", "rule"),
    "silence-new": ("rule", "job", "severity"),
    "endpoint-list": ("page",),
    "delivery-list": (*_DELIVERIES, "cursor", "page_size", "ordering"),
    "delivery-range": _DELIVERIES,
}
_RULE = {
    "name": "a",
    "severity": "info",
    "hold_s": "0",
    "cooldown_s": "0",
    "parameter_seconds": "1",
    "parameter_times_median": "0",
    "parameter_least_s": "1",
}
# What is filled in of a form, and what of it is then replaced by something odd.
FILLED = {
    "job-new": {
        "name": "a",
        "kind": "module",
        "module": "weir.examples.flights",
        "restart_kind": "fixed_delay",
    },
    "job-filter-save": {"name": "mine", "q": "a"},
    "job-fork": {"name": "a", "target": "checkpoint:1"},
    "job-preview": {"target": "checkpoint:1"},
    "job-rollback": {"target": "checkpoint:1"},
    "job-rollback-confirmed": {"target": "checkpoint:1"},
    "savepoint-describe": {"name": "nightly"},
    "account-password": dict.fromkeys(("old", "password", "again"), factories.PASSWORD),
    "token-new": {"name": "a", "role": "viewer", "expires_at": "7"},
    "account-new": {"username": "a", "role": "viewer"},
    "account-change": {"role": "viewer"},
    "secret-new": {"name": "ANOTHER", "value": "x"},
    "secret-replace": {"value": "x"},
    "rule-new": _RULE,
    "rule-change": _RULE,
    "silence-new": {"lasts": "1", "reason": "a"},
    "endpoint-new": {"name": "a", "url": "https://203.0.113.7/"},
    "endpoint-change": {"name": "a"},
    "endpoint-secret": {"keep_previous_s": "0"},
    "delivery-range": {"after": "2026-03-01T00:00", "before": "2026-03-02T00:00"},
}
_CHANGED = (
    "target",
    "parameters",
    "secrets",
    "parallelism",
    "pipeline_kind",
    "pipeline_target",
    "key",
)
_DESCRIPTION = ("name", "note", "labels", "key")
FIELDS = {
    "login": ("username", "password", "next"),
    "job-new": (
        *("name", "kind", "module", "script", "upload", "parameters", "parallelism", "mode"),
        *(
            "secrets",
            "labels",
            "checkpoint_interval_ms",
            "checkpoint_timeout_ms",
            "checkpoint_min_pause_ms",
            "retained_checkpoints",
            "restart_kind",
            "restart_attempts_max",
            "restart_backoff_multiplier",
            "recovery_target_s",
            "restore",
            "spark_conf",
            "spark_master",
            "storage",
            "key",
        ),
    ),
    "job-filter-save": ("name", "state", "q", "label"),
    "job-filter-delete": ("id", "state", "q", "label"),
    "job-checkpoint": ("key",),
    "job-cancel": ("key",),
    "job-restart": ("key",),
    "operator-ask-stacks": ("subtask",),
    "operator-ask-records": ("subtask",),
    "job-archive": ("key",),
    "job-unarchive": ("key",),
    "job-savepoint": _DESCRIPTION,
    "job-stop": ("drain", *_DESCRIPTION),
    "job-rollback": ("target", "rewind_output", "key"),
    "job-rollback-confirmed": ("target", "rewind_output", "key"),
    "job-rescale": ("parallelism", "key"),
    "job-upgrade": ("run_within_s", *_CHANGED),
    "job-fork": ("name", "recovery_target_s", *_CHANGED),
    "job-recovery-target": ("recovery_target_s", "key"),
    "job-preview": _CHANGED,
    "job-compare": ("other_job_id", "keys", "windows", "key"),
    "savepoint-describe": _DESCRIPTION,
    "savepoint-delete": ("key",),
    "account-password": ("old", "password", "again"),
    "session-end": ("session",),
    "token-new": ("name", "role", "expires_at"),
    "account-new": ("username", "email", "role"),
    "account-change": ("role", "is_active"),
    "secret-new": ("name", "value"),
    "secret-replace": ("value",),
    "alert-acknowledge": ("key",),
    "rule-new": (*_RULE, "job", "job_pattern", "endpoints", "try"),
    "rule-change": (*_RULE, "description", "job", "job_pattern", "endpoints"),
    "rule-switch": ("enabled",),
    "silence-new": ("rule", "job", "job_pattern", "severity", "lasts", "until_at", "reason"),
    "silence-end": ("key",),
    "endpoint-new": ("name", "description", "url", "secret", "authorization", "allow_internal"),
    "endpoint-change": ("name", "description", "url", "authorization", "without_authorization"),
    "endpoint-secret": ("secret", "keep_previous_s", "version"),
    "endpoint-switch": ("enabled",),
    "endpoint-test": ("key",),
    "delivery-redeliver": ("key",),
    "delivery-range": ("endpoint", "status", "after", "before"),
}
ODD = (
    "",
    "-1",
    "9223372036854775808",  # One more than PostgreSQL's numbers reach.
    "9" * 5_000,
    "\u0663",  # A digit, but not of ASCII.
    "a: \0",  # PostgreSQL takes no text with a NUL in it.
    "a\r\nSet-Cookie: b=c",
    "%_\\'\";--",
    "checkpoint:99999999999999999999",
    "<script>alert(1)</script>",
    "0001-01-01T00:00:00+14:00",  # Out of range in UTC.
    "x" * 20_000,
)


def patterns() -> Iterator[URLPattern]:
    for pattern in urls.urlpatterns:
        assert isinstance(pattern, URLPattern)
        yield pattern


NAMES = [str(pattern.name) for pattern in patterns()]


@pytest.fixture(scope="module")
def kept(
    django_db_setup: None,
    django_db_blocker: DjangoDbBlocker,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[Job, Path]]:
    """A job that has something on every page, and the directory of all files."""
    directory = tmp_path_factory.mktemp("files")
    places = {"WEIR_DRIVERS": directory / "drivers", "WEIR_UPLOADS": directory / "uploads"}
    with kept_rows(django_db_blocker), override_settings(**places):
        uploads.store(None, "a.py", [b"print(1)"])
        created = flights.running()
        rows_checkpoint.keep_in(created, directory / "checkpoints")
        savepoints.request_checkpoint(None, created.pk)
        flights.complete(created, NUMBER)
        rows_checkpoint.stored(created, created.checkpoints.get())
        factories.operation(created, None)
        factories.savepoint(created, "nightly", 1_000)
        secrets.store(None, STORED, SECRET)
        factories.token(factories.user(Role.OPERATOR, OWNER), "an owner's")
        endpoint = factories.endpoint(f"https://203.0.113.7/{SECRET}/", authorization=SECRET)
        factories.attempted(factories.delivery(endpoint))
        rule = factories.rule("checkpoint_duration")
        factories.alert(rule, created, checkpoint=NUMBER)
        factories.silence(rule=rule, job=created.pk)
        log = driver_files.log_path(created.drivers.get())
        log.parent.mkdir(parents=True)
        log.write_text("a line\n")
        yield created, directory


@pytest.fixture
def job(kept: tuple[Job, Path], db: None, redis: Redis) -> Iterator[Job]:
    """A job that has something on every page."""
    created, directory = kept
    rows_operator.sampled(created, "totals")
    with kept_files(directory):
        yield Job.objects.get(pk=created.pk)


def addresses(name: str, job: Job) -> list[str]:
    """The addresses of a page; a page of pictures has one for each."""
    parts: dict[str, Callable[[], Any]] = {
        "job_id": lambda: job.pk,
        "number": lambda: job.drivers.get().number if "logs" in name else NUMBER,
        "operation_id": lambda: job.operations.earliest("created_at").pk,
        "savepoint_id": lambda: job.savepoints.get().pk,
        "uid": lambda: "totals",
        "secret": lambda: STORED,
        "user_id": lambda: User.objects.get(username=OWNER).pk,
        "token_id": lambda: Token.objects.get(user__username=OWNER).pk,
        "digest": lambda: Artifact.objects.get().pk,
        "inspection_id": lambda: rows_operator.STACKS_ID,
        "kind": lambda: "checkpoint_duration" if name.startswith("rule") else "webhook",
        "alert_id": lambda: Alert.objects.get().pk,
        "rule_id": lambda: Rule.objects.get(name__startswith="rule-").pk,
        "silence_id": lambda: Silence.objects.get().pk,
        "endpoint_id": lambda: Endpoint.objects.values_list("pk", flat=True).first(),
        "delivery_id": lambda: Delivery.objects.values_list("pk", flat=True).first(),
    }
    pattern = next(pattern for pattern in patterns() if pattern.name == name)
    wanted = [key for key in pattern.pattern.converters if key != "name"]
    given = {key: parts[key]() for key in wanted}
    if name not in FIGURES:
        return [reverse(name, kwargs=given)]
    return [reverse(name, kwargs=given | {"name": figure}) for figure in FIGURES[name]]


def client_of(role: Role) -> Client:
    client = Client(raise_request_exception=False)
    name = f"odd-{role}"
    client.force_login(User.objects.filter(username=name).first() or factories.user(role, name))
    return client


def status(response: Any) -> int:
    """Its status, with all of it read."""
    if response.streaming:
        list(response)
    return int(response.status_code)


def words(page: str) -> set[str]:
    """The words of a page, split where names and values are."""
    return set(re.split(r"[\s,=.]+", re.sub(r"<[^>]+>", " ", page)))


def test_whom_each_address_is_for_is_known() -> None:
    assert {*READS, *ACTS} == set(NAMES)


@pytest.mark.whole
def test_each_page_is_shown_to_its_role_and_those_above_it_alone(client: Client, job: Job) -> None:
    clients = {role: client_of(role) for role in Role}
    for name, needed in GUARDED_READS.items():
        for address in addresses(name, job):
            assert client.get(address)["Location"] == f"/login/?next={address}", address
            for role, browser in clients.items():
                expected = 200 if role.rank >= needed.rank else 403
                assert status(browser.get(address)) == expected, (address, role)


@pytest.mark.whole
@pytest.mark.parametrize("role", list(Role))
def test_no_page_leads_anybody_to_where_there_is_nothing_for_them(job: Job, role: Role) -> None:
    browser, led, opened = client_of(role), {}, set()
    for name, needed in GUARDED_READS.items():
        for address in addresses(name, job) if role.rank >= needed.rank else ():
            response = browser.get(address)
            assert status(response) == 200, address
            opened.add(address)
            if response.headers["Content-Type"].startswith("text/html"):
                for link in re.findall(r'<a [^>]*href="([^"#]+)', response.content.decode()):
                    led[urljoin(address, unescape(link))] = address
    assert len(led) > 20
    wrong = [
        (to, page)
        for to, page in led.items()
        if to not in opened and status(browser.get(to)) not in (200, 302)
    ]
    assert not wrong


def test_only_those_who_may_act_get_past_the_door_of_a_form(client: Client, job: Job) -> None:
    before = Operation.objects.count()
    viewer = client_of(Role.VIEWER)
    for name, needed in GUARDED_ACTS.items():
        (address,) = addresses(name, job)
        assert client.post(address)["Location"] == f"/login/?next={address}", address
        assert (status(viewer.post(address)) == 403) is (needed is not Role.VIEWER), address
    assert Operation.objects.count() == before


def test_no_form_is_taken_from_another_site(job: Job) -> None:
    before = Operation.objects.count()
    admin = Client(enforce_csrf_checks=True)
    admin.force_login(factories.user(Role.ADMIN))
    for name in ACTS:
        (address,) = addresses(name, job)
        assert status(admin.post(address, {"key": "k"})) == 403, address
    assert Operation.objects.count() == before


def test_reading_changes_nothing_and_a_page_that_only_reads_takes_no_form(job: Job) -> None:
    before = Operation.objects.count()
    admin = client_of(Role.ADMIN)
    for name in sorted(set(NAMES) - set(READS)):
        (address,) = addresses(name, job)
        assert status(admin.get(address)) == 405, address
    for name in sorted(set(READS) - set(ACTS) - {"home"}):
        for address in addresses(name, job):
            assert status(admin.post(address)) == 405, address
    assert Operation.objects.count() == before


@pytest.mark.whole
def test_no_page_shows_a_secret_to_anybody(job: Job) -> None:
    job.options = {"parameters": {"password": SECRET, "output": "/data"}}
    job.spark_conf = {"spark.hadoop.fs.s3a.secret.key": SECRET}
    job.origin_uri = job.restore_uri = f"s3://key:{SECRET}@bucket/job/chk-7"
    job.save()
    asked = {
        "kind": "restore",
        "of": str(NUMBER),
        "restore": job.origin_uri,
        "parameters": job.options["parameters"],
    }
    operation = factories.operation(
        job, None, "preview", created_at=job.created_at, parameters=asked
    )
    assert f"operations/{operation.pk}" in addresses("job-operation", job)[0]
    audit.record(None, "job.submit", f"job/{job.pk}", after={"options": job.options} | asked)
    admin = client_of(Role.ADMIN)
    for name in sorted(GUARDED_READS):
        for address in addresses(name, job):
            response = admin.get(address)
            content = b"".join(response) if response.streaming else response.content
            assert SECRET not in content.decode(), address
            if name in ("job-operation", "job-fork", "job-configuration"):
                assert {HIDDEN, "/data"} <= words(content.decode()), address


@pytest.mark.whole
@pytest.mark.parametrize("name", sorted(PARAMETERS))
def test_no_parameter_of_an_address_breaks_a_page(job: Job, name: str) -> None:
    client = client_of(Role.ADMIN) if name != "login" else Client(raise_request_exception=False)
    broken = [
        (address, parameter, odd[:40])
        for address in addresses(name, job)
        for parameter in PARAMETERS[name]
        for odd in ODD
        if status(client.get(address, {parameter: odd})) not in (200, 400, 404)
    ]
    assert not broken


@pytest.mark.whole
@pytest.mark.parametrize("name", sorted(FIELDS))
def test_no_field_of_a_form_breaks_what_takes_it(job: Job, name: str) -> None:
    (address,) = addresses(name, job)
    client = client_of(Role.ADMIN) if name != "login" else Client(raise_request_exception=False)
    broken = []
    for field in FIELDS[name]:
        for odd in ODD:
            response = client.post(address, FILLED.get(name, {}) | {field: odd})
            if status(response) not in (200, 202, 302, 400, 404, 409, 422):
                broken.append((field, odd[:40], response.status_code))
    assert not broken
