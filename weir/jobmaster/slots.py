"""The registered slots of a job, and the place that each slot of the plan has among them.

Slots outlive attempts: a fresh worker process per attempt runs in the same Spark task. A lost slot
registers again after Spark's own retry of the task, or a spare slot takes its place, as it does of
one that cannot run the pipeline.

A slot that runs other versions than the driver is *refused*: no worker runs in it. Its executor is
replaced, after a pause and again as long as slots register that are refused: the next one may run
on another machine, or find the right versions installed meanwhile.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from weir.ids import AttemptNumber
from weir.jobmaster.cluster import Cluster
from weir.jobmaster.workers import HEARD_SHARE
from weir.protocol.deployment import (
    ReleaseSlot,
    SlotRegistered,
    StartWorker,
    StopWorker,
    Versions,
)
from weir.protocol.slot_memory import MemoryLimit, MemorySource, SharedCgroups

REPLACE_AFTER_MS = 30_000


@dataclass(slots=True)
class _Slot:
    registered: SlotRegistered
    heard_at_ms: int
    has_failed: bool = False  # It could not run the pipeline.


@dataclass(frozen=True, slots=True)
class _Refused:
    cause: str
    replaced_at_ms: int


class Slots:
    """The slots by the index that they registered with."""

    def __init__(
        self,
        cluster: Cluster,
        needed: int,
        timeout_ms: int,
        memory_bytes: int | None = None,
    ) -> None:
        """Prepare.

        Args:
            timeout_ms: A slot without a sign of life for so long is silent.
            memory_bytes: The job's setting for each worker process; None: their cgroups' limits.
        """
        self.deadline_ms: int | None = None  # When the attempt fails for want of slots.
        self._cluster = cluster
        self._needed = needed
        self._timeout_ms = timeout_ms
        self._memory_bytes = memory_bytes
        self._cgroups = SharedCgroups()
        self._limits: dict[int, MemoryLimit | None] = {}  # By slot of the plan, of this attempt.
        self._slots: dict[int, _Slot] = {}
        self._refused: dict[int, _Refused] = {}
        self._places: list[int] = []  # Slot of the plan -> registered slot, of this attempt.

    def __len__(self) -> int:
        return len(self._slots)

    def __iter__(self) -> Iterator[int]:
        return iter(self._slots)

    @property
    def are_enough(self) -> bool:
        """Whether as many are registered as the plan needs."""
        return len(self._slots) >= self._needed

    @property
    def were_enough(self) -> bool:
        """Whether an attempt had all of its slots: the cluster has the room for them."""
        return bool(self._places)

    def want(self, timeout_ms: int, *, had_them: bool) -> str:
        """The cause of a failure for want of slots, with advice.

        Args:
            timeout_ms: The time in which they did not come.
            had_them: Whether the job had all of them before.
        """
        lack = (
            f"{len(self)} of {self._needed} slots registered within {timeout_ms} ms; the cluster "
            f"has {self._cluster.core_count()} cores"
        )
        if self._refused:
            return f"{lack}; " + "; ".join(refused.cause for refused in self._refused.values())
        failure = self._cluster.slot_failure()
        failed = f". The newest of their Spark tasks to fail did so {failure}" if failure else ""
        if had_them:
            return (
                f"{lack}. There were enough before: look in the cluster for the executor that it "
                f"has lost and not replaced{failed}"
            )
        if failed:
            return lack + failed
        return (
            f"{lack}. Lower the parallelism, give the cluster more cores "
            f"(local[{self._needed}] on one machine), or raise slots_timeout_ms"
        )

    def find(self, slot_index: int) -> SlotRegistered | None:
        """The registration of a slot; None: there is none, or the slot was lost since."""
        slot = self._slots.get(slot_index)
        return None if slot is None else slot.registered

    def add(self, slot: SlotRegistered, now_ms: int) -> None:
        """A slot registered."""
        self._refused.pop(slot.slot_index, None)
        self._slots[slot.slot_index] = _Slot(slot, now_ms)
        self._cgroups.registered(slot.host, slot.memory)

    @property
    def has_refused(self) -> bool:
        """Whether a slot runs other versions."""
        return bool(self._refused)

    def refuse(self, slot: SlotRegistered, own: Versions, now_ms: int) -> str:
        """A slot registered that runs other versions than the driver's ``own``; the cause."""
        cause = (
            f"slot {slot.slot_index} on {slot.host} runs {_spoken(slot.versions)}, the driver "
            f"{_spoken(own)}; install the same versions on every executor"
        )
        self._refused[slot.slot_index] = _Refused(cause, now_ms + REPLACE_AFTER_MS)
        return cause

    def replace_refused(self, now_ms: int) -> None:
        """Replace the executors of refused slots whose time is over, where slots are missing."""
        if self.are_enough:
            return
        for index, refused in self._refused.items():
            if now_ms >= refused.replaced_at_ms:
                self._refused[index] = _Refused(refused.cause, now_ms + REPLACE_AFTER_MS)
                self._cluster.replace_executor(index)

    def remove(self, slot_index: int) -> SlotRegistered:
        """A slot is lost; its registration."""
        return self._slots.pop(slot_index).registered

    def heard(self, slot_index: int, now_ms: int) -> None:
        """A slot gave a sign of life."""
        if slot := self._slots.get(slot_index):
            slot.heard_at_ms = now_ms

    def silent(self, now_ms: int, workers: Collection[int]) -> Iterator[tuple[int, str]]:
        """The slots that gave no sign of life for too long; the cause of each one's loss.

        Args:
            workers: The slots of the plan whose workers count as gone for the same reason. Where a
                machine is cut off, its slot and its worker were not last heard at the same time.
        """
        suspects = {self._places[worker] for worker in workers}
        for index, slot in list(self._slots.items()):
            silent_ms = now_ms - slot.heard_at_ms
            if silent_ms >= self._timeout_ms * (HEARD_SHARE if index in suspects else 1):
                yield (
                    index,
                    f"slot {index} was silent for {silent_ms} ms: its process is frozen or cut "
                    "off, and is replaced",
                )

    def due_ms(self) -> Iterator[int]:
        """The times at which each slot counts as silent, or its executor is replaced."""
        yield from (slot.heard_at_ms + self._timeout_ms for slot in self._slots.values())
        if not self.are_enough:
            yield from (refused.replaced_at_ms for refused in self._refused.values())

    # Of the current attempt.

    def have_place(self, slot_index: int) -> bool:
        """Whether the attempt's plan uses this slot; a spare is idle."""
        return slot_index in self._places

    def start_workers(self, attempt: AttemptNumber) -> None:
        """Start the worker of each slot of the plan where its last one ran, else in a free slot.

        There lie the copies of its state. At first each has the slot of its own index. Slots that
        could not run the pipeline are taken where there are no others.
        """
        before = self._places or range(self._needed)
        slots = sorted(
            self._slots,
            key=lambda index: (self._slots[index].has_failed, index not in before, index),
        )
        taken = slots[: self._needed]
        free = (index for index in taken if index not in before)
        self._places = [index if index in taken else next(free) for index in before]
        for plan_slot, place in enumerate(self._places):
            limit = self._limits[plan_slot] = self._limit(self._slots[place].registered)
            self._cluster.to_slot(place, StartWorker(attempt, plan_slot, memory=limit))

    def failed(self, slot_index: int) -> None:
        """A slot cannot run the pipeline."""
        if slot := self._slots.get(slot_index):
            slot.has_failed = True

    def memory_limit(self, plan_slot: int) -> MemoryLimit | None:
        """The limit that the worker process of a slot of the plan was started with."""
        return self._limits.get(plan_slot)

    def _limit(self, slot: SlotRegistered) -> MemoryLimit | None:
        if self._memory_bytes is not None:
            return MemoryLimit(self._memory_bytes, MemorySource.SETTING)
        others = [(each.registered.host, each.registered.memory) for each in self._slots.values()]
        return self._cgroups.share(slot.host, slot.memory, others)

    def stop_workers(self, attempt: AttemptNumber) -> None:
        """Have every slot end its worker of this attempt."""
        for index in self._slots:
            self._cluster.to_slot(index, StopWorker(attempt))

    def release(self, why: str) -> None:
        """End every slot."""
        for index in [*self._slots, *self._refused]:
            self._cluster.to_slot(index, ReleaseSlot(why))


def _spoken(versions: Versions) -> str:
    return f"Weir {versions.weir}, Python {versions.python}, pyarrow {versions.pyarrow}"
