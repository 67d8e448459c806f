"""A snapshot while timers or windows fire, as the barrier of an unaligned checkpoint takes it."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from tests.unit.operators.operator_harness import Harness
from tests.unit.operators.test_on_timer import FIRST, Acting
from tests.unit.operators.test_windows import Listing, Pipeline, rows_of, windows
from weir.operators.keyed import KeyedProcessOperator
from weir.protocol.elements import MAX_WATERMARK_MS


class Telling(Acting):
    """Reports its records too, so that their order among the timers is seen."""

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        if value[1] == "record":
            yield value
        else:
            self.register(ctx, value[1])


def telling() -> Any:
    return partial(KeyedProcessOperator, FIRST, Telling("event_time", lambda *_: None))


def emitted(harness: Harness) -> list[Any]:
    """Everything since the harness began, rows one by one."""
    out: list[Any] = []
    for event in harness.output.events:
        out += event[1] if event[0] == "rows" else [event]
    return out


@pytest.mark.parametrize("fires_first", [0, 1, 2])
def test_timers_that_were_left_fire_before_the_records_behind_their_watermark(
    fires_first: int,
) -> None:
    before = Harness(telling())
    before.rows([("a", 10), ("b", 20), ("c", 30), ("d", 99)])
    before.operator.on_watermark(50)
    if fires_first:
        before.operator.advance(fires_first)
    handles = before.snapshot()
    after = Harness(telling(), restored=handles)
    assert after.operator.has_pending
    after.settle()
    after.rows([("a", "record")])
    fired = [("a", 10), ("b", 20), ("c", 30)]
    assert emitted(before) == fired[:fires_first]
    assert emitted(after) == [*fired[fires_first:], ("watermark", 50), ("a", "record")]


def test_a_snapshot_between_two_watermarks_leaves_nothing_pending() -> None:
    """A late timer waits for the next watermark, as it would have without the restore."""
    before = Harness(telling())
    before.watermark(50)
    before.rows([("a", 10)])
    after = Harness(telling(), restored=before.snapshot())
    assert not after.operator.has_pending
    assert emitted(after) == []
    after.watermark(51)
    assert emitted(after) == [("a", 10), ("watermark", 51)]


@pytest.mark.parametrize("fires_first", [2, 3, 5])
def test_rows_of_a_window_that_is_firing_come_once(fires_first: int) -> None:
    keys = ["a", "b", "c", "d", "e", "f"]
    before = Pipeline()
    before.run([1] * 6, k=keys, x=[1, 2, 3, 4, 5, 6])
    operator = before.final.operator
    operator.on_watermark(9)
    operator.advance(fires_first)
    first = rows_of(before.final.output.events)
    assert 0 < len(first) < len(keys)
    after = Pipeline(restored=before.final.snapshot())
    after.final.settle()
    rest = rows_of(after.final.output.events)
    assert sorted(first + rest) == [(key, 0, 10, n, 1) for n, key in enumerate(keys, 1)]


def test_windows_of_a_function_that_were_left_fire_once() -> None:
    rows = [(key, 1) for key in "abcde"]
    make = windows(gather=None, window_function=Listing())
    before = Harness(make)
    before.rows(rows, [1] * len(rows))
    before.operator.on_watermark(9)
    before.operator.advance(2)
    first = rows_of(before.output.events)
    assert 0 < len(first) < len(rows)
    after = Harness(make, restored=before.snapshot())
    after.settle()
    fired = first + rows_of(after.output.events)
    assert sorted(fired) == [(key, 0, 10, [(key, 1)]) for key in "abcde"]


def test_a_subtask_fires_on_for_itself_alone_unless_it_has_timers_of_others() -> None:
    quiet, firing = Harness(telling(), parallelism=2), Harness(telling(), parallelism=2, index=1)
    firing.rows([("a", 10), ("b", 20)])
    for harness in (firing, quiet):
        harness.operator.on_watermark(50)
    handles = {0: tuple(quiet.snapshot()), 1: tuple(firing.snapshot())}
    assert firing.operator.has_pending
    same = [Harness(telling(), parallelism=2, index=i, rescaled=(handles, 2)) for i in (0, 1)]
    assert [harness.operator.has_pending for harness in same] == [False, True]
    (alone,) = [Harness(telling(), rescaled=(handles, 2))]
    assert alone.operator.has_pending
    alone.settle()
    assert emitted(alone) == [("a", 10), ("b", 20), ("watermark", 50)]


def test_timers_that_the_end_of_the_stream_made_due_begin_anew_after_a_restore() -> None:
    before = Harness(telling())
    before.rows([("a", 10), ("b", 20)])
    before.operator.on_watermark(MAX_WATERMARK_MS)
    after = Harness(telling(), restored=before.snapshot())
    assert not after.operator.has_pending
    assert emitted(after) == []
