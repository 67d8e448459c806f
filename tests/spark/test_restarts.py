"""Hundreds of restarts in place: nothing grows, nothing is left, nothing is lost."""

import threading
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from tests.spark.functions import Stumbling
from tests.spark.harness import (
    Count,
    Listening,
    collect,
    count,
    environment,
    numbered,
    tagged_union,
    wrong_numbers,
)
from weir.datastream import RestartConfig, RestartStrategyKind
from weir.protocol.events import JobEvent, Recovered, SlotChanged
from weir.spark.cluster import IO_THREAD_NAME, IO_THREADS

pytestmark = [pytest.mark.usefixtures("local")]

RESTARTS = 200
N = 2_000  # Records of each source: one failure in ten records of the left one.
SETTLED = 20  # Restarts after which everything has been loaded and grown to its size.
GROWTH_MAX_BYTES = 8 << 20  # A leak of 50 kB a restart would be 9 MB.


@dataclass(frozen=True, slots=True)
class Usage:
    """The resources that the lasting processes of a slot, and this one, hold."""

    resident_bytes: int
    slot_fds: int
    slot_processes: int
    slot_threads: int
    driver_fds: int
    driver_threads: int
    driver_pool_threads: int


def is_pooled(thread: threading.Thread) -> bool:
    """Whether it is of the driver's pool, which grows when all of it is busy, up to its bound."""
    return thread.name.startswith(IO_THREAD_NAME)


@dataclass(slots=True)
class Measuring:
    """Measures whenever a successor runs."""

    slot: psutil.Process | None = None
    usages: list[Usage] = field(default_factory=list)

    def __call__(self, event: JobEvent) -> None:
        match event:
            case SlotChanged(pid=pid, registered=True):
                self.slot = psutil.Process(pid)
            case Recovered():
                assert self.slot is not None
                (template,) = self.slot.children()
                lasting = [self.slot, template]
                self.usages.append(
                    Usage(
                        resident_bytes=sum(p.memory_full_info().uss for p in lasting),
                        slot_fds=sum(p.num_fds() for p in lasting),
                        slot_processes=len(self.slot.children(recursive=True)),
                        slot_threads=sum(p.num_threads() for p in lasting),
                        driver_fds=psutil.Process().num_fds(),
                        driver_threads=len([t for t in threading.enumerate() if not is_pooled(t)]),
                        driver_pool_threads=len(list(filter(is_pooled, threading.enumerate()))),
                    )
                )


def test_two_hundred_restarts_in_place_leave_nothing(tmp_path: Path) -> None:
    markers = tmp_path / "markers"
    markers.mkdir()
    measuring = Measuring()
    env = environment(tmp_path / "checkpoints", interval_ms=50, parallelism=1)
    env.set_restart_strategy(
        RestartConfig(kind=RestartStrategyKind.FIXED_DELAY, attempts_max=1_000, delay_ms=0)
    )
    stream = tagged_union(env, N, None).map(Stumbling(markers, N // RESTARTS))
    with Listening(measuring):
        result = collect(numbered(stream), "restarts")
    assert count(result.collected, N) == Count(lost=0, duplicated=0, out_of_order=0)
    assert not wrong_numbers(result.collected)
    assert len(list(markers.iterdir())) == RESTARTS
    assert result.history.attempt == RESTARTS + 1

    settled, last = measuring.usages[SETTLED : SETTLED + 10], measuring.usages[-10:]
    for resource in ("slot_fds", "slot_processes", "slot_threads", "driver_fds", "driver_threads"):
        # The least of ten: a thread that is about to end is no leak, and a leak is in all of them.
        before, after = (min(getattr(u, resource) for u in part) for part in (settled, last))
        assert after <= before, f"{resource} grew from {before} to {after}"
    assert all(1 <= u.driver_pool_threads <= IO_THREADS for u in measuring.usages)
    before, after = (min(u.resident_bytes for u in part) for part in (settled, last))
    assert after - before < GROWTH_MAX_BYTES, f"memory grew from {before} to {after}"
