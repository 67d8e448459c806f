"""The I/O thread: calls that other threads hand over, whether it sleeps or not."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.waiting import wait_until
from weir.channels.io_thread import IoThread


@contextmanager
def running(thread: IoThread) -> Iterator[IoThread]:
    thread.start()
    try:
        yield thread
    finally:
        thread.stop()


class Interrupted(IoThread):
    """A call comes in when the thread has looked for calls and is about to sleep."""

    def __init__(self, function: Callable[[], None]) -> None:
        super().__init__("io-test", on_crash=pytest.fail)
        self.function: Callable[[], None] | None = function

    def _timeout(self) -> float | None:
        timeout = super()._timeout()
        if (function := self.function) is not None:
            self.function = None
            assert timeout is None, "it is not about to sleep"
            self.call(function)
        return timeout


def test_a_call_that_comes_in_as_the_thread_falls_asleep_wakes_it() -> None:
    ran: list[bool] = []
    with running(Interrupted(lambda: ran.append(True))):
        wait_until(lambda: ran, "the call has run", 10)


def test_calls_without_a_wake_up_run_with_the_next_one() -> None:
    ran: list[int] = []
    with running(IoThread("io-test", on_crash=pytest.fail)) as io:
        for number in range(10):
            io.call(lambda number=number: ran.append(number), wake=False)  # type: ignore[misc]
        io.wake()
        wait_until(lambda: len(ran) == 10, "all calls have run", 10)
    assert ran == list(range(10))
