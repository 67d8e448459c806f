"""The schedule of a round, carried out: each fault in its turn, and the recovery from it.

A fault has *fired* when its process got the signal, or when the disk let no checkpoint complete. It
is *recovered* from when a checkpoint completed that was triggered after it; the attempts that
began until the next fault are the restores that it took. An operation fires when it is accepted,
has ended by its recovery, and may fail only where another fault can be the cause.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass

import psutil

from tests.processes import cut, stopped
from tests.soak.disk import Disk
from tests.soak.job import POLL_S, NoSuchProcess, RefusedError, SoakJob
from tests.soak.place import Place
from tests.soak.schedule import OPERATIONS, Act, Fault, Schedule
from tests.spark.harness import SESSION
from tests.waiting import wait_until

PATIENCE_S = 180.0  # For a checkpoint; a driver's start is most of it.
SIGHT_S = 30.0  # For a process that is just being replaced.
BUSY_A_CORE = 2
NICENESS = 5
# Services let no other process of their user have their descriptors.
CANNOT = frozenset() if os.geteuid() == 0 else frozenset({Act.CUT})


@dataclass(slots=True)
class Struck:
    """One fault of a round, after it."""

    kind: str
    fired: bool = False
    recovered: bool = False
    attempts: int = 0  # Those that began until the next fault, or the recovery.
    told: str = ""  # The reason where it did not fire, or where the operation failed.


class Storm:
    """The faults of one round."""

    def __init__(
        self,
        job: SoakJob,
        place: Place,
        disk: Disk,
        look: Callable[[], None],
        session: str,
    ) -> None:
        self._job = job
        self._place = place
        self._disk = disk
        self._look = look  # At the storage, while no driver runs.
        self._session = session
        self._attempts = 0  # That are set down to a fault.
        self._under_way: list[tuple[str, Struck]] = []  # Operations.
        self.struck: list[Struck] = []

    def run(self, schedule: Schedule) -> None:
        """Carry out every fault, and wait for the recovery from the last one.

        Raises:
            AssertionError: The job did not recover, or an operation failed by itself.
            JobEnded: It ended.
        """
        self._progress(1)
        self._attempts = self._job.seen().attempts
        waiting: list[Struck] = []
        for fault in schedule.faults:
            if not fault.overlaps:
                self._recovered(waiting)
                waiting = []
            self._count_attempts()
            one = Struck(str(fault.kind))
            self.struck.append(one)
            waiting.append(one)
            time.sleep(fault.delay_ms / 1_000)
            try:
                self._strike(fault, one)
            except (NoSuchProcess, RefusedError, psutil.NoSuchProcess) as error:
                one.told = str(error)
        self._recovered(waiting)

    def _recovered(self, waiting: list[Struck]) -> None:
        is_disturbed = any(one.fired and one.kind not in OPERATIONS for one in waiting)
        for operation, one in self._under_way:
            one.told = self._job.end_of(operation)
            assert not one.told or is_disturbed, f"{one.kind} failed by itself: {one.told}"
        self._under_way.clear()
        if waiting:
            # The next one may have been under way when the fault struck; the one after was not.
            self._progress(2)
        for one in waiting:
            one.recovered = one.fired
        self._count_attempts()

    def _count_attempts(self) -> None:
        """Set the new attempts down to the newest fault."""
        before, self._attempts = self._attempts, self._job.seen().attempts
        if self.struck:
            self.struck[-1].attempts += self._attempts - before

    def _progress(self, count: int) -> None:
        """Wait for so many checkpoints more."""
        self._job.await_checkpoints(count, PATIENCE_S)

    def _strike(self, fault: Fault, one: Struck) -> None:
        lasts_s = fault.lasts_ms / 1_000
        match fault.kind.act:
            case Act.KILL:
                self._victim(fault).kill()
                one.fired = True
            case Act.STOP:
                victim = self._victim(fault)
                with stopped(victim.pid):
                    one.fired = victim.status() == psutil.STATUS_STOPPED
                    time.sleep(lasts_s)
            case Act.CUT:
                one.fired = cut(self._victim(fault)) > 0
                one.told = "" if one.fired else "it had no connection"
            case Act.CLOCK:
                self._place.offset.write_text(str(fault.jump_ms))
                self._victim(fault).kill()
                one.fired = True
            case Act.FULL_DISK:
                one.fired = self._held_up(self._disk.full(), lasts_s)
            case Act.REFUSE:
                one.fired = self._held_up(self._disk.refused(), lasts_s)
            case Act.LOAD:
                with _busy(self._session):
                    time.sleep(lasts_s)
                one.fired = True
            case Act.INTERRUPT:
                self._job.mend()
                self._progress(1)  # A driver that has just begun restores nothing yet.
                self._job.interrupt()
                one.fired = True
                self._look()
            case act if act in OPERATIONS:
                self._under_way.append((self._job.ask(fault), one))
                one.fired = True
        if not one.fired:
            one.told = one.told or "nothing was held up by it"

    def _victim(self, fault: Fault) -> psutil.Process:
        """The process that a fault is meant for; one that is being replaced is waited for."""
        missing = NoSuchProcess(f"no {fault.kind.target} came")
        process: psutil.Process | None = None

        def is_there() -> bool:
            nonlocal missing, process
            self._job.mend()
            try:
                process = self._job.process(fault.kind.target, fault.slot)
            except NoSuchProcess as error:
                missing = error
            return process is not None

        try:
            wait_until(is_there, "the process is there", SIGHT_S, POLL_S)
        except AssertionError:
            raise missing from None
        assert process is not None
        return process

    def _held_up(self, held: AbstractContextManager[None], lasts_s: float) -> bool:
        """Whether no checkpoint completed in the second half of the time that the disk was held."""
        with held:
            time.sleep(lasts_s / 2)
            before = self._job.seen().completed
            time.sleep(lasts_s / 2)
            return self._job.seen().completed == before


@contextmanager
def _busy(session: str) -> Iterator[None]:
    """Processes that take more time than the machine has."""
    command = ["nice", "-n", str(NICENESS), sys.executable, "-c", "while True: pass"]
    with ExitStack() as ends:
        for _ in range(BUSY_A_CORE * (os.cpu_count() or 1)):
            process = subprocess.Popen(command, env=os.environ | {SESSION: session})
            ends.callback(process.wait)
            ends.callback(process.kill)
        yield
