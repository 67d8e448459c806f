"""The limit of a worker process's memory: a setting, or a share of its cgroup's limit. Pure.

Where the job has no setting, and the slot's cgroup or one above it has a limit, a worker process
gets ::

    (limit - held) / slots

and no limit where that is less than ``SLOT_MEMORY_BYTES_MIN``: an idle worker would exceed it.

*limit* is the lowest of these cgroups. *held* is what processes of that cgroup held when the first
slot of the job registered from it, files in the page cache not counted: Spark's JVM, mostly, and
the driver where it runs there too. *slots* are those of the job that are registered from it, spare
ones too; slots of other jobs in the same cgroup are not known. A later slot changes the share from
the next attempt on.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from weir.bounds import Count, Word
from weir.config import SLOT_MEMORY_BYTES_MIN

# In the text of a worker's death, behind its signal.
KILLED_FOR_MEMORY = "by the kernel, for the memory of its cgroup ran out"


class MemorySource(StrEnum):
    """The origin of a limit."""

    SETTING = "setting"  # Of the job.
    CGROUP = "cgroup"


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """The memory that a worker process may hold, without what the system can take back."""

    limit_bytes: Count
    source: MemorySource


@dataclass(frozen=True, slots=True)
class CgroupMemory:
    """The cgroup with the lowest limit among a slot's own and those above it."""

    cgroup: Word  # Tells it from all others of its machine.
    limit_bytes: Count
    held_bytes: Count  # By all its processes now, the page cache not counted.


class SharedCgroups:
    """The cgroups of a job's slots: what each held at first, and the slots that share it."""

    def __init__(self) -> None:
        self._held_bytes: dict[tuple[str, str], int] = {}

    def registered(self, host: str, memory: CgroupMemory | None) -> None:
        """A slot registered; the first one of a cgroup tells what others hold."""
        if memory is not None:
            self._held_bytes.setdefault((host, memory.cgroup), memory.held_bytes)

    def share(
        self,
        host: str,
        memory: CgroupMemory | None,
        slots: Iterable[tuple[str, CgroupMemory | None]],
    ) -> MemoryLimit | None:
        """The share of one slot among all that are registered; None: there is no use in one."""
        if memory is None:
            return None
        sharing = sum(
            1
            for its_host, its in slots
            if its is not None and (its_host, its.cgroup) == (host, memory.cgroup)
        )
        share = (memory.limit_bytes - self._held_bytes[host, memory.cgroup]) // sharing
        return None if share < SLOT_MEMORY_BYTES_MIN else MemoryLimit(share, MemorySource.CGROUP)
