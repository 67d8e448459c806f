"""The job master's end of control connections, as a test drives it, and slots to connect to it."""

import os
import selectors
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import cloudpickle
import psutil

from tests.process.worker.standin import STAND_IN, exchange_graph
from weir.channels.control_connection import ControlConnection
from weir.config import JobConfig
from weir.errors import ChannelError
from weir.ids import AttemptNumber, JobId, OperatorId
from weir.protocol.deployment import (
    Address,
    Deploy,
    ReleaseSlot,
    SlotAccepted,
    SlotRegistered,
    StartWorker,
    WorkerReady,
)
from weir.protocol.messages import SubtaskChanged
from weir.protocol.wire import WireMessage

JOB_SECRET = b"j" * 32
JOB_ID = JobId("job-1")
DEADLINE_S = 20.0
REPOSITORY = Path(__file__).parents[3]

T = TypeVar("T")


def secret_of(attempt: int) -> bytes:
    return bytes([attempt % 256]) * 32


def program(graph: Any = None, **parameters: str) -> bytes:
    config = JobConfig(heartbeat_interval_ms=100, parameters=parameters)
    data: bytes = cloudpickle.dumps((graph or exchange_graph(1), config))
    return data


@dataclass(eq=False)
class FakeMaster:
    """Accepts connections, keeps what they say and says what it is told to."""

    listener: socket.socket
    attempts: set[int] = field(default_factory=set)  # Those whose secret is accepted.
    peers: list[ControlConnection] = field(default_factory=list)
    unseen: list[tuple[ControlConnection, WireMessage]] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)

    @property
    def port(self) -> int:
        return int(self.listener.getsockname()[1])

    def expect(
        self, kind: type[T], deadline_s: float = DEADLINE_S, **values: Any
    ) -> tuple[ControlConnection, T]:
        """Wait for the first message of this class with these fields that was not expected yet."""
        deadline = time.monotonic() + deadline_s
        while True:
            for index, (peer, message) in enumerate(self.unseen):
                if isinstance(message, kind) and all(
                    getattr(message, name) == value for name, value in values.items()
                ):
                    del self.unseen[index]
                    return peer, message
            if (left := deadline - time.monotonic()) <= 0:
                raise AssertionError(f"no {kind.__name__} {values}; heard {self.unseen[-20:]}")
            self.pump(min(left, 0.5))

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
                self.peers.append(ControlConnection.accept(sock, self._secret_of))
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

    def _secret_of(self, attempt: AttemptNumber | None) -> bytes | None:
        if attempt is None:
            return JOB_SECRET
        return secret_of(attempt) if attempt in self.attempts else None

    # A slot's usual life.

    def accept_slot(self, loaded: bytes, slot_index: int = 0) -> ControlConnection:
        slot, _ = self.expect(SlotRegistered, slot_index=slot_index)
        self.send(slot, SlotAccepted(JOB_ID, loaded))
        return slot

    def order_worker(self, slot: ControlConnection, attempt: int, plan_slot: int = 0) -> None:
        self.attempts.add(attempt)
        self.send(slot, StartWorker(AttemptNumber(attempt), plan_slot, secret_of(attempt)))

    def start_worker(
        self, slot: ControlConnection, attempt: int = 1, plan_slot: int = 0
    ) -> tuple[ControlConnection, WorkerReady]:
        self.order_worker(slot, attempt, plan_slot)
        return self.expect(WorkerReady, attempt=attempt, slot_index=plan_slot)

    def deploy(
        self,
        worker: ControlConnection,
        attempt: int = 1,
        *addresses: Address,
        max_parallelism: tuple[tuple[OperatorId, int], ...] = (),
        sent_at_ms: int | None = None,
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
        )
        self.send(worker, deploy)

    def expect_details(self, **details: Any) -> SubtaskChanged:
        return self.expect(SubtaskChanged, details=details)[1]


@contextmanager
def fake_master() -> Iterator[FakeMaster]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        master = FakeMaster(listener)
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
    secret: bytes = JOB_SECRET,
) -> Iterator["subprocess.Popen[bytes]"]:
    """A supervisor in a process of its own; ended and, with all it started, found gone after it."""
    code = (
        "import sys; from weir.spark.slot import run_slot\n"
        "secret = sys.stdin.buffer.read()\n"
        f"run_slot({slot_index}, '127.0.0.1', {master.port}, secret, 7, worker={worker!r})\n"
        "assert 'numpy' not in sys.modules and 'pyarrow' not in sys.modules"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )
    assert process.stdin is not None
    process.stdin.write(secret)
    process.stdin.close()
    try:
        yield process
        if process.poll() is None:
            for peer in master.peers:
                if peer.authenticated and peer.peer_identity == f"slot-{slot_index}":
                    master.send(peer, ReleaseSlot())
            assert process.wait(DEADLINE_S) == 0
    finally:
        process.kill()
        process.wait()


def await_gone(*pids: int, deadline_s: float = 5.0) -> float:
    """Wait until none of these processes runs; seconds it took. A zombie runs no more."""
    started = time.monotonic()
    while living := [pid for pid in pids if is_running(pid)]:
        if time.monotonic() - started > deadline_s:
            raise AssertionError(f"still running: {living}")
        time.sleep(0.002)
    return time.monotonic() - started


def is_running(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def await_true(condition: Any, deadline_s: float = 5.0) -> None:
    deadline = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError("the condition did not come true")
        time.sleep(0.005)
