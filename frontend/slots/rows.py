"""Slots as values of their page: a summary, and one page of them. Pure, but rows are Django's."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.urls import reverse

from controlplane.base.formatting import NOTHING, iso, listed, moment, number, plural, size
from frontend.graph.state import rate
from frontend.slots.queries import NOTHING_RUNS, Slot, SlotLoad
from jobs.models import Worker
from weir.protocol.slot_memory import MemorySource

Json = dict[str, Any]
Loads = Mapping[int, SlotLoad]

PER_PAGE = 50
CHAINS_NAMED = 6  # Of each slot; the others are counted.
HOSTS_NAMED = 3
CPU_WAIT_NOTED = 0.25  # As in the graph.
MEMORY_NOTED = 0.9  # Of a limit.
SHORT_NAMED = 5  # Of the slots that are short of memory; the others are counted.
_LIMITED_BY = {
    MemorySource.SETTING: "setting",
    MemorySource.CGROUP: "cgroup",
}


@dataclass(frozen=True, slots=True)
class Sort:
    """An order of slots, the largest value first; those without one come last."""

    key: str  # The value in addresses.
    text: str
    value: Callable[[Slot, SlotLoad], float | None] | None = None  # None: by their index.
    needs_loads: bool = False  # Of all slots, not of one page.


SORTS = {
    sort.key: sort
    for sort in (
        Sort("slot", "Slot"),
        Sort("busy", "Busiest", lambda _, load: load.busy, needs_loads=True),
        Sort("wait", "Longest wait for CPU", lambda _, load: load.cpu_wait, needs_loads=True),
        Sort("memory", "Most memory", lambda slot, _: _memory(slot)),
    )
}


def _memory(slot: Slot) -> int | None:
    return None if slot.worker is None else slot.worker.memory_bytes


def _memory_share(slot: Slot) -> float | None:
    """The share of its limit that a slot's worker process holds; None: one of them is not known."""
    limit = None if slot.worker is None else slot.worker.memory_limit_bytes
    held = _memory(slot)
    return None if held is None or not limit else held / limit


def memory_advice(slots: Sequence[Slot], *, is_over: bool) -> str:
    """The advice for slots that are close to the limit of their memory; empty: none is."""
    shares = ((slot, _memory_share(slot)) for slot in slots)
    short = [slot.index for slot, share in shares if share is not None and share > MEMORY_NOTED]
    if is_over or not short:
        return ""
    names = [f"{index:,}" for index in short]
    one = len(short) == 1
    return (
        f"{'Slot' if one else 'Slots'} {listed(names, SHORT_NAMED)} "
        f"{'holds' if one else 'hold'} more than {_percent(MEMORY_NOTED)} of the memory that "
        f"{'it' if one else 'each'} may. Above the limit a worker process ends and the job fails "
        "over. Keep state on local disk (state.backend.type: rocksdb), let it expire (a "
        "time-to-live), spread it over more slots, or raise taskmanager.memory.process.size."
    )


def in_order(slots: Sequence[Slot], sort: Sort, loads: Loads) -> list[Slot]:
    """The slots in the wanted order, equal ones by their index."""
    value = sort.value
    if value is None:
        return list(slots)

    def key(slot: Slot) -> float:
        known = value(slot, loads.get(slot.index, NOTHING_RUNS))
        return float("inf") if known is None else -known

    return sorted(slots, key=key)


def tiles(
    slots: Sequence[Slot], wanted: int | None, driver_load: Mapping[str, float], *, is_over: bool
) -> list[Json]:
    """The number of slots, their hosts and their memory, and the wait of their driver.

    Args:
        driver_load: The driver's ``DriverLoad``; empty: not reported.
    """
    ran_ms, waited_ms = (driver_load.get(name, 0.0) for name in ("ran_ms", "waited_ms"))
    is_known = ran_ms + waited_ms > 0 and not is_over
    hosts = list(dict.fromkeys(slot.host for slot in slots if slot.host))
    known = [(held, slot.index) for slot in slots if (held := _memory(slot)) is not None]
    largest = max(known, default=None)
    return [
        _tile(
            "Slots",
            number(len(slots)),
            "of the last attempt"
            if is_over
            else f"of {wanted:,} that the job needs"
            if wanted is not None
            else "",
        ),
        _tile("Hosts", number(len(hosts)) if hosts else NOTHING, listed(hosts, HOSTS_NAMED)),
        _tile(
            "Memory of workers",
            size(sum(held for held, _ in known)) if known else NOTHING,
            f"at most {size(largest[0])}, in slot {largest[1]:,}" if largest else "not reported",
        ),
        _tile(
            "Driver waits for CPU",
            _percent(waited_ms / (ran_ms + waited_ms) if is_known else None),
            "of the time in which its threads want to run" if is_known else "not reported",
        ),
    ]


def _tile(name: str, value: str, more: str) -> Json:
    return {"name": name, "value": value, "more": more}


def slot_row(
    job_id: str, slot: Slot, load: SlotLoad, chains: Sequence[tuple[str, int]], *, is_over: bool
) -> Json:
    """One slot of the table."""
    worker = slot.worker
    here = [uid for uid, parallelism in chains if parallelism > slot.index]
    share = _memory_share(slot)
    is_short = share is not None and share > MEMORY_NOTED and not is_over
    is_starved = load.cpu_wait is not None and load.cpu_wait >= CPU_WAIT_NOTED and not is_over
    return {
        "key": str(slot.index),
        "anchor": f"slot-{slot.index}",
        "name": f"Slot {slot.index:,}",
        "host": slot.host or NOTHING,
        "process": f"process {worker.pid}" if worker else "no worker process",
        "since": iso(worker.started_at) if worker else "",
        "since_text": moment(worker.started_at) if worker else "",
        "memory": size(_memory(slot)),
        "limit": _limit(worker),
        "memory_label": f"Memory of slot {slot.index:,}",
        "memory_share": round(_bounded(share or 0.0), 3),
        "has_share": share is not None,
        "is_short": "nearly full" if is_short else "",
        "busy": _percent(None if is_over else load.busy),
        "busy_share": 0.0 if is_over or load.busy is None else round(_bounded(load.busy), 3),
        "cpu_wait": _percent(None if is_over else load.cpu_wait),
        "starved": "too few processors" if is_starved else "",
        "cpu_pressure": _percent(None if is_over else load.cpu_pressure),
        "records_in": NOTHING if is_over or load.records_in is None else rate(load.records_in),
        "running": _running(load, is_over=is_over),
        "stuck": plural(load.stuck, "subtask") + " stuck" if load.stuck and not is_over else "",
        "chains": [
            {"name": f"{uid}-{slot.index}", "url": reverse("operator-page", args=[job_id, uid])}
            for uid in here[:CHAINS_NAMED]
        ],
        "more": f"and {len(here) - CHAINS_NAMED:,} more" if len(here) > CHAINS_NAMED else "",
    }


def _limit(worker: Worker | None) -> str:
    """The limit of a worker's memory and its origin."""
    if worker is None:
        return ""
    if worker.memory_limit_bytes is None:
        return "no limit"
    origin = _LIMITED_BY[MemorySource(worker.memory_limit_source)]
    return f"of {size(worker.memory_limit_bytes)} ({origin})"


def _running(load: SlotLoad, *, is_over: bool) -> str:
    if is_over or not load.total:
        return plural(load.total, "subtask")
    if load.running == load.total:
        return f"{plural(load.total, 'subtask')} running"
    return f"{load.running:,} of {plural(load.total, 'subtask')} running"


def _bounded(share: float) -> float:
    return min(max(share, 0.0), 1.0)


def _percent(share: float | None) -> str:
    return NOTHING if share is None else f"{_bounded(share) * 100:.0f}\u00a0%"
