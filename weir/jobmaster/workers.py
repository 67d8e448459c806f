"""The worker processes of the current attempt, by slot of the plan, and their deadlines."""

from collections.abc import Iterator
from dataclasses import dataclass

from weir.ids import AttemptNumber
from weir.jobmaster.cluster import Cluster
from weir.protocol.deployment import Address, StopProcess, WorkerCommand, WorkerReady
from weir.protocol.messages import SubtaskCommand

# A process whose threads all stand still.
FROZEN = "it is frozen: stopped, swapping, or in a call into C that keeps the interpreter lock"
HEARD_SHARE = 0.75  # Of the timeout: several heartbeats are missing.
EXIT_REPORT_MS = 1_000  # For the supervisor to say how a worker ended whose connection is lost.


@dataclass(slots=True)
class _Worker:
    address: Address
    progressed_at_ms: int
    heard_at_ms: int
    rounds: int = -1
    lost_at_ms: int | None = None

    def due_ms(self, timeout_ms: int) -> int:
        """The time at which the attempt fails without a report of or about the worker."""
        if self.lost_at_ms is not None:
            return self.lost_at_ms + EXIT_REPORT_MS
        return self.progressed_at_ms + timeout_ms

    def is_silent(self, now_ms: int, timeout_ms: int) -> bool:
        """Whether its heartbeats are missing too: they come from a thread beside the loop."""
        return now_ms - self.heard_at_ms > timeout_ms * HEARD_SHARE


class Workers:
    """The workers that reported to be ready."""

    def __init__(self, cluster: Cluster, timeout_ms: int) -> None:
        """Prepare; a worker hangs that makes no progress for ``timeout_ms``."""
        self.deadline_ms: int | None = None  # When the attempt fails for want of workers.
        self._cluster = cluster
        self._timeout_ms = timeout_ms
        self._workers: dict[int, _Worker] = {}

    def __len__(self) -> int:
        return len(self._workers)

    @property
    def addresses(self) -> tuple[Address, ...]:
        """The addresses of all workers, by slot of the plan."""
        return tuple(self._workers[index].address for index in range(len(self._workers)))

    def clear(self) -> None:
        """The next attempt begins."""
        self._workers.clear()

    def ready(self, slot_index: int, report: WorkerReady, now_ms: int) -> None:
        """A worker waits for its deployment."""
        self._workers[slot_index] = _Worker(report.address, now_ms, now_ms)

    def alive(self, slot_index: int, rounds: int, now_ms: int) -> None:
        """A worker's heartbeat: it makes progress where its loop has gone round."""
        worker = self._workers.get(slot_index)
        if worker is None:
            return
        worker.heard_at_ms = now_ms
        if worker.rounds != rounds:
            worker.rounds = rounds
            worker.progressed_at_ms = now_ms

    def lost(self, slot_index: int, now_ms: int) -> None:
        """The connection to a worker was lost; its supervisor is about to report why."""
        if (worker := self._workers.get(slot_index)) is not None:
            worker.lost_at_ms = now_ms

    def due_ms(self) -> Iterator[int]:
        """The times at which each worker counts as gone."""
        return (worker.due_ms(self._timeout_ms) for worker in self._workers.values())

    def silent(self, now_ms: int) -> set[int]:
        """The slots of the plan whose workers count as gone for want of any sign of life."""
        return {
            index
            for index, worker in self._workers.items()
            if worker.lost_at_ms is None
            and now_ms >= worker.due_ms(self._timeout_ms)
            and worker.is_silent(now_ms, self._timeout_ms)
        }

    def take_gone(self, now_ms: int) -> Iterator[str]:
        """Remove the workers that count as gone; the cause of each."""
        for index, worker in list(self._workers.items()):
            if now_ms < worker.due_ms(self._timeout_ms):
                continue
            del self._workers[index]
            if worker.lost_at_ms is not None:
                yield f"the worker process of slot {index} is gone"
                continue
            is_silent = worker.is_silent(now_ms, self._timeout_ms)
            why = f" and sent no heartbeat; {FROZEN}" if is_silent else "; it hangs in user code"
            yield (
                f"the worker process of slot {index} made no progress for {self._timeout_ms} "
                f"ms{why}, and is replaced"
            )

    def send(self, slot_index: int, command: SubtaskCommand | WorkerCommand) -> None:
        """Send a command to one worker."""
        self._cluster.to_worker(slot_index, command)

    def send_all(self, command: SubtaskCommand) -> None:
        """Send a command to every worker."""
        for index in self._workers:
            self._cluster.to_worker(index, command)

    def stop(self, attempt: AttemptNumber) -> None:
        """End every worker process."""
        for index in self._workers:
            self._cluster.to_worker(index, StopProcess(attempt))
