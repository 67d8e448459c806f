"""The memory of a slot whose state is much larger, through a checkpoint, a kill and a restore."""

import tempfile
from pathlib import Path

from tests.benchmarks.jobs import spark
from tests.benchmarks.report import Row, limit_row
from tests.spark.large_state import run_large_state

STATE_BYTES, QUICK_STATE_BYTES = 10_000_000_000, 1_000_000_000
LIMIT_BYTES = 400_000_000
PADDING = 60_000  # Records that keep the job alive for up to 50 minutes.


def large_state(quick: bool) -> list[Row]:
    """The most memory of a slot with 10 GB of state in RocksDB, each value of it compared."""
    state_bytes = QUICK_STATE_BYTES if quick else STATE_BYTES
    with tempfile.TemporaryDirectory(prefix="weir-bench-") as name, spark(slots=1):
        result, watcher, keys = run_large_state(
            Path(name), state_bytes=state_bytes, limit_bytes=LIMIT_BYTES, padding=PADDING
        )
    right = {key for key, is_right, _ in result.collected if is_right}
    if len(result.collected) != keys or right != set(range(keys)):
        raise AssertionError(f"of {keys} values {keys - len(right)} were lost or wrong")
    (recovered,) = result.history.recoveries
    held = max(peak.anonymous for peak in watcher.peaks.values())
    resident = max(peak.resident for peak in watcher.peaks.values())
    return [
        limit_row(
            f"the most memory that a slot holds with {watcher.stored / 1e9:.1f} GB in RocksDB",
            "B",
            held,
            at_most=LIMIT_BYTES,
            baseline=watcher.stored,
            against="its state",
            note=f"{resident / 1e6:.0f} MB with resident files; filled, checkpointed, killed, "
            f"restored in {recovered.restore_ms / 1e3:.0f} s, and all {keys:,} values compared",
        )
    ]
