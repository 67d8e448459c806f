"""Flink's configuration keys, for the settings that Weir has: one table.

Values may be text, as in a configuration file (``"10 s"``, ``"true"``), or already of their type.
"""

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from weir.common.flink_keys import FORMER, needs_nothing
from weir.common.time import milliseconds_of
from weir.config import (
    CheckpointingMode,
    NetworkSecurity,
    RestartStrategyKind,
    Retention,
    StateBackendKind,
)
from weir.errors import ConfigError

NEAR = 0.75  # Of a key that may be misspelt; difflib's ratio.
MISSPELT = 0.96  # Of one that is, and no other key of Flink's.
_DURATION = re.compile(r"(\d+)\s*([a-z]*)", re.IGNORECASE)
_UNITS_MS = {
    1: ("", "ms", "milli", "millis", "millisecond", "milliseconds"),
    1_000: ("s", "sec", "secs", "second", "seconds"),
    60_000: ("m", "min", "minute", "minutes"),
    3_600_000: ("h", "hour", "hours"),
    86_400_000: ("d", "day", "days"),
}
_SIZE = re.compile(
    r"(\d+)\s*(b|bytes|k|kb|kibibytes|m|mb|mebibytes|g|gb|gibibytes|t|tb|tebibytes)?",
    re.IGNORECASE,
)
_SIZES = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


@dataclass(frozen=True, slots=True)
class Option:
    """The setting behind a key, and the reader of its value."""

    section: str  # "checkpoints", "restart", "channels", "state", "unaligned", "on_error", "job" or
    # "options".
    field: str
    read: Callable[[Any], Any]


def read_options(values: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The settings of ``values`` by section and field.

    Raises:
        ConfigError: Weir does not have a key (the message says what it has instead, or names the
            nearest one), or a value cannot be read.
    """
    read: dict[str, dict[str, Any]] = {}
    for key, value in values.items():
        option = OPTIONS.get(FORMER.get(key, key))
        if option is None and not _is_misspelt(key) and needs_nothing(key, value):
            continue
        if option is None:
            near = difflib.get_close_matches(key, OPTIONS, n=1, cutoff=NEAR)
            near = near or [each for each in OPTIONS if key in each.split(".")]
            hint = f"; did you mean {near[0]}?" if near else ""
            raise ConfigError(f"there is no setting {key}{hint}")
        try:
            read.setdefault(option.section, {})[option.field] = option.read(value)
        except ValueError as error:
            raise ConfigError(f"{key} cannot be {value!r}: {error}") from error
    return read


def _is_misspelt(key: str) -> bool:
    return bool(difflib.get_close_matches(key, OPTIONS, n=1, cutoff=MISSPELT))


def duration_ms(value: Any) -> int:
    """Milliseconds of ``500``, ``"10 s"``, ``"2 min"`` or a Duration."""
    if not isinstance(value, str):
        return milliseconds_of(value)
    match = _DURATION.fullmatch(value.strip())
    if match is not None:
        number, unit = int(match[1]), match[2].lower()
        for scale, names in _UNITS_MS.items():
            if unit in names:
                return number * scale
    raise ValueError("a duration is a number with ms, s, min, h or d")


def _size(value: Any) -> int:
    match = _SIZE.fullmatch(str(value).strip())
    if match is None:
        raise ValueError("a size is a number with b, kb, mb, gb or tb")
    return int(match[1]) * _SIZES[(match[2] or "")[:1].lower()]


def _one_path(value: Any) -> str:
    """One directory; Flink takes several, parted by commas or colons."""
    text = str(value).strip()
    if not text or "," in text or ":" in text:
        raise ValueError("it is one directory")
    return text


def _boolean(value: Any) -> bool:
    text = str(value).strip().lower()
    if text not in ("true", "false"):
        raise ValueError("it must be true or false")
    return text == "true"


def _name(value: Any) -> str:
    """The name in the enums' form: ``EXACTLY_ONCE`` and ``exactly-once`` are ``exactly_once``."""
    return str(getattr(value, "value", value)).strip().lower().replace("-", "_")


def _mode(value: Any) -> CheckpointingMode:
    return CheckpointingMode(_name(value))


def _retention(value: Any) -> Retention:
    return Retention(_name(value))


def _claims(value: Any) -> bool:
    name = _name(value)
    if name not in ("claim", "no_claim"):
        raise ValueError("it must be CLAIM or NO_CLAIM")
    return name == "claim"


def _parameters(value: Any) -> dict[str, str]:
    """The pipeline's arguments, from a dict or from Flink's ``key:value,key:value``."""
    if isinstance(value, Mapping):
        return {str(key): str(each) for key, each in value.items()}
    pairs = [pair.partition(":") for pair in str(value).split(",")]
    if not all(key.strip() and colon for key, colon, _ in pairs):
        raise ValueError("it must be a dict, or text of the form key:value,key:value")
    return {key.strip(): each.strip() for key, _, each in pairs}


def _strategy(value: Any) -> RestartStrategyKind:
    name = _name(value)
    return RestartStrategyKind("none" if name in ("off", "disable") else name)


def _backend(value: Any) -> StateBackendKind:
    name = _name(value)
    if name in ("filesystem", "jobmanager"):  # Flink's older names for state in memory.
        return StateBackendKind.HASHMAP
    if name not in list(StateBackendKind):
        raise ValueError(f"it is one of {', '.join(StateBackendKind)}")
    return StateBackendKind(name)


def _security(value: Any) -> NetworkSecurity:
    return NetworkSecurity(_name(value))


_CHECKPOINTING = "execution.checkpointing."
_FIXED = "restart-strategy.fixed-delay."
_RATE = "restart-strategy.failure-rate."
_EXPONENTIAL = "restart-strategy.exponential-delay."

OPTIONS: Mapping[str, Option] = {
    _CHECKPOINTING + "interval": Option("checkpoints", "interval_ms", duration_ms),
    _CHECKPOINTING + "mode": Option("checkpoints", "mode", _mode),
    _CHECKPOINTING + "timeout": Option("checkpoints", "timeout_ms", duration_ms),
    _CHECKPOINTING + "min-pause": Option("checkpoints", "min_pause_ms", duration_ms),
    _CHECKPOINTING + "max-concurrent-checkpoints": Option("checkpoints", "concurrent_max", int),
    _CHECKPOINTING + "tolerable-failed-checkpoints": Option(
        "checkpoints", "tolerable_failures", int
    ),
    _CHECKPOINTING + "unaligned.enabled": Option("unaligned", "enabled", _boolean),
    _CHECKPOINTING + "aligned-checkpoint-timeout": Option("unaligned", "timeout_ms", duration_ms),
    _CHECKPOINTING + "externalized-checkpoint-retention": Option(
        "checkpoints", "retention", _retention
    ),
    _CHECKPOINTING + "num-retained": Option("checkpoints", "retained_max", int),
    _CHECKPOINTING + "data-inline-threshold": Option("checkpoints", "inline_max_bytes", _size),
    _CHECKPOINTING + "dir": Option("checkpoints", "storage", str),
    "execution.state-recovery.path": Option("options", "restore", str),
    "execution.state-recovery.ignore-unclaimed-state": Option(
        "job", "allow_non_restored_state", _boolean
    ),
    "execution.state-recovery.claim-mode": Option("options", "claims", _claims),
    "weir.network.security": Option("channels", "security", _security),
    "weir.on-error": Option("on_error", "action", _name),
    "weir.on-error.limit": Option("on_error", "limit", int),
    "state.backend.type": Option("state", "backend", _backend),
    "state.backend.rocksdb.localdir": Option("state", "directory", str),
    _CHECKPOINTING + "incremental": Option("state", "incremental", _boolean),
    "state.backend.incremental": Option("state", "incremental", _boolean),
    _CHECKPOINTING + "local-backup.enabled": Option("state", "local_copies", _boolean),
    _CHECKPOINTING + "local-backup.dirs": Option("state", "local_copies_directory", _one_path),
    "execution.state-recovery.from-local": Option("state", "local_copies", _boolean),
    "weir.local-backup.max-size": Option("state", "local_copies_bytes_max", _size),
    "weir.state.allow-pickled": Option("job", "allow_pickled_state", _boolean),
    "weir.tap.enabled": Option("job", "allow_tap", _boolean),
    "weir.restart.end-on-repeated-error": Option("restart", "ends_on_repeated_error", _boolean),
    "restart-strategy.type": Option("restart", "kind", _strategy),
    _FIXED + "attempts": Option("restart", "attempts_max", int),
    _FIXED + "delay": Option("restart", "delay_ms", duration_ms),
    _RATE + "max-failures-per-interval": Option("restart", "failures_max", int),
    _RATE + "failure-rate-interval": Option("restart", "failure_interval_ms", duration_ms),
    _RATE + "delay": Option("restart", "delay_ms", duration_ms),
    _EXPONENTIAL + "initial-backoff": Option("restart", "initial_backoff_ms", duration_ms),
    _EXPONENTIAL + "max-backoff": Option("restart", "max_backoff_ms", duration_ms),
    _EXPONENTIAL + "backoff-multiplier": Option("restart", "backoff_multiplier", float),
    _EXPONENTIAL + "reset-backoff-threshold": Option("restart", "reset_after_ms", duration_ms),
    _EXPONENTIAL + "jitter-factor": Option("restart", "jitter", float),
    "parallelism.default": Option("job", "parallelism", int),
    "pipeline.max-parallelism": Option("job", "max_parallelism", int),
    "pipeline.name": Option("job", "name", str),
    "pipeline.operator-chaining.enabled": Option("options", "chaining", _boolean),
    "pipeline.global-job-parameters": Option("job", "parameters", _parameters),
    "pipeline.object-reuse": Option("options", "object_reuse", _boolean),
    "heartbeat.interval": Option("job", "heartbeat_interval_ms", duration_ms),
    "heartbeat.timeout": Option("job", "heartbeat_timeout_ms", duration_ms),
    "slot.request.timeout": Option("job", "slots_timeout_ms", duration_ms),
    "taskmanager.memory.process.size": Option("job", "slot_memory_bytes", _size),
    "slotmanager.redundant-taskmanager-num": Option("job", "spare_slots", int),
}
