"""A control plane in one thread pool: the gateway's two resources over the real coordinator.

It keeps everything in memory and does on purpose what a real one does by accident: it is away,
slow, forgets to answer, repeats itself.
"""

import gzip
import json
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.waiting import TIMEOUT_S, wait_until
from weir.ids import CheckpointId, JobId
from weir.managed.gateway_line import GatewayAddress
from weir.protocol.coordinator import CoordinatorState, check_invariants, next_due_ms, step
from weir.protocol.driver_messages import (
    BatchApplied,
    CommandBatch,
    DriverCommand,
    DriverEvent,
    EventBatch,
    JobPlanned,
    NumberedCommand,
)
from weir.protocol.messages import (
    CoordinatorEvent,
    DiscardCheckpoint,
    DiscardHandles,
    DiscardPending,
    RecordAborted,
    RecordCompleted,
    Tick,
    TimeLost,
)
from weir.wire import batches

JOB = JobId("job one")
TOKEN = "token-of-driver-1"
TICK_S = 0.02
WAIT_S = 0.6  # Of a batch that is held up, or of its answer.
OWN = (DiscardHandles, DiscardPending, DiscardCheckpoint)  # Not for the driver.


class Coordination:
    """The coordinator and its outbox, as the control plane has them."""

    def __init__(self) -> None:
        self.state: CoordinatorState | None = None
        self.commands: list[NumberedCommand] = []
        self.completed: list[RecordCompleted] = []
        self.aborted: list[RecordAborted] = []

    def fold(self, event: CoordinatorEvent) -> None:
        """One event, and what follows from it."""
        if self.state is None:
            return
        done = step(self.state, event, time.time_ns() // 1_000_000)
        check_invariants(done.state)
        self.state = done.state
        for command in done.commands:
            if isinstance(command, RecordCompleted):
                self.completed.append(command)
            elif isinstance(command, RecordAborted):
                self.aborted.append(command)
            elif not isinstance(command, OWN):
                self.enqueue(command)

    def enqueue(self, command: DriverCommand) -> None:
        """Leave a command; numbers have gaps."""
        self.commands.append(NumberedCommand(3 * len(self.commands) + 5, command))


class StandIn:
    """The control plane; ``accidents`` happen to the next posts, one each."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.coordination = Coordination()
        self.events: list[DriverEvent] = []
        self.batches: list[EventBatch] = []  # As they came, repeated ones too.
        self.encodings: list[str | None] = []
        self.up_to = 0
        self.taken = 0  # The number of the last command that the driver has.
        self.accidents: deque[str] = deque()
        self.fenced = ""
        self.refusal: tuple[int, str] | None = None  # For every request.
        self.busy = 0  # So many of the next batches are refused as too many.
        self.version = batches.VERSION_MAX  # The highest that it speaks.
        self.versions: list[int] = []  # Of the batches that it took.
        self.sent_at_ms: int | None = None  # Its clock, as commands leave.
        self.ahead_ms = 0  # Its clock is ahead of the driver's by so much.
        self.polls = 0
        self.repeats = False  # Answers polls with commands that were taken, too.
        self.problem = ""  # What went wrong here.
        self.is_stopping = False
        self.port = 0
        self.connections: set[socket.socket] = set()
        self._server: _Server | None = None
        self._threads: list[threading.Thread] = []

    # Being there.

    def start(self) -> None:
        stand_in = self

        class Handler(_Handler):
            control = stand_in

        self.is_stopping = False
        server = _Server(("127.0.0.1", self.port), Handler)
        self._server, self.port = server, server.server_address[1]
        self._threads = [
            threading.Thread(target=server.serve_forever, args=(0.02,)),
            threading.Thread(target=self._tick),
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Go away, in the middle of any open requests."""
        with self.changed:
            self.is_stopping = True
            self.changed.notify_all()
        assert self._server is not None
        self._server.shutdown()
        for connection in list(self.connections):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        self._server.server_close()

    def _tick(self) -> None:
        while not self.is_stopping:
            with self.changed:
                self.changed.wait(TICK_S)
                state = self.coordination.state
                due = None if state is None else next_due_ms(state)
                if due is not None and time.time_ns() // 1_000_000 >= due:
                    self.tell(Tick())

    @property
    def address(self) -> GatewayAddress:
        return GatewayAddress(f"http://127.0.0.1:{self.port}", JOB, TOKEN)

    @property
    def now_ms(self) -> int:
        """Its clock."""
        return time.time_ns() // 1_000_000 + self.ahead_ms

    # What happens.

    def tell(self, event: CoordinatorEvent) -> None:
        """Something the coordinator has to know, from here."""
        with self.changed:
            self.coordination.fold(event)
            self.changed.notify_all()

    def command(self, command: DriverCommand) -> None:
        """Have the driver do something."""
        with self.changed:
            self.coordination.enqueue(command)
            self.changed.notify_all()

    def apply(self, batch: EventBatch) -> BatchApplied:
        """Take in a batch: what is new of it."""
        with self.changed:
            self.batches.append(batch)
            if batch.first_number > self.up_to + 1:  # Some are missing: nothing of it counts.
                return BatchApplied(self.up_to, self.now_ms)
            if batch.away_ms:
                self.coordination.fold(TimeLost(batch.away_ms))
            for event in batch.events[self.up_to + 1 - batch.first_number :]:
                self.up_to += 1
                self.events.append(event)
                if isinstance(event, JobPlanned):
                    self.coordination.state = CoordinatorState(config=event.checkpoints)
                elif isinstance(event, CoordinatorEvent):
                    self.coordination.fold(event)
            self.changed.notify_all()
            return BatchApplied(self.up_to, self.now_ms)

    def commands_after(self, number: int, wait_s: float) -> CommandBatch:
        """Wait for commands."""
        deadline = time.monotonic() + wait_s
        with self.changed:
            self.polls += 1
            self.taken = number
            self.changed.notify_all()
            while True:
                commands = [c for c in self.coordination.commands if c.number > number]
                left = deadline - time.monotonic()
                if commands or left <= 0 or self.is_stopping or self.fenced or self.refusal:
                    break
                self.changed.wait(left)
            if self.repeats:
                commands = [*self.coordination.commands[:2], *commands]
            return CommandBatch(tuple(commands), self.sent_at_ms)

    def events_of(self, kind: Any) -> list[Any]:
        """The events of one kind, in order."""
        with self.changed:
            return [event for event in self.events if isinstance(event, kind)]

    def wait_for(self, holds: Callable[[], Any], timeout_s: float = TIMEOUT_S) -> None:
        """Wait until something holds of what is here; fails the test if it never does."""

        def held() -> Any:
            with self.changed:
                return self.problem or holds()

        wait_until(held, lambda: f"what is expected; {len(self.events)} events came", timeout_s)
        assert not self.problem, self.problem

    @property
    def completed_ids(self) -> list[CheckpointId]:
        return [c.checkpoint.checkpoint_id for c in self.coordination.completed]


class _Server(ThreadingHTTPServer):
    daemon_threads = False  # So that closing it waits for them.
    allow_reuse_address = True

    def handle_error(self, *_: Any) -> None:
        """A client that went away is none."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    control: StandIn

    def setup(self) -> None:
        super().setup()
        self.control.connections.add(self.connection)

    def finish(self) -> None:
        self.control.connections.discard(self.connection)
        super().finish()

    def do_POST(self) -> None:
        data = self.rfile.read(int(self.headers["Content-Length"]))
        encoding = self.headers.get("Content-Encoding")
        accident = self.control.accidents.popleft() if self.control.accidents else ""
        if self._is_refused("events"):
            return
        if accident == "503":
            self._answer(503, {"detail": "the database is away"})
            return
        if accident == "nonsense":
            self._answer(200, ["nonsense"])
            return
        version = int(self.headers[batches.VERSION_HEADER])
        body = gzip.decompress(data) if encoding == "gzip" else data
        batch = batches.decode_batch(body, version)
        self.control.versions.append(version)
        if accident == "held up":
            self._wait()
        try:
            applied = self.control.apply(batch)
        except Exception as error:
            self.control.problem = f"{type(error).__name__}: {error}"
            raise
        self.control.encodings.append(encoding)
        if accident == "no answer":
            self.close_connection = True
            self.connection.close()
            return
        if accident == "slow":
            self._wait()
        self._answer(200, json.loads(batches.encode_applied(applied, version)))

    def _wait(self) -> None:
        with self.control.changed:
            self.control.changed.wait_for(lambda: self.control.is_stopping, WAIT_S)

    def do_GET(self) -> None:
        if self._is_refused("commands"):
            return
        query = parse_qs(urlsplit(self.path).query)
        batch = self.control.commands_after(int(query["after"][0]), float(query["wait"][0]))
        if self.control.is_stopping:
            self.close_connection = True
            return
        if not self._is_refused("commands"):
            self._answer(200, json.loads(batches.encode_commands(batch)))

    def _is_refused(self, what: str) -> bool:
        path = f"/gateway/v1/jobs/job%20one/{what}"
        headers = self.headers
        if urlsplit(self.path).path != path:
            self._answer(404, {"detail": f"{self.path} is not here"})
        elif int(headers[batches.VERSION_HEADER]) > self.control.version:
            told = {"detail": "another version", "schema_version": self.control.version}
            self._answer(400, told)
        elif headers["Authorization"] != f"Bearer {TOKEN}":
            self._answer(401, {"detail": "unknown token"})
        elif self.control.fenced:
            self._answer(409, {"detail": self.control.fenced, "code": "fenced"})
        elif self.control.refusal:
            status, detail = self.control.refusal
            self._answer(status, {"detail": detail})
        elif self.control.busy and what == "events":
            self.control.busy -= 1
            self._answer(503, {"detail": "too many", "code": "too_busy"}, retry_after="1")
        else:
            return False
        return True

    def _answer(self, status: int, told: Any, retry_after: str = "") -> None:
        body = json.dumps(told).encode()
        self.send_response(status)
        if self.control.version > 1:  # The first version did not name it.
            self.send_header(batches.VERSION_HEADER, str(self.control.version))
        if retry_after:
            self.send_header("Retry-After", retry_after)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def control_plane() -> Iterator[StandIn]:
    """A control plane that is there."""
    control = StandIn()
    control.start()
    try:
        yield control
    finally:
        if not control.is_stopping:
            control.stop()
