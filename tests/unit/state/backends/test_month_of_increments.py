"""A month of incremental checkpoints of one job: its storage stays flat, and nothing is missing.

A checkpoint is taken every hour. Some come to nothing, some drivers die while they delete an
old one, and every day a new attempt restores the newest one, with another parallelism and backend.
"""

from collections.abc import Iterator
from contextlib import suppress
from random import Random

import pytest

from tests.unit.state.backends.test_increments import (
    BOTH,
    HEAP,
    JOB,
    LAYOUT,
    Crash,
    Storage,
    manifest_of,
    opened,
    states_of,
    writer,
)
from weir.ids import AttemptNumber, CheckpointId, StateHandle
from weir.protocol.restore import CHANGES
from weir.state import chains
from weir.state.store import OperatorStateStore
from weir.storage.layout import in_job
from weir.storage.manifest import Manifest, dump, list_checkpoints, verify
from weir.storage.shared_files import discard_attempt, discard_checkpoint, sweep_shared

DAYS, PER_DAY = 30, 24
KEYS, CHANGED, REMOVED = 2_000, 40, 4
RETAINED = 2
ABORTED, CRASHED = 0.05, 0.03  # Of the checkpoints.
PARALLELISM = 2, 1, 3


class Month:
    """The job, its checkpoints and what they must restore."""

    def __init__(self) -> None:
        self.random = Random(30)
        self.store = Storage()
        self.values = dict.fromkeys(range(KEYS), 0)
        self.attempt, self.number, self.base = 0, 0, CheckpointId(0)
        self.line: list[CheckpointId] = []  # Completed and retained.
        self.handles: dict[int, tuple[StateHandle, ...]] = {}  # Of the newest, by subtask.
        self.subtasks: list[OperatorStateStore] = []
        self.aborted = self.crashed = self.increments = 0
        self.restore(PARALLELISM[-1])
        self.update(self.values)

    def restore(self, of: int) -> None:
        """A new attempt, with what the newest checkpoint has."""
        for one in self.subtasks:
            one.close()
        before = max(1, len(self.handles))
        self.attempt += 1
        config = BOTH["rocksdb" if self.attempt % 2 else "hashmap"]
        self.subtasks = [
            opened(config, self.store, self.handles, before, index, of, self.base)
            for index in range(of)
        ]

    def update(self, changes: dict[int, int | None]) -> None:
        for one in self.subtasks:
            state = states_of(one)["value"]
            for key, value in changes.items():
                if one.owns(key):
                    one.keyed.set_current_key(key)
                    state.clear() if value is None else state.update(value)

    def hour(self, *, may_abort: bool) -> None:
        """Some records, and a checkpoint."""
        self.number += 1
        drawn = self.random.sample(range(KEYS), CHANGED)
        changes: dict[int, int | None] = dict.fromkeys(drawn, self.number)
        changes |= dict.fromkeys(drawn[:REMOVED])
        self.update(changes)
        self.values = {k: v for k, v in (self.values | changes).items() if v is not None}
        number, handles = CheckpointId(self.number), {}
        for index, one in enumerate(self.subtasks):
            out = writer(self.store, number, self.attempt, index)
            parts = one.freeze(number, self.base)
            handles[index] = tuple(handle for part in parts for handle in part.write(out))
            for part in parts:
                part.release()
        if may_abort and self.random.random() < ABORTED:
            self.aborted += 1
            discard_attempt(self.store, JOB, number, AttemptNumber(self.attempt))
            return
        self.complete(number, handles)

    def complete(self, number: CheckpointId, handles: dict[int, tuple[StateHandle, ...]]) -> None:
        self.increments += any(h.mode == CHANGES for own in handles.values() for h in own)
        manifest = dump(manifest_of(number, self.attempt, handles))
        assert self.store.create_if_absent(LAYOUT.manifest(number), manifest)
        self.handles, self.base = handles, number
        self.line.append(number)
        past, self.line = self.line[:-RETAINED], self.line[-RETAINED:]
        for old in past:
            if self.random.random() < CRASHED:
                self.store.dies_in = self.random.randrange(3)
            with suppress(Crash):
                discard_checkpoint(self.store, JOB, old)
            self.crashed += self.store.dies_in is not None and self.store.dies_in < 0
            self.store.dies_in = None

    def sweep(self) -> None:
        """As each attempt does: the files that no manifest names, and no checkpoint writes, go."""
        sweep_shared(self.store, JOB, lambda _, number: number <= self.number)
        for number in {int(path.split("chk-")[1].split("/")[0]) for path in self.checkpoints()}:
            if number not in self.line:
                discard_checkpoint(self.store, JOB, CheckpointId(number))

    def checkpoints(self) -> list[str]:
        return [path for path in self.store.list(LAYOUT.directory) if "/chk-" in path]

    def restored(self) -> dict[int, int]:
        """The values of a subtask on the heap after a restore of the newest."""
        one = opened(HEAP, self.store, self.handles, len(self.handles), 0, 1)
        state, values = states_of(one)["value"], {}
        for key in one.keyed.keys("value"):
            one.keyed.set_current_key(key)
            values[key] = state.value()
        return values

    def bytes_stored(self) -> int:
        return sum(len(self.store.read(path)) for path in self.store.list())


@pytest.fixture
def month(monkeypatch: pytest.MonkeyPatch) -> Iterator[Month]:
    monkeypatch.setattr(chains, "CHANGES_MAX", 1_000)  # Or little state is written whole.
    month = Month()
    yield month
    for one in month.subtasks:
        one.close()


@pytest.mark.whole
def test_a_month_of_increments_leaves_storage_flat_and_misses_nothing(month: Month) -> None:
    swept, most = [], []
    for day in range(DAYS):
        stored = []
        for number in range(PER_DAY):
            month.hour(may_abort=number < PER_DAY - 1)
            stored.append(month.bytes_stored())
        assert month.restored() == month.values, day
        most.append(max(stored))
        month.sweep()
        swept.append(month.bytes_stored())
        month.restore(PARALLELISM[day % len(PARALLELISM)])
    assert month.aborted > 20
    assert month.crashed > 10
    assert month.increments > 0.9 * (DAYS * PER_DAY - month.aborted), "others are whole"
    assert max(swept[-7:]) < 1.1 * max(swept[:7])
    assert max(most) < 4 * min(swept), "what a crash leaves, until the sweep of a new attempt"
    kept = [one for one in list_checkpoints(month.store, JOB) if isinstance(one.manifest, Manifest)]
    assert [one.checkpoint_id for one in kept] == month.line[::-1]
    named = set()
    for one in kept:
        assert isinstance(one.manifest, Manifest)
        verify(month.store, one.manifest)
        named |= {in_job(JOB, path) for path in one.manifest.shared_paths}
    assert set(month.store.list(LAYOUT.shared)) == named
