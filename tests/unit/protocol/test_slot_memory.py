"""The share of a slot in the memory of its cgroup."""

from weir.config import SLOT_MEMORY_BYTES_MIN
from weir.protocol.slot_memory import CgroupMemory, MemoryLimit, MemorySource, SharedCgroups

GB = 1_000_000_000


def memory(limit: int, held: int = 0, cgroup: str = "0:1") -> CgroupMemory:
    return CgroupMemory(cgroup, limit, held)


def shares(*slots: tuple[str, CgroupMemory | None]) -> list[int | None]:
    """The limit of each slot, all of which have registered in this order."""
    cgroups = SharedCgroups()
    for host, its in slots:
        cgroups.registered(host, its)
    limits = [cgroups.share(host, its, slots) for host, its in slots]
    return [None if limit is None else limit.limit_bytes for limit in limits]


def test_slots_divide_what_the_first_of_their_cgroup_met_free() -> None:
    slots = [("a", memory(5 * GB, held)) for held in (1 * GB, 3 * GB)]
    assert shares(*slots) == [2 * GB, 2 * GB]


def test_a_share_says_where_it_comes_from() -> None:
    cgroups = SharedCgroups()
    cgroups.registered("a", memory(GB))
    limit = cgroups.share("a", memory(GB), [("a", memory(GB))])
    assert limit == MemoryLimit(GB, MemorySource.CGROUP)


def test_another_host_or_another_cgroup_is_not_divided() -> None:
    slots = [("a", memory(2 * GB)), ("b", memory(2 * GB)), ("a", memory(3 * GB, cgroup="0:2"))]
    assert shares(*slots) == [2 * GB, 2 * GB, 3 * GB]


def test_a_slot_without_a_cgroup_has_no_limit_and_takes_no_share() -> None:
    assert shares(("a", None), ("a", memory(GB))) == [None, GB]


def test_a_share_that_an_idle_worker_would_exceed_is_no_limit() -> None:
    """A job that runs in a small container is not refused for a limit that no user set."""
    for held, share in ((0, SLOT_MEMORY_BYTES_MIN), (1, None), (GB, None)):
        assert shares(("a", memory(SLOT_MEMORY_BYTES_MIN, held))) == [share]
