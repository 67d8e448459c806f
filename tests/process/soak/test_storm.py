"""Faults of the soak strike real processes and a real disk, and say of each whether it fired."""

import errno
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.processes import cut
from tests.soak import faults
from tests.soak.disk import Disk
from tests.soak.faults import Storm, Struck
from tests.soak.job import NoSuchProcess, RefusedError, Seen, SoakJob
from tests.soak.place import Place
from tests.soak.schedule import Act, Fault, Kind, Schedule, Where
from weir.ids import JobId

SLEEPER = [sys.executable, "-c", "import time; time.sleep(600)"]


class Sleeper(SoakJob):
    """A process in place of a job: each look sees one more checkpoint, each start an attempt."""

    def __init__(self) -> None:
        super().__init__()
        self.completed = 0
        self.attempts = 0
        self.interrupted = 0
        self.asked: list[tuple[Act, int]] = []
        self.failure = ""  # Of its operations.
        self.mend()

    job_id = JobId("sleeper")
    is_finished = False

    @property
    def jvm(self) -> psutil.Process:
        raise NoSuchProcess("there is no JVM")

    def process(self, target: str, slot: int) -> psutil.Process:
        if target == "jvm":
            return self.jvm
        return psutil.Process(self.running.pid)

    def mend(self) -> None:
        if not self.attempts or self.running.poll() is not None:
            self.attempts += 1
            self.running = subprocess.Popen(SLEEPER)

    def interrupt(self) -> None:
        self.interrupted += 1
        self.close()

    def ask(self, fault: Fault) -> str:
        if fault.kind.act is Act.UPGRADE:
            raise RefusedError("another operation is under way")
        self.asked.append((fault.kind.act, fault.parallelism))
        return str(len(self.asked))

    def end_of(self, operation: str) -> str:
        return self.failure

    def close(self) -> None:
        self.running.kill()
        self.running.wait()

    def seen(self) -> Seen:
        self.completed += 1
        return Seen(self.completed, self.attempts)


@pytest.fixture
def job() -> Iterator[Sleeper]:
    sleeper = Sleeper()
    yield sleeper
    sleeper.close()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    small = Disk(tmp_path / "disk")
    try:
        if small.cannot:
            pytest.skip("only root may mount a small file system")
        yield small
    finally:
        small.close()


def schedule(*kinds: Kind, overlaps: bool = False) -> Schedule:
    return Schedule(
        seed=1,
        where=Where.SPARK,
        programs=1,
        interval_ms=300,
        alignment_timeout_ms=None,
        inline_max_bytes=1,
        tolerable_failures=0,
        backend="hashmap",
        is_incremental=False,
        keeps_copies=False,
        retained=1,
        faults=tuple(
            Fault(
                kind=kind,
                delay_ms=1,
                lasts_ms=40,
                slot=0,
                jump_ms=-5_000,
                parallelism=3,
                overlaps=overlaps,
            )
            for kind in kinds
        ),
    )


def storm(job: Sleeper, tmp_path: Path, *kinds: Kind, overlaps: bool = False) -> list[Struck]:
    looks: list[int] = []
    disk = Disk.__new__(Disk)  # Of no fault here.
    one = Storm(job, Place(tmp_path), disk, lambda: looks.append(job.completed), "session")
    one.run(schedule(*kinds, overlaps=overlaps))
    assert len(looks) == job.interrupted
    return one.struck


def test_a_killed_process_is_replaced_and_the_attempts_are_its_faults(
    job: Sleeper, tmp_path: Path
) -> None:
    first = job.running
    kill, interrupt, stop = storm(
        job, tmp_path, Kind(Act.KILL, "driver"), Kind(Act.INTERRUPT, "driver"),
        Kind(Act.STOP, "driver"),
    )  # fmt: skip
    assert first.poll() == -9
    assert (kill.fired, kill.recovered, kill.attempts) == (True, True, 1)
    assert (stop.fired, stop.recovered, stop.attempts) == (True, True, 0)
    assert (interrupt.fired, interrupt.recovered, interrupt.attempts) == (True, True, 1)
    assert job.interrupted == 1
    assert psutil.Process(job.running.pid).status() != psutil.STATUS_STOPPED


def test_a_fault_without_its_process_has_not_fired(
    job: Sleeper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(faults, "SIGHT_S", 0.1)
    (struck,) = storm(job, tmp_path, Kind(Act.KILL, "jvm"))
    assert struck == Struck("kill jvm", told="there is no JVM")


def test_the_connections_of_a_process_are_cut_and_it_lives(job: Sleeper, tmp_path: Path) -> None:
    (struck,) = storm(job, tmp_path, Kind(Act.CUT, "driver"))
    assert struck == Struck("cut driver", recovered=False, told="it had no connection")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        connects = f"import socket; s = socket.create_connection(('127.0.0.1', {port})); s.recv(1)"
        process = subprocess.Popen(
            [sys.executable, "-c", f"{connects}; s.close(); input()"], stdin=subprocess.PIPE
        )
        peer, _ = server.accept()
        with peer, process:
            assert cut(psutil.Process(process.pid)) == 1
            assert peer.recv(1) == b""
            assert process.poll() is None
            process.communicate(b"\n")
            assert process.returncode == 0


def test_a_clock_jumps_with_the_death_of_its_process(job: Sleeper, tmp_path: Path) -> None:
    (struck,) = storm(job, tmp_path, Kind(Act.CLOCK, "worker"))
    assert struck.fired
    assert Place(tmp_path).offset.read_text() == "-5000"
    assert job.attempts == 2


def test_an_operation_is_under_way_until_the_recovery(job: Sleeper, tmp_path: Path) -> None:
    rescale, upgrade, savepoint = storm(
        job, tmp_path, Kind(Act.RESCALE), Kind(Act.UPGRADE), Kind(Act.SAVEPOINT)
    )
    assert job.asked == [(Act.RESCALE, 3), (Act.SAVEPOINT, 3)]
    assert (rescale.fired, rescale.recovered, rescale.told) == (True, True, "")
    assert (savepoint.fired, savepoint.recovered, savepoint.told) == (True, True, "")
    assert upgrade == Struck("upgrade", told="another operation is under way")


def test_an_operation_may_fail_beside_a_fault_and_not_alone(job: Sleeper, tmp_path: Path) -> None:
    job.failure = "failed: its driver was lost"
    kinds = Kind(Act.SAVEPOINT), Kind(Act.KILL, "driver")
    savepoint, kill = storm(job, tmp_path, *kinds, overlaps=True)
    assert (savepoint.recovered, savepoint.told) == (True, "failed: its driver was lost")
    assert (kill.recovered, kill.told) == (True, "")
    for others in (kinds, (kinds[0], Kind(Act.UPGRADE)), (kinds[0], Kind(Act.RESCALE))):
        with pytest.raises(AssertionError, match="savepoint failed by itself: failed: its driver"):
            storm(job, tmp_path, *others, overlaps=others is not kinds)


def test_a_job_that_does_not_recover_is_told(
    job: Sleeper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(faults, "PATIENCE_S", 0.2)
    monkeypatch.setattr(job, "seen", lambda: Seen(7, 1))
    with pytest.raises(AssertionError, match="1 checkpoints after checkpoint 7"):
        storm(job, tmp_path, Kind(Act.KILL, "driver"))


def test_a_full_disk_takes_no_byte_and_has_room_again(disk: Disk) -> None:
    file = disk.path / "state"
    with disk.full(), pytest.raises(OSError, match="No space") as raised:
        file.write_bytes(bytes(1 << 16))
    assert raised.value.errno == errno.ENOSPC
    file.write_bytes(bytes(1 << 16))
    assert [path.name for path in disk.path.iterdir()] == ["state"]


def test_a_disk_that_refuses_may_be_written_to_again(disk: Disk) -> None:
    file = disk.path / "state"
    with disk.refused(), pytest.raises(OSError, match="Read-only") as raised:
        file.write_bytes(b"x")
    assert raised.value.errno == errno.EROFS
    file.write_bytes(b"x")


def test_a_disk_that_holds_nothing_up_has_not_fired(
    disk: Disk, job: Sleeper, tmp_path: Path
) -> None:
    one = Storm(job, Place(tmp_path), disk, lambda: None, "session")
    one.run(schedule(Kind(Act.FULL_DISK)))  # This job completes its checkpoints all the same.
    assert one.struck == [Struck("full disk", told="nothing was held up by it")]


def test_a_disk_is_unmounted(disk: Disk) -> None:
    assert disk.path.is_mount()
    disk.close()
    assert not disk.path.is_mount()
