"""One job after another goes on from the savepoint of the one before, on other numbers of subtasks.

Keyed state moves by key groups, windows and timers with their keys, source splits and pending
output (operator state, split and union) are dealt out anew. What comes out in the end must be what
one undisturbed run gives.
"""

import threading
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from tests.spark.conftest import Contexts
from tests.spark.functions import Reminding, events, key_of_event, window_row
from tests.spark.harness import (
    Listening,
    change,
    environment,
    numbered,
    rows_of,
    tagged_union,
    to_files,
    wrong_numbers,
)
from weir.common import Duration, Time, Types, WatermarkStrategy
from weir.datastream.connectors import DataGeneratorSource, ParquetSink
from weir.datastream.execution import ExecutionOptions, overriding
from weir.datastream.window import TumblingEventTimeWindows
from weir.ids import JobId
from weir.jobmaster.savepoint_mailbox import Mailbox, SavepointRequest
from weir.operators.sinks.parquet_sink import committed_files
from weir.protocol.elements import CheckpointKind
from weir.protocol.events import CheckpointSettled, JobEvent
from weir.spark import submit
from weir.storage.layout import savepoint_location
from weir.storage.store import store_for

N = 4_000  # Records of each numbered source.
EVENTS = 8_000
RATE = 1_000.0
STEPS = (1, 7, 2, 5)
WINDOW = Types.ROW_NAMED(
    ["kind", "key", "start", "n"], [Types.STRING(), Types.LONG(), Types.LONG(), Types.LONG()]
)


@dataclass(slots=True)
class Stopping:
    """Asks the job that runs for a savepoint to stop with, once a few checkpoints completed."""

    storage: Path
    name: str
    after: int = 3
    job_id: JobId | None = None
    completed: int = 0
    asked: list[threading.Thread] = field(default_factory=list)

    @property
    def target(self) -> str:
        """The savepoint's location."""
        assert self.job_id is not None
        return savepoint_location(str(self.storage), self.job_id, self.name)

    def on_start(self, job: submit.JobStarting) -> None:
        """Which job it is."""
        self.job_id = job.job_id

    def __call__(self, event: JobEvent) -> None:
        if isinstance(event, CheckpointSettled) and event.failure is None:
            self.completed += 1
            if self.completed == self.after:
                asking = threading.Thread(target=self._ask)
                self.asked.append(asking)
                asking.start()

    def _ask(self) -> None:
        assert self.job_id is not None
        request = SavepointRequest(self.name, CheckpointKind.STOP_SUSPEND, self.target, 2**62)
        Mailbox(store_for(str(self.storage)), self.job_id).post(request)


def run(root: Path, parallelism: int, restore: str | None, stopping: Stopping | None) -> None:
    """Run the pipeline to its end, or until it is stopped."""
    env = environment(root / "checkpoints", interval_ms=150, parallelism=parallelism)
    change(env, max_parallelism=32)
    to_files(numbered(tagged_union(env, N, RATE)), root / "numbers")
    timed = WatermarkStrategy.for_bounded_out_of_orderness(
        Duration.of_seconds(6)
    ).with_timestamp_column("at_ms")
    source = DataGeneratorSource(events, EVENTS, 2 * RATE, vectorised=True)
    happened = env.from_source(source, timed, "events").uid("events")
    (
        happened.key_by("key")
        .window(TumblingEventTimeWindows.of(Time.seconds(1)))
        .aggregate_batches(n=("*", "count"))
        .uid("windows")
        .map(window_row, WINDOW)
        .uid("window-rows")
        .sink_to(ParquetSink(root / "windows"))
        .uid("window-files")
    )
    (
        happened.key_by(key_of_event)
        .process(Reminding(), WINDOW)
        .uid("reminding")
        .sink_to(ParquetSink(root / "reminders"))
        .uid("reminder-files")
    )
    listeners: list[Any] = [] if stopping is None else [stopping]
    if stopping is not None:
        submit.announce(stopping.on_start)
    try:
        options = ExecutionOptions(restore=restore)
        with Listening(*listeners), overriding(options):
            env.execute("rescaled")
    finally:
        if stopping is not None:
            submit.unannounce(stopping.on_start)
            for asking in stopping.asked:
                asking.join()


def written(directory: Path) -> Counter[tuple[str, int, int]]:
    """Records by kind, key and start, as the committed files say."""
    sums: Counter[tuple[str, int, int]] = Counter()
    times: Counter[tuple[str, int, int]] = Counter()
    for path in committed_files(directory):
        for row in pq.read_table(path).to_pylist():
            sums[row["kind"], row["key"], row["start"]] += row["n"]
            times[row["kind"], row["key"], row["start"]] += 1
    assert max(times.values()) == 1, "a window or a timer fired twice"
    return sums


def test_from_one_to_seven_to_two_to_five_subtasks(contexts: Contexts, tmp_path: Path) -> None:
    contexts.at(f"local[{max(STEPS)}]")
    restore = None
    for step, parallelism in enumerate(STEPS):
        is_last = step == len(STEPS) - 1
        stopping = None if is_last else Stopping(tmp_path / "checkpoints", f"step-{step}")
        before = len(rows_of(tmp_path / "numbers")) if step else 0
        run(tmp_path, parallelism, restore, stopping)
        rows = rows_of(tmp_path / "numbers")
        assert len(rows) > before, f"nothing came of {parallelism} subtasks"
        writers = {row[3] for row in rows}
        assert parallelism == 1 or len(writers) > 1
        if stopping is not None:
            assert len(rows) < 2 * N, "the input ended before the stop"
            restore = stopping.target
    positions = Counter((row[0], row[1]) for row in rows)
    assert positions == Counter({(s, i): 1 for s in ("left", "right") for i in range(N)})
    assert not wrong_numbers(rows)

    whole = events(np.arange(EVENTS)).to_pydict()
    pairs = list(zip(whole["key"], whole["at_ms"], strict=True))
    windows = Counter(("window", key, at - at % 1_000) for key, at in pairs)
    assert written(tmp_path / "windows") == windows
    reminders = Counter(("reminder", key, at - at % 2_000) for key, at in pairs)
    assert written(tmp_path / "reminders") == reminders
