"""The kinds of rules: what each says about facts, and until when. Odd facts break none."""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.alerts.facts import (
    HISTORY_MAX,
    AttemptFacts,
    ChainFacts,
    DriverFacts,
    Ended,
    FailedOperation,
    History,
    JobFacts,
    Life,
    SlotFacts,
)
from controlplane.alerts.kinds import KINDS
from controlplane.alerts.kinds.base import Holding, Judged
from controlplane.alerts.matching import Quiet, Scope, fits, silence_of
from tests.seeds import share
from weir.protocol.lifecycle import FailureReason, JobStatus

T0 = datetime(2026, 3, 1, 12, tzinfo=UTC)
EXAMPLES = settings(max_examples=share(300, block=20))  # Each is judged by every kind.

moments = st.integers(-5_000, 5_000).map(lambda s: T0 + timedelta(seconds=s))
maybe = st.none() | moments
texts = st.sampled_from(["", "OSError: no space left", "hourly"])
endeds = st.builds(
    Ended,
    number=st.integers(1, 100),
    at=moments,
    is_completed=st.booleans(),
    duration_ms=st.none() | st.floats(0, 1e7),
    alignment_ms=st.floats(0, 1e7),
    state_bytes=st.integers(0, 1 << 50),
    reason=st.sampled_from(["", *(reason.value for reason in FailureReason)]),
    cause=texts,
)
facts = st.builds(
    JobFacts,
    id=st.just("flights-1"),
    name=st.just("flights"),
    life=st.builds(
        Life,
        status=st.sampled_from([status.value for status in JobStatus]),
        is_planned=st.booleans(),
        cause=texts,
        started_at=maybe,
        ended_at=maybe,
        interval_ms=st.none() | st.floats(1, 1e7),
        recovery_target_s=st.none() | st.floats(0.001, 2_592_000),
    ),
    history=st.builds(
        History,
        st.lists(endeds, max_size=12).map(tuple),
        st.just(0),
        st.none() | endeds,
    ),
    attempts=st.lists(
        st.builds(
            AttemptFacts,
            number=st.integers(1, 9),
            started_at=moments,
            running_at=maybe,
            ended_at=maybe,
            has_failed=st.booleans(),
            cause=texts,
        ),
        max_size=6,
    ).map(tuple),
    driver=st.none()
    | st.builds(DriverFacts, number=st.just(1), is_running=st.booleans(), heard_at=maybe),
    chains=st.lists(
        st.builds(
            ChainFacts,
            chain=texts,
            back_pressured=st.none() | st.floats(0, 1),
            busiest=st.none() | st.floats(0, 1),
            watermark_ms=st.none() | st.integers(-(2**63), 2**63 - 1),
            updated_at=maybe,
            bad_records=st.lists(st.tuples(moments, st.integers(1, 9)), max_size=4).map(tuple),
        ),
        max_size=3,
    ).map(tuple),
    slots=st.lists(
        st.builds(SlotFacts, index=st.integers(0, 9), host=texts, cpu_wait=st.floats(0, 1)),
        max_size=4,
    ).map(tuple),
    operations=st.lists(
        st.builds(FailedOperation, id=texts, kind=st.just("savepoint"), at=moments, error=texts),
        max_size=3,
    ).map(tuple),
    sizes=st.dictionaries(st.just(3_600), st.tuples(moments, st.integers(0, 1 << 50))),
)


def test_one_condition_keeps_all_that_is_said_of_it() -> None:
    evidence = (("limit", "3"),)
    judged = Judged.one("It failed.", evidence, checkpoint=7, lead="It", until=T0)
    assert judged == Judged(
        (Holding(summary="It failed.", evidence=evidence, checkpoint=7, lead="It"),), T0
    )


@EXAMPLES
@given(job=facts, now=moments, later=st.integers(0, 20_000))
def test_a_judgement_stands_until_it_says(job: JobFacts, now: datetime, later: int) -> None:
    for kind in KINDS:
        parameters = parameters_of(kind)
        judged = KINDS[kind].judge(parameters, job, now)
        assert judged.until is None or judged.until > now, kind
        then = now + timedelta(seconds=later)
        if judged.until is None or then < judged.until:
            again = KINDS[kind].judge(parameters, job, then)
            assert {one.subject for one in again.holding} == {
                one.subject for one in judged.holding
            }, kind
        for one in judged.holding:
            assert one.summary.endswith((".", "!")) or ": " in one.summary, kind
            assert all(name and value for name, value in one.evidence), kind


@EXAMPLES
@given(job=facts, now=moments)
def test_a_job_that_ended_as_planned_holds_no_condition(job: JobFacts, now: datetime) -> None:
    life = Life(status=JobStatus.CANCELED, is_planned=True, ended_at=T0)
    over = JobFacts(
        id=job.id,
        name=job.name,
        life=life,
        history=job.history,
        attempts=job.attempts,
        driver=job.driver,
        chains=job.chains,
        slots=job.slots,
        sizes=job.sizes,
    )
    for kind in KINDS:
        assert KINDS[kind].judge(parameters_of(kind), over, now).holding == (), kind


def parameters_of(kind: str) -> Any:
    return KINDS[kind].read({"seconds": 30} if kind == "checkpoint_duration" else {})


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_describes_itself_and_its_parameters(kind: str) -> None:
    one = KINDS[kind]
    schema = one.schema()
    assert schema["properties"].keys() == one.texts.keys()
    assert one.text.endswith(".")
    assert set(one.reads) <= set(JobFacts.__dataclass_fields__)
    with pytest.raises(msgspec.ValidationError):
        one.read({"unheard_of": 1})


def test_a_starved_host_is_one_condition_with_all_its_slots() -> None:
    slots = (
        SlotFacts(index=0, host="node-1", cpu_wait=0.31),
        SlotFacts(index=1, host="node-1", cpu_wait=0.62),
        SlotFacts(index=2, host="node-1", cpu_wait=0.3),  # The limit itself is none too much.
        SlotFacts(index=3, host="node-2", cpu_wait=0.1),
        SlotFacts(index=4, host="", cpu_wait=0.9),
    )
    life = Life(status=JobStatus.RUNNING, is_planned=False)
    job = JobFacts(id="flights-1", name="flights", life=life, slots=slots)
    kind = KINDS["host_starved"]
    node, unknown = kind.judge(kind.read({}), job, T0).holding
    assert (node.subject, unknown.subject) == ("node-1", "slot 4")
    assert node.summary.startswith(
        "Slot 1 on host node-1 waits for a processor for 62% of the time: "
    )
    assert dict(node.evidence) == {
        "wait for a processor": "62%",
        "limit": "30%",
        "slots above it": "0, 1",
        "their number": "2",
    }
    assert unknown.summary.startswith("Slot 4 waits for a processor for 90% of the time: ")
    assert kind.judge(kind.read({"share": 0.9}), job, T0).holding == ()
    restarting = Life(status=JobStatus.RESTARTING, is_planned=False)
    over = JobFacts(id="flights-1", name="flights", life=restarting, slots=slots)
    assert kind.judge(kind.read({}), over, T0).holding == ()


def test_slots_short_of_memory_are_one_condition_of_their_job() -> None:
    slots = (
        SlotFacts(index=0, host="node-1", memory_share=0.9),  # The limit itself is none too much.
        SlotFacts(index=1, host="node-1", memory_share=0.93),
        SlotFacts(index=2, host="", memory_share=0.97),
        SlotFacts(index=3, host="node-2", cpu_wait=0.9),  # It has no limit.
    )
    life = Life(status=JobStatus.RUNNING, is_planned=False)
    job = JobFacts(id="flights-1", name="flights", life=life, slots=slots)
    kind = KINDS["slot_memory"]
    (short,) = kind.judge(kind.read({}), job, T0).holding
    assert short.subject == ""
    assert short.summary.startswith("Slot 2 holds 97% of the memory that it may: ")
    assert dict(short.evidence) == {
        "memory": "97%",
        "limit": "90%",
        "slots above it": "1, 2",
        "their number": "2",
    }
    assert kind.judge(kind.read({"share": 0.97}), job, T0).holding == ()
    restarting = Life(status=JobStatus.RESTARTING, is_planned=False)
    over = JobFacts(id="flights-1", name="flights", life=restarting, slots=slots)
    assert kind.judge(kind.read({}), over, T0).holding == ()


def test_a_history_keeps_the_newest_and_knows_what_is_fresh() -> None:
    def ended(number: int, is_completed: bool = True) -> Ended:
        at = T0 + timedelta(seconds=number)
        return Ended(number=number, at=at, is_completed=is_completed)

    history = History().grown(tuple(ended(n) for n in range(1, HISTORY_MAX + 11)))
    assert [one.number for one in history.ended] == [*range(11, HISTORY_MAX + 11)]
    assert history.fresh == HISTORY_MAX
    assert history.grown(()).fresh == 0
    failed = history.grown(tuple(ended(n, False) for n in range(100, 100 + HISTORY_MAX)))
    assert not any(one.is_completed for one in failed.ended)
    assert failed.completed == history.ended[-1]


# Scopes and silences ------------------------------------------------------------------------------

JOBS = {"flights-1": "flights", "orders-1": "orders", "orders-2": "orders"}


@pytest.mark.parametrize(
    ("scope", "ids"),
    [
        (Scope(), [*JOBS]),
        (Scope(job="orders-1"), ["orders-1"]),
        (Scope(job="gone-1"), []),
        (Scope(pattern="ord*"), ["orders-1", "orders-2"]),
        (Scope(pattern="*[!s]"), []),
        (Scope(pattern="ord"), []),
    ],
)
def test_a_scope_names_its_jobs(scope: Scope, ids: list[str]) -> None:
    assert fits(scope, JOBS) == ids
    matches = scope.matcher()
    assert [id for id, name in JOBS.items() if matches(id, name)] == ids


def test_the_silence_that_lasts_longest_holds_a_notice_back() -> None:
    from uuid import UUID

    rule, other = UUID(int=1), UUID(int=2)

    def quiet(number: int, hours: int, **parts: object) -> Quiet:
        given = {"scope": Scope(), "rule": None, "severity": "", "from_at": T0, **parts}
        return Quiet(id=UUID(int=number), until_at=T0 + timedelta(hours=hours), **given)  # type: ignore[arg-type]

    silences = [
        quiet(10, 1),
        quiet(11, 2, rule=rule),
        quiet(12, 9, rule=other),
        quiet(13, 9, severity="info"),
        quiet(14, 9, scope=Scope(pattern="orders")),
        quiet(15, 9, from_at=T0 + timedelta(hours=1)),
    ]

    def silenced(hours: float) -> UUID | None:
        return silence_of(
            silences,
            rule=rule,
            job="flights-1",
            job_name="flights",
            severity="critical",
            now=T0 + timedelta(hours=hours),
        )

    assert [silenced(h) for h in (-0.1, 0, 0.99, 1, 9)] == [
        None,
        UUID(int=11),
        UUID(int=11),
        UUID(int=15),
        None,
    ]


def bad_records(count: int, *marks: tuple[float, int]) -> tuple[list[str], datetime | None]:
    """Summaries of a rule of so many bad records within ten minutes, and its end."""
    chain = ChainFacts(
        chain="hourly",
        bad_records=tuple((T0 + timedelta(seconds=at), number) for at, number in marks),
    )
    life = Life(status=JobStatus.RUNNING, is_planned=False)
    job = JobFacts(id="flights-1", name="flights", life=life, chains=(chain,))
    kind = KINDS["bad_records"]
    judged = kind.judge(kind.read({"count": count, "window_s": 600}), job, T0)
    return [one.summary for one in judged.holding], judged.until


def test_bad_records_within_the_window_hold_until_too_few_are_left() -> None:
    assert bad_records(0) == ([], None)
    assert bad_records(0, (-600, 5)) == ([], None)
    (summary,), until = bad_records(0, (-599, 1))
    assert summary == (
        "hourly left out 1 bad record within 10 min 00 s: its function raised on them. The log of "
        "its worker has their causes."
    )
    assert until == T0 + timedelta(seconds=1)
    marks = ((-10, 3), (-300, 4), (-500, 2), (-700, 9))
    assert bad_records(9, *marks) == ([], None)
    (summary,), until = bad_records(6, *marks)
    assert "9 bad records" in summary
    assert until == T0 + timedelta(seconds=300)


def test_a_subtask_is_silent_by_the_drivers_last_report_and_by_no_other_time() -> None:
    """The driver may have reported since the look at the facts began: it reports for all."""
    limit_s = parameters_of("subtask_silent").seconds
    heard_at = T0 + timedelta(seconds=limit_s)
    job = JobFacts(
        id="flights-1",
        name="flights",
        life=Life(status=JobStatus.RUNNING, is_planned=False),
        driver=DriverFacts(number=1, is_running=True, heard_at=heard_at),
        chains=(ChainFacts(chain="hourly", updated_at=T0),),
    )
    for now in (T0, heard_at, heard_at + timedelta(days=1)):
        (holding,) = (
            KINDS["subtask_silent"].judge(parameters_of("subtask_silent"), job, now).holding
        )
        assert holding.subject == "hourly"
