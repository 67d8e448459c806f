"""Causes that a look at all acknowledgements of a checkpoint shows: skew, slow storage. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from checkpoints.verdict.facts import Ack, Facts, Key, Operator, name_of

# A hash spreads keys within a few percent; twice the middle is a key, or a few, with most records.
SKEW_FACTOR = 2.0
# Fewer are no load, however they are spread.
SKEW_RECORDS_MIN = 200
SKEW_RECORDS_PER_S_MIN = 50
SINCE_BEFORE = "records since the checkpoint before"
# The throughput of one disk in a stream, or of an object store over one connection. A snapshot
# written this fast is slow for its size alone.
GOOD_BYTES_PER_S = 50_000_000.0
# Any storage that works writes less than that in well under a tenth of a second.
SMALL_BYTES = 1_000_000
OWN_PART_SHARE = 0.5  # Of a slot's writing.
OUTLIER_FACTOR = 3.0  # One subtask, slot or disk apart from the others.


@dataclass(frozen=True, slots=True)
class Skew:
    """One subtask of a chain got many times the records of its siblings."""

    key: Key
    factor: float
    own: float
    middle: float  # The median of its siblings.
    unit: str  # "records", those since the checkpoint before, or "records/s".


def skew(facts: Facts, key: Key) -> Skew | None:
    """The skew that explains why a subtask is slow; None: its siblings get as many records.

    Records are counted from the barrier of the checkpoint before to that of this one, of the first
    one from the beginning: of all siblings the same stretch of the stream. In a stretch of time
    some of them may have been blocked by an alignment, and their records wait.
    """
    chain, own_index = key
    since = {
        k[1]: float(n)
        for k, n in facts.records_since.items()
        if k[0] == chain and (k == key or k in facts.acks)  # Others lack what is to come.
    }
    if since.get(own_index, 0.0) >= SKEW_RECORDS_MIN and len(since) > 1:
        return _apart(key, own_index, since, SINCE_BEFORE, SKEW_RECORDS_MIN)
    acked = {k[1]: float(ack.records) for k, ack in facts.acks.items() if k[0] == chain}
    skewed = _apart(key, own_index, acked, "records", SKEW_RECORDS_MIN)
    if skewed is not None or facts.upstream.get(chain):
        return skewed
    rates = {  # Nothing blocks a source.
        k[1]: seen.rates.records_in_per_s
        for k, seen in facts.evidence.subtasks.items()
        if k[0] == chain and seen.rates and seen.rates.records_in_per_s is not None
    }
    return _apart(key, own_index, rates, "records/s", SKEW_RECORDS_PER_S_MIN)


def _apart(
    key: Key, own_index: int, by_index: dict[int, float], unit: str, least: int
) -> Skew | None:
    own = by_index.get(own_index)
    siblings = [records for index, records in by_index.items() if index != own_index]
    if own is None or not siblings or own < least:
        return None
    middle = median(siblings)
    factor = own / max(middle, 1.0)
    return Skew(key, factor, own, middle, unit) if factor >= SKEW_FACTOR else None


@dataclass(frozen=True, slots=True)
class Writing:
    """The writing of the snapshots: the slowest slot, and the others beside it."""

    key: Key  # The subtask whose snapshot was ready last.
    async_ms: float
    slot_bytes: int  # Of its slot: one thread writes for all of a slot, one after the other.
    bytes_per_s: float
    others_bytes_per_s: float | None  # The median of the other slots that wrote a like amount.
    others_async_ms: float | None
    all_bytes: int

    @property
    def is_apart(self) -> bool:
        """Whether one slot, and so one disk or host, is far slower than the others."""
        if self.others_async_ms is None or self.async_ms < OUTLIER_FACTOR * self.others_async_ms:
            return False
        if self.others_bytes_per_s is None:
            return True
        return self.bytes_per_s * OUTLIER_FACTOR <= self.others_bytes_per_s

    @property
    def is_fast(self) -> bool:
        """Whether the throughput was good: then the size takes the time."""
        return self.bytes_per_s >= GOOD_BYTES_PER_S

    @property
    def is_small(self) -> bool:
        """Whether hardly anything was written: then the size does not take the time."""
        return self.slot_bytes < SMALL_BYTES


@dataclass(frozen=True, slots=True)
class OwnPart:
    """The part of one operator that took most of the time in which its slot wrote."""

    key: Key  # Its chain's subtask.
    operator: Operator
    took_ms: float
    others_ms: float | None  # The median of its siblings; None: it has none.

    @property
    def name(self) -> str:
        """The operator's subtask: ``"out-1"``."""
        return name_of((self.operator.uid, self.key[1]))

    @property
    def is_apart(self) -> bool:
        """Whether its siblings were far quicker."""
        return self.others_ms is not None and self.took_ms >= OUTLIER_FACTOR * self.others_ms


def own_part(facts: Facts, key: Key) -> OwnPart | None:
    """The operator whose part took most of a slot's writing; None: none did, or it is not known.

    One thread writes for all of a slot, so a snapshot is late for what is written before it, too.
    """
    parts = [
        (ms, other, uid)
        for other, ack in facts.acks.items()
        if other[1] == key[1]
        for uid, ms in ack.writing_ms.items()
    ]
    if not parts:
        return None
    took_ms, other, uid = max(parts)
    operator = facts.by_uid.get(uid)
    if operator is None or took_ms < OWN_PART_SHARE * facts.acks[key].async_ms:
        return None
    siblings = [
        ack.writing_ms[uid]
        for sibling, ack in facts.acks.items()
        if sibling[0] == other[0] and sibling != other and uid in ack.writing_ms
    ]
    return OwnPart(other, operator, took_ms, median(siblings) if siblings else None)


def writing(facts: Facts, key: Key) -> Writing:
    """The writing of a subtask's slot, compared with the other slots."""
    slots: dict[int, list[Ack]] = {}
    for (_, index), ack in facts.acks.items():
        slots.setdefault(index, []).append(ack)
    rates = {index: _bytes_per_s(acks) for index, acks in slots.items()}
    own = key[1]
    others = [index for index in slots if index != own]
    return Writing(
        key=key,
        async_ms=facts.acks[key].async_ms,
        slot_bytes=sum(ack.written_bytes for ack in slots[own]),
        bytes_per_s=rates[own],
        others_bytes_per_s=median(rates[i] for i in others) if others else None,
        others_async_ms=median(_longest(slots[i]) for i in others) if others else None,
        all_bytes=sum(ack.written_bytes for ack in facts.acks.values()),
    )


def _longest(acks: Iterable[Ack]) -> float:
    return max(ack.async_ms for ack in acks)


def _bytes_per_s(acks: list[Ack]) -> float:
    written = sum(ack.written_bytes for ack in acks)
    return written / max(_longest(acks), 0.1) * 1_000


def siblings_middle(facts: Facts, key: Key, part: str) -> float | None:
    """The median of one duration among the other subtasks of a chain; None: it has no others."""
    others = [
        float(getattr(ack, part))
        for other, ack in facts.acks.items()
        if other[0] == key[0] and other != key
    ]
    return median(others) if others else None
