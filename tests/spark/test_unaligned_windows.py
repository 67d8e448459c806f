"""Windows and sums behind a rebalanced exchange whose records barriers overtake.

The source fails once after a checkpoint, and so does the sum. Watermarks are no part of a
checkpoint's records under way: a restored record that came too late for its window would be missed.
"""

from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.spark.functions import Slowing, key_of_event, window_row
from tests.spark.harness import Listening, Recorder, collect
from tests.spark.modes import prepare, under_way
from tests.spark.stations import FailingEvents, Summing, events_in_order
from weir.common import Duration, Time, Types, WatermarkStrategy
from weir.datastream.connectors import DataGeneratorSource
from weir.datastream.window import TumblingEventTimeWindows

pytestmark = [pytest.mark.usefixtures("local")]

EVENTS = 5_000
RATE = 2_500.0  # a second, which is more than the slow operator takes
PAUSE_S = 0.001  # with this for each record.
EVENT = Types.ROW_NAMED(["key", "at_ms"], [Types.LONG(), Types.LONG()])
SETTINGS = {
    "restart-strategy.type": "fixed-delay",
    "restart-strategy.fixed-delay.attempts": "3",
    "restart-strategy.fixed-delay.delay": "10 ms",
}


def test_each_window_fires_once_and_each_sum_is_exact(tmp_path: Path) -> None:
    in_source, in_sum, heard = tmp_path / "source", tmp_path / "sum", Recorder()
    env = prepare(tmp_path, 0, settings=SETTINGS)
    whole = events_in_order(np.arange(EVENTS)).to_pydict()
    timed = WatermarkStrategy.for_bounded_out_of_orderness(
        Duration.of_millis(500)
    ).with_timestamp_column("at_ms")
    source = DataGeneratorSource(
        FailingEvents(in_source, EVENTS // 2), EVENTS, RATE, vectorised=True
    )
    slowed = env.from_source(source, timed, "events").rebalance().map(Slowing(PAUSE_S), EVENT)
    windows = (
        slowed.key_by("key")
        .window(TumblingEventTimeWindows.of(Time.seconds(1)))
        .aggregate_batches(n=("*", "count"))
        .map(window_row)
    )
    late_ms = whole["at_ms"][3 * EVENTS // 4]
    sums = slowed.key_by(key_of_event).process(Summing(in_sum, late_ms))
    with Listening(heard):
        result = collect(windows.union(sums), "windows")
    assert in_source.exists(), "ineffective: the source did not fail"
    assert in_sum.exists(), "ineffective: the sum did not fail"
    restored = [recovered.restored_checkpoint for recovered in result.history.recoveries]
    assert len(restored) == 2
    assert all(number is not None and under_way(heard)[number] > 0 for number in restored)
    pairs = list(zip(whole["key"], whole["at_ms"], strict=True))
    check_windows(result.collected, pairs)
    check_sums(result.collected, pairs)


def check_windows(rows: list[Any], pairs: list[tuple[int, int]]) -> None:
    """Every key and window once, with all of its records."""
    received = Counter({(row[1], row[2]): row[3] for row in rows if row[0] == "window"})
    assert received == Counter((key, at - at % 1_000) for key, at in pairs)
    assert sum(row[0] == "window" for row in rows) == len(received), "a window fired twice"


def check_sums(rows: list[Any], pairs: list[tuple[int, int]]) -> None:
    """Per key, counts of 1, 2, 3 and so on, and the sum of all records at the end."""
    counts: dict[int, list[int]] = defaultdict(list)
    totals: dict[int, int] = {}
    for kind, key, total, count in rows:
        if kind == "sum":
            counts[key].append(count)
            totals[key] = total
    expected: Counter[int] = Counter()
    for key, at in pairs:
        expected[key] += at
    assert totals == expected
    numbers = Counter(key for key, _ in pairs)
    assert counts == {key: list(range(1, n + 1)) for key, n in numbers.items()}
