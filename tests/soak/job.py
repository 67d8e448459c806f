"""A job under the soak: its processes, and what its storage shows of it."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.soak.schedule import Fault
from tests.waiting import wait_until
from weir.cli.uri import jobs_in
from weir.errors import WeirError
from weir.ids import JobId
from weir.storage.layout import JobLayout
from weir.storage.local import LocalStore
from weir.storage.manifest import Manifest, list_checkpoints

POLL_S = 0.05


class JobEnded(Exception):
    """The job is over before its time, and nothing starts it again."""


class JobFinished(JobEnded):
    """It has processed all of its input."""


class NoSuchProcess(LookupError):
    """The process that a fault is meant for is not there at present."""


class RefusedError(Exception):
    """An operation is refused."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A job as its storage shows it; both numbers only grow."""

    completed: int = 0  # The newest completed checkpoint.
    attempts: int = 0


class SoakJob(ABC):
    """A job of a round, from its start to its end."""

    storage: Path

    def __init__(self) -> None:
        self._seen = Seen()

    @property
    @abstractmethod
    def job_id(self) -> JobId | None:
        """Its id; None while its storage does not show it."""

    @property
    @abstractmethod
    def jvm(self) -> psutil.Process:
        """Spark's JVM in its driver.

        Raises:
            NoSuchProcess: There is none at present.
        """

    @abstractmethod
    def process(self, target: str, slot: int) -> psutil.Process:
        """The process that a fault is meant for.

        Raises:
            NoSuchProcess: There is none at present.
        """

    @abstractmethod
    def mend(self) -> None:
        """Start again what its user would start again.

        Raises:
            JobFinished: It has processed all of its input.
            JobEnded: It is over, and nothing can be started.
        """

    @abstractmethod
    def interrupt(self) -> None:
        """Cancel it as a user does at its terminal, and wait until it is over."""

    @abstractmethod
    def ask(self, fault: Fault) -> str:
        """Ask for an operation; its id.

        Raises:
            RefusedError: It is refused now, as one during another is.
        """

    @abstractmethod
    def end_of(self, operation: str) -> str:
        """Wait until an operation has ended; the reason if it failed, else nothing."""

    @property
    @abstractmethod
    def is_finished(self) -> bool:
        """Whether all of its input is processed, and its driver is gone."""

    def sweep(self) -> None:
        """Have those files deleted that are kept for minutes after the job's end."""

    @abstractmethod
    def close(self) -> None:
        """End what is left of it."""

    def await_checkpoints(self, count: int, timeout_s: float) -> None:
        """Wait for so many checkpoints more; it is mended meanwhile."""
        start = self.seen().completed

        def is_there() -> bool:
            self.mend()
            return self.seen().completed >= start + count

        wait_until(is_there, f"{count} checkpoints after checkpoint {start}", timeout_s, POLL_S)

    def seen(self) -> Seen:
        """Its checkpoints and attempts now; as before where the storage cannot be read."""
        try:
            self._seen = self._look()
        except WeirError:  # A file went while it was read.
            return self._seen
        return self._seen

    def _look(self) -> Seen:
        store = LocalStore(self.storage)
        job = self.job_id
        if job is None:
            return self._seen
        listed = list_checkpoints(store, job)
        completed = (one.checkpoint_id for one in listed if isinstance(one.manifest, Manifest))
        layout = JobLayout(job)
        attempts = map(layout.attempt_of, store.list(layout.attempts))
        return Seen(
            max(completed, default=self._seen.completed),
            max(attempts, default=self._seen.attempts),
        )


def only_job(storage: Path) -> JobId | None:
    """The one job in a storage."""
    jobs = jobs_in(LocalStore(storage)) if storage.exists() else set()
    return next(iter(jobs), None)


def of_slot(jvm: psutil.Process, target: str, slot: int) -> psutil.Process:
    """The slot, template or worker below a JVM: each is a child of the one before.

    Spark keeps Python workers that have no task: a slot is one that has a template.

    Raises:
        NoSuchProcess: There is none at present.
    """
    try:
        slots = [p for daemon in jvm.children() for p in daemon.children() if p.children()]
        generation = sorted(slots, key=lambda p: p.pid)
        for _ in range(("slot", "template", "worker").index(target)):
            generation = [child for p in generation for child in p.children()]
    except psutil.Error as error:
        raise NoSuchProcess(f"there is no {target} at present: {error}") from error
    if not generation:
        raise NoSuchProcess(f"there is no {target} at present")
    return generation[slot % len(generation)]
