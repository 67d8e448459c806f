"""Timers: fire once, in order, and survive freezing."""

import heapq

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.unit.state.snapshots import ONE, due
from weir.errors import ProtocolError
from weir.graph.key_groups import key_group
from weir.ids import KeyGroupRange
from weir.state.keyed_timers import FrozenTimers, KeyedTimers
from weir.state.pieces import PieceSize
from weir.state.timers import HeapTimerQueue, Timer

GROUPS = 8


def timers() -> KeyedTimers:
    return KeyedTimers(KeyGroupRange(0, GROUPS - 1), GROUPS)


def test_timers_fire_in_the_order_of_time_then_of_registration() -> None:
    queue = timers().event_time
    for timestamp, key in [(30, "a"), (10, "b"), (20, "c"), (10, "a")]:
        assert queue.register(timestamp, key)
    assert queue.next_ms() == 10
    assert due(queue, 20) == [Timer(10, "b"), Timer(10, "a"), Timer(20, "c")]
    assert due(queue, 20) == []
    assert len(queue) == 1
    assert due(queue, 30) == [Timer(30, "a")]
    assert queue.next_ms() is None


def test_timers_are_polled_one_at_a_time_with_their_group() -> None:
    queue = timers().event_time
    for number in range(3):
        queue.register(number, "k")
    polled = queue.poll(100)
    assert polled == Timer(0, "k")
    assert polled is not None
    assert polled.group == key_group("k", GROUPS)
    queue.delete(1, "k")
    queue.register(0, "k")
    assert due(queue, 100) == [Timer(0, "k"), Timer(2, "k")]


def test_the_group_of_a_polled_timer_is_the_keys_wherever_the_range_begins() -> None:
    queue = KeyedTimers(KeyGroupRange(64, 127), 128).event_time
    mine = next(key for key in range(100) if key_group(key, 128) > 64)
    queue.register(1, mine)
    polled = queue.poll(1)
    assert polled is not None
    assert polled.group == key_group(mine, 128)


def test_a_timer_registered_twice_fires_once() -> None:
    queue = timers().event_time
    assert queue.register(10, "k", "w")
    assert not queue.register(10, "k", "w")
    assert queue.register(10, "k", "other")
    assert len(due(queue, 10)) == 2
    assert queue.register(10, "k", "w")


def test_a_deleted_timer_does_not_fire_but_may_come_back() -> None:
    queue = timers().event_time
    queue.register(10, "k")
    queue.register(20, "k")
    assert queue.delete(10, "k")
    assert not queue.delete(10, "k")
    assert queue.next_ms() == 20
    queue.register(10, "k")
    assert due(queue, 99) == [Timer(10, "k"), Timer(20, "k")]


def test_event_time_and_processing_time_are_apart() -> None:
    both = timers()
    both.event_time.register(1, "k")
    assert both.processing_time.next_ms() is None


def test_keys_and_namespaces_come_back_as_they_were() -> None:
    queue = timers().event_time
    held = [(1, (0, 60)), (True, None), ((1, "a"), b"x"), (None, 1.5)]
    for key, namespace in held:
        queue.register(5, key, namespace)
    assert due(queue, 5) == [Timer(5, key, namespace) for key, namespace in held]


def test_a_timer_of_another_subtask_is_refused() -> None:
    queue = KeyedTimers(KeyGroupRange(0, 63), 128).event_time
    foreign = next(key for key in range(100) if key_group(key, 128) > 63)
    with pytest.raises(ProtocolError):
        queue.register(1, foreign)
    assert queue.register(1, foreign, group=5)  # The caller knows better.


def test_deleting_over_and_over_does_not_fill_memory() -> None:
    queue = timers().event_time
    for number in range(20_000):
        queue.register(number, "k")
        queue.delete(number, "k")
    assert isinstance(queue, HeapTimerQueue)
    assert len(queue._heap) < 3_000


def contents(frozen: FrozenTimers) -> set[tuple[int, object, object]]:
    queue = frozen.timers["event_time"]
    rows = queue.rows(0, PieceSize(3), last=False)
    known = [timer for _, timers in rows for timer in timers]
    assert len(set(known)) == len(known)
    return set(known)


class FreezingTimers(RuleBasedStateMachine):
    """Timers against a sorted list, with views that must not change."""

    def __init__(self) -> None:
        super().__init__()
        self.timers = timers()
        self.model: list[tuple[int, int, int]] = []  # Timestamp, registration, key.
        self.number = 0
        self.views: list[tuple[FrozenTimers, set[tuple[int, int]]]] = []

    def known(self) -> set[tuple[int, int]]:
        return {(timestamp, key) for timestamp, _, key in self.model}

    @rule(timestamp=st.integers(0, 20), key=st.integers(0, 5))
    def register(self, timestamp: int, key: int) -> None:
        new = (timestamp, key) not in self.known()
        assert self.timers.event_time.register(timestamp, key) == new
        if new:
            self.number += 1
            heapq.heappush(self.model, (timestamp, self.number, key))

    @rule(timestamp=st.integers(0, 20), key=st.integers(0, 5))
    def delete(self, timestamp: int, key: int) -> None:
        there = (timestamp, key) in self.known()
        assert self.timers.event_time.delete(timestamp, key) == there
        self.model = [m for m in self.model if (m[0], m[2]) != (timestamp, key)]
        heapq.heapify(self.model)

    @rule(now=st.integers(0, 20))
    def fire(self, now: int) -> None:
        expected = None
        if self.model and self.model[0][0] <= now:
            timestamp, _, key = heapq.heappop(self.model)
            expected = Timer(timestamp, key)
        assert self.timers.event_time.poll(now) == expected

    @rule()
    def freeze(self) -> None:
        if len(self.views) < 2:
            self.views.append((self.timers.freeze(ONE), self.known()))

    @rule()
    def release(self) -> None:
        if self.views:
            self.views.pop(0)[0].release()

    @invariant()
    def views_never_change(self) -> None:
        for frozen, expected in self.views:
            assert contents(frozen) == {(timestamp, key, None) for timestamp, key in expected}

    @invariant()
    def count_and_next_are_right(self) -> None:
        assert len(self.timers.event_time) == len(self.model)
        assert self.timers.event_time.next_ms() == (self.model[0][0] if self.model else None)


TestFreezingTimers = FreezingTimers.TestCase
TestFreezingTimers.settings = settings(deadline=None)


def test_changes_are_undone_up_to_the_last_that_were_kept() -> None:
    queue = timers().event_time
    for number in range(3_000):
        queue.register(number, "k")
    changes = queue.record_changes()
    queue.register(5_000, "k")
    changes.clear()
    for number in range(2_900):  # So many that the due times are gathered anew.
        queue.delete(number, "k")
    queue.register(1, "other")
    queue.register(5, "k")
    queue.undo()
    assert len(queue) == 3_001
    assert queue.next_ms() == 0
    assert due(queue, 10_000) == [Timer(at, "k") for at in (*range(3_000), 5_000)]
    assert len(queue) == 0
