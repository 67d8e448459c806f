"""A cluster in this thread whose worker processes can be killed at points of a checkpoint."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from typing import Any

from weir.local.cluster import InProcessCluster, InProcessWorker
from weir.protocol.deployment import WorkerCommand
from weir.protocol.messages import CheckpointCompleted, SubtaskCommand


class KillPoint(StrEnum):
    """The point of a checkpoint at which a worker process is killed, and what becomes of it."""

    SNAPSHOT = "snapshot.before"  # A barrier is there, no state is frozen yet: it is lost.
    WRITE = "snapshot.write"  # State is frozen and being written: it is lost.
    COMMIT = "commit"  # It is complete, and no sink has committed it yet: it is restored.


class _ProcessKilled(BaseException):
    """The process that runs now is gone; no ``Exception``, so that its code does not catch it."""


class SteppedCluster(InProcessCluster):
    """Kills a worker process when an armed point is reached."""

    armed: KillPoint | None = None
    _at_work: InProcessWorker | None = None

    def on_point(self, point: str, where: Mapping[str, Any]) -> None:
        """Production code reached a point; kill the process where it is the armed one."""
        if point == self.armed and self._at_work is not None:
            self.armed = None
            raise _ProcessKilled

    def rouse(self) -> None:
        """Let every worker look for input that was fed."""
        for process in list(self.processes.values()):
            process.worker.rouse()
            process.wake()

    def step(self, process: InProcessWorker) -> None:
        """Run one round of a worker's loop."""
        with self._mortal(process):
            super().step(process)

    def write(self, process: InProcessWorker, work: Callable[[], Any]) -> None:
        """Run a worker's snapshot thread."""
        with self._mortal(process):
            super().write(process, work)

    def to_worker(self, slot_index: int, command: SubtaskCommand | WorkerCommand) -> None:
        """Send a command; a worker may be killed by the one to commit."""
        process = self._ready.get(slot_index)
        is_commit = isinstance(command, CheckpointCompleted) and self.armed is KillPoint.COMMIT
        if is_commit and process is not None:
            self.armed = None
            self.kill(process)
        else:
            super().to_worker(slot_index, command)

    @contextmanager
    def _mortal(self, process: InProcessWorker) -> Iterator[None]:
        before, self._at_work = self._at_work, process
        try:
            yield
        except _ProcessKilled:
            self.kill(process)
        finally:
            self._at_work = before
