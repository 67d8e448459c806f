"""The job master's end of control connections, as a test drives it, and slots to connect to it."""

import os
import pickle
import selectors
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import cloudpickle
import psutil

from tests.networks import JOB_ID, make_network
from tests.process.worker.standin import STAND_IN, exchange_graph
from tests.waiting import TIMEOUT_S, wait_until
from weir.channels.authority import Network
from weir.channels.control_connection import ControlConnection
from weir.channels.identity import SlotIdentity
from weir.config import JobConfig
from weir.errors import ChannelError
from weir.ids import AttemptNumber, OperatorId
from weir.protocol.deployment import (
    Address,
    Deploy,
    ReleaseSlot,
    Secrets,
    SlotAccepted,
    SlotRegistered,
    StartWorker,
    WorkerReady,
)
from weir.protocol.messages import SubtaskChanged
from weir.protocol.slot_memory import MemoryLimit
from weir.protocol.wire import WireMessage

REPOSITORY = Path(__file__).parents[3]

T = TypeVar("T")


def program(graph: Any = None, **parameters: str) -> bytes:
    config = JobConfig(heartbeat_interval_ms=100, parameters=parameters)
    data: bytes = cloudpickle.dumps((graph or exchange_graph(1), config))
    return data


@dataclass(eq=False)
class FakeMaster:
    """Accepts connections, keeps what they say and says what it is told to."""

    listener: socket.socket
    network: Network
    attempts: set[int] = field(default_factory=set)  # Those that run.
    peers: list[ControlConnection] = field(default_factory=list)
    unseen: list[tuple[ControlConnection, WireMessage]] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.security = self.network.job_master()

    @property
    def port(self) -> int:
        return int(self.listener.getsockname()[1])

    def expect(self, kind: type[T], **values: Any) -> tuple[ControlConnection, T]:
        """Wait for the first message of this class with these fields that was not expected yet."""

        def take() -> tuple[ControlConnection, T] | None:
            for index, (peer, message) in enumerate(self.unseen):
                if isinstance(message, kind) and all(
                    getattr(message, name) == value for name, value in values.items()
                ):
                    del self.unseen[index]
                    return peer, message
            return None

        taken = self.pump_until(
            take, lambda: f"{kind.__name__} {values} comes; heard {self.unseen[-20:]}"
        )
        assert taken is not None
        return taken

    def pump_until(self, condition: Callable[[], T], expectation: str | Callable[[], str]) -> T:
        """The value of a condition once it is true; the sockets are served until then."""

        def pumped() -> T:
            if not (value := condition()):
                self.pump(0.05)
            return value

        return wait_until(pumped, expectation, poll_s=0)

    def pump(self, timeout_s: float) -> None:
        """Do what the sockets are ready for, once."""
        with selectors.DefaultSelector() as selector:
            selector.register(self.listener, selectors.EVENT_READ)
            for peer in self.peers:
                mask = selectors.EVENT_READ
                selector.register(peer, mask | (selectors.EVENT_WRITE if peer.wants_write else 0))
            ready = [key.fileobj for key, _ in selector.select(timeout_s)]
        for which in ready:
            if which is self.listener:
                sock, _ = self.listener.accept()
                connection = ControlConnection.accept(
                    sock, self.security, self.attempts.__contains__
                )
                self.peers.append(connection)
                continue
            assert isinstance(which, ControlConnection)
            try:
                which.pump_out()
                self.unseen += [(which, message) for message in which.pump_in()]
                which.pump_out()
            except ChannelError as error:
                self.refusals.append(str(error))
                which.close()
            if which.ended:
                which.close()
                self.peers.remove(which)

    def send(self, peer: ControlConnection, message: WireMessage) -> None:
        peer.send(message)
        peer.pump_out()

    # A slot's usual life.

    def accept_slot(
        self,
        loaded: bytes,
        slot_index: int = 0,
        secrets: Secrets = (),
        copies_directory: Path | None = None,
    ) -> ControlConnection:
        """Accept a slot; with a directory it keeps local copies there."""
        slot, _ = self.expect(SlotRegistered, slot_index=slot_index)
        accepted = SlotAccepted(JOB_ID, loaded, secrets)
        if copies_directory is not None:
            directory = str(copies_directory)
            accepted = replace(accepted, keeps_copies=True, copies_directory=directory)
        self.send(slot, accepted)
        return slot

    def order_worker(
        self,
        slot: ControlConnection,
        attempt: int,
        plan_slot: int = 0,
        memory: MemoryLimit | None = None,
    ) -> None:
        self.attempts.add(attempt)
        number = AttemptNumber(attempt)
        credentials = self.network.worker(number, plan_slot)
        self.send(slot, StartWorker(number, plan_slot, credentials, memory))

    def start_worker(
        self,
        slot: ControlConnection,
        attempt: int = 1,
        plan_slot: int = 0,
        memory: MemoryLimit | None = None,
    ) -> tuple[ControlConnection, WorkerReady]:
        self.order_worker(slot, attempt, plan_slot, memory)
        return self.expect(WorkerReady, attempt=attempt, slot_index=plan_slot)

    def deploy(
        self,
        worker: ControlConnection,
        attempt: int = 1,
        *addresses: Address,
        max_parallelism: tuple[tuple[OperatorId, int], ...] = (),
        sent_at_ms: int | None = None,
        secrets: Secrets = (),
    ) -> None:
        deploy = Deploy(
            attempt=AttemptNumber(attempt),
            job_id=JOB_ID,
            slot_addresses=addresses,
            storage=None,
            restored_checkpoint=None,
            restored_storage=None,
            restored_directory="",
            restores=(),
            max_parallelism=max_parallelism,
            sent_at_ms=sent_at_ms,
            secrets=secrets,
        )
        self.send(worker, deploy)

    def deploy_workers(
        self, loaded: bytes, *slot_indices: int, **deployment: Any
    ) -> list[tuple[ControlConnection, WorkerReady]]:
        """Start a plan's workers in these slots, and deploy them; ``deployment`` as ``deploy``."""
        workers = [
            self.start_worker(self.accept_slot(loaded, slot_index), 1, plan_slot)
            for plan_slot, slot_index in enumerate(slot_indices)
        ]
        addresses = [ready.address for _, ready in workers]
        for worker, _ in workers:
            self.deploy(worker, 1, *addresses, **deployment)
        return workers

    def expect_details(self, **details: Any) -> SubtaskChanged:
        return self.expect(SubtaskChanged, details=details)[1]


@contextmanager
def fake_master(network: str = "plain") -> Iterator[FakeMaster]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        master = FakeMaster(listener, make_network(network))
        try:
            yield master
        finally:
            for peer in master.peers:
                peer.close()


@contextmanager
def supervisor(
    master: FakeMaster,
    slot_index: int = 0,
    *,
    worker: str = STAND_IN,
    network: Network | None = None,
    output: int | None = None,
    warm: bool = False,
    root: str = "/",
) -> Iterator["subprocess.Popen[bytes]"]:
    """A supervisor in a process of its own; ended and, with all it started, found gone after it.

    A warm one has the runtime when it begins, as a fork of the daemon, and forks its template.
    ``root`` is where it looks for its cgroup.
    """
    before, after = (
        ("from weir.spark.python_daemon import load_runtime; load_runtime()", "")
        if warm
        else ("", "assert 'numpy' not in sys.modules and 'pyarrow' not in sys.modules")
    )
    code = (
        f"{before}\n"
        "import pathlib, pickle, sys; from weir.spark.slot import run_slot\n"
        "from weir.protocol.deployment import Address\n"
        "credentials = pickle.load(sys.stdin.buffer)\n"
        f"master = Address('127.0.0.1', {master.port})\n"
        f"run_slot({slot_index}, master, credentials, 7, worker={worker!r},"
        f" root=pathlib.Path({root!r}))\n"
        f"{after}"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stderr=output,
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )
    assert process.stdin is not None
    process.stdin.write(pickle.dumps((network or master.network).slot(slot_index)))
    process.stdin.close()
    try:
        yield process
        if process.poll() is None:
            for peer in master.peers:
                if peer.peer == SlotIdentity(slot_index):
                    master.send(peer, ReleaseSlot())
            assert process.wait(TIMEOUT_S) == 0
    finally:
        process.kill()
        process.wait()


def await_gone(*pids: int) -> None:
    """Wait until none of these processes runs. A zombie runs no more."""
    for pid in pids:
        wait_until(lambda pid=pid: not is_running(pid), f"process {pid} has ended")


def is_running(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
