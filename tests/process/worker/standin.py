"""A stand-in for the worker: what runs in the worker processes of these tests.

What it does is said by the job's parameter ``behaviour``; it reports what reached it, so that the
test sees it at the other end of the control connection.
"""

import ctypes
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from weir.common.clock import Clock
from weir.config import JobConfig
from weir.graph.logical import Edge, JobGraph, Operator, Partitioning
from weir.graph.physical import ExecutionGraph
from weir.ids import AttemptNumber, ChannelId, CheckpointId, JobId, OperatorId, SubtaskId
from weir.protocol.deployment import Deploy, StopProcess
from weir.protocol.elements import CheckpointBarrier, Watermark
from weir.protocol.lifecycle import SubtaskStatus
from weir.protocol.messages import SubtaskChanged, TriggerCheckpoint
from weir.secrets import job_secrets
from weir.storage.local_copies import LocalCopies
from weir.storage.store import checksum_of
from weir.worker.memory.holders import Holder
from weir.worker.ports import (
    CommandArrived,
    ConnectionBroken,
    ElementArrived,
    Inbox,
    InboxItem,
    Reporter,
    SnapshotThread,
    Transport,
)

STAND_IN = "tests.process.worker.standin:StandInWorker"


def exchange_graph(parallelism: int = 2) -> JobGraph:
    """A source and a sink, every subtask joined to every other."""
    a, b = OperatorId("a"), OperatorId("b")
    return JobGraph(
        "exchange",
        (
            Operator(a, "a", parallelism, factory=None, is_source=True),
            Operator(b, "b", parallelism, factory=None),
        ),
        (Edge(a, b, Partitioning.HASH),),
    )


class StandInWorker:
    """Sends a watermark over every outgoing channel once deployed; reports what arrives."""

    def __init__(
        self,
        graph: JobGraph,
        config: JobConfig,
        attempt: AttemptNumber,
        job_id: JobId,
        slot_index: int,
        *,
        inbox: Inbox,
        transport: Transport,
        reporter: Reporter,
        snapshot_thread: SnapshotThread,
        clock: Clock,
        cpu_wait_ns: Callable[[], int],
        memory_bytes: Callable[[], int],
        memory_limit_bytes: int | None,
        cpu_pressure_ns: Callable[[], int],
        copies: LocalCopies | None,
        sampled_calls: Callable[[], Any],
        threads_beside: Callable[[], Any],
        aside: Callable[[Callable[[], None]], None],
    ) -> None:
        self.finished = False
        self.calling_since_ns = 0
        self.calling: SubtaskId | None = None
        self._plan = ExecutionGraph(graph)
        self._behaviour = config.parameters.get("behaviour", "")
        self._attempt = attempt
        self._slot_index = slot_index
        self._transport = transport
        self._reporter = reporter
        self._clock = clock
        self._memory_bytes = memory_bytes
        self._memory_limit_bytes = memory_limit_bytes
        self._copies = copies

    def handle(self, item: InboxItem) -> None:
        match item:
            case CommandArrived(Deploy()):
                self._deploy()
            case CommandArrived(StopProcess()):
                self.finished = self._behaviour != "deaf"
            case ElementArrived(channel, Watermark(timestamp_ms)):
                self._tell({"channel": channel, "watermark": timestamp_ms})
            case CommandArrived(TriggerCheckpoint(_, barrier)):
                self._tell({"at_trigger": self._clock.now_ms()})
                for channel in self._sent:
                    self._transport.send(channel, barrier)
            case ElementArrived(_, CheckpointBarrier()):
                self._tell({"at_barrier": self._clock.now_ms()})
            case ConnectionBroken(peer, _):
                self._tell({"broken": peer})
            case _:
                raise AssertionError(f"unexpected message here: {item}")

    def _deploy(self) -> None:
        match self._behaviour:
            case "tell_the_time":
                self._tell({"now_ms": self._clock.now_ms(), "memory": self._memory_bytes()})
            case "tell_the_limit":
                self._tell({"limit": self._memory_limit_bytes})
            case "print":
                print("printed", job_secrets.get_secret("PASSWORD"), flush=True)
                print("complained", job_secrets.get_secret("PASSWORD"), file=sys.stderr, flush=True)
                self._tell({"told": job_secrets.get_secret("PASSWORD")})
                os._exit(3)
            case "raise":
                raise RuntimeError("the stand-in was told to raise")
            case "hold_the_interpreter":
                pow(3, 10**10)  # Takes hours, in one call into C.
            case "wait_for_ever":
                self._tell({"waits": True})
                wait_for_ever()
            case "copy":
                assert self._copies is not None
                left = sorted(os.listdir(self._copies.directory))
                state = f"state {self._attempt}".encode()
                self._copies.put(CheckpointId(1), state, checksum_of(state))
                self._tell({"left": left})
            case "start_a_process":
                self._tell({"child": subprocess.Popen(["sleep", "600"]).pid})
        for channel in self._sent:
            self._transport.send(channel, Watermark(100 + self._slot_index))

    @property
    def _sent(self) -> list[ChannelId]:
        return [c.id for c in self._plan.channels if c.sender.index == self._slot_index]

    def run_once(self) -> float | None:
        return None

    def give_back(self) -> None:
        self._tell({"gave_back": True})

    def holders(self) -> list[Holder]:
        return []

    def close(self) -> None:
        self._tell({"closed": True})

    def _tell(self, details: dict[str, Any]) -> None:
        chain = SubtaskId(OperatorId("a"), self._slot_index)
        self._reporter.report(
            SubtaskChanged(self._attempt, chain, SubtaskStatus.RUNNING, details=details)
        )


def wait_for_ever() -> None:
    """In C, with the interpreter lock released, and never interrupted by a signal's handler."""
    read_end, _ = os.pipe()
    ctypes.CDLL(None).read(read_end, ctypes.create_string_buffer(1), 1)


def linger_once(marker: Path) -> None:
    """Sleep for ever, but where the marker is there already; else it is made."""
    if not marker.exists():
        marker.touch()
        threading.Event().wait()


def fail_once(marker: Path) -> None:
    """Raise where the marker is not there yet, which is made."""
    if not marker.exists():
        marker.touch()
        raise ImportError("the modules are away")


def start_a_thread() -> None:
    """For programs that start a thread while they are loaded."""
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
