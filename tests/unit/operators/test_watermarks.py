import datetime as dt
from typing import Any

import pyarrow as pa
import pytest

from tests.unit.operators.operator_harness import Harness
from weir.common import Duration, TimestampAssigner, WatermarkStrategy
from weir.errors import ConfigError, SchemaError, SubtaskError
from weir.operators.watermarks import WatermarkFactory
from weir.protocol.elements import MAX_WATERMARK_MS, MIN_WATERMARK_MS


def harness(strategy: WatermarkStrategy) -> Harness:
    return Harness(WatermarkFactory(strategy), keyed=False)


def by_value(strategy: WatermarkStrategy) -> WatermarkStrategy:
    return strategy.with_timestamp_assigner(lambda value, before: value)


MONOTONOUS = by_value(WatermarkStrategy.for_monotonous_timestamps())
BOUNDED = by_value(WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_millis(10)))


def watermarks(h: Harness) -> list[Any]:
    return [e for e in h.output.events if e[0] != "rows"]


def test_a_watermark_follows_each_slice_one_below_the_highest_timestamp() -> None:
    h = harness(MONOTONOUS)
    h.rows([5, 7])
    assert h.output.events == [("rows", [5, 7]), ("watermark", 6)]
    assert h.output.batches[0].timestamps.tolist() == [5, 7]  # type: ignore[union-attr]


def test_the_bound_holds_the_watermark_back() -> None:
    h = harness(BOUNDED)
    h.rows([100, 95])
    assert watermarks(h) == [("watermark", 89)]


def test_a_resolution_sends_the_watermark_at_the_record_that_passes_a_multiple() -> None:
    h = harness(BOUNDED.with_resolution(100))
    h.rows([100, 150, 115, 209, 210, 120, 450])
    assert h.output.events == [
        ("rows", [100]),  # 89: event time begins.
        ("watermark", 89),
        ("rows", [150]),  # 139 passes 100, less one.
        ("watermark", 139),
        ("rows", [115, 209, 210]),
        ("watermark", 199),
        ("rows", [120, 450]),
        ("watermark", 439),
    ]


def test_with_a_resolution_slices_do_not_matter_to_where_multiples_are_passed() -> None:
    rows = [100, 150, 115, 209, 210, 120, 450, 300, 460, 520]
    crossings = []
    for size in (1, 3, 10):
        h = harness(BOUNDED.with_resolution(100))
        for start in range(0, len(rows), size):
            h.rows(rows[start : start + size])
        seen, crossed = 0, []
        for kind, value in h.output.events:
            if kind == "rows":
                seen += len(value)
            elif not crossed or (value + 1) // 100 > crossed[-1][1]:
                crossed.append((seen, (value + 1) // 100))
        crossings.append(crossed)
    assert crossings[0] == crossings[1] == crossings[2]


def test_a_restored_operator_says_first_how_far_event_time_had_come() -> None:
    before = harness(MONOTONOUS)
    before.rows([50])
    after = Harness(WatermarkFactory(MONOTONOUS), keyed=False, restored=before.snapshot())
    after.rows([40])
    assert after.output.events == [("watermark", 49), ("rows", [40])]


def test_a_watermark_is_emitted_only_when_it_rises() -> None:
    h = harness(BOUNDED)
    h.rows([100])
    h.rows([95, 100])
    h.rows([101])
    assert watermarks(h) == [("watermark", 89), ("watermark", 90)]


def test_an_assigner_object_sees_the_timestamp_the_record_had() -> None:
    class Later(TimestampAssigner):
        def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
            return 0 if record_timestamp == MIN_WATERMARK_MS else record_timestamp + value

    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(Later())
    h = harness(strategy)
    h.rows([1], [10])
    h.rows([1])
    assert [b.timestamps.tolist() for b in h.output.batches] == [[11], [0]]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "column",
    [
        pa.array([1_500, 2_500], pa.int32()),
        pa.array([1_500_000, 2_500_000], pa.timestamp("us")),
        pa.array([1_500_000_000, 2_500_000_000], pa.timestamp("ns", "UTC")),
    ],
)
def test_a_timestamp_column_is_read_in_milliseconds(column: pa.Array) -> None:
    h = harness(WatermarkStrategy.for_monotonous_timestamps().with_timestamp_column("ts"))
    h.columns(ts=column)
    assert h.output.batches[0].timestamps.tolist() == [1_500, 2_500]  # type: ignore[union-attr]
    assert watermarks(h) == [("watermark", 2_499)]


def test_dates_count_from_midnight() -> None:
    h = harness(WatermarkStrategy.for_monotonous_timestamps().with_timestamp_column("day"))
    h.columns(day=[dt.date(1970, 1, 2)])
    assert h.output.batches[0].timestamps.tolist() == [86_400_000]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"x": [1]}, "is missing; the records have x"),
        ({"ts": ["1970"]}, "must be an Arrow timestamp"),
        ({"ts": [1, None]}, "holds 1 null;"),
        ({"ts": [None, 1, None]}, "holds 2 nulls;"),
    ],
)
def test_a_timestamp_column_that_cannot_be_used_is_refused(
    columns: dict[str, Any], message: str
) -> None:
    h = harness(WatermarkStrategy.for_monotonous_timestamps().with_timestamp_column("ts"))
    with pytest.raises(SchemaError, match=message):
        h.columns(**columns)


SECONDS = 1_767_225_600
BY_COLUMN = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_column("ts")
ASSIGNED = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda n, _: n)


@pytest.mark.parametrize(
    ("first", "says"),
    [
        (SECONDS, "milliseconds, which is early in 1970; if these are seconds, multiply"),
        (SECONDS * 1_000, ""),
        (SECONDS * 1_000_000, "after the year 5000; if these are microseconds or nanoseconds"),
        (SECONDS * 1_000_000_000, "after the year 5000"),
        (10**9 - 1, ""),
        (10**10, ""),
        (-SECONDS, ""),
    ],
)
@pytest.mark.parametrize("is_column", [True, False])
def test_a_first_timestamp_in_another_unit_is_remarked_on_once(
    first: int, says: str, is_column: bool, caplog: pytest.LogCaptureFixture
) -> None:
    h = harness(BY_COLUMN if is_column else ASSIGNED)
    for _ in range(2):
        if is_column:
            h.columns(ts=[first, 5])
        else:
            h.rows([first, 5])
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == bool(says)
    assert all(says in message and str(first) in message for message in messages)


def test_a_column_that_has_a_unit_is_not_remarked_on(caplog: pytest.LogCaptureFixture) -> None:
    h = harness(BY_COLUMN)
    h.columns(ts=pa.array([SECONDS], pa.timestamp("ms")))
    h.columns(ts=[SECONDS])
    assert [b.timestamps.tolist() for b in h.output.batches] == [[SECONDS], [SECONDS]]  # type: ignore[union-attr]
    assert not caplog.records


def test_an_assigner_that_throws_is_named_with_its_record() -> None:
    strategy = WatermarkStrategy.for_monotonous_timestamps()
    h = harness(strategy.with_timestamp_assigner(lambda value, before: value["t"]))
    with pytest.raises(SubtaskError, match=r"on the record \{'x': 1\}: KeyError"):
        h.rows([{"t": 1}, {"x": 1}, {"t": 3}])


def test_an_assigner_that_returns_no_number_is_refused_with_its_record() -> None:
    strategy = WatermarkStrategy.for_monotonous_timestamps()
    h = harness(strategy.with_timestamp_assigner(lambda value, before: value))
    with pytest.raises(SchemaError, match=r"returned None for the record None"):
        h.rows([1, None, 3])


@pytest.mark.parametrize("returned", [1.5, True, "1", 2**63])
def test_an_assigner_that_returns_no_timestamp_is_refused(returned: object) -> None:
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(
        lambda record, at: record  # type: ignore[no-any-return]
    )
    harness = Harness(WatermarkFactory(strategy), keyed=False)
    with pytest.raises(SchemaError, match=r"for the record .* must return integer milliseconds"):
        harness.rows([1, returned])


def test_watermarks_from_before_are_ignored_but_for_the_last() -> None:
    h = harness(MONOTONOUS)
    assert h.watermark(500) == []
    assert h.watermark(MAX_WATERMARK_MS) == [("watermark", MAX_WATERMARK_MS)]


def test_without_watermarks_timestamps_are_still_assigned() -> None:
    h = harness(by_value(WatermarkStrategy.no_watermarks()))
    h.rows([5])
    assert watermarks(h) == []
    assert h.output.batches[0].timestamps.tolist() == [5]  # type: ignore[union-attr]


def test_a_silent_stream_becomes_idle_once_and_active_with_the_next_record() -> None:
    h = harness(MONOTONOUS.with_idleness(Duration.of_seconds(1)))
    h.rows([5])
    start = h.clock.ms
    assert h.clock_to(start + 999) == []
    assert h.clock_to(start + 1_000) == [("idle",)]
    assert h.operator.next_timer_ms() is None
    h.rows([5])  # No progress, but downstream must count this stream again.
    assert watermarks(h) == [("watermark", 4), ("idle",), ("watermark", 4)]
    assert h.clock_to(start + 1_500) == []


def test_records_put_idleness_off() -> None:
    h = harness(MONOTONOUS.with_idleness(Duration.of_seconds(1)))
    start = h.clock.ms
    h.clock_to(start + 900)
    h.rows([5])
    assert h.operator.next_timer_ms() == start + 1_900


def test_settings_out_of_range_are_refused() -> None:
    with pytest.raises(ConfigError, match="cannot be negative"):
        WatermarkStrategy.for_bounded_out_of_orderness(-1)
    with pytest.raises(ConfigError, match="must be positive"):
        MONOTONOUS.with_idleness(0)
    with pytest.raises(ConfigError, match="with_timestamp_column"):
        MONOTONOUS.with_timestamp_assigner("ts")  # type: ignore[arg-type]
