"""The limit of a cgroup, what it holds and the kernel's kills, as containers show them."""

from pathlib import Path

import pytest

from weir.protocol.slot_memory import CgroupMemory
from weir.worker.memory.cgroup import Cgroup, find_cgroup

MOUNT_V2 = "30 24 0:26 {top} /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
MOUNT_V1 = "35 31 0:32 {top} /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
OTHERS_V1 = (
    "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
    "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
)
NONE_V1 = "9223372036854771712"


class Machine:
    """A root directory with ``/proc`` and ``/sys/fs/cgroup``."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "proc/self").mkdir(parents=True)

    def process(self, cgroup: str, mountinfo: str) -> None:
        (self.root / "proc/self/cgroup").write_text(cgroup)
        (self.root / "proc/self/mountinfo").write_text(mountinfo)

    def v2(self, path: str, limit: str | None, *, anon: int = 0, kills: int = 0) -> Path:
        at = self.root / "sys/fs/cgroup" / path
        at.mkdir(parents=True, exist_ok=True)
        if limit is not None:
            (at / "memory.max").write_text(f"{limit}\n")
        (at / "memory.stat").write_text(f"anon {anon}\nfile 999999\nshmem 7\n")
        (at / "memory.events").write_text(f"low 0\noom 4\noom_kill {kills}\noom_group_kill 0\n")
        return at

    def v1(self, path: str, limit: str, *, rss: int = 0, kills: int = 0) -> Path:
        at = self.root / "sys/fs/cgroup/memory" / path
        at.mkdir(parents=True, exist_ok=True)
        (at / "memory.limit_in_bytes").write_text(f"{limit}\n")
        (at / "memory.stat").write_text(f"rss 1\ntotal_cache 99\ntotal_rss {rss}\ntotal_shmem 5\n")
        (at / "memory.oom_control").write_text(
            f"oom_kill_disable 0\nunder_oom 0\noom_kill {kills}\n"
        )
        return at

    @property
    def cgroup(self) -> Cgroup:
        cgroup = find_cgroup(self.root)
        assert cgroup is not None
        return cgroup


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def known(at: Path, limit: int, held: int) -> CgroupMemory:
    return CgroupMemory(f"{at.stat().st_dev}:{at.stat().st_ino}", limit, held)


def test_in_a_container_of_version_2_the_mounted_directory_is_its_own(machine: Machine) -> None:
    machine.process("0::/\n", MOUNT_V2.format(top="/"))
    at = machine.v2(".", "5000000", anon=100, kills=3)
    assert machine.cgroup.memory() == known(at, 5_000_000, 107)
    assert machine.cgroup.kills() == 3


def test_the_lowest_limit_counts_with_what_is_held_there(machine: Machine) -> None:
    machine.process("0::/spark/executor/worker\n", MOUNT_V2.format(top="/"))
    machine.v2(".", None)
    machine.v2("spark", "9000", anon=800)
    at = machine.v2("spark/executor", "4000", anon=300, kills=9)
    machine.v2("spark/executor/worker", "max", anon=200, kills=2)
    assert machine.cgroup.memory() == known(at, 4_000, 307)
    assert machine.cgroup.kills() == 2  # Of its own: others may have been killed above.


def test_without_any_limit_there_is_none(machine: Machine) -> None:
    machine.process("0::/user\n", MOUNT_V2.format(top="/"))
    machine.v2(".", None)
    machine.v2("user", "max", kills=1)
    assert machine.cgroup.memory() is None
    assert machine.cgroup.kills() == 1


def test_version_1_is_read_where_it_has_the_memory(machine: Machine) -> None:
    machine.process(
        "9:name=systemd:/\n4:cpu,memory:/job/7\n0::/\n", OTHERS_V1 + MOUNT_V1.format(top="/")
    )
    (machine.root / "sys/fs/cgroup/unified").mkdir(parents=True)
    machine.v1(".", NONE_V1)
    machine.v1("job", "3000")
    at = machine.v1("job/7", "2000", rss=40, kills=6)
    assert machine.cgroup.memory() == known(at, 2_000, 45)
    assert machine.cgroup.kills() == 6


def test_the_largest_number_of_version_1_is_no_limit(machine: Machine) -> None:
    machine.process("4:memory:/\n", MOUNT_V1.format(top="/"))
    machine.v1(".", NONE_V1)
    assert machine.cgroup.memory() is None


def test_a_container_that_sees_the_path_of_its_host_has_its_own_directory_mounted(
    machine: Machine,
) -> None:
    machine.process("4:memory:/docker/f00\n", MOUNT_V1.format(top="/docker/f00"))
    at = machine.v1(".", "1234")
    assert machine.cgroup.memory() == known(at, 1_234, 5)


def test_a_path_outside_of_what_is_mounted_means_the_mounted_directory(machine: Machine) -> None:
    machine.process("0::/../other\n", MOUNT_V2.format(top="/pod"))
    at = machine.v2(".", "777")
    assert machine.cgroup.memory() == known(at, 777, 7)


def test_a_mount_point_with_a_blank_is_found(machine: Machine) -> None:
    mount = MOUNT_V2.format(top="/").replace("/sys/fs/cgroup", r"/sys/fs/c\040group")
    machine.process("0::/\n", mount)
    at = machine.v2("../c group", "777")
    assert machine.cgroup.memory() == known(at, 777, 7)


def test_a_system_without_cgroups_has_none(tmp_path: Path) -> None:
    assert find_cgroup(tmp_path) is None


def test_a_file_that_is_gone_later_ends_nothing(machine: Machine) -> None:
    machine.process("0::/\n", MOUNT_V2.format(top="/"))
    at = machine.v2(".", "777", kills=3)
    cgroup = machine.cgroup
    for name in ("memory.max", "memory.events"):
        (at / name).unlink()
    assert (cgroup.memory(), cgroup.kills()) == (None, 0)
