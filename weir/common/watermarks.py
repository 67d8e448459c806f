"""Watermarks within a batch: event time advances between its records.

A batch with watermarks stands for its records cut behind those places, with a watermark after each
cut: ``Batch.cut`` makes exactly that of it. Whether a record is late is decided by the watermark at
the record's place, so a place moves only together with the records around it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Watermarks:
    """The watermarks of a batch, at least one, by their places.

    Shape: ``behind`` says how many of the batch's records come before each, strictly ascending;
    ``times_ms`` has the event time of each, not descending.
    """

    behind: Ints
    times_ms: Ints

    @property
    def last_ms(self) -> int:
        """The last and highest one."""
        return int(self.times_ms[-1])

    @property
    def rest(self) -> "Watermarks | None":
        """All but the first."""
        return Watermarks(self.behind[1:], self.times_ms[1:]) if len(self.behind) > 1 else None

    def within(self, start: int, stop: int) -> "Watermarks | None":
        """Those of the records ``start`` to ``stop``: a watermark belongs to the record before it.

        The first record's share includes a watermark before all records.
        """
        first = 0 if start == 0 else int(np.searchsorted(self.behind, start, "right"))
        last = int(np.searchsorted(self.behind, stop, "right"))
        if first == last:
            return None
        return Watermarks(self.behind[first:last] - start, self.times_ms[first:last])

    def moved(self, behind: Ints) -> "Watermarks":
        """The same at other places, which do not descend; of several at one place the last."""
        stays = np.append(behind[1:] != behind[:-1], True)
        return Watermarks(behind[stays], self.times_ms[stays])

    def among(self, rows: npt.NDArray[np.intp]) -> "Watermarks":
        """Their places among some of the records, whose row numbers ascend."""
        return self.moved(np.searchsorted(rows, self.behind))

    def risen(self, times_ms: Ints, above_ms: int) -> "Watermarks | None":
        """The same places with other times that do not descend; only those that rise."""
        before = np.concatenate(([above_ms], times_ms[:-1]))
        rises = times_ms > np.maximum(before, above_ms)
        return Watermarks(self.behind[rises], times_ms[rises]) if rises.any() else None

    @classmethod
    def joined(cls, parts: "Sequence[tuple[int, Watermarks | None]]") -> Self | None:
        """The watermarks of batches in a row, each with its number of records."""
        places: list[Ints] = []
        times: list[Ints] = []
        before = 0
        for count, watermarks in parts:
            if watermarks is not None:
                behind, times_ms = watermarks.behind + before, watermarks.times_ms
                if places and behind[0] == places[-1][-1]:  # Nothing is between the two.
                    places[-1], times[-1] = places[-1][:-1], times[-1][:-1]
                places.append(behind)
                times.append(times_ms)
            before += count
        return cls(np.concatenate(places), np.concatenate(times)) if places else None
