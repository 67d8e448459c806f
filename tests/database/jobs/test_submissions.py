from pathlib import Path
from typing import Any

import pytest
from django.db import IntegrityError, transaction
from pytest_django.fixtures import Settings

from controlplane.accounts.models import User
from controlplane.base.errors import Invalid
from jobs import services, uploads
from jobs.models import Job
from jobs.submissions import check
from tests.database.jobs.builders import submission, submitted

pytestmark = pytest.mark.django_db


def refused(**given: Any) -> dict[str, list[str]]:
    with pytest.raises(Invalid) as raised:
        check(submission(**given))
    assert not Job.objects.exists()
    errors: dict[str, list[str]] = raised.value.extra["errors"]
    return errors


def test_what_is_left_open_is_filled_in(directories: Path, settings: Settings) -> None:
    settings.WEIR_SPARK_MASTER = "local[3]"
    checked = check(submission())
    assert checked.pipeline_target == str((directories / "scripts" / "pipeline.py").resolve())
    assert checked.spark_master == "local[3]"
    assert checked.storage == str(directories / "checkpoints")


def test_script_outside_the_roots_is_refused(directories: Path) -> None:
    (directories / "secret.py").write_text("x = 1\n")
    for target in (
        "../secret.py",
        str(directories / "secret.py"),
        "missing.py",
        "",
        "nul\0.py",
        ".",
        "x" * 5_000,
    ):
        assert "pipeline_target" in refused(pipeline_target=target), target


def test_symbolic_link_leads_out_of_no_root(directories: Path) -> None:
    (directories / "secret.py").write_text("x = 1\n")
    link = directories / "scripts" / "link.py"
    link.symlink_to(directories / "secret.py")
    assert "pipeline_target" in refused(pipeline_target="link.py")
    ring = directories / "scripts" / "ring.py"
    ring.symlink_to(ring)
    assert "pipeline_target" in refused(pipeline_target="ring.py")


def test_symbolic_link_within_the_root_is_followed(directories: Path) -> None:
    link = directories / "scripts" / "link.py"
    link.symlink_to(directories / "scripts" / "pipeline.py")
    assert check(submission(pipeline_target="link.py")).pipeline_target.endswith("/pipeline.py")


def test_without_script_roots_scripts_are_refused(settings: Settings) -> None:
    settings.WEIR_SCRIPT_ROOTS = []
    assert "upload" in refused()["pipeline_target"][0]


@pytest.mark.parametrize("target", ["", "a-b", "os; rm", ".a", "a..b", "1a", "a/b", "--help"])
def test_module_has_a_dotted_name(target: str) -> None:
    assert "pipeline_target" in refused(pipeline_kind="module", pipeline_target=target)


def test_module_is_taken() -> None:
    checked = check(submission(pipeline_kind="module", pipeline_target="weir.examples.flights"))
    assert checked.pipeline_target == "weir.examples.flights"


def test_upload_is_found_by_its_digest(operator: User) -> None:
    artifact = uploads.store(operator, "orders.py", [b"x = 1\n"])
    job = submitted(
        operator,
        pipeline_kind="upload",
        pipeline_target="",
        artifact_digest=artifact.digest,
    )
    assert (job.artifact, job.pipeline_target) == (artifact, "orders.py")


@pytest.mark.parametrize("digest", [None, "", "0" * 64, "../../etc/passwd"])
def test_unknown_upload_is_refused(digest: str | None) -> None:
    errors = refused(pipeline_kind="upload", pipeline_target="", artifact_digest=digest)
    assert list(errors) == ["artifact_digest"]


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("parallelism", 0),
        ("parallelism", -1),
        ("parallelism", 32_769),
        ("parallelism", 2**40),
        ("parallelism", True),
        ("parallelism", "4"),
        ("parallelism", 1.5),
        ("interval_ms", 9),
        ("interval_ms", False),
        ("interval_ms", 2**31),
        ("timeout_ms", 9),
        ("min_pause_ms", -1),
        ("retained_max", 0),
        ("retained_max", 2**31),
        ("restart", "none"),
        ("restart", {"delay_ms": 1}),
        ("restart", {"kind": "often"}),
        ("restart", {"kind": "none", "delay_ms": 1}),
        ("restart", {"kind": "fixed_delay", "ends_on_repeated_error": False}),
        ("restart", {"kind": "fixed_delay", "attempts_max": -1}),
        ("restart", {"kind": "fixed_delay", "attempts_max": True}),
        ("restart", {"kind": "failure_rate", "failures_max": 2**31}),
        ("restart", {"kind": "exponential_delay", "backoff_multiplier": 0.5}),
        ("restart", {"kind": "exponential_delay", "backoff_multiplier": 1_000_001}),
        ("restart", {"kind": "exponential_delay", "backoff_multiplier": float("inf")}),
        ("restart", {"kind": "exponential_delay", "jitter": 1.1}),
        ("restart", {"kind": "exponential_delay", "jitter": float("nan")}),
        ("mode", "exactly-once"),
        ("mode", ["exactly_once"]),
        ("restore", "latest"),
        ("restore", "chk-7"),
        ("restore", 7),
        ("parameters", {"a": 1}),
        ("parameters", {"": "x"}),
        ("parameters", {"a": "\0"}),
        ("parameters", ["a"]),
        ("parameters", {"a": "x" * (64 << 10)}),
        ("allow_pickled_state", "yes"),
        ("allow_non_restored_state", 1),
        ("storage", "/elsewhere"),
        ("master", "local[2]"),
    ],
)
def test_option_out_of_range_is_refused_by_name(option: str, value: Any) -> None:
    assert list(refused(options={option: value})) == [f"options.{option}"]


def test_options_are_stored_as_they_are() -> None:
    options = {
        "parallelism": 4,
        "interval_ms": 500,
        "mode": "at_least_once",
        "timeout_ms": 60_000,
        "min_pause_ms": 0,
        "retained_max": 1,
        "restart": {"kind": "exponential_delay", "jitter": 0, "backoff_multiplier": 1.5},
        "parameters": {"rate": "100"},
        "allow_pickled_state": True,
    }
    assert submitted(options={**options, "allow_non_restored_state": None}).options == options


def test_what_to_begin_with_is_the_jobs_and_no_option() -> None:
    job = submitted(options={"restore": "/moved/savepoint/", "claims": True, "parallelism": 2})
    assert (job.restore_uri, job.restore_claims) == ("/moved/savepoint", True)
    assert (job.restore_job, job.origin, job.origin_uri) == (None, None, "/moved/savepoint")
    assert job.options == {"parallelism": 2}


@pytest.mark.parametrize("place", ["a/b", "/a/../b", "file:///a/%2e%2e/b", "/a\n"])
def test_what_names_no_place_is_not_restored(place: str) -> None:
    assert list(refused(options={"restore": place})) == ["options.restore"]


def test_nothing_is_claimed_where_nothing_is_restored() -> None:
    assert list(refused(options={"claims": True})) == ["options.claims"]


@pytest.mark.parametrize("master", ["local[x]", "mesos://a", "yarn --conf a", "local[2] ", "spark"])
def test_unknown_master_is_refused(master: str) -> None:
    assert list(refused(spark_master=master)) == ["spark_master"]


@pytest.mark.parametrize(
    "conf",
    [
        {"spark.master": "local"},
        {"spark.submit.deployMode": "cluster"},
        {"not.spark": "1"},
        {"spark.a b": "1"},
        {"spark.a": 1},
        {"spark.a": "line\nbreak"},
    ],
)
def test_spark_settings_are_checked(conf: dict[str, Any]) -> None:
    assert list(refused(spark_conf=conf)) == ["spark_conf"]


@pytest.mark.parametrize("storage", ["relative/path", "gopher://x", "x" * 501, "/a\0b"])
def test_storage_is_checked(storage: str) -> None:
    assert list(refused(storage=storage)) == ["storage"]


@pytest.mark.parametrize(
    "target_s", [0, -1, 0.0009, 2_592_000.1, float("nan"), float("inf"), 10**400, True, "30"]
)
def test_recovery_target_is_checked(target_s: Any) -> None:
    assert list(refused(recovery_target_s=target_s)) == ["recovery_target_s"]
    job = submitted()
    with pytest.raises(Invalid) as raised:
        services.set_recovery_target(None, job.pk, target_s)
    assert list(raised.value.extra["errors"]) == ["recovery_target_s"]
    job.refresh_from_db()
    assert job.recovery_target_s is None


@pytest.mark.parametrize("target_s", [0.001, 30, 2_592_000])
def test_recovery_target_is_the_jobs_and_no_option(target_s: float) -> None:
    job = submitted(recovery_target_s=target_s)
    assert (job.recovery_target_s, job.options) == (target_s, {})


@pytest.mark.parametrize("target_s", [0.0, -1.0, 2_592_001.0, float("nan")])
def test_no_row_has_a_recovery_target_out_of_bounds(target_s: float) -> None:
    job = submitted()
    with pytest.raises(IntegrityError), transaction.atomic():
        Job.objects.filter(pk=job.pk).update(recovery_target_s=target_s)


@pytest.mark.parametrize("name", ["", "  ", "x" * 101, "a\nb"])
def test_name_is_checked(name: str) -> None:
    assert list(refused(name=name)) == ["name"]


def test_everything_wrong_is_named_at_once() -> None:
    errors = refused(name="", pipeline_kind="jar", storage="x", options={"paralellism": 1})
    assert set(errors) == {"name", "pipeline_kind", "storage", "options.paralellism"}


def test_refused_submission_leaves_no_trace(operator: User) -> None:
    with pytest.raises(Invalid):
        services.submit(operator, submission(name=""), key="k")
    assert services.submit(operator, submission(), key="k").status == "pending"


@pytest.mark.parametrize(
    ("name", "slug"), [("Größe 7", "gr-e-7"), ("???", "job"), ("a" * 100, "a" * 60)]
)
def test_job_id_is_a_plain_directory_name(name: str, slug: str) -> None:
    job = submitted(name=name)
    assert job.pk.rpartition("-")[0] == slug
    assert len(job.pk.rpartition("-")[2]) == 8
