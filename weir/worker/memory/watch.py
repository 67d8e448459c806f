"""The watch over a worker process's memory: above its limit the process ends, and says why.

The kernel's own end is a SIGKILL without a word, of whichever process it picks. So another thread
than the loop, which may be in a long call, reads the memory held. Above the limit all that can
be is given back, the loop's part as soon as the loop has time. If that does not suffice, the
subtask that holds most is reported as failed, and the process ends: what it still allocates would
be too much.

A share of a cgroup's limit that the pipeline's imports alone exceed ends nothing: no user set it,
and pages that a worker shares with its template count in both. A setting does.
"""

import os
import threading
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, Protocol

from weir.common.clock import Clock
from weir.common.sizes import size
from weir.ids import AttemptNumber, SubtaskId
from weir.protocol.lifecycle import SubtaskStatus
from weir.protocol.messages import SubtaskChanged
from weir.protocol.slot_memory import MemoryLimit, MemorySource
from weir.worker.memory.holders import Holder
from weir.worker.ports import Call, Inbox, Reporter
from weir.worker.stacks import write_stderr

EXIT_OVER_LIMIT = 71
LOOK_INTERVAL_NS = 250_000_000
# How long the loop may take until it gives back its part, unless memory grows too much meanwhile.
LOOP_TIMEOUT_S = 1.0
LOOP_POLL_S = 0.05
OVERSHOOT = 1.1  # Of the limit.
HOLDERS_NAMED = 3
HOLDERS_PART = 20  # A state is named that takes no less of the limit.
KEY = "taskmanager.memory.process.size"
_LIMITED_BY = {
    MemorySource.SETTING: KEY,
    MemorySource.CGROUP: f"its share of the cgroup's; {KEY} sets another",
}

REMEDY = f"give its state less memory to take, or raise {KEY}"
_ADVICE = (
    "Keep state on local disk (state.backend.type: rocksdb), let it expire (a time-to-live), "
    f"spread it over more slots (parallelism), or raise the limit ({KEY}). A single value, and the "
    "records of a slice, have to fit into memory with any of these."
)


class HoldsState(Protocol):
    """The parts of ``weir.worker.worker.Worker`` that the watch uses."""

    calling: SubtaskId | None

    def give_back(self) -> None:
        """Move state to disk, where that can be; on the loop's thread."""

    def holders(self) -> Sequence[Holder]:
        """The states in memory, the largest first. From any thread."""


class MemoryWatch:
    """The watch over one worker process; its methods run on the watching thread."""

    def __init__(
        self,
        worker: HoldsState,
        limit: MemoryLimit | None,
        attempt: AttemptNumber,
        first_chain: SubtaskId,
        *,
        held_bytes: Callable[[], int],
        give_back: Callable[[], None],
        inbox: Inbox,
        clock: Clock,
        reporter: Reporter,
        end: Callable[[], NoReturn],
    ) -> None:
        """Measure what the process takes before it has done anything.

        Args:
            limit: None: there is none.
            first_chain: The slot's first subtask, which is blamed where none is known.
            give_back: Gives back to the system what this process does not use.
            end: Ends the process once all reports are written.
        """
        self._worker = worker
        self._limit = limit
        self._attempt = attempt
        self._first_chain = first_chain
        self._held_bytes = held_bytes
        self._give_back = give_back
        self._inbox = inbox
        self._clock = clock
        self._reporter = reporter
        self._end = end
        self._idle_bytes = held_bytes()
        if limit is not None and limit.source is MemorySource.CGROUP:
            self._limit = None if self._idle_bytes > limit.limit_bytes else limit
        self._due_ns = clock.monotonic_ns()

    def look(self) -> None:
        """End the process if it holds more than it may even after it gave back what it can."""
        now = self._clock.monotonic_ns()
        if self._limit is None or now < self._due_ns:
            return
        self._due_ns = now + LOOK_INTERVAL_NS
        if self._held_bytes() <= self._limit.limit_bytes:
            return
        done = threading.Event()
        self._inbox.put(Call(lambda: self._of_loop(done)))
        for _ in range(round(LOOP_TIMEOUT_S / LOOP_POLL_S)):
            if done.wait(LOOP_POLL_S):
                break
            if self._held_bytes() > self._limit.limit_bytes * OVERSHOOT:
                break
        self._give_back()
        held = self._held_bytes()
        if held > self._limit.limit_bytes:
            self._report(held, self._limit)
            self._end()

    def _of_loop(self, done: threading.Event) -> None:
        self._worker.give_back()
        done.set()

    def _report(self, held: int, limit: MemoryLimit) -> None:
        slot = self._first_chain.index
        over = (
            f"the worker process of slot {slot} holds {size(held)} of memory, more than its limit "
            f"of {size(limit.limit_bytes)} ({_LIMITED_BY[limit.source]})"
        )
        if self._idle_bytes > limit.limit_bytes:
            text = (
                f"{over}, and held {size(self._idle_bytes)} before its first record. What the "
                "pipeline imports needs a higher limit"
            )
            chain = self._first_chain
            details: dict[str, Any] = {"restarts_help": False}
        else:
            holders, told = self._holders(limit.limit_bytes // HOLDERS_PART)
            chain = holders[0].subtask if holders else self._worker.calling or self._first_chain
            text = f"{over}. {told} {_ADVICE}"
            details = {"place": f"the memory of slot {slot}", "remedy": REMEDY}
        self._reporter.report(
            SubtaskChanged(self._attempt, chain, SubtaskStatus.FAILED, text, details)
        )
        write_stderr(f"{text}\n")

    def _holders(self, least_bytes: int) -> tuple[Sequence[Holder], str]:
        """The states that take no less, and their words."""
        try:
            holders = [each for each in self._worker.holders() if each.held.bytes >= least_bytes]
        except Exception as error:  # Values are the user's, and the loop may be changing them.
            return (), f"The states in memory cannot be told: {error!r}."
        return holders, _of_holders(holders)


def _of_holders(holders: Sequence[Holder]) -> str:
    """The largest states, as far as they are known."""
    if not holders:
        return (
            "No state in memory takes much of it: the rest is what functions and imports hold, "
            "records under way, and RocksDB's caches."
        )
    named = "; ".join(str(holder) for holder in holders[:HOLDERS_NAMED])
    more = len(holders) - HOLDERS_NAMED
    return f"The largest states in memory: {named}{f'; and {more} more' if more > 0 else ''}."


def end_process(flush: Callable[[], None]) -> NoReturn:
    """End this process once its reports are written."""
    flush()
    os._exit(EXIT_OVER_LIMIT)
