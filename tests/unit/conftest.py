"""Time for unit tests that run whole jobs in one process."""

from collections.abc import Iterator

import pytest

from tests.simulation.clock import SimClock


@pytest.fixture(scope="module")
def simulated_time() -> Iterator[None]:
    """A clock that is moved by what a job waits for, so that rates and intervals take no time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("weir.local.cluster.RealClock", SimClock)
        yield
