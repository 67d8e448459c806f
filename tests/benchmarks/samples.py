"""The cost of looking inside: stack samples for verdicts and flame graphs, charts, and taps.

Each is switched on and off within one running job, in all worker processes at once, and the rows
per CPU-second of each window are compared with those of its neighbour. Two runs of a job differ by
more than a look costs, and so do two seconds of one run on a machine that others use as well; the
shorter the windows, the less of that is between two of them.
"""

import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean, median, stdev
from tempfile import TemporaryDirectory
from typing import Any

from tests.benchmarks.jobs import PARALLELISM, SOURCE, run_job, spark
from tests.benchmarks.pieces import KeyedRows, TimedSource
from tests.benchmarks.report import Row
from tests.benchmarks.throughput import INTERVAL_MS, running_sum
from weir.common.batch import Batch
from weir.datastream import StreamExecutionEnvironment
from weir.ids import OperatorId
from weir.operators.sources import SplitReader
from weir.protocol.inspection import InspectionKind, InspectSubtask
from weir.worker.inspection.stack_samples import StackSamples
from weir.worker.worker import Worker

KEYS = 1_000
WINDOW_S = 0.2
AT_LEAST = 0.99


def window_at(time_s: float) -> int:
    """The number of the window at a time, the same in all processes."""
    return int(time_s / WINDOW_S)


def is_on(window: int) -> bool:
    """Whether a window is one with looks.

    The Thue-Morse sequence: neither a drift nor work that comes at equal intervals favours a kind,
    and of two windows from an even number on one is with looks.
    """
    return window.bit_count() % 2 == 1


def is_on_now() -> bool:
    """Whether looks are taken now."""
    return is_on(window_at(time.time()))


def switch_samples() -> None:
    """Sample no stacks of this process in windows without."""
    look = StackSamples.look

    def switched(samples: StackSamples, *loop: Any) -> None:
        if is_on_now():
            look(samples, *loop)

    StackSamples.look = switched  # type: ignore[method-assign]


def switch_charts() -> None:
    """Report no figures of this process's subtasks, which charts are drawn of, in windows without.

    Slot figures, which come with them, are not read either.
    """
    look = Worker._look

    def switched(worker: Worker, now_ns: int) -> None:
        if not is_on_now():
            worker._metrics_due_ns = now_ns + 1
        look(worker, now_ns)

    Worker._look = switched  # type: ignore[method-assign]


def switch_taps() -> None:
    """Look at the records of this process's source once in each window with."""
    look, tapped = Worker._look, 0

    def switched(worker: Worker, now_ns: int) -> None:
        nonlocal tapped
        look(worker, now_ns)
        window = window_at(time.time())
        if is_on(window) and window != tapped:
            tapped = window
            index = worker.subtasks[0].chain.index
            kind, operator = InspectionKind.RECORDS, OperatorId(SOURCE)
            command = InspectSubtask(worker._attempt, f"{window}", kind, operator, index)
            worker._taps.open(command, worker.subtasks, is_allowed=True)

    Worker._look = switched  # type: ignore[method-assign]


class SwitchedSource(TimedSource):
    """A source that switches something of its worker process, and counts rows and time by window.

    One split a process. At its end it writes ``[window, rows, CPU-seconds]`` into ``directory``.
    """

    def __init__(self, switch: Callable[[], None], seconds: float, directory: str) -> None:
        super().__init__(KeyedRows(KEYS), seconds=seconds)
        self.switch = switch
        self.directory = directory

    def open(self, split: dict[str, Any], position: Any) -> SplitReader:
        self.switch()
        return _CountingReader(super().open(split, position), Path(self.directory))


class _CountingReader(SplitReader):
    def __init__(self, reader: SplitReader, directory: Path) -> None:
        self._reader = reader
        self._directory = directory
        self._windows: list[tuple[int, int, float]] = []
        self._window = window_at(time.time())
        self._rows = 0
        self._cpu_s = time.process_time()

    @property
    def position(self) -> Any:
        return self._reader.position

    def read(self, rows_max: int) -> Batch | None:
        window = window_at(time.time())
        if window != self._window:
            cpu_s = time.process_time()
            self._windows.append((self._window, self._rows, cpu_s - self._cpu_s))
            self._window, self._rows, self._cpu_s = window, 0, cpu_s
        batch = self._reader.read(rows_max)
        if batch is None:
            path = self._directory / f"{os.getpid()}.json"
            path.write_text(json.dumps(self._windows))
        else:
            self._rows += len(batch)
        return batch


def rates(switch: Callable[[], None], seconds: float, settle_s: float) -> list[tuple[float, float]]:
    """Rows per CPU-second of all worker processes, with looks and without, of windows in pairs."""
    with TemporaryDirectory(prefix="weir-bench-") as directory:
        counts = Path(directory, "counts")
        counts.mkdir()

        def build(env: StreamExecutionEnvironment) -> None:
            running_sum(env, SwitchedSource(switch, seconds, str(counts)))

        run_job(build, storage=Path(directory, "storage"), interval_ms=INTERVAL_MS)
        processes = [
            {window: (rows, cpu_s) for window, rows, cpu_s in json.loads(path.read_text())}
            for path in counts.iterdir()
        ]
    if len(processes) != PARALLELISM:
        raise RuntimeError(f"{len(processes)} of {PARALLELISM} worker processes have counted")
    begins = max(map(min, processes)) + int(settle_s / WINDOW_S)
    of_all = {
        window: sum(process[window][0] for process in processes)
        / sum(process[window][1] for process in processes)
        for window in set.intersection(*map(set, processes))
        if window >= begins
    }
    return [
        (rate, of_all[window ^ 1])
        for window, rate in sorted(of_all.items())
        if is_on(window) and window ^ 1 in of_all
    ]


def cost_row(what: str, pairs: Sequence[tuple[float, float]]) -> Row:
    """The row of something's cost: the mean ratio of its pairs, and the mean's standard error."""
    ratios = [weir / baseline for weir, baseline in pairs]
    ratio, error = fmean(ratios), stdev(ratios) / len(ratios) ** 0.5
    return Row(
        what=f"running sum with {what}, per CPU-second",
        unit="rows/s",
        weir=median(weir for weir, _ in pairs),
        baseline=median(baseline for _, baseline in pairs),
        ratio=ratio,
        against="without, in windows of the same job",
        target=f"ratio ≥ {AT_LEAST}",
        met=ratio >= AT_LEAST,
        note=f"ratio ± {error:.3f}, of {len(pairs)} pairs of windows of {WINDOW_S} s",
    )


def samples(quick: bool) -> list[Row]:
    """Keyed running sums with stack samples, charts or taps and without, per CPU-second."""
    seconds, settle_s = (10.0, 2.0) if quick else (150.0, 6.0)
    looks = {
        "stack samples": switch_samples,
        "reports for charts": switch_charts,
        "five taps a second": switch_taps,
    }
    with spark():
        return [cost_row(what, rates(look, seconds, settle_s)) for what, look in looks.items()]
