"""Errors of the program that come back at the same place: the restarts that cannot help.

A restart helps against what is outside the program: a lost machine, a server that is away, a full
disk. A bug meets the same record again after every restart, for ever. One failure does not tell the
two apart, so an error counts by its *place*: operator, record or position, and type of the
exception, which a subtask names for errors that only the program can make
(``weir.operators.user_code``).

::

    failure                                             count, since
    -------------------------------------------------   -------------
    of no place                                         as before
    at the same place, no checkpoint completed since    one more
    at another place, or after a completed checkpoint   1, now

With ``TIMES`` or more over ``LASTING_MS`` or longer no restart helps: the data did not change, and
neither did the program. A lost machine between two of them proves nothing, and neither counts nor
resets the count. A completed checkpoint is progress: the restored job begins elsewhere.
"""

from dataclasses import dataclass, replace

TIMES = 3
LASTING_MS = 60_000


@dataclass(frozen=True, slots=True)
class RepeatedError:
    """An error of the program, and how often it came at its place."""

    place: str
    completed_count: int  # Checkpoints completed before it.
    since_ms: int
    count: int = 1

    def is_hopeless(self, now_ms: int) -> bool:
        """Whether no restart helps."""
        return self.count >= TIMES and now_ms - self.since_ms >= LASTING_MS


def failed_at(
    last: RepeatedError | None, place: str, completed_count: int, now_ms: int
) -> RepeatedError:
    """Count a failure at a place, after ``completed_count`` checkpoints in all."""
    if last is None or (last.place, last.completed_count) != (place, completed_count):
        return RepeatedError(place, completed_count, now_ms)
    return replace(last, count=last.count + 1)
