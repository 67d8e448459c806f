"""A round's job in library mode: ``weir run`` on local Spark, started again whenever it dies."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil

from tests.soak import pipeline
from tests.soak.job import JobEnded, JobFinished, NoSuchProcess, SoakJob, of_slot, only_job
from tests.soak.place import Place
from tests.soak.schedule import PARALLELISM
from tests.spark.harness import SESSION, processes_of
from weir.ids import JobId

STARTS_MAX = 60  # A driver that dies so often does so by itself.
END_S = 120.0
CANCELED = 130
SLOTS = 4  # The most that a stage of a program asks for.
TOLD_CHARACTERS = 600


class SparkJob(SoakJob):
    """``weir run`` in a process of its own, and its successors."""

    def __init__(self, place: Place, storage: Path, session: str) -> None:
        super().__init__()
        self.storage = storage
        self._place = place
        self._session = session
        self._starts = 0
        self._process = self._start()

    @property
    def job_id(self) -> JobId | None:
        return only_job(self.storage)

    @property
    def jvm(self) -> psutil.Process:
        try:
            below = psutil.Process(self._process.pid).children(recursive=True)
            return next(p for p in below if p.name() == "java")
        except (psutil.Error, StopIteration) as error:
            raise NoSuchProcess("there is no JVM of the driver at present") from error

    def process(self, target: str, slot: int) -> psutil.Process:
        if target == "jvm":
            return self.jvm
        if target != "driver":
            return of_slot(self.jvm, target, slot)
        try:
            return psutil.Process(self._process.pid)
        except psutil.Error as error:
            raise NoSuchProcess("there is no driver at present") from error

    def mend(self) -> None:
        code = self._process.poll()
        if code is None:
            return
        if code == 0:
            raise JobFinished("the job has finished")
        if not self.seen().completed:
            told = self._log.read_text(errors="replace")[-TOLD_CHARACTERS:]
            raise JobEnded(f"its driver ended with {code} before the first checkpoint: {told}")
        if self._starts >= STARTS_MAX:
            raise JobEnded(f"its driver was started {STARTS_MAX} times and ended with {code}")
        self._process = self._start()

    def interrupt(self) -> None:
        self._process.send_signal(signal.SIGINT)
        code = self._process.wait(END_S)
        if code != CANCELED:
            raise AssertionError(f"weir run ended with {code} after Ctrl-C")

    @property
    def is_finished(self) -> bool:
        return self._process.poll() == 0

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        kill_all(self._session)

    @property
    def _log(self) -> Path:
        return self._place.logs / f"driver-{self._starts}.log"

    def _start(self) -> "subprocess.Popen[bytes]":
        self._starts += 1
        events = self._place.logs / f"events-{self._starts}.jsonl"
        command = [sys.executable, "-m", "weir", "run", pipeline.__file__]
        command += ["--master", f"local[{SLOTS}]", "--storage", str(self.storage)]
        command += ["--parallelism", str(PARALLELISM)]
        command += ["--events", str(events), "--arg", f"round={self._place.root}"]
        if self._starts > 1:
            command += ["--restore", "latest"]
        with self._log.open("wb") as log:
            return subprocess.Popen(
                command,
                env=os.environ | {SESSION: self._session},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for the soak alone.
            )


def kill_all(session: str) -> int:
    """Kill every process of a session; their number."""
    left = processes_of(session)
    for process in left:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(left, timeout=10)
    return len(left)
