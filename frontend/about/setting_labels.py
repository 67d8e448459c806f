"""Label, unit and help of each setting of a job. Pure.

A test checks that every field of ``weir.config`` is here, so that a new one is not forgotten.
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
    none: str = "not set"  # The text for a missing value.


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
        "Exactly once: a channel is blocked from its barrier until the barriers of all channels "
        "have arrived. At least once: no channel is blocked, and a restore may process records "
        "twice. Stop the world: exactly once, and each subtask pauses behind the barrier until the "
        "checkpoint is settled.",
        _words,
    ),
    "timeout_ms": Words(
        "Timeout", "A checkpoint that has not completed by then is aborted.", interval
    ),
    "min_pause_ms": Words(
        "Minimum pause",
        "The least time from the end of one checkpoint to the next trigger.",
        interval,
    ),
    "concurrent_max": Words(
        "Concurrent checkpoints", "Checkpoints that may be in progress at the same time.", number
    ),
    "tolerable_failures": Words(
        "Tolerable failures",
        "Checkpoints in a row that may fail; one more failure restarts the job.",
        number,
    ),
    "alignment_timeout_ms": Words(
        "Alignment timeout",
        "After this time a waiting barrier overtakes the records before it: the checkpoint becomes "
        "unaligned. 0: unaligned from the start.",
        interval,
        none="none: always aligned",
    ),
    "retained_max": Words(
        "Retained checkpoints",
        "Completed checkpoints that are kept; savepoints not counted.",
        number,
    ),
    "retention": Words(
        "Retention", "Whether checkpoints are kept when the job is cancelled or fails.", _words
    ),
    "inline_max_bytes": Words(
        "Inline state",
        "A piece of state smaller than this is stored in the manifest instead of a file.",
        size,
    ),
    "storage": Words(
        "Storage", "Where checkpoints are written.", none="memory of the driver: lost with it"
    ),
    "abandoned_ttl_ms": Words(
        "Keep after a rollback",
        "How long the checkpoints that a rollback left behind are kept, so that the job can be "
        "sent forward again.",
        interval,
    ),
}

RESTART: Mapping[str, Words] = {
    "kind": Words("Strategy", "Whether and when a failed attempt is followed by another.", _words),
    "attempts_max": Words(
        "Restarts", "After this many restarts the next failure ends the job.", number
    ),
    "delay_ms": Words("Delay", "From a failure to the restart.", interval),
    "failures_max": Words(
        "Failures", "With more failures within the failure interval the job fails.", number
    ),
    "failure_interval_ms": Words("Failure interval", "Failures are counted within it.", interval),
    "initial_backoff_ms": Words(
        "First delay", "Before the second restart; the first one is immediate.", interval
    ),
    "max_backoff_ms": Words("Longest delay", "The delay does not grow beyond this.", interval),
    "backoff_multiplier": Words(
        "Growth", "Each delay is the one before times this factor.", lambda value: f"× {value:g}"
    ),
    "reset_after_ms": Words(
        "Reset after", "After this time without failure the delay starts over.", interval
    ),
    "ends_on_repeated_error": Words(
        "Ends on a repeated error",
        "An error of the program that comes again at the same record, three times over a minute, "
        "ends the job.",
        _flag,
    ),
    "jitter": Words("Jitter", "A delay is made longer or shorter by up to this share.", _share),
}

CHANNELS: Mapping[str, Words] = {
    "batch_rows_max": Words(
        "Rows in a slice",
        "The most rows that a subtask processes between two checks for barriers.",
        number,
    ),
    "slice_target_ms": Words(
        "Slice", "About how long a subtask processes between two checks for barriers.", interval
    ),
    "frame_bytes_max": Words("Frame", "The largest piece that is sent over a channel.", size),
    "credit_bytes": Words(
        "Credit", "Bytes in flight on a channel beyond which its sender waits.", size
    ),
    "batch_credit_bytes": Words(
        "Credit of a batch",
        "Credit that each batch uses beside its size; it bounds the number of tiny batches.",
        size,
    ),
    "security": Words(
        "Network security",
        "Whether slots and driver encrypt their connections. Auto: unless all are on one machine.",
        _words,
    ),
}

STATE: Mapping[str, Words] = {
    "backend": Words(
        "State backend",
        "Where state per key lies while the job runs. Hashmap: in memory. Rocksdb: on the slots’ "
        "local disks.",
        _words,
    ),
    "directory": Words(
        "Directory for state",
        "Of the state backend rocksdb, on each machine with slots.",
        none="the one for temporary files",
    ),
    "incremental": Words(
        "Incremental checkpoints",
        "Whether a checkpoint writes the state that changed, and names the files of the one before "
        "for the rest.",
        _flag,
        none="yes with rocksdb, no with hashmap",
    ),
    "local_copies": Words(
        "Local copies of state",
        "Whether each slot keeps a copy of the state files that it writes on its own disk, which a "
        "restart on the same machine reads instead of the checkpoint storage.",
        _flag,
    ),
    "local_copies_directory": Words(
        "Directory for local copies",
        "On each machine with slots.",
        none="the one for temporary files",
    ),
    "local_copies_bytes_max": Words(
        "Space for local copies",
        "Of each slot; files beyond it get no copy.",
        size,
    ),
}

NETWORK: Mapping[str, str] = {
    "encrypted": "Encrypted",
    "local": "Authenticated; nothing leaves the driver’s machine",
    "plain": "Not encrypted",
}

JOB: Mapping[str, Words] = {
    "name": Words("Pipeline’s name", "The job name in the pipeline’s code."),
    "parallelism": Words(
        "Parallelism", "Subtasks of each operator that does not set its own.", number
    ),
    "max_parallelism": Words(
        "Max parallelism",
        "The number of key groups, which bounds the parallelism of keyed state. Fixed once there "
        "is state.",
        number,
        none="derived from the parallelism",
    ),
    "heartbeat_interval_ms": Words(
        "Heartbeat interval", "How often a worker process sends a heartbeat.", interval
    ),
    "heartbeat_timeout_ms": Words(
        "Heartbeat timeout",
        "A worker process that sent no heartbeat for this time is replaced.",
        interval,
    ),
    "slots_timeout_ms": Words(
        "Wait for slots", "How long a deployment waits for all of its slots.", interval
    ),
    "spare_slots": Words("Spare slots", "Idle slots that replace a lost one at once.", number),
    "slot_memory_bytes": Words(
        "Memory of a slot",
        "What the worker process of each slot may hold; above it the process ends, and says why.",
        size,
        none="a share of the cgroup’s limit, if it has one",
    ),
    "allow_non_restored_state": Words(
        "Allow non-restored state",
        "Whether a restore may drop state that no operator in the graph has.",
        _flag,
    ),
    "allow_pickled_state": Words(
        "Restore pickled state",
        "Whether state declared as pickles is restored, and records that are no data may be "
        "pickled. Unpickling runs code in them.",
        _flag,
    ),
    "allow_tap": Words(
        "Tap",
        "Whether operators may look at a few records that pass. The pipeline forbids it with "
        "weir.tap.enabled.",
        _flag,
    ),
    "object_reuse": Words(
        "Object reuse",
        "Whether operators pass on the objects that functions return without a copy.",
        _flag,
    ),
}

# Fields of JobConfig that have groups of their own, or that the control plane does not get.
NESTED = ("checkpoints", "restart", "channels", "state", "parameters")


def slots(count: int | None) -> str:
    """The number of slots in words, also where it is not known yet."""
    return "not known yet" if count is None else plural(count, "slot")
