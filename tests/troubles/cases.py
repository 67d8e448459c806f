"""The troubles: what is done to the job, and what its verdict has to name."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tests.e2e.plane import SETTLE_S, PlaneJob, wait_for
from tests.processes import stopped

LONG_MS = 1_000  # What a checkpoint takes that a trouble has hit.
RATES_S = 2.5  # Shares of time are of the last two seconds; after that they are the trouble's.
PAUSE_S = 4.0
LOST_S = 60.0
SOON_S = 15.0
TRIES = 3
BUSY = "while True: pass"

Json = dict[str, Any]


@dataclass(frozen=True)
class Run:
    """The job under trouble."""

    job: PlaneJob
    switches: Path

    def verdict(self, number: int) -> Json:
        answer: Json = self.job.get(f"checkpoints/{number}/verdict")
        return answer

    @contextmanager
    def on(self, name: str) -> Iterator[None]:
        """One switch, from now until the end of the block."""
        (self.switches / name).touch()
        try:
            yield
        finally:
            (self.switches / name).unlink(missing_ok=True)

    def long_one(self, beyond: int, within_s: float = SETTLE_S) -> Json:
        """The verdict on the first completed checkpoint beyond another that took long."""

        def find_long() -> int:
            completed = self.job.checkpoints(status="completed")
            long = [c for c in completed if c["number"] > beyond and c["duration_ms"] >= LONG_MS]
            return min((int(c["number"]) for c in long), default=0)

        return self.verdict(int(wait_for(find_long, "a checkpoint that took long", within_s)))

    def late_one(self, after_s: float) -> Json:
        """The verdict on the checkpoint that is under way so long after now."""
        time.sleep(after_s)

        def under_way() -> int:
            newest = self.job.checkpoints()[:1]
            return next((int(c["number"]) for c in newest if c["settled_at"] is None), 0)

        return self.verdict(int(wait_for(under_way, "a checkpoint under way")))

    def failed_one(self, beyond: int) -> Json:
        """The verdict on the first failed checkpoint beyond another."""

        def find_failed() -> int:
            failed = self.job.checkpoints(status="failed")
            return min((int(c["number"]) for c in failed if c["number"] > beyond), default=0)

        return self.verdict(int(wait_for(find_failed, "a failed checkpoint", LOST_S)))

    def newest(self) -> int:
        """The number of the newest checkpoint of any status."""
        return max((int(c["number"]) for c in self.job.checkpoints()), default=0)

    def settled(self) -> int:
        """The number of the newest checkpoint that has settled."""
        settled = (int(c["number"]) for c in self.job.checkpoints() if c["settled_at"])
        return max(settled, default=0)

    def await_calm(self) -> None:
        """Wait until the job completes checkpoints at its usual pace again."""

        def calm() -> bool:
            completed = self.job.checkpoints(status="completed")[:3]
            newest = self.newest()
            is_new = bool(completed) and newest - completed[0]["number"] <= 1
            return is_new and all(c["duration_ms"] < LONG_MS / 2 for c in completed)

        with suppress(AssertionError):  # A host under load is never calm.
            wait_for(calm, "quick checkpoints", 30.0)


@dataclass(frozen=True)
class Trouble:
    """One trouble; the verdict is right if its headline has ``names`` and none of ``not_``."""

    name: str
    expected: str
    names: str  # A regular expression for the headline.
    do: Callable[[Run], Json]
    not_: str = r"network|no culprit"

    def judged(self, verdict: Json) -> str:
        """``right``; ``unsure``, where no culprit was claimed; else ``wrong``."""
        said = " ".join([verdict["headline"], *verdict["advice"]])
        if re.search(self.names, verdict["headline"]) and not re.search(self.not_, said):
            return "right"
        claims = verdict["cause"] not in (None, "channel") and verdict["culprits"]
        return "wrong" if claims else "unsure"


def switched(name: str) -> Callable[[Run], Json]:
    """A trouble that lasts."""

    def do(run: Run) -> Json:
        with run.on(name):
            time.sleep(RATES_S)
            return run.long_one(run.newest())

    return do


def once(name: str) -> Callable[[Run], Json]:
    """A call that the job takes up once; told when its checkpoint is over."""

    def do(run: Run) -> Json:
        with run.on(name):
            taken = run.switches / name
            wait_for(lambda: not taken.exists(), "the call")
            return run.long_one(run.settled())

    return do


def calm(run: Run) -> Json:
    """No trouble."""
    return run.verdict(run.job.await_completed(beyond=run.newest()))


def hung(run: Run) -> Json:
    """A call that does not return within the checkpoint's time."""
    before = run.settled()
    with run.on("hang"):
        return run.failed_one(before)


@contextmanager
def busy_loops(count: int) -> Iterator[None]:
    """Programs that want a processor each; the system shares it out equally between sessions."""
    loops = [
        subprocess.Popen([sys.executable, "-c", BUSY], start_new_session=True) for _ in range(count)
    ]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def storage_full(run: Run) -> Json:
    """Snapshots cannot be written."""
    before = run.settled()
    with run.on("full"):
        return run.failed_one(before)


def slot_paused(run: Run) -> Json:
    """A slot's process stands still for some seconds."""
    with stopped(run.job.worker_pid):
        time.sleep(PAUSE_S)
        before = run.settled()
    return run.long_one(before)


def slot_frozen(run: Run) -> Json:
    """The same, while it lasts."""
    with stopped(run.job.worker_pid):
        return run.late_one(7.0)


def slot_lost(run: Run) -> Json:
    """The same, until it is replaced."""
    before = run.settled()
    with stopped(run.job.worker_pid):
        return run.failed_one(before)


def slot_killed(run: Run) -> Json:
    """A slot's process is killed."""
    pid, before = run.job.worker_pid, run.settled()
    run.job.await_pending()
    os.kill(pid, signal.SIGKILL)
    return run.failed_one(before)


def driver_paused(run: Run) -> Json:
    """The driver stands still for some seconds; again if no checkpoint was under way then."""
    for _ in range(TRIES):
        with stopped(run.job.python_driver.pid):
            time.sleep(PAUSE_S)
            before = run.settled()
        with suppress(AssertionError):
            return run.long_one(before, SOON_S)
    raise AssertionError("no checkpoint took long")


def driver_frozen(run: Run) -> Json:
    """The same, while it lasts."""
    with stopped(run.job.python_driver.pid):
        return run.late_one(6.5)


def driver_lost(run: Run) -> Json:
    """The same, until it is replaced."""
    pid, before = run.job.python_driver.pid, run.settled()
    run.job.await_pending()
    with stopped(pid):
        return run.failed_one(before)


def driver_killed(run: Run) -> Json:
    """The driver and its JVM are killed."""
    session, before = run.job.session, run.settled()
    run.job.await_pending()
    for process in reversed(session):
        with suppress(psutil.NoSuchProcess):
            process.kill()
    return run.failed_one(before)


TROUBLES = (
    Trouble("none", "all is well", r"^All is well", calm),
    Trouble("one subtask sleeps in each record", "work-1", r"^work-1 was slow", switched("slow")),
    Trouble(
        "the second operator of a chain computes",
        "Enrich and its line",
        r"(most of it|worked most) in burn \(pipeline\.py:\d+\) of Enrich",
        switched("enrich_busy"),
    ),
    Trouble(
        "the second operator of the sources computes",
        "Parse and its line",
        r"(most of it|worked most) in burn \(pipeline\.py:\d+\) of Parse",
        switched("parse_busy"),
    ),
    Trouble(
        "two operators sleep in each record",
        "work-1 and audit-0",
        r"^Two operators were slow, .*(work-1.*audit-0|audit-0.*work-1)",
        switched("both"),
    ),
    Trouble("all records have one key", "the skew", r"^work-\d .*records", switched("skewed")),
    Trouble("a call sleeps", "the call", r"^work-1 was stuck in look_up_rates", once("sleep")),
    Trouble(
        "a call waits for a socket",
        "the call",
        r"^work-1 was stuck in await_answer",
        once("socket"),
    ),
    Trouble("a call computes for long", "the call", r"^work-1 was stuck in burn", once("compute")),
    Trouble(
        "a call into C keeps the interpreter lock",
        "slot 1",
        r"^work-1 was stuck in (a call into C|hold_the_interpreter)",
        once("lock"),
    ),
    Trouble("a call hangs", "the call", r"work-1 was stuck in await_lock", hung),
    Trouble(
        "the checkpoint storage is slow",
        "the storage",
        r"[Tt]he checkpoint storage was slow",
        switched("storage"),
    ),
    Trouble(
        "the storage is slow for one slot",
        "slot 1's storage",
        r"[Tt]he storage was slow for (work|audit|numbers)-1 alone",
        switched("one_storage"),
    ),
    Trouble(
        "a sink's files are slow to sync",
        "the sink",
        r"[Tt]he storage of the sink Orders",
        switched("sink"),
    ),
    Trouble("the storage is full", "the storage", r"No space left", storage_full),
    Trouble(
        "threads of the job compute in one slot",
        "slot 1 and its threads",
        r"[Tt]hreads of the job's own code .*slot 1.*burn \(pipeline\.py:\d+\)",
        switched("threads"),
    ),
    Trouble(
        "a sink of the job's own flushes for long at barriers",
        "audit-0 and its flush",
        r"audit-0 .*flush",
        switched("flush"),
    ),
    Trouble("a slot stands still for 4 s", "slot 0", r"[Ss]lot 0|-0 was frozen", slot_paused),
    Trouble("a slot is frozen, now", "slot 0 is frozen", r"slot 0 .*is frozen", slot_frozen),
    Trouble("a slot was frozen and replaced", "slot 0", r"slot 0 .*frozen", slot_lost),
    Trouble("a slot was killed", "slot 0", r"slot 0 .*(ended|gone)", slot_killed),
    Trouble(
        "the driver stands still for 4 s",
        "the driver",
        r"[Tt]he driver (was frozen|sent the trigger late)",
        driver_paused,
    ),
    Trouble("the driver is frozen, now", "the driver", r"the driver is frozen", driver_frozen),
    Trouble("the driver was frozen and replaced", "the driver", r"driver .*frozen", driver_lost),
    Trouble("the driver was killed", "the driver", r"driver's process .* ended", driver_killed),
)
