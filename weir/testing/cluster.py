"""A cluster in which anything can die at any moment, and nothing is forgotten.

What a fault does to a process here is what the operating system would do to a real one: it stops
between two statements, and what it sent before may arrive or not. ``ProcessKilled`` and
``DriverKilled`` are therefore no ``Exception``: nothing in production code catches them, and
nothing that runs afterwards belongs to the dead.
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from weir.errors import StorageError
from weir.ids import ChannelId, CheckpointId
from weir.protocol.alignment import DeclineCheckpoint, ForwardCancel
from weir.protocol.deployment import Deploy, WorkerCommand, WorkerReport
from weir.protocol.elements import Element, Records
from weir.protocol.lifecycle import FailureReason, SubtaskStatus
from weir.protocol.messages import (
    Acknowledged,
    CheckpointAborted,
    CheckpointCompleted,
    Report,
    SubtaskCommand,
    TriggerCheckpoint,
)
from weir.runtime.in_process import InProcessCluster, InProcessSlot, InProcessWorker
from weir.runtime.ports import CommandArrived, ElementArrived, InboxItem
from weir.storage.layout import parse_manifest_path
from weir.storage.memory import MemoryStore


class ProcessKilled(BaseException):
    """The worker process that runs now is gone."""


class DriverKilled(BaseException):
    """The driver that runs now is gone."""


class TriggerLost(BaseException):
    """The trigger that arrives now never reaches its subtasks."""


class TriggerDeclined(BaseException):
    """The sources that the trigger reaches now cannot take the checkpoint, and say so."""


COMMAND_POINTS: Mapping[type, str] = {
    TriggerCheckpoint: "trigger.sent",
    CheckpointCompleted: "completed.sent",
    CheckpointAborted: "aborted.sent",
    Deploy: "deploy.sent",
}


class World(Protocol):
    """What a simulated cluster reports to, and what makes its faults."""

    process: InProcessWorker | None  # Whose code runs now.
    driver: "SimulatedCluster | None"

    def reach(self, point: str) -> None:
        """A point of the protocol is reached; a fault may fire here by raising."""

    def stepped(self, process: "SimulatedWorker") -> None:
        """A worker's loop came round."""

    def entered(self, cluster: "SimulatedCluster") -> None:
        """A job master did something."""

    def crashed(self, cluster: "SimulatedCluster") -> None:
        """A driver died."""

    def orphaned(self, process: InProcessWorker, report: Report | WorkerReport) -> None:
        """A worker whose driver is dead reports."""


class SimulatedWorker(InProcessWorker):
    """A worker process that counts what goes over its channels, and can die anywhere."""

    _cluster: "SimulatedCluster"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.records_sent: Counter[ChannelId] = Counter()
        self.records_delivered: Counter[ChannelId] = Counter()

    def send(self, channel: ChannelId, element: Element) -> None:
        """Count records, then send."""
        if type(element) is Records:
            self.records_sent[channel] += element.count
        super().send(channel, element)

    def report(self, report: Report | WorkerReport) -> None:
        """Send a report; a process may die before or after an acknowledgement."""
        if not isinstance(report, Acknowledged):
            super().report(report)
            return
        self._cluster.world.reach("ack.before")
        super().report(report)
        self._cluster.world.reach("ack.after")

    def handle(self, item: InboxItem) -> None:
        """Count records, then take the item in."""
        if isinstance(item, ElementArrived) and type(item.element) is Records:
            self.records_delivered[item.channel] += item.element.count
        if isinstance(item, CommandArrived) and isinstance(item.command, TriggerCheckpoint):
            try:
                self._cluster.world.reach("trigger.received")
            except TriggerLost:
                return
            except TriggerDeclined:
                self._decline(item.command.barrier.checkpoint_id)
                return
        super().handle(item)

    def _decline(self, checkpoint_id: CheckpointId) -> None:
        """Every source of this process gives the checkpoint up, as a subtask in the middle does."""
        reason = FailureReason.CHECKPOINT_DECLINED
        for subtask in self.worker.subtasks:
            if not subtask.inputs.channels and subtask.status is SubtaskStatus.RUNNING:
                subtask._act(
                    [DeclineCheckpoint(checkpoint_id, reason), ForwardCancel(checkpoint_id)]
                )


class SimulatedCluster(InProcessCluster):
    """One Spark application: a driver, its slots and their workers."""

    worker_class = SimulatedWorker

    def __init__(self, world: World, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.world = world
        self.driver_alive = True

    # The driver.

    def enter(self, action: Callable[[], None]) -> None:
        """Let the job master do something, if it is alive."""
        if not self.driver_alive:
            return
        self.world.driver = self
        try:
            super().enter(action)
        except DriverKilled:
            self.crash()
        finally:
            self.world.driver = None
        self.world.entered(self)

    def perform(self, work: Callable[[], Any]) -> Any:
        """Do storage I/O of the driver, if it is alive."""
        if not self.driver_alive:
            return None
        self.world.driver = self
        try:
            return super().perform(work)
        except DriverKilled:
            self.crash()
        finally:
            self.world.driver = None

    def crash(self) -> None:
        """The driver is gone; nobody tells its slots."""
        self.driver_alive = False
        self.world.crashed(self)

    def to_worker(self, slot_index: int, command: SubtaskCommand | WorkerCommand) -> None:
        """Send a command; the driver may die when some workers have it and others do not."""
        super().to_worker(slot_index, command)
        if point := COMMAND_POINTS.get(type(command)):
            self.world.reach(point)

    # Slots.

    @property
    def is_running(self) -> bool:
        """Whether there is a driver with a job."""
        return self.driver_alive and super().is_running

    def silence_slot(self, slot: InProcessSlot) -> None:
        """The slot's process stops, as by SIGSTOP; its worker goes on."""
        slot.commands.cut = slot.reports.cut = True

    def detach(self, process: InProcessWorker) -> None:
        """Lose the slot of a process that goes on: a zombie."""
        slot = self.slots.get(process.place)
        if slot is not None and slot.worker is process:
            slot.worker = None
            self.lose_slot(slot)

    # Workers.

    def step(self, process: InProcessWorker) -> None:
        """Let a worker's loop come round once."""
        assert isinstance(process, SimulatedWorker)
        self.world.process = process
        try:
            super().step(process)
        except ProcessKilled:
            self.kill(process)
        finally:
            self.world.process = None
        if process.alive:
            self.world.stepped(process)

    def write(self, process: InProcessWorker, work: Callable[[], Any]) -> None:
        """Run a worker's snapshot thread, unless the process is stopped."""
        if process.alive and process.stopped:
            process.snapshots.send(lambda: self.write(process, work))
            return
        self.world.process = process
        try:
            super().write(process, work)
        except ProcessKilled:
            self.kill(process)
        finally:
            self.world.process = None

    def reported(self, process: InProcessWorker, report: Report | WorkerReport) -> None:
        """A worker's report reaches its driver, or whoever took over from it."""
        if self.driver_alive:
            super().reported(process, report)
        else:
            self.world.orphaned(process, report)

    def release(self, process: InProcessWorker, exit_code: int) -> None:
        """Close the operators of a process that ends well; one that is killed closes nothing."""
        if exit_code == 0:
            super().release(process, exit_code)


class FaultyStore(MemoryStore):
    """Checkpoint storage that outlives drivers and fails on command.

    It remembers of every manifest that was ever written which attempt wrote it and which checkpoint
    it builds on.
    """

    def __init__(self, reach: Callable[[str], None]) -> None:
        super().__init__()
        self.parents: dict[CheckpointId, CheckpointId | None] = {}
        self.attempt_of: dict[CheckpointId, int] = {}
        self._reach = reach

    @property
    def manifests(self) -> set[CheckpointId]:
        """The completed checkpoints that are there now."""
        found = {key[1] for path in super().list() if (key := parse_manifest_path(path))}
        return found & self.parents.keys()

    def put(self, path: str, data: bytes) -> None:
        """Write a file; it may fail, or be written and fail."""
        self._reach("put.before")
        super().put(path, data)
        self._reach("put.after")

    def create_if_absent(self, path: str, data: bytes) -> bool:
        """Create a file; it may fail, or be created and fail."""
        self._reach("create.before")
        created = super().create_if_absent(path, data)
        if created and (key := parse_manifest_path(path)):
            manifest = json.loads(data).get("manifest")
            if manifest is not None:
                self.parents[key[1]] = manifest["parent_id"]
                self.attempt_of[key[1]] = manifest["attempt"]
        self._reach("create.after")
        return created

    def read(self, path: str) -> bytes:
        """Read a file; it may fail."""
        self._reach("read")
        return super().read(path)

    def delete_prefix(self, directory: str) -> None:
        """Delete a directory; it may fail."""
        self._reach("delete")
        super().delete_prefix(directory)

    def peek(self, path: str) -> bytes:
        """Read a file behind everybody's back."""
        return super().read(path)

    def damage(self, path: str, data: bytes | None) -> None:
        """Change or lose a file behind everybody's back."""
        if data is None:
            super().delete(path)
        else:
            super().put(path, data)

    @staticmethod
    def failure(text: str) -> StorageError:
        """What a failing storage raises."""
        return StorageError(f"the storage failed: {text}")
