"""The modes in which checkpoints can be taken, as changes to a job's settings.

``weir compare-modes`` runs one pipeline in each.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from weir.config import CheckpointConfig, CheckpointingMode
from weir.errors import ConfigError

TIMEOUT_MS = 200  # The time-out of the mode ``timeout`` unless another is given.

_EXACTLY, _AT_LEAST = CheckpointingMode.EXACTLY_ONCE, CheckpointingMode.AT_LEAST_ONCE
_STOPPING = CheckpointingMode.STOP_THE_WORLD


@dataclass(frozen=True, slots=True)
class Mode:
    """A mode by its name; ``settings`` has the changed ones, given the time-out of alignments."""

    name: str
    title: str
    settings: Callable[[int], dict[str, Any]]
    takes_checkpoints: bool = True

    def over(
        self, given: CheckpointConfig, *, interval_ms: int, timeout_ms: int
    ) -> CheckpointConfig:
        """A job's settings of checkpoints, changed to this mode.

        One checkpoint is under way at a time in every mode, since unaligned ones allow no more.

        Units: ``interval_ms`` between checkpoints; ``timeout_ms`` from the trigger to the switch.

        Raises:
            ConfigError: The interval is too short.
        """
        interval = interval_ms if self.takes_checkpoints else None
        common: dict[str, Any] = {
            "interval_ms": interval,
            "concurrent_max": 1,
            "mode": _EXACTLY,
            "alignment_timeout_ms": None,
        }
        return replace(given, **common | self.settings(timeout_ms))


MODES = (
    Mode("none", "no checkpoints", lambda _: {}, takes_checkpoints=False),
    Mode("stop-the-world", "stop the world", lambda _: {"mode": _STOPPING}),
    Mode("aligned", "aligned", lambda _: {}),
    Mode("at-least-once", "at least once", lambda _: {"mode": _AT_LEAST}),
    Mode("unaligned", "unaligned", lambda _: {"alignment_timeout_ms": 0}),
    Mode("timeout", "aligned, then unaligned", lambda ms: {"alignment_timeout_ms": ms}),
)


def modes_named(names: Sequence[str]) -> tuple[Mode, ...]:
    """The modes of these names, in the order of ``MODES``.

    Raises:
        ConfigError: A name is no mode's, or is given twice.
    """
    known = [mode.name for mode in MODES]
    if unknown := [name for name in names if name not in known]:
        raise ConfigError(
            f"there is no mode {', '.join(map(repr, unknown))}; there are {', '.join(known)}"
        )
    if len(set(names)) < len(names):
        raise ConfigError("a mode is named twice; --rounds repeats all of them")
    return tuple(mode for mode in MODES if mode.name in names)
