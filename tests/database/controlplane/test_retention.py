"""Retention of rows: what is old goes, what is needed stays, and no table is left out."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from threading import Thread
from typing import Any

import pytest
from django.apps import apps
from django.contrib.admin.models import LogEntry
from django.db import connection, models, transaction
from django.db.models import Model
from django.test import Client
from pytest_django.fixtures import Settings

from checkpoints.models import Checkpoint, Savepoint
from controlplane.accounts.models import Role, Session, Token
from controlplane.audit.models import AuditEntry
from controlplane.base import clock
from controlplane.base.ticks import Budget
from controlplane.retention import old_jobs, report, rows, tasks
from controlplane.retention.models import Tally
from controlplane.retention.rules import KEPT, RULES, Rule
from jobs.models import (
    Artifact,
    Attempt,
    ChainSample,
    Driver,
    Job,
    JobException,
    Operation,
    OperationKind,
    Worker,
)
from tests import factories
from weir.protocol.lifecycle import JobStatus

pytestmark = pytest.mark.django_db

BY_KIND = {rule.kind: rule for rule in RULES}
PLENTY = 60.0


def ago(**span: float) -> datetime:
    return clock.now() - timedelta(**span)


def old(rule: str) -> datetime:
    """A moment just behind the age of a rule."""
    return ago(days=BY_KIND[rule].days_kept, seconds=60)


def young(rule: str) -> datetime:
    return ago(days=BY_KIND[rule].days_kept - 1)


def look(*kinds: str) -> int:
    """A look by some rules, or all."""
    return rows.look([BY_KIND[kind] for kind in kinds] or RULES, PLENTY)


@pytest.fixture(autouse=True)
def home(settings: Settings, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "RULE_S", PLENTY)
    settings.WEIR_UPLOADS = tmp_path / "uploads"
    settings.WEIR_UPLOADS.mkdir()


# The table ----------------------------------------------------------------------------------------


def all_models() -> Iterator[type[Model]]:
    yield from apps.get_models(include_auto_created=True)


def test_every_model_has_a_rule_or_a_reason_to_have_none() -> None:
    """A new model has to say here when its rows go."""
    ruled = {m._meta.label for rule in RULES for m in (rule.model, *rule.parts)}
    labels = {model._meta.label for model in all_models()}
    assert ruled | KEPT.keys() == labels
    assert not ruled & KEPT.keys()
    assert all(reason.endswith(".") for reason in KEPT.values())


def test_every_rule_has_settings_and_an_index_for_its_age(settings: Settings) -> None:
    small = {LogEntry, Token, Savepoint, Job, Artifact}  # Tables that people make, row by row.
    for rule in RULES:
        assert isinstance(getattr(settings, rule.days), int)
        assert rule.most is None or isinstance(getattr(settings, rule.most), int)
        field = rule.model._meta.get_field(rule.age)
        assert isinstance(field, models.DateTimeField)
        firsts = {index.fields[0] for index in rule.model._meta.indexes if index.fields}
        assert field.db_index or rule.age in firsts or rule.model in small, rule.kind
    assert len(BY_KIND) == len(RULES)


def make(kind: str, at: datetime) -> Model:
    """A row of a kind that may go, of that age."""
    job = factories.job(created_at=at)
    user = factories.user(Role.ADMIN)
    match kind:
        case "savepoints":
            row = factories.savepoint(job, deleted_at=at, status="discarded")
            Checkpoint.objects.update(discarded_at=at)
            return row
        case "checkpoints":
            return factories.checkpoint(job, status="discarded", triggered_at=at)
        case "operations":
            return factories.operation(job, created_at=at)
        case "attempts":
            driver = factories.driver(job, status="lost", ended_at=at)
            for number in (1, 2, 3):
                factories.attempt(driver, number, workers=1, ended_at=at, end="failed")
            return Attempt.objects.get(number=2)
        case "drivers":
            factories.driver(job, 2)
            return factories.driver(job, 1, "ended", ended_at=at)
        case "exceptions":
            return factories.exception(job, at=at)
        case "events":
            return factories.event(job, at=at)
        case "samples":
            return factories.chain_sample(job, at=at)
        case "deliveries":
            return factories.delivery(
                factories.endpoint(),
                created_at=at,
                status="delivered",
                next_at=None,
                settled_at=at,
            )
        case "alerts":
            return factories.alert(factories.rule(), state="resolved", fired_at=at)
        case "silences":
            return factories.silence(from_at=at, until_at=at)
        case "jobs":
            return factories.job(status=JobStatus.FINISHED, created_at=at, ended_at=at)
        case "uploads":
            return factories.upload(uploaded_at=at)
        case "audit":
            return factories.audit_entry(at=at)
        case "admin_log":
            row = LogEntry.objects.create(user=user, action_flag=1, object_repr="x")
            LogEntry.objects.update(action_time=at)
            return row
        case "sessions":
            return Session.objects.create(
                session_key=f"k{at}", began_at=at, used_at=at, expire_date=at
            )
        case "tokens":
            return factories.token(user, "secret", expires_at=at)
    raise AssertionError(f"how is a row of {kind} made?")


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.kind)
def test_a_row_goes_once_it_is_older_than_its_setting(rule: Rule, settings: Settings) -> None:
    setattr(settings, rule.days, 10)
    row = make(rule.kind, ago(days=11))  # The audit log goes by whole days.
    own = rule.model._default_manager.filter(pk=row.pk)
    for days in (0, 20):
        setattr(settings, rule.days, days)
        tasks.seal()
        look()
        assert own.exists(), f"kept for {days} days"
    setattr(settings, rule.days, 10)
    assert look(rule.kind) == 1
    assert not own.exists()
    tally = Tally.objects.get(kind=rule.kind, place="")
    assert (tally.removed, tally.problem) == (1, "")
    assert tally.removed_at == tally.looked_at
    assert look(rule.kind) == 0


def test_a_look_removes_nothing_of_what_is_young(settings: Settings) -> None:
    for rule in RULES:
        setattr(settings, rule.days, 10)
        make(rule.kind, ago(days=9))
    tasks.seal()
    counts = {model: model._default_manager.count() for model in all_models()}
    assert look() == 0
    counts[Tally] = len(RULES)
    assert {model: model._default_manager.count() for model in all_models()} == counts


def test_rows_of_other_tables_go_along() -> None:
    make("attempts", old("attempts"))
    assert Worker.objects.count() == 3
    look("attempts")
    assert list(Worker.objects.values_list("attempt__number", flat=True)) == [1, 3]


# By number ----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("standing_clock")
def test_only_so_many_of_a_job_stay_the_newest(settings: Settings) -> None:
    settings.WEIR_KEEP_EXCEPTIONS_MAX = 3
    job, other = factories.job(), factories.job()
    for n in range(5):
        factories.exception(job, at=ago(minutes=n))
    for n in range(3):
        factories.exception(other, at=ago(days=n))
    assert look("exceptions") == 2
    kept = JobException.objects.filter(job=job).order_by("at")
    assert [round((clock.now() - row.at).total_seconds() / 60) for row in kept] == [2, 1, 0]
    assert JobException.objects.filter(job=other).count() == 3


def test_rows_of_one_moment_are_told_apart(settings: Settings) -> None:
    settings.WEIR_KEEP_EXCEPTIONS_MAX = 2
    job, at = factories.job(), ago(minutes=1)
    keys = [factories.exception(job, at=at).pk for _ in range(5)]
    assert look("exceptions") == 3
    assert set(JobException.objects.values_list("pk", flat=True)) == set(keys[3:])


def test_the_number_is_looked_at_now_and_then_only(settings: Settings) -> None:
    settings.WEIR_KEEP_EXCEPTIONS_MAX = 1
    job = factories.job()
    look("exceptions")
    for _ in range(3):
        factories.exception(job)
    assert look("exceptions") == 0
    Tally.objects.update(counted_at=clock.now() - rows.COUNTED_EVERY)
    assert look("exceptions") == 2


def test_after_an_hour_one_sample_of_a_chain_stays_for_each_minute() -> None:
    job = factories.job()
    for seconds in (3_500, 3_610, 3_620):
        for is_first in (True, False):
            at = ago(seconds=seconds + is_first)
            factories.chain_sample(job, at=at, is_first_of_minute=is_first)
    assert look("samples") == 2
    kept = ChainSample.objects.filter(at__lt=ago(seconds=3_600))
    assert set(kept.values_list("is_first_of_minute", flat=True)) == {True}
    assert ChainSample.objects.count() == 4


# What stays ---------------------------------------------------------------------------------------


def test_open_operations_the_newest_rescale_and_those_of_savepoints_stay() -> None:
    job = factories.job()
    at = old("operations")
    open_one = factories.operation(job, status="running", created_at=at)
    kind = OperationKind.RESCALE
    factories.operation(job, kind=kind, created_at=at - timedelta(hours=1))
    rescale = factories.operation(job, kind=kind, created_at=at)
    taken = factories.operation(job, kind="savepoint", created_at=at)
    factories.savepoint(job, operation=taken)
    deleted = factories.operation(job, kind="savepoint", created_at=at)
    gone = factories.savepoint(job, "gone", 2, operation=deleted, deleted_at=clock.now())
    factories.operation(job, created_at=at)
    assert look("operations") == 3
    assert set(Operation.objects.all()) == {open_one, rescale, taken}
    gone.refresh_from_db()
    assert gone.operation is None


def test_the_first_and_the_newest_attempt_stay_and_so_do_their_drivers() -> None:
    job, at = factories.job(), old("drivers")
    for number in range(1, 6):
        driver = factories.driver(job, number, "lost", ended_at=at, stopped_at=at)
        factories.attempt(driver, number, ended_at=at, end="failed")
    assert look("attempts", "drivers") == 6
    assert list(Attempt.objects.order_by("number").values_list("number", flat=True)) == [1, 5]
    assert list(Driver.objects.order_by("number").values_list("number", flat=True)) == [1, 5]


def test_restarts_count_with_those_of_removed_attempts(client: Client, settings: Settings) -> None:
    settings.WEIR_METRICS_PUBLIC = True

    def counted() -> list[str]:
        lines = client.get("/metrics").content.decode().splitlines()
        return [line for line in lines if line.startswith("weir_job_restarts_total{")]

    at = old("attempts")
    driver = factories.driver(factories.job(), status="lost", ended_at=at)
    for number, end in enumerate(("failed", "failed", "canceled", "failed", "canceled"), 1):
        factories.attempt(driver, number, ended_at=at, end=end)
    before = counted()
    name = f'weir_job_restarts_total{{job="{driver.job_id}",planned='
    assert before == [f'{name}"true"}} 1.0', f'{name}"false"}} 3.0']
    assert look("attempts") == 3
    assert counted() == before


def test_a_driver_and_an_attempt_that_run_stay_at_any_age() -> None:
    job, at = factories.job(), old("drivers")
    factories.attempt(factories.driver(job, created_at=at), 1, started_at=at)
    assert look() == 0


def test_a_savepoint_that_is_not_deleted_stays_and_so_does_its_checkpoint() -> None:
    job = factories.job()
    factories.savepoint(job, created_at=ago(days=4_000))
    Checkpoint.objects.update(triggered_at=ago(days=4_000))
    waiting = factories.savepoint(job, "waiting", 2, deleted_at=old("savepoints"))
    Checkpoint.objects.filter(number=2).update(discard_due_at=clock.now())
    assert look() == 0
    Checkpoint.objects.filter(number=2).update(
        status="discarded", discard_due_at=None, triggered_at=ago(days=4_000)
    )
    assert look("savepoints") == 1
    assert not Savepoint.objects.filter(pk=waiting.pk).exists()
    assert look("checkpoints") == 1
    assert list(Checkpoint.objects.values_list("number", flat=True)) == [1]


def test_an_upload_stays_while_a_job_or_an_open_operation_uses_it() -> None:
    at = old("uploads")
    used, asked, unused = (
        factories.upload(content, uploaded_at=at) for content in (b"1", b"2", b"3")
    )
    factories.job(artifact=used, pipeline_kind="upload", pipeline_target="pipeline.py")
    parameters = {"pipeline": {"artifact_digest": asked.digest}}
    waits = factories.operation(
        factories.job(), kind="fork", status="running", parameters=parameters
    )
    assert look("uploads") == 1
    assert set(Artifact.objects.all()) == {used, asked}
    Operation.objects.filter(pk=waits.pk).update(status="failed", ended_at=clock.now())
    assert look("uploads") == 1
    assert set(Artifact.objects.all()) == {used}
    assert unused.pk not in Artifact.objects.values_list("pk", flat=True)


# Jobs ---------------------------------------------------------------------------------------------


def ended_job(**columns: Any) -> Job:
    columns = {"status": JobStatus.FINISHED, "ended_at": old("jobs"), **columns}
    return factories.job(created_at=ago(days=4_000), **columns)


def restorable(job: Job) -> None:
    factories.checkpoint(job)


def in_deletion(job: Job) -> None:
    factories.checkpoint(job, status="aborted", discard_due_at=clock.now())


def with_savepoint(job: Job) -> None:
    factories.savepoint(job, number=None)


def to_be_restored(job: Job) -> None:
    factories.job(restore_job=job, restore_number=1, restore_uri="/x")


def asked(job: Job) -> None:
    factories.operation(job, kind="restart", status="pending")


def with_driver(job: Job) -> None:
    factories.driver(job)


NEEDS: list[Callable[[Job], None]] = [
    *(restorable, in_deletion, with_savepoint, to_be_restored, asked, with_driver)
]


@pytest.mark.parametrize("need", NEEDS, ids=lambda need: need.__name__)
def test_a_job_that_is_needed_stays(need: Callable[[Job], None]) -> None:
    job = ended_job()
    need(job)
    assert look("jobs") == 0
    assert Job.objects.filter(pk=job.pk).exists()


def test_a_job_goes_with_all_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(old_jobs, "BATCH", 2)
    job = ended_job()
    factories.graph(job)
    factories.subtasks(job)
    driver = factories.driver(job, status="ended", ended_at=job.ended_at)
    factories.attempt(driver, workers=2, ended_at=job.ended_at, end="finished")
    factories.coordinator(job)
    factories.chain_sample(job)
    for number in range(1, 6):
        factories.acknowledge(
            factories.checkpoint(job, number, status="discarded", acknowledged_count=0), "totals", 0
        )
        factories.operation(job)
        factories.exception(job)
    factories.savepoint(job, number=9, deleted_at=clock.now(), status="discarded")
    fork = factories.job(origin=job, origin_uri="/x")
    assert look("jobs") == 1
    assert set(Job.objects.all()) == {fork}
    left = {
        model._meta.label: model._default_manager.count()
        for model in all_models()
        if model._meta.app_label in ("jobs", "checkpoints") and model._default_manager.exists()
    }
    assert left == {"jobs.Job": 1}
    entry = AuditEntry.objects.get(action="job.remove")
    assert (entry.target, entry.before["name"]) == (f"job/{job.pk}", "flights")
    fork.refresh_from_db()
    assert (fork.origin, fork.origin_uri) == (None, "/x")


def test_a_job_that_is_restarted_in_the_middle_keeps_the_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(old_jobs, "BATCH", 1)
    job = ended_job()
    for _ in range(3):
        factories.operation(job)
    real = old_jobs._remove_part

    def restarted_then(job_id: str, older: datetime) -> bool | None:
        left = real(job_id, older)
        Job.objects.update(status=JobStatus.RESTARTING, ended_at=None)
        return left

    monkeypatch.setattr(old_jobs, "_remove_part", restarted_then)
    assert look("jobs") == 0
    assert job.operations.count() == 2


# Working beside others ----------------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
def test_a_row_that_another_transaction_holds_is_left_for_the_next_look() -> None:
    job = factories.job()
    held, free = (factories.exception(job, at=old("exceptions")) for _ in range(2))
    counts: list[int] = []

    def beside() -> None:
        try:
            counts.append(look("exceptions"))
        finally:
            connection.close()

    with transaction.atomic():
        JobException.objects.select_for_update().get(pk=held.pk)
        thread = Thread(target=beside)
        thread.start()
        thread.join(30)
        assert not thread.is_alive(), "the look waits for the lock"
    assert counts == [1]
    assert set(JobException.objects.all()) == {held}
    assert look("exceptions") == 1
    assert free.pk is not None


def test_a_rule_that_fails_stops_no_other_and_says_why(caplog: pytest.LogCaptureFixture) -> None:
    def fail(*_: Any) -> int:
        raise OSError("the disk is away")

    failing = Rule(
        kind="failing", text="", model=Job, age="ended_at", days="WEIR_KEEP_JOBS_DAYS", remove=fail
    )
    factories.exception(factories.job(), at=old("exceptions"))
    assert rows.look([failing, BY_KIND["exceptions"]], PLENTY) == 1
    assert Tally.objects.get(kind="failing").problem == "OSError: the disk is away"
    assert "the rule of retention failed" in caplog.text


def test_a_look_ends_with_its_time_and_the_next_begins_with_the_rule_that_waited() -> None:
    done: list[str] = []

    def named(kind: str) -> Rule:
        def remove(*_: Any) -> int:
            done.append(kind)
            return 0

        days = "WEIR_KEEP_JOBS_DAYS"
        return Rule(kind=kind, text="", model=Job, age="ended_at", days=days, remove=remove)

    rules = [named("a"), named("b"), named("c")]
    rows.look(rules, 0.0)
    assert done == []
    rows.look(rules[:2], PLENTY)
    rows.look(rules, PLENTY)
    assert done == ["a", "b", "c", "a", "b"]


def test_large_backlogs_go_in_batches(django_assert_max_num_queries: Any) -> None:
    rule = BY_KIND["exceptions"]
    job = factories.job()
    JobException.objects.bulk_create(
        JobException(job=job, at=old("exceptions"), kind="attempt", text="x")
        for _ in range(2 * rule.batch + 1)
    )
    batches: list[int] = []

    def count(execute: Callable[..., Any], sql: str, params: Any, *rest: Any) -> Any:
        if sql.startswith("DELETE FROM"):
            batches.append(len(params))
        return execute(sql, params, *rest)

    with connection.execute_wrapper(count):
        assert look("exceptions") == 2 * rule.batch + 1
    assert batches == [rule.batch, rule.batch, 1]


def test_no_batch_begins_without_time() -> None:
    factories.exception(factories.job(), at=old("exceptions"))
    remover = rows._remover(BY_KIND["exceptions"])
    assert remover(clock.now(), None, Budget(0.0)) == 0
    assert remover(clock.now(), None, Budget(PLENTY)) == 1


# The report ---------------------------------------------------------------------------------------


def test_the_page_says_what_is_kept_and_when_it_goes(client: Client, settings: Settings) -> None:
    settings.WEIR_KEEP_EXCEPTIONS_DAYS = 7
    settings.WEIR_KEEP_EXCEPTIONS_MAX = 1_234
    settings.WEIR_KEEP_JOBS_DAYS = 0
    job = factories.job()
    factories.exception(job, at=ago(days=5))
    factories.operation(job, created_at=old("operations"))
    ended_job(ended_at=ago(days=2))
    Tally.objects.create(kind="uploads", problem="OSError: no directory", looked_at=ago(hours=1))
    Tally.objects.create(
        kind="driver_files", place="host-1", kept=3, kept_bytes=2_000_000, removed=4
    )
    kept = {one.rule.kind: one for one in report.kept_rows()}
    assert (kept["exceptions"].rows, kept["exceptions"].is_estimate) == (1, False)
    assert kept["exceptions"].goes_at is not None
    assert (kept["exceptions"].goes_at - clock.now()).days == 1
    assert kept["jobs"].goes_at is None
    Operation.objects.update(created_at=datetime(9999, 12, 30, tzinfo=UTC))
    assert [one.goes_at for one in report.kept_rows() if one.rule.kind == "operations"] == [None]
    Operation.objects.update(created_at=old("operations"))
    client.force_login(factories.user(Role.VIEWER))
    page = " ".join(client.get("/retention/").content.decode().split())
    assert "7 days and the newest 1,234 of a job" in page
    assert "with the next looks" in page  # The operation.
    assert "no limit" in page  # Jobs.
    assert "at no age" in page
    assert "OSError: no directory" in page
    assert "Looks should come twice a minute" in page
    assert "host-1" in page
    assert "2.00 MB" in page


def test_metrics_count_what_was_removed(client: Client, settings: Settings) -> None:
    settings.WEIR_METRICS_PUBLIC = True
    factories.exception(factories.job(), at=old("exceptions"))
    look()
    Tally.objects.create(kind="driver_files", place="host-1", removed=4)
    Tally.objects.create(kind="driver_files", place="host-2", removed=5)
    text = client.get("/metrics").content.decode()
    assert 'weir_retention_removed_total{kind="exceptions"} 1.0' in text
    assert 'weir_retention_removed_total{kind="operations"} 0.0' in text
    assert 'weir_retention_removed_total{kind="driver_files"} 9.0' in text
    assert "weir_retention_timestamp_seconds 1." in text
