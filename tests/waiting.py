"""Waiting for a condition that others make true: processes, threads, a browser.

How long is never a measure of speed: the machine may be busy with other things.
"""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

TIMEOUT_S = 150.0
POLL_S = 0.02


def wait_until(
    condition: Callable[[], T],
    expectation: str | Callable[[], str],
    timeout_s: float = TIMEOUT_S,
    poll_s: float = POLL_S,
) -> T:
    """The value of a condition once it is true; it is polled until then.

    Args:
        expectation: What the condition says, in words; a function, where they are known in the end.

    Raises:
        AssertionError: It did not come true in time. The last value is told if it says more.
    """
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        if time.monotonic() >= deadline:
            words = expectation if isinstance(expectation, str) else expectation()
            last = "" if value is None or value is False else f"; the last value: {value!r}"
            raise AssertionError(f"not within {timeout_s:g} s: {words}{last}")
        time.sleep(poll_s)
    return value
