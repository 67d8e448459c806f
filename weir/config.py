"""Settings of a job, checked once when they are constructed.

Nothing else in the runtime holds a default. Names say units; defaults are Flink's unless a comment
says otherwise.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, Self

from weir.bounds import Count, DelayMs, Factor, Word
from weir.errors import ConfigError

SECRET_NAME_LENGTH_MAX = 64
SECRET_NAME_RULE = (
    f"a name has 1 to {SECRET_NAME_LENGTH_MAX} letters, digits and underscores, does not begin "
    "with a digit and does not end with _FILE"
)
# Up to 140 MB of it an idle worker process takes: Python, NumPy and Arrow.
SLOT_MEMORY_BYTES_MIN = 160 << 20
UNANSWERED_MS_MAX = 30_000  # A machine that vanished sends no end of a connection.
_SECRET_NAME = re.compile(r"(?!.*_FILE\Z)[A-Za-z_][A-Za-z0-9_]*")


def is_secret_name(name: str) -> bool:
    """Whether a secret may have this name, which becomes part of an environment variable's."""
    return len(name) <= SECRET_NAME_LENGTH_MAX and _SECRET_NAME.fullmatch(name) is not None


def from_mapping(cls: type, values: Mapping[str, Any]) -> Any:
    """Build the config dataclass ``cls`` from ``values``, refusing keys that it does not have."""
    known = {f.name for f in fields(cls)}
    if unknown := sorted(set(values) - known):
        raise ConfigError(
            f"{cls.__name__} has no setting {', '.join(unknown)}; it has {', '.join(sorted(known))}"
        )
    return cls(**values)


class CheckpointingMode(StrEnum):
    """The guarantee for a record's effect on state after a restore, and what waits for it."""

    EXACTLY_ONCE = "exactly_once"  # A channel waits for the barriers of the others.
    AT_LEAST_ONCE = "at_least_once"  # Nothing waits.
    STOP_THE_WORLD = "stop_the_world"  # Exactly once; the pipeline waits for the checkpoint.


class Retention(StrEnum):
    """Whether checkpoints outlive their job."""

    NO_EXTERNALIZED_CHECKPOINTS = "no_externalized_checkpoints"
    DELETE_ON_CANCELLATION = "delete_on_cancellation"  # Kept when the job fails.
    RETAIN_ON_CANCELLATION = "retain_on_cancellation"  # Kept when it fails or is cancelled.


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointConfig:
    """Settings of checkpoints: when they are taken, how, and how many are retained."""

    interval_ms: DelayMs | None = None  # None: periodic checkpointing is off.
    mode: CheckpointingMode = CheckpointingMode.EXACTLY_ONCE
    timeout_ms: DelayMs = 600_000
    min_pause_ms: DelayMs = 0
    concurrent_max: Count = 1
    tolerable_failures: Count = 0  # The first counting failure beyond these fails the job.
    # None: always aligned. 0: unaligned from the start.
    alignment_timeout_ms: DelayMs | None = None
    retained_max: Count = 3
    retention: Retention = Retention.RETAIN_ON_CANCELLATION  # Library mode outlives its driver.
    inline_max_bytes: Count = 20_000  # Smaller state travels inside the acknowledgement.
    storage: Word | None = None  # A directory or URI; None: memory of the job master.
    # How long abandoned checkpoints are kept, those that a rollback left behind, so that the job
    # can still be restored from them; they do not count among those retained.
    abandoned_ttl_ms: DelayMs = 7 * 86_400_000

    def __post_init__(self) -> None:
        if self.interval_ms is not None and self.interval_ms < 10:
            raise ConfigError(
                f"checkpoint interval is {self.interval_ms} ms; it takes milliseconds, at least "
                "10: a second is 1_000"
            )
        if self.timeout_ms < 10:
            raise ConfigError(f"checkpoint timeout is {self.timeout_ms} ms; at least 10 ms")
        if self.min_pause_ms < 0:
            raise ConfigError("minimum pause between checkpoints cannot be negative")
        if self.concurrent_max < 1:
            raise ConfigError("at least one checkpoint must be allowed at a time")
        if self.tolerable_failures < 0:
            raise ConfigError("tolerable checkpoint failures cannot be negative")
        if self.abandoned_ttl_ms < 0:
            raise ConfigError("the time to keep abandoned checkpoints cannot be negative")
        if self.retained_max < 1:
            raise ConfigError("at least one completed checkpoint must be retained")
        if self.alignment_timeout_ms is not None and self.concurrent_max > 1:
            raise ConfigError("unaligned checkpoints need concurrent_max=1")
        if self.mode is CheckpointingMode.STOP_THE_WORLD:
            if self.alignment_timeout_ms is not None:
                raise ConfigError(
                    "a checkpoint that stops the world cannot be unaligned: nothing flows that its "
                    "barriers could overtake. Disable unaligned checkpoints, or set the mode to "
                    f"{CheckpointingMode.EXACTLY_ONCE}"
                )
            if self.concurrent_max > 1:
                raise ConfigError("checkpoints that stop the world need concurrent_max=1")


class RestartStrategyKind(StrEnum):
    """The rule by which a failed job is restarted."""

    NONE = "none"
    FIXED_DELAY = "fixed_delay"
    FAILURE_RATE = "failure_rate"
    EXPONENTIAL_DELAY = "exponential_delay"


# The settings that each strategy uses, by their names in RestartConfig.
SETTINGS_OF_STRATEGY: Mapping[RestartStrategyKind, tuple[str, ...]] = {
    RestartStrategyKind.NONE: (),
    RestartStrategyKind.FIXED_DELAY: ("attempts_max", "delay_ms"),
    RestartStrategyKind.FAILURE_RATE: ("failures_max", "failure_interval_ms", "delay_ms"),
    RestartStrategyKind.EXPONENTIAL_DELAY: (
        "initial_backoff_ms",
        "max_backoff_ms",
        "backoff_multiplier",
        "reset_after_ms",
        "jitter",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartConfig:
    """Settings of restarts: how often and how soon a failed job is restarted.

    With checkpointing on the default is exponential delay whose first restart is immediate; with
    checkpointing off a failed job fails.
    """

    kind: RestartStrategyKind | None = None  # None: by whether checkpointing is on.
    attempts_max: Count = 1  # Fixed delay.
    delay_ms: DelayMs = 1_000  # Fixed delay, failure rate.
    failures_max: Count = 1  # Failure rate: within the interval.
    failure_interval_ms: DelayMs = 60_000
    initial_backoff_ms: DelayMs = 1_000  # Exponential: after the immediate first restart.
    max_backoff_ms: DelayMs = 60_000
    backoff_multiplier: Factor = 1.5
    reset_after_ms: DelayMs = 3_600_000
    jitter: Factor = 0.1
    # The program's own error at the same place, three times over a minute without a checkpoint
    # between: no restart helps (weir.protocol.repeated_errors).
    ends_on_repeated_error: bool = True

    def __post_init__(self) -> None:
        if self.backoff_multiplier < 1:
            raise ConfigError("backoff_multiplier must be at least 1")
        if not 0 <= self.jitter <= 1:
            raise ConfigError("jitter is a share between 0 and 1")


class NetworkSecurity(StrEnum):
    """The protection of connections between slots, and between slots and the driver."""

    AUTO = "auto"  # Encrypted, unless all slots are on the driver's own machine.
    TLS = "tls"  # Encrypted everywhere.
    PLAIN = "plain"  # Both ends prove a secret, and nothing is encrypted: for trusted networks.


class StateBackendKind(StrEnum):
    """The place of state per key while a job runs; snapshots have one form for all of them."""

    HASHMAP = "hashmap"  # Python objects in memory.
    ROCKSDB = "rocksdb"  # The slot's local disk, and in memory what changed last.


@dataclass(frozen=True, slots=True, kw_only=True)
class StateConfig:
    """Settings of state per key."""

    backend: StateBackendKind = StateBackendKind.HASHMAP
    directory: str | None = None  # Of rocksdb, on each slot's machine; None: for temporary files.
    # Whether checkpoints hold what changed, and share the rest; None: those of rocksdb do.
    incremental: bool | None = None
    # Each slot keeps a copy of the state files that it writes on its machine, for restarts there.
    local_copies: bool = False
    local_copies_directory: str | None = None  # None: the directory for temporary files.
    local_copies_bytes_max: Count = 10 << 30  # Of each slot.

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "backend", StateBackendKind(self.backend))
        except ValueError as error:
            raise ConfigError(
                f"the state backend is {self.backend!r}; it is one of {', '.join(StateBackendKind)}"
            ) from error
        if self.local_copies_bytes_max < 1:
            raise ConfigError("local copies of state need room: at least one byte for each slot")

    @property
    def is_incremental(self) -> bool:
        """Whether checkpoints hold what changed, and share the rest."""
        if self.incremental is None:
            return self.backend is StateBackendKind.ROCKSDB
        return self.incremental


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelConfig:
    """Settings of connections, and bounds on the bytes under way between subtasks."""

    # A slice is the work of a subtask between two checks for barriers and timers: about
    # slice_target_ms of measured processor time (weir.worker.slice_size), and at most
    # batch_rows_max rows. With a quarter of the rows a running aggregate was measured at half its
    # speed; the time bound keeps slow functions responsive.
    batch_rows_max: int = 32_768
    slice_target_ms: float = 5.0
    frame_bytes_max: int = 1 << 20
    credit_bytes: int = 2 << 20  # Per channel: bytes that the sender may have under way.
    # The credit that a batch costs beside its size: each takes some tenths of a millisecond, in
    # which about this many bytes of a large batch are aggregated. At most 64 tiny batches are under
    # way.
    batch_credit_bytes: int = 32 << 10
    security: NetworkSecurity = NetworkSecurity.AUTO

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "security", NetworkSecurity(self.security))
        except ValueError as error:
            raise ConfigError(
                f"the network's security is {self.security!r}; it is one of "
                f"{', '.join(NetworkSecurity)}"
            ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class JobConfig:
    """All settings of a job, beside its graph."""

    name: str = "job"
    parallelism: int = 1
    max_parallelism: int | None = None  # None: derived from the parallelism, as Flink does.
    checkpoints: CheckpointConfig = field(default_factory=CheckpointConfig)
    restart: RestartConfig = field(default_factory=RestartConfig)
    channels: ChannelConfig = field(default_factory=ChannelConfig)
    state: StateConfig = field(default_factory=StateConfig)
    heartbeat_interval_ms: int = 1_000
    heartbeat_timeout_ms: int = 50_000  # A worker whose loop is silent this long is replaced.
    slots_timeout_ms: int = 60_000  # How long to wait for all slots to register.
    spare_slots: int = 0
    # Resident memory of a slot's worker process; None: its share of a cgroup's limit, if any.
    slot_memory_bytes: Count | None = None
    allow_non_restored_state: bool = False
    # Pickles run code when they are read: state declared as such, and records that are no data.
    allow_pickled_state: bool = False
    # Whether operators of the control plane may look at records that pass (a tap).
    allow_tap: bool = True
    object_reuse: bool = False  # Operators pass on their own objects, without a copy.
    parameters: Mapping[str, str] = field(default_factory=dict)  # The pipeline's own arguments.

    def __post_init__(self) -> None:
        if self.parallelism < 1:
            raise ConfigError(f"parallelism is {self.parallelism}; at least 1")
        if self.spare_slots < 0:
            raise ConfigError(f"spare slots are {self.spare_slots}; at least 0")
        if self.slot_memory_bytes is not None and self.slot_memory_bytes < SLOT_MEMORY_BYTES_MIN:
            raise ConfigError(
                f"the memory of a slot is {self.slot_memory_bytes:,} bytes; at least "
                f"{SLOT_MEMORY_BYTES_MIN:,}, of which an idle worker process takes most"
            )
        if self.max_parallelism is not None and not (
            self.parallelism <= self.max_parallelism <= 32_768
        ):
            raise ConfigError(
                f"max parallelism is {self.max_parallelism}; it must lie between the parallelism "
                f"({self.parallelism}) and 32768"
            )

    @property
    def unanswered_ms_max(self) -> int:
        """The time after which a peer that acknowledges nothing is lost.

        Not before ``heartbeat.timeout``: until then a silent peer is waited for.
        """
        return max(UNANSWERED_MS_MAX, self.heartbeat_timeout_ms)

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Self:
        """Read a config from plain nested mappings, as stored or given by a user."""
        nested = {
            "checkpoints": CheckpointConfig,
            "restart": RestartConfig,
            "channels": ChannelConfig,
            "state": StateConfig,
        }
        plain = {
            key: from_mapping(nested[key], value) if key in nested else value
            for key, value in values.items()
        }
        config: Self = from_mapping(cls, plain)
        return config
