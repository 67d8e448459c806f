"""A machine that stands still now and then, as the tests on a database see it: a pytest plugin.

``make test-stalls``: before some of its readings the clock of all rows has moved on by
``STALL_S``, for the database and for this process alike. No test may depend on less than a few such
stalls: a busy machine makes them for real, one in a thousand runs. Real time goes on as ever, so a
run takes no longer.
"""

import random
from collections.abc import Iterator
from typing import Any

import pytest

STALL_S = 4.0
SHARE = 0.2  # Of the readings of the clock.


@pytest.fixture(autouse=True, scope="session")
def stalls() -> Iterator[None]:
    """Stalls before readings, except where a test moves the clock by itself."""
    # Not before the settings, which pytest-django chooses.
    from controlplane.base import clock
    from tests.database.controlplane.moved_clock import MovedClock

    chance, read, in_query = random.Random(), clock._read, clock.DatabaseNow.as_sql
    with pytest.MonkeyPatch.context() as patch:
        database = MovedClock(patch)

        def stall() -> None:
            if database.sql == clock._RAW and chance.random() < SHARE:
                database.pass_time(STALL_S)

        def read_late() -> Any:
            stall()
            return read()

        def in_query_late(*args: Any, **words: Any) -> tuple[str, list[Any]]:
            stall()
            return in_query(*args, **words)

        patch.setattr(clock, "_read", read_late)
        patch.setattr(clock.DatabaseNow, "as_sql", in_query_late)
        yield
