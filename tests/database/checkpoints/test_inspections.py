"""Inspections: from a request to the driver, and from its answer to the reader, and no further."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest
from django.core.cache import cache
from pytest_django.fixtures import Settings
from redis.exceptions import ConnectionError as RedisAway

from checkpoints import driver_protocol
from controlplane.accounts.models import Role, User
from controlplane.audit.models import AuditEntry
from controlplane.base import clock
from controlplane.base.errors import Forbidden, Invalid, NotFound, TooBusy, WrongState
from controlplane.base.threads import Unavailable
from jobs.inspections import requests, store
from jobs.inspections.requests import SUBTASKS_MAX, WAITING_MAX, Result
from jobs.models import Job, OutboxCommand, Subtask
from tests import factories
from tests.database.checkpoints.line import Line
from weir.ids import AttemptNumber
from weir.protocol.inspection import (
    RECORDS_MAX,
    Inspected,
    InspectionKind,
    InspectSubtask,
    SampledStack,
    SampledStacks,
    StackFrame,
    TappedRecord,
    TappedRecords,
)

pytestmark = pytest.mark.django_db

BEFORE_INSPECTIONS = 7  # The version of a driver's messages.
STACKS, RECORDS = InspectionKind.STACKS, InspectionKind.RECORDS
TWO = TappedRecords(("n",), (TappedRecord(("1",), 5), TappedRecord(("2",))))
Committing = Callable[..., AbstractContextManager[Any]]


@pytest.fixture
def olga(db: None) -> User:
    return factories.user(Role.OPERATOR, "olga")


@pytest.fixture
def line(db: None) -> Line:
    line = Line.running()
    Subtask.objects.filter(job=line.job_id).update(status="running")
    return line


@pytest.fixture(autouse=True)
def no_cache() -> Iterator[None]:
    yield
    cache.clear()


def asked(line: Line) -> list[InspectSubtask]:
    return [command for command in line.poll() if isinstance(command, InspectSubtask)]


def answered(line: Line, committing: Committing, *answers: Inspected) -> None:
    with committing(execute=True):
        line.post(*answers)


def answer(of: str, index: int = 0, **shown: Any) -> Inspected:
    return Inspected(AttemptNumber(1), of, index, **shown)


def read(actor: User, line: Line, of: str) -> Result:
    return requests.read(actor, line.job_id, of, may_tap=True)


def entries(*actions: str) -> list[tuple[str, Any]]:
    rows = AuditEntry.objects.filter(action__in=actions or ["job.tap", "job.tap_read"])
    return [(row.action, row.after) for row in rows.order_by("pk")]


# The way there and back.


def test_a_tap_reaches_the_driver_and_its_records_the_account_that_asked(
    line: Line, olga: User, django_capture_on_commit_callbacks: Committing
) -> None:
    inspection = requests.ask(olga, line.job_id, "parse", RECORDS, 1)
    assert asked(line) == [InspectSubtask(AttemptNumber(1), inspection.id, RECORDS, "parse", 1)]  # type: ignore[arg-type]
    assert not read(olga, line, inspection.id).is_over
    answered(line, django_capture_on_commit_callbacks, answer(inspection.id, 1, records=TWO))
    result = read(olga, line, inspection.id)
    assert result.is_over
    assert result.answers[1].records == TWO
    assert result.causes == {}


def test_a_tap_is_audited_when_it_is_asked_for_and_when_its_records_are_first_read(
    line: Line, olga: User, django_capture_on_commit_callbacks: Committing
) -> None:
    inspection = requests.ask(olga, line.job_id, "parse", RECORDS, None)
    what = {
        "operator": "parse",
        "subtasks": [0, 1],
        "inspection": inspection.id,
        "records_max": 2 * RECORDS_MAX,
    }
    assert entries() == [("job.tap", what)]
    assert AuditEntry.objects.get(action="job.tap").actor == olga
    for index in (0, 1):
        answered(
            line, django_capture_on_commit_callbacks, answer(inspection.id, index, records=TWO)
        )
        read(olga, line, inspection.id)
    read(olga, line, inspection.id)
    assert entries() == [("job.tap", what), ("job.tap_read", {**what, "records": 4})]


def test_stacks_are_asked_for_without_a_trace(line: Line, olga: User) -> None:
    requests.ask(olga, line.job_id, "parse", STACKS, 0)
    assert len(asked(line)) == 1
    assert entries() == []


def test_records_of_a_part_are_not_shown_before_all_have_come(
    line: Line, olga: User, django_capture_on_commit_callbacks: Committing
) -> None:
    """Else the first reading would count a part of what is shown."""
    inspection = requests.ask(olga, line.job_id, "parse", RECORDS, None)
    answered(line, django_capture_on_commit_callbacks, answer(inspection.id, 0, records=TWO))
    assert read(olga, line, inspection.id).answers == {}


def test_the_database_holds_no_record(
    line: Line, olga: User, django_capture_on_commit_callbacks: Committing
) -> None:
    inspection = requests.ask(olga, line.job_id, "parse", RECORDS, 0)
    asked(line)
    marked = TappedRecords(("n",), (TappedRecord(("4242-personal",)),))
    answered(line, django_capture_on_commit_callbacks, answer(inspection.id, records=marked))
    shown = read(olga, line, inspection.id).answers[0].records
    assert shown == marked
    for model in (AuditEntry, Job, OutboxCommand, Subtask):
        for row in model.objects.values():
            assert "4242-personal" not in str(row)


# Who, and of which job.


def test_records_are_read_by_the_account_that_asked_alone(
    line: Line, olga: User, django_capture_on_commit_callbacks: Committing
) -> None:
    inspection = requests.ask(olga, line.job_id, "parse", RECORDS, 0)
    answered(line, django_capture_on_commit_callbacks, answer(inspection.id, records=TWO))
    other, job = factories.user(Role.ADMIN), factories.job()
    for actor, job_id, may_tap in (
        (other, line.job_id, True),
        (olga, line.job_id, False),  # Her role was lowered, or her token's is.
        (olga, job.pk, True),
    ):
        with pytest.raises(NotFound):
            requests.read(actor, job_id, inspection.id, may_tap=may_tap)
    assert read(olga, line, inspection.id).answers[0].records == TWO


def test_an_answer_counts_for_its_own_job_and_the_subtasks_that_were_asked(
    line: Line, olga: User, django_capture_on_commit_callbacks: Committing
) -> None:
    """A driver speaks for its job alone, also with ids that it has heard of."""
    foreign = Line.running()
    inspection = requests.ask(olga, line.job_id, "parse", STACKS, 0)
    stacks = SampledStacks(1_000.0, waiting=9)
    forged = (answer(inspection.id, stacks=stacks), answer("made-up", stacks=stacks))
    answered(foreign, django_capture_on_commit_callbacks, *forged)
    answered(line, django_capture_on_commit_callbacks, answer(inspection.id, 7, stacks=stacks))
    assert read(olga, line, inspection.id).answers == {}
    answered(line, django_capture_on_commit_callbacks, answer(inspection.id, stacks=stacks))
    assert read(olga, line, inspection.id).answers[0].stacks == stacks


# What is refused.


def test_records_are_not_shown_where_the_control_plane_or_the_job_forbids_it(
    line: Line, olga: User, settings: Settings
) -> None:
    settings.WEIR_TAP = False
    with pytest.raises(Forbidden, match="WEIR_TAP"):
        requests.ask(olga, line.job_id, "parse", RECORDS, 0)
    settings.WEIR_TAP = True
    Job.objects.filter(pk=line.job_id).update(settings={"allow_tap": False})
    with pytest.raises(Forbidden, match=r"weir\.tap\.enabled"):
        requests.ask(olga, line.job_id, "parse", RECORDS, 0)
    assert asked(line) == []
    assert entries() == []
    requests.ask(olga, line.job_id, "parse", STACKS, 0)  # Stacks hold no records.


def test_what_cannot_be_inspected_is_refused_with_its_reason(line: Line, olga: User) -> None:
    job_id = line.job_id
    with pytest.raises(Forbidden, match="is a sink"):
        requests.ask(olga, job_id, "sink", RECORDS, 0)
    with pytest.raises(NotFound, match="no operator"):
        requests.ask(olga, job_id, "none", STACKS, 0)
    with pytest.raises(Invalid):
        requests.ask(olga, job_id, "parse", STACKS, 2)
    Subtask.objects.filter(job=job_id, index=1).update(status="ended")
    with pytest.raises(WrongState, match="source-1 does not run"):
        requests.ask(olga, job_id, "parse", STACKS, 1)
    Job.objects.filter(pk=job_id).update(status="restarting")
    with pytest.raises(WrongState, match="the job is restarting"):
        requests.ask(olga, job_id, "parse", STACKS, 0)


def test_a_driver_that_takes_nothing_is_asked_so_often_and_no_more(line: Line, olga: User) -> None:
    for _ in range(WAITING_MAX):
        requests.ask(olga, line.job_id, "parse", RECORDS, 0)
    with pytest.raises(TooBusy):
        requests.ask(olga, line.job_id, "parse", RECORDS, 0)
    assert len(asked(line)) == WAITING_MAX
    line.poll()  # Takes them.
    requests.ask(olga, line.job_id, "parse", RECORDS, 0)


def test_of_many_subtasks_the_busiest_are_asked(olga: User) -> None:
    job = factories.job()
    factories.graph(job, 20)
    factories.driver(job)
    factories.subtasks(job, parallelism=20)
    Subtask.objects.filter(job=job, chain="totals", index=17).update(rates={"busy": 0.9})
    inspection = requests.ask(olga, job.pk, "totals", RECORDS, None)
    assert inspection.subtasks == [0, 1, 2, 17]
    assert inspection.left_out == 20 - SUBTASKS_MAX[RECORDS]
    assert OutboxCommand.objects.filter(job=job).count() == SUBTASKS_MAX[RECORDS]


def test_the_same_stacks_asked_for_again_are_one_inspection(line: Line, olga: User) -> None:
    first = requests.ask(olga, line.job_id, "parse", STACKS, 0)
    assert requests.ask(olga, line.job_id, "parse", STACKS, 0) == first
    assert requests.ask(olga, line.job_id, "parse", STACKS, 1).id != first.id
    assert len(asked(line)) == 2


# No answer.


def test_without_an_answer_it_is_over_after_a_while_and_says_why(
    line: Line, olga: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    inspection = requests.ask(olga, line.job_id, "parse", RECORDS, None)
    stall = {"since_ms": 0, "stalled_ms": 42_000.0, "stack": ""}
    Subtask.objects.filter(job=line.job_id, chain="source", index=1).update(stall=stall)
    later = clock.now() + store.ANSWER_WITHIN
    monkeypatch.setattr("controlplane.base.clock.now", lambda: later)
    result = read(olga, line, inspection.id)
    assert result.is_over
    assert "of an older version" in result.causes[0]
    assert "in one call for 42" in result.causes[1]
    Job.objects.filter(pk=line.job_id).update(status="restarting")
    assert "the job is restarting" in read(olga, line, inspection.id).causes[0]


def test_the_reason_that_a_worker_gives_is_told(
    line: Line, olga: User, django_capture_on_commit_callbacks: Committing
) -> None:
    inspection = requests.ask(olga, line.job_id, "parse", RECORDS, 0)
    answered(line, django_capture_on_commit_callbacks, answer(inspection.id, cause="no record"))
    assert read(olga, line, inspection.id).causes == {0: "no record"}


def test_a_driver_of_a_version_before_gets_no_request_and_the_request_is_dropped(
    line: Line, olga: User
) -> None:
    """It would end over a command that it cannot read."""
    requests.ask(olga, line.job_id, "parse", STACKS, 0)
    taken = driver_protocol.take_commands(line.job_id, line.token, line.taken, BEFORE_INSPECTIONS)
    assert taken.commands == ()
    assert not OutboxCommand.objects.filter(job=line.job_id).exists()


def test_without_redis_a_request_is_refused_and_an_answer_harms_no_batch(
    line: Line,
    olga: User,
    django_capture_on_commit_callbacks: Committing,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def away(*_: object, **__: object) -> None:
        raise RedisAway("connection refused")

    for name in ("get", "set", "get_many", "add"):
        monkeypatch.setattr(cache, name, away)
    with pytest.raises(Unavailable, match="Redis"):
        requests.ask(olga, line.job_id, "parse", STACKS, 0)
    assert asked(line) == []
    before = line.number
    answered(line, django_capture_on_commit_callbacks, answer("r1", cause="nothing"))
    assert line.driver.applied_up_to == before


# Stacks of several subtasks.


def test_stacks_are_added_up_and_uploads_have_their_names() -> None:
    digest = factories.upload(b"orders", file_name="orders.py").digest
    own = StackFrame("map", "Map.on_batch", "operators/map.py", 9)
    users = StackFrame("map", "parse", f"uploads/{digest}.py", 41)
    named = StackFrame("map", "parse", "orders.py", 41)
    # The second worker met them in another order, and names a frame that is not in its table.
    one = SampledStacks(
        50_000.0, (own, users), (SampledStack((0, 1), 5), SampledStack((0,), 1)), 2, 1, 3, 8
    )
    two = SampledStacks(
        60_000.0, (users, own), (SampledStack((1, 0), 4), SampledStack((1, 9), 1)), 0, 0, 0, 5
    )
    inspection = store.Inspection("a", "job", "map", "stacks", [0, 1], 0, 0, None)
    answers = {
        index: Inspected(AttemptNumber(1), "a", index, stacks=stacks)
        for index, stacks in enumerate((one, two))
    }
    added = Result(inspection, is_over=True, answers=answers).flames()
    assert added.subtasks == 2
    assert added.stacks == [((own, named), 9), ((own,), 2)]
    assert (added.work, added.others, added.runtime, added.waiting) == (13, 1, 3, 13)
    assert (added.samples, added.span_ms) == (30, 60_000.0)
