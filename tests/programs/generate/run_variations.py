"""Variations of a run: parallelism, slices, encoding, kills, savepoints and clocks."""

from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import strategies as st

from tests.programs.run import Variation


@st.composite
def variations(
    draw: Callable[[Any], Any], kinds: Sequence[str] = ("calm", "calm", "slow", "kill", "stop")
) -> Variation:
    """Conditions of a run that must not matter, of these kinds."""
    kind = draw(st.sampled_from(kinds))
    parallelism = draw(st.integers(1, 4))
    common: dict[str, Any] = {
        "parallelism": parallelism,
        "rows_max": draw(st.sampled_from([32_768, 1, 2, 5])),
        "chaining": not draw(st.booleans()),
        "encoded": draw(st.booleans()),
    }
    if kind == "calm":
        return Variation(**common)
    common |= {
        "seed": draw(st.integers(0, 99)),
        "rows_max": draw(st.sampled_from([1, 2, 5])),
        "wall_jumps": draw(st.booleans()),
        "lazy_snapshots": draw(st.booleans()),
        "checkpointing": draw(st.booleans()),
    }
    match kind:
        case "kill":
            common["kills"] = tuple(draw(st.lists(_between(0.0, 1.2), min_size=1, max_size=2)))
        case "late kill":  # Behind a checkpoint whose writing took long.
            common |= {"kills": (draw(_between(0.6, 1.2)),), "lazy_snapshots": True, "rows_max": 1}
        case "kill between increments" | "lazy increments":
            # There are few increments until the source has ended.
            common |= {
                "rows_max": 1,
                "lazy_snapshots": kind == "lazy increments",
                "seed": 4 * draw(st.integers(0, 24)) + 2,  # ``Variation.increments``
                "interval_ms": 10,
                "kills": (draw(_between(0.7, 2.5)),),
            }
        case "stop":
            common |= {"stop": draw(_between(0.0, 0.7)), "rescaled_to": draw(st.integers(1, 4))}
        case "rescale":
            others = [count for count in (1, 2, 3) if count != parallelism]
            common |= {
                "stop": draw(_between(0.0, 0.3)),
                "rescaled_to": draw(st.sampled_from(others)),
            }
        case "resized windows":
            size = draw(st.sampled_from([3_000, 500, 7_000]))
            common |= {"stop": draw(_between(0.0, 0.7)), "windows_ms": size}
    return Variation(**common)


def _between(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(low, high).map(lambda at: round(at, 2))
