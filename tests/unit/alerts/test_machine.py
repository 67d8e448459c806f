"""The machine of alerts: edges, flapping, cooldown, moved clocks, restarts, and telling."""

from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.alerts.machine import (
    FLAP_MEMORY,
    IDLE,
    SETTLING,
    SETTLING_MAX,
    TRANSITIONS,
    Edge,
    Phase,
    Policy,
    Watch,
    next_look,
    notice_due,
    step,
    withdraw,
)

T0 = datetime(2026, 3, 1, 12, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def run(
    looks: list[tuple[float, bool]], policy: Policy, watch: Watch = IDLE
) -> tuple[Watch, list[tuple[float, Edge]]]:
    """The watch after looks at a condition, given by seconds, and the edges with their seconds."""
    edges = []
    for second, holds in looks:
        before = watch.phase
        watch, edge = step(watch, holds, at(second), policy)
        assert watch.phase == before or watch.phase in TRANSITIONS[before]
        assert (edge is Edge.FIRED) == (watch.phase is Phase.FIRING != before)
        assert (edge is Edge.RESOLVED) == (before is Phase.FIRING != watch.phase)
        if edge is not None:
            edges.append((second, edge))
    return watch, edges


def test_an_alert_fires_once_its_condition_has_held_for_long_enough() -> None:
    policy = Policy(hold=timedelta(seconds=60))
    looks = [(0, True), (30, True), (59, True), (60, True), (65, True), (900, True)]
    watch, edges = run(looks, policy)
    assert edges == [(60, Edge.FIRED)]
    assert watch.held_since == at(0)


def test_a_condition_that_is_over_before_its_hold_fires_nothing() -> None:
    policy = Policy(hold=timedelta(seconds=60))
    watch, edges = run([(0, True), (50, True), (55, False), (58, True), (117, True)], policy)
    assert (watch.phase, watch.held_since, edges) == (Phase.PENDING, at(58), [])


def test_it_resolves_when_the_condition_has_been_clear_for_long_enough() -> None:
    settles = SETTLING.total_seconds()
    looks = [(0, True), (5, False), (10, True), (15, False), (15 + settles - 1, False)]
    watch, edges = run(looks, Policy())
    assert edges == [(0, Edge.FIRED)]
    watch, edges = run([(15 + settles, False)], Policy(), watch)
    assert edges == [(15 + settles, Edge.RESOLVED)]


def test_within_the_cooldown_nothing_fires_and_after_it_at_once_what_still_holds() -> None:
    policy = Policy(cooldown=timedelta(seconds=600), hold=timedelta(seconds=10))
    looks = [(0, True), (10, True), (20, False), (50, False)]
    watch, edges = run(looks, policy)
    assert edges == [(10, Edge.FIRED), (50, Edge.RESOLVED)]
    watch, edges = run([(100, True), (649, True), (650, True)], policy, watch)
    assert edges == [(650, Edge.FIRED)]


def test_a_condition_that_comes_and_goes_becomes_one_long_alert() -> None:
    looks = [(float(second), second % 120 < 60) for second in range(0, 4 * 3_600, 5)]
    _, edges = run(looks, Policy())
    fired = [second for second, edge in edges if edge is Edge.FIRED]
    assert len(fired) == 2  # The first time, and after it had seemed to be over.
    assert Policy().settling_after(0) < Policy().settling_after(1) < SETTLING_MAX
    assert Policy().settling_after(1_000) == SETTLING_MAX


def test_flaps_are_forgotten_after_a_calm_while() -> None:
    watch, _ = run([(0, True), (10, False), (40, False), (60, True)], Policy())
    assert watch.flaps == 1
    watch, edges = run([(70, False), (130, False)], Policy(), watch)
    assert edges == [(130, Edge.RESOLVED)]
    calm = 130 + FLAP_MEMORY.total_seconds()
    watch, _ = run([(calm - 1, False)], Policy(), watch)
    assert watch.phase is Phase.RESOLVED
    watch, edges = run([(calm, False)], Policy(), watch)
    assert watch == IDLE


def test_a_clock_that_is_set_back_makes_a_watch_wait_again() -> None:
    policy = Policy(hold=timedelta(seconds=60))
    watch, edges = run([(0, True), (50, True), (-3_600, True), (-3_541, True)], policy)
    assert (watch.phase, edges) == (Phase.PENDING, [])
    watch, edges = run([(-3_540, True)], policy, watch)
    assert edges == [(-3_540, Edge.FIRED)]


def test_a_rule_that_is_withdrawn_resolves_what_fires_and_nothing_else() -> None:
    assert withdraw(Watch(phase=Phase.FIRING)) is Edge.RESOLVED
    for phase in (Phase.INACTIVE, Phase.PENDING, Phase.RESOLVED):
        assert withdraw(Watch(phase=phase)) is None


@pytest.mark.parametrize(
    ("told", "is_silenced", "is_acknowledged", "firing", "resolved"),
    [
        (0, False, False, True, False),
        (0, True, False, False, False),
        (0, False, True, False, False),
        (1, False, False, False, True),
        (1, True, True, False, True),  # Its receivers would keep it open.
        (2, False, False, False, False),
    ],
)
def test_a_notice_is_due_when_the_alert_was_not_told(
    told: int, is_silenced: bool, is_acknowledged: bool, firing: bool, resolved: bool
) -> None:
    state = {"told": told, "is_silenced": is_silenced, "is_acknowledged": is_acknowledged}
    assert notice_due(is_firing=True, **state) is firing
    assert notice_due(is_firing=False, **state) is resolved


# Properties ---------------------------------------------------------------------------------------

seconds = st.integers(0, 400).map(float)
policies = st.builds(
    Policy,
    hold=seconds.map(lambda s: timedelta(seconds=s)),
    cooldown=seconds.map(lambda s: timedelta(seconds=s)),
    settling=st.integers(1, 100).map(lambda s: timedelta(seconds=s)),
)
# Clocks go on, stand still, leap and are set back.
passed = st.one_of(st.integers(0, 30), st.integers(0, 5_000), st.integers(-5_000, 0))
histories = st.lists(st.tuples(passed, st.booleans()), max_size=60).map(
    lambda looks: [
        (float(sum(by for by, _ in looks[: index + 1])), holds)
        for index, (_, holds) in enumerate(looks)
    ]
)


@given(histories, policies)
def test_each_firing_has_one_end_and_they_take_turns(
    looks: list[tuple[float, bool]], policy: Policy
) -> None:
    watch, edges = run(looks, policy)
    for (_, one), (_, other) in pairwise(edges):
        assert one is not other
    assert not edges or edges[0][1] is Edge.FIRED
    # Whether by its condition or with its rule, it ends.
    is_open = bool(edges) and edges[-1][1] is Edge.FIRED
    assert (withdraw(watch) is Edge.RESOLVED) is is_open


@given(histories, policies, st.integers(0, 60))
def test_another_process_goes_on_with_the_stored_state(
    looks: list[tuple[float, bool]], policy: Policy, cut: int
) -> None:
    whole = run(looks, policy)
    watch, first = run(looks[:cut], policy)
    stored = Watch(**asdict(watch))
    last, rest = run(looks[cut:], policy, stored)
    assert (last, first + rest) == whole


@given(histories, policies)
def test_only_a_condition_that_holds_fires_and_not_before_its_hold(
    looks: list[tuple[float, bool]], policy: Policy
) -> None:
    _, edges = run(looks, policy)
    for second, edge in edges:
        so_far = looks[: looks.index((second, edge is Edge.FIRED)) + 1]
        if edge is Edge.FIRED and so_far == sorted(so_far):
            clear = [s for s, holds in so_far if not holds]
            since = next(s for s, holds in so_far if holds and s >= max(clear, default=s))
            assert second - since >= policy.hold.total_seconds()


@given(policies, st.integers(1, 50))
def test_alerts_in_a_row_are_a_cooldown_apart(policy: Policy, period: int) -> None:
    looks = [(float(second), second // period % 2 == 0) for second in range(0, 4_000, 3)]
    _, edges = run(looks, policy)
    for (ended, one), (again, _) in pairwise(edges):
        if one is Edge.RESOLVED:
            assert again - ended >= policy.cooldown.total_seconds()


@given(histories, policies, st.booleans())
def test_without_a_change_nothing_happens_before_the_next_look(
    looks: list[tuple[float, bool]], policy: Policy, holds: bool
) -> None:
    watch, _ = run(looks, policy)
    now = max((second for second, _ in looks), default=0.0) + 5_000
    watch, _ = step(watch, holds, at(now), policy)
    due = next_look(watch, holds, policy)
    before = at(now + 10_000_000) if due is None else due - timedelta(seconds=1)
    if before > at(now):
        after, edge = step(watch, holds, before, policy)
        assert edge is None
        assert after.phase is watch.phase


@given(histories, policies, st.data())
def test_notices_count_one_and_two_silenced_or_not(
    looks: list[tuple[float, bool]], policy: Policy, data: st.DataObject
) -> None:
    watch, told, posted, fired = IDLE, 0, [], 0
    for second, holds in looks:
        watch, edge = step(watch, holds, at(second), policy)
        if edge is Edge.FIRED:
            told, posted, fired = 0, [], fired + 1
        is_silenced = data.draw(st.booleans())
        is_firing = watch.phase is Phase.FIRING
        if (is_firing or edge is Edge.RESOLVED) and notice_due(
            is_firing=is_firing, told=told, is_silenced=is_silenced, is_acknowledged=False
        ):
            told += 1
            posted.append((told, is_firing))
        assert posted in ([], [(1, True)], [(1, True), (2, False)])
        if is_firing and not is_silenced:
            assert posted  # A silence that ends does not swallow an alert.
        if edge is Edge.RESOLVED and posted:
            assert posted[-1] == (2, False)
