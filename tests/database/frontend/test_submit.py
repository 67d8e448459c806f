"""The form by which an operator submits a job: the same service and refusals as the API's."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from pytest_django.fixtures import Settings

from controlplane.accounts.models import Role
from controlplane.audit.models import AuditEntry
from controlplane.base.requests import body_bytes_max
from frontend.submit import choices
from frontend.submit.form import flattened
from jobs import uploads
from jobs.models import Artifact, Job, Operation
from tests import factories
from tests.database.frontend import flights
from tests.database.hung_files import hung
from weir.protocol.lifecycle import CheckpointStatus

pytestmark = pytest.mark.django_db
SCRIPT = "<script>alert(1)</script>"
PAGE = "/jobs/new"


@pytest.fixture
def admin(db: None) -> Client:
    client = Client()
    client.force_login(factories.user(Role.ADMIN))
    return client


@pytest.fixture(autouse=True)
def directories(settings: Settings, tmp_path: Path) -> None:
    settings.WEIR_UPLOADS = tmp_path / "uploads"
    settings.WEIR_SCRIPT_ROOTS = [tmp_path / "scripts"]
    (tmp_path / "scripts" / "shop").mkdir(parents=True)
    (tmp_path / "scripts" / "shop" / "orders.py").write_text("pass\n")
    (tmp_path / "scripts" / "README.md").write_text("")


def filled(**fields: Any) -> dict[str, Any]:
    """The form as a browser sends it: with all its fields."""
    empty = dict.fromkeys(("parameters", "parallelism", "mode", "restore", "spark_conf"), "")
    module = {"name": "flights", "kind": "module", "module": "weir.examples.flights"}
    return empty | module | {"key": "a-key"} | fields


def script(content: bytes = b"print(1)\n", name: str = "orders.py") -> SimpleUploadedFile:
    return SimpleUploadedFile(name, content, "text/x-python")


def error_of(page: str, field: str) -> str:
    """The error beside a field; empty if none."""
    match = re.search(rf'id="id_{field}_error">(.*?)</p>', page)
    return match[1] if match else ""


# Who may ---------------------------------------------------------------------------------------


def test_only_operators_and_admins_may_submit(
    client: Client, viewer: Client, operator: Client, admin: Client
) -> None:
    assert client.get(PAGE)["Location"] == f"/login/?next={PAGE}"
    assert client.post(PAGE, filled()).status_code == 302
    for response in (viewer.get(PAGE), viewer.post(PAGE, filled())):
        assert response.status_code == 403
    assert not Job.objects.exists()
    assert PAGE not in viewer.get("/jobs/").content.decode()
    for browser in (operator, admin):
        assert f'href="{PAGE}"' in browser.get("/jobs/").content.decode()
        assert browser.get(PAGE).status_code == 200


def test_where_code_runs_is_an_admin_s_choice(operator: Client, admin: Client) -> None:
    assert "spark_master" not in operator.get(PAGE).content.decode()
    places = {"spark_master": "local[7]", "storage": "/elsewhere"}
    operator.post(PAGE, filled(**places))
    job = Job.objects.get()
    assert (job.spark_master, job.storage) != ("local[7]", "/elsewhere")
    admin.post(PAGE, filled(**places))
    job = Job.objects.exclude(pk=job.pk).get()
    assert (job.spark_master, job.storage) == ("local[7]", "/elsewhere")


def test_an_operator_sets_the_size_of_spark_and_nothing_else_of_it(
    operator: Client, admin: Client
) -> None:
    jar = filled(spark_conf="spark.jars=/tmp/x.jar")
    response = operator.post(PAGE, jar)
    assert response.status_code == 400
    assert "Only an admin may set spark.jars" in error_of(response.content.decode(), "spark_conf")
    operator.post(PAGE, filled(spark_conf="spark.executor.memory = 2g"))
    assert Job.objects.get().spark_conf == {"spark.executor.memory": "2g"}
    assert admin.post(PAGE, jar).status_code == 302


def test_a_form_without_its_token_is_refused() -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(factories.user(Role.OPERATOR))
    assert client.post(PAGE, filled()).status_code == 403


# What comes of it ------------------------------------------------------------------------------


def test_a_filled_in_form_becomes_a_job_and_leads_to_its_page(operator: Client) -> None:
    given = filled(
        parameters="rate=100\nfrom = 2025-01-01",
        parallelism="4",
        checkpoint_interval_ms="5000",
        mode="at_least_once",
        checkpoint_timeout_ms="60000",
        checkpoint_min_pause_ms="0",
        retained_checkpoints="5",
        restart_kind="failure_rate",
        restart_failures_max="3",
        restart_attempts_max="9",  # Of another strategy: a browser sends it as well.
        recovery_target_s="2.5",
        labels="team: prices\ntier:1",
        restore="/savepoints/a",
        claims="on",
        allow_non_restored_state="on",
    )
    response = operator.post(PAGE, given, follow=True)
    job = Job.objects.get()
    assert response.redirect_chain == [(f"/jobs/{job.pk}/", 302)]
    assert "The job was submitted" in response.content.decode()
    assert job.options == {
        "parallelism": 4,
        "interval_ms": 5_000,
        "mode": "at_least_once",
        "timeout_ms": 60_000,
        "min_pause_ms": 0,
        "retained_max": 5,
        "restart": {"kind": "failure_rate", "failures_max": 3},
        "parameters": {"rate": "100", "from": "2025-01-01"},
        "allow_non_restored_state": True,
    }
    assert (job.restore_uri, job.restore_claims) == ("/savepoints/a", True)
    assert job.recovery_target_s == 2.5
    assert job.labels == {"team": "prices", "tier": "1"}
    assert job.created_by is not None
    assert AuditEntry.objects.get(action="job.submit").target == f"job/{job.pk}"


def test_what_is_left_empty_is_up_to_the_pipeline(operator: Client) -> None:
    operator.post(PAGE, filled())
    job = Job.objects.get()
    assert (job.options, job.spark_conf, job.restore_uri) == ({}, {}, "")
    assert job.recovery_target_s is None


def test_the_same_form_sent_twice_submits_once(operator: Client) -> None:
    first, again = operator.post(PAGE, filled()), operator.post(PAGE, filled())
    assert first["Location"] == again["Location"]
    assert Job.objects.count() == 1
    changed = operator.post(PAGE, filled(name="another"))
    assert changed.status_code == 422
    assert "This form was sent before" in changed.content.decode()
    key = re.search(r'name="key" value="([^"]+)"', changed.content.decode())
    assert key is not None
    assert operator.post(PAGE, filled(name="another", key=key[1])).status_code == 302
    assert Job.objects.count() == 2


def test_a_script_below_a_root_is_found_by_its_path(operator: Client, tmp_path: Path) -> None:
    page = operator.get(PAGE).content.decode()
    assert '<option value="shop/orders.py">' in page
    operator.post(PAGE, filled(kind="script", script="shop/orders.py"))
    assert Job.objects.get().pipeline_target == str(tmp_path / "scripts" / "shop" / "orders.py")


def test_an_uploaded_script_is_kept_and_run(operator: Client) -> None:
    assert operator.post(PAGE, filled(kind="upload", file=script())).status_code == 302
    job = Job.objects.get()
    assert job.artifact is not None
    assert uploads.path_of(job.artifact).read_bytes() == b"print(1)\n"
    page = operator.get(PAGE).content.decode()
    assert f'<option value="{job.artifact_id}">orders.py, 9 B' in page
    operator.post(PAGE, filled(kind="upload", upload=job.artifact_id, key="other"))
    assert Job.objects.filter(artifact=job.artifact).count() == 2


def test_an_upload_stays_chosen_when_something_else_is_wrong(operator: Client) -> None:
    response = operator.post(PAGE, filled(kind="upload", file=script(), name=""))
    assert response.status_code == 400
    digest = Artifact.objects.get().pk
    assert f'<option value="{digest}" selected>' in response.content.decode()
    # With the same key: nothing was submitted yet.
    operator.post(PAGE, filled(kind="upload", upload=digest))
    assert Job.objects.get().artifact_id == digest


def test_a_file_of_another_kind_of_pipeline_is_not_kept(operator: Client) -> None:
    operator.post(PAGE, filled(file=script()))
    assert Job.objects.get().pipeline_kind == "module"
    assert not Artifact.objects.exists()


def test_a_form_may_be_as_large_as_its_script(settings: Settings) -> None:
    assert body_bytes_max(PAGE) > settings.WEIR_UPLOAD_BYTES_MAX
    assert body_bytes_max("/jobs/newest-1234/") == settings.WEIR_BODY_BYTES_MAX


# Refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "field", "words"),
    [
        ({"name": ""}, "name", "Give the job a name."),
        ({"name": "a\tb"}, "name", "printable characters"),
        ({"kind": "jar"}, "kind", "Select a valid choice"),
        ({"module": ""}, "module", "needs this field"),
        ({"module": "no module"}, "module", "dotted name"),
        ({"kind": "script", "script": "../x.py"}, "script", "no such script"),
        ({"kind": "upload"}, "file", "needs this field"),
        ({"parallelism": "0"}, "parallelism", "greater than or equal to 1"),
        ({"parallelism": "many"}, "parallelism", "whole number"),
        ({"checkpoint_interval_ms": "9"}, "checkpoint_interval_ms", "greater than or equal to 10"),
        ({"checkpoint_timeout_ms": "9"}, "checkpoint_timeout_ms", "greater than or equal to 10"),
        ({"checkpoint_min_pause_ms": "-1"}, "checkpoint_min_pause_ms", "greater than or equal"),
        ({"retained_checkpoints": "0"}, "retained_checkpoints", "greater than or equal to 1"),
        ({"restart_kind": "often"}, "restart_kind", "Select a valid choice"),
        ({"restart_delay_ms": "-1"}, "restart_delay_ms", "greater than or equal to 0"),
        (
            {"restart_kind": "exponential_delay", "restart_backoff_multiplier": "0.5"},
            *("restart_backoff_multiplier", "greater than or equal to 1"),
        ),
        ({"restart_jitter": "nan"}, "restart_jitter", "Enter a number"),
        ({"recovery_target_s": "0"}, "recovery_target_s", "greater than or equal to 0.001"),
        ({"recovery_target_s": "2592001"}, "recovery_target_s", "less than or equal to 2592000"),
        ({"recovery_target_s": "soon"}, "recovery_target_s", "Enter a number"),
        ({"recovery_target_s": "nan"}, "recovery_target_s", "Enter a number"),
        ({"parameters": "rate"}, "parameters", "one “name=text” per line"),
        ({"labels": "team"}, "labels", "one “name: text” per line"),
        ({"labels": f"team: {'x' * 201}"}, "labels", "at most 200 characters"),
        ({"restore": "latest"}, "restore", "no latest checkpoint"),
        ({"restore": "chk-7"}, "restore", "has to be absolute"),
        ({"claims": "on"}, "claims", "give restore as well"),
        ({"spark_conf": "spark.driver.memory"}, "spark_conf", "per line"),
    ],
)
def test_what_is_wrong_is_said_beside_its_field(
    operator: Client, fields: dict[str, str], field: str, words: str
) -> None:
    response = operator.post(PAGE, filled(**fields))
    assert response.status_code == 400
    page = response.content.decode()
    assert words in error_of(page, field)
    assert "The job was not submitted" in page
    assert not Job.objects.exists()
    for name, text in fields.items():  # What was filled in is still there.
        if name in ("restore", "parallelism", "script", "recovery_target_s"):
            assert f'value="{text}"' in page


@pytest.mark.parametrize(
    ("file", "words"),
    [
        (lambda: script(b""), "empty"),
        (lambda: script(name="orders.jar"), "ends in .py"),
        (lambda: script(b"x" * 101), "100 bytes"),
    ],
)
def test_a_file_that_is_no_pipeline_is_refused(
    operator: Client,
    settings: Settings,
    file: Callable[[], SimpleUploadedFile],
    words: str,
) -> None:
    settings.WEIR_UPLOAD_BYTES_MAX = 100
    response = operator.post(PAGE, filled(kind="upload", file=file()))
    assert response.status_code == 400
    assert words in error_of(response.content.decode(), "file")
    assert not Artifact.objects.exists()
    assert not Job.objects.exists()


def test_folded_fields_are_open_where_one_is_wrong(operator: Client) -> None:
    assert '<details class="card" open>' not in operator.get(PAGE).content.decode()
    page = operator.post(PAGE, filled(restore="latest")).content.decode()
    assert '<details class="card" open>' in page
    assert '<details class="card" open>' in operator.get(f"{PAGE}?restore=/a").content.decode()


# The page --------------------------------------------------------------------------------------


def test_a_link_fills_in_fields(operator: Client) -> None:
    page = operator.get(f"{PAGE}?name=late&script=shop/orders.py&parallelism=3").content.decode()
    for words in ('value="late"', 'value="shop/orders.py"', 'value="3"'):
        assert words in page
    assert re.search(r'value="script"[^>]*checked', page)


def test_only_the_field_of_the_chosen_kind_is_needed(operator: Client) -> None:
    page = operator.post(PAGE, filled(kind="upload", name="")).content.decode()
    assert error_of(page, "file") == "A pipeline of this kind needs this field."
    assert error_of(page, "module") == error_of(page, "script") == ""
    for label in ("Module", "Script", "Python script"):
        assert f"{label} <span" not in operator.get(PAGE).content.decode()


def test_savepoints_that_can_be_restored_are_offered(operator: Client) -> None:
    job = flights.running()
    factories.savepoint(job, "before-migration", 3)
    factories.savepoint(job, "failed", 4, status=CheckpointStatus.FAILED)
    factories.savepoint(job, "not-yet", None)
    assert [said for _, said in choices.savepoints()] == [f"before-migration of flights ({job.pk})"]
    assert "savepoints/before-migration" in operator.get(PAGE).content.decode()


def test_text_of_others_is_escaped(operator: Client, tmp_path: Path) -> None:
    uploads.store(None, "<b>.py", [b"pass"])
    (tmp_path / "scripts" / "<i>.py").write_text("")
    job = flights.running()
    factories.savepoint(job, SCRIPT, 3)
    Job.objects.filter(pk=job.pk).update(name=SCRIPT)
    for page in (
        operator.get(PAGE, {"name": SCRIPT, "restore": SCRIPT}),
        operator.post(PAGE, filled(name=SCRIPT, module=SCRIPT, parameters=SCRIPT)),
    ):
        text = page.content.decode()
        assert not any(raw in text for raw in (SCRIPT, "<b>.py", "<i>.py"))


def test_scripts_are_found_without_following_links_out(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    for directory in (root / "b", root / ".git", root / "__pycache__", outside):
        directory.mkdir(parents=True)
        (directory / "x.py").write_text("")
    (root / "a.py").write_text("")
    (root / "__init__.py").write_text("")
    (root / "linked").symlink_to(outside)
    assert choices.scripts([root, tmp_path / "none"]) == ["a.py", "b/x.py"]


def test_a_file_server_that_hangs_holds_no_request(
    operator: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    offered = '<option value="shop/orders.py">'
    assert offered in operator.get(PAGE).content.decode()
    by_script = filled(kind="script", script="shop/orders.py")
    with hung(monkeypatch):
        page = operator.get(PAGE).content.decode()
        assert "The files of pipelines cannot be reached" in page
        assert offered not in page
        assert operator.post(PAGE, by_script).status_code == 503
        uploaded = operator.post(PAGE, filled(kind="upload", file=script())).content.decode()
        assert "cannot be reached" in error_of(uploaded, "file")
    assert not Job.objects.exists()
    assert operator.post(PAGE, by_script).status_code == 302


def test_errors_of_a_body_are_flattened_to_their_fields() -> None:
    errors = {"pipeline": {"module": ["A", "B"]}, "name": ["C"], "spark_conf": {"x": {"y": "D"}}}
    assert list(flattened(errors)) == [
        ("pipeline.module", "A"),
        ("pipeline.module", "B"),
        ("name", "C"),
        ("spark_conf.x.y", "D"),
    ]


def test_nothing_is_submitted_by_looking(operator: Client) -> None:
    operator.get(PAGE, filled())
    assert not Operation.objects.exists()
