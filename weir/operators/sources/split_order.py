"""The unfinished splits of a source subtask: the next one to read, and their watermark.

A *begun* split has been read in part; the others are *fresh*. The splits that one subtask was given
at the first start of the job are a *lane*: it would read them one after the other, so that the
bound on disorder holds along the lane. A rescaled subtask may hold pieces of several lanes, and
several begun splits of one lane. It treats each lane so that no record is late that would have been
on time in the whole lane:

- begun splits are read in turn, and of these the one furthest behind in event time goes first;
- the next fresh split of a lane is begun when no begun split before it in the lane is left, so that
  splits behind it cannot advance event time past its records;
- the watermark is the least one of the begun splits of all lanes, and of the fresh splits whose
  lowest time is known.

Where the lowest times of all splits are known they hold event time back by themselves, and all
splits are one lane. The splits of an endless source are all begun at once.
"""

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from weir.protocol.elements import MAX_WATERMARK_MS, MIN_WATERMARK_MS

if TYPE_CHECKING:
    from weir.operators.sources.split_source import SplitReader

# Endless splits: a split that is ahead is read at least once in so many turns. Else another split
# whose event time stands still, as with a single broken clock, would starve it.
TURNS_MAX = 32


@dataclass(slots=True, eq=False)
class TrackedSplit:
    """A split that has records left to read."""

    split: dict[str, Any]
    position: Any  # Of the next record; None: it is fresh.
    order: int  # Among the splits of its lane, as they were discovered.
    lane: int
    watermark_ms: int = (
        MIN_WATERMARK_MS  # Of its records alone; of a fresh split, a known lower bound.
    )
    reader: "SplitReader | None" = None
    turn: int = 0  # Of its last read.
    silent_since_ms: int | None = None  # The time since which reads have returned no records.
    is_idle: bool = False

    @property
    def item(self) -> dict[str, Any]:
        """The split as a checkpoint keeps it."""
        return {
            "split": self.split,
            "position": self.position,
            "order": self.order,
            "lane": self.lane,
            "watermark_ms": self.watermark_ms,
        }


class SplitOrder:
    """Decides which split is read next.

    ``is_endless`` begins all splits at once. Of begun splits, those more than ``drift_ms`` ahead of
    the one furthest behind are paused; None pauses none.
    """

    def __init__(
        self, splits: Iterable[TrackedSplit], *, is_endless: bool, drift_ms: int | None = None
    ) -> None:
        self.begun: list[TrackedSplit] = []
        self._is_endless = is_endless
        self._drift_ms = drift_ms
        self._turns = 0
        lanes: dict[int, list[TrackedSplit]] = defaultdict(list)
        for split in sorted(splits, key=attrgetter("order")):
            if split.position is not None or is_endless:
                self.begun.append(split)
            else:
                lanes[split.lane].append(split)
        self._lanes = {lane: _Lane(fresh) for lane, fresh in lanes.items()}
        self._begin_due()

    def __bool__(self) -> bool:
        return bool(self.begun)

    def __iter__(self) -> Iterator[TrackedSplit]:
        """All splits, those with a position first: dealing them out then spreads these evenly."""
        fresh = [split for lane in self._lanes.values() for split in lane.fresh]
        return iter(
            sorted([*self.begun, *fresh], key=lambda split: (split.position is None, split.order))
        )

    def readable(self) -> list[TrackedSplit]:
        """The splits that may be read now, in the order in which to read them."""
        if len(self.begun) == 1:
            return self.begun
        ready = sorted(self._unpaused(), key=attrgetter("watermark_ms", "turn"))
        if self._is_endless:
            waiting = min(ready, key=attrgetter("turn"))
            if self._turns - waiting.turn >= TURNS_MAX + len(ready):
                ready.remove(waiting)
                ready.insert(0, waiting)
        return ready

    def took_turn(self, split: TrackedSplit) -> None:
        """Note that the split was read."""
        self._turns += 1
        split.turn = self._turns

    def finish(self, split: TrackedSplit) -> None:
        """Remove the split, which has no records left; the next one of its lane may begin."""
        self.begun.remove(split)
        self._begin_due()

    def watermark_of_others(self, split: TrackedSplit) -> int:
        """The least watermark of all other splits; the end of event time if there are none."""
        least = self._fresh_ms
        for other in self.begun:
            if other.watermark_ms < least and other is not split and not other.is_idle:
                least = other.watermark_ms
        return least

    @property
    def watermark_ms(self) -> int | None:
        """The least watermark of all splits; None: all begun splits are idle."""
        active = [split.watermark_ms for split in self.begun if not split.is_idle]
        return min(*active, self._fresh_ms) if active else None

    def _unpaused(self) -> list[TrackedSplit]:
        if self._drift_ms is None:
            return self.begun
        known = [
            split.watermark_ms
            for split in self.begun
            if split.watermark_ms > MIN_WATERMARK_MS and not split.is_idle
        ]
        limit_ms = min(known, default=MAX_WATERMARK_MS) + self._drift_ms
        return [split for split in self.begun if split.watermark_ms <= limit_ms]

    def _begin_due(self) -> None:
        for key, lane in self._lanes.items():
            before = lane.fresh[0].order
            if not any(split.lane == key and split.order < before for split in self.begun):
                self.begun.append(lane.begin_next())
        self._lanes = {key: lane for key, lane in self._lanes.items() if lane.fresh}
        self._fresh_ms = min(
            (lane.lowest_ms for lane in self._lanes.values()), default=MAX_WATERMARK_MS
        )


class _Lane:
    """The fresh splits of a lane, in order; at least one at first."""

    def __init__(self, fresh: list[TrackedSplit]) -> None:
        self.fresh = deque(fresh)
        known = (
            MAX_WATERMARK_MS if split.watermark_ms == MIN_WATERMARK_MS else split.watermark_ms
            for split in reversed(fresh)
        )
        # The least of each split and those after it; accumulated from the last, then reversed.
        self._lowest_ms = deque(accumulate(known, min))
        self._lowest_ms.reverse()

    @property
    def lowest_ms(self) -> int:
        """The least watermark of splits with a known lowest time; the end of time without any."""
        return self._lowest_ms[0] if self._lowest_ms else MAX_WATERMARK_MS

    def begin_next(self) -> TrackedSplit:
        """Take the next split out of the lane's fresh ones."""
        self._lowest_ms.popleft()
        return self.fresh.popleft()
