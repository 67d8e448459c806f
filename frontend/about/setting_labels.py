"""What each setting of a job is called, in which unit it is shown, and what it does. Pure.

A test holds that every field of ``weir.config`` is here, so that a new one is not forgotten.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from controlplane.base.formatting import interval, number, plural, size


@dataclass(frozen=True, slots=True)
class Words:
    """One setting in words."""

    label: str
    help: str
    write: Callable[[Any], str] = str
    none: str = "not set"  # What it means that there is no value.


def _flag(value: Any) -> str:
    return "yes" if value else "no"


def _share(value: Any) -> str:
    return f"{value * 100:g} %"


def _words(value: Any) -> str:
    return str(value).replace("_", " ")


CHECKPOINTS: Mapping[str, Words] = {
    "interval_ms": Words(
        "Interval",
        "From one trigger of a periodic checkpoint to the next.",
        interval,
        none="off: no periodic checkpoints",
    ),
    "mode": Words(
        "Mode",
        "Exactly once: a channel whose barrier came is held until the others’ have come. At least "
        "once: it is not, and a restore may process records again.",
        _words,
    ),
    "timeout_ms": Words(
        "Timeout", "A checkpoint that has not completed for so long is given up.", interval
    ),
    "min_pause_ms": Words(
        "Minimum pause",
        "At least so long from the end of one checkpoint to the next trigger.",
        interval,
    ),
    "concurrent_max": Words(
        "Concurrent checkpoints", "How many may be in progress at the same time.", number
    ),
    "tolerable_failures": Words(
        "Tolerable failures",
        "So many checkpoints in a row may fail; the next failure restarts the job.",
        number,
    ),
    "alignment_timeout_ms": Words(
        "Alignment timeout",
        "A barrier that waits longer than this overtakes the records before it: the checkpoint "
        "becomes unaligned. 0: unaligned from the start.",
        interval,
        none="none: always aligned",
    ),
    "retained_max": Words(
        "Retained checkpoints", "How many completed checkpoints are kept; savepoints aside.", number
    ),
    "retention": Words(
        "Retention", "Whether checkpoints are kept when the job is cancelled or fails.", _words
    ),
    "inline_max_bytes": Words(
        "Inline state",
        "Smaller state of a subtask travels inside its acknowledgement instead of a file.",
        size,
    ),
    "storage": Words(
        "Storage", "Where checkpoints are written.", none="memory of the driver: lost with it"
    ),
    "abandoned_ttl_ms": Words(
        "Keep after a rollback",
        "How long checkpoints are kept that the job went back behind, to go forward again.",
        interval,
    ),
}

RESTART: Mapping[str, Words] = {
    "kind": Words("Strategy", "How a failed job comes back.", _words),
    "attempts_max": Words("Restarts", "After so many the job fails.", number),
    "delay_ms": Words("Delay", "From a failure to the restart.", interval),
    "failures_max": Words(
        "Failures", "With more of them within the failure interval the job fails.", number
    ),
    "failure_interval_ms": Words("Failure interval", "Within which they are counted.", interval),
    "initial_backoff_ms": Words(
        "First delay", "Before the second restart; the first one is immediate.", interval
    ),
    "max_backoff_ms": Words("Longest delay", "It does not grow beyond this.", interval),
    "backoff_multiplier": Words(
        "Growth", "Each delay is so many times the one before.", lambda value: f"× {value:g}"
    ),
    "reset_after_ms": Words(
        "Reset after", "Running without failure for so long, it begins anew.", interval
    ),
    "jitter": Words("Jitter", "A delay is made longer or shorter by up to this share.", _share),
}

CHANNELS: Mapping[str, Words] = {
    "batch_rows_max": Words(
        "Rows in a slice", "What a subtask processes at most between two looks at barriers.", number
    ),
    "slice_target_ms": Words(
        "Slice", "About how long it processes between two looks at barriers.", interval
    ),
    "frame_bytes_max": Words("Frame", "The largest piece that is sent over a channel.", size),
    "credit_bytes": Words(
        "Credit", "How much a sender may have under way in a channel: then it waits.", size
    ),
    "batch_credit_bytes": Words(
        "Credit of a batch",
        "What each batch costs of that beside its size, so that of tiny ones few are under way.",
        size,
    ),
}

JOB: Mapping[str, Words] = {
    "name": Words("Pipeline’s name", "What the pipeline calls itself."),
    "parallelism": Words(
        "Parallelism", "Subtasks of each operator that does not set its own.", number
    ),
    "max_parallelism": Words(
        "Max parallelism",
        "Number of key groups: keyed state cannot be spread wider. Fixed once there is state.",
        number,
        none="derived from the parallelism",
    ),
    "heartbeat_interval_ms": Words(
        "Heartbeat interval", "How often a worker process says that it is there.", interval
    ),
    "heartbeat_timeout_ms": Words(
        "Heartbeat timeout", "A worker process that is silent for so long is replaced.", interval
    ),
    "slots_timeout_ms": Words(
        "Wait for slots", "How long a deployment waits until all slots are there.", interval
    ),
    "spare_slots": Words(
        "Spare slots", "Slots kept beside those in use, to replace a lost one at once.", number
    ),
    "allow_non_restored_state": Words(
        "Leave state behind",
        "Whether a restore may drop state that no operator takes up.",
        _flag,
    ),
    "allow_pickled_state": Words(
        "Restore pickled state",
        "Whether state declared as pickles is restored: that runs code in it.",
        _flag,
    ),
    "object_reuse": Words(
        "Object reuse",
        "Whether operators hand on the very objects that functions return, without a copy.",
        _flag,
    ),
}

# Beside these: shown in groups of their own, or not told to the control plane.
NESTED = ("checkpoints", "restart", "channels", "parameters")


def slots(count: int | None) -> str:
    """So many slots, or that it is not known yet."""
    return "not known yet" if count is None else plural(count, "slot")
