"""A cluster in which anything can die at any moment, and nothing is forgotten.

What a fault does to a process here is what the operating system would do to a real one: it stops
between two statements, and what it sent before may arrive or not. ``ProcessKilled`` and
``DriverKilled`` are therefore no ``Exception``: nothing in production code catches them, and
nothing that runs afterwards belongs to the dead.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from tests.simulation.pipelines import InvariantBroken
from weir.errors import StorageError
from weir.graph.exchanges import exchange_name, output_receiver
from weir.ids import ChannelId, CheckpointId, JobId
from weir.local.cluster import InProcessCluster, InProcessSlot, InProcessWorker
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
from weir.protocol.restore import CHANNEL
from weir.state.channel_state import decode_records
from weir.storage.layout import SAVEPOINT_MANIFEST, JobLayout, parse_manifest_path, within
from weir.storage.local_copies import LocalCopies
from weir.storage.local_directory import LocalDirectory
from weir.storage.manifest import Manifest, load
from weir.storage.memory import MemoryStore, MemoryWriter
from weir.storage.store import CheckpointStore
from weir.worker.ports import CommandArrived, ElementArrived, InboxItem

STORAGE = "simulated:"

CheckpointKey: TypeAlias = tuple[JobId, CheckpointId]


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
    """The receiver of a simulated cluster's reports, and the source of its faults."""

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

    def worker_comes(self, copies: Path, taken_over: int) -> None:
        """A worker is about to find its slot's local copies, some taken over from a lost slot."""

    def copies_opened(self, copies: Path) -> None:
        """A worker has its slot's local copies."""

    def orphaned(self, process: InProcessWorker, report: Report | WorkerReport) -> None:
        """A worker whose driver is dead reports."""


class SimulatedWorker(InProcessWorker):
    """A worker process that counts what goes over its channels, and can die anywhere."""

    _cluster: "SimulatedCluster"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.records_sent: Counter[ChannelId] = Counter()
        self.records_delivered: Counter[ChannelId] = Counter()

    @property
    def world(self) -> World:
        """The world that the process runs in."""
        return self._cluster.world

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
        """The driver is gone, and its slots are not told."""
        self.driver_alive = False
        self.world.crashed(self)

    def to_worker(self, slot_index: int, command: SubtaskCommand | WorkerCommand) -> None:
        """Send a command; the driver may die when some workers have it and others do not."""
        super().to_worker(slot_index, command)
        if isinstance(command, CheckpointCompleted) and command.final:
            self.world.reach("final.sent")
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

    def _copies_of(self, slot: InProcessSlot, plan_slot: int) -> LocalCopies | None:
        opened = super()._copies_of(slot, plan_slot)
        if slot.copies is not None:
            self.world.copies_opened(slot.copies.path)
        return opened

    def take_over_copies(self, copies: LocalDirectory, plan_slot: int) -> None:
        own = set(copies.path.iterdir())
        super().take_over_copies(copies, plan_slot)
        self.world.worker_comes(copies.path, len(set(copies.path.iterdir()) - own))

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
        """A worker's report reaches its driver, or the one that took over from it."""
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

    It remembers of every manifest that was ever written what it was, and watches that no file goes
    which a checkpoint needs that ``is_needed`` (none, unless set).
    """

    def __init__(self, reach: Callable[[str], None]) -> None:
        super().__init__()
        self.written: dict[CheckpointKey, Manifest] = {}
        # Records under way in each, by exchange and old receiver.
        self.under_way: dict[CheckpointKey, Counter[tuple[str, int]]] = {}
        self.created_at: dict[str, int] = {}  # In the order of all creations.
        self.is_needed: Callable[[CheckpointKey], bool] = lambda key: False
        self.is_foreign: Callable[[str], bool] = lambda path: False  # For the running process.
        self._needed_by: dict[str, set[CheckpointKey]] = defaultdict(set)  # By path.
        self._reach = reach

    def manifests(self, job: JobId) -> set[CheckpointId]:
        """The checkpoints of a job that are there now."""
        keys = {key for path in super().list() if (key := parse_manifest_path(path))}
        return {number for owner, number in keys & self.written.keys() if owner == job}

    def parent(self, key: CheckpointKey) -> CheckpointId | None:
        """The checkpoint of the same job that this one builds on."""
        return self.written[key].parent_id

    def at(self, uri: str | None) -> CheckpointStore:
        """The part of this storage that a URI names."""
        assert uri is not None
        assert uri.startswith(STORAGE)
        directory = uri[len(STORAGE) :].strip("/")
        return PartOfStore(self, directory) if directory else self

    def put(self, path: str, data: bytes) -> None:
        """Write a file; it may fail, or be written and fail."""
        self._check_own(path)
        self._reach("put.before")
        super().put(path, data)
        self._reach("put.after")

    def create_if_absent(self, path: str, data: bytes) -> bool:
        """Create a file; it may fail, or be created and fail."""
        key = parse_manifest_path(path)
        is_own = key is None and path.endswith("/manifest")
        self._check_own(path)
        self._reach("own_manifest.before" if is_own else "create.before")
        created = super().create_if_absent(path, data)
        if created:
            self.created_at[path] = len(self.created_at)
        if created and key is not None:
            manifest = load(data)
            if isinstance(manifest, Manifest):
                self.written[key] = manifest
                self.under_way[key] = self._records_under_way(key[0], manifest)
                for needed in self.files_of(key):
                    if not super().exists(needed):
                        raise InvariantBroken(f"{path} is created, and {needed} is not there")
                    self._needed_by[needed].add(key)
        self._reach("own_manifest.after" if is_own else "create.after")
        return created

    def _records_under_way(self, job: JobId, manifest: Manifest) -> Counter[tuple[str, int]]:
        counts: Counter[tuple[str, int]] = Counter()
        for ack in manifest.acks:
            for handle in ack.handles:
                if handle.kind != CHANNEL:
                    continue
                path = within(JobLayout(job).directory, handle.path or "")
                data = handle.inline if handle.path is None else self.peek(path)
                receiver = output_receiver(handle.name)
                to = ack.subtask.index if receiver is None else receiver
                records = decode_records(data or b"", handle.name)
                counts[exchange_name(handle.name), to] += sum(one.count for one in records)
        return counts

    def files_of(self, key: CheckpointKey) -> list[str]:
        """The files that a checkpoint consists of."""
        manifest = self.written[key]
        layout = JobLayout(key[0])
        files = [layout.manifest(key[1])]
        directory = layout.directory
        if manifest.location is not None:
            directory = manifest.location[len(STORAGE) :].strip("/")
            files.append(within(directory, SAVEPOINT_MANIFEST))
        return files + [within(directory, h.path) for h in manifest.handles if h.path is not None]

    def read(self, path: str) -> bytes:
        """Read a file; it may fail."""
        self._reach("read")
        return super().read(path)

    def delete(self, path: str) -> None:
        """Delete a file that nothing needs."""
        self._check([path])
        super().delete(path)

    def delete_prefix(self, directory: str) -> None:
        """Delete a directory; it may fail."""
        self._reach("delete")
        self.sweep(directory)

    def sweep(self, directory: str) -> None:
        """Delete a directory that nothing needs."""
        self._check(super().list(directory))
        super().delete_prefix(directory)

    def _check(self, paths: Iterable[str]) -> None:
        for path in paths:
            self._check_own(path)
            for key in sorted(self._needed_by.get(path, ())):
                if self.is_needed(key):
                    raise InvariantBroken(f"{path} is deleted, but {key[0]}/chk-{key[1]} needs it")

    def _check_own(self, path: str) -> None:
        if self.is_foreign(path):
            raise InvariantBroken(f"another job touches {path}")

    def copy(self, source: str, target: str) -> None:
        """Copy a directory unseen by all components, as an operator does who moves a savepoint."""
        for path in super().list(source):
            super().put(target + path[len(source) :], super().read(path))

    def peek(self, path: str) -> bytes:
        """Read a file behind everybody's back."""
        return super().read(path)

    def reliable(self) -> "ReliableStore":
        """The same files, without faults; deletions are watched."""
        return ReliableStore(self)

    def silent(self) -> MemoryStore:
        """The same files, without faults."""
        store = MemoryStore()
        store._files = self._files
        return store

    def damage(self, path: str, data: bytes | None) -> None:
        """Change or lose a file behind everybody's back."""
        if data is None:
            super().delete(path)
        else:
            super().put(path, data)

    @staticmethod
    def failure(text: str) -> StorageError:
        """The error that a failing storage raises."""
        return StorageError(f"the storage failed: {text}")


class ReliableStore(MemoryStore):
    """A storage as the control plane works with it."""

    def __init__(self, whole: FaultyStore) -> None:
        super().__init__()
        self._files = whole._files
        self._whole = whole

    def delete(self, path: str) -> None:
        """Delete a file that nothing needs."""
        self._whole.delete(path)

    def delete_prefix(self, directory: str) -> None:
        """Delete a directory that nothing needs."""
        self._whole.sweep(directory)


class PartOfStore:
    """A directory of a storage as a storage of its own."""

    def __init__(self, whole: FaultyStore, directory: str) -> None:
        self._whole = whole
        self._directory = directory

    def _path(self, path: str) -> str:
        return f"{self._directory}/{path}" if path else self._directory

    @property
    def location(self) -> str:
        """The place of the directory."""
        return f"{self._whole.location}{self._directory}"

    def put(self, path: str, data: bytes) -> None:
        """Write a file whole."""
        self._whole.put(self._path(path), data)

    def create_if_absent(self, path: str, data: bytes) -> bool:
        """Create a file, unless it is there."""
        return self._whole.create_if_absent(self._path(path), data)

    def open_writer(self, path: str) -> MemoryWriter:
        """Write a file piece by piece."""
        return self._whole.open_writer(self._path(path))

    def read(self, path: str) -> bytes:
        """The whole file."""
        return self._whole.read(self._path(path))

    def read_range(self, path: str, start: int, length: int) -> bytes:
        """A part of a file."""
        return self._whole.read_range(self._path(path), start, length)

    def exists(self, path: str) -> bool:
        """Whether there is such a file."""
        return self._whole.exists(self._path(path))

    def list(self, directory: str = "") -> "list[str]":
        """The files below a directory."""
        skipped = len(self._directory) + 1
        return [path[skipped:] for path in self._whole.list(self._path(directory))]

    def delete(self, path: str) -> None:
        """Delete a file."""
        self._whole.delete(self._path(path))

    def delete_prefix(self, directory: str) -> None:
        """Delete a directory."""
        self._whole.delete_prefix(self._path(directory))

    def delete_if_empty(self) -> None:
        """A place in memory is its files."""
