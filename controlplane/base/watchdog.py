"""The watchdog of a service process: one that is stuck says so, and ends itself.

Each part that has to come round again and again, such as an event loop or a pool of threads, is a
*round*. It calls ``came_round`` each time, at least every few seconds. A thread of the watchdog
looks at the rounds once a second. A round that is late by ``WEIR_STUCK_AFTER_S`` is a problem: it
is logged and ``/healthz`` answers 503. If the round has not come round ``GRACE_S`` later, the
process writes the stacks of all its threads to standard error and ends with exit code 1, so that
its supervisor starts it again. Nothing is lost by that: all that matters is in PostgreSQL.

The end does not depend on this module's thread, nor on any Python code: it is ``faulthandler``'s
timer, a C thread that needs no interpreter lock and that the watchdog sets anew as long as all is
well. A loop that holds the lock, in a regular expression say, is ended as well.

A round that waits for what it cannot help, such as a broker that is away, is ``paused`` meanwhile.
"""

import faulthandler
import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

logger = logging.getLogger(__name__)

GRACE_S = 5.0
LOOK_S = 1.0
LOOP = "event loop"


class Watchdog:
    """The rounds of one process. Units: seconds, monotonic."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # Guards what follows.
        self._last: dict[str, float] = {}
        self._times: dict[str, int] = {}
        self._problem: str | None = None
        self._stuck_after_s = 0.0
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()

    @property
    def problem(self) -> str | None:
        """The round that is late, in words; None: all come round."""
        return self._problem

    def came_round(self, name: str = LOOP, *, times: int = 1) -> None:
        """Note that a round came round just now; the first call makes it one to watch.

        Args:
            times: So many times the usual patience with this round.
        """
        with self._lock:
            self._last[name] = time.monotonic()
            self._times[name] = times

    def forget(self, name: str) -> None:
        """Watch a round no more."""
        with self._lock:
            self._last.pop(name, None)

    @contextmanager
    def paused(self, name: str = LOOP) -> Iterator[None]:
        """Within the context the round is not watched; after it, it has just come round."""
        self.forget(name)
        try:
            yield
        finally:
            self.came_round(name)

    def start(self, stuck_after_s: float) -> None:
        """Watch the rounds from now on, in a thread of its own; 0: do not. Idempotent."""
        if self._thread is not None or not stuck_after_s:
            return
        self._stuck_after_s = stuck_after_s
        self._stopping.clear()
        self._arm(stuck_after_s + GRACE_S)
        self._thread = threading.Thread(target=self._run, name="weir-watchdog", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Watch no more. Idempotent."""
        self._stopping.set()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()
            faulthandler.cancel_dump_traceback_later()

    def late(self) -> list[tuple[str, float]]:
        """The rounds that are late, with the seconds since they last came round."""
        now = time.monotonic()
        with self._lock:
            ages = [(name, now - at, self._times[name]) for name, at in self._last.items()]
        return [(name, age_s) for name, age_s, n in ages if age_s > n * self._stuck_after_s]

    def _run(self) -> None:
        while not self._stopping.wait(LOOK_S):
            self._look()

    def _look(self) -> None:
        late = self.late()
        if not late:
            if self._problem is not None:
                logger.warning("the process is no longer stuck")
            self._problem = None
            self._arm(self._stuck_after_s + GRACE_S)
            return
        is_new = self._problem is None
        said = " and ".join(
            f"the {name} has not come round for {age_s:.0f} s" for name, age_s in late
        )
        self._problem = said
        if is_new:
            self._arm(GRACE_S)  # And not again, unless it comes round.
            logger.critical("stuck: %s; the process ends in %g s unless it does", said, GRACE_S)

    def _arm(self, seconds: float) -> None:
        faulthandler.dump_traceback_later(seconds, exit=True, file=2)


_watchdog = Watchdog()

came_round = _watchdog.came_round
forget = _watchdog.forget
paused = _watchdog.paused
start = _watchdog.start
stop = _watchdog.stop


def problem() -> str | None:
    """The round of this process that is late, in words; None: all come round."""
    return _watchdog.problem
