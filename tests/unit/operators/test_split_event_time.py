"""Event time of a source made of splits: whose turn it is, what is late, who is paused or idle."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.operators.connector_harness import Snapshot
from tests.unit.operators.operator_harness import Harness as OperatorHarness
from tests.unit.operators.split_harness import ListedSource, Timed, rescaled, started
from weir.common import Duration, WatermarkStrategy
from weir.errors import ConfigError
from weir.operators.base import Poll
from weir.operators.sources.split_order import TURNS_MAX
from weir.operators.sources.split_time import SourceWatermarkFactory
from weir.protocol.elements import MAX_WATERMARK_MS, MIN_WATERMARK_MS


def time_of(row: Any, before: int) -> int:
    return row[2]


BY_COLUMN = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_column("ts")
MONOTONOUS = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(time_of)


def bounded_by(bound_ms: int) -> WatermarkStrategy:
    return WatermarkStrategy.for_bounded_out_of_orderness(bound_ms).with_timestamp_assigner(time_of)


def marks(events: list[Any]) -> list[Any]:
    return [event for event in events if isinstance(event[0], str)]


def splits(events: list[Any]) -> list[int]:
    """The splits that the records came from, repetitions dropped."""
    numbers = [event[0] for event in events if not isinstance(event[0], str)]
    return [n for i, n in enumerate(numbers) if i == 0 or numbers[i - 1] != n]


def begun(source: ListedSource, reads: list[int], strategy: WatermarkStrategy) -> list[Snapshot]:
    """Snapshots of subtasks with one split each, of which so many records were read."""
    running = started(source, strategy, len(source.splits))
    for subtask, records in zip(running, reads, strict=True):
        if records:
            subtask.read(records)
    return [subtask.barrier(1) for subtask in running]


class TestTurns:
    def test_begun_splits_are_read_in_turn_the_one_furthest_behind_first(self) -> None:
        source = ListedSource([*range(0, 90, 3)], [*range(1, 91, 3)], [*range(2, 92, 3)])
        (subtask,) = rescaled(source, MONOTONOUS, 1, begun(source, [9, 3, 6], MONOTONOUS))
        first = [subtask.read(3) for _ in range(4)]
        assert [splits(part) for part in first] == [[1], [1], [2], [0]]  # At 6, 15, 16 and 23.

    def test_the_watermark_is_that_of_the_split_furthest_behind(self) -> None:
        source = ListedSource([10, 20, 30, 40], [12, 22, 32, 42])
        (subtask,) = rescaled(source, MONOTONOUS, 1, begun(source, [2, 3], MONOTONOUS))
        assert subtask.read(1) == [(0, 2, 30), ("watermark", 29)]
        assert subtask.read(1) == [(0, 3, 40), ("watermark", 31)]
        assert subtask.read(1) == [(1, 3, 42), ("watermark", 39)]
        assert subtask.read() == [("watermark", 41)]  # The first split has ended.
        assert subtask.read() == [("watermark", MAX_WATERMARK_MS)]

    def test_without_event_time_begun_splits_take_turns(self) -> None:
        source = ListedSource([1] * 9, [1] * 9, [1] * 9)
        strategy = WatermarkStrategy.no_watermarks().with_timestamp_assigner(time_of)
        (subtask,) = rescaled(source, strategy, 1, begun(source, [1, 1, 1], strategy))
        assert splits([row for _ in range(6) for row in subtask.read(1)]) == [0, 1, 2, 0, 1, 2]

    def test_fresh_splits_are_begun_in_their_order_when_none_before_them_is_left(self) -> None:
        source = ListedSource(*([10 * i, 10 * i + 5] for i in range(4)))
        (subtask,) = started(source, MONOTONOUS)
        assert splits(subtask.read_rest(1)) == [0, 1, 2, 3]

    def test_a_split_that_was_passed_by_is_read_before_event_time_goes_on(self) -> None:
        """Two subtasks got apart by far; the slow one's next split is older than the fast one's."""
        source = ListedSource(*([10 * i, 10 * i + 5] for i in range(6)))
        slow, fast = started(source, MONOTONOUS, 2)
        slow.read(1)
        for _ in range(5):
            fast.read(1)
        assert splits(fast.output.events) == [1, 3]
        snapshots = [slow.barrier(1), fast.barrier(1)]
        assert [item["position"] for item in snapshots[1]["splits"]] == [2, None]
        (subtask,) = rescaled(source, MONOTONOUS, 1, snapshots)
        events = subtask.read_rest(1)
        passed = MIN_WATERMARK_MS
        for event in events:
            if event[0] == "watermark":
                passed = event[1]
            else:
                assert event[2] > passed, (event, events)
        assert splits(events)[:2] == [0, 2]

    def test_pieces_of_one_former_subtask_come_together_again_in_its_order(self) -> None:
        """Another subtask came as far as the last split; then one gets all that is left."""
        source = ListedSource(*([10 * i, 10 * i + 5, 10 * i + 7] for i in range(6)))
        (alone,) = started(source, MONOTONOUS)
        alone.read(1)
        first, second = rescaled(source, MONOTONOUS, 2, [alone.barrier(1)])
        for _ in range(10):
            second.read(1)
        assert splits(second.output.events) == [1, 3, 5]
        assert second.output.rows[-1] == (5, 1, 55)
        for _ in range(3):
            first.read(1)
        (subtask,) = rescaled(source, MONOTONOUS, 1, [first.barrier(2), second.barrier(2)])
        events = subtask.read_rest(1)
        assert late_windows(events, 1) == []
        assert splits(events) == [2, 4, 5]

    def test_begun_splits_stand_first_in_a_checkpoint_so_that_dealing_spreads_them(self) -> None:
        source = ListedSource(*([10 * i, 10 * i + 5] for i in range(9)))
        running = started(source, MONOTONOUS, 3)
        running[0].read(1)
        for _ in range(4):
            running[1].read(1)
        running[2].read(1)
        snapshots = [subtask.barrier(1) for subtask in running]
        (together,) = rescaled(source, MONOTONOUS, 1, snapshots)
        (snapshot,) = [together.barrier(2)]
        positions = [item["position"] for item in snapshot["splits"]]
        assert positions == [1, 1, 1, None, None, None, None, None]
        assert [item["split"]["number"] for item in snapshot["splits"]][:3] == [0, 2, 4]

    def test_of_endless_splits_none_starves_where_time_stands_still(self) -> None:
        source = ListedSource([5] * 500, [*range(6, 500)], bounded=False)
        (subtask,) = started(source, MONOTONOUS)
        for _ in range(5 * TURNS_MAX):
            subtask.read(1)
        taken = [row[0] for row in subtask.output.rows]
        assert 3 <= taken.count(1) <= 6

    def test_endless_splits_are_all_begun_at_once(self) -> None:
        source = ListedSource([10, 20], [11, 21], [12, 22], bounded=False)
        (subtask,) = started(source, MONOTONOUS)
        events = [event for _ in range(3) for event in subtask.read(1)]
        assert events == [(0, 0, 10), (1, 0, 11), (2, 0, 12), ("watermark", 9)]


class TestRestored:
    def test_a_split_goes_on_from_its_own_watermark(self) -> None:
        source = ListedSource([100, 40, 101], [60, 61, 62])
        snapshots = begun(source, [1, 1], MONOTONOUS)
        (subtask,) = rescaled(source, MONOTONOUS, 1, snapshots)
        assert subtask.read(1) == [(1, 1, 61), ("watermark", 60)]
        assert subtask.read(1) == [(1, 2, 62), ("watermark", 61)]
        assert subtask.read(1) == [("watermark", 99)]  # The second split ended; the first is at 99.
        assert subtask.read(1) == [(0, 1, 40)]
        assert [item["watermark_ms"] for item in subtask.barrier(2)["splits"]] == [99]
        assert subtask.read(1) == [(0, 2, 101), ("watermark", 100)]

    def test_a_subtask_without_splits_ends(self) -> None:
        source = ListedSource([1, 2, 3])
        running = rescaled(source, MONOTONOUS, 3, begun(source, [1], MONOTONOUS))
        assert [subtask.poll(1) for subtask in running] == [Poll.MORE, Poll.END, Poll.END]

    def test_checkpoints_of_positions_alone_are_read(self) -> None:
        """In the order of former subtasks' lists; event time is unknown until each is read."""
        source = ListedSource(*([10 * i, 10 * i + 5] for i in range(6)))
        items = [(1, 1), (3, None), (5, None), (0, 1), (2, None), (4, None)]
        old = [{"splits": [{"split": {"number": n}, "position": at} for n, at in items]}]
        (subtask,) = rescaled(source, MONOTONOUS, 1, old)
        events = subtask.read_rest(1)
        passed = MIN_WATERMARK_MS
        for event in events:
            if event[0] == "watermark":
                passed = event[1]
            else:
                assert event[2] > passed, (event, events)
        assert len(events) - len(marks(events)) == 10

    def test_of_positions_alone_a_fresh_split_does_not_wait_for_one_that_was_begun(self) -> None:
        source = ListedSource([*range(100)], [20, 95])
        old = [{"splits": [{"split": {"number": 0}, "position": 10}]}]
        old.append({"splits": [{"split": {"number": 1}, "position": None}]})
        (subtask,) = rescaled(source, MONOTONOUS, 1, old)
        assert late_windows(subtask.read_rest(10), 1) == []

    def test_event_time_goes_on_from_where_it_was_and_says_so_first(self) -> None:
        before = OperatorHarness(SourceWatermarkFactory(), keyed=False)
        before.watermark(50)
        after = OperatorHarness(SourceWatermarkFactory(), keyed=False, restored=before.snapshot())
        assert after.operator.own_watermark_ms == 50
        after.rows(["x"])
        after.watermark(30)  # Of a split further behind; but what was late must stay late.
        after.watermark(60)
        assert after.output.events == [
            ("watermark", 50), ("rows", ["x"]), ("watermark", 50), ("watermark", 60),
        ]  # fmt: skip

    def test_event_time_that_had_ended_begins_anew(self) -> None:
        before = OperatorHarness(SourceWatermarkFactory(), keyed=False)
        assert before.watermark(MAX_WATERMARK_MS) == [("watermark", MAX_WATERMARK_MS)]
        after = OperatorHarness(SourceWatermarkFactory(), keyed=False, restored=before.snapshot())
        after.rows(["x"])
        assert after.output.events == [("rows", ["x"])]


class TestIdleness:
    STRATEGY = MONOTONOUS.with_idleness(Duration.of_seconds(1))

    def test_a_silent_split_holds_event_time_back_no_longer_than_the_timeout(self) -> None:
        source = ListedSource([10, *[None] * 50, 35], [*range(20, 90)], bounded=False)
        (subtask,) = started(source, self.STRATEGY)
        assert marks(subtask.read(1) + subtask.read(1)) == [("watermark", 9)]
        assert marks(subtask.read(1)) == []  # The first split is asked, and has nothing.
        subtask.clock.ms += 999
        assert marks(subtask.read(1)) == []
        subtask.clock.ms += 1
        events = subtask.read(1)
        assert marks(events) == [("watermark", 22)]
        assert ("idle",) not in subtask.output.events

    def test_a_split_that_was_silent_counts_again_with_its_next_record(self) -> None:
        source = ListedSource([10, None, None, 35], [*range(20, 90, 10)], bounded=False)
        (subtask,) = started(source, self.STRATEGY)
        subtask.read(1), subtask.read(1), subtask.read(1)
        subtask.clock.ms += 1_000
        assert marks(subtask.read(1))[-1] == ("watermark", 39)
        assert subtask.read(1) == [(0, 3, 35)]
        assert marks(subtask.read(1)) == []

    def test_a_split_that_is_not_asked_does_not_become_idle(self) -> None:
        source = ListedSource([*range(0, 1_000, 10)], [400, 410], bounded=False)
        (subtask,) = started(source, self.STRATEGY)
        for _ in range(30):
            subtask.clock.ms += 1_000
            subtask.read(1)
        subtask.read(30)  # Past the second split, which has been left alone for half a minute.
        assert subtask.output.rows[-1] == (0, 58, 580)
        assert subtask.output.watermark_ms == 399

    def test_a_subtask_whose_splits_are_all_silent_is_idle_until_one_speaks(self) -> None:
        source = ListedSource([10, *[None] * 4, 11], [11, *[None] * 4], bounded=False)
        (subtask,) = started(source, self.STRATEGY)
        for _ in range(3):
            subtask.read(1)
        subtask.clock.ms += 1_000
        assert subtask.read(1) == [("idle",)]
        assert subtask.read(1) + subtask.read(1) == []
        assert subtask.read(1) == [(0, 5, 11), ("watermark", 10)]

    def test_a_subtask_that_its_rate_keeps_silent_is_idle_and_polled_in_time(self) -> None:
        source = ListedSource([*range(100)], rows_per_second=0.2)
        (subtask,) = started(source, self.STRATEGY)
        start = subtask.clock.ms
        assert subtask.poll() is Poll.WAIT
        assert subtask.operator.next_timer_ms() == start + 1_000
        subtask.clock.ms += 1_000
        assert subtask.read() == [("idle",)]
        assert subtask.operator.next_timer_ms() == start + 5_000
        subtask.clock.ms += 4_000
        assert subtask.read() == [(0, 0, 0), ("watermark", -1)]


class TestAlignment:
    STRATEGY = MONOTONOUS.with_watermark_alignment("group", Duration.of_millis(50))

    def source(self) -> ListedSource:
        """The first split is behind and has nothing for a while."""
        waiting = [0, *[None] * 40, *range(10, 1_000, 10)]
        return ListedSource(waiting, [*range(0, 1_000, 10)], bounded=False)

    def test_a_split_further_ahead_than_the_drift_is_paused_until_the_other_catches_up(
        self,
    ) -> None:
        (subtask,) = started(self.source(), self.STRATEGY)
        for _ in range(30):
            subtask.read(1)
        assert [row[:2] for row in subtask.output.rows if row[0] == 0] == [(0, 0)]  # It waits.
        assert max(row[2] for row in subtask.output.rows) == 60  # 49 is allowed, 59 is not.
        for _ in range(60):
            subtask.read(1)
        assert min(subtask.output.rows[-1][2], subtask.output.rows[-2][2]) > 100
        times = {0: 0, 1: 0}
        for number, _, at in subtask.output.rows:
            times[number] = at
            assert times[1] - times[0] <= 60

    def test_without_alignment_it_runs_ahead(self) -> None:
        (subtask,) = started(self.source(), MONOTONOUS)
        for _ in range(30):
            subtask.read(1)
        assert max(row[2] for row in subtask.output.rows) > 200

    def test_an_idle_split_keeps_none_waiting(self) -> None:
        strategy = self.STRATEGY.with_idleness(Duration.of_seconds(1))
        (subtask,) = started(self.source(), strategy)
        for _ in range(20):
            subtask.read(1)
        assert max(row[2] for row in subtask.output.rows) == 60
        subtask.clock.ms += 1_000
        for _ in range(10):
            subtask.read(1)
        assert max(row[2] for row in subtask.output.rows) > 100

    def test_a_split_that_told_no_event_time_yet_keeps_none_waiting(self) -> None:
        source = ListedSource([None] * 40, [*range(0, 1_000, 10)], bounded=False)
        (subtask,) = started(source, self.STRATEGY)
        for _ in range(20):
            subtask.read(1)
        assert len(subtask.output.rows) > 10

    def test_what_is_fresh_keeps_none_waiting_or_the_source_would_stand(self) -> None:
        source = ListedSource([*range(0, 900, 10)], [*range(0, 900, 10)], tells_lowest=True)
        strategy = BY_COLUMN.with_watermark_alignment("group", Duration.of_millis(50))
        (subtask,) = started(source, strategy)
        subtask.read_rest(7)
        assert len(subtask.output.rows) == 180

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (("", 1), "give it a name"),
            (("g", -1), "cannot be negative"),
            (("g", 1, 0), "must be positive"),
        ],
    )
    def test_settings_out_of_range_are_refused(self, arguments: Any, message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            MONOTONOUS.with_watermark_alignment(*arguments)


class TestLowestTimes:
    def test_a_fresh_split_holds_event_time_back_until_it_is_read(self) -> None:
        source = ListedSource([0, 50, 99], [10, 60, 90], [100, 150], tells_lowest=True)
        (subtask,) = started(source, BY_COLUMN)
        events = subtask.read_rest()
        assert splits(events) == [0, 1, 2]
        # Up to 9 before the second one is read, up to 99 before the third.
        assert [mark[1] for mark in marks(events)] == [9, 89, 99, 149, MAX_WATERMARK_MS]

    def test_a_restore_keeps_it(self) -> None:
        source = ListedSource([0, 50, 99], [10, 60, 90], tells_lowest=True)
        (running,) = started(source, BY_COLUMN)
        running.read(2)
        (subtask,) = rescaled(source, BY_COLUMN, 1, [running.barrier(1)])
        assert marks(subtask.read(1)) == [("watermark", 9)]

    def test_splits_of_several_former_subtasks_are_read_one_by_one(self) -> None:
        """Their times tell all that is needed, so no second reader has to be open."""
        source = ListedSource([0, 10, 20], [1, 11, 21], [30, 40], [31, 41], tells_lowest=True)
        first, second = started(source, BY_COLUMN, 2)
        first.read(1)
        (subtask,) = rescaled(source, BY_COLUMN, 1, [first.barrier(1), second.barrier(1)])
        assert splits(subtask.read_rest(1)) == [0, 1, 2, 3]

    def test_the_bound_holds_it_back_as_the_first_record_will(self) -> None:
        source = ListedSource([0, 50, 99], [30, 20, 90], tells_lowest=True)
        strategy = WatermarkStrategy.for_bounded_out_of_orderness(15).with_timestamp_column("ts")
        (subtask,) = started(source, strategy)
        assert marks(subtask.read()) == [("watermark", 4)]


def test_with_a_resolution_slices_do_not_matter_to_what_is_late() -> None:
    source = ListedSource([0, 120, 50, 130, 310, 290, 180], [20, 420, 300, 500, 90], [510, 505])
    late = []
    for size in (1, 2, 3, 100):
        (subtask,) = started(source, bounded_by(10).with_resolution(100))
        late.append(late_windows(subtask.read_rest(size), 100))
    assert late[0]
    assert late[1:] == late[:1] * 3


def test_with_a_resolution_the_split_furthest_behind_decides_within_a_slice() -> None:
    strategy = MONOTONOUS.with_resolution(100)
    source = ListedSource([50, 150, 250, 350], [220, 320])
    (subtask,) = rescaled(source, strategy, 1, begun(source, [1, 1], strategy))
    assert subtask.read() == [
        (0, 1, 150), ("watermark", 149), (0, 2, 250), ("watermark", 219), (0, 3, 350),
    ]  # fmt: skip


def test_with_a_resolution_a_restored_split_goes_on_from_its_own_watermark() -> None:
    strategy = MONOTONOUS.with_resolution(100)
    source = ListedSource([250, 40, 41])
    (subtask,) = rescaled(source, strategy, 1, begun(source, [1], strategy))
    assert subtask.read(1) == [(0, 1, 40), ("watermark", 249)]


def late_windows(events: list[Any], size_ms: int) -> list[Any]:
    """The records whose window had been closed when they came."""
    passed, late = MIN_WATERMARK_MS, []
    for event in events:
        if event[0] == "watermark":
            passed = event[1]
        elif event[2] // size_ms * size_ms + size_ms - 1 <= passed:
            late.append(event)
    return late


# Any layout, any slices, any parallelism ----------------------------------------------------------


class Downstream:
    """An operator behind all subtasks: its watermark is the least of those that have not ended."""

    def __init__(self) -> None:
        self.watermark_ms = MIN_WATERMARK_MS
        self.came: list[tuple[Any, int]] = []  # Records with the watermark when they came.

    def take(self, events: list[Any], running: list[Timed]) -> None:
        """The subtasks' watermarks rise only behind the records that came with them."""
        for event in events:
            if not isinstance(event[0], str):
                self.came.append((event, self.watermark_ms))
        live = [subtask.output.watermark_ms for subtask in running if not subtask.has_ended]
        self.watermark_ms = max(self.watermark_ms, min(live, default=MAX_WATERMARK_MS))


times = st.lists(st.integers(0, 60), min_size=1, max_size=8)
layouts = st.lists(times, min_size=1, max_size=8)
schedules = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4)), max_size=25)
phases = st.lists(st.tuples(st.integers(1, 4), schedules), min_size=1, max_size=4)


def play(source: ListedSource, strategy: WatermarkStrategy, steps: Any) -> Downstream:
    """Run phases of ``(parallelism, [(subtask, records)])``, the last one to the end."""
    downstream = Downstream()
    snapshots: list[Snapshot] = []
    for number, (parallelism, schedule) in enumerate(steps):
        running = (
            rescaled(source, strategy, parallelism, snapshots)
            if number
            else started(source, strategy, parallelism)
        )
        for index, records in schedule:
            subtask = running[index % parallelism]
            if not subtask.has_ended:
                downstream.take(subtask.read(records), running)
        snapshots = [subtask.barrier(number + 1) for subtask in running]
    while not all(subtask.has_ended for subtask in running):
        for subtask in running:
            if not subtask.has_ended:
                downstream.take(subtask.read(2), running)
    rows = [row for row, _ in downstream.came]
    everything = [(n, i, at) for n, split in enumerate(source.splits) for i, at in enumerate(split)]
    assert sorted(rows) == everything
    for n in range(len(source.splits)):
        assert [row for row in rows if row[0] == n] == [row for row in everything if row[0] == n]
    return downstream


@given(layouts, st.integers(0, 10), phases)
@settings(max_examples=200)
def test_what_is_on_time_where_it_was_read_first_is_on_time_after_any_rescales(
    layout: list[list[int]], bound_ms: int, steps: Any
) -> None:
    """The rule: a record within the bound of all that its first subtask read before it."""
    downstream = play(ListedSource(*layout), bounded_by(bound_ms), steps)
    first = steps[0][0]
    highest = [MIN_WATERMARK_MS] * first
    on_time = set()
    for number, split in enumerate(layout):
        for i, at in enumerate(split):
            lane = number % first
            if at > highest[lane] - bound_ms - 1:
                on_time.add((number, i, at))
            highest[lane] = max(highest[lane], at)
    late = [row for row, watermark in downstream.came if row[2] <= watermark]
    assert not on_time & set(late)


@given(layouts, st.integers(0, 10), phases)
@settings(max_examples=200)
def test_with_lowest_times_what_is_on_time_in_its_split_is_on_time(
    layout: list[list[int]], bound_ms: int, steps: Any
) -> None:
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(bound_ms)
    source = ListedSource(*layout, tells_lowest=True)
    downstream = play(source, strategy.with_timestamp_column("ts"), steps)
    for (number, i, at), watermark in downstream.came:
        if at >= max(layout[number][: i + 1]) - bound_ms:
            assert at > watermark
