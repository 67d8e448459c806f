"""Seeds run until one of them notices the bug that a test has planted."""

from collections.abc import Callable
from typing import TypeAlias

import pytest

from tests.simulation.simulation import SimulationFailed, simulate

SEEDS_MAX = 400

Show: TypeAlias = Callable[[str], None]


def caught_at(bug: str, show: Show, *, first: int = 0, **settings: bool) -> SimulationFailed:
    """The failure of a seed that notices the bug.

    Args:
        first: The seed to begin with: one that is known to notice. Where it does not any more, all
            others follow.
    """
    for seed in [*range(first, SEEDS_MAX), *range(first)]:
        try:
            simulate(seed, **settings)
        except SimulationFailed as failure:
            show(f"{bug}: caught at seed {seed}: {str(failure).splitlines()[0][:150]}")
            return failure
    pytest.fail(f"{bug}: not caught in {SEEDS_MAX} seeds")
