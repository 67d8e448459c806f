"""Attackers at the job master's port: ends that claim more than they proved, and silence."""

import logging
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from tests.networks import KINDS, make_network, worker_credentials
from tests.process.channels.test_tcp import DEADLINE_S
from tests.waiting import wait_until
from weir.channels.authority import Network
from weir.channels.control_connection import ControlConnection
from weir.channels.security import open_credentials
from weir.errors import ChannelError
from weir.ids import AttemptNumber
from weir.protocol.deployment import (
    Address,
    Credentials,
    SlotFailed,
    SlotHeartbeat,
    SlotRegistered,
    WorkerReady,
)
from weir.protocol.wire import WireMessage
from weir.spark import cluster as production
from weir.spark.cluster import SparkCluster
from weir.worker.versions import installed_versions

RUNNING = AttemptNumber(2)
UNANSWERED_MS_MAX = 47_000


@dataclass
class Job:
    """The job master, as the cluster knows it: it keeps what reaches it."""

    reports: list[tuple[str, Any]] = field(default_factory=list)

    def is_running(self, attempt: AttemptNumber) -> bool:
        return attempt == RUNNING

    def on_slot(self, report: Any) -> None:
        self.reports.append(("slot", report))

    def on_worker(self, slot_index: int, *reports: Any) -> None:
        self.reports += [("worker", report) for report in reports]

    def on_slot_lost(self, slot_index: int, spark_attempt: int) -> None:
        self.reports.append(("slot lost", slot_index))

    def on_worker_lost(self, slot_index: int, attempt: int) -> None:
        self.reports.append(("worker lost", slot_index))


@pytest.fixture(params=list(KINDS))
def network(request: pytest.FixtureRequest) -> Network:
    return make_network(request.param)


@dataclass
class Driver:
    """A cluster without Spark: its sockets, and the job behind them."""

    cluster: SparkCluster
    job: Job

    @property
    def address(self) -> Address:
        return self.cluster._address


@contextmanager
def driver(network: Network, slot_count: int = 2) -> Iterator[Driver]:
    cluster = SparkCluster(cast(Any, None), "127.0.0.1", slot_count, network, UNANSWERED_MS_MAX)
    job = Job()
    cluster._job = cast(Any, job)
    ended = threading.Event()

    def serve() -> None:
        while not ended.is_set():
            cluster._turn(0.02)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield Driver(cluster, job)
    finally:
        ended.set()
        thread.join()
        cluster.close()


def say(driver: Driver, credentials: Credentials, *messages: WireMessage) -> bool:
    """Send messages under these credentials; whether the driver ended the connection."""
    connection = ControlConnection.connect(driver.address, open_credentials(credentials))
    try:
        for message in messages:
            connection.send(message)
        deadline = time.monotonic() + DEADLINE_S
        told_at = None
        while not connection.ended and time.monotonic() < deadline:
            connection.pump_out()
            connection.pump_in()
            if connection.authenticated and not connection.wants_write:
                told_at = told_at or time.monotonic()
                if time.monotonic() > told_at + 0.5:
                    return False  # It listens to all of it.
            time.sleep(0.005)
        return True
    except ChannelError:
        return True
    finally:
        connection.close()


def registered(slot_index: int) -> SlotRegistered:
    return SlotRegistered(slot_index, 1, "127.0.0.1", 1, installed_versions())


def ready(slot_index: int, attempt: int = RUNNING) -> WorkerReady:
    return WorkerReady(AttemptNumber(attempt), slot_index, 1, Address("127.0.0.1", 1))


def test_a_slot_speaks_for_itself(network: Network) -> None:
    """The occasion of the others."""
    with driver(network) as at:
        assert not say(at, network.slot(1), registered(1), SlotHeartbeat(1))
        assert not say(at, worker_credentials(network, RUNNING, 1), ready(1))
        kinds = [kind for kind, _ in at.job.reports]
        assert kinds[:2] == ["slot", "slot"]
        assert "worker" in kinds


def test_a_machine_that_vanished_is_lost_after_the_time_of_the_job(network: Network) -> None:
    with (
        driver(network) as at,
        closing(ControlConnection.connect(at.address, open_credentials(network.slot(1)))),
    ):
        (peer,) = wait_until(lambda: [*at.cluster._peers.values()], "the slot is accepted")
        sock = peer.connection.socket
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == UNANSWERED_MS_MAX


@pytest.mark.parametrize(
    ("role", "message"),
    [
        ("slot", registered(0)),
        ("slot", ready(1)),
        ("worker", ready(0)),
        ("worker", ready(1, RUNNING + 1)),
        ("worker", registered(1)),
        ("worker", SlotFailed(1, "forged")),
    ],
)
def test_an_end_cannot_speak_for_another(
    network: Network, role: str, message: WireMessage, caplog: pytest.LogCaptureFixture
) -> None:
    """Slot 1, or its worker process, claims to be another end than it proved to be."""
    with driver(network) as at:
        own = network.slot(1) if role == "slot" else worker_credentials(network, RUNNING, 1)
        assert say(at, own, message)
        assert at.job.reports == []
    assert "a control connection is closed" in caplog.text


def test_another_network_and_an_older_attempt_are_refused(network: Network) -> None:
    with driver(network) as at:
        assert say(at, type(network)(network.slot(0).job_id).slot(1), registered(1))
        assert say(at, worker_credentials(network, RUNNING - 1, 1), ready(1, RUNNING - 1))
        assert at.job.reports == []


def test_silent_connections_end_and_do_not_keep_slots_out(
    network: Network, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(production, "AUTHENTICATION_TIMEOUT_S", 0.3)
    monkeypatch.setattr(production, "STRANGERS_MAX", 4)
    caplog.set_level(logging.WARNING)
    with driver(network) as at, ExitStack() as stack:
        silent = [
            stack.enter_context(socket.create_connection((at.address.host, at.address.port)))
            for _ in range(20)
        ]
        for each in silent:
            each.settimeout(DEADLINE_S)
            assert each.recv(1) == b""
        assert not say(at, network.slot(1), registered(1))
        assert at.job.reports[0][0] == "slot"
    assert "others are not authenticated" in caplog.text
    assert "does not prove who it is" in caplog.text
