"""The port from the job master to its slots, workers and storage."""

from collections.abc import Callable
from typing import Any, Protocol

from weir.protocol.deployment import SlotCommand, WorkerCommand
from weir.protocol.messages import SubtaskCommand


class Cluster(Protocol):
    """The job master's access to slots, workers and storage; no method blocks or raises."""

    def to_slot(self, slot_index: int, command: SlotCommand) -> None:
        """Send a command to a registered slot; dropped where the slot is lost."""

    def to_worker(self, slot_index: int, command: SubtaskCommand | WorkerCommand) -> None:
        """Send a command to the slot's worker process of the current attempt."""

    def replace_slot(self, slot_index: int) -> None:
        """End the Spark task of a slot that hangs, so that Spark starts it anew."""

    def replace_executor(self, slot_index: int) -> None:
        """End the executor of a slot that cannot serve, so that the cluster starts another one."""

    def core_count(self) -> int:
        """The number of cores that the cluster has now, for messages."""

    def slot_failure(self) -> str:
        """The newest failure of a slot before it registered, in a line; empty: there was none."""

    def io(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        """Run ``work`` elsewhere, then ``done`` with its result or exception on this thread."""
