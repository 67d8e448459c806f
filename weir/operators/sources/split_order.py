"""The unfinished splits of a source subtask: whose turn it is, and how far event time has come.

A *begun* split has been read in part; the others are *fresh*. The splits that one subtask was given
at the first start of the job are a *lane*: it would read them one after the other, so that the
bound on disorder holds along the lane. A rescaled subtask may hold pieces of several lanes, and of
one lane several begun splits. It treats each lane so that nothing is late which would have been on
time in the lane as it was:

- begun splits are read in turn, and of these the one furthest behind in event time goes first;
- the next fresh split of a lane is begun when no begun one that was before it in the lane is left,
  so that event time never passes it by on account of those behind it;
- the watermark is the least of the begun splits' of all lanes, and of the fresh splits' whose
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

# Endless splits: one that is ahead is read at least once in so many turns, because event time that
# stands still in another one, which a single broken clock brings about, must not starve it.
TURNS_MAX = 32


@dataclass(slots=True, eq=False)
class TrackedSplit:
    """A split that has records left."""

    split: dict[str, Any]
    position: Any  # Of the next record; None: it is fresh.
    order: int  # Among the splits of its lane, as they were discovered.
    lane: int
    watermark_ms: int = MIN_WATERMARK_MS  # Of its records alone; of a fresh split, a known floor.
    reader: "SplitReader | None" = None
    turn: int = 0  # When it was read last.
    silent_since_ms: int | None = None  # It was asked for records since then and had none.
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
        """All splits, those with a position first: so dealing them out spreads them evenly."""
        fresh = [split for lane in self._lanes.values() for split in lane.fresh]
        return iter(
            sorted([*self.begun, *fresh], key=lambda split: (split.position is None, split.order))
        )

    def readable(self) -> list[TrackedSplit]:
        """The splits that may be read now, in the order in which to ask them for records."""
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
        """The split was asked for records."""
        self._turns += 1
        split.turn = self._turns

    def finish(self, split: TrackedSplit) -> None:
        """The split has no records left; the one behind it in its lane may begin."""
        self.begun.remove(split)
        self._begin_due()

    def watermark_of_others(self, split: TrackedSplit) -> int:
        """The least watermark of all splits but this one; the end of event time without others."""
        least = self._fresh_ms
        for other in self.begun:
            if other.watermark_ms < least and other is not split and not other.is_idle:
                least = other.watermark_ms
        return least

    @property
    def watermark_ms(self) -> int | None:
        """The least watermark of all splits; None if all that are read are idle."""
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
    """The fresh splits of a lane, in their order; at least one when it is made."""

    def __init__(self, fresh: list[TrackedSplit]) -> None:
        self.fresh = deque(fresh)
        known = (
            MAX_WATERMARK_MS if split.watermark_ms == MIN_WATERMARK_MS else split.watermark_ms
            for split in reversed(fresh)
        )
        self._lowest_ms = deque(accumulate(known, min))  # Of each split and those after it, last
        self._lowest_ms.reverse()  # first: turned round, it runs beside the splits.

    @property
    def lowest_ms(self) -> int:
        """The least watermark of those whose lowest time is known; the end of time without any."""
        return self._lowest_ms[0] if self._lowest_ms else MAX_WATERMARK_MS

    def begin_next(self) -> TrackedSplit:
        """The next split, which is no longer one of the lane's fresh ones."""
        self._lowest_ms.popleft()
        return self.fresh.popleft()
