"""A bound on what is open at once: in all, and for each address, account or other holder."""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from controlplane.base.errors import Refusal
from controlplane.base.threads import Unavailable


class TooManyOpen(Refusal):
    """The client has as many of these open as one client may have."""

    code = "throttled"
    status = 429
    title = "Too many requests"


class Admission:
    """The count of open ``things``, on one event loop.

    Args:
        things: Their name in refusals, in the plural.
        total_max: The most in all.
        per_holder_max: The most for one holder, by the holder's kind, such as ``address``.
    """

    def __init__(self, things: str, total_max: int, per_holder_max: Mapping[str, int]) -> None:
        self._things = things
        self._total_max = total_max
        self._per_holder_max = per_holder_max
        self._held: Counter[tuple[str, str]] = Counter()
        self.count = 0

    @contextmanager
    def admit(self, **holders: str) -> Iterator[None]:
        """Count one more as open while the block lasts; holders are given by their kind.

        Raises:
            TooManyOpen: One of the holders has the most that one may have.
            Unavailable: In all there are as many as there may be.
        """
        for kind, limit in self._per_holder_max.items():
            if self._held.get((kind, holders[kind]), 0) >= limit:
                raise TooManyOpen(
                    f"this {kind} has {limit} {self._things} open already, the most that one may "
                    "have; close some of them"
                )
        if self.count >= self._total_max:
            raise Unavailable(
                f"{self._total_max} {self._things} are open already; try again in a moment"
            )
        self.count += 1
        self._held.update(holders.items())
        try:
            yield
        finally:
            self.count -= 1
            self._held.subtract(holders.items())
            for holder in holders.items():
                if not self._held[holder]:
                    del self._held[holder]
