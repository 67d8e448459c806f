"""A whole control plane as its users run it, and its jobs with their processes."""

import json
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import urllib3

from controlplane.embedded.stack import Stack
from tests.e2e.pipeline import hurry_file
from tests.migrated import begin_prepared
from tests.waiting import wait_until
from weir.examples.control_plane import Client, RequestRefusedError

PIPELINE = "tests.e2e.pipeline"
SETTLE_S = 240.0  # A driver's start is most of it: a JVM on a machine that does other things too.
ALONE_MAX_S = 300  # A driver that a killed run of the tests leaves behind ends by itself then.
POLL_S = 0.25  # Each look is a request, which takes as long as a checkpoint of processors.
HELD_LOOKS = 10  # At a checkpoint that is still under way, a tenth of a second apart.
FINAL = ("finished", "failed", "canceled")


def wait_for(
    holds: Callable[[], Any], what: str, timeout_s: float = SETTLE_S, every_s: float = POLL_S
) -> Any:
    """The first true value of ``holds``; while the API does not answer it is asked again."""
    last: object = None

    def answer() -> Any:
        nonlocal last
        try:
            last = holds()
        except (
            urllib3.exceptions.HTTPError,
            RequestRefusedError,
            psutil.NoSuchProcess,
            StopIteration,
        ) as error:
            if isinstance(error, RequestRefusedError) and error.status < 500:
                raise
            last = error
            return None
        return last or None

    return wait_until(answer, lambda: f"{what}; the last answer: {last!r}", timeout_s, every_s)


@dataclass
class Plane:
    """A running stack and a client of its API."""

    stack: Stack
    client: Client
    jobs: list[str] = field(default_factory=list)

    @classmethod
    def start(cls, home: Path, environment: dict[str, str]) -> "Plane":
        """Start everything embedded; services that die are started again."""
        alone = {"WEIR_DRIVER_ALONE_MAX_S": str(ALONE_MAX_S)}
        stack = Stack(home, auto_restart=True, fast=True, environment=alone | environment)
        begin_prepared(home)
        stack.start(prepare=("weir_prepare", "--operator", str(stack.home / "operator")))
        try:
            return cls(stack, cls.client_of(stack))
        except BaseException:
            stack.stop()
            raise

    @staticmethod
    def client_of(stack: Stack) -> Client:
        """A client with an operator's token."""
        access = stack.home / "access.json"
        whose = ("operator", "--name", "tests", "--role", "operator")
        stack.run_once("weir_token", *whose, "--file", str(access))
        return Client(stack.url, json.loads(access.read_text())["token"])

    @contextmanager
    def another_launcher(self) -> Iterator[None]:
        """A second launcher beside the stack's own, as on another start of the service."""
        command = [
            *(sys.executable, "-m", "celery", "-A", "controlplane", "worker"),
            *("-n", "second-launcher@weir", "-Q", "launch", "-P", "solo"),
            *("--without-gossip", "--without-mingle", "--without-heartbeat"),
        ]
        with (self.stack.home / "logs" / "second-launcher.log").open("wb") as log:
            process = subprocess.Popen(
                command, env=self.stack.environment, stdout=log, stderr=subprocess.STDOUT
            )
        try:
            yield
            assert process.poll() is None, "the second launcher ended by itself"
        finally:
            process.terminate()
            process.wait(30)

    # Jobs.

    def submit(
        self,
        directory: Path,
        *,
        records: int,
        rate: float,
        restore: str | None = None,
        **more: Any,
    ) -> "PlaneJob":
        """Submit the numbered pipeline; further parameters of it by name."""
        output = directory / "output"
        submission: dict[str, Any] = {
            "name": "kills",
            "pipeline": {"kind": "module", "module": PIPELINE},
            "parallelism": 2,
            "parameters": {
                "output": str(output),
                "records": str(records),
                "rate": str(rate),
                **{name: str(value) for name, value in more.items()},
            },
        }
        if restore is not None:
            submission["restore"] = restore
        operation = self.client.post("jobs", submission, key=str(uuid.uuid4()))
        return self.job(operation["job"], output)

    def job(self, job_id: str, output: Path) -> "PlaneJob":
        """A job that was submitted."""
        self.jobs.append(job_id)
        return PlaneJob(self, job_id, output)

    def operation(self, operation_id: str) -> dict[str, Any]:
        """An operation as it stands."""
        answer: dict[str, Any] = self.client.get(f"operations/{operation_id}")
        return answer

    def await_end(self, operation_id: str, timeout_s: float = SETTLE_S) -> dict[str, Any]:
        """Wait until an operation has ended, however."""
        what = f"the end of operation {operation_id}"
        wait_for(lambda: self.operation(operation_id)["ended_at"], what, timeout_s)
        return self.operation(operation_id)

    def await_success(self, operation_id: str, timeout_s: float = SETTLE_S) -> dict[str, Any]:
        """Wait until an operation has succeeded."""
        ended = self.await_end(operation_id, timeout_s)
        assert ended["status"] == "succeeded", ended
        return ended


@dataclass(frozen=True)
class PlaneJob:
    """A submitted job, seen through the API and the system's table of processes."""

    plane: Plane
    id: str
    output: Path

    def get(self, path: str = "", **query: Any) -> Any:
        """A document of the job."""
        return self.plane.client.get(f"jobs/{self.id}{'/' if path else ''}{path}", **query)

    def ask(self, what: str, **body: Any) -> str:
        """Ask for something that takes time; the operation's id."""
        return str(
            self.plane.client.post(f"jobs/{self.id}/{what}", body, key=str(uuid.uuid4()))["id"]
        )

    @property
    def status(self) -> str:
        return str(self.get()["status"])

    def checkpoints(self, **query: Any) -> list[dict[str, Any]]:
        """The newest page of the job's checkpoints, newest first."""
        listed: list[dict[str, Any]] = self.get("checkpoints", **query)["results"]
        return listed

    def newest_completed(self) -> int:
        """The number of the newest completed checkpoint, 0 before the first."""
        completed = self.checkpoints(status="completed")
        return max((int(one["number"]) for one in completed), default=0)

    def await_completed(
        self, beyond: int, timeout_s: float = SETTLE_S, every_s: float = POLL_S
    ) -> int:
        """The number of a completed checkpoint beyond another."""

        def newer() -> int:
            newest = self.newest_completed()
            return newest if newest > beyond else 0

        what = f"a checkpoint of {self.id} beyond {beyond}"
        return int(wait_for(newer, what, timeout_s, every_s))

    def await_pending(self) -> int:
        """The number of a checkpoint that is under way now."""

        def pending() -> int:
            listed = self.checkpoints(status="pending")
            return int(listed[0]["number"]) if listed else 0

        return int(wait_for(pending, "a checkpoint under way", every_s=0.02))

    def await_held(self) -> int:
        """The number of a checkpoint that cannot end, since a worker process is held up.

        One whose acknowledgements were all on their way when that began ends within the wait.
        """
        seen: list[int] = []

        def held() -> int:
            listed = self.checkpoints(status="pending")
            number = int(listed[0]["number"]) if listed else 0
            seen.append(number)
            return number if number and seen[-HELD_LOOKS:] == [number] * HELD_LOOKS else 0

        return int(wait_for(held, "a checkpoint that is held up", every_s=0.1))

    def await_status(self, *statuses: str, timeout_s: float = SETTLE_S) -> str:
        """Wait until the job is in one of these."""
        return str(wait_for(lambda: self._is_in(statuses), f"{self.id} {statuses}", timeout_s))

    def hurry_to_the_end(self, timeout_s: float = SETTLE_S) -> None:
        """Let the sources keep to no rate any more, and wait until the job has finished.

        Fails where the input had ended before.
        """
        assert self.status == "running", "the input ended before all was done to the job"
        hurry_file(self.output).touch()
        self.await_status("finished", timeout_s=timeout_s)

    def _is_in(self, statuses: tuple[str, ...]) -> str:
        shown = self.get()
        if shown["status"] in FINAL and shown["status"] not in statuses:
            raise AssertionError(f"{self.id} is {shown['status']}: {shown['cause']}")
        return shown["status"] if shown["status"] in statuses else ""

    # Processes.

    @property
    def submit_process(self) -> psutil.Process:
        """spark-submit of the newest driver: the JVM."""
        (driver, *_) = self.get("drivers")["results"]
        return psutil.Process(driver["pid"])

    @property
    def session(self) -> list[psutil.Process]:
        """Every process that belongs to the newest driver."""
        top = self.submit_process
        return [top, *top.children(recursive=True)]

    @property
    def jvm(self) -> psutil.Process:
        """The driver's JVM."""
        return next(p for p in self.session if _names(p, "SparkSubmit"))

    @property
    def python_driver(self) -> psutil.Process:
        """The Python process that spark-submit's JVM started."""
        return next(p for p in self.jvm.children() if _names(p, "driver.py"))

    @property
    def worker_pid(self) -> int:
        """The worker process in slot 0 of the newest attempt."""
        (attempt, *_) = self.get("attempts")["results"]
        return int(next(w["pid"] for w in attempt["workers"] if w["slot_index"] == 0))

    def drivers_alive(self) -> list[psutil.Process]:
        """Python drivers of this job that run anywhere on the machine."""
        return [
            process
            for process in psutil.process_iter()
            if _names(process, "driver.py") and _names(process, f"/{self.id}/")
            if _is_python(process)  # Not spark-submit, as a script and as the JVM that it becomes.
        ]


def _is_python(process: psutil.Process) -> bool:
    try:
        return Path(process.cmdline()[0]).name.startswith("python")
    except (psutil.Error, IndexError):
        return False


def _names(process: psutil.Process, part: str) -> bool:
    """Whether the command line has ``part``; that of a process that has just ended has nothing."""
    try:
        return any(part in word for word in process.cmdline())
    except psutil.Error:
        return False
