"""Windows, timers, splits and pending files, rescaled from unaligned checkpoints, up and down.

Records under way move to the subtasks that take them over. Those had come to different points of
event time, and none of the records may be late where it is restored.
"""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from tests.spark.conftest import Contexts
from tests.spark.functions import Reminding, as_row, key_of_event
from tests.spark.harness import Listening
from tests.spark.modes import KillerUnderWay, latest, prepare
from tests.spark.stations import FallingBehind, counting_one, events_in_order
from weir.common import Configuration, Time, Types, WatermarkStrategy
from weir.datastream.connectors import DataGeneratorSource, ParquetSink
from weir.datastream.execution import ExecutionOptions, overriding
from weir.datastream.window import TumblingEventTimeWindows
from weir.errors import JobFailedError
from weir.operators.sinks.parquet_sink import committed_files

EVENTS = 8_000
RATE = 3_000.0  # a second, which is more than the slow subtask takes
PAUSE_S = 0.001  # with this for each record.
STEPS = (2, 3, 1, 4)
EVENT = Types.ROW_NAMED(["key", "at_ms"], [Types.LONG(), Types.LONG()])
RESULT = Types.ROW_NAMED(
    ["kind", "key", "start", "n"], [Types.STRING(), Types.LONG(), Types.LONG(), Types.LONG()]
)


def build(env: Any, root: Path) -> None:
    """Windows of a second, whose first subtask falls behind the others, and timers of two."""
    timed = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_column("at_ms")
    source = DataGeneratorSource(events_in_order, EVENTS, RATE, vectorised=True)
    spread = (
        env.from_source(source, timed, "events")
        .uid("events")
        .rebalance()
        .map(as_row, EVENT)
        .uid("as it came")
    )
    (
        spread.map(counting_one, RESULT)
        .uid("ones")
        .key_by(key_of_event)
        .window(TumblingEventTimeWindows.of(Time.seconds(1)))
        .reduce(FallingBehind(PAUSE_S))
        .uid("windows")
        .sink_to(ParquetSink(root / "windows"))
        .uid("window files")
    )
    (
        spread.key_by(key_of_event)
        .process(Reminding(), RESULT)
        .uid("reminding")
        .sink_to(ParquetSink(root / "reminders"))
        .uid("reminder files")
    )


def written(directory: Path) -> Counter[tuple[int, int]]:
    """Records by key and start, as the committed files say."""
    rows = [row for path in committed_files(directory) for row in pq.read_table(path).to_pylist()]
    sums = Counter({(row["key"], row["start"]): row["n"] for row in rows})
    assert len(sums) == len(rows), "a window or a timer fired twice"
    return sums


def test_no_record_under_way_is_late_for_its_window(contexts: Contexts, tmp_path: Path) -> None:
    """Each job is killed under way; the next one restores its unaligned checkpoint as it is."""
    contexts.at(f"local[{max(STEPS)}]")
    restore = None
    for parallelism in STEPS:
        is_last = parallelism == STEPS[-1]
        env = prepare(tmp_path, 0, parallelism)
        env.configure(Configuration({"restart-strategy.type": "none"}))
        build(env, tmp_path)
        ending = KillerUnderWay(after=2)
        with (
            Listening(*([] if is_last else [ending])),
            overriding(ExecutionOptions(restore=restore)),
        ):
            if is_last:
                env.execute("windows")
                break
            with pytest.raises(JobFailedError, match="killed by signal 9"):
                env.execute("windows")
        restore = latest(tmp_path)
        assert int(restore.rpartition("-")[2]) == ending.killed_at, "of no records under way"
    whole = events_in_order(np.arange(EVENTS)).to_pydict()
    pairs = list(zip(whole["key"], whole["at_ms"], strict=True))
    windows = Counter((key, at - at % 1_000) for key, at in pairs)
    assert written(tmp_path / "windows") == windows
    assert written(tmp_path / "reminders") == Counter((k, at - at % 2_000) for k, at in pairs)
