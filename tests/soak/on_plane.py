"""A round's job under a control plane, whose own processes die as well and are started again."""

import time
import uuid
from http.client import CONFLICT, INTERNAL_SERVER_ERROR
from pathlib import Path
from typing import Any

import psutil
from urllib3.exceptions import HTTPError

from tests.e2e.plane import FINAL, Plane, PlaneJob, wait_for
from tests.soak import pipeline
from tests.soak.job import (
    JobEnded,
    JobFinished,
    NoSuchProcess,
    RefusedError,
    SoakJob,
    of_slot,
)
from tests.soak.place import Place
from tests.soak.schedule import IN_JOB, PARALLELISM, Act, Fault
from tests.soak.verdict import leftovers
from tests.waiting import wait_until
from weir.examples.control_plane import RequestRefusedError
from weir.ids import JobId

ENVIRONMENT = {
    "WEIR_DRIVER_TIMEOUT_MS": "8000",  # A silent driver is noticed within a round.
    "WEIR_LOG_LEVEL": "INFO",
}
PIPELINE = {"kind": "module", "module": pipeline.__name__}
SERVICES = {"worker service": "worker"}  # A job has workers of its own.
SWEPT_S = 60.0
SOON_S = 10.0
# The control plane's own sweep, without the ten minutes that it leaves to late writers.
SWEEP = """
from checkpoints.retention import sweep
sweep.LATE_S = sweep.CLEANED_EVERY_S = 0.0
print([sweep.clean_next() for _ in range({jobs})])
"""
AWAY = (psutil.Error, StopIteration, ValueError, OSError)  # Of a process that is being replaced.


def start_plane(home: Path, checkpoints: Path) -> Plane:
    """A control plane whose services are started again when they die."""
    return Plane.start(home, ENVIRONMENT | {"WEIR_CHECKPOINT_ROOT": str(checkpoints)})


class ControlledJob(SoakJob):
    """A submitted job; the control plane starts its drivers."""

    def __init__(self, plane: Plane, place: Place, storage: Path) -> None:
        super().__init__()
        self.storage = storage
        self._plane = plane
        submission = {
            "name": pipeline.NAME,
            "pipeline": PIPELINE,
            "parallelism": PARALLELISM,
            "parameters": {"round": str(place.root)},
        }
        operation = plane.client.post("jobs", submission, key=str(uuid.uuid4()))
        self._job = plane.job(operation["job"], place.numbered)

    @property
    def job_id(self) -> JobId:
        return JobId(self._job.id)

    @property
    def jvm(self) -> psutil.Process:
        return self._one("jvm")

    def process(self, target: str, slot: int) -> psutil.Process:
        if target not in IN_JOB:
            service = self._plane.stack.process(SERVICES.get(target, target))
            if not service.running or service.pid is None:
                raise NoSuchProcess(f"{target} does not run at present")
            return psutil.Process(service.pid)
        if target in ("jvm", "driver"):
            return self._one(target)
        return of_slot(self.jvm, target, slot)

    def mend(self) -> None:
        """All of it is the control plane's."""
        shown = self._shown()
        if shown["status"] == "finished":
            raise JobFinished("the job has finished")
        if shown["status"] in FINAL:
            raise JobEnded(f"the job is {shown['status']}: {shown['cause']}")

    def interrupt(self) -> None:
        """Not for jobs of a control plane: there is no terminal."""
        raise NotImplementedError

    def ask(self, fault: Fault) -> str:
        what, body = self._request(fault)
        key = str(uuid.uuid4())  # Asked again where the answer is lost, it is one operation.
        deadline = time.monotonic() + SOON_S

        def accepted() -> str:
            try:
                operation = self._plane.client.post(f"jobs/{self.job_id}/{what}", body, key=key)
            except RequestRefusedError as error:
                if error.status == CONFLICT and time.monotonic() < deadline:
                    return ""  # The job is starting, or another operation is under way.
                if error.status < INTERNAL_SERVER_ERROR:
                    raise RefusedError(str(error)) from error
                raise
            return str(operation["id"])

        return str(wait_for(accepted, f"the {fault.kind} is accepted"))

    def _request(self, fault: Fault) -> tuple[str, dict[str, Any]]:
        match fault.kind.act:
            case Act.SAVEPOINT:
                return "savepoints", {}
            case Act.ROLLBACK:
                return "rollback", {"checkpoint": wait_for(self._oldest, "a retained checkpoint")}
            case Act.RESCALE:
                return "rescale", {"parallelism": fault.parallelism}
            case Act.UPGRADE:
                return "upgrade", {"pipeline": PIPELINE}
            case act:
                return str(act), {}

    def _oldest(self) -> int:
        """The number of its oldest checkpoint that is retained, 0 for none."""
        completed = self._job.checkpoints(status="completed")
        retained = (int(one["number"]) for one in completed if not one["discarded_at"])
        return min(retained, default=0)

    def end_of(self, operation: str) -> str:
        ended = self._plane.await_end(operation)
        return "" if ended["status"] == "succeeded" else f"{ended['status']}: {ended['error']}"

    @property
    def is_finished(self) -> bool:
        return self._shown()["status"] == "finished" and not self._job.drivers_alive()

    def sweep(self) -> None:
        if not self._is_clean(SOON_S):
            self._plane.stack.run_once("shell", "-c", SWEEP.format(jobs=len(self._plane.jobs)))
            self._is_clean(SWEPT_S)

    def _is_clean(self, timeout_s: float) -> bool:
        """Whether nothing is left that nothing needs, after a time at most."""
        try:
            wait_until(
                lambda: not leftovers(self.storage, self.job_id), "it is clean", timeout_s, 0.2
            )
        except AssertionError:
            return False  # The verdict tells what is left.
        return True

    def close(self) -> None:
        """Cancel it, if it is not over."""
        if self._shown()["status"] not in (*FINAL, ""):
            self._plane.await_end(self._job.ask("cancel"))

    def _one(self, target: str) -> psutil.Process:
        """A process of the newest driver, that lives."""
        try:
            job: PlaneJob = self._job
            return job.jvm if target == "jvm" else job.python_driver
        except (*AWAY, RequestRefusedError, HTTPError) as error:
            raise NoSuchProcess(f"there is no {target} at present: {error}") from error

    def _shown(self) -> dict[str, Any]:
        """The job's document; without a status while the control plane does not answer."""
        try:
            shown: dict[str, Any] = self._job.get()
        except (HTTPError, RequestRefusedError) as error:
            if isinstance(error, RequestRefusedError) and error.status < 500:
                raise
            return {"status": "", "cause": ""}
        return shown
