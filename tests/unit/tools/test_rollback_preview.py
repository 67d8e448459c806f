"""The effects of a rollback, told before it is done."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from weir.errors import RestoreError
from weir.ids import AttemptNumber, CheckpointId, JobId, OperatorId, StateHandle, SubtaskId
from weir.output.output_files import CommittedName, TextWriter, mark_of
from weir.output.rollback import RollbackPreview, preview
from weir.protocol.deployment import Versions
from weir.protocol.elements import MAX_WATERMARK_MS, CheckpointKind
from weir.protocol.lineage import AttemptBase
from weir.protocol.messages import OperatorAck, SnapshotMetrics
from weir.protocol.wire import from_wire, to_wire
from weir.storage.attempt_bases import bases_of, note_base
from weir.storage.layout import JobLayout
from weir.storage.local import LocalStore
from weir.storage.manifest import Manifest, OperatorSummary, dump
from weir.storage.memory import MemoryStore
from weir.storage.store import CheckpointStore, checksum_of
from weir.storage.writer import dump_items

JOB = JobId("job-1")
NOW_MS = 1_700_000_000_000
SOURCE, SINK = OperatorId("flights"), OperatorId("sink.1")


def splits(**positions: Any) -> StateHandle:
    items = [{"split": {"file": file}, "position": at} for file, at in positions.items()]
    data = dump_items(items)
    return StateHandle(
        "operator", "splits", len(data), checksum_of(data), inline=data, mode="split"
    )


def base(attempt: int, next_id: int, restored: tuple[int, int] | None = None) -> AttemptBase:
    """The base of an attempt: checkpoint and attempt of that, or the beginning."""
    made = AttemptBase(AttemptNumber(attempt), CheckpointId(next_id))
    if restored is None:
        return made
    return replace(
        made, restored_id=CheckpointId(restored[0]), restored_attempt=AttemptNumber(restored[1])
    )


class Job:
    """A job's storage and output: attempt 1 took 1 to 6, attempt 2 went back to 4, took 7 and 8."""

    def __init__(self, store: CheckpointStore, output: Path) -> None:
        self.store = store
        self.output = output
        for one in (base(1, 1), base(2, 7, (4, 1))):
            note_base(store, JOB, one)
        self.manifests = {
            number: self._put(number, attempt)
            for number, attempt in ((3, 1), (4, 1), (5, 1), (6, 1), (7, 2), (8, 2))
        }

    def _put(self, number: int, attempt: int) -> Manifest:
        records = {3: 300, 4: 400, 5: 500, 6: 600, 7: 500, 8: 550}[number]
        ack = OperatorAck(
            SubtaskId(SOURCE, 0),
            (splits(a=records, b=None),),
            SnapshotMetrics(watermark_ms=records * 60_000),
        )
        made = Manifest(
            job_id=JOB,
            job_name="flights",
            checkpoint_id=CheckpointId(number),
            parent_id=None,
            kind=CheckpointKind.CHECKPOINT,
            attempt=AttemptNumber(attempt),
            triggered_ms=NOW_MS - (10 - number) * 3_600_000,
            completed_ms=NOW_MS,
            versions=Versions("0.1.0", "3.11", "20.0.0"),
            operators=(
                OperatorSummary(SOURCE, "Flights", 1, 128, is_source=True),
                OperatorSummary(SINK, "Rows", 1, 128, files=str(self.output)),
            ),
            acks=(ack,),
            source_records={SOURCE: records},
        )
        self.put(made)
        return made

    def put(self, made: Manifest) -> None:
        self.store.put(JobLayout(JOB).manifest(made.checkpoint_id), dump(made))

    def file(self, number: int, size: int = 10, directory: str = ".") -> None:
        """A committed file of a checkpoint, or a withdrawn one."""
        path = self.output / directory / f"part-sink.1-0-{number}-0.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * size)

    def preview(self, target: int | Manifest | str, **changes: Any) -> RollbackPreview:
        """From the newest checkpoint, 8, to ``target``."""
        given: dict[str, Any] = {
            "newest": self.manifests[8],
            "rewinds_output": True,
            "now_ms": NOW_MS,
            "emitted": {SOURCE: 25},
            **changes,
        }
        to = self.manifests[target] if isinstance(target, int) else target
        return preview(self.store, JOB, to, **given)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(MemoryStore(), tmp_path / "output")


def test_going_back_is_told_in_numbers_and_in_words(job: Job) -> None:
    for number in (3, 4, 7, 8):
        job.file(number, size=1_000 * number)
    job.file(8, directory="_pending/job-1/2")
    job.file(5, directory="_withdrawn/job-1/1")
    seen = job.preview(4)
    (source,), (output,) = seen.sources, seen.outputs
    assert (source.records, source.split_count) == (550 - 400 + 25, 1)
    assert (source.splits[0].now, source.splits[0].then) == ("550", "400")
    assert (output.files_beside, output.bytes_beside, output.files_withdrawn) == (2, 15_000, 0)
    assert (seen.abandoned, seen.reclaimed, seen.is_forward) == ((7, 8), (), False)
    assert seen.event_time_lost_ms == 150 * 60_000
    assert seen.sentences == (
        "the job goes back to checkpoint 4: 6 h of work are undone",
        "source Flights: 175 records are read again; position of file a from 550 to 400",
        "event time goes back by 2 h 30 min, to 1970-01-01 06:40:00 UTC",
        f"output {job.output}: 2 files (15.0 kB) are taken back",
        "checkpoints 7 and 8 are kept for 7 days; until then the job can go on from them after all",
    )


def test_rolling_forward_brings_files_and_checkpoints_back(job: Job) -> None:
    for number in (3, 4, 7, 8):
        job.file(number)
    for number in (5, 6):
        job.file(number, directory="_withdrawn/job-1/1")
    seen = job.preview(6)
    assert (seen.is_forward, seen.abandoned, seen.reclaimed) == (True, (7, 8), (5, 6))
    assert (seen.outputs[0].files_beside, seen.outputs[0].files_withdrawn) == (2, 2)
    assert seen.sources[0].records == 550 - 600 + 25
    assert any("25 records are skipped, since checkpoint 6 has them" in s for s in seen.sentences)
    assert any(
        "2 files (20 B) are taken back; 2 files (20 B) come back" in s for s in seen.sentences
    )
    assert "checkpoints 5 and 6 count again" in seen.sentences
    assert any("event time goes forward by 50 min" in s for s in seen.sentences)


def test_without_rewinding_the_files_stay_and_come_twice(job: Job) -> None:
    job.file(8)
    job.file(4, directory="_withdrawn/job-1/1")
    (said,) = [s for s in job.preview(4, rewinds_output=False).sentences if s.startswith("output")]
    assert "1 file (10 B) stays, and its rows come a second time" in said
    assert "1 file (10 B) stays taken back; its rows are missing" in said


def test_the_newest_checkpoint_costs_only_what_came_since(job: Job) -> None:
    job.file(8)
    seen = job.preview(8)
    assert (seen.sources[0].records, seen.abandoned) == (25, ())
    assert seen.sentences[0] == "the job goes on from its newest checkpoint, 8, taken 2 h ago"
    assert f"output {job.output}: no file moves" in seen.sentences


def test_a_savepoint_after_the_newest_checkpoint_is_not_forward(job: Job) -> None:
    taken = replace(
        job.manifests[8],
        checkpoint_id=CheckpointId(9),
        kind=CheckpointKind.SAVEPOINT,
        source_records={SOURCE: 560},
    )
    seen = job.preview(taken)
    assert (seen.is_forward, seen.abandoned, seen.reclaimed) == (False, (), ())
    assert seen.sources[0].records == 550 - 560 + 25
    assert "goes back to checkpoint 9" in seen.sentences[0]


def test_without_live_counters_the_records_are_at_least(job: Job) -> None:
    seen = job.preview(4, emitted=None)
    assert seen.sources[0].is_at_least
    assert any("at least 150 records" in said for said in seen.sentences)


def test_a_preview_has_a_wire_form(job: Job) -> None:
    job.file(8)
    seen = job.preview(4)
    assert from_wire(RollbackPreview, json.loads(json.dumps(to_wire(seen)))) == seen


def test_what_an_older_version_did_not_write_is_not_known(job: Job) -> None:
    old = replace(
        job.manifests[4],
        source_records={},
        operators=tuple(
            replace(op, is_source=False, files=None) for op in job.manifests[4].operators
        ),
        acks=(),
    )
    seen = job.preview(old)
    assert (seen.sources[0].records, seen.sources[0].split_count) == (None, None)
    assert seen.watermark_then_ms is None
    assert any("how many records are read again is not known" in s for s in seen.sentences)
    neither = job.preview(old, newest=replace(old, checkpoint_id=CheckpointId(8)))
    assert any("the checkpoints do not name the sources" in s for s in neither.sentences)


def test_an_output_that_cannot_be_seen_from_here_is_not_known(job: Job) -> None:
    seen = job.preview(4)  # The directory was not made on this machine.
    assert seen.outputs[0].files_beside is None
    assert any("which files would move is not known" in said for said in seen.sentences)


def test_damaged_bases_and_manifests_leave_the_rest_to_be_seen(job: Job) -> None:
    job.store.put(JobLayout(JOB).manifest(CheckpointId(5)), b"?")
    assert job.preview(4).unreadable == (5,)
    job.store.put(JobLayout(JOB).base(AttemptNumber(2), CheckpointId(4)), b"?")
    seen = job.preview(4)
    assert seen.abandoned is None
    assert seen.sources[0].records == 175
    assert "which checkpoints are left behind is not known" in seen.sentences


def test_other_operators_files_and_foreign_names_do_not_count(job: Job) -> None:
    job.file(8)
    for name in ("part-other-0-8-0.parquet", "notes.txt", "part-sink.1-0-8.parquet"):
        (job.output / name).write_bytes(b"")
    assert job.preview(4).outputs[0].files_beside == 1


def test_what_another_job_wrote_beside_it_stays(job: Job) -> None:
    """A fork into the same directory: whose a file is stands in its footer."""
    rows = pa.table({"n": [1]})
    for number, writer in ((5, JOB), (7, "the-fork"), (8, None)):
        named = {} if writer is None else {"weir.job": writer}
        job.file(number)
        path = job.output / f"part-sink.1-0-{number}-0.parquet"
        pq.write_table(rows.replace_schema_metadata(named), path)
    assert job.preview(4).outputs[0].files_beside == 2


def test_text_files_count_by_the_job_in_their_names(job: Job) -> None:
    job.output.mkdir()
    for number, writer in ((3, JOB), (7, JOB), (8, JobId("the-fork"))):
        told = TextWriter(AttemptNumber(1), mark_of(writer), ".txt")
        name = CommittedName(SINK, 0, CheckpointId(number), 0, told)
        (job.output / str(name)).write_text("line\n")
    (output,) = job.preview(4).outputs
    assert (output.files_beside, output.bytes_beside) == (1, 5)


def test_what_an_earlier_rollback_was_told_to_leave_stays(job: Job) -> None:
    for number in (5, 6, 8):
        job.file(number)
    data = dump_items([{"job": JOB, "spared": [5, 6]}, {"job": "another", "spared": [8]}])
    commits = replace(splits(), name="commits", size=len(data), checksum=checksum_of(data))
    told = OperatorAck(SubtaskId(SINK, 0), (replace(commits, inline=data, mode="union"),))
    target = job.manifests[7]
    seen = job.preview(replace(target, acks=(*target.acks, told)))
    assert seen.outputs[0].files_beside == 1


def test_output_that_was_left_when_the_job_went_back_belongs_to_it(job: Job) -> None:
    note_base(job.store, JOB, replace(base(2, 7, (4, 1)), rewinds_output=False))
    for number in (5, 6, 8):
        job.file(number)
    assert job.preview(7).outputs[0].files_beside == 1


def test_output_that_was_withdrawn_before_does_not_come_back_with_what_was_left(job: Job) -> None:
    note_base(job.store, JOB, replace(base(2, 7, (4, 1)), rewinds_output=False))
    job.file(5, directory="_withdrawn/job-1/1")
    assert job.preview(7).outputs[0].files_withdrawn == 0


def test_savepoints_are_no_part_of_what_is_abandoned(job: Job) -> None:
    job.put(replace(job.manifests[8], kind=CheckpointKind.SAVEPOINT))
    assert job.preview(4).abandoned == (7,)


def test_a_split_that_was_finished_since_is_open_again(job: Job) -> None:
    done = replace(job.manifests[8], acks=(OperatorAck(SubtaskId(SOURCE, 0), (splits(),)),))
    (source,) = job.preview(4, newest=done).sources
    assert [(m.split, m.now, m.then) for m in source.splits] == [
        ('{"file": "a"}', "end", "400"),
        ('{"file": "b"}', "end", "start"),
    ]


def test_event_time_at_its_end_has_no_distance(job: Job) -> None:
    metrics = SnapshotMetrics(watermark_ms=MAX_WATERMARK_MS)
    over = replace(job.manifests[8], acks=(OperatorAck(SubtaskId(SOURCE, 0), (), metrics),))
    seen = job.preview(4, newest=over)
    assert seen.event_time_lost_ms is None
    assert any("instead of its end" in said for said in seen.sentences)


def test_a_target_is_found_by_its_address_moved_or_not(tmp_path: Path) -> None:
    storage, moved = tmp_path / "storage", tmp_path / "elsewhere"
    job = Job(LocalStore(storage), tmp_path / "output")
    data = dump_items([{"split": {"file": "a"}, "position": 444}])
    LocalStore(moved).put("1-9/flights-0-splits", data)
    handle = StateHandle(
        "operator",
        "splits",
        len(data),
        checksum_of(data),
        path="1-9/flights-0-splits",
        mode="split",
    )
    savepoint = replace(
        job.manifests[4],
        checkpoint_id=CheckpointId(9),
        attempt=AttemptNumber(2),
        kind=CheckpointKind.SAVEPOINT,
        location=str(tmp_path / "where-it-was"),
        acks=(OperatorAck(SubtaskId(SOURCE, 0), (handle,)),),
    )
    LocalStore(moved).put("manifest", dump(savepoint))
    assert job.preview(f"{storage}/{JOB}/chk-4").sources[0].splits[0].then == "400"
    assert job.preview(str(moved)).sources[0].splits[0].then == "444"
    assert job.preview(savepoint).sources[0].split_count is None  # Its files are not there.
    with pytest.raises(RestoreError, match="no checkpoint or savepoint"):
        job.preview(str(tmp_path / "nothing"))


def test_bases_of_an_older_version_are_read_by_their_names() -> None:
    store = MemoryStore()
    layout = JobLayout(JOB)
    for attempt, restored in ((1, None), (2, CheckpointId(4)), (10, CheckpointId(6))):
        store.put(layout.base(AttemptNumber(attempt), restored), b"")
    assert bases_of(store, JOB) == {
        1: base(1, 1),
        2: base(2, 5, (4, 1)),
        10: base(10, 7, (6, 2)),
    }
    note_base(store, JOB, base(11, 20, (8, 10)))
    assert bases_of(store, JOB)[AttemptNumber(11)] == base(11, 20, (8, 10))
