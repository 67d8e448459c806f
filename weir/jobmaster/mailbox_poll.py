"""The driver's poll of its savepoint mailbox: requests in, answers out, one call at a time.

The mailbox reaches the storage, so its calls run elsewhere (``Cluster.io``), and their outcomes
come back to the job master's thread. Each request is answered once: with its outcome or, after the
end of the job, with that end.
"""

from collections import deque
from collections.abc import Callable
from typing import Any

from weir.common.clock import Clock
from weir.jobmaster.savepoint_mailbox import Answer, Mailbox, SavepointRequest

POLL_MS = 500


class MailboxPoll:
    """Takes requests while the job runs, and carries answers to the mailbox."""

    def __init__(
        self,
        mailbox: Mailbox,
        *,
        io: Callable[[Callable[[], Any], Callable[[Any], None]], None],
        clock: Clock,
        ask: Callable[[SavepointRequest], None],
        note: Callable[[str], None],
    ) -> None:
        """Prepare.

        Args:
            ask: Receives each request, to be answered later by ``answer``.
            note: Receives a text for the user when the storage fails.
        """
        self._mailbox = mailbox
        self._io = io
        self._clock = clock
        self._ask = ask
        self._note = note
        self._due_ms: int | None = None
        self._work: deque[tuple[Callable[[], Any], Callable[[Any], None]]] = deque()
        self._is_working = False
        self._end: str | None = None  # The job's end: the answer to every further request.
        self._is_dropped = False
        self._last_problem = ""

    @property
    def is_busy(self) -> bool:
        """Whether the mailbox is being read or written."""
        return self._is_working

    def next_due_ms(self) -> int | None:
        """The time at which ``tick`` is due next."""
        return None if self._is_dropped or self._end is not None else self._due_ms

    def start(self) -> None:
        """The job runs: requests are taken from now on."""
        if self._due_ms is None:
            self._due_ms = self._clock.now_ms()

    def pause(self) -> None:
        """The job does not run for a while: requests wait until it does, or expire."""
        self._due_ms = None

    def tick(self) -> None:
        """Look for requests, if a look is due."""
        now = self._clock.now_ms()
        if self._due_ms is None or now < self._due_ms or self._end is not None:
            return
        self._due_ms = now + POLL_MS
        if not self._is_working:
            self._take()

    def answer(self, answer: Answer) -> None:
        """Put the answer to a request into the mailbox."""

        def done(outcome: Any) -> None:
            if isinstance(outcome, Exception):
                self._tell(f"a request for a savepoint could not be answered: {outcome}")

        if not self._is_dropped:
            self._add(lambda: self._mailbox.answer(answer.request_id, answer), done)

    def end(self, how: str) -> None:
        """The job is over: answer every further request with ``how`` it ended."""
        self._end = how
        if not self._is_dropped:
            self._take()

    def drop(self) -> None:
        """Another driver has the job, and the mailbox with it."""
        self._is_dropped = True
        self._work.clear()

    def _take(self) -> None:
        def done(outcome: Any) -> None:
            if isinstance(outcome, Exception):
                self._tell(f"requests for savepoints cannot be read: {outcome}")
                return
            for request in outcome if not self._is_dropped else ():
                if self._end is None:
                    self._ask(request)
                else:
                    self.answer(Answer(request.request_id, ok=False, error=self._end))

        self._add(lambda: self._mailbox.take(self._clock.now_ms()), done)

    def _tell(self, problem: str) -> None:
        if problem != self._last_problem:  # Every look would repeat it.
            self._last_problem = problem
            self._note(problem)

    def _add(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        """Queue the work behind earlier calls: calls to a mailbox must not overlap."""
        self._work.append((work, done))
        if not self._is_working:
            self._next()

    def _next(self) -> None:
        if not self._work:
            return
        work, done = self._work.popleft()
        self._is_working = True

        def finished(outcome: Any) -> None:
            self._is_working = False
            done(outcome)
            if not self._is_working:
                self._next()

        self._io(work, finished)
