"""The settings of a job, as its configuration tab shows them."""

from dataclasses import fields
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from controlplane.accounts.models import Role
from controlplane.base import clock
from frontend.about import configuration
from frontend.about.configuration import Setting, Source
from frontend.about.setting_labels import CHANNELS, CHECKPOINTS, JOB, NESTED, RESTART, STATE
from jobs.events import plans
from jobs.models import Job
from jobs.redaction import HIDDEN, shown, without_credentials
from tests import factories
from tests.database.frontend import flights
from weir.config import ChannelConfig, CheckpointConfig, JobConfig, RestartConfig, StateConfig
from weir.config import RestartStrategyKind as Kind
from weir.protocol.deployment import Versions
from weir.protocol.driver_messages import JobPlanned
from weir.protocol.lifecycle import JobStatus
from weir.protocol.wire import to_wire

SCRIPT = "<script>alert(1)</script>"


def unsaved(**columns: Any) -> Job:
    """A job that only the pure functions see."""
    return Job(
        **{
            "id": "flights-1",
            "name": "flights",
            "pipeline_kind": "module",
            "pipeline_target": "weir.examples.flights",
            "spark_master": "local[*]",
            "storage": "/checkpoints",
            "created_at": clock.from_ms(0),
        }
        | columns
    )


def planned(
    checkpoints: CheckpointConfig | None = None,
    restart: RestartConfig | None = None,
    settings: dict[str, Any] | None = None,
    **columns: Any,
) -> Job:
    """One whose pipeline has built its graph."""
    return unsaved(
        checkpoint_config=to_wire(checkpoints or CheckpointConfig()),
        restart_config=to_wire(restart or RestartConfig()),
        settings={"parallelism": 1, "max_parallelism": None} | (settings or {}),
        **columns,
    )


def settings_of(job: Job, group: str) -> dict[str, Setting]:
    groups = configuration.setting_groups(
        job, None, server_storage="/checkpoints", server_master="local[*]"
    )
    (one,) = [one for one in groups if one.key == group]
    return {setting.name or setting.label: setting for setting in one.settings}


@pytest.mark.parametrize(
    ("config", "words", "aside"),
    [
        (CheckpointConfig, CHECKPOINTS, ()),
        (RestartConfig, RESTART, ()),
        (ChannelConfig, CHANNELS, ()),
        (StateConfig, STATE, ()),
        (JobConfig, JOB, NESTED),
    ],
)
def test_every_setting_is_explained(config: type, words: Any, aside: tuple[str, ...]) -> None:
    assert set(words) == {field.name for field in fields(config)} - set(aside)
    for name, said in words.items():
        assert said.help.endswith("."), name
        value = getattr(config(), name)
        assert said.none if value is None else said.write(value)


def test_a_value_says_where_it_is_from() -> None:
    job = planned(
        CheckpointConfig(interval_ms=5_000, timeout_ms=60_000),
        options={"interval_ms": 5_000, "parallelism": 4},
        settings={"parallelism": 4},
    )
    by_name = settings_of(job, "checkpointing")
    assert (by_name["interval_ms"].value, by_name["interval_ms"].source) == (
        "5 s",
        Source.SUBMITTED,
    )
    assert (by_name["timeout_ms"].value, by_name["timeout_ms"].source) == (
        "1 min 00 s",
        Source.PIPELINE,
    )
    assert (by_name["mode"].value, by_name["mode"].source) == ("exactly once", Source.DEFAULT)
    assert by_name["alignment_timeout_ms"].value == "none: always aligned"
    assert settings_of(job, "execution")["parallelism"].source is Source.SUBMITTED


def test_before_the_pipeline_has_spoken_what_was_submitted_is_known() -> None:
    job = unsaved(options={"interval_ms": 250, "mode": "at_least_once"})
    by_name = settings_of(job, "checkpointing")
    assert {name: one.value for name, one in by_name.items()} == {
        "interval_ms": "250 ms",
        "mode": "at least once",
    }
    assert settings_of(job, "restart") == {}


def test_a_submitted_restart_strategy_is_told_from_the_pipelines() -> None:
    submitted = {"kind": "fixed_delay", "attempts_max": 3}
    restart = RestartConfig(kind=Kind.FIXED_DELAY, attempts_max=3, delay_ms=7_000)
    job = planned(CheckpointConfig(interval_ms=500, retained_max=5, timeout_ms=9_000), restart)
    job.options = {"restart": submitted, "retained_max": 5, "timeout_ms": 8_000}
    by_name = settings_of(job, "restart")
    assert {name: setting.source for name, setting in by_name.items()} == {
        "kind": Source.SUBMITTED,
        "attempts_max": Source.SUBMITTED,
        "delay_ms": Source.PIPELINE,
    }
    checkpoints = settings_of(job, "checkpointing")
    assert checkpoints["retained_max"].source is Source.SUBMITTED
    assert checkpoints["timeout_ms"].source is Source.PIPELINE
    job.restart_config = None  # Not planned yet.
    assert {name: setting.value for name, setting in settings_of(job, "restart").items()} == {
        "kind": "fixed delay",
        "attempts_max": "3",
    }


@pytest.mark.parametrize(
    ("restart", "interval_ms", "shown_too"),
    [
        (RestartConfig(), None, set()),
        (RestartConfig(), 1_000, {"initial_backoff_ms", "max_backoff_ms", "backoff_multiplier",
                                  "reset_after_ms", "jitter"}),
        (RestartConfig(kind=Kind.NONE), 1_000, set()),
        (RestartConfig(kind=Kind.FIXED_DELAY), 1_000, {"attempts_max", "delay_ms"}),
        (
            RestartConfig(kind=Kind.FAILURE_RATE),
            1_000,
            {"failures_max", "failure_interval_ms", "delay_ms"},
        ),
    ],
)  # fmt: skip
def test_a_restart_strategy_shows_what_it_goes_by(
    restart: RestartConfig, interval_ms: int | None, shown_too: set[str]
) -> None:
    by_name = settings_of(planned(CheckpointConfig(interval_ms=interval_ms), restart), "restart")
    assert set(by_name) == {"kind"} | shown_too
    assert by_name["kind"].source is (Source.DEFAULT if restart.kind is None else Source.PIPELINE)


def test_the_recovery_target_is_shown() -> None:
    for target_s, text, source in (
        (None, "none", Source.DEFAULT),
        (0.5, "500 ms", Source.SUBMITTED),
        (90.0, "1 min 30 s", Source.SUBMITTED),
    ):
        one = settings_of(unsaved(recovery_target_s=target_s), "pipeline")["recovery_target_s"]
        assert (one.value, one.source) == (text, source)


def test_places_are_the_server_s_or_submitted() -> None:
    job = planned(origin_uri="s3://me:pw@bucket/sp", restore_claims=True)
    by_name = settings_of(job, "storage")
    assert by_name["storage"].source is Source.SERVER
    assert by_name["origin_uri"].value == f"s3://{HIDDEN}@bucket/sp"
    assert "claimed it and deletes it" in by_name["origin_uri"].help
    elsewhere = planned(storage="/mine", spark_master="yarn")
    assert settings_of(elsewhere, "storage")["storage"].source is Source.SUBMITTED
    assert settings_of(elsewhere, "spark")["spark_master"].source is Source.SUBMITTED


def test_secrets_are_hidden_by_their_names() -> None:
    job = unsaved(
        options={"parameters": {"rate": "100", "db.Password": "pw", "url": "pg://me:pw@host/db"}},
        spark_conf={"spark.hadoop.fs.s3a.secret.key": "pw", "spark.executor.memory": "2g"},
    )
    by_name = settings_of(job, "parameters")
    assert (by_name["rate"].value, by_name["db.Password"].value) == ("100", HIDDEN)
    assert by_name["url"].value == f"pg://{HIDDEN}@host/db"
    spark = settings_of(job, "spark")
    assert spark["spark.hadoop.fs.s3a.secret.key"].value == HIDDEN
    assert spark["spark.executor.memory"].value == "2g"


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("password", "x", HIDDEN),
        ("password", "", ""),
        ("AWS_ACCESS_KEY_ID", "x", HIDDEN),
        ("api-key", ["x", "y"], [HIDDEN, HIDDEN]),
        ("a", {"token": "x", "b": {"secret": "y"}}, {"token": HIDDEN, "b": {"secret": HIDDEN}}),
        ("allow_token", True, True),
        ("keyed", "x", "x"),
        ("storage", "/plain/@path", "/plain/@path"),
    ],
)  # fmt: skip
def test_what_is_a_secret(name: str, value: Any, text: Any) -> None:
    assert shown(name, value) == text


def test_credentials_in_addresses_are_hidden() -> None:
    said = without_credentials("from ftp://a:b@h/x to http://h/@y and s3://k@b")
    assert said == f"from ftp://{HIDDEN}@h/x to http://h/@y and s3://{HIDDEN}@b"


# The page --------------------------------------------------------------------------------------


@pytest.fixture
def job(db: None) -> Job:
    job = flights.running()
    Job.objects.filter(pk=job.pk).update(
        restart_config=to_wire(RestartConfig()),
        options={"parallelism": 2, "parameters": {"rate": "100", "api_token": "very secret"}},
        settings={"parallelism": 2, "channels": to_wire(ChannelConfig())},
    )
    return job


def test_everybody_who_is_logged_in_may_look(client: Client, viewer: Client, job: Job) -> None:
    address = f"/jobs/{job.pk}/configuration/"
    assert client.get(address)["Location"] == f"/login/?next={address}"
    admin = Client()
    admin.force_login(factories.user(Role.ADMIN))
    for browser in (viewer, admin):
        page = browser.get(address).content.decode()
        assert "very secret" not in page
        for words in ("weir.examples.flights", "Window Aggregate", "hourly-sink"):
            assert words in page
        assert '<span class="tag" data-source="submitted"' in page
    assert viewer.get("/jobs/none/configuration/").status_code == 404


@pytest.mark.parametrize("status", list(JobStatus))
def test_it_shows_a_job_in_every_state(viewer: Client, status: JobStatus) -> None:
    page = viewer.get(f"/jobs/{factories.job(status=status).pk}/configuration/")
    assert page.status_code == 200
    assert "not known until the pipeline has built its graph" in page.content.decode()


def test_the_number_of_queries_is_fixed(viewer: Client, job: Job) -> None:
    with CaptureQueriesContext(connection) as queries:
        viewer.get(f"/jobs/{job.pk}/configuration/")
    assert len(queries) == 2 + 3  # Session and user; job, driver, operators.


def test_text_of_others_is_escaped(viewer: Client, job: Job) -> None:
    Job.objects.filter(pk=job.pk).update(
        name=SCRIPT,
        planned_name=SCRIPT,
        pipeline_target=SCRIPT,
        options={"parameters": {SCRIPT: SCRIPT}},
        spark_conf={"spark.x": SCRIPT},
        origin_uri=SCRIPT,
    )
    job.operators.filter(uid="hourly").update(name=SCRIPT, files=SCRIPT)
    page = viewer.get(f"/jobs/{job.pk}/configuration/").content.decode()
    assert SCRIPT not in page
    assert "&lt;script&gt;" in page


@pytest.mark.parametrize(
    ("protection", "words"),
    [
        ("encrypted", "Encrypted"),
        ("local", "Authenticated; nothing leaves the driver’s machine"),
        ("plain", "Not encrypted"),
    ],
)
def test_the_protection_of_the_network_is_shown(
    viewer: Client, job: Job, protection: str, words: str
) -> None:
    job.settings = {**job.settings, "network": protection}
    Job.objects.filter(pk=job.pk).update(settings=job.settings)
    page = viewer.get(f"/jobs/{job.pk}/configuration/").content.decode()
    assert words in page
    assert viewer.get(f"/api/v1/jobs/{job.pk}").json()["settings"]["network"] == protection


def test_the_versions_that_a_driver_reported_are_shown(viewer: Client, job: Job) -> None:
    plan = JobPlanned(
        at_ms=0,
        name="flights",
        operators=(),
        edges=(),
        checkpoints=CheckpointConfig(),
        restart=RestartConfig(),
        slot_count=2,
        versions=Versions("1.2.3", "3.11", "21.0.0"),
        spark_application="local-1",
        settings={"parallelism": 2},
    )
    plans.store(job, job.drivers.get(), plan, clock.now())
    page = viewer.get(f"/jobs/{job.pk}/configuration/").content.decode()
    for version in ("1.2.3", "3.11", "21.0.0"):
        assert f"<td>{version}</td>" in page
