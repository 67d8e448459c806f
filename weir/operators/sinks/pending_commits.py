"""``Sink``, the base of all sinks, and ``PendingCommits``, output that waits for checkpoints.

A sink may not show a record to its readers before the checkpoint that covers it is complete: a
restore would produce the record again. So output is made in *intervals*, one per checkpoint. The
barrier of checkpoint n closes interval n; the interval waits until checkpoint n or any later one
completes, then it is committed, in order of intervals. An aborted checkpoint therefore needs no
handling at all: its interval waits for the next one.

Waiting output is part of every snapshot that covers it, because the process may die between the
completion of a checkpoint and the commit. A restore in the same job commits it, again if need be:
commits are idempotent. A restore in another job (a fork) leaves it to the original job, unless that
job is over or the fork claims its savepoint: ``weir.output.waiting`` decides.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Generic, TypeVar

from weir.errors import ConfigError, ProtocolError
from weir.ids import CheckpointId
from weir.operators.base import Operator

T = TypeVar("T")


class Sink(ABC):
    """An output of the pipeline; travels pickled to the subtasks."""

    @property
    def commits_to(self) -> str | None:
        """The directory of committed files, which a rollback withdraws; None: there are none.

        None: previews of rollbacks and of waiting output do not show this sink, unless it delivers
        rows to the driver.
        """
        return None

    def moved_below(self, directory: str) -> "Sink":
        """The same sink, committing to ``directory`` instead: for a run that is only a trial.

        Raises:
            ConfigError: It commits files and has no way to commit them elsewhere.
        """
        if self.commits_to is None:
            return self
        raise ConfigError(
            f"{type(self).__name__} writes files to {self.commits_to} and cannot be told to write "
            "them elsewhere; it has to override moved_below()"
        )

    @abstractmethod
    def create_operator_factory(self) -> Callable[[], Operator]:
        """The factory of the operator in each subtask.

        A source's method of this name takes the parallelism.
        """


class PendingCommits(Generic[T]):
    """Output that waits for a checkpoint to complete, by the checkpoint whose barrier closed it."""

    def __init__(self) -> None:
        self._waiting: dict[CheckpointId, T] = {}

    def close(self, checkpoint_id: CheckpointId, output: T) -> None:
        """Let ``output`` wait for this checkpoint or a later one."""
        if self._waiting and checkpoint_id <= next(reversed(self._waiting)):
            raise ProtocolError(f"the barrier of checkpoint {checkpoint_id} came after a later one")
        self._waiting[checkpoint_id] = output

    def waiting(self) -> list[tuple[CheckpointId, T]]:
        """All waiting output, oldest first, which a snapshot must hold."""
        return list(self._waiting.items())

    def complete(self, checkpoint_id: CheckpointId) -> list[tuple[CheckpointId, T]]:
        """Take out the output that this checkpoint covers, oldest first."""
        done = [item for item in self._waiting.items() if item[0] <= checkpoint_id]
        for closed_by, _ in done:
            del self._waiting[closed_by]
        return done
