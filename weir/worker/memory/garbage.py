"""Python's collection of garbage in a worker process: of what is young, and rarely of everything.

Reference counts free all but cycles; the collector looks for those. By default it looks at young
objects at every 700th that is new, and at all objects whenever a quarter has been added. State of
rows or lists is millions of objects without a cycle: to look at all of it takes seconds, in which
the loop stands still, and a batch of some thousand records makes it happen again and again.

So it looks when more objects are new than slices and the records under way between them make, and
what is left is *frozen*: the collector passes over it from then on. A cycle that becomes garbage
later is found by a *complete* collection, which takes back what is frozen. That happens when the
process holds twice the memory that it held after the last one, before it gives back memory for its
limit, and whenever user code asks for one (``gc.collect()``). A complete collection writes to the
pages of all objects, also to those that the worker shares with its template.

Measured, a million rows as state, each replaced twice by batches of 5,000 records: collections took
15 of 28 s, up to 1.8 s at a time, and none here.

Source: CPython, ``Modules/gcmodule.c``, and its documentation of ``gc.freeze``. From Python 3.14 on
collections are another algorithm, which is left as it is.
"""

import gc
import sys
from collections.abc import Callable
from typing import Any

from weir.common.clock import Clock
from weir.worker.memory.watch import LOOK_INTERVAL_NS
from weir.worker.ports import Call, Inbox

NEW_OBJECTS = 100_000  # Fewer those that were freed since; a look takes about 50 ms.
OLDEST = 2  # Its collection is one of all objects.
NEVER = 2**31 - 1
GROWTH = 2  # Of the memory held since the last complete collection.


class Garbage:
    """The collections of this process, of which there is one; ``look`` is the watching thread's."""

    def __init__(self, held_bytes: Callable[[], int], inbox: Inbox, clock: Clock) -> None:
        """Prepare; ``held_bytes`` tells the memory that the process holds."""
        self._held_bytes = held_bytes
        self._inbox = inbox
        self._clock = clock
        self._before = held_bytes()  # After the last complete collection.
        self._is_asked = False
        self._due_ns = clock.monotonic_ns()

    def start(self) -> None:
        """Collect in this way from now on."""
        if sys.version_info < (3, 14):
            gc.set_threshold(NEW_OBJECTS, NEVER, NEVER)
            gc.callbacks.append(_freeze)

    def look(self) -> None:
        """Have the loop collect completely, between two slices, where memory has grown so much."""
        now = self._clock.monotonic_ns()
        if self._is_asked or now < self._due_ns:
            return
        self._due_ns = now + LOOK_INTERVAL_NS
        if self._held_bytes() >= GROWTH * self._before:
            self._is_asked = True
            self._inbox.put(Call(self._collect))

    def _collect(self) -> None:
        gc.collect()
        self._before = self._held_bytes()
        self._is_asked = False


def _freeze(phase: str, info: dict[str, Any]) -> None:
    """Called by the collector when it starts and stops."""
    if phase == "stop":
        gc.freeze()
    elif info["generation"] == OLDEST:
        gc.unfreeze()
