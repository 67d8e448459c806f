"""Which checkpoint an attempt starts from."""

from pathlib import Path

import pytest

from tests.builders import edge, graph, node
from tests.runtime.job_harness import JOB, PLAN, state_file, stored_checkpoint
from weir.config import JobConfig
from weir.errors import CorruptStateError, RestoreError, WeirError
from weir.graph.physical import ExecutionGraph
from weir.ids import AttemptNumber, CheckpointId, JobId
from weir.protocol.elements import CheckpointKind
from weir.runtime.recovery import (
    RestoreChoice,
    RestoreRequest,
    choose_restore,
    latest_job,
    search,
)
from weir.storage.layout import JobLayout, in_job
from weir.storage.local import LocalStore
from weir.storage.manifest import Tombstone, dump
from weir.storage.memory import MemoryStore
from weir.storage.store import CheckpointStore

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


def test_damage_to_an_older_one_is_nobodys_concern() -> None:
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
            found = super().list(directory)
            self.delete(JobLayout(JOB).manifest(CheckpointId(1)))
            return found

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
        (lambda store: None, RestoreError, r"no checkpoint 1 of job job .*lists what there is"),
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
    found = search(store, JOB)
    assert [completed.checkpoint_id for completed in found.completed] == [2, 3]
    assert found.next_id == 10
    assert search(MemoryStore(), JOB).next_id == 1


def test_the_latest_job_of_a_name_is_found_or_advice_is_given() -> None:
    store = MemoryStore()
    stored_checkpoint(store, 1)
    assert latest_job(store, "job") == JOB
    with pytest.raises(RestoreError, match="no completed checkpoint of a job named 'other'"):
        latest_job(store, "other")


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


@pytest.mark.parametrize("uri", ["newest", "/data/job", "/data/job/chk-x", "chk-7"])
def test_what_names_no_checkpoint_is_told_how_to(uri: str) -> None:
    with pytest.raises(RestoreError, match="give latest, or a path such as"):
        RestoreRequest.parse(uri)
