"""The driver's records of checkpoints: bounded, and one for each trigger."""

from tests.builders import subtask
from weir.ids import AttemptNumber, CheckpointId
from weir.jobmaster.triggered_checkpoints import (
    REMEMBERED_MAX,
    Stage,
    TriggeredCheckpoint,
    TriggeredCheckpoints,
)
from weir.protocol.elements import BarrierOptions, CheckpointBarrier, CheckpointKind
from weir.protocol.messages import OperatorAck, TriggerCheckpoint

ONE = AttemptNumber(1)


def trigger(
    records: TriggeredCheckpoints,
    checkpoint_id: int,
    *,
    attempt: AttemptNumber = ONE,
    kind: CheckpointKind = CheckpointKind.CHECKPOINT,
    now_ms: int = 0,
) -> TriggeredCheckpoint:
    barrier = CheckpointBarrier(CheckpointId(checkpoint_id), now_ms, BarrierOptions(kind))
    return records.trigger(TriggerCheckpoint(attempt, barrier, ()), now_ms)


def test_a_trigger_that_is_repeated_keeps_the_record() -> None:
    records = TriggeredCheckpoints()
    record = trigger(records, 1, now_ms=5)
    assert trigger(records, 1, now_ms=9) is record
    assert record.since_ms == 5


def test_what_comes_after_the_manifest_was_commanded_is_not_kept() -> None:
    record = trigger(TriggeredCheckpoints(), 1)
    part = OperatorAck(subtask("sink-0"))
    record.file([part])
    assert record.take_acks() == {part.subtask: part}
    record.file([part])
    assert record.acks == {}


def test_the_oldest_records_go_but_not_those_whose_acknowledgements_are_filed() -> None:
    records = TriggeredCheckpoints()
    oldest = trigger(records, 1)
    for number in range(2, REMEMBERED_MAX + 3):
        trigger(records, number).drop()
    assert len(records) == REMEMBERED_MAX
    assert records.get(CheckpointId(1)) is oldest
    assert records.get(CheckpointId(2)) is None
    assert records.get(CheckpointId(4)) is not None


def test_a_stop_is_under_way_in_its_own_attempt_until_it_is_over() -> None:
    records = TriggeredCheckpoints()
    trigger(records, 1)
    assert not records.has_stop(ONE)
    stop = trigger(records, 2, kind=CheckpointKind.STOP_DRAIN)
    assert records.has_stop(ONE)
    assert not records.has_stop(AttemptNumber(2))
    stop.take_acks()
    assert (stop.stage, records.has_stop(ONE)) == (Stage.COMMANDED, True)
    records.drop(CheckpointId(2))
    assert not records.has_stop(ONE)
