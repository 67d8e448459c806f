"""The driver's client of the control plane: events out in batches, commands in by long poll.

Two threads, so that the job never waits for the network. One posts: at once when it has no batch
under way, otherwise all events that came in meanwhile, in one batch; an empty batch is the regular
sign of life. The other polls for commands. While the control plane is away, events wait here, since
none may be lost; of a subtask's measurements only the newest of each kind waits.

A large job has thousands of measurements a second, and its checkpoints wait for acknowledgements.
So measurements go behind all other waiting events, and those of each subtask in turn. Each batch
costs the control plane a transaction, so where only measurements wait, they wait a moment for more.
A ``SubtaskStalled`` keeps its place, and earlier measurements of its subtask stay before it: the
next measurement after it says that the stall is over.

A batch that was sent once keeps its numbers until it is acknowledged, even if the answer was lost:
the control plane may have applied it, and recognises it by them. It also bears the time at which it
was sent, by the control plane's clock: one that waited there for long does not tell what happened
in the job meanwhile.

The meaning of an answer is one table, ``gateway_line.VERDICTS``. A busy control plane is not away:
the same request follows after the pause that it asks for. A request that it calls invalid would be
so again, and the events of a batch cannot be skipped, so the driver ends with the control plane's
words.

A control plane that is away is waited for, for ever unless ``alone_max_s`` says how long: then it
counts as gone for good, and the driver ends, since a job that commits nothing only costs money.
"""

import json
import logging
import random
import threading
import time
from collections import deque
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import Any, Protocol

from weir.common.clock import Clock, SystemClock
from weir.errors import ProtocolError
from weir.ids import SubtaskId
from weir.managed.gateway_line import CONNECT_TIMEOUT_S, GatewayAddress, Line, Verdict, Version
from weir.protocol.driver_messages import (
    BATCH_BYTES_MAX,
    BATCH_EVENTS_MAX,
    DriverCommand,
    DriverEvent,
    DriverLoad,
)
from weir.protocol.messages import (
    AlignmentProgress,
    Measurement,
    SubtaskMetrics,
    SubtaskStalled,
    TriggerCheckpoint,
)
from weir.secrets import job_secrets
from weir.storage.attempt_claims import ManagedClaim
from weir.wire import batches
from weir.worker.cpu_wait import CpuWait, ThreadsLoad
from weir.worker.standstill import Standstills

logger = logging.getLogger(__name__)

HEARTBEAT_S = 1.0  # At most this long between two batches.
WATCH_INTERVAL_S = 0.1
AWAY_S = 2.0  # Without an answer for this long the control plane counts as away.
RETRY_MIN_S, RETRY_MAX_S = 0.1, 2.0
POST_TIMEOUT_S = 15.0
TRY_MAX_S = CONNECT_TIMEOUT_S + POST_TIMEOUT_S + RETRY_MAX_S  # From one try to the next.
POLL_WAIT_S = 25  # The control plane allows 30.
# How long the control plane may answer 401, 403 or 404, as while a proxy in front is being set up
# or a database is being restored. After that no retry repairs it.
UNKNOWN_MAX_S = 60.0
FLUSH_MAX_S = 600.0  # How long a driver whose job ended tries to post its last events.
MEASUREMENTS_GATHERED_S = 0.25
MEASUREMENTS_AT_ONCE = 100  # Alignments of many channels are tens of kilobytes each.
WAITING_WARN = 100_000  # Events, of about a kilobyte each.


class GatewayListener(Protocol):
    """The receiver of the control plane's commands and refusals, on a thread of the gateway."""

    def on_command(self, command: DriverCommand) -> None:
        """The next command, in order, each once."""

    def on_fenced(self, reason: str) -> None:
        """Another driver has the job, or it is over: all further events are refused."""

    def on_refused(self, cause: str) -> None:
        """The control plane refuses the driver's requests, and no retry repairs that."""

    def on_alone(self, cause: str) -> None:
        """No control plane has answered for so long that it counts as gone for good."""


class Gateway:
    """Posts events and polls commands, from ``start`` to ``close``."""

    def __init__(
        self,
        address: GatewayAddress,
        listener: GatewayListener,
        *,
        clock: Clock | None = None,
        heartbeat_s: float = HEARTBEAT_S,
        poll_wait_s: int = POLL_WAIT_S,
        unknown_max_s: float = UNKNOWN_MAX_S,
        alone_max_s: float | None = None,
    ) -> None:
        self._address = address
        self._listener = listener
        self._clock = clock or SystemClock()
        self._load = ThreadsLoad(self._clock)
        self._heartbeat_s = heartbeat_s
        self._poll_wait_s = poll_wait_s
        self._unknown_max_s = unknown_max_s
        self._alone_max_s = alone_max_s
        self._changed = threading.Condition()  # Guards all fields up to the lines.
        self._waiting: dict[int, DriverEvent] = {}  # In order; not sent yet.
        self._behind: dict[int, Measurement] = {}  # Measurements, behind all of those.
        self._newest: dict[tuple[type, SubtaskId], int] = {}  # Keys of waiting measurements.
        self._keys = 0
        self._is_under_way = False  # Some events were taken and are not acknowledged.
        self._trying_since: float | None = None
        self._answered_busy = 0.0  # When, by the monotonic clock.
        self._alone_s = 0.0  # Without any answer, as far as this process was running.
        self._tried = time.monotonic()
        self._has_last = False  # The driver's last event was posted.
        self._is_closing = False
        self._has_ended = False
        self._warned = False
        self._encoded: deque[bytes] = deque()  # The posting thread's: taken, for the next batch.
        self._acknowledged = 0
        self._answered: _Answered | None = None
        self._taken = 0  # The polling thread's: the number of the last command.
        version = Version()
        self._post_line = Line(address, version)
        self._poll_line = Line(address, version)
        self._threads = [
            threading.Thread(target=self._post_batches, name="weir-gateway-post", daemon=True),
            threading.Thread(target=self._poll_commands, name="weir-gateway-poll", daemon=True),
            threading.Thread(target=self._watch, name="weir-gateway-watch", daemon=True),
        ]

    def start(self) -> None:
        """Start posting and polling."""
        for thread in self._threads:
            thread.start()

    @property
    def is_away(self) -> bool:
        """Whether the control plane has not answered for a while."""
        since = self._trying_since
        return since is not None and time.monotonic() - max(since, self._answered_busy) >= AWAY_S

    @property
    def claim(self) -> bytes:
        """The content of the claims of this driver's attempts."""
        address = self._address
        return ManagedClaim.with_token(address.control_plane or address.url, address.token).dump()

    def post(self, event: DriverEvent) -> None:
        """Queue an event for the control plane, behind all posted before; never blocks.

        No value of a secret leaves the driver: they are masked here.

        Measurements may be overtaken by later events. Dropped are only measurements of a subtask
        that newer ones supersede before they were sent, all other events behind the last one, and
        events posted after the gateway has ended.
        """
        self._post(event, is_last=False)

    def post_last(self, event: DriverEvent) -> None:
        """Queue the event that decides how the job continues.

        Behind it only measurements are taken: an acknowledgement that a worker had on its way
        belongs to an attempt that is over.
        """
        self._post(event, is_last=True)

    def _post(self, event: DriverEvent, *, is_last: bool) -> None:
        event = job_secrets.masker().message(event)
        with self._changed:
            if self._has_ended or (self._has_last and not isinstance(event, Measurement)):
                return
            self._has_last |= is_last
            self._put(event)
            if len(self._waiting) >= WAITING_WARN and not self._warned:
                self._warned = True
                logger.warning(
                    "%d events wait for the control plane, and none of them may be dropped; the "
                    "driver's memory grows until it is back",
                    len(self._waiting),
                )
            self._changed.notify_all()

    def _put(self, event: DriverEvent) -> None:
        key = self._keys = self._keys + 1
        if not isinstance(event, Measurement):
            self._waiting[key] = event
            return
        older = self._newest.get((type(event), event.chain))
        if older in self._behind:
            self._behind[older] = event  # Its place, or frequent ones would never be sent.
            return
        if older is not None:
            del self._waiting[older]
        self._newest[type(event), event.chain] = key
        if not isinstance(event, SubtaskStalled):
            self._behind[key] = event
            return
        for kind in (AlignmentProgress, SubtaskMetrics):
            before = self._newest.get((kind, event.chain))
            if before in self._behind:
                self._waiting[before] = self._behind.pop(before)
        self._waiting[key] = event

    def close(self, timeout_s: float = FLUSH_MAX_S) -> bool:
        """Post the last events and end.

        Returns:
            Whether all events were acknowledged; False after ``timeout_s``, or where the control
            plane refused them, or ``end`` was called meanwhile.
        """
        deadline = time.monotonic() + timeout_s
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        self._poll_line.interrupt()
        with self._changed:
            while self._has_work and not self._has_ended:
                left = deadline - time.monotonic()
                if left <= 0:
                    break
                self._changed.wait(left)
            is_flushed = not self._has_work and not self._has_ended
        self.end()
        for thread in self._threads:
            if thread.is_alive() and thread is not threading.current_thread():
                thread.join(CONNECT_TIMEOUT_S + 1)
        return is_flushed

    def end(self) -> None:
        """End at once; waiting events are lost. May be repeated."""
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()
        self._post_line.interrupt()
        self._poll_line.interrupt()

    @property
    def _has_work(self) -> bool:
        return self._has_waiting or self._is_under_way

    @property
    def _is_due(self) -> bool:
        enough = len(self._behind) >= MEASUREMENTS_AT_ONCE
        return bool(self._waiting) or enough or self._is_closing or self._has_ended

    @property
    def _has_waiting(self) -> bool:
        return bool(self._waiting or self._behind)

    def _watch(self) -> None:
        """Note when no thread of this process ran for a while, until the gateway has ended."""
        standstills = Standstills(self._clock, waited_ns=CpuWait().waited_ns)
        while not self._has_ended:
            time.sleep(WATCH_INTERVAL_S)
            if (stood := standstills.look()) is not None:
                self._load.note_standstill(stood.ns)

    # Posting.

    def _post_batches(self) -> None:
        try:
            while (batch := self._next_batch()) is not None:
                self._deliver(batch)
        except ProtocolError as error:
            self._refuse(f"an event has no form on the wire: {error}")
        finally:
            self._post_line.close()

    def _next_batch(self) -> "_Batch | None":
        """Wait for events, or until the next sign of life is due; None: no batch follows."""
        with self._changed:
            if not self._encoded:
                self._is_under_way = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._behind or self._is_due, self._heartbeat_s)
                if self._behind:
                    self._changed.wait_for(lambda: self._is_due, MEASUREMENTS_GATHERED_S)
            if self._has_ended or (
                self._is_closing and not self._has_waiting and not self._encoded
            ):
                return None
        return self._fill()

    def _fill(self) -> "_Batch":
        self._encode(self._waiting, BATCH_EVENTS_MAX)
        # No more measurements than fit now: encoded ones cannot be overtaken any more.
        while sum(map(len, self._encoded)) < BATCH_BYTES_MAX:
            if not self._encode(self._behind, MEASUREMENTS_AT_ONCE):
                break
        batch = _Batch(self._acknowledged + 1)
        size = 0
        while self._encoded and len(batch.events) < BATCH_EVENTS_MAX:
            size += len(self._encoded[0]) + 1
            if batch.events and size > BATCH_BYTES_MAX:
                break
            batch.events.append(self._encoded.popleft())
        return batch

    def _encode(self, waiting: dict[int, Any], at_most: int) -> bool:
        """Encode waiting events, up to a full batch; False: there are none, or no room."""
        with self._changed:
            room = max(0, min(at_most, BATCH_EVENTS_MAX - len(self._encoded)))
            events = [waiting.pop(key) for key in list(islice(waiting, room))]
            for event in events:
                if isinstance(event, Measurement):
                    del self._newest[type(event), event.chain]
            self._warned = self._warned and bool(self._waiting)
            self._is_under_way = bool(events or self._encoded)
        for event in events:
            self._encoded.append(batches.encode_event(event))
        return bool(events)

    def _deliver(self, batch: "_Batch") -> None:
        """Send a batch until it is acknowledged, or the gateway has ended."""
        retry = _Retry()
        self._trying_since = time.monotonic()
        has_warned = False
        while not self._has_ended:
            verdict, answer = self._try(batch)
            self._count_alone(verdict)
            if verdict is Verdict.DONE and not self._note_applied(batch, answer):
                verdict = Verdict.AGAIN
            match verdict:
                case Verdict.DONE if not batch.events:
                    away_s = time.monotonic() - self._trying_since
                    if has_warned:
                        logger.warning("the control plane answers again, after %.1f s", away_s)
                    self._trying_since = None
                    return
                case Verdict.DONE:
                    continue  # Send the rest of the batch.
                case Verdict.BUSY:
                    self._answered_busy = time.monotonic()
                    logger.debug("the control plane is busy: %s", answer)
            self._heed(verdict, answer, retry)
            if self.is_away and not has_warned:
                has_warned = True
                logger.warning("the control plane is away, and the job goes on: %s", answer)
            if self._alone_max_s is not None and self._alone_s >= self._alone_max_s:
                self._give_up(
                    f"no control plane has answered for {self._alone_s:.0f} s, and this driver was "
                    f"told to end after {self._alone_max_s:g} s; the last try: {answer}"
                )
            is_busy = verdict is Verdict.BUSY
            self._pause(self._post_line.busy_s if is_busy else retry.next_s())
            if not batch.events:  # It used no number: add the events that came meanwhile.
                batch = self._fill()

    def _count_alone(self, verdict: Verdict) -> None:
        """Add the time since the last try where this one had no answer."""
        now = time.monotonic()
        since_s, self._tried = now - self._tried, now
        # A process that was stopped for an hour was not alone for that long: it did not ask.
        self._alone_s += min(since_s, TRY_MAX_S)
        if verdict is not Verdict.AGAIN:
            self._alone_s = 0.0

    def _try(self, batch: "_Batch") -> "tuple[Verdict, str]":
        assert self._trying_since is not None
        tried_s = time.monotonic() - self._trying_since
        away_ms = int(tried_s * 1000) if tried_s >= AWAY_S else 0
        sent_at_ms = None if self._answered is None else self._answered.now_ms()
        body = partial(batch.body, away_ms, self._load.measure(), sent_at_ms)
        path = f"{self._address.path}/events"
        return self._post_line.ask("POST", path, POST_TIMEOUT_S, body)

    def _note_applied(self, batch: "_Batch", answer: str) -> bool:
        """Remove acknowledged events from a batch; False: the answer acknowledges none."""
        try:
            applied = batches.decode_applied(answer.encode(), self._post_line.version)
        except ProtocolError as error:  # Perhaps a proxy's answer.
            logger.warning("the control plane's answer cannot be read: %s", error)
            return False
        up_to = applied.up_to
        if applied.at_ms is not None:
            self._answered = _Answered(applied.at_ms)
        if up_to >= batch.next_number:
            self._refuse(
                f"the control plane has events of this driver up to number {up_to}, but this "
                f"process sent only {batch.next_number - 1}: two processes run with the same job "
                "file"
            )
            return True
        if up_to < batch.first_number - 1:
            self._refuse(
                f"the control plane has lost events of this driver: it had acknowledged all up to "
                f"number {batch.first_number - 1} and now acknowledges {up_to}"
            )
            return True
        has_moved = up_to >= batch.first_number or not batch.events
        del batch.events[: up_to - batch.first_number + 1]
        batch.first_number = up_to + 1
        self._acknowledged = up_to
        return has_moved

    def _heed(self, verdict: Verdict, answer: str, retry: "_Retry") -> None:
        """End where the answer fences or refuses this driver, or it stays unknown for long."""
        unknown_s = retry.unknown_s(verdict)
        if verdict is Verdict.FENCED:
            self._fence(answer)
        elif verdict is Verdict.REFUSED or unknown_s >= self._unknown_max_s:
            self._refuse(answer)

    # Polling.

    def _poll_commands(self) -> None:
        try:
            self._poll()
        finally:
            self._poll_line.close()

    def _poll(self) -> None:
        retry = _Retry()
        while not (self._has_ended or self._is_closing):
            asked = time.monotonic()
            path = f"{self._address.path}/commands?after={self._taken}&wait={self._poll_wait_s}"
            verdict, answer = self._poll_line.ask("GET", path, self._poll_wait_s + 10.0)
            if verdict is Verdict.DONE:
                took = self._take(answer)
                if took or time.monotonic() - asked > RETRY_MIN_S:
                    retry = _Retry()
                    continue
            self._heed(verdict, answer, retry)
            is_busy = verdict is Verdict.BUSY
            self._pause(self._poll_line.busy_s if is_busy else retry.next_s())

    def _take(self, answer: str) -> bool:
        """Pass the new commands of an answer to the listener."""
        try:
            json.loads(answer)
        except ValueError as error:  # Perhaps a proxy's answer.
            logger.warning("the control plane's answer cannot be read: %s", error)
            return False
        try:
            batch = batches.decode_commands(answer.encode(), self._poll_line.version)
        except ProtocolError as error:
            self._refuse(f"a command cannot be read: {error}")
            return False
        took = False
        for numbered in batch.commands:
            if numbered.number > self._taken and not self._has_ended:
                self._taken = numbered.number
                self._listener.on_command(self._dated(numbered.command, batch.sent_at_ms))
                took = True
        return took

    def _dated(self, command: DriverCommand, sent_at_ms: int | None) -> DriverCommand:
        """The command, with a trigger's time by this driver's clock, as old as it was when sent."""
        if not isinstance(command, TriggerCheckpoint) or sent_at_ms is None:
            return command
        age_ms = max(0, sent_at_ms - command.barrier.triggered_at_ms)
        barrier = replace(command.barrier, triggered_at_ms=self._clock.now_ms() - age_ms)
        return replace(command, barrier=barrier)

    # Both.

    def _pause(self, seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._has_ended, seconds)

    def _fence(self, reason: str) -> None:
        if self._end_first():
            self._listener.on_fenced(reason)

    def _refuse(self, cause: str) -> None:
        if self._end_first():
            self._listener.on_refused(cause)

    def _give_up(self, cause: str) -> None:
        if self._end_first():
            self._listener.on_alone(cause)

    def _end_first(self) -> bool:
        """End; False: the gateway had ended already, and its listener was told."""
        with self._changed:
            is_first = not self._has_ended
        self.end()
        return is_first


@dataclass(slots=True)
class _Batch:
    first_number: int
    events: list[bytes] = field(default_factory=list)  # As JSON.

    @property
    def next_number(self) -> int:
        """The number after the last of them."""
        return self.first_number + len(self.events)

    def body(
        self, away_ms: int, load: DriverLoad | None, sent_at_ms: int | None, version: int
    ) -> bytes:
        """The wire form of the ``EventBatch`` in this version."""
        first_number, events = self.first_number, self.events
        return batches.encode_batch(first_number, events, away_ms, version, load, sent_at_ms)


@dataclass(frozen=True, slots=True)
class _Answered:
    """The newest answer that told the control plane's time."""

    at_ms: int  # By the control plane's clock.
    heard_s: float = field(default_factory=time.monotonic)

    def now_ms(self) -> int:
        """The control plane's time now: a little less, for the answer was on its way."""
        return self.at_ms + int((time.monotonic() - self.heard_s) * 1000)


class _Retry:
    """Pauses that grow, and differ between the drivers that one outage hit."""

    def __init__(self) -> None:
        self._next_s = RETRY_MIN_S
        self._unknown_since: float | None = None

    def unknown_s(self, verdict: Verdict) -> float:
        """Seconds for which each answer was that the driver is not known; below 0: this is not."""
        now = time.monotonic()
        self._unknown_since = (self._unknown_since or now) if verdict is Verdict.UNKNOWN else None
        return -1.0 if self._unknown_since is None else now - self._unknown_since

    def next_s(self) -> float:
        """The pause before the next try, in seconds."""
        pause_s, self._next_s = self._next_s, min(2 * self._next_s, RETRY_MAX_S)
        return random.uniform(0.5, 1.0) * pause_s
