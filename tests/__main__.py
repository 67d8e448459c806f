"""``python -m tests [--fast] [pytest options]``: the suite, in lanes side by side.

A lane is one pytest run, or ``make lint``. ``timeless`` holds what waits as long as it takes (unit,
database, simulation, programs, docs, pages in a browser), on three niced workers. ``spark`` and
``processes`` run against real time, each one test at a time, and have the machine whenever they
want it; there are two of them because they wait for much of their time. ``--fast`` runs unit,
database and simulation alone, with fewer seeds and without what is marked ``whole``. With pytest
options there is one ordinary run of what they ask for.

Every temporary file of a run lies below one directory, which its processes have as ``TMPDIR``. It
is in memory where there is room: simulated jobs take a sixth longer on a disk. What has to be
on a disk is below another one. Ctrl-C is passed on to each lane once; when all have cleaned up, or
at the second Ctrl-C, the processes that still work on the first are killed, and both are removed.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import psutil

from tests import migrated
from tests.processes import processes_of
from tests.waiting import wait_until

NICENESS = 10
FAST_SEEDS = 200
PATIENCE_S = 60.0  # After Ctrl-C, for the lanes to stop their servers.
POLL_S = 0.1
GRACE_S = 5.0  # The JVM of the last Spark session ends after the process that started it.
SLOWEST = 10
COMMAND_LENGTH_MAX = 150
PYTEST = (sys.executable, "-m", "pytest", "-p", "no:cacheprovider")
INTERRUPTED = 128 + signal.SIGINT
PREFIX = "weir-tests-"
MEMORY = Path("/dev/shm")
DISK = Path("/var/tmp")
SCRATCH_BYTES = 8 << 30
TESTS_BYTES = 6 << 30  # What their processes take at most, all together.


@dataclass(frozen=True)
class Lane:
    """One process, a pytest run with these options unless it has another command."""

    name: str
    options: tuple[str, ...]
    nice: int = 0
    command: tuple[str, ...] = (*PYTEST, f"--durations={SLOWEST}")
    interrupt: signal.Signals = signal.SIGINT


# Of tests/process; what is new there goes to the lane of Spark.
TIMELESS_ROOMS = ("controlplane", "deploy", "cli", "deliveries")
EMBEDDED_ROOMS = ("embedded", "packages")
# Tests of one file run in one worker, in their order: they may share a server or a sum. The longest
# files come first.
TIMELESS_OPTIONS = ("--dist", "loadfile", "--no-loadscope-reorder")
TIMELESS = Lane(
    "timeless",
    (
        *("tests/programs", "tests/simulation", "tests/database", "tests/browser"),
        *(f"tests/process/{room}" for room in TIMELESS_ROOMS),
        *("tests/docs", "tests/unit", "-n", "3"),
        *TIMELESS_OPTIONS,
    ),
    NICENESS,
)
FAST = Lane(
    "fast",
    (
        # One worker more than cores: some tests wait for real time.
        *("tests/simulation", "tests/database", "tests/unit", "-m", "not whole", "-n", "3"),
        *TIMELESS_OPTIONS,
    ),
)
# Beside the tests, not before them: it keeps one core busy. At SIGTERM make ends what it runs; at
# SIGINT it waits, for a terminal would have told both.
LINT = Lane("lint", ("--no-print-directory", "lint"), NICENESS, ("make",), signal.SIGTERM)
LANES = (
    LINT,
    Lane(
        "processes",
        (
            *("tests/e2e", "-p", "no:schemathesis"),
            *(f"tests/process/{room}" for room in EMBEDDED_ROOMS),
        ),
    ),
    Lane(
        "spark",
        (
            *("tests/spark", "tests/process", "-p", "no:schemathesis"),
            *(f"--ignore=tests/process/{room}" for room in (*TIMELESS_ROOMS, *EMBEDDED_ROOMS)),
        ),
    ),
    TIMELESS,
)


class Interrupted(Exception):
    """Ctrl-C, or a request to end."""


class Run:
    """The lanes of one run, their processes and reports."""

    def __init__(
        self, lanes: Sequence[Lane], scratch: Path, environment: Mapping[str, str]
    ) -> None:
        self._reports = {lane: scratch / f"{lane.name}.txt" for lane in lanes}
        self._environment = environment
        self._running: dict[Lane, subprocess.Popen[bytes]] = {}
        self._signals = 0

    def start(self) -> None:
        """Begin every lane, apart from the terminal's signals.

        Raises:
            Interrupted: The run was told to end before it began.
        """
        if self._signals:
            raise Interrupted
        for lane, report in self._reports.items():
            with report.open("wb") as output:
                self._running[lane] = subprocess.Popen(
                    [*lane.command, *lane.options],
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    env=self._environment,
                )
            if lane.nice:
                _step_back(self._running[lane].pid, lane.nice)

    def wait(self) -> bool:
        """Report each lane when it ends; whether all passed.

        Raises:
            Interrupted: The lanes were told to end, and have, or had their time.
        """
        passed = True
        deadline = float("inf")
        while self._running:
            for lane, process in list(self._running.items()):
                if (code := process.poll()) is not None:
                    del self._running[lane]
                    passed &= code == 0
                    if not self._signals:
                        self._show(lane, code)
            if self._signals and deadline == float("inf"):
                deadline = time.monotonic() + PATIENCE_S
            if self._signals > 1 or time.monotonic() > deadline:
                break
            time.sleep(POLL_S)
        if self._signals:
            raise Interrupted
        return passed

    def interrupt(self, signal_number: int, frame: FrameType | None) -> None:
        """Pass the first signal on as Ctrl-C; the second ends the waiting."""
        self._signals += 1
        if self._signals == 1:
            print("\nEnding the tests and their servers; Ctrl-C again kills them.", flush=True)
            for lane, process in self._running.items():
                process.send_signal(lane.interrupt)

    def _show(self, lane: Lane, code: int) -> None:
        report = self._reports[lane].read_text(errors="replace").strip()
        lines = report.splitlines()
        if code == 0:  # Its slowest tests and its last line; else all of it.
            begins = [i for i, line in enumerate(lines) if "slowest" in line and "=" in line]
            report = "\n".join(lines[begins[-1] if begins else -1 :])
        print(f"\n{lane.name}: {' '.join(lane.options)}\n{report}", flush=True)


def place_in_memory() -> Path | None:
    """The file system in memory; None where it or memory is small, or it runs no programs.

    A set ``TMPDIR`` is obeyed.
    """
    if "TMPDIR" in os.environ or not MEMORY.is_dir():
        return None
    system = os.statvfs(MEMORY)
    room = min(system.f_bavail * system.f_frsize, psutil.virtual_memory().available - TESTS_BYTES)
    return None if room < SCRATCH_BYTES or system.f_flag & os.ST_NOEXEC else MEMORY


@contextmanager
def own_directory(place: Path) -> Iterator[Path]:
    """A directory for temporary files; other users' servers may pass through it."""
    remove_abandoned(place)
    directory = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=place))
    directory.chmod(0o711)
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def remove_abandoned(place: Path) -> None:
    """Remove the directories of runs that were killed."""
    for directory in place.glob(f"{PREFIX}*"):
        runner = directory.name.removeprefix(PREFIX).partition("-")[0]
        is_left = runner.isdecimal() and not psutil.pid_exists(int(runner))
        if is_left and not processes_of(directory):
            shutil.rmtree(directory, ignore_errors=True)


def _step_back(pid: int, nice: int) -> None:
    """Let a lane have what time the others leave.

    Where Linux groups processes by session (autogroup), a process's niceness counts within its
    session alone; the group has one of its own, which all but root may change ten times a second
    on the whole machine.
    """
    psutil.Process(pid).nice(nice)
    group = Path(f"/proc/{pid}/autogroup")

    def is_changed() -> bool:
        with suppress(BlockingIOError):
            group.write_text(str(nice))
            return True
        return False

    with suppress(FileNotFoundError):  # This kernel does not group them.
        wait_until(is_changed, f"the niceness of {group} is changed")


def sweep(scratch: Path) -> list[str]:
    """Kill the processes of the run that do not end by themselves; their commands."""
    killed = []
    _, left = psutil.wait_procs(processes_of(scratch), timeout=GRACE_S)
    for process in left:
        with suppress(psutil.NoSuchProcess):
            killed.append(f"{process.pid} {' '.join(process.cmdline())[:COMMAND_LENGTH_MAX]}")
            process.kill()
    return killed


def main(options: list[str]) -> int:
    """Run; 1 where anything failed, 130 after Ctrl-C."""
    is_fast = options == ["--fast"]
    if options and not is_fast:
        return subprocess.call([*PYTEST, *options])
    usual = Path(tempfile.gettempdir())
    with (
        own_directory(place_in_memory() or usual) as scratch,
        own_directory(DISK if DISK.is_dir() else usual) as disk,
    ):
        environment = os.environ | {"TMPDIR": str(scratch), "WEIR_TEST_DISK": str(disk)}
        environment["PYTHONDONTWRITEBYTECODE"] = ""  # A run starts hundreds of interpreters.
        if is_fast:
            environment |= {"WEIR_TEST_SEEDS": str(FAST_SEEDS)}
        run = Run([FAST] if is_fast else LANES, scratch, environment)
        for signal_number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(signal_number, run.interrupt)
        try:
            environment[migrated.DIRECTORY] = str(scratch / "migrated")
            run.start()
            print("The lanes run side by side; each is reported when it ends.", flush=True)
            print(f"Temporary files are in {scratch}.", flush=True)
            return int(not run.wait())
        except Interrupted:
            return INTERRUPTED
        finally:
            if left := sweep(scratch):
                print("Killed, for the tests had left them:", *left, sep="\n  ", flush=True)
                time.sleep(POLL_S)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
