"""The memory of a slot while its sink is slow and everything before it is held back."""

import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import psutil

from tests.benchmarks.jobs import SOURCE, run_job, spark
from tests.benchmarks.pieces import KeyedRows, SlowSink, TimedSource
from tests.benchmarks.report import Row
from weir.common import WatermarkStrategy
from weir.datastream import StreamExecutionEnvironment
from weir.protocol.events import CheckpointSettled, JobEvent, SlotChanged, WorkerStarted

KEYS = 100_000
ROW_S = 20e-6
INTERVAL_MS = 1_000
SAMPLE_S = 1.0
WARM_UP_SAMPLES = 15  # Until buffers and tables are full; at least a tenth of the run.
FLAT = 1.05
BYTES_MAX = 300_000_000


@dataclass(slots=True)
class MemoryMeter:
    """Samples what the processes of each slot hold: supervisor, template and worker.

    Pages that several processes share count once, by share (PSS).
    """

    state_bytes: int = 0
    samples: dict[int, list[int]] = field(default_factory=dict)
    _slots: dict[int, psutil.Process] = field(default_factory=dict)
    _started: set[int] = field(default_factory=set)
    _over: threading.Event = field(default_factory=threading.Event)

    def __call__(self, event: JobEvent) -> None:
        match event:
            case SlotChanged(slot_index=slot, pid=pid, registered=True):
                self._slots[slot] = psutil.Process(pid)
            case WorkerStarted(slot_index=slot):
                self._started.add(slot)
            case CheckpointSettled(failure=None, state_size=size):
                self.state_bytes = size

    def run(self) -> None:
        """Sample until ``stop``."""
        while not self._over.wait(SAMPLE_S):
            for slot in sorted(self._started):
                with suppress(psutil.NoSuchProcess):  # The job ends.
                    top = self._slots[slot]
                    held = [_held(p) for p in (top, *top.children(recursive=True))]
                    self.samples.setdefault(slot, []).append(sum(held))

    def stop(self) -> None:
        """End ``run``."""
        self._over.set()


def memory(quick: bool) -> list[Row]:
    """A slot's memory over ten minutes of slow sink."""
    seconds = 30.0 if quick else 600.0
    meter = MemoryMeter()
    thread = threading.Thread(target=meter.run, name="memory-meter")
    with TemporaryDirectory(prefix="weir-bench-") as name:

        def build(env: StreamExecutionEnvironment) -> None:
            source = TimedSource(KeyedRows(KEYS), seconds=seconds)
            rows = env.from_source(source, WatermarkStrategy.no_watermarks(), SOURCE).uid(SOURCE)
            sums = rows.key_by("key").aggregate_batches(total=("value", "sum"))
            sums.sink_to(SlowSink(ROW_S))

        thread.start()
        started = time.monotonic()
        try:
            with spark():
                run_job(build, meter, storage=Path(name), interval_ms=INTERVAL_MS)
        finally:
            meter.stop()
            thread.join()
    lasted = time.monotonic() - started
    beyond = meter.state_bytes / len(meter.samples)
    begins, ends = [], []
    for samples in meter.samples.values():
        tenth = max(3, len(samples) // 10)
        start = max(tenth, WARM_UP_SAMPLES)
        begins.append(median(samples[start : start + tenth]))
        ends.append(median(samples[-tenth - 2 : -2]))  # The last ones are the end of the job.
    begin, end = max(begins), max(ends)
    most = max(max(samples) for samples in meter.samples.values()) - beyond
    return [
        Row(
            what=f"a slot's memory after {lasted:.0f} s of slow sink",
            unit="B",
            weir=end,
            baseline=begin,
            ratio=end / begin,
            against="the same slot after its first tenth",
            target=f"flat (ratio ≤ {FLAT:g}), < 300 MB beyond state",
            met=end <= FLAT * begin and most < BYTES_MAX,
            note=f"supervisor, template and worker; at most {most / 1e6:.0f} MB beyond state",
        )
    ]


def _held(process: psutil.Process) -> int:
    return int(process.memory_full_info().pss)
