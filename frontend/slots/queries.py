"""Queries of the page of slots; their number does not depend on the job's size."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from django.db.models import Count, F, FloatField, Max, Q, Sum
from django.db.models.fields.json import KT
from django.db.models.functions import Cast

from jobs.models import Attempt, Driver, Operator, Subtask, Worker
from weir.protocol.lifecycle import SubtaskStatus


@dataclass(frozen=True, slots=True)
class Slot:
    """A slot that has registered, or in which a worker process was started."""

    index: int
    host: str
    worker: Worker | None  # Of the newest attempt.


@dataclass(frozen=True, slots=True)
class SlotLoad:
    """The subtasks of one slot; shares of the last seconds, 0 to 1, are None while unknown."""

    total: int
    running: int
    stuck: int
    busy: float | None  # Of all its subtasks, which share a loop.
    cpu_wait: float | None
    cpu_pressure: float | None  # Of its host; drivers of some versions report none.
    records_in: float | None


NOTHING_RUNS = SlotLoad(0, 0, 0, None, None, None, None)


def newest_driver(job_id: str) -> Driver | None:
    """The newest driver, in which its slots register."""
    return Driver.objects.filter(job=job_id).order_by("-number").first()


def slots(job_id: str, driver: Driver | None) -> list[Slot]:
    """The slots of the newest driver's newest attempt, in their order. One query."""
    registered = {} if driver is None else {int(at): slot for at, slot in driver.slots.items()}
    newest = Attempt.objects.filter(job=job_id, driver=driver).order_by("-number").values("pk")[:1]
    workers = {row.slot_index: row for row in Worker.objects.filter(attempt__in=newest)}
    return [
        Slot(at, _host(workers.get(at), registered.get(at)), workers.get(at))
        for at in sorted(workers.keys() | registered.keys())
    ]


def _host(worker: Worker | None, registered: Mapping[str, str] | None) -> str:
    if registered is not None:
        return str(registered.get("host", ""))
    return "" if worker is None else worker.host


def _measured(name: str) -> Cast:
    return Cast(KT(f"rates__{name}"), FloatField())


def loads(job_id: str, indices: Sequence[int] | None = None) -> dict[int, SlotLoad]:
    """The subtasks of these slots, or of all, by slot: subtask *i* of a chain runs in slot *i*."""
    subtasks = Subtask.objects.filter(job=job_id)
    if indices is not None:
        subtasks = subtasks.filter(index__in=indices)
    running = Q(status=SubtaskStatus.RUNNING)
    rows = (
        subtasks.order_by()
        .values("index")
        .annotate(
            total=Count("id"),
            running=Count("id", filter=running),
            stuck=Count("id", filter=running & Q(stall__isnull=False)),
            busy=Sum(_measured("busy"), filter=running),
            cpu_wait=Max(_measured("cpu_wait"), filter=running),
            cpu_pressure=Max(_measured("cpu_pressure"), filter=running),
            records_in=Sum(_measured("records_in_per_s"), filter=running),
        )
    )
    return {row.pop("index"): SlotLoad(**row) for row in rows}


def chains(job_id: str) -> list[tuple[str, int]]:
    """The uid of each chain's head and its parallelism, in topological order."""
    heads = Operator.objects.filter(job=job_id, uid=F("chain")).order_by("position")
    return list(heads.values_list("uid", "parallelism"))
