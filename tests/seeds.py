"""The one setting of how much is drawn: seeds of simulations, programs, and Hypothesis' profile."""

import os

ALL = 1_000
SEEDS = int(os.environ.get("WEIR_TEST_SEEDS", ALL))


def share(count: int, *, block: int) -> int:
    """The part of ``count`` draws that this run makes: whole blocks, one at least."""
    return max(1, count * SEEDS // (ALL * block)) * block
