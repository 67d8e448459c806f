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


class _Raw:
    """The SQL of the database's clock, moved on by all stalls so far."""

    def __init__(self) -> None:
        self.stalled_s = 0.0

    def __format__(self, _: str) -> str:
        return f"(clock_timestamp() + INTERVAL '{self.stalled_s} seconds')"


@pytest.fixture(autouse=True, scope="session")
def stalls() -> Iterator[None]:
    """Stalls before readings, except where a test moves the clock by itself."""
    from controlplane.base import clock  # Not before the settings, which pytest-django chooses.

    raw, chance, read, own_s = _Raw(), random.Random(), clock._read, clock.own_s

    def read_late() -> Any:
        if clock._RAW is raw and chance.random() < SHARE:
            raw.stalled_s += STALL_S
        return read()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clock, "_RAW", raw)
        patch.setattr(clock, "_read", read_late)
        patch.setattr(clock, "own_s", lambda: own_s() + raw.stalled_s)
        yield
