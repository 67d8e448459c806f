"""Which checkpoint an attempt starts from."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.builders import edge, graph, line, node
from tests.unit.jobmaster.job_harness import JOB, PLAN, state_file, stored_checkpoint
from weir.config import CheckpointConfig, JobConfig
from weir.errors import CorruptStateError, RestoreError, StorageError, WeirError
from weir.graph.physical import ExecutionGraph
from weir.ids import AttemptNumber, CheckpointId, JobId, StateHandle
from weir.jobmaster.restore_choice import (
    RestoreChoice,
    begin_from,
    check_kept,
    choose_restore,
    search,
)
from weir.protocol.elements import CheckpointKind
from weir.protocol.lineage import AttemptBase
from weir.storage.attempt_bases import note_base
from weir.storage.catalog import RestoreRequest, latest_job
from weir.storage.layout import JobLayout, in_job
from weir.storage.local import LocalStore
from weir.storage.manifest import VERSION, Tombstone, dump
from weir.storage.memory import MemoryStore
from weir.storage.store import CheckpointStore, checksum_of

CONFIG = JobConfig(parallelism=2)


def choose(
    store: CheckpointStore,
    *,
    job: JobId = JOB,
    plan: ExecutionGraph = PLAN,
    config: JobConfig = CONFIG,
    requested: RestoreRequest | None = None,
) -> RestoreChoice:
    return choose_restore(store, job, plan, config, requested)


def give_up(store: CheckpointStore, checkpoint_id: int) -> None:
    tombstone = Tombstone(
        job_id=JOB, checkpoint_id=CheckpointId(checkpoint_id), attempt=AttemptNumber(1),
        given_up_ms=0, reason="disk full",
    )  # fmt: skip
    store.put(JobLayout(JOB).manifest(CheckpointId(checkpoint_id)), dump(tombstone))


def damage(store: CheckpointStore, checkpoint_id: int) -> None:
    """Complete a checkpoint, then change its only file."""
    path = f"chk-{checkpoint_id}/1/sink-0-x"
    stored_checkpoint(store, checkpoint_id, state_file(store, path))
    store.put(in_job(JOB, path), b"STATE")


def request(root: Path, checkpoint_id: int = 1, job: JobId = JOB) -> RestoreRequest:
    return RestoreRequest(str(root), job, CheckpointId(checkpoint_id))


def test_without_any_checkpoint_it_is_the_beginning() -> None:
    choice = choose(MemoryStore())
    assert (choice.checkpoint_id, choice.plan.restores, choice.notes) == (None, (), ())


def test_a_job_that_finished_is_not_begun_again() -> None:
    store = MemoryStore()
    store.put(JobLayout(JOB).finished, b"")
    with pytest.raises(RestoreError, match=r"has finished.*without --restore"):
        choose(store)


def test_the_newest_whole_one_is_taken_and_dealt_out_by_slot() -> None:
    store = MemoryStore()
    stored_checkpoint(store, 1)
    handle = state_file(store, "chk-2/1/sink-0-x")
    stored_checkpoint(store, 2, handle)
    choice = choose(store)
    assert choice.checkpoint_id == 2
    (restore,) = choice.restores_of_slot(0)
    assert [piece.handle for piece in restore.handles] == [handle]
    assert choice.restores_of_slot(1) == ()


def test_numbers_are_compared_as_numbers() -> None:
    store = MemoryStore()
    for checkpoint_id in (9, 10):
        stored_checkpoint(store, checkpoint_id)
    assert choose(store).checkpoint_id == 10


def test_a_damaged_one_is_passed_over_and_that_is_said() -> None:
    store = MemoryStore()
    stored_checkpoint(store, 1)
    damage(store, 2)
    store.put(JobLayout(JOB).manifest(CheckpointId(3)), b"half a mani")
    choice = choose(store)
    assert choice.checkpoint_id == 1
    assert [note.split(":")[0] for note in choice.notes] == [
        "checkpoint 3 is passed over",
        "checkpoint 2 is passed over",
    ]


@pytest.mark.parametrize(
    ("data", "taken"), [(None, 1), (b"", 1), (b"stat", 1), (b"state ", 1), (b"STATE", 2)]
)
def test_files_that_are_not_read_are_to_be_there_with_their_size(
    data: bytes | None, taken: int
) -> None:
    store = MemoryStore()
    stored_checkpoint(store, 1)
    damage(store, 2)
    path = in_job(JOB, "chk-2/1/sink-0-x")
    assert len(store.read(path)) == 5
    store.delete(path)
    if data is not None:
        store.put(path, data)
    choice = choose_restore(store, JOB, PLAN, CONFIG, None, reads=False)
    assert choice.checkpoint_id == taken
    assert bool(choice.notes) == (taken == 1)
    if taken == 2:
        assert choose_restore(store, JOB, PLAN, CONFIG, None).checkpoint_id == 1


@pytest.mark.parametrize(
    ("stored", "said"),
    [((), "none of the job's is there"), ((1, 2), "the newest there is 2")],
    ids=["not mounted", "an earlier copy"],
)
def test_a_storage_that_is_behind_the_job_is_not_restored_from(
    stored: tuple[int, ...], said: str, tmp_path: Path
) -> None:
    store = LocalStore(tmp_path)
    for checkpoint_id in stored:
        stored_checkpoint(store, checkpoint_id)
    config = replace(CONFIG, checkpoints=CheckpointConfig(storage=str(tmp_path)))
    with pytest.raises(StorageError, match=f"^checkpoint 3 was completed.*: {said}") as refused:
        choose_restore(store, JOB, PLAN, config, None, known=3)
    assert str(tmp_path) in str(refused.value)
    assert refused.value.retryable  # It may be mounted in a moment.
    stored_checkpoint(store, 3)
    for known in (0, 2, 3):
        assert choose_restore(store, JOB, PLAN, config, None, known=known).checkpoint_id == 3


def test_a_tombstone_is_no_sign_of_the_jobs_storage() -> None:
    """The control plane writes those of lost drivers, also where its own storage is another."""
    store = MemoryStore()
    give_up(store, 4)
    with pytest.raises(StorageError, match="none of the job's is there"):
        choose_restore(store, JOB, PLAN, CONFIG, None, known=3)
    stored_checkpoint(store, 3)
    assert choose_restore(store, JOB, PLAN, CONFIG, None, known=3).checkpoint_id == 3


def test_a_request_is_restored_from_a_storage_that_is_behind_the_job(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    stored_checkpoint(store, 1)
    choice = choose_restore(store, JOB, PLAN, CONFIG, request(tmp_path), LocalStore, known=3)
    assert choice.checkpoint_id == 1


def test_a_known_checkpoint_that_is_damaged_is_passed_over() -> None:
    store = MemoryStore()
    stored_checkpoint(store, 2)
    store.put(JobLayout(JOB).manifest(CheckpointId(3)), b"half a mani")
    choice = choose_restore(store, JOB, PLAN, CONFIG, None, known=3)
    assert (choice.checkpoint_id, len(choice.notes)) == (2, 1)


def test_damage_to_an_older_one_does_not_matter() -> None:
    store = MemoryStore()
    damage(store, 1)
    stored_checkpoint(store, 2)
    assert choose(store).notes == ()


def test_if_none_is_whole_the_job_fails_rather_than_start_over() -> None:
    store = MemoryStore()
    damage(store, 1)
    damage(store, 2)
    with pytest.raises(CorruptStateError, match=r"none of them is whole.*checkpoint 2"):
        choose(store)


def test_one_that_was_given_up_was_never_a_checkpoint() -> None:
    store = MemoryStore()
    give_up(store, 2)
    assert choose(store).checkpoint_id is None
    stored_checkpoint(store, 1)
    assert choose(store).checkpoint_id == 1


def test_one_that_retention_takes_away_meanwhile_is_not_damage() -> None:
    class Vanishing(MemoryStore):
        def list(self, directory: str = "") -> list[str]:
            paths = super().list(directory)
            self.delete(JobLayout(JOB).manifest(CheckpointId(1)))
            return paths

    store = Vanishing()
    stored_checkpoint(store, 1)
    assert choose(store).notes == ()


def test_savepoints_are_only_restored_by_name() -> None:
    store = MemoryStore()
    stored_checkpoint(store, 1)
    stored_checkpoint(store, 2, kind=CheckpointKind.SAVEPOINT)
    assert choose(store).checkpoint_id == 1


def test_what_a_newer_attempt_completed_goes_before_a_higher_number_of_an_older_one() -> None:
    """A driver that was replaced wrote its manifest late; its successor went on without it."""
    store = MemoryStore()
    stored_checkpoint(store, 7, attempt=2)
    stored_checkpoint(store, 8, attempt=1)
    assert choose(store).checkpoint_id == 7


def test_a_manifest_of_a_newer_weir_is_not_passed_over() -> None:
    store = MemoryStore()
    stored_checkpoint(store, 1)
    newer = b'{"format": "weir-checkpoint", "version": 99}'
    store.put(JobLayout(JOB).manifest(CheckpointId(2)), newer)
    with pytest.raises(RestoreError, match="version 99"):
        choose(store)


def test_the_one_asked_for_is_taken_though_newer_ones_exist(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    for checkpoint_id in (1, 2):
        stored_checkpoint(store, checkpoint_id)
    choice = choose(MemoryStore(), requested=request(tmp_path))
    assert (choice.checkpoint_id, choice.storage) == (1, str(tmp_path))


def test_another_jobs_checkpoint_starts_a_fork(tmp_path: Path) -> None:
    other = JobId("other")
    stored_checkpoint(LocalStore(tmp_path), 4, job=other)
    choice = choose(MemoryStore(), requested=request(tmp_path, 4, other))
    assert choice.manifest is not None
    assert choice.manifest.job_id == other


@pytest.mark.parametrize(
    ("prepare", "error", "message"),
    [
        (lambda store: None, RestoreError, r"no checkpoint 1 of job job .*lists those that exist"),
        (lambda store: give_up(store, 1), RestoreError, "was given up: disk full"),
        (lambda store: damage(store, 1), CorruptStateError, "not whole.*checksum does not match"),
    ],
    ids=["missing", "given up", "damaged"],
)
def test_the_one_asked_for_or_none(
    prepare: object, error: type[WeirError], message: str, tmp_path: Path
) -> None:
    store = LocalStore(tmp_path)
    prepare(store)  # type: ignore[operator]
    stored_checkpoint(store, 2)
    with pytest.raises(error, match=message):
        choose(store, requested=request(tmp_path))


def test_state_of_an_operator_that_is_gone_is_refused_unless_allowed() -> None:
    store = MemoryStore()
    stored_checkpoint(store, 1, state_file(store), operators=("source", "gone"))
    with pytest.raises(RestoreError, match=r"gone.*allow_non_restored_state"):
        choose(store)
    allowed = JobConfig(parallelism=2, allow_non_restored_state=True)
    assert choose(store, config=allowed).plan.skipped == ("gone",)


def test_parallelism_above_the_saved_max_parallelism_is_refused() -> None:
    store = MemoryStore()
    stored_checkpoint(store, 1, state_file(store), max_parallelism=2)
    wider = ExecutionGraph(graph([node("source", 3), node("sink", 3)], [edge("source", "sink")]))
    with pytest.raises(RestoreError, match=r"parallelism 3, .* max parallelism 2"):
        choose(store, plan=wider)


def test_a_search_finds_what_is_restorable_and_the_next_free_number() -> None:
    store = MemoryStore()
    for checkpoint_id in (2, 3):
        stored_checkpoint(store, checkpoint_id)
    stored_checkpoint(store, 4, kind=CheckpointKind.SAVEPOINT)
    give_up(store, 5)
    store.put(in_job(JOB, "chk-9/1/sink-0-x"), b"never completed")
    stored_checkpoint(store, 50, job=JobId("job-2"))
    history = search(store, JOB)
    assert [completed.checkpoint_id for completed in history.completed] == [2, 3]
    assert history.next_id == 10
    store.put(in_job(JOB, "shared/1-11/sink-0-x"), b"never completed")
    assert search(store, JOB).next_id == 12
    assert search(MemoryStore(), JOB).next_id == 1


def test_the_latest_job_of_a_name_is_found_or_advice_is_given() -> None:
    store = MemoryStore()
    stored_checkpoint(store, 1)
    assert latest_job(store, "job") == JOB
    with pytest.raises(RestoreError, match="no completed checkpoint of a job named 'other'"):
        latest_job(store, "other")


def test_the_latest_job_is_one_that_has_not_finished() -> None:
    store = MemoryStore()
    stored_checkpoint(store, 1)
    ended = JobId("ended")
    stored_checkpoint(
        store, 7, job=ended, kind=CheckpointKind.STOP_SUSPEND, location="/savepoints/last"
    )
    store.put(JobLayout(ended).finished, b"")
    assert latest_job(store, "job") == JOB
    store.put(JobLayout(JOB).finished, b"")
    with pytest.raises(RestoreError, match=r"job ended.*has finished.*--restore /savepoints/last"):
        latest_job(store, "job")


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("/data/chk/my-job/chk-7", ("/data/chk", "my-job", 7)),
        ("file:///data/a%20job/chk-12/", ("file:///data", "a job", 12)),
        ("relative/job/chk-1", ("relative", "job", 1)),
    ],
)
def test_a_checkpoint_is_named_by_its_path(uri: str, expected: tuple[str, str, int]) -> None:
    parsed = RestoreRequest.parse(uri)
    assert (parsed.storage, parsed.job_id, parsed.checkpoint_id) == expected


@pytest.mark.parametrize("uri", ["newest", "chk-7"])
def test_what_names_no_checkpoint_is_told_how_to(uri: str) -> None:
    with pytest.raises(RestoreError, match="give latest, or a path such as"):
        RestoreRequest.parse(uri)


# Savepoints.

SAVEPOINT, STOP = CheckpointKind.SAVEPOINT, CheckpointKind.STOP_SUSPEND


def saved(
    root: Path, checkpoint_id: int = 7, *, kind: CheckpointKind = SAVEPOINT, name: str = "one"
) -> Path:
    """A savepoint of the job in ``root/job``: its own directory, and its number."""
    own = root / "savepoints" / name
    path, data = f"1-{checkpoint_id}/sink-0-x", b"state"
    LocalStore(own).put(path, data)
    handle = StateHandle("operator", "x", len(data), checksum_of(data), path=path, mode="split")
    store = LocalStore(root / "storage")
    made = stored_checkpoint(store, checkpoint_id, handle, kind=kind, location=str(own))
    LocalStore(own).put("manifest", dump(made))
    return own


def by_number(root: Path, checkpoint_id: int = 7) -> RestoreRequest:
    return RestoreRequest.parse(f"{root}/storage/{JOB}/chk-{checkpoint_id}")


def test_a_savepoint_is_restored_by_its_directory_and_by_its_number(tmp_path: Path) -> None:
    own = saved(tmp_path)
    for request in (RestoreRequest.parse(str(own)), by_number(tmp_path)):
        choice = choose(MemoryStore(), requested=request)
        assert (choice.checkpoint_id, choice.storage, choice.directory) == (7, str(own), "")
        assert choice.is_requested
        assert not choice.completes_stop


def test_a_savepoint_that_is_given_up_during_the_restore_is_not_restored(tmp_path: Path) -> None:
    """Its deletion leaves a tombstone before it looks for those that restore it."""
    own = saved(tmp_path)
    asked, store = RestoreRequest.parse(str(own)), LocalStore(tmp_path / "storage")
    choice = choose(store, requested=asked)
    check_kept(store, asked, choice, LocalStore)
    store.delete(JobLayout(JOB).manifest(CheckpointId(7)))
    give_up(store, 7)
    with pytest.raises(RestoreError, match="given up during the restore: disk full"):
        check_kept(store, asked, choice, LocalStore)


def test_a_moved_savepoint_is_restored_from_where_it_is_now(tmp_path: Path) -> None:
    own = saved(tmp_path)
    moved = tmp_path / "elsewhere" / "backup"
    shutil.copytree(own, moved)
    shutil.rmtree(tmp_path / "savepoints")
    shutil.rmtree(tmp_path / "storage")
    choice = choose(MemoryStore(), requested=RestoreRequest.parse(f"{moved}/manifest"))
    assert (choice.checkpoint_id, choice.storage) == (7, str(moved))


def test_a_savepoint_moved_to_a_directory_named_like_a_checkpoint_is_found(tmp_path: Path) -> None:
    own = saved(tmp_path)
    moved = tmp_path / "backup" / "chk-7"
    moved.parent.mkdir()
    own.rename(moved)
    choice = choose(MemoryStore(), requested=RestoreRequest.parse(str(moved)))
    assert choice.storage == str(moved)


def test_the_number_of_a_savepoint_that_was_moved_says_what_to_do(tmp_path: Path) -> None:
    own = saved(tmp_path)
    own.rename(tmp_path / "moved")
    with pytest.raises(RestoreError, match=r"not in .*one any more; if it was moved, give"):
        choose(MemoryStore(), requested=by_number(tmp_path))


def test_the_number_of_a_savepoint_whose_place_has_another_one_is_no_way_to_it(
    tmp_path: Path,
) -> None:
    saved(tmp_path)
    saved(tmp_path, 8)
    with pytest.raises(RestoreError, match="savepoint 7 of job job is not in"):
        choose(MemoryStore(), requested=by_number(tmp_path))


def newer(own: Path) -> None:
    whole = json.loads((own / "manifest").read_bytes())
    (own / "manifest").write_text(json.dumps({**whole, "version": VERSION + 1}))


@pytest.mark.parametrize(
    ("harm", "error", "message"),
    [
        (lambda own: shutil.rmtree(own), RestoreError, "no checkpoint or savepoint at .*one"),
        (lambda own: (own / "manifest").unlink(), RestoreError, "holds a file named manifest"),
        (lambda own: (own / "manifest").write_text("{}"), CorruptStateError, "is no manifest"),
        (
            lambda own: (own / "manifest").write_text('{"format": "flink", "version": 1}'),
            CorruptStateError,
            "its format is 'flink'",
        ),
        (newer, RestoreError, f"manifest version {VERSION + 1}, this Weir reads up to .*{VERSION}"),
        (
            lambda own: (own / "1-7" / "sink-0-x").write_bytes(b"STATE"),
            CorruptStateError,
            "not whole: 1-7/sink-0-x: its checksum does not match",
        ),
        (lambda own: (own / "1-7" / "sink-0-x").unlink(), CorruptStateError, "it is missing"),
    ],
    ids=["unknown", "no manifest", "damaged", "foreign", "newer", "changed state", "lost state"],
)
def test_a_savepoint_that_cannot_be_used_says_why(
    harm: Callable[[Path], object], error: type[WeirError], message: str, tmp_path: Path
) -> None:
    own = saved(tmp_path)
    harm(own)
    with pytest.raises(error, match=message):
        choose(MemoryStore(), requested=RestoreRequest.parse(str(own)))


def test_a_checkpoint_that_was_copied_out_of_its_storage_is_no_savepoint(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "storage")
    stored_checkpoint(store, 7, state_file(store, "chk-7/1/sink-0-x"))
    copy = shutil.copytree(tmp_path / "storage" / JOB / "chk-7", tmp_path / "copy")
    with pytest.raises(RestoreError, match=r"checkpoint 7 of job .*Only savepoints can be moved"):
        choose(MemoryStore(), requested=RestoreRequest.parse(str(copy)))


def test_a_savepoint_of_another_job_has_all_of_its_numbers_behind_it(tmp_path: Path) -> None:
    own, store = saved(tmp_path), MemoryStore()
    fork = JobId("fork")
    choice = choose(store, job=fork, requested=RestoreRequest.parse(str(own)))
    begun = begin_from(store, fork, AttemptNumber(1), choice)
    assert begun.next_id == 8
    assert choice.lineage == line((0, 1, 7))
    problem = r"began with checkpoint 7 of job job .*path of that checkpoint again"
    with pytest.raises(RestoreError, match=problem):
        choose(store, job=fork)


def test_only_a_savepoint_can_be_claimed(tmp_path: Path) -> None:
    own = saved(tmp_path)
    claim = choose(MemoryStore(), requested=RestoreRequest(str(own), claims=True)).claim
    assert claim is not None
    assert (claim.job_id, claim.checkpoint_id, claim.location) == (JOB, 7, str(own))
    stored_checkpoint(LocalStore(tmp_path), 1)
    request = RestoreRequest(str(tmp_path), JOB, CheckpointId(1), claims=True)
    choice = choose(MemoryStore(), requested=request)
    assert choice.claim is None
    assert "is a checkpoint, not a savepoint" in choice.notes[0]


# The line that the job is on.


class Job:
    """A job's storage and what its attempts went on from."""

    def __init__(self, tmp_path: Path) -> None:
        self.root = tmp_path
        self.store = LocalStore(tmp_path / "storage")
        self.attempt = 0

    def begin(self, restore: int | None = None, *, rewinds: bool = True) -> RestoreChoice:
        """The next attempt goes on, from a checkpoint that is asked for or by itself."""
        self.attempt += 1
        requested = None
        if restore is not None:
            requested = replace(self.request(restore), rewinds_output=rewinds)
        choice = choose(self.store, requested=requested)
        self.begun = begin_from(self.store, JOB, AttemptNumber(self.attempt), choice)
        return choice

    def request(self, checkpoint_id: int) -> RestoreRequest:
        return RestoreRequest(str(self.root / "storage"), JOB, CheckpointId(checkpoint_id))

    def take(self, *checkpoints: int) -> None:
        for checkpoint_id in checkpoints:
            stored_checkpoint(self.store, checkpoint_id, attempt=self.attempt)

    def save(self, checkpoint_id: int, kind: CheckpointKind = SAVEPOINT) -> Path:
        own = self.root / "savepoints" / str(checkpoint_id)
        attempt = self.attempt
        made = stored_checkpoint(
            self.store, checkpoint_id, attempt=attempt, kind=kind, location=str(own)
        )
        LocalStore(own).put("manifest", dump(made))
        return own


def test_a_job_that_went_back_goes_on_along_its_new_line(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.begin()
    job.take(1, 2, 3)
    back = job.begin(restore=1)
    assert (back.checkpoint_id, back.lineage) == (1, line((1, 1, 1)))
    assert job.begun.next_id == 4
    assert job.begin().checkpoint_id == 1, "and not 3, which it went back behind"
    job.take(4)
    again = job.begin()
    assert (again.checkpoint_id, again.lineage) == (4, line((3, 4, 4), (1, 1, 1)))


def test_a_job_may_change_its_mind_and_go_on_from_what_it_had_abandoned(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.begin()
    job.take(1, 2, 3)
    job.begin(restore=1)
    job.take(4)
    forward = job.begin(restore=3)
    assert forward.lineage == line((1, 1, 3))
    assert job.begun.next_id == 5
    job.take(5)
    again = job.begin()
    assert (again.checkpoint_id, again.lineage) == (5, line((3, 5, 5), (1, 1, 3)))


def test_what_a_replaced_driver_completed_late_is_not_on_the_line(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.begin()
    job.take(1)
    job.begin()
    stored_checkpoint(job.store, 2, attempt=1)
    assert job.begin().checkpoint_id == 1


def test_a_job_whose_line_is_gone_does_not_begin_all_over(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.begin()
    job.take(1, 2)
    job.begin(restore=1)
    job.store.delete_prefix(f"{JOB}/chk-1")
    problem = r"went back to checkpoint 1, which is deleted.*: 2. Give"
    with pytest.raises(RestoreError, match=problem):
        job.begin()


def test_a_job_whose_checkpoints_were_deleted_at_its_end_may_begin_anew(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.begin()
    job.take(1)
    job.begin()
    job.store.delete_prefix(f"{JOB}/chk-1")
    assert job.begin().checkpoint_id is None


def test_numbers_are_never_used_again_though_their_checkpoints_were_let_go(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.begin()
    job.take(1, 2, 3)
    job.begin(restore=1)
    for abandoned in (2, 3):
        job.store.delete_prefix(f"{JOB}/chk-{abandoned}")
    job.begin()
    assert job.begun.next_id == 4


def test_output_that_was_asked_to_stay_stays(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.begin()
    job.take(1, 2, 3)
    back = job.begin(restore=1, rewinds=False)
    assert not back.rewinds_output
    assert not job.begin().rewinds_output, "nothing has completed since"
    job.take(4)
    again = job.begin()
    assert again.lineage == line((3, 4, 4), (1, 1, 1))
    assert again.rewinds_output


def test_output_is_taken_back_unless_told_otherwise(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.begin()
    job.take(1, 2)
    back = job.begin(restore=1)
    assert back.rewinds_output


@pytest.mark.parametrize("kind", [STOP, CheckpointKind.STOP_DRAIN])
def test_a_stop_that_was_not_completed_is_completed_by_the_next_attempt(
    kind: CheckpointKind, tmp_path: Path
) -> None:
    job = Job(tmp_path)
    job.begin()
    job.take(1)
    own = job.save(2, kind)
    for _ in range(2):  # It may fail again, and leaves no trace.
        choice = job.begin()
        assert (choice.checkpoint_id, choice.completes_stop) == (2, True)
        assert (choice.storage, choice.directory) == (str(own), "")
        assert "stopped with savepoint 2" in choice.notes[0]


def test_a_job_that_goes_on_from_a_stop_on_purpose_is_not_stopped_again(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.begin()
    job.take(1)
    job.save(2, STOP)
    job.store.put(JobLayout(JOB).finished, b"")
    job.store.delete_prefix(f"{JOB}/chk-1")
    with pytest.raises(RestoreError, match=r"has finished.*path of one of its savepoints"):
        job.begin()
    job.attempt = 1
    assert not job.begin(restore=2).completes_stop
    assert not job.store.exists(JobLayout(JOB).finished)
    again = job.begin()  # Another driver, before anything completed.
    assert (again.checkpoint_id, again.completes_stop) == (2, False)
    job.take(3)
    assert job.begin().checkpoint_id == 3


def test_rows_that_waited_for_a_stop_were_shown_if_the_job_ended_with_it(tmp_path: Path) -> None:
    """Its finishing attempt is the one that took the savepoint, or one that completed the stop."""
    job = Job(tmp_path)
    job.begin()
    job.take(1)
    job.save(2, STOP)
    job.save(3)  # A copy: its job went on.
    finished = JobLayout(JOB).finished
    assert not choose(job.store, requested=job.request(2)).is_shown, "its job has not finished"
    for by in (b"1", b"2"):
        job.store.put(finished, by)
        assert choose(job.store, requested=job.request(2)).is_shown
        assert not choose(job.store, requested=job.request(3)).is_shown
    for by in (b"", b"0x1"):  # As an older Weir noted it; and damaged.
        job.store.put(finished, by)
        assert not choose(job.store, requested=job.request(2)).is_shown


def test_rows_that_waited_for_a_stop_are_shown_where_the_job_ended_on_another_line(
    tmp_path: Path,
) -> None:
    job = Job(tmp_path)
    job.begin()
    job.take(1)
    job.save(2, STOP)
    job.begin(restore=1)  # The stop was not completed: its driver died, and the job went back.
    job.take(3)
    job.store.put(JobLayout(JOB).finished, b"2")
    assert not choose(job.store, requested=job.request(2)).is_shown


def test_a_savepoint_that_the_job_went_on_from_counts_as_a_checkpoint(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.begin()
    job.take(1)
    job.save(2)
    job.take(3)
    assert job.begin().checkpoint_id == 3
    job.begin(restore=2)
    assert job.begin().checkpoint_id == 2


def test_what_version_1_noted_is_understood(tmp_path: Path) -> None:
    store = MemoryStore()
    for checkpoint_id in (1, 2, 3):
        stored_checkpoint(store, checkpoint_id)
    for name in ("1-0", "2-2"):  # The second attempt went on from 2: 3 was completed late.
        store.put(f"{JOB}/restored/{name}", b"")
    assert choose(store).checkpoint_id == 2


def test_a_damaged_note_of_what_an_attempt_went_on_from_is_not_passed_over() -> None:
    store = MemoryStore()
    stored_checkpoint(store, 1)
    note_base(store, JOB, AttemptBase(AttemptNumber(1), CheckpointId(1)))
    store.put(f"{JOB}/restored/1-0", b"{")
    with pytest.raises(CorruptStateError, match="restored/1-0 cannot be used"):
        choose(store)
