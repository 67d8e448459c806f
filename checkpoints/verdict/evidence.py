"""The evidence on the subtasks, kept when a checkpoint settles: small for a job of any size.

Acknowledgements say how long everything took, not why. The reason is in what the subtasks were
doing (shares of time, alignments in progress, stalled calls), which their rows hold only until the
next measurement. So a picture of them goes onto the checkpoint as it settles: the means and the
most notable subtasks of each chain, and what those that never acknowledged waited for. A checkpoint
that is under way is judged by the same picture, taken now.

A stalled call is over before its checkpoint can complete, so stalls are noted as they are reported.
"""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import connection

from checkpoints.verdict.facts import (
    Aligning,
    Call,
    ChainSeen,
    CpuWait,
    DriverSeen,
    Evidence,
    Key,
    Rates,
    Seen,
    Stall,
    ThreadsBeside,
    key_of,
    name_of,
)
from controlplane.base import clock
from jobs.models import Job
from weir.protocol.lifecycle import CheckpointStatus, SubtaskStatus
from weir.protocol.messages import SubtaskStalled

Json = dict[str, Any]

# Subtasks measure twice a second. One that has reported nothing for ten measurements, while others
# have, is not just late.
SILENT_MS = 5_000
KEPT_PER_CHAIN = 4  # By each measure: the busiest, and the most back-pressured.
MISSING_KEPT = 32  # Of those that never acknowledged; they are counted beside.
SENDERS_KEPT = 4  # Of the barriers that an alignment waits for.
STALLS_KEPT = 4
CPU_WAIT_KEPT_FROM = 0.05  # Share of a slot's time; less tells of no want of processors.
CPU_PRESSURE_KEPT_FROM = 0.25  # Share of a host's time; any program that begins waits for a moment.
CPU_WAITS_KEPT = 32  # Slots, the largest shares first.
STACK_LENGTH_MAX = 8_000

# Of alignments in progress, as the database stores them. Those of 2,000 subtasks with 1,000
# channels each would take seconds to read, to say the same of each.
ALIGNING_BYTES_READ = 512 << 10

# By index first, so that a large chain does not keep the alignments of another from being read.
_ROWS = """
    SELECT chain, "index", attempt, status, rates::text, stall::text, updated_at,
           CASE WHEN so_far <= %s THEN aligning::text END, so_far > %s AND size IS NOT NULL,
           (metrics ->> 'records_in')::bigint
    FROM (
        SELECT *, sum(size) OVER (ORDER BY "index", chain) AS so_far
        FROM (
            SELECT *, CASE WHEN %s AND (aligning ->> 'checkpoint')::bigint = ANY(%s)
                           THEN pg_column_size(aligning) END AS size
            FROM jobs_subtask
            WHERE job_id = %s
        ) AS sized
    ) AS summed
    ORDER BY chain, "index"
"""


@dataclass(frozen=True, slots=True)
class Row:
    """The columns of a subtask's row that a verdict needs."""

    chain: str
    index: int
    attempt: int
    status: str
    rates: Mapping[str, Any]
    stall: Json | None
    updated_at: datetime
    aligning: Json | None = None
    is_left_out: bool = False  # It aligns, but its alignment was too much to read.
    records: int | None = None

    @property
    def key(self) -> Key:
        """The subtask."""
        return self.chain, self.index

    def aligns(self, number: int) -> bool:
        """Whether the subtask waits for barriers of a checkpoint."""
        return self.is_left_out or bool(self.aligning and self.aligning["checkpoint"] == number)


def rows_of(job_id: str, *, aligning: Collection[int]) -> list[Row]:
    """The rows of a job's subtasks; one query.

    Args:
        aligning: The checkpoints whose alignments are read, ``ALIGNING_BYTES_READ`` of them.
            Without any, the database does not look at alignments.
    """
    most, numbers = ALIGNING_BYTES_READ, list(aligning)
    with connection.cursor() as cursor:
        cursor.execute(_ROWS, [most, most, bool(numbers), numbers, job_id])
        return [_row(*row) for row in cursor.fetchall()]


def _row(
    chain: str,
    index: int,
    attempt: int,
    status: str,
    rates: str,
    stall: str | None,
    updated_at: datetime,
    aligning: str | None,
    is_left_out: bool,
    records: int | None,
) -> Row:
    return Row(
        chain,
        index,
        attempt,
        status,
        json.loads(rates),
        json.loads(stall) if stall else None,
        updated_at,
        json.loads(aligning) if aligning else None,
        is_left_out,
        records,
    )


def take(
    rows: Iterable[Row],
    *,
    number: int,
    attempt: int,
    now_ms: int,
    missing: Collection[Key] = (),
    noted: Json | None = None,
    driver: Json | None = None,
) -> Json:
    """The picture of the subtasks at this moment.

    Args:
        missing: Those that have not acknowledged; one without a row here is passed over.
        noted: What the checkpoint's evidence holds already: stalls.
        driver: The driver's load, as its row has it.
    """
    rows = [row for row in rows if row.attempt == attempt]
    heard_ms = max((clock.to_ms(row.updated_at) for row in rows), default=now_ms)
    standing = {row.index for row in rows if row.stall}
    sent = _senders_of_arrived(rows, number)
    picture = _Picture(number, heard_ms, standing, sent)
    wanted = missing if isinstance(missing, set | frozenset) else set(missing)
    absent = [row for row in rows if row.key in wanted]
    kept = sorted(absent, key=picture.importance)[:MISSING_KEPT]
    shown = {row.key: row for row in _notable(rows)} | {row.key: row for row in kept}
    return {
        "at_ms": now_ms,
        "chains": _chains(rows),
        "subtasks": [
            picture.stored_row(row, is_missing=row.key in wanted) for row in shown.values()
        ],
        "missing": [name_of(row.key) for row in kept],
        "missing_count": len(absent),
        "stalls": (noted or {}).get("stalls", {}),
        "cpu_waits": _cpu_waits(rows),
        "beside": _beside(rows),
        **({"driver": driver} if driver else {}),
    }


@dataclass(frozen=True, slots=True)
class _Picture:
    """All rows together, beside which one subtask's row is judged and stored."""

    number: int  # Of the checkpoint.
    heard_ms: int  # When any of them last reported.
    standing: Collection[int]  # Slots whose loop is held by a call.
    sent: Collection[str]  # Subtasks whose barrier has reached a receiver.

    def stored_row(self, row: Row, *, is_missing: bool) -> Json:
        """One subtask of the picture, as JSON."""
        stored: Json = {"chain": row.chain, "index": row.index, "status": row.status}
        if row.rates:
            stored["rates"] = {
                "busy": round(row.rates["busy"], 3),
                "back_pressured": round(row.rates["back_pressured"], 3),
                "idle": round(row.rates["idle"], 3),
                "records_in_per_s": round(row.rates["records_in_per_s"], 1),
            }
            if calls := row.rates.get("calls"):
                stored["rates"]["calls"] = calls
        if is_missing and row.records is not None:
            stored["records"] = row.records
        if row.stall:
            stored["stall"] = row.stall | {"stack": row.stall["stack"][-STACK_LENGTH_MAX:]}
        if is_missing and row.aligning and row.aligning["checkpoint"] == self.number:
            stored["aligning"] = _aligning(row.aligning)
        if is_missing and name_of(row.key) in self.sent:
            stored["sent_on"] = True
        if (silent_ms := self._silent_ms(row)) is not None:
            stored["silent_ms"] = silent_ms
        return stored

    def _silent_ms(self, row: Row) -> int | None:
        """The time since a subtask last reported, where that is too long."""
        silent_ms = self.heard_ms - clock.to_ms(row.updated_at)
        # While a call holds the loop, the other subtasks of its slot cannot report: it is to blame.
        if row.status != SubtaskStatus.RUNNING or row.index in self.standing:
            return None
        return silent_ms if silent_ms >= SILENT_MS else None

    def importance(self, row: Row) -> tuple[bool, bool, bool, bool, bool, float]:
        """The sort key by which subtasks that explain more come first."""
        return (
            not row.stall,
            self._silent_ms(row) is None and row.status == SubtaskStatus.RUNNING,
            name_of(row.key) not in self.sent,
            row.aligns(self.number),
            row.is_left_out,
            -row.rates["busy"] if row.rates else 0.0,
        )


def _aligning(value: Json) -> Json:
    awaited = [
        sender
        for gate in value["gates"]
        for sender, arrived, ended in zip(
            gate["upstream"], gate["arrived_ms"], gate["ended"], strict=False
        )
        if arrived is None and not ended
    ]
    return {
        "since_ms": value["since_ms"],
        "waited_ms": value["waited_ms"],
        "missing": awaited[:SENDERS_KEPT],
        "missing_count": len(awaited),
    }


def _senders_of_arrived(rows: Iterable[Row], number: int) -> set[str]:
    """Subtasks whose barriers have reached a receiver."""
    senders: set[str] = set()
    for row in rows:
        if row.aligning and row.aligning["checkpoint"] == number:
            for gate in row.aligning["gates"]:
                pairs = zip(gate["upstream"], gate["arrived_ms"], strict=False)
                senders.update(sender for sender, arrived in pairs if arrived is not None)
    return senders


def _notable(rows: Sequence[Row]) -> list[Row]:
    by_chain: dict[str, list[Row]] = {}
    for row in rows:
        by_chain.setdefault(row.chain, []).append(row)
    notable: dict[Key, Row] = {}
    for of_chain in by_chain.values():
        if len(of_chain) <= 2 * KEPT_PER_CHAIN:
            kept = of_chain
        else:
            kept = [
                row
                for share in ("busy", "back_pressured")
                for row in sorted(of_chain, key=lambda r: -r.rates.get(share, -1.0))[
                    :KEPT_PER_CHAIN
                ]
            ]
        notable |= {row.key: row for row in kept}
    stalled = sorted((row for row in rows if row.stall), key=lambda r: -r.stall["stalled_ms"])  # type: ignore[index]
    return list((notable | {row.key: row for row in stalled[:STALLS_KEPT]}).values())


def _chains(rows: Iterable[Row]) -> Json:
    by_chain: dict[str, list[Row]] = {}
    for row in rows:
        by_chain.setdefault(row.chain, []).append(row)
    return {
        chain: {
            "count": len(of_chain),
            **{
                name: _mean([row.rates[name] for row in of_chain if row.rates])
                for name in ("busy", "back_pressured", "records_in_per_s")
            },
        }
        for chain, of_chain in by_chain.items()
    }


def _cpu_waits(rows: Iterable[Row]) -> Json:
    """The slots that waited for a processor, the longest waits of them."""
    slots: dict[int, CpuWait] = {}
    for row in rows:
        if row.rates:
            known = slots.get(row.index, CpuWait(0.0, 0.0))
            slots[row.index] = CpuWait(
                max(known.share, row.rates.get("cpu_wait", 0.0)),
                max(known.busiest, row.rates["busy"]),
                max(known.pressure, row.rates.get("cpu_pressure", 0.0)),
            )
    told = {
        index: wait
        for index, wait in slots.items()
        if wait.share >= CPU_WAIT_KEPT_FROM or wait.pressure >= CPU_PRESSURE_KEPT_FROM
    }
    longest = sorted(told, key=lambda index: (-told[index].share, -told[index].pressure))
    return {
        str(index): {
            "share": round((wait := told[index]).share, 3),
            "busiest": round(wait.busiest, 3),
            **({"pressure": round(wait.pressure, 3)} if wait.pressure else {}),
        }
        for index in longest[:CPU_WAITS_KEPT]
    }


def _beside(rows: Iterable[Row]) -> Json:
    """The threads beside the loops of slots, of those that kept others waiting longest."""
    slots = {row.index: row.rates["beside"] for row in rows if row.rates and "beside" in row.rates}
    longest = sorted(slots, key=lambda index: -slots[index]["lock_wait_ms"])
    return {str(index): slots[index] for index in longest[:CPU_WAITS_KEPT]}


def _mean(values: Sequence[float]) -> float | None:
    return round(sum(values) / len(values), 3) if values else None


# Stalls -------------------------------------------------------------------------------------------


def note_stalls(job: Job, events: Iterable[Any], now_ms: int) -> None:
    """Keep reported stalls on the checkpoints under way; the caller holds the job's lock."""
    stalls = {
        name_of((str(event.chain.operator), event.chain.index)): {
            "since_ms": now_ms - round(event.stalled_ms),  # By this clock, not a worker's.
            "stalled_ms": event.stalled_ms,
            "stack": event.stack[-STACK_LENGTH_MAX:],
        }
        for event in events
        if isinstance(event, SubtaskStalled)
    }
    if not stalls:
        return
    pending = job.checkpoints.filter(status=CheckpointStatus.PENDING)
    for number, known in noted(job, pending.values_list("number", flat=True)).items():
        kept = {"stalls": _longest((known or {}).get("stalls", {}), stalls)}
        pending.filter(number=number).update(evidence=kept)


def noted(job: Job, numbers: Iterable[int]) -> dict[int, Json | None]:
    """The evidence that checkpoints of a job hold so far, by number."""
    rows = job.checkpoints.filter(number__in=numbers)
    return dict(rows.values_list("number", "evidence"))


def _longest(known: Json, new: Json) -> Json:
    for name, stall in new.items():
        before = known.get(name)
        # The same call reported again, or another one that is longer.
        if before is None or before["stalled_ms"] < stall["stalled_ms"]:
            known[name] = stall
    kept = sorted(known, key=lambda name: -known[name]["stalled_ms"])[:STALLS_KEPT]
    return {name: known[name] for name in kept}


# Reading ------------------------------------------------------------------------------------------


def read(value: Json) -> Evidence:
    """The stored picture as values."""
    return Evidence(
        taken_at_ms=value.get("at_ms"),
        chains={chain: ChainSeen(**seen) for chain, seen in value.get("chains", {}).items()},
        subtasks={
            (seen["chain"], seen["index"]): Seen(
                SubtaskStatus(seen["status"]),
                _rates(seen["rates"]) if "rates" in seen else None,
                Aligning(**seen["aligning"]) if "aligning" in seen else None,
                Stall(**seen["stall"]) if "stall" in seen else None,
                seen.get("silent_ms"),
                seen.get("sent_on", False),
                seen.get("records"),
            )
            for seen in value.get("subtasks", ())
        },
        missing=[key_of(name) for name in value.get("missing", ())],
        missing_count=value.get("missing_count", 0),
        stalls={key_of(name): Stall(**stall) for name, stall in value.get("stalls", {}).items()},
        cpu_waits={int(slot): CpuWait(**wait) for slot, wait in value.get("cpu_waits", {}).items()},
        driver=DriverSeen(**value["driver"]) if "driver" in value else None,
        beside={
            int(slot): ThreadsBeside(**beside) for slot, beside in value.get("beside", {}).items()
        },
    )


def _rates(stored: Json) -> Rates:
    calls = [Call(**call) for call in stored.get("calls", ())]
    return Rates(**stored | {"calls": calls})
