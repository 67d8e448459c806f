"""Time-to-live of keyed state: its clock, the form in which entries are kept, their removal.

An entry of state with a time-to-live is kept as a pair of the time of its last touch and its value,
in memory and in snapshots alike. So an entry has, after a restore, as much time left as it had; the
length of the time-to-live belongs to the program, and a restored program may change it. An entry
has expired once that length has passed since its touch.

*Processing time* never runs back within a process: what has expired stays expired. A process whose
clock is behind that of the last one finds touches in its future; the sweep dates them back to now,
so that a clock that once was far ahead lets nothing live for ever.

*Event time* is the watermark or, while timers fire, the time of the timer. A touch has the event
time of its record, but not less than the watermark, nor than the touch before it: a record that is
out of order takes no time from an entry. Before the first watermark and without a record's time an
entry is *undated* and does not expire; the sweep dates it when event time begins. The end of event
time, at the end of the input, expires nothing.

Snapshots leave out what has expired by the time of their barrier.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from weir.common.clock import Clock
from weir.common.typeinfo import ListTypeInfo, MapTypeInfo, TypeInformation
from weir.common.types.expiring import ExpiringTypeInfo
from weir.protocol.elements import MAX_WATERMARK_MS, MIN_WATERMARK_MS
from weir.state.keyed import steady
from weir.state.ttl import StateTtlConfig

if TYPE_CHECKING:
    from weir.state.backends.base import StateTable

UNDATED: Final = MIN_WATERMARK_MS
SLICE_ENTRIES: Final = 2_048  # Looked at in one go: some 0.3 ms.
# A sweep looks at all entries this often: four times in a time-to-live, so that expired entries
# make up a fifth of the state at most, within bounds that keep its cost small.
_SWEEPS_PER_TTL = 4
_INTERVAL_MIN_MS, _INTERVAL_MAX_MS = 1_000, 300_000
_AT_ONCE: Final = 0  # As the time of a slice.


class StateTime:
    """The times of one operator subtask by which its state expires."""

    __slots__ = ("_clock", "_latest_ms", "is_event_time_used", "reached_ms", "record_ms")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._latest_ms = 0
        self.reached_ms = MIN_WATERMARK_MS  # Event time, which the end of the input leaves alone.
        self.record_ms: Callable[[], int | None] = no_record  # Event time of the current record.
        self.is_event_time_used = False

    def processing_ms(self) -> int:
        """Processing time, which does not run back."""
        now_ms = self._clock.now_ms()
        if now_ms > self._latest_ms:
            self._latest_ms = now_ms
        return self._latest_ms

    def on_watermark(self, timestamp_ms: int) -> None:
        """Event time has come to a watermark, or to the time of a timer that fires."""
        if self.reached_ms < timestamp_ms < MAX_WATERMARK_MS:
            self.reached_ms = timestamp_ms


def no_record() -> None:
    """The event time of the current record where there is none."""


@dataclass(frozen=True, slots=True)
class Expiry:
    """The time-to-live of one state in one subtask."""

    time: StateTime
    ttl_ms: int
    by_event_time: bool
    on_read: bool  # Whether reading is a touch.
    returns_expired: bool
    in_background: bool

    @classmethod
    def configured(cls, config: StateTtlConfig, time: StateTime) -> "Expiry":
        """The time-to-live as configured."""
        by_event_time = config.ttl_time_characteristic is config.TtlTimeCharacteristic.EventTime
        time.is_event_time_used |= by_event_time
        return cls(
            time,
            config.ttl_ms,
            by_event_time,
            config.update_type is config.UpdateType.OnReadAndWrite,
            config.state_visibility is config.StateVisibility.ReturnExpiredIfNotCleanedUp,
            config.cleanup_strategies.is_cleanup_in_background(),
        )

    @property
    def domain(self) -> str:
        """The time domain of the times of entries."""
        return "event_time" if self.by_event_time else "processing_time"

    def now_ms(self) -> int:
        """The time by which entries expire."""
        return self.time.reached_ms if self.by_event_time else self.time.processing_ms()

    def limit_ms(self) -> int:
        """The time of the last touch, at or before which an entry that is dated has expired."""
        return self.now_ms() - self.ttl_ms

    def touch(self, before_ms: int = UNDATED) -> int:
        """The time of a touch now, of an entry that was touched before."""
        if not self.by_event_time:
            return self.time.processing_ms()
        record_ms = self.time.record_ms()
        now_ms = max(self.time.reached_ms, before_ms)
        return now_ms if record_ms is None else max(now_ms, record_ms)


def has_expired(touched_ms: int, limit_ms: int) -> bool:
    """Whether an entry has expired by a limit."""
    return UNDATED != touched_ms <= limit_ms


# The form of entries, by the kind of state.


def expiring_type(kind: str, type_info: TypeInformation, domain: str) -> TypeInformation:
    """The type that a state's values have with the times of their entries."""
    match kind, type_info:
        case "list", ListTypeInfo():
            return ListTypeInfo(ExpiringTypeInfo(type_info.element_type, domain))
        case "map", MapTypeInfo():
            return MapTypeInfo(type_info.key_type, ExpiringTypeInfo(type_info.value_type, domain))
        case _:
            return ExpiringTypeInfo(type_info, domain)


def plain_type(kind: str, type_info: TypeInformation) -> tuple[TypeInformation, str | None]:
    """A state's type without times, and the time domain of the times; None: it had none."""
    match kind, type_info:
        case "list", ListTypeInfo(ExpiringTypeInfo(inner, domain), name):
            return ListTypeInfo(inner, name), domain
        case "map", MapTypeInfo(key, ExpiringTypeInfo(inner, domain)):
            return MapTypeInfo(key, inner), domain
        case (("value" | "reducing" | "aggregating"), ExpiringTypeInfo(inner, domain)):
            return inner, domain
        case _:
            return type_info, None


def dated(kind: str, value: Any, touched_ms: int) -> Any:
    """A value of a state with the same time for all its entries."""
    if kind == "list":
        return [(touched_ms, element) for element in value]
    if kind == "map":
        return {key: (touched_ms, entry) for key, entry in value.items()}
    return touched_ms, value


def undated(kind: str, value: Any) -> Any:
    """A value of a state without the times of its entries."""
    if kind == "list":
        return [element for _, element in value]
    if kind == "map":
        return {key: entry for key, (_, entry) in value.items()}
    return value[1]


def redated(kind: str, dates: Any, value: Any) -> Any:
    """A value of a state with the times of another one, whose entries are in the same order."""
    if kind == "list":
        return [
            (touched_ms, element) for (touched_ms, _), element in zip(dates, value, strict=True)
        ]
    if kind == "map":
        times = (touched_ms for touched_ms, _ in dates.values())
        return {key: (at, entry) for at, (key, entry) in zip(times, value.items(), strict=True)}
    return dates[0], value


def live(kind: str, value: Any, limit_ms: int) -> Any:
    """A value without its expired entries, itself unchanged; None: all of it has expired."""
    if kind == "list":
        return [pair for pair in value if not has_expired(pair[0], limit_ms)] or None
    if kind == "map":
        return {k: pair for k, pair in value.items() if not has_expired(pair[0], limit_ms)} or None
    return None if has_expired(value[0], limit_ms) else value


def live_rows(
    kind: str, limit_ms: int, rows: tuple[pa.Array, list[Any], list[Any]]
) -> tuple[pa.Array, list[Any], list[Any]]:
    """Key groups, keys and values of a state without what has expired."""
    groups, keys, values = rows
    kept = [live(kind, value, limit_ms) for value in values]
    if None not in kept:
        return groups, keys, kept
    stays = [value is not None for value in kept]
    return (
        groups.filter(pa.array(np.array(stays, np.bool_))),
        [key for key, stay in zip(keys, stays, strict=True) if stay],
        [value for value in kept if value is not None],
    )


# Removal in the background.


class Sweep:
    """Removes the expired entries of one state, a slice at a time, over and over."""

    def __init__(self, table: "StateTable", expiry: Expiry) -> None:
        self._table = table
        self._expiry = expiry
        interval_ms = expiry.ttl_ms // _SWEEPS_PER_TTL
        self._event_interval_ms = max(1, interval_ms)
        self._interval_ms = min(max(interval_ms, _INTERVAL_MIN_MS), _INTERVAL_MAX_MS)
        self._swept_ms = MIN_WATERMARK_MS  # Event time when the last sweep began.
        self._next_ms = expiry.time.processing_ms() + self._interval_ms
        self._left: Iterator[tuple[int, Any]] | None = None  # None: no sweep is under way.
        self._map: tuple[int, Any] = (0, None)  # The map that is looked at,
        self._entries: Iterator[tuple[Any, Any]] | None = None  # and its entries that are left.

    def due_ms(self) -> int | None:
        """The processing time at which the next slice is due; None: event time has not moved."""
        if self._left is not None:
            return _AT_ONCE
        if not self._expiry.by_event_time:
            return self._next_ms
        passed_ms = self._expiry.time.reached_ms - self._swept_ms
        if passed_ms >= self._event_interval_ms:
            return _AT_ONCE
        return self._next_ms if passed_ms > 0 else None

    def step(self, entries_max: int = SLICE_ENTRIES) -> int:
        """Look at some entries, if a slice is due; returns the number of entries looked at."""
        due_ms = self.due_ms()
        if due_ms is None or due_ms > self._expiry.time.processing_ms():
            return 0
        if self._left is None:
            self._left = self._places()
            self._next_ms = self._expiry.time.processing_ms() + self._interval_ms
            self._swept_ms = self._expiry.time.reached_ms
        times = self._expiry.limit_ms(), self._expiry.now_ms()
        seen = 0
        while seen < entries_max:
            if self._entries is not None:
                seen += self._look_at_map(*times, self._entries, entries_max)
                continue
            place = next(self._left, None)
            if place is None:
                self._left = None
                break
            seen += self._look(*place, *times)
        return seen

    def _places(self) -> Iterator[tuple[int, Any]]:
        """Group and slot of all values."""
        for group in range(len(self._table.tables)):
            for slot in self._table.slots(group):
                yield group, slot

    def _look(self, group: int, slot: Any, limit_ms: int, now_ms: int) -> int:
        """Look at a value, or begin to if it is a map; returns the number of entries."""
        table = self._table
        value = table.tables[group].get(slot)
        if value is None:
            return 1
        if table.kind == "map":
            self._map, self._entries = (group, slot), steady(value.items())
            return 1
        if table.kind == "list":
            pairs = list(value)
            if any(self._is_stale(pair[0], limit_ms, now_ms) for pair in pairs):
                if renewed := self._renewed(pairs, limit_ms, now_ms):
                    table.own(group, slot)[:] = renewed
                else:
                    table.remove(group, slot)
            return len(pairs) + 1
        if self._is_stale(value[0], limit_ms, now_ms):
            if has_expired(value[0], limit_ms):
                table.remove(group, slot)
            else:
                table.put(group, slot, (now_ms, table.own(group, slot)[1]))
        return 1

    def _look_at_map(
        self, limit_ms: int, now_ms: int, entries: Iterator[tuple[Any, Any]], entries_max: int
    ) -> int:
        """Look at the next entries of a map."""
        seen = list(islice(entries, entries_max))
        if not seen:
            self._entries = None
            return 0
        stale = [key for key, pair in seen if self._is_stale(pair[0], limit_ms, now_ms)]
        held = self._table.own(*self._map) if stale else None
        if held is not None:
            for key in stale:
                touched_ms, entry = held.get(key, (now_ms, None))  # It was removed meanwhile.
                if not self._is_stale(touched_ms, limit_ms, now_ms):
                    continue
                if has_expired(touched_ms, limit_ms):
                    del held[key]
                else:
                    held[key] = (now_ms, entry)
            if not held:
                self._table.remove(*self._map)
        return len(seen)

    def _renewed(self, pairs: list[Any], limit_ms: int, now_ms: int) -> list[Any]:
        """The elements of a list that have not expired, with the times that they are to have."""
        return [
            (now_ms, pair[1]) if self._is_stale(pair[0], limit_ms, now_ms) else pair
            for pair in pairs
            if not has_expired(pair[0], limit_ms)
        ]

    def _is_stale(self, touched_ms: int, limit_ms: int, now_ms: int) -> bool:
        """Whether an entry has expired, or is to be dated."""
        if self._expiry.by_event_time:
            return touched_ms <= limit_ms or (touched_ms == UNDATED and now_ms != UNDATED)
        return touched_ms <= limit_ms or touched_ms > now_ms
