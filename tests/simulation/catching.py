"""Runs seeds until one of them notices the bug that a test has planted."""

from collections.abc import Callable
from typing import TypeAlias

import pytest

from tests.simulation.simulation import SimulationFailed, simulate

SEEDS_MAX = 400

Show: TypeAlias = Callable[[str], None]


def caught_at(bug: str, show: Show, *, first: int = 0, **settings: bool) -> SimulationFailed:
    """The failure of the first seed that notices the bug, from ``first`` on."""
    for seed in range(first, first + SEEDS_MAX):
        try:
            simulate(seed, **settings)
        except SimulationFailed as failure:
            show(f"{bug}: caught at seed {seed}: {str(failure).splitlines()[0][:150]}")
            return failure
    pytest.fail(f"{bug}: not caught in {SEEDS_MAX} seeds")
