"""Slices are brief while a barrier overtakes records, and only then."""

import pytest

from tests.builders import barrier
from tests.unit.worker.gate_harness import records
from tests.unit.worker.subtask_harness import ATTEMPT, Passing
from tests.unit.worker.test_worker import CHANNEL, WorkerHarness
from weir.common.batch import Batch
from weir.ids import CheckpointId
from weir.protocol.elements import Alignment, CheckpointBarrier
from weir.protocol.messages import CheckpointAborted, CheckpointCompleted, TriggerCheckpoint
from weir.worker.ports import ElementArrived
from weir.worker.slice_size import BRIEF_NS, WALL_MAX_NS

FULL, BRIEF = int(WALL_MAX_NS / 1e6), int(BRIEF_NS / 1e6)  # In rows of a millisecond each.
UNALIGNED = barrier(1, alignment=Alignment.UNALIGNED)


class Waiting(Passing):
    """A function that waits a millisecond for each row, and uses no processor."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = 0
        self.clock = None  # The harness's, which is there before any batch.

    def on_batch(self, batch: Batch, input_index: int) -> None:
        self.rows = len(batch)
        self.clock.ms += len(batch)  # type: ignore[attr-defined]


class Slices:
    """A worker whose sink always has rows; ``take`` lets it do slices."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.harness = WorkerHarness(Waiting, credit_bytes=1 << 30)
        monkeypatch.setattr(self.harness.clock, "thread_ns", lambda: 0, raising=False)
        self.harness.deploy()
        self.harness.sink.clock = self.harness.clock
        self.harness.worker.handle(ElementArrived(CHANNEL, records(*range(100_000))))
        self.take(100)

    def take(self, count: int = 1) -> int:
        """Let the worker do so many slices; the rows of the last."""
        for _ in range(count):
            assert self.harness.worker.run_once() == 0
        return int(self.harness.sink.rows)

    def until(self, ms: int) -> list[int]:
        """Let the worker do slices while they begin before a time; the rows of each."""
        taken = []
        while self.harness.clock.ms < ms:
            taken.append(self.take())
        return taken

    def trigger(self, sent: CheckpointBarrier) -> None:
        """Begin a checkpoint."""
        self.harness.command(TriggerCheckpoint(ATTEMPT, sent, ()))

    def complete(self, checkpoint_id: int) -> None:
        """Complete a checkpoint."""
        self.harness.command(CheckpointCompleted(ATTEMPT, CheckpointId(checkpoint_id)))

    def abort(self, checkpoint_id: int) -> None:
        """Give a checkpoint up."""
        self.harness.command(CheckpointAborted(ATTEMPT, CheckpointId(checkpoint_id)))


@pytest.fixture
def slices(monkeypatch: pytest.MonkeyPatch) -> Slices:
    return Slices(monkeypatch)


def test_slices_that_wait_are_brief_from_an_unaligned_trigger_to_the_completion(
    slices: Slices,
) -> None:
    before = slices.take()
    assert FULL / 2 < before <= FULL
    slices.trigger(UNALIGNED)
    assert [slices.take() for _ in range(50)] == [BRIEF] * 50
    slices.complete(1)
    assert slices.take() == before, "brief ones do not change the size"


def test_they_are_brief_until_an_abort(slices: Slices) -> None:
    slices.trigger(UNALIGNED)
    slices.trigger(barrier(2, alignment=Alignment.UNALIGNED))
    slices.abort(1)
    assert slices.take() == BRIEF, "the second is under way"
    slices.abort(2)
    assert slices.take() > BRIEF


def test_a_completed_checkpoint_ends_those_before_it_and_not_the_next(slices: Slices) -> None:
    for checkpoint_id in (1, 2, 3):
        slices.trigger(barrier(checkpoint_id, alignment=Alignment.UNALIGNED))
    slices.complete(2)
    assert slices.take() == BRIEF
    slices.complete(3)
    assert slices.take() > BRIEF


def test_an_aligned_checkpoint_and_a_savepoint_leave_slices_as_they_are(slices: Slices) -> None:
    slices.trigger(barrier(1))
    assert min(slices.take() for _ in range(20)) > BRIEF


def test_with_a_time_out_they_are_brief_just_before_it(slices: Slices) -> None:
    """So the slice in which the alignment times out is a brief one."""
    now_ms = slices.harness.clock.ms
    slices.trigger(barrier(1, triggered_at_ms=now_ms, alignment_timeout_ms=600))
    assert min(slices.until(now_ms + 600 - FULL)) > BRIEF
    assert slices.harness.clock.ms < now_ms + 600
    assert [slices.take() for _ in range(50)] == [BRIEF] * 50
    slices.complete(1)
    assert slices.take() > BRIEF


def test_a_trigger_by_a_clock_ahead_delays_nothing(slices: Slices) -> None:
    now_ms = slices.harness.clock.ms
    slices.trigger(barrier(1, triggered_at_ms=now_ms + 3_600_000, alignment_timeout_ms=600))
    slices.until(now_ms + 600 - FULL)
    assert slices.take() == BRIEF
