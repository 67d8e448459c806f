"""Jobs through the API: shown, submitted, cancelled, restarted."""

import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from pytest_django import Settings
from rest_framework.test import APIClient

from controlplane.accounts.models import Role, User
from controlplane.audit.models import AuditEntry
from controlplane.base import clock
from jobs import operations
from jobs.drivers import driver_files
from jobs.models import Attempt, Driver, Job, Operation, Worker
from tests import factories
from tests.database.api import whole_jobs
from tests.database.api.conftest import API, client_of

MODULE = {"name": "flights", "pipeline": {"kind": "module", "module": "weir.examples.flights"}}


def is_problem(answer: Any, status: int, code: str) -> dict[str, Any]:
    """The document, after a look at what each one has to have."""
    assert answer.status_code == status, answer.content
    assert answer["Content-Type"] == "application/problem+json"
    document: dict[str, Any] = answer.json()
    assert (document["status"], document["code"]) == (status, code)
    assert document["type"] == f"urn:weir:problem:{code}"
    assert document["title"]
    assert document["detail"]
    assert document["instance"].startswith(API)
    assert document["request_id"] == answer["X-Request-ID"]
    return document


# Reading ------------------------------------------------------------------------------------------


def test_a_job_shows_what_its_checkpoints_come_to(api: APIClient, operator: User) -> None:
    job = factories.job(created_by=operator)
    factories.coordinator(job, next_trigger_at=clock.now() + timedelta(seconds=1))
    hour_ago = clock.now() - timedelta(hours=1)
    factories.checkpoint(job, 1, status="failed")
    factories.checkpoint(job, 2)
    factories.checkpoint(job, 3, settled_at=hour_ago, duration_ms=250)
    factories.checkpoint(job, 4, status="failed")
    factories.checkpoint(job, 5, status="failed")
    factories.checkpoint(job, 6, status="pending")
    factories.checkpoint(factories.job("other"), 9)

    for shown in (
        api.get(f"{API}jobs/{job.pk}").json(),
        next(j for j in api.get(f"{API}jobs").json()["results"] if j["id"] == job.pk),
    ):
        summary = shown["checkpoints"]
        assert summary["last"]["number"] == 3
        assert summary["last"]["duration_ms"] == 250
        assert 3_600_000 <= summary["age_ms"] < 3_660_000
        assert summary["failures_since_last"] == 2
        assert summary["next_at"] is not None
        assert shown["created_by"] == "mara"


def test_a_job_without_a_checkpoint_has_no_age(api: APIClient) -> None:
    job = factories.job()
    factories.checkpoint(job, 1, status="failed")
    assert api.get(f"{API}jobs/{job.pk}").json()["checkpoints"] == {
        "last": None,
        "age_ms": None,
        "failures_since_last": 1,
        "next_at": None,
    }


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("status=running", {"alpha"}),
        ("status=running&status=failed", {"alpha", "beta"}),
        ("name=ALPH", {"alpha"}),
        ("pipeline_kind=upload", set()),
        ("created_by=mara", {"alpha"}),
        ("created_after=2020-01-01T00:00:00Z", {"alpha", "gamma"}),
        ("created_before=2020-01-01T00:00:00Z", {"beta"}),
        ("created_before=2020-01-01T00:00:00%2B00:00&status=running", set()),
    ],
)
def test_jobs_are_filtered(api: APIClient, operator: User, query: str, names: set[str]) -> None:
    now = clock.now()
    factories.job("alpha", created_by=operator)
    factories.job("beta", status="failed", ended_at=now, created_at=now - timedelta(days=5_000))
    factories.job("gamma", status="canceled", ended_at=now)
    answer = api.get(f"{API}jobs?{query}")
    assert {job["name"] for job in answer.json()["results"]} == names


@pytest.mark.parametrize(
    "query",
    [
        "status=dead",
        "created_after=yesterday",
        "created_after=0001-01-01T00:00:00%2B23:59",
        "created_before=9999-12-31T23:59:59-23:59",
        "name=%00",
        "pipeline_kind=",
    ],
)
def test_a_filter_is_refused_or_applied_but_never_an_error(api: APIClient, query: str) -> None:
    assert api.get(f"{API}jobs?{query}").status_code in (200, 400)


def test_a_job_shows_its_parts(api: APIClient, operator: User) -> None:
    job = whole_jobs.everything(operator)
    at = f"{API}jobs/{job.pk}/"

    graph = api.get(at + "graph").json()
    assert [operator["uid"] for operator in graph["operators"]] == ["source", "totals", "sink"]
    assert [(e["source"], e["target"]) for e in graph["edges"]] == [
        ("source", "totals"),
        ("totals", "sink"),
    ]
    subtasks = api.get(at + "subtasks").json()["results"]
    assert [(s["chain"], s["index"]) for s in subtasks] == [
        ("source", 0),
        ("source", 1),
        ("totals", 0),
        ("totals", 1),
    ]
    (attempt,) = api.get(at + "attempts").json()["results"]
    assert (attempt["driver"], [w["pid"] for w in attempt["workers"]]) == (2, [100, 101])
    assert [w["memory_bytes"] for w in attempt["workers"]] == [None, None]
    assert attempt["gave_up"] is False
    Attempt.objects.update(gave_up=True)
    assert [w["memory_limit_source"] for w in attempt["workers"]] == ["", ""]
    Worker.objects.filter(slot_index=1).update(
        memory_bytes=1 << 33, memory_limit_bytes=1 << 34, memory_limit_source="cgroup"
    )
    (attempt,) = api.get(at + "attempts").json()["results"]
    assert [w["memory_bytes"] for w in attempt["workers"]] == [None, 1 << 33]
    assert [w["memory_limit_bytes"] for w in attempt["workers"]] == [None, 1 << 34]
    assert [w["memory_limit_source"] for w in attempt["workers"]] == ["", "cgroup"]
    assert attempt["gave_up"] is True
    drivers = api.get(at + "drivers").json()["results"]
    assert [(d["number"], d["status"]) for d in drivers] == [(2, "running"), (1, "lost")]
    assert drivers[0]["log_url"].endswith(f"/jobs/{job.pk}/drivers/2/log")
    (exception,) = api.get(at + "exceptions").json()["results"]
    assert exception["text"] == "the driver was killed"
    (operation,) = api.get(at + "operations").json()["results"]
    assert operation == api.get(operation["url"]).json()
    shown = api.get(at.rstrip("/")).json()
    assert shown["driver"]["number"] == 2
    assert "token" not in str(shown["driver"])


def test_a_job_shows_its_events_the_newest_first(api: APIClient, operator: User) -> None:
    job, other = whole_jobs.everything(operator), whole_jobs.everything(operator)
    factories.event(job, 1)
    aborted = {"planned": True, "reason": "job_restarted", "kind": "checkpoint.aborted"}
    factories.event(job, 2, **aborted)
    factories.event(other, 3)
    at = f"{API}jobs/{job.pk}/events"
    newest, oldest = api.get(at).json()["results"]
    assert (newest["facts"], newest["planned"]) == ({"checkpoint": 2}, True)
    assert (newest["kind"], newest["reason"]) == ("checkpoint.aborted", "job_restarted")
    assert (oldest["id"], oldest["reason"]) == (newest["id"] - 1, "")
    assert api.get(f"{at}?planned=false").json()["results"] == [oldest]
    assert api.get(f"{at}?kind=checkpoint.aborted").json()["results"] == [newest]
    assert api.get(f"{at}?ordering=id").json()["results"] == [oldest, newest]
    assert api.get(f"{at}?kind=unheard").status_code == 400


def test_a_subtask_shows_what_it_does(api: APIClient, operator: User) -> None:
    job = whole_jobs.everything(operator)
    at = f"{API}jobs/{job.pk}/subtasks"
    fresh = api.get(at).json()["results"][0]
    assert (fresh["rates"], fresh["aligning"], fresh["stall"]) == (None, None, None)
    rates = {
        "window_ms": 2_000.0, "records_in_per_s": 1.5, "records_out_per_s": 1.5,
        "bytes_in_per_s": 12.0, "bytes_out_per_s": 12.0,
        "busy": 0.25, "idle": 0.5, "back_pressured": 0.25, "cpu_wait": 0.125,
    }  # fmt: skip
    gate = {
        "gate": 0, "upstream": ["source-0", "source-1"], "arrived_ms": [0.0, None],
        "blocked_ms": [300.0, 0.0], "bytes_during": [0, 10], "ended": [False, False],
    }  # fmt: skip
    aligning = {"checkpoint": 4, "since_ms": 1_000, "waited_ms": 300.0, "gates": [gate]}
    stall = {"since_ms": 1_000, "stalled_ms": 1_200.0, "stack": "in look_up\n"}
    counted = {"records_in": 9, "bad_records": 2}
    job.subtasks.filter(chain="totals", index=1).update(
        rates=rates, aligning=aligning, stall=stall, metrics=counted
    )
    shown = api.get(at).json()["results"][3]
    assert shown["metrics"] == counted
    assert (shown["rates"], shown["aligning"], shown["stall"]) == (rates, aligning, stall)


@pytest.mark.usefixtures("standing_clock")
def test_an_operator_shows_its_load_over_time(api: APIClient, operator: User) -> None:
    job = whole_jobs.everything(operator)
    now = clock.now()
    for ago_s, busy_ms, counted in ((7_190, 0.0, 0.0), (20, 0.0, 0.0), (10, 5_000.0, 40.0)):
        factories.chain_sample(
            job,
            at=now - timedelta(seconds=ago_s),
            records_in=counted,
            busy_ms=busy_ms,
            idle_ms=0.0 if busy_ms == 0 else 15_000.0,
            back_pressured_ms=0.0,
        )
    at = f"{API}jobs/{job.pk}/operators/totals/series"
    shown = api.get(at).json()
    assert (shown["operator"], shown["chain"]) == ("totals", "totals")
    first, second = shown["points"]
    assert (first["records_in_per_s"], second["records_in_per_s"]) == (None, 4)
    assert (second["busy"], second["busiest"], second["state_bytes"]) == (0.25, 0.4, 80_000)
    assert second["at"] == (now - timedelta(seconds=10)).isoformat().replace("+00:00", "Z")
    assert len(api.get(f"{at}?last_s=7200").json()["points"]) == 3
    assert api.get(f"{at}?last_s=7").status_code == 400
    assert api.get(at.replace("totals", "unheard/of%00")).status_code == 404
    assert api.get(at.replace("totals", "unheard/of")).status_code == 404


def test_a_job_shows_its_checkpoints(api: APIClient, operator: User) -> None:
    job = whole_jobs.everything(operator)
    at = f"{API}jobs/{job.pk}/checkpoints"
    whole_jobs.everything(operator)

    checkpoints = api.get(at).json()["results"]
    assert [(c["number"], c["status"], c["parent"]) for c in checkpoints] == [
        (4, "completed", None),  # The savepoint.
        (3, "failed", 2),
        (2, "completed", 1),
        (1, "completed", None),
    ]
    assert api.get(checkpoints[2]["url"]).json() == checkpoints[2]
    failed = api.get(f"{at}?reason=checkpoint_expired").json()["results"]
    assert [c["number"] for c in failed] == [3]
    acks = api.get(f"{at}/2/acks").json()["results"]
    assert [(a["operator"], a["index"]) for a in acks] == [("totals", 0), ("totals", 1)]
    for one in (checkpoints[2], *acks):
        assert one["shared_bytes"] == one["state_bytes"] - one["written_bytes"]
    channels = api.get(f"{at}/2/channels?ordering=-arrived_ms&page_size=1").json()["results"]
    assert channels == [
        {
            "operator": "totals",
            "index": 1,
            "gate": 0,
            "channel": 1,
            "upstream": "source-1",
            "arrived_ms": 4.0,
            "blocked_ms": 0.0,
            "bytes_during": 0,
            "in_flight_bytes": 0,
        }
    ]
    assert api.get(f"{at}/2/channels?operator=other").json()["results"] == []
    everywhere = api.get(f"{API}checkpoints?job={job.pk}").json()["results"]
    assert [c["number"] for c in everywhere] == [4, 3, 2, 1]


# Submitting ---------------------------------------------------------------------------------------


def test_a_submission_is_a_job_and_an_operation(api: APIClient, operator: User) -> None:
    answer = api.post(
        f"{API}jobs",
        MODULE
        | {
            "parallelism": 2,
            "checkpoint_interval_ms": 1_000,
            "mode": "at_least_once",
            "checkpoint_timeout_ms": 60_000,
            "checkpoint_min_pause_ms": 500,
            "retained_checkpoints": 2,
            "restart": {"kind": "exponential_delay", "jitter": 0.5, "max_backoff_ms": 5_000},
            "parameters": {"repeat": "true"},
            "spark_conf": {"spark.executor.memory": "2g"},
        },
    )
    assert answer.status_code == 202, answer.content
    operation = answer.json()
    assert answer["Location"] == operation["url"]
    assert (operation["kind"], operation["requested_by"]) == ("submit", "mara")
    assert api.get(answer["Location"]).json() == operation

    job = Job.objects.get(pk=operation["job"])
    assert (job.name, job.pipeline_target) == ("flights", "weir.examples.flights")
    assert job.options == {
        "parallelism": 2,
        "interval_ms": 1_000,
        "mode": "at_least_once",
        "timeout_ms": 60_000,
        "min_pause_ms": 500,
        "retained_max": 2,
        "restart": {"kind": "exponential_delay", "jitter": 0.5, "max_backoff_ms": 5_000},
        "parameters": {"repeat": "true"},
    }
    assert job.spark_conf == {"spark.executor.memory": "2g"}
    assert job.created_by == operator
    assert Driver.objects.get(job=job).status == "requested"
    entry = AuditEntry.objects.get(action="job.submit")
    assert (entry.actor_name, entry.target) == ("mara", f"job/{job.pk}")
    assert entry.request_id == answer["X-Request-ID"]
    assert entry.address == "127.0.0.1"


@pytest.mark.parametrize("target_s", [0.001, 30, 2_592_000])
def test_a_job_is_submitted_with_a_recovery_target(api: APIClient, target_s: float) -> None:
    operation = api.post(f"{API}jobs", MODULE | {"recovery_target_s": target_s}).json()
    assert operation["parameters"]["recovery_target_s"] == target_s
    shown = api.get(f"{API}jobs/{operation['job']}").json()
    assert (shown["recovery_target_s"], shown["options"]) == (target_s, {})
    entry = AuditEntry.objects.get(action="job.submit")
    assert entry.after["recovery_target_s"] == target_s


def test_without_a_recovery_target_a_submission_is_what_it_was(api: APIClient) -> None:
    operation = api.post(f"{API}jobs", MODULE).json()
    assert "recovery_target_s" not in operation["parameters"]
    assert api.get(f"{API}jobs/{operation['job']}").json()["recovery_target_s"] is None


def test_a_recovery_target_is_changed_and_removed(api: APIClient) -> None:
    job = factories.job(recovery_target_s=30)
    url = f"{API}jobs/{job.pk}"
    for body, target_s in (
        ({"recovery_target_s": 2.5}, 2.5),
        ({}, 2.5),
        ({"recovery_target_s": None}, None),
        ({"recovery_target_s": None}, None),
    ):
        answer = api.patch(url, body)
        assert answer.status_code == 200, answer.content
        assert answer.json()["recovery_target_s"] == target_s
        assert answer.json() == api.get(url).json()
    entries = AuditEntry.objects.filter(action="job.set_recovery_target").order_by("pk")
    assert [(one.before, one.after) for one in entries] == [
        ({"recovery_target_s": 30.0}, {"recovery_target_s": 2.5}),
        ({"recovery_target_s": 2.5}, {"recovery_target_s": None}),
    ]


@pytest.mark.parametrize(
    "body",
    [
        {"recovery_target_s": 0},
        {"recovery_target_s": "1"},
        {"recovery_target_s": 1e9},
        {"name": ""},
    ],
)
def test_a_change_of_a_job_that_cannot_be_names_the_field(
    api: APIClient, body: dict[str, Any]
) -> None:
    job = factories.job(recovery_target_s=30)
    problem = is_problem(api.patch(f"{API}jobs/{job.pk}", body), 400, "invalid")
    assert list(problem["errors"]) == list(body)
    job.refresh_from_db()
    assert (job.recovery_target_s, job.name) == (30, "flights")


def test_secrets_of_a_submission_are_kept_and_not_shown(
    api: APIClient, admin_api: APIClient
) -> None:
    given = {
        "parameters": {
            "db.password": "hunter2",
            "url": "postgresql://me:hunter2@db/x",
            "rate": "9",
        },
        "spark_conf": {"spark.hadoop.fs.s3a.secret.key": "hunter2"},
    }
    operation = admin_api.post(f"{API}jobs", MODULE | given).json()
    job = api.get(f"{API}jobs/{operation['job']}")
    assert job.json()["options"]["parameters"]["rate"] == "9"
    for answer in (job, api.get(operation["url"])):
        assert b"hunter2" not in answer.content
    kept = Job.objects.get(pk=operation["job"])
    assert kept.options["parameters"] == given["parameters"]
    assert kept.spark_conf == given["spark_conf"]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"name": ""}, "name"),
        ({"name": "x" * 101}, "name"),
        ({"name": None}, "name"),
        ({"pipeline": "module"}, "pipeline"),
        ({"pipeline": {}}, "pipeline.kind"),
        ({"pipeline": {"kind": "module"}}, "pipeline.module"),
        ({"pipeline": {"kind": "module", "module": "os; import sys"}}, "pipeline.module"),
        ({"pipeline": {"kind": "script", "module": "a"}}, "pipeline.script"),
        ({"pipeline": {"kind": "module", "module": "a", "script": "b.py"}}, "pipeline.script"),
        ({"pipeline": {"kind": "upload", "upload": "../../etc/passwd"}}, "pipeline.upload"),
        ({"pipeline": {"kind": "upload", "upload": "0" * 64}}, "pipeline.upload"),
        ({"parallelism": 0}, "parallelism"),
        ({"parallelism": 10**20}, "parallelism"),
        ({"parallelism": "many"}, "parallelism"),
        ({"checkpoint_interval_ms": 1}, "checkpoint_interval_ms"),
        ({"checkpoint_timeout_ms": 9}, "checkpoint_timeout_ms"),
        ({"checkpoint_min_pause_ms": -1}, "checkpoint_min_pause_ms"),
        ({"retained_checkpoints": 0}, "retained_checkpoints"),
        ({"restart": {}}, "restart.kind"),
        ({"restart": {"kind": "often"}}, "restart.kind"),
        ({"restart": {"kind": "none", "delay_ms": 1}}, "restart.delay_ms"),
        ({"restart": {"kind": "fixed_delay", "delay_ms": -1}}, "restart.delay_ms"),
        ({"restart": {"kind": "fixed_delay", "ends": True}}, "restart.ends"),
        ({"mode": "maybe"}, "mode"),
        ({"recovery_target_s": 0}, "recovery_target_s"),
        ({"recovery_target_s": -5}, "recovery_target_s"),
        ({"recovery_target_s": 2_592_001}, "recovery_target_s"),
        ({"recovery_target_s": 10**400}, "recovery_target_s"),
        ({"recovery_target_s": "30"}, "recovery_target_s"),
        ({"recovery_target_s": "nan"}, "recovery_target_s"),
        ({"recovery_target_s": True}, "recovery_target_s"),
        ({"recovery_target_s": None}, "recovery_target_s"),
        ({"parameters": {"a": [1]}}, "parameters.a"),
        ({"parameters": {"a": {"b": "c"}}}, "parameters.a"),
        ({"parameters": []}, "parameters"),
        ({"parameters": {"a": "x" * 70_000}}, "parameters"),
        ({"restore": "latest"}, "restore"),
        ({"spark_conf": {"spark.executor.memory": "2\ng"}}, "spark_conf"),
        ({"checkpoint_interval": 10}, "checkpoint_interval"),
    ],
)
def test_a_submission_that_cannot_be_names_the_field(
    api: APIClient, change: dict[str, Any], field: str
) -> None:
    problem = is_problem(api.post(f"{API}jobs", MODULE | change), 400, "invalid")
    assert field in problem["errors"]
    assert not Job.objects.exists()


@pytest.mark.parametrize(
    "script",
    ["../secret.py", "/etc/passwd", "..", "link.py", "x" * 499, "notes.txt", "a/../../s.py"],
)
def test_a_script_outside_the_roots_is_refused(api: APIClient, tmp_path: Path, script: str) -> None:
    root = tmp_path / "scripts"
    root.mkdir()
    (tmp_path / "secret.py").touch()
    (tmp_path / "s.py").touch()
    (root / "notes.txt").touch()
    (root / "link.py").symlink_to(tmp_path / "secret.py")
    body = {"name": "n", "pipeline": {"kind": "script", "script": script}}
    problem = is_problem(api.post(f"{API}jobs", body), 400, "invalid")
    assert list(problem["errors"]) == ["pipeline.script"]
    assert not Job.objects.exists()


def test_a_script_below_a_root_is_taken(api: APIClient, tmp_path: Path) -> None:
    (tmp_path / "scripts" / "shop").mkdir(parents=True)
    script = tmp_path / "scripts" / "shop" / "orders.py"
    script.touch()
    body = {"name": "n", "pipeline": {"kind": "script", "script": "shop/orders.py"}}
    assert api.post(f"{API}jobs", body).status_code == 202
    assert Job.objects.get().pipeline_target == str(script)


@pytest.mark.parametrize(
    "change",
    [
        {"spark_master": "spark://elsewhere:7077"},
        {"storage": "/"},
        {"spark_conf": {"spark.driver.extraJavaOptions": "-agentlib:x"}},
    ],
)
def test_where_code_runs_and_files_go_is_for_admins(
    api: APIClient, admin: User, change: dict[str, Any], tmp_path: Path
) -> None:
    problem = is_problem(api.post(f"{API}jobs", MODULE | change), 403, "permission_denied")
    assert "admin" in problem["detail"]
    is_problem(
        client_of(admin, "operator").post(f"{API}jobs", MODULE | change), 403, "permission_denied"
    )
    if "storage" in change:
        change = {"storage": str(tmp_path)}
    assert client_of(admin).post(f"{API}jobs", MODULE | change).status_code == 202


# Idempotency --------------------------------------------------------------------------------------


def test_the_same_key_and_body_is_the_same_operation(api: APIClient) -> None:
    first, again = (
        api.post(f"{API}jobs", MODULE, headers={"Idempotency-Key": "once"}) for _ in range(2)
    )
    assert (first.status_code, again.status_code) == (202, 202)
    assert first.json()["id"] == again.json()["id"]
    assert Job.objects.count() == 1


def test_the_same_key_with_another_body_is_refused(api: APIClient) -> None:
    key = {"Idempotency-Key": "once"}
    first = api.post(f"{API}jobs", MODULE, headers=key).json()
    other = api.post(f"{API}jobs", MODULE | {"parallelism": 3}, headers=key)
    problem = is_problem(other, 422, "idempotency_key_reused")
    assert problem["operation"] == first["id"]
    is_problem(
        api.post(f"{API}jobs/{first['job']}/cancel", headers=key), 422, "idempotency_key_reused"
    )
    assert Job.objects.count() == 1


def test_a_key_is_the_accounts_own(api: APIClient, admin_api: APIClient) -> None:
    key = {"Idempotency-Key": "once"}
    mine = api.post(f"{API}jobs", MODULE, headers=key).json()
    theirs = admin_api.post(f"{API}jobs", MODULE, headers=key).json()
    assert mine["id"] != theirs["id"]


@pytest.mark.parametrize("key", ["", "x" * (operations.KEY_LENGTH_MAX + 1), "a\tb"])
def test_a_key_that_is_none_is_refused(api: APIClient, key: str) -> None:
    answer = api.post(f"{API}jobs", MODULE, headers={"Idempotency-Key": key})
    is_problem(answer, 400, "invalid")
    assert not Job.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_the_same_key_many_times_at_once_is_one_job() -> None:
    """The job's lock is not held yet: the table's constraint decides."""
    user = factories.user(Role.OPERATOR)
    clients = [client_of(user) for _ in range(6)]
    barrier = threading.Barrier(len(clients))
    answers: list[Any] = []

    def submit(client: APIClient) -> None:
        try:
            barrier.wait(10)
            key = {"Idempotency-Key": "once"}
            answers.append(client.post(f"{API}jobs", MODULE, headers=key))
        finally:
            connection.close()

    threads = [threading.Thread(target=submit, args=[client]) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert [answer.status_code for answer in answers] == [202] * len(clients)
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert Job.objects.count() == 1


# Acting -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("action", ["cancel", "restart", "checkpoint"])
@pytest.mark.parametrize("body", [b"", b"{}", b"{ not json", b'{"unknown": 1}'])
def test_an_unknown_job_is_404_for_any_body(api: APIClient, action: str, body: bytes) -> None:
    answer = api.post(f"{API}jobs/unknown/{action}", body, content_type="application/json")
    problem = is_problem(answer, 404, "not_found")
    assert "unknown" in problem["detail"]


@pytest.mark.parametrize(
    ("action", "status"),
    [
        ("cancel", "finished"),
        ("cancel", "canceled"),
        ("restart", "finished"),
        ("checkpoint", "canceled"),
        ("checkpoint", "failed"),
    ],
)
def test_a_wrong_state_says_which_would_do(api: APIClient, action: str, status: str) -> None:
    job = factories.job(status=status, ended_at=clock.now())
    problem = is_problem(api.post(f"{API}jobs/{job.pk}/{action}"), 409, "wrong_state")
    assert problem["state"] == status
    assert "running" in problem["allowed"]
    assert not Operation.objects.exists()


def test_cancelling_twice_names_the_operation_under_way(api: APIClient) -> None:
    job = factories.job()
    factories.driver(job)
    first = api.post(f"{API}jobs/{job.pk}/cancel")
    assert first.status_code == 202, first.content
    problem = is_problem(api.post(f"{API}jobs/{job.pk}/cancel"), 409, "operation_in_progress")
    assert problem["operation"] == first.json()["id"]
    assert AuditEntry.objects.filter(action="job.cancel").count() == 1


def test_restart_answers_with_its_operation(api: APIClient) -> None:
    job = factories.job(status="failed", ended_at=clock.now(), cause="broken")
    answer = api.post(f"{API}jobs/{job.pk}/restart", {})
    assert answer.status_code == 202, answer.content
    assert answer.json()["kind"] == "restart"
    assert answer["Location"].endswith(answer.json()["id"])


@pytest.mark.parametrize(
    ("body", "content_type", "status", "code"),
    [
        (b"{", "application/json", 400, "parse_error"),
        (b"[]", "application/json", 400, "parse_error"),
        (b"NaN", "application/json", 400, "parse_error"),
        (b'{"a": NaN}', "application/json", 400, "parse_error"),
        (b"[" * 100_000, "application/json", 400, "parse_error"),
        (b"\xff\xfe", "application/json", 400, "parse_error"),
        (b'{"name": "\\u0000"}', "application/json", 400, "parse_error"),
        (b'{"\\ud800": "x"}', "application/json", 400, "parse_error"),
        (b"1" * 10_000, "application/json", 400, "parse_error"),
        (b"name=x", "application/x-www-form-urlencoded", 415, "unsupported_media_type"),
        (b"<a/>", "text/xml", 415, "unsupported_media_type"),
    ],
)
@pytest.mark.parametrize("path", ["jobs", "jobs/{job}/cancel"])
def test_a_body_that_is_no_json_object(
    api: APIClient, path: str, body: bytes, content_type: str, status: int, code: str
) -> None:
    job = factories.job()
    url = API + path.format(job=job.pk)
    is_problem(api.post(url, body, content_type=content_type), status, code)
    job.refresh_from_db()
    assert job.desired == "running"


@pytest.mark.parametrize("path", ["jobs", "jobs/unknown/cancel", "uploads"])
def test_a_body_that_is_too_large(api: APIClient, settings: Settings, path: str) -> None:
    settings.WEIR_BODY_BYTES_MAX = settings.WEIR_UPLOAD_BYTES_MAX = 1_000
    body = b'{"name": "' + b"x" * 100_000 + b'"}'
    is_problem(api.post(API + path, body, content_type="application/json"), 413, "too_large")


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("get", "nothing", 404, "not_found"),
        ("get", "jobs/%00", 404, "not_found"),
        ("get", "jobs/..%2f..%2fetc", 404, "not_found"),
        ("get", "jobs/unknown/nothing", 404, "not_found"),
        ("get", f"jobs/unknown/checkpoints/{10**30}", 404, "not_found"),
        ("get", "operations/not-a-uuid", 404, "not_found"),
        ("delete", "jobs", 405, "method_not_allowed"),
        ("options", "jobs", 405, "method_not_allowed"),
        ("get", "jobs/unknown/cancel", 404, "not_found"),
    ],
)
def test_paths_and_methods_that_are_not_there(
    api: APIClient, method: str, path: str, status: int, code: str
) -> None:
    is_problem(getattr(api, method)(API + path), status, code)


def test_numbers_that_no_column_holds_are_unknown(api: APIClient, operator: User) -> None:
    job = whole_jobs.everything(operator)
    for path in (f"checkpoints/{10**30}", f"drivers/{10**30}/log"):
        is_problem(api.get(f"{API}jobs/{job.pk}/{path}"), 404, "not_found")


# Logs ---------------------------------------------------------------------------------------------


@pytest.fixture
def log(operator: User, settings: Settings) -> Callable[[bytes], str]:
    """Write a driver's log; gives its address."""

    def write(content: bytes) -> str:
        driver = factories.driver(factories.job())
        path = driver_files.log_path(driver)
        path.parent.mkdir(parents=True)
        path.write_bytes(content)
        return f"{API}jobs/{driver.job_id}/drivers/1/log"

    return write


def test_a_log_is_read_from_its_end_or_on_from_an_offset(
    api: APIClient, log: Callable[[bytes], str]
) -> None:
    url = log(b"0123456789" * 10)
    end = api.get(f"{url}?limit=5")
    assert (end.content, end["Content-Type"]) == (b"56789", "text/plain; charset=utf-8")
    assert [end[f"Weir-Log-{name}"] for name in ("Offset", "Next", "Size")] == ["95", "100", "100"]
    read, offset = b"", 0
    while part := api.get(f"{url}?offset={offset}&limit=30"):
        if not part.content:
            break
        read += part.content
        offset = int(part["Weir-Log-Next"])
    assert read == b"0123456789" * 10
    assert api.get(f"{url}?offset=5000")["Weir-Log-Next"] == "100"


def test_a_log_may_hold_any_bytes(api: APIClient, log: Callable[[bytes], str]) -> None:
    assert api.get(log(b"caf\xc3\xa9 \xff\x00")).content.decode() == "café \ufffd\0"


@pytest.mark.parametrize(
    "query", ["offset=-1", "limit=0", f"limit={1 << 30}", "offset=x", f"offset={2**63}"]
)
def test_a_part_of_a_log_that_cannot_be(
    api: APIClient, log: Callable[[bytes], str], query: str
) -> None:
    is_problem(api.get(f"{log(b'x')}?{query}"), 400, "invalid")


def test_a_log_that_is_elsewhere(api: APIClient) -> None:
    driver = factories.driver(factories.job(), launched_by="launcher-1")
    answer = api.get(f"{API}jobs/{driver.job_id}/drivers/1/log")
    assert "launcher-1" in is_problem(answer, 404, "not_found")["detail"]
    is_problem(api.get(f"{API}jobs/{driver.job_id}/drivers/2/log"), 404, "not_found")


@pytest.mark.parametrize("accept", ["text/plain", "application/json", "*/*", "text/*"])
def test_a_log_is_text_for_any_accept_header(
    api: APIClient, log: Callable[[bytes], str], accept: str
) -> None:
    answer = api.get(log(b"said"), HTTP_ACCEPT=accept)
    assert (answer.status_code, answer.content) == (200, b"said")
