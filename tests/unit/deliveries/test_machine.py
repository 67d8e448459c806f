"""Retries, order and disabling: the table, and what holds for any course of events."""

import random
from collections import defaultdict
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.deliveries import machine
from controlplane.deliveries.machine import (
    FLIGHTS_PER_ENDPOINT,
    TRANSITIONS,
    DeliveryStatus,
    Ended,
    Health,
    Meaning,
    Policy,
    Step,
    Waiting,
    admitted,
    after_attempt,
    after_end,
    meaning_of,
    parsed_retry_after,
    retry_bound,
)

T0 = datetime(2026, 3, 1, 12, tzinfo=UTC)
POLICY = Policy()
SECOND, MINUTE, HOUR, DAY = (
    timedelta(seconds=1),
    timedelta(minutes=1),
    timedelta(hours=1),
    timedelta(days=1),
)
DELIVERED, FAILED, GONE = Meaning.DELIVERED, Meaning.FAILED, Meaning.GONE


def ended(meaning: Meaning = FAILED, at: datetime = T0, retry_after: Any = None) -> Ended:
    return Ended(meaning, at, retry_after)


def stepped(
    end: Ended, *, tries: int = 1, now: datetime = T0, draw: float = 0.5, queued_at: datetime = T0
) -> Step:
    return after_attempt(
        queued_at=queued_at, tries=tries, ended=end, now=now, draw=draw, policy=POLICY
    )


@pytest.mark.parametrize(
    ("status", "meaning"),
    [
        *((200, DELIVERED), (202, DELIVERED), (204, DELIVERED), (299, DELIVERED)),
        *((301, FAILED), (302, FAILED), (307, FAILED), (400, FAILED), (401, FAILED)),
        *((404, FAILED), (409, FAILED), (410, GONE), (411, FAILED), (429, FAILED)),
        *((500, FAILED), (502, FAILED), (503, FAILED), (599, FAILED), (999, FAILED)),
    ],
)
def test_each_status_has_a_meaning(status: int, meaning: Meaning) -> None:
    assert meaning_of(status) is meaning


def test_the_bound_of_a_wait_doubles_up_to_an_hour() -> None:
    bounds = [retry_bound(tries, POLICY) for tries in (1, 2, 3, 10, 11, 12, 10_000)]
    assert bounds == [
        5 * SECOND,
        10 * SECOND,
        20 * SECOND,
        2_560 * SECOND,
        HOUR,
        HOUR,
        HOUR,
    ]


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (stepped(ended(DELIVERED)), Step(DeliveryStatus.DELIVERED)),
        (stepped(ended(DELIVERED), now=T0 + 9 * DAY), Step(DeliveryStatus.DELIVERED)),
        (
            stepped(ended(GONE)),
            Step(DeliveryStatus.GIVEN_UP),
        ),
        (stepped(ended()), Step(DeliveryStatus.PENDING, T0 + 2.5 * SECOND)),
        (stepped(ended(), draw=0.0), Step(DeliveryStatus.PENDING, T0)),
        (
            stepped(ended(retry_after=7 * SECOND)),
            Step(DeliveryStatus.PENDING, T0 + 7 * SECOND),
        ),
        (stepped(ended(retry_after=9 * DAY)), Step(DeliveryStatus.PENDING, T0 + HOUR)),
        # The last attempt is when the day is over, not later.
        (
            stepped(ended(), tries=30, now=T0 + DAY - MINUTE, draw=0.9),
            Step(DeliveryStatus.PENDING, T0 + DAY),
        ),
        # Even then an endpoint is not asked before the time that it named.
        (
            stepped(ended(retry_after=2 * MINUTE), tries=30, now=T0 + DAY - MINUTE),
            Step(DeliveryStatus.PENDING, T0 + DAY + MINUTE),
        ),
        (
            stepped(ended(), tries=30, now=T0 + DAY),
            Step(DeliveryStatus.GIVEN_UP, reason="its time ended after 30 attempts"),
        ),
        # It waited for a day for the one before it: one attempt it has had.
        (
            stepped(ended(), now=T0 + 2 * DAY),
            Step(DeliveryStatus.GIVEN_UP, reason="its time ended after 1 attempt"),
        ),
    ],
)
def test_the_table_of_steps(step: Step, expected: Step) -> None:
    assert step == expected
    assert (
        step.status is DeliveryStatus.PENDING or step.status in TRANSITIONS[DeliveryStatus.PENDING]
    )


def test_an_endpoint_rests_longer_with_each_failure_and_a_success_ends_that() -> None:
    health, now = Health(), T0
    rests = []
    for _ in range(12):
        health, reason = after_end(health, ended(at=now), now, POLICY)
        assert reason is None
        assert health.held_until is not None
        rests.append(health.held_until - now)
        now = health.held_until + SECOND
    expected = [0, 1, 2, 4, 8, 16, 32, 60, 60, 60, 60, 60]
    assert rests == [count * SECOND for count in expected]
    assert (health.failures, health.failing_since) == (12, T0)
    assert after_end(health, ended(DELIVERED, at=now), now, POLICY) == (Health(), None)


def test_failures_of_attempts_that_were_under_way_together_count_once() -> None:
    health = Health()
    for number in range(8):
        health, _ = after_end(health, ended(at=T0), T0 + number * SECOND, POLICY)
    assert health.failures == 1
    assert not health.is_held(T0 + 8 * SECOND)


def test_retry_after_holds_the_endpoint_for_an_hour_at_most() -> None:
    health, _ = after_end(Health(), ended(retry_after=9 * DAY), T0, POLICY)
    assert health.held_until == T0 + HOUR
    assert (health.flights(T0 + HOUR - SECOND), health.flights(T0 + HOUR)) == (0, 1)
    # Attempts that were under way do not shorten it, failed or not.
    for meaning in (FAILED, DELIVERED):
        later, _ = after_end(health, ended(meaning), T0 + SECOND, POLICY)
        assert later.held_until == T0 + HOUR


@pytest.mark.parametrize(
    ("failing_for", "is_disabled"),
    [(timedelta(0), False), (3 * DAY - SECOND, False), (3 * DAY, True), (30 * DAY, True)],
)
def test_days_without_a_success_disable_an_endpoint(
    failing_for: timedelta, is_disabled: bool
) -> None:
    before = Health(5, T0, T0, None)
    now = T0 + failing_for
    _, reason = after_end(before, ended(at=now), now, POLICY)
    assert (reason is not None) is is_disabled
    assert reason is None or "2026-03-01 12:00 UTC" in reason
    success = ended(DELIVERED, at=now + SECOND)
    assert after_end(before, success, now + SECOND, POLICY) == (Health(), None)


def test_a_gone_endpoint_is_disabled_at_once() -> None:
    assert after_end(Health(), ended(GONE), T0, POLICY) == (Health(), "it answered 410 Gone")


@pytest.mark.parametrize(
    ("header", "wait"),
    [
        ("120", 120 * SECOND),
        (" 0 ", timedelta(0)),
        ("Sun, 01 Mar 2026 12:02:00 GMT", 2 * MINUTE),
        ("Sun, 01 Mar 2026 11:00:00 GMT", timedelta(0)),
        ("Sun, 01 Mar 2026 12:02:00", 2 * MINUTE),
        *((text, None) for text in ("", None, "soon", "-5", "1.5", "٣", "Mon, 99 Foo 2026")),
        ("9" * 400, 10**9 * SECOND),
    ],
)
def test_retry_after_is_seconds_or_a_date(header: str | None, wait: timedelta | None) -> None:
    assert parsed_retry_after(header, T0) == wait


@given(st.text(max_size=50))
def test_no_retry_after_is_an_error(header: str) -> None:
    wait = parsed_retry_after(header, T0)
    assert wait is None or wait >= timedelta(0)


# Order --------------------------------------------------------------------------------------------


def waiting(number: int, *, line: int = 0, endpoint: int = 0, at: datetime = T0) -> Waiting:
    pk = UUID(int=endpoint * 10_000 + line * 100 + number)
    return Waiting(pk, UUID(int=endpoint), f"alert-{line}", number, at, (T0, number))


HEALTHY = {UUID(int=number): Health() for number in range(4)}


def test_the_head_of_a_line_goes_first_even_if_another_is_due_earlier() -> None:
    second = waiting(2, at=T0 - HOUR)
    first = waiting(1, at=T0 + HOUR)
    assert admitted([second, first], HEALTHY, [], T0, 9) == []
    assert admitted([second, first], HEALTHY, [], T0 + HOUR, 9) == [first.id]
    assert admitted([second], HEALTHY, [], T0, 9) == [second.id]


def test_a_line_with_one_in_flight_waits() -> None:
    assert admitted([waiting(2)], HEALTHY, [(UUID(int=0), "alert-0")], T0, 9) == []


def test_an_endpoint_has_no_more_than_its_flights_and_the_others_theirs() -> None:
    slow = [waiting(1, line=line) for line in range(50)]
    other = waiting(1, line=60, endpoint=1, at=T0)
    taken = admitted([*slow, other], HEALTHY, [], T0, 32)
    assert len(taken) == FLIGHTS_PER_ENDPOINT + 1
    assert other.id in taken
    failing = {**HEALTHY, UUID(int=0): Health(1, T0, T0, None)}
    assert len(admitted(slow, failing, [], T0, 32)) == 1
    assert admitted(slow, failing, [(UUID(int=0), "alert-99")], T0, 32) == []
    held = {**HEALTHY, UUID(int=0): Health(1, T0, T0, T0 + SECOND)}
    assert admitted([*slow, other], held, [], T0, 32) == [other.id]


def test_nothing_goes_to_an_endpoint_that_is_not_enabled() -> None:
    assert admitted([waiting(1, endpoint=77)], HEALTHY, [], T0, 9) == []


def test_the_longest_due_go_first_and_no_more_than_there_is_room_for() -> None:
    rows = [waiting(1, line=line, at=T0 - line * SECOND) for line in range(5)]
    assert admitted(rows, HEALTHY, [], T0, 2) == [rows[4].id, rows[3].id]


@dataclass
class Plane:
    """All of it in one: rows, flights and endpoints, against endpoints that do as they like."""

    endpoints: dict[UUID, Health]
    rows: dict[UUID, Waiting]
    queued: dict[UUID, datetime]
    tries: dict[UUID, int] = field(default_factory=lambda: defaultdict(int))
    status: dict[UUID, DeliveryStatus] = field(default_factory=dict)
    arrivals: list[tuple[UUID, str, int]] = field(default_factory=list)
    not_before: dict[UUID, datetime] = field(default_factory=dict)

    def run(self, draw: random.Random, policy: Policy, endings: Any) -> datetime:
        """To the end of all deliveries; the time of the last."""
        now = T0
        flying: list[tuple[datetime, UUID]] = []
        for _ in range(100_000):
            if not self.rows and not flying:
                return now
            lines = [(self.rows_of(pk).endpoint, self.rows_of(pk).alert) for _, pk in flying]
            free = [row for pk, row in self.rows.items() if all(pk != one for _, one in flying)]
            for pk in admitted(free, self.endpoints, lines, now, 8):
                row = self.rows_of(pk)
                assert self.not_before.get(row.endpoint, T0) <= now
                self.tries[pk] += 1
                flying.append((now, pk))
            moments = [at + SECOND for at, _ in flying]
            moments += [row.next_at for row in free if row.next_at > now]
            moments += [h.held_until for h in self.endpoints.values() if h.held_until]
            now = min((at for at in moments if at > now), default=now + SECOND)
            for begun, pk in [one for one in flying if one[0] + SECOND <= now]:
                flying.remove((begun, pk))
                self.land(pk, begun, now, draw, policy, endings)
        raise AssertionError("no end")

    def rows_of(self, pk: UUID) -> Waiting:
        return self.rows[pk]

    def land(
        self,
        pk: UUID,
        begun: datetime,
        now: datetime,
        draw: random.Random,
        policy: Policy,
        endings: Any,
    ) -> None:
        row = self.rows[pk]
        meaning, retry_after = endings(draw)
        end = Ended(meaning, begun, retry_after)
        if meaning is DELIVERED:
            self.arrivals.append((row.endpoint, row.alert, row.sequence))
        step = after_attempt(
            queued_at=self.queued[pk],
            tries=self.tries[pk],
            ended=end,
            now=now,
            draw=draw.random(),
            policy=policy,
        )
        self.endpoints[row.endpoint], _ = after_end(self.endpoints[row.endpoint], end, now, policy)
        if retry_after is not None and meaning is FAILED:
            self.not_before[row.endpoint] = now + min(retry_after, policy.retry_after_max)
        elif meaning is DELIVERED and not self.endpoints[row.endpoint].is_failing:
            self.not_before.pop(row.endpoint, None)
        if step.status is DeliveryStatus.PENDING:
            assert step.next_at is not None
            assert step.next_at >= now
            self.rows[pk] = Waiting(
                pk, row.endpoint, row.alert, row.sequence, step.next_at, row.tie
            )
        else:
            self.status[pk] = step.status
            del self.rows[pk]


@given(
    seed=st.integers(0, 2**32),
    failing=st.floats(0, 1),
    lines=st.integers(1, 6),
    length=st.integers(1, 4),
)
def test_any_course_of_failures_keeps_order_asks_not_too_soon_and_ends(
    seed: int, failing: float, lines: int, length: int
) -> None:
    policy = Policy(give_up_after=HOUR, retry_max=10 * MINUTE)
    draw = random.Random(seed)
    rows = [
        waiting(number, line=line, endpoint=line % 2)
        for line in range(lines)
        for number in range(1, length + 1)
    ]
    plane = Plane(
        {UUID(int=0): Health(), UUID(int=1): Health()},
        {row.id: row for row in rows},
        {row.id: T0 for row in rows},
    )

    def endings(draw: random.Random) -> tuple[Meaning, timedelta | None]:
        if draw.random() >= failing:
            return DELIVERED, None
        asked = timedelta(seconds=draw.choice([0, 1, 90, 10_000])) if draw.random() < 0.2 else None
        return FAILED, asked

    end = plane.run(draw, policy, endings)
    assert set(plane.status) == {row.id for row in rows}
    assert all(plane.tries[row.id] >= 1 for row in rows)
    seen: dict[tuple[UUID, str], int] = {}
    for endpoint, alert, sequence in plane.arrivals:
        assert sequence > seen.get((endpoint, alert), 0)
        seen[endpoint, alert] = sequence
    # A delivery's own hour, what an endpoint may ask for, and the lines before it.
    assert end <= T0 + HOUR + len(rows) * (policy.retry_after_max + 2 * MINUTE)


def test_the_meanings_are_one_table() -> None:
    assert {said for _, said in machine.MEANINGS} == set(Meaning)
