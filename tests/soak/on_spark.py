"""A round's job in library mode: ``weir run`` on local Spark, started again whenever it dies."""

import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.soak import pipeline
from tests.soak.job import (
    POLL_S,
    JobEnded,
    JobFinished,
    NoSuchProcess,
    RefusedError,
    SoakJob,
    of_slot,
    only_job,
)
from tests.soak.place import Place
from tests.soak.schedule import PARALLELISM, Act, Fault
from tests.spark.harness import SESSION, processes_of
from tests.waiting import wait_until
from weir.ids import JobId
from weir.storage.local import LocalStore
from weir.storage.manifest import Manifest, list_checkpoints

STARTS_MAX = 60  # A driver that dies so often does so by itself.
END_S = 120.0
CANCELED = 130
SLOTS = 4  # The most that a stage of a program asks for.
TOLD_CHARACTERS = 600
SOON_S = 10.0
LATEST = "latest"


@dataclass(frozen=True, slots=True)
class _Asked:
    """A command line that waits for the job's driver to do what it asks for."""

    process: "subprocess.Popen[bytes]"
    printed: Path
    said: Path

    def failure(self) -> str:
        """Wait for its end; the text that it said if it failed."""
        code = self.process.wait(END_S + SOON_S)
        return f"exit {code}: {self.said.read_text()[-TOLD_CHARACTERS:]}" if code else ""


class SparkJob(SoakJob):
    """``weir run`` in a process of its own, and its successors."""

    def __init__(self, place: Place, storage: Path, session: str) -> None:
        super().__init__()
        self.storage = storage
        self._place = place
        self._session = session
        self._starts = 0
        self._parallelism = PARALLELISM
        self._asked: dict[str, _Asked] = {}  # By the ids of their operations.
        self._stop = ""  # The id of ``weir stop``, from whose savepoint the job goes on.
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
            self._process = self._start(self._stopped_with())
            return
        if not self.seen().completed:
            told = self._log.read_text(errors="replace")[-TOLD_CHARACTERS:]
            raise JobEnded(f"its driver ended with {code} before the first checkpoint: {told}")
        if self._starts >= STARTS_MAX:
            raise JobEnded(f"its driver was started {STARTS_MAX} times and ended with {code}")
        self._process = self._start()

    def _stopped_with(self) -> str:
        """The savepoint with which ``weir stop`` has ended the job."""
        stop, self._stop = self._stop, ""
        if not stop or self._asked[stop].failure():
            raise JobFinished("the job has finished")
        return self._asked[stop].printed.read_text().strip()

    def ask(self, fault: Fault) -> str:
        if self._stop:
            raise RefusedError("the job is being stopped")
        match fault.kind.act:
            case Act.SAVEPOINT:
                return self._ask("savepoint")
            case Act.UPGRADE:
                self._stop = self._ask("stop")
                return self._stop
        self._go_on()
        self.interrupt()
        restore = LATEST
        if fault.kind.act is Act.RESCALE:
            self._parallelism = fault.parallelism
        else:
            restore = self._oldest()
        self._process = self._start(restore)
        return ""  # It is over with its begin.

    def _ask(self, what: str) -> str:
        """Have the command line ask the driver for a savepoint or a stop; the operation's id."""
        number = str(len(self._asked))
        command = [sys.executable, "-m", "weir", what, f"{self.storage}/{self.job_id}"]
        command += ["--timeout", f"{END_S:.0f}s"]
        printed, said = (self._place.logs / f"{what}-{number}.{kind}" for kind in ("out", "err"))
        with printed.open("wb") as out, said.open("wb") as err:
            process = subprocess.Popen(
                command,
                env=os.environ | {SESSION: self._session},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
            )
        self._asked[number] = _Asked(process, printed, said)
        return number

    def _go_on(self) -> None:
        """Wait for a checkpoint: a driver that has just begun restores nothing yet."""
        self.await_checkpoints(1, END_S + SOON_S)

    def _oldest(self) -> str:
        """The oldest checkpoint of its own that is retained."""
        job = self.job_id
        assert job is not None, "it has completed a checkpoint"
        listed = list_checkpoints(LocalStore(self.storage), job)
        number = min(one.checkpoint_id for one in listed if isinstance(one.manifest, Manifest))
        return f"{self.storage}/{job}/chk-{number}"

    def end_of(self, operation: str) -> str:
        if not operation:
            return ""
        asked = self._asked[operation]

        def is_answered() -> bool:
            self.mend()  # It takes a driver.
            return asked.process.poll() is not None

        wait_until(is_answered, "the request is answered", END_S + SOON_S, POLL_S)
        failure = asked.failure()
        if failure and operation == self._stop:
            self._stop = ""
        return failure

    def interrupt(self) -> None:
        if self._stop:
            self.end_of(self._stop)
            self._go_on()
        self._process.send_signal(signal.SIGINT)
        code = self._process.wait(END_S)
        if code != CANCELED:
            raise AssertionError(f"weir run ended with {code} after Ctrl-C")

    @property
    def is_finished(self) -> bool:
        return self._process.poll() == 0

    def close(self) -> None:
        processes = [self._process, *(asked.process for asked in self._asked.values())]
        for process in processes:
            process.kill()
            process.wait()
        kill_all(self._session)

    @property
    def _log(self) -> Path:
        return self._place.logs / f"driver-{self._starts}.log"

    def _start(self, restore: str = LATEST) -> "subprocess.Popen[bytes]":
        self._starts += 1
        events = self._place.logs / f"events-{self._starts}.jsonl"
        command = [sys.executable, "-m", "weir", "run", pipeline.__file__]
        command += ["--master", f"local[{SLOTS}]", "--storage", str(self.storage)]
        command += ["--parallelism", str(self._parallelism)]
        command += ["--events", str(events), "--arg", f"round={self._place.root}"]
        if self._starts > 1:
            command += ["--restore", restore]
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
