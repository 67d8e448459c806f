"""``StateTtlConfig``: the time-to-live of a state, under PyFlink's names.

Every value, every element of a list and every entry of a map has a time-to-live of its own, which
begins anew when it is written, or also when it is read. Beside Flink's processing time it may run
in event time, which Flink does not offer.

Expired entries leave in three ways, with any cleanup that the configuration names: when a read
meets them, in the background by slices (unless it is disabled), and in every snapshot, which does
not hold them. The ``cleanup_*`` methods are there so that programs for Flink run unchanged.

Source: Flink, ``StateTtlConfig`` and ``TtlStateFactory``.
"""

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Self, TypeAlias

from weir.common.time import Duration, Time, milliseconds_of
from weir.errors import ConfigError

Length: TypeAlias = Duration | Time | dt.timedelta | int


class Strategies(Enum):
    """The ways in which Flink removes expired entries."""

    FULL_STATE_SCAN_SNAPSHOT = 0
    INCREMENTAL_CLEANUP = 1
    ROCKSDB_COMPACTION_FILTER = 2


@dataclass(frozen=True, slots=True)
class IncrementalCleanupStrategy:
    """Flink's settings of a cleanup at accesses; without effect in Weir."""

    cleanup_size: int
    run_for_every_record: bool

    def get_cleanup_size(self) -> int:
        """The entries looked at in one go."""
        return self.cleanup_size

    def run_cleanup_for_every_record(self) -> bool:
        """Whether each record runs a cleanup."""
        return self.run_for_every_record


@dataclass(frozen=True, slots=True)
class RocksdbCompactFilterCleanupStrategy:
    """Flink's settings of a cleanup in compactions; without effect in Weir."""

    query_time_after_num_entries: int

    def get_query_time_after_num_entries(self) -> int:
        """The entries after which the filter reads the clock again."""
        return self.query_time_after_num_entries


@dataclass(frozen=True, slots=True)
class CleanupStrategies:
    """The removal of expired entries, as configured."""

    strategies: Mapping[Strategies, Any] = field(default_factory=dict)
    in_background: bool = True

    def is_cleanup_in_background(self) -> bool:
        """Whether expired entries are removed in the background."""
        return self.in_background

    def in_full_snapshot(self) -> bool:
        """Whether snapshots leave expired entries out; Weir's always do."""
        return True

    def get_incremental_cleanup_strategy(self) -> IncrementalCleanupStrategy | None:
        """Flink's settings of a cleanup at accesses."""
        return self.strategies.get(Strategies.INCREMENTAL_CLEANUP)

    def get_rocksdb_compact_filter_cleanup_strategy(
        self,
    ) -> RocksdbCompactFilterCleanupStrategy | None:
        """Flink's settings of a cleanup in compactions."""
        return self.strategies.get(Strategies.ROCKSDB_COMPACTION_FILTER)


@dataclass(frozen=True, slots=True)
class StateTtlConfig:
    """The time-to-live of a state; made by ``StateTtlConfig.new_builder(ttl)``.

    Raises:
        ConfigError: The time is not positive, or no length of time.
    """

    class UpdateType(Enum):
        """The accesses that begin the time-to-live anew."""

        Disabled = 0  # The state has none.
        OnCreateAndWrite = 1
        OnReadAndWrite = 2

    class StateVisibility(Enum):
        """Whether a read may return what has expired and is not yet removed."""

        ReturnExpiredIfNotCleanedUp = 0
        NeverReturnExpired = 1

    class TtlTimeCharacteristic(Enum):
        """The time by which a time-to-live runs; event time is not in PyFlink."""

        ProcessingTime = 0
        EventTime = 1

    update_type: UpdateType
    state_visibility: StateVisibility
    ttl_time_characteristic: TtlTimeCharacteristic
    ttl: Length
    cleanup_strategies: CleanupStrategies = field(default_factory=CleanupStrategies, compare=False)

    def __post_init__(self) -> None:
        for value, kind in (
            (self.update_type, self.UpdateType),
            (self.state_visibility, self.StateVisibility),
            (self.ttl_time_characteristic, self.TtlTimeCharacteristic),
        ):
            if not isinstance(value, kind):
                raise ConfigError(f"{value!r} is no StateTtlConfig.{kind.__name__}")
        ttl_ms = milliseconds_of(self.ttl)
        if ttl_ms <= 0:
            raise ConfigError(
                f"a time-to-live must be positive, not {ttl_ms} ms; leave it out for state that "
                "never expires"
            )
        object.__setattr__(self, "ttl", Duration.of_millis(ttl_ms))

    @staticmethod
    def new_builder(ttl: Length) -> "Builder":
        """A builder of a configuration with this time-to-live."""
        return Builder(ttl)

    def get_update_type(self) -> UpdateType:
        """The accesses that begin the time-to-live anew."""
        return self.update_type

    def get_state_visibility(self) -> StateVisibility:
        """Whether a read may return what has expired and is not yet removed."""
        return self.state_visibility

    def get_ttl(self) -> Duration:
        """The time-to-live."""
        return Duration.of_millis(self.ttl_ms)

    def get_ttl_time_characteristic(self) -> TtlTimeCharacteristic:
        """The time by which it runs."""
        return self.ttl_time_characteristic

    def is_enabled(self) -> bool:
        """Whether the state expires at all."""
        return self.update_type is not self.UpdateType.Disabled

    def get_cleanup_strategies(self) -> CleanupStrategies:
        """The removal of expired entries."""
        return self.cleanup_strategies

    @property
    def ttl_ms(self) -> int:
        """The time-to-live in milliseconds."""
        return milliseconds_of(self.ttl)


class Builder:
    """Builds a ``StateTtlConfig``: on create and write, never returning what expired, in
    processing time, unless it is told otherwise."""

    def __init__(self, ttl: Length) -> None:
        self._ttl = ttl
        self._update_type = StateTtlConfig.UpdateType.OnCreateAndWrite
        self._visibility = StateTtlConfig.StateVisibility.NeverReturnExpired
        self._time = StateTtlConfig.TtlTimeCharacteristic.ProcessingTime
        self._strategies: dict[Strategies, Any] = {}
        self._in_background = True

    def set_update_type(self, update_type: StateTtlConfig.UpdateType) -> Self:
        """Set the accesses that begin the time-to-live anew."""
        self._update_type = update_type
        return self

    def update_ttl_on_create_and_write(self) -> Self:
        """Begin it anew with every write."""
        return self.set_update_type(StateTtlConfig.UpdateType.OnCreateAndWrite)

    def update_ttl_on_read_and_write(self) -> Self:
        """Begin it anew with every write and every read."""
        return self.set_update_type(StateTtlConfig.UpdateType.OnReadAndWrite)

    def set_state_visibility(self, state_visibility: StateTtlConfig.StateVisibility) -> Self:
        """Set whether a read may return what has expired and is not yet removed."""
        self._visibility = state_visibility
        return self

    def return_expired_if_not_cleaned_up(self) -> Self:
        """Let a read return what has expired, once: that read removes it."""
        return self.set_state_visibility(StateTtlConfig.StateVisibility.ReturnExpiredIfNotCleanedUp)

    def never_return_expired(self) -> Self:
        """Let no read return what has expired."""
        return self.set_state_visibility(StateTtlConfig.StateVisibility.NeverReturnExpired)

    def set_ttl_time_characteristic(
        self, ttl_time_characteristic: StateTtlConfig.TtlTimeCharacteristic
    ) -> Self:
        """Set the time by which the time-to-live runs."""
        self._time = ttl_time_characteristic
        return self

    def use_processing_time(self) -> Self:
        """Let it run in processing time."""
        return self.set_ttl_time_characteristic(StateTtlConfig.TtlTimeCharacteristic.ProcessingTime)

    def use_event_time(self) -> Self:
        """Let it run in event time, by the watermark; not in PyFlink."""
        return self.set_ttl_time_characteristic(StateTtlConfig.TtlTimeCharacteristic.EventTime)

    def cleanup_full_snapshot(self) -> Self:
        """Leave expired entries out of snapshots, which Weir always does."""
        self._strategies[Strategies.FULL_STATE_SCAN_SNAPSHOT] = True
        return self

    def cleanup_incrementally(self, cleanup_size: int, run_cleanup_for_every_record: bool) -> Self:
        """Note Flink's settings; Weir removes expired entries by slices of its own."""
        self._strategies[Strategies.INCREMENTAL_CLEANUP] = IncrementalCleanupStrategy(
            cleanup_size, run_cleanup_for_every_record
        )
        return self

    def cleanup_in_rocksdb_compact_filter(
        self, query_time_after_num_entries: int, periodic_compaction_time: Length | None = None
    ) -> Self:
        """Note Flink's settings; Weir removes expired entries by slices of its own."""
        self._strategies[Strategies.ROCKSDB_COMPACTION_FILTER] = (
            RocksdbCompactFilterCleanupStrategy(query_time_after_num_entries)
        )
        return self

    def disable_cleanup_in_background(self) -> Self:
        """Remove expired entries only where a read meets them, and from snapshots."""
        self._in_background = False
        return self

    def set_ttl(self, ttl: Length) -> Self:
        """Set the time-to-live."""
        self._ttl = ttl
        return self

    def build(self) -> StateTtlConfig:
        """The configuration.

        Raises:
            ConfigError: The time is not positive, or no length of time.
        """
        return StateTtlConfig(
            self._update_type,
            self._visibility,
            self._time,
            self._ttl,
            CleanupStrategies(dict(self._strategies), self._in_background),
        )
