"""The writer of one subtask's snapshot: inline or file, and back again."""

import pytest

from tests.claims import claim, unclaimed
from tests.unit.state.snapshots import JOB, snapshot_writer
from weir.config import CheckpointConfig
from weir.errors import CorruptStateError, StorageError
from weir.ids import AttemptNumber, CheckpointId, KeyGroupRange, OperatorId, SubtaskId
from weir.storage.manifest import read_handle
from weir.storage.memory import MemoryStore
from weir.storage.store import WriteRefusedError
from weir.storage.writer import dump_items, load_items, writer_factory


@pytest.mark.parametrize(("size", "inline"), [(9, True), (10, False)])
def test_state_below_the_bound_travels_inside_the_handle(size: int, inline: bool) -> None:
    store = MemoryStore()
    handle = snapshot_writer(store, inline_max=10).put("operator", "n", b"x" * size, mode="split")
    assert (handle.inline is not None, handle.path is None) == (inline, inline)
    assert len(store.list()) == (0 if inline else 1)
    assert read_handle(store, JOB, handle) == b"x" * size


def test_without_durable_storage_everything_is_inline() -> None:
    store = MemoryStore()
    make = writer_factory(store, JOB, AttemptNumber(1), CheckpointConfig(), durable=False)
    writer = make(CheckpointId(1), SubtaskId(OperatorId("op"), 0), lambda: False)
    assert writer.put("operator", "n", b"x" * 1_000_000).inline is not None


def test_a_handle_says_which_keys_and_how_it_is_dealt_out() -> None:
    writer = snapshot_writer(MemoryStore())
    groups = KeyGroupRange(3, 5)
    assert writer.put("keyed", "k", b"1", key_groups=groups).key_groups == groups
    assert writer.put_items("l", [1], mode="union").mode == "union"


def test_discarding_takes_back_what_this_writer_wrote_and_nothing_else() -> None:
    store = MemoryStore()
    mine, other = (snapshot_writer(store, index, inline_max=0) for index in (0, 1))
    mine.put("operator", "a", b"1")
    with mine.open(mine.path("b")) as file:
        file.write(b"2")
        file.close()
    kept = other.put("operator", "a", b"3")
    mine.discard()
    mine.discard()
    assert store.list() == [f"{JOB}/{kept.path}"]


def test_discarding_takes_back_a_file_that_was_never_finished() -> None:
    store = MemoryStore()
    writer = snapshot_writer(store)
    writer.open(writer.path("half")).write(b"1")
    writer.discard()
    assert store.list() == []


def test_attempts_never_write_to_the_same_file() -> None:
    paths = set()
    for attempt in (1, 2):
        store = MemoryStore()
        claim(store, JOB, AttemptNumber(attempt))
        make = writer_factory(store, JOB, AttemptNumber(attempt), CheckpointConfig(), durable=True)
        writer = make(CheckpointId(1), SubtaskId(OperatorId("op"), 0), lambda: False)
        paths.add(writer.path("n"))
    assert len(paths) == 2


@pytest.mark.parametrize("durable", [True, False])
def test_a_savepoint_is_written_to_its_own_directory_beside_any_job_storage(
    durable: bool,
) -> None:
    stores = {"/s/one": MemoryStore()}
    jobs = MemoryStore()
    claim(jobs, JOB, AttemptNumber(3))
    config = CheckpointConfig(inline_max_bytes=2)
    make = writer_factory(
        jobs,
        JOB,
        AttemptNumber(3),
        config,
        durable=durable,
        open_store=lambda uri: stores[uri or ""],
    )
    writer = make(CheckpointId(7), SubtaskId(OperatorId("op"), 0), lambda: False, "/s/one")
    assert writer.put("operator", "small", b"x").inline == b"x"
    handle = writer.put("operator", "large", b"xyz", mode="split")
    assert handle.path == "3-7/op-0-large"
    assert read_handle(stores["/s/one"], "", handle) == b"xyz"
    assert unclaimed(jobs) == []
    writer.discard()
    assert stores["/s/one"].list() == []


@pytest.mark.parametrize("target", [None, "/s/one"])
def test_files_go_to_no_storage_that_lacks_the_attempts_claim(target: str | None) -> None:
    """A share that is not mounted on the machine of a subtask is an empty directory there."""
    jobs, savepoints = MemoryStore(), MemoryStore()
    claim(jobs, JOB, AttemptNumber(2))  # An earlier copy of the storage.
    config = CheckpointConfig(inline_max_bytes=2)
    make = writer_factory(
        jobs, JOB, AttemptNumber(3), config, durable=True, open_store=lambda uri: savepoints
    )
    writer = make(CheckpointId(7), SubtaskId(OperatorId("op"), 0), lambda: False, target)
    assert writer.put("operator", "small", b"x").inline == b"x"
    with pytest.raises(StorageError, match=r"not the job's checkpoint storage .* attempt 3 is"):
        writer.put("operator", "large", b"xyz", mode="split")
    with pytest.raises(StorageError, match="Mount it as it is mounted for the driver"):
        writer.path("large")
    assert not writer.has_files
    assert unclaimed(jobs) == unclaimed(savepoints) == []
    claim(jobs, JOB, AttemptNumber(3))
    assert writer.put("operator", "large", b"xyz", mode="split").path is not None


def test_a_savepoint_is_not_written_over_another() -> None:
    taken = MemoryStore()
    taken.put("manifest", b"anything")
    make = writer_factory(
        MemoryStore(), JOB, AttemptNumber(1), CheckpointConfig(), durable=True,
        open_store=lambda uri: taken,
    )  # fmt: skip
    with pytest.raises(WriteRefusedError, match="/s/one holds a savepoint already"):
        make(CheckpointId(1), SubtaskId(OperatorId("op"), 0), lambda: False, "/s/one")


@pytest.mark.parametrize("items", [[], [1, "a", None, {"x": [True]}], [b"\x00\xff", {"b": 1}]])
def test_items_come_back_as_they_were(items: list[object]) -> None:
    assert load_items(dump_items(items)) == items


def test_items_that_are_no_list_are_damage() -> None:
    with pytest.raises(CorruptStateError, match="no list of items"):
        load_items(b"[1,")
