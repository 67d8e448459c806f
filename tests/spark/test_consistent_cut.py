"""A checkpoint of ``odd_even`` on Spark: what the sums saved is what the sources had emitted."""

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.spark.harness import Listening, environment
from weir.examples import odd_even
from weir.ids import CheckpointId, JobId, StateHandle
from weir.protocol.events import CheckpointSettled, JobEvent
from weir.state.operator_state import OperatorListState
from weir.storage.layout import JobLayout
from weir.storage.local import LocalStore
from weir.storage.manifest import Manifest, find_jobs, load, read_handle

pytestmark = [pytest.mark.usefixtures("local")]


def items(data: bytes) -> list[Any]:
    state = OperatorListState("any")
    state.restore(data)
    return state.get()


class Reading:
    """Reads every completed checkpoint before a newer one may remove it."""

    def __init__(self, storage: Path) -> None:
        self._store = LocalStore(storage)
        self.manifests: list[Manifest] = []
        self.emitted: list[Counter[str]] = []  # By parity: the sum of the numbers so far.
        self.saved: list[Counter[str]] = []

    def __call__(self, event: JobEvent) -> None:
        if isinstance(event, CheckpointSettled) and event.failure is None:
            (job,) = find_jobs(self._store, "odd even")
            self._read(job, event.checkpoint_id)

    def _read(self, job: JobId, checkpoint: CheckpointId) -> None:
        manifest = load(self._store.read(JobLayout(job).manifest(checkpoint)))
        assert isinstance(manifest, Manifest)
        emitted: Counter[str] = Counter()
        saved: Counter[str] = Counter()
        starts = {1, 1_000}
        for handle in manifest.handles:
            data = read_handle(self._store, job, handle)
            if handle.kind == "keyed":
                saved.update(_sums(handle, data))
            elif handle.name == "splits":
                for item in items(data):
                    start = item["split"]["next"]
                    position = start if item["position"] is None else item["position"]
                    emitted.update(_by_parity(range(start, position)))
                    starts.discard(start)
        for start in starts:  # A source that is through has no split left.
            emitted.update(_by_parity(range(start, start + odd_even.NUMBERS)))
        self.manifests.append(manifest)
        self.emitted.append(emitted)
        self.saved.append(saved)


def _by_parity(numbers: range) -> dict[str, int]:
    return {
        parity: sum(n for n in numbers if odd_even.parity(n) == parity)
        for parity in ("odd", "even")
    }


def _sums(handle: StateHandle, data: bytes) -> dict[str, int]:
    rows = pa.ipc.open_file(pa.py_buffer(data)).read_all().to_pylist()
    return {row["key"]: row["value"] for row in rows}


def test_six_acknowledgements_hold_a_consistent_cut(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    reading = Reading(tmp_path)
    env = environment(tmp_path, interval_ms=300)
    odd_even.build(env)
    with Listening(reading):
        result = env.execute("odd even")
    assert result.history.completed_count >= 5
    for manifest, emitted, saved in zip(
        reading.manifests, reading.emitted, reading.saved, strict=True
    ):
        assert len(manifest.acks) == 6
        assert +saved == +emitted, f"checkpoint {manifest.checkpoint_id} is no consistent cut"
    assert len({tuple(saved.items()) for saved in reading.saved}) > 3, "the sums did grow"
    assert any(
        {handle.name for handle in manifest.handles if handle.kind == "keyed"}
        for manifest in reading.manifests
    )
    printed = capfd.readouterr().out.splitlines()
    assert len([line for line in printed if "> " in line]) == 2 * odd_even.NUMBERS
