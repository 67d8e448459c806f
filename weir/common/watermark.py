"""Watermark strategies: how records get timestamps, and by how much they may be out of order.

A *watermark* t says that no record with a timestamp of t or less will follow. Both strategies here
follow the highest timestamp seen: minus the bound by which records may come out of order, minus one
millisecond, because another record with the very same timestamp may still come.

Given to ``from_source``, a strategy is applied to every split of the source by itself: the bound is
about the records of one split, and the watermark of a subtask is the least of its splits'.

Source: Flink, BoundedOutOfOrdernessWatermarks, WatermarksWithIdleness and, for alignment, FLIP-182
and FLIP-217.
"""

import datetime as dt
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from weir.common.signatures import function_name, mismatch
from weir.common.time import Duration, Time, milliseconds_of
from weir.errors import ConfigError

Length: TypeAlias = Duration | Time | dt.timedelta | int


class TimestampAssigner(ABC):
    """The user's function that reads the event time of a record."""

    @abstractmethod
    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        """The record's event time in milliseconds since the epoch.

        ``record_timestamp`` is the timestamp that the record carries, or the smallest int64.
        """


@dataclass(frozen=True, slots=True)
class WatermarkAlignment:
    """The event time by which splits of a group may be apart, and how often they are compared."""

    group: str
    drift_ms: int
    interval_ms: int


@dataclass(frozen=True, slots=True)
class WatermarkStrategy:
    """The rules for timestamps and watermarks; every ``with_`` method returns a new strategy."""

    bound_ms: int | None  # None: no watermarks until the input ends.
    assign: Callable[[Any, int], int] | None = None  # Per record: (value, record_timestamp).
    column: str | None = None  # Per column instead.
    idle_timeout_ms: int | None = None
    resolution_ms: int | None = None
    alignment: WatermarkAlignment | None = None

    @classmethod
    def for_monotonous_timestamps(cls) -> "WatermarkStrategy":
        """Timestamps never go back within one split; behind the source, within one subtask."""
        return cls(bound_ms=0)

    @classmethod
    def for_bounded_out_of_orderness(cls, max_out_of_orderness: Length) -> "WatermarkStrategy":
        """A record comes at most this much later than one with a higher timestamp."""
        bound_ms = milliseconds_of(max_out_of_orderness)
        if bound_ms < 0:
            raise ConfigError(f"out-of-orderness is {bound_ms} ms; it cannot be negative")
        return cls(bound_ms=bound_ms)

    @classmethod
    def no_watermarks(cls) -> "WatermarkStrategy":
        """Event time stands still until the input ends."""
        return cls(bound_ms=None)

    def with_timestamp_assigner(
        self, timestamp_assigner: TimestampAssigner | Callable[[Any, int], int]
    ) -> "WatermarkStrategy":
        """Timestamps come from an assigner, or a function of (value, record_timestamp)."""
        assign = (
            timestamp_assigner.extract_timestamp
            if isinstance(timestamp_assigner, TimestampAssigner)
            else timestamp_assigner
        )
        if not callable(assign):
            raise ConfigError(
                f"{timestamp_assigner!r} is neither a TimestampAssigner nor a function of "
                "(value, record_timestamp); for a column use with_timestamp_column"
            )
        if (takes := mismatch(assign, 2)) is not None:
            raise ConfigError(
                "with_timestamp_assigner calls its function with two arguments, (value, "
                f"record_timestamp), but {function_name(assign)} takes {takes}"
            )
        return replace(self, assign=assign, column=None)

    def with_timestamp_column(self, name: str) -> "WatermarkStrategy":
        """Timestamps are a column: Arrow timestamps, or integers that are milliseconds."""
        return replace(self, assign=None, column=name)

    def with_resolution(self, resolution: Length) -> "WatermarkStrategy":
        """Emit a watermark at the very record that takes it past a multiple of ``resolution``.

        Without it watermarks are emitted after a slice, and which records are late depends on how
        records fell into slices. With the size of the windows as resolution it depends on the
        records alone (as long as one subtask reads them, one split after the other), at the price
        of a slice per step of event time. Where a subtask reads splits in turn, as an endless
        source does and a restored one may, their turns decide it: a record that keeps to the bound
        within its split is on time in every case.
        """
        resolution_ms = milliseconds_of(resolution)
        if resolution_ms <= 0:
            raise ConfigError(f"the resolution is {resolution_ms} ms; it must be positive")
        return replace(self, resolution_ms=resolution_ms)

    def with_idleness(self, idle_timeout: Length) -> "WatermarkStrategy":
        """A split, or subtask, without records for this long no longer holds event time back.

        A split that is not read, because others go first, does not become idle.
        """
        idle_timeout_ms = milliseconds_of(idle_timeout)
        if idle_timeout_ms <= 0:
            raise ConfigError(f"the idle timeout is {idle_timeout_ms} ms; it must be positive")
        return replace(self, idle_timeout_ms=idle_timeout_ms)

    def with_watermark_alignment(
        self,
        watermark_group: str,
        max_allowed_watermark_drift: Length,
        update_interval: Length | None = None,
    ) -> "WatermarkStrategy":
        """A split that is further ahead of others than the drift is paused until they catch up.

        Aligned are the splits that one subtask of a source reads in turn, each against the one
        furthest behind that is not idle and has a watermark. A split may overshoot by the slice
        that was read last. Subtasks and sources do not wait for each other, so equal groups of two
        sources have no effect yet. ``update_interval`` (None: a second) is how often Flink compares
        subtasks; here it is checked and kept only, as splits are compared before every slice.

        Raises:
            ConfigError: The group has no name, the drift is negative or the interval not positive.
        """
        drift_ms = milliseconds_of(max_allowed_watermark_drift)
        interval_ms = 1_000 if update_interval is None else milliseconds_of(update_interval)
        if not isinstance(watermark_group, str) or not watermark_group:
            raise ConfigError(f"the watermark group is {watermark_group!r}; give it a name")
        if drift_ms < 0:
            raise ConfigError(f"the allowed drift is {drift_ms} ms; it cannot be negative")
        if interval_ms <= 0:
            raise ConfigError(f"the update interval is {interval_ms} ms; it must be positive")
        return replace(self, alignment=WatermarkAlignment(watermark_group, drift_ms, interval_ms))
