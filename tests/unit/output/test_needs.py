"""The need of every file of a job, over histories of attempts, checkpoints and rollbacks."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.errors import CorruptStateError
from weir.ids import AttemptNumber, CheckpointId, JobId, OperatorId, StateHandle, SubtaskId
from weir.output.needs import (
    File,
    Known,
    OutputFile,
    Reason,
    SavepointFile,
    StoredFile,
    need_of,
    plan,
)
from weir.output.output_files import CommittedName, TextWriter
from weir.protocol.deployment import Versions
from weir.protocol.elements import CheckpointKind
from weir.protocol.lineage import AttemptBase
from weir.protocol.messages import OperatorAck
from weir.storage.manifest import Manifest, StoredCheckpoint, Tombstone

JOB = JobId("job")
SAVEPOINT = CheckpointKind.SAVEPOINT
SINK = "/out"


def manifest(
    number: int,
    *paths: str,
    attempt: int = 1,
    kind: CheckpointKind = CheckpointKind.CHECKPOINT,
    location: str | None = None,
    job: JobId = JOB,
) -> Manifest:
    handles = tuple(StateHandle("operator", "x", 1, "0", path=path) for path in paths)
    return Manifest(
        job_id=job,
        job_name="job",
        checkpoint_id=CheckpointId(number),
        parent_id=None,
        kind=kind,
        attempt=AttemptNumber(attempt),
        triggered_ms=0,
        completed_ms=1,
        versions=Versions("1", "3", "20"),
        operators=(),
        acks=(OperatorAck(SubtaskId(OperatorId("op"), 0), handles),),
        location=location,
    )


def tombstone(number: int) -> Tombstone:
    return Tombstone(
        job_id=JOB,
        checkpoint_id=CheckpointId(number),
        attempt=AttemptNumber(1),
        given_up_ms=0,
        reason="x",
    )


def stored(*manifests: Manifest | Tombstone) -> dict[CheckpointId, StoredCheckpoint]:
    return {one.checkpoint_id: StoredCheckpoint(one.checkpoint_id, one) for one in manifests}


def base(attempt: int, next_id: int, restored: int | None = None, of: int = 1) -> AttemptBase:
    if restored is None:
        return AttemptBase(AttemptNumber(attempt), CheckpointId(next_id))
    return AttemptBase(
        AttemptNumber(attempt), CheckpointId(next_id), CheckpointId(restored), AttemptNumber(of)
    )


def known(
    *manifests: Manifest | Tombstone,
    newest: int = 2,
    may_run: bool = True,
    is_finished: bool = False,
    bases: tuple[AttemptBase, ...] = (base(1, 1), base(2, 5, 3)),
    savepoints: dict[str, Manifest | Tombstone | CorruptStateError] | None = None,
    borrowed: frozenset[CheckpointId] = frozenset(),
) -> Known:
    return Known(
        job_id=JOB,
        newest=AttemptNumber(newest),
        may_run=may_run,
        is_finished=is_finished,
        bases={one.attempt: one for one in bases},
        stored=stored(*manifests),
        savepoints=dict(savepoints or {}),
        borrowed=borrowed,
    )


def waiting(attempt: int, name: str) -> OutputFile:
    return OutputFile(SINK, f"_pending/job/{attempt}/{name}", AttemptNumber(attempt), False)


def withdrawn(attempt: int, name: str) -> OutputFile:
    return OutputFile(SINK, f"_withdrawn/job/{attempt}/{name}", AttemptNumber(attempt), True)


def reason(job: Known, file: File) -> Reason | None:
    need = need_of(job, file)
    return None if need is None else need.reason


class TestState:
    def test_a_manifest_keeps_what_it_names(self) -> None:
        job = known(manifest(3, "chk-3/1/a"))
        assert reason(job, StoredFile("chk-3/1/a")) is Reason.CHECKPOINT
        assert reason(job, StoredFile("chk-3/manifest")) is Reason.CHECKPOINT
        assert reason(job, StoredFile("chk-3/1/b")) is None

    def test_a_checkpoint_under_way_keeps_its_state(self) -> None:
        assert reason(known(), StoredFile("chk-6/2/a")) is Reason.ATTEMPT
        assert reason(known(), StoredFile("chk-4/2/a")) is Reason.ATTEMPT
        assert reason(known(tombstone(6)), StoredFile("chk-6/2/a")) is Reason.ATTEMPT
        assert reason(known(), StoredFile("chk-4/3/a")) is Reason.ATTEMPT, "a newer attempt's"
        assert reason(known(), StoredFile("chk-4/1/a")) is None

    def test_the_key_of_a_number_that_is_still_used_is_left_alone(self) -> None:
        """An older attempt's worker writes late; the tombstone would stop the newest attempt."""
        late = StoredFile("chk-5/1/a")
        assert reason(known(), late) is Reason.DOUBT
        assert plan(known(), [late]).give_up == ()
        assert plan(known(manifest(5, attempt=2)), [late]).delete == (late,)
        over = known(may_run=False)
        assert plan(over, [late]).give_up == (5,)

    def test_a_tombstone_comes_before_state_without_a_manifest_goes(self) -> None:
        files = [StoredFile("chk-4/1/a"), StoredFile("chk-4/1/b"), StoredFile("chk-2/1/a")]
        sweep = plan(known(tombstone(2)), files)
        assert sweep.give_up == (4,)
        assert set(sweep.delete) == set(files)

    def test_a_damaged_manifest_keeps_all_that_lies_beside_it(self) -> None:
        job = known()
        error = CorruptStateError("damaged")
        broken = StoredCheckpoint(CheckpointId(4), None, error)
        job = Known(
            **{
                **{name: getattr(job, name) for name in job.__dataclass_fields__},
                "stored": {CheckpointId(4): broken},
            }
        )
        for path in ("chk-4/manifest", "chk-4/1/a", "chk-4/.weir-tmp-1"):
            assert reason(job, StoredFile(path)) is Reason.DOUBT
        assert reason(job, withdrawn(1, "part-op-0-4-0.parquet")) is Reason.DOUBT

    def test_a_shared_file_stays_while_any_manifest_may_name_it(self) -> None:
        file, other = "shared/1-3/a", "shared/1-3/b"
        job = known(manifest(4, file, attempt=1))
        assert reason(job, StoredFile(file)) is Reason.CHECKPOINT
        assert plan(job, [StoredFile(file), StoredFile(other)]).delete == (StoredFile(other),)
        assert reason(job, StoredFile("shared/2-6/a")) is Reason.ATTEMPT
        assert reason(job, StoredFile("shared/1-6/a")) is Reason.DOUBT, "its number may be used"
        assert reason(known(tombstone(6)), StoredFile("shared/2-6/a")) is Reason.ATTEMPT
        broken = StoredCheckpoint(CheckpointId(2), None, CorruptStateError("damaged"))
        unread = replace(job, stored={**job.stored, CheckpointId(2): broken})
        assert reason(unread, StoredFile(other)) is Reason.DOUBT

    def test_temporary_files_go_with_the_attempt_that_wrote_them(self) -> None:
        job = known()
        assert reason(job, StoredFile("chk-4/1/.weir-tmp-a")) is None
        assert reason(job, StoredFile("chk-4/2/.weir-tmp-a")) is Reason.ATTEMPT
        assert reason(job, StoredFile("chk-4/.weir-tmp-a")) is None
        assert reason(known(tombstone(6)), StoredFile("chk-6/.weir-tmp-a")) is Reason.DOUBT
        assert reason(job, StoredFile("restored/.weir-tmp-a")) is Reason.ATTEMPT
        assert reason(known(may_run=False), StoredFile("restored/.weir-tmp-a")) is None

    @pytest.mark.parametrize("path", ["notes.txt", "chk-4/notes", "chk-x/1/a", "attempts/a"])
    def test_files_of_others_stay(self, path: str) -> None:
        assert reason(known(may_run=False), StoredFile(path)) is Reason.DOUBT

    @pytest.mark.parametrize(
        "path", ["attempts/1", "restored/1-0", "over/1", "finished", "outputs", "requests/a.json"]
    )
    def test_records_of_the_job_stay(self, path: str) -> None:
        assert reason(known(), StoredFile(path)) in (Reason.RECORD, Reason.REQUEST)


class TestEnd:
    def test_a_finished_job_needs_its_savepoints_only(self) -> None:
        kept = manifest(2, kind=SAVEPOINT, location="/elsewhere")
        job = known(kept, manifest(3, "chk-3/1/a"), is_finished=True, may_run=False)
        assert reason(job, StoredFile("chk-2/manifest")) is Reason.SAVEPOINT
        assert reason(job, StoredFile("chk-2/1/savepoint")) is Reason.SAVEPOINT
        assert reason(job, StoredFile("chk-3/manifest")) is None
        assert reason(job, StoredFile("chk-3/1/a")) is None

    def test_a_job_that_runs_again_after_it_finished_needs_its_checkpoints(self) -> None:
        job = known(manifest(3, "chk-3/1/a"), is_finished=True)
        assert reason(job, StoredFile("chk-3/manifest")) is Reason.CHECKPOINT

    def test_a_checkpoint_that_another_job_began_with_stays(self) -> None:
        borrowed = frozenset({CheckpointId(3)})
        job = known(manifest(3, "chk-3/1/a"), is_finished=True, may_run=False, borrowed=borrowed)
        assert reason(job, StoredFile("chk-3/manifest")) is Reason.BORROWED
        assert reason(job, StoredFile("chk-3/1/a")) is Reason.BORROWED

    def test_manifests_go_first_and_claims_last(self) -> None:
        files = [StoredFile(p) for p in ("attempts/1", "chk-3/1/a", "outputs", "chk-3/manifest")]
        job = known(manifest(3, "chk-3/1/a"), is_finished=True, may_run=False)
        swept = [file.path for file in plan(job, files, clears=True).delete]
        assert swept == ["chk-3/manifest", "chk-3/1/a", "outputs", "attempts/1"]

    def test_records_go_with_nothing_to_restore_only(self) -> None:
        files = [StoredFile("attempts/1"), StoredFile("chk-4/manifest"), waiting(1, "x")]
        assert len(plan(known(tombstone(4), may_run=False), files, clears=True).delete) == 3
        for job in (
            known(tombstone(4)),
            known(tombstone(4), manifest(3), may_run=False),
            known(tombstone(4), may_run=False, savepoints={"s": manifest(9, kind=SAVEPOINT)}),
        ):
            assert not plan(job, files[:2], clears=True).delete


class TestSavepoints:
    def test_state_that_its_manifest_names_stays(self) -> None:
        one = manifest(4, "1-4/a", kind=SAVEPOINT, location="/s/one")
        job = known(savepoints={"s/one": one})
        assert reason(job, SavepointFile("s/one", "manifest")) is Reason.SAVEPOINT
        assert reason(job, SavepointFile("s/one", "1-4/a")) is Reason.SAVEPOINT
        assert reason(job, SavepointFile("s/one", "1-4/b")) is None, "of a try that was repeated"

    def test_state_of_a_savepoint_under_way_stays(self) -> None:
        for path in ("2-6/a", "2-6/.weir-tmp-a", ".weir-tmp-a", "probe-2"):
            assert reason(known(), SavepointFile("s/one", path)) in (Reason.ATTEMPT,)
        for path in ("1-6/a", "1-6/.weir-tmp-a", "probe-1"):
            assert reason(known(), SavepointFile("s/one", path)) is None

    def test_a_manifest_that_was_not_read_or_is_anothers_keeps_all(self) -> None:
        for other in (CorruptStateError("x"), tombstone(4), manifest(4, job=JobId("other"))):
            job = known(savepoints={"s/one": other})
            for path in ("manifest", "1-4/a"):
                assert reason(job, SavepointFile("s/one", path)) is Reason.DOUBT
        assert reason(known(), SavepointFile("s/one", "manifest")) is Reason.DOUBT

    def test_files_of_users_stay(self) -> None:
        assert reason(known(may_run=False), SavepointFile("s/one", "README")) is Reason.DOUBT


class TestOutput:
    def test_of_a_running_attempt_stays(self) -> None:
        assert reason(known(), waiting(2, "op-0-1.parquet")) is Reason.ATTEMPT
        assert reason(known(), waiting(2, "part-op-0-9-0.parquet")) is Reason.ATTEMPT
        assert reason(known(), waiting(3, "op-0-1.parquet")) is Reason.ATTEMPT

    def test_that_saw_no_barrier_goes_with_its_attempt(self) -> None:
        assert reason(known(), waiting(1, "op-0-1.parquet")) is None
        assert reason(known(), waiting(1, "op-0-1.text")) is None
        assert reason(known(), waiting(1, "part-op-0-0-0.parquet")) is None

    def test_claims_go_with_their_attempt(self) -> None:
        claims = [OutputFile(SINK, f"_claims/job/{n}", AttemptNumber(n), False) for n in (1, 2)]
        assert [reason(known(), claim) for claim in claims] == [None, Reason.ATTEMPT]
        assert [reason(known(may_run=False), claim) for claim in claims] == [None, None]

    def test_on_a_line_that_may_be_restored_stays(self) -> None:
        job = known(manifest(4))  # Abandoned: attempt 2 began with 3.
        assert reason(job, withdrawn(1, "part-op-0-4-0.parquet")) is Reason.CHECKPOINT
        assert reason(known(), withdrawn(1, "part-op-0-4-0.parquet")) is None
        text = CommittedName(
            OperatorId("op"), 0, CheckpointId(4), 0, TextWriter(AttemptNumber(1), "0a" * 6, ".txt")
        )
        assert reason(job, withdrawn(1, str(text))) is Reason.CHECKPOINT
        assert reason(known(), withdrawn(1, str(text))) is None
        assert reason(known(), withdrawn(1, "part-op-0-3-0.parquet")) is Reason.LINE
        over = known(may_run=False)
        assert reason(over, withdrawn(1, "part-op-0-3-0.parquet")) is None

    def test_of_a_savepoint_whose_number_was_not_written_stays(self) -> None:
        """A driver died between its two manifests; its directory can be restored."""
        file = withdrawn(1, "part-op-0-4-0.parquet")
        one = manifest(4, kind=SAVEPOINT, location="/s/one")
        assert reason(known(tombstone(4), savepoints={"s/one": one}), file) is Reason.SAVEPOINT
        broken = known(tombstone(4), savepoints={"s/one": CorruptStateError("x")})
        assert reason(broken, file) is Reason.DOUBT
        assert reason(known(tombstone(4)), file) is None

    def test_is_in_doubt_where_no_line_is_known(self) -> None:
        job = known(bases=())
        assert reason(job, withdrawn(1, "part-op-0-4-0.parquet")) is Reason.DOUBT

    def test_of_others_stays(self) -> None:
        assert reason(known(may_run=False), waiting(1, "notes.txt")) is Reason.DOUBT


# Histories ----------------------------------------------------------------------------------------


@dataclass
class History:
    """A job's life as it was, with the parent of each checkpoint: the oracle knows no spans."""

    parents: dict[tuple[int, int], tuple[int, int] | None] = field(default_factory=dict)
    completed: dict[tuple[int, int], bool] = field(default_factory=dict)  # Still stored.
    bases: list[AttemptBase] = field(default_factory=list)
    files: dict[File, tuple[int, int] | None] = field(default_factory=dict)  # By checkpoint.
    newest: int = 0
    restored: tuple[int, int] | None = None

    def behind(self, key: tuple[int, int] | None) -> Iterator[tuple[int, int]]:
        while key is not None:
            yield key
            key = self.parents[key]

    def sharing(self, key: tuple[int, int]) -> list[tuple[int, int]]:
        """The checkpoints whose shared files this one names."""
        return list(self.behind(key))[:2]


def shared(key: tuple[int, int]) -> StoredFile:
    return StoredFile(f"shared/{key[0]}-{key[1]}/state")


@st.composite
def histories(draw: st.DrawFn) -> History:
    """Attempts from the newest checkpoint or an older one; each number's end is drawn."""
    job = History()
    number = 0
    for attempt in range(1, draw(st.integers(1, 4)) + 1):
        usable = [key for key, is_stored in job.completed.items() if is_stored]
        start = draw(st.sampled_from([None, *usable])) if attempt > 1 else None
        job.newest, job.restored = attempt, start
        restored = () if start is None else (start[1], start[0])
        job.bases.append(base(attempt, number + 1, *restored))
        parent = start
        for _ in range(draw(st.integers(0, 4))):
            number += 1
            key = attempt, number
            job.parents[key], parent = parent, key  # Aborted ones too: their output is covered.
            if draw(st.booleans()):
                job.completed[key] = draw(st.booleans())
            job.files[StoredFile(f"chk-{number}/{attempt}/state")] = key
            job.files[shared(key)] = key
            where = draw(st.sampled_from([waiting, withdrawn]))
            job.files[where(attempt, f"part-op-0-{number}-0.parquet")] = key
        job.files[waiting(attempt, "op-0-7.parquet")] = None
    return job


def told(job: History, *, may_run: bool) -> Known:
    return known(
        *(
            manifest(
                number,
                f"chk-{number}/{attempt}/state",
                *(shared(named).path for named in job.sharing((attempt, number))),
                attempt=attempt,
            )
            for (attempt, number), is_stored in job.completed.items()
            if is_stored
        ),
        newest=job.newest,
        may_run=may_run,
        bases=tuple(job.bases),
    )


@given(histories(), st.booleans())
def test_exactly_the_files_that_nothing_needs_go(job: History, may_run: bool) -> None:
    """Of every file it is asked whether the running attempt, or a restore, would look for it."""
    alive = [key for key, is_stored in job.completed.items() if is_stored]
    covered = {behind for key in alive for behind in job.behind(key)}
    if may_run:
        covered |= set(job.behind(job.restored))
    expected = set()
    for file, key in job.files.items():
        attempt = file.attempt if isinstance(file, OutputFile) else key and key[0]
        is_running = may_run and attempt == job.newest
        is_restored = key in alive if isinstance(file, StoredFile) else key in covered
        if key is not None and file == shared(key):
            is_restored = any(key in job.sharing(other) for other in alive)
        if not (is_running or is_restored):
            expected.add(file)
    world = told(job, may_run=may_run)
    sweep = plan(world, job.files)
    assert set(sweep.delete) == expected
    assert sweep.needs.keys() == job.files.keys() - expected
    assert not set(sweep.give_up) & world.stored.keys()


@given(histories(), st.booleans())
def test_a_second_sweep_finds_nothing(job: History, may_run: bool) -> None:
    first = plan(told(job, may_run=may_run), job.files)
    world = told(job, may_run=may_run)
    world = Known(
        **{
            **{name: getattr(world, name) for name in world.__dataclass_fields__},
            "stored": {**world.stored, **stored(*map(tombstone, first.give_up))},
        }
    )
    left = [*first.needs, *(StoredFile(f"chk-{n}/manifest") for n in first.give_up)]
    assert plan(world, left).delete == ()
