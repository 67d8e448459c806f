"""The sweep of a job's files in directories, and what can happen between its looks."""

import json
import os
import shutil
from pathlib import Path

import pytest

from tests.unit.output.test_needs import JOB, manifest, tombstone
from weir.errors import StorageError
from weir.ids import AttemptNumber, CheckpointId, JobId
from weir.output.needs import plan
from weir.output.sink_directories import SinkDirectories, note_directories, noted_directories
from weir.output.sweeping import carry_out, look
from weir.protocol.elements import CheckpointKind
from weir.protocol.lineage import AttemptBase
from weir.storage.attempt_bases import note_base
from weir.storage.layout import JobLayout
from weir.storage.local import LocalStore
from weir.storage.manifest import Manifest, Tombstone, dump, load
from weir.storage.store import checksum_of

LAYOUT = JobLayout(JOB)


class World:
    """A job that was killed in checkpoint 4 and went on from checkpoint 3 with attempt 2."""

    def __init__(self, directory: Path) -> None:
        self.store = LocalStore(directory / "storage")
        self.sink = directory / "out"
        for number, restored in ((1, None), (2, 3)):
            self.store.create_if_absent(LAYOUT.attempt(AttemptNumber(number)), b"")
            own = None if restored is None else CheckpointId(restored)
            by = None if restored is None else AttemptNumber(1)
            next_id = CheckpointId(5 if restored else 1)
            note_base(self.store, JOB, AttemptBase(AttemptNumber(number), next_id, own, by))
        self.put(manifest(3, "chk-3/1/a"))
        self.touch("chk-3/1/a", "chk-3/1/late", "chk-4/1/a", "chk-4/1/.weir-tmp-b", "chk-6/2/a")
        note_directories(self.store, JOB, {str(self.sink)})
        self.output("_pending/job/1/op-0-3.parquet", "_pending/job/2/op-0-0.parquet")
        self.output("_withdrawn/job/1/part-op-0-4-0.parquet", "part-op-0-3-0.parquet")

    def put(self, one: Manifest | Tombstone) -> None:
        self.store.put(LAYOUT.manifest(one.checkpoint_id), dump(one))

    def touch(self, *paths: str) -> None:
        for path in paths:
            file = self.store.root / LAYOUT.directory / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch()

    def output(self, *paths: str) -> None:
        for path in paths:
            (self.sink / path).parent.mkdir(parents=True, exist_ok=True)
            (self.sink / path).touch()

    def files(self) -> set[str]:
        """The files that are no records of the job."""
        below = self.store.root / LAYOUT.directory
        inside = {str(file.relative_to(below)) for file in below.rglob("chk-*/**/*")}
        inside = {path for path in inside if (below / path).is_file()}
        return inside | {
            str(file.relative_to(self.sink)) for file in self.sink.rglob("*") if file.is_file()
        }

    def sweep(self, *, may_run: bool = True) -> int:
        seen, files = look(self.store, JOB, may_run=may_run)
        return carry_out(self.store, seen, plan(seen, files), check=lambda: None, now_ms=7)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_what_nothing_needs_goes_and_all_else_stays(world: World) -> None:
    assert world.sweep() == 5
    assert world.files() == {
        "chk-3/manifest",
        "chk-3/1/a",
        "chk-4/manifest",
        "chk-6/2/a",
        "_pending/job/2/op-0-0.parquet",
        "part-op-0-3-0.parquet",
    }
    given_up = load(world.store.read(LAYOUT.manifest(CheckpointId(4))))
    assert isinstance(given_up, Tombstone)
    assert not (world.store.root / LAYOUT.directory / "chk-4" / "1").exists()
    assert not (world.sink / "_withdrawn").exists()
    assert world.sweep() == 0


def test_claims_go_with_their_attempt_and_the_output_stays(world: World) -> None:
    shutil.rmtree(world.sink)
    world.output("_claims/job/1", "_claims/job/2", "_claims/another/1")
    world.sweep()
    assert {"_claims/job/2", "_claims/another/1"} == {
        path for path in world.files() if path.startswith("_claims")
    }
    shutil.rmtree(world.sink / "_claims" / "another")
    world.sweep(may_run=False)
    assert list(world.sink.iterdir()) == []


def test_a_checkpoint_that_completes_between_the_looks_keeps_its_files(world: World) -> None:
    """An older driver passed the fence, hung, and creates its manifest now."""
    seen, files = look(world.store, JOB, may_run=True)
    sweep = plan(seen, files)
    assert sweep.give_up == (4,)
    late = manifest(4, "chk-4/1/a")
    assert world.store.create_if_absent(LAYOUT.manifest(late.checkpoint_id), dump(late))
    carry_out(world.store, seen, sweep, check=lambda: None, now_ms=7)
    assert {"chk-4/manifest", "chk-4/1/a"} <= world.files()
    assert isinstance(load(world.store.read(LAYOUT.manifest(CheckpointId(4)))), Manifest)


def test_no_manifest_comes_after_its_state_is_gone(world: World) -> None:
    world.sweep()
    late = manifest(4, "chk-4/1/a")
    assert not world.store.create_if_absent(LAYOUT.manifest(late.checkpoint_id), dump(late))


def test_nothing_goes_behind_the_fence(world: World) -> None:
    before = world.files()
    seen, files = look(world.store, JOB, may_run=True)

    def refuse() -> None:
        raise StorageError("another driver has the job")

    with pytest.raises(StorageError, match="another driver"):
        carry_out(world.store, seen, plan(seen, files), check=refuse, now_ms=7)
    assert world.files() == before


def test_a_sweep_that_was_cut_off_goes_on(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    deletes = LocalStore.delete_prefix

    def fail(store: LocalStore, directory: str) -> None:
        raise StorageError(f"cannot delete {directory}")

    monkeypatch.setattr(LocalStore, "delete_prefix", fail)
    with pytest.raises(StorageError, match="chk-4/1"):
        world.sweep()
    assert "chk-4/1/a" in world.files()
    monkeypatch.setattr(LocalStore, "delete_prefix", deletes)
    world.sweep()
    assert "chk-4/1/a" not in world.files()


def test_savepoints_keep_their_state_and_lose_that_of_tries(world: World) -> None:
    location = f"savepoints/{JOB}/one"
    own = manifest(2, "1-2/a", kind=CheckpointKind.SAVEPOINT, location="/moved")
    world.store.put(f"{location}/manifest", dump(own))
    for path in ("1-2/a", "1-1/a", "2-6/a"):
        world.store.put(f"{location}/{path}", b"x")
    world.store.put(f"savepoints/{JOB}/two/1-4/a", b"x")
    world.store.put(f"savepoints/{JOB}-2/two/1-4/a", b"x")
    world.sweep()
    assert world.store.list("savepoints") == [
        f"savepoints/{JOB}-2/two/1-4/a",
        f"{location}/1-2/a",
        f"{location}/2-6/a",
        f"{location}/manifest",
    ]


def test_files_of_another_job_stay(world: World) -> None:
    other = JobLayout(JobId("job-2"))
    world.store.put(f"{other.directory}/chk-4/1/a", b"x")
    world.output("_pending/job-2/1/op-0-0.parquet", "_withdrawn/job-2/1/part-op-0-9-0.parquet")
    before = {path for path in world.files() if "job-2" in path}
    world.sweep(may_run=False)
    assert {path for path in world.files() if "job-2" in path} == before
    assert world.store.exists(f"{other.directory}/chk-4/1/a")


def test_no_link_is_followed_out_of_a_sink(world: World, tmp_path: Path) -> None:
    """User code writes to the sink's directory; the driver may run as another user."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "op-0-1.parquet").touch()
    os.symlink(outside, world.sink / "_pending" / "job" / "0")
    os.rename(world.sink / "_pending" / "job" / "1", world.sink / "_pending" / "job" / "was")
    os.symlink(outside, world.sink / "_pending" / "job" / "1")
    with pytest.raises(OSError, match="symbolic link"):
        world.sweep()
    assert (outside / "op-0-1.parquet").exists()


def test_directories_of_every_attempt_are_noted(world: World) -> None:
    note_directories(world.store, JOB, {"/b"})
    note_directories(world.store, JOB, set())
    noted = noted_directories(world.store, JOB)
    assert noted.of_storage(world.store) == {str(world.sink), "/b"}


@pytest.mark.parametrize(
    "note",
    [
        "no JSON",
        {"no": "list"},
        ["/of/an/older/version"],
        {"storage": 1, "directories": []},
        {"storage": "/x", "directories": [1]},
    ],
)
def test_a_damaged_note_names_nothing_and_is_written_anew(world: World, note: object) -> None:
    data = note if isinstance(note, str) else json.dumps(note)
    world.store.put(LAYOUT.outputs, data.encode())
    assert noted_directories(world.store, JOB) == SinkDirectories()
    note_directories(world.store, JOB, {"/b"})
    assert noted_directories(world.store, JOB).of_storage(world.store) == {"/b"}


def test_a_copy_of_the_storage_leaves_output_of_the_original_alone(
    world: World, tmp_path: Path
) -> None:
    """The same job, restored from a backup to try something, and finished there."""
    shutil.copytree(tmp_path / "storage", tmp_path / "copy")
    copy = LocalStore(tmp_path / "copy")
    before = {file for file in world.files() if file.startswith("_")}
    assert len(before) == 3
    note_directories(copy, JOB, {str(tmp_path / "other")})
    seen, files = look(copy, JOB, may_run=False)
    assert carry_out(copy, seen, plan(seen, files), check=lambda: None, now_ms=7)
    assert {file for file in world.files() if file.startswith("_")} == before
    assert noted_directories(copy, JOB).of_storage(copy) == {str(tmp_path / "other")}
    world.sweep(may_run=False)
    assert not before & world.files(), "the original deletes them itself"


def test_a_storage_is_itself_under_every_name(world: World, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "storage")
    linked = LocalStore(tmp_path / "link")
    assert noted_directories(linked, JOB).of_storage(linked) == {str(world.sink)}


def of_version(number: int, data: bytes) -> bytes:
    """A manifest as that version of its format wrote it: the first knew no location."""
    whole = json.loads(data)
    body = whole["manifest"]
    if number == 1:
        body = {name: body[name] for name in body.keys() - {"location", "source_records"}}
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    checksum = checksum_of(text.encode())
    return json.dumps({**whole, "version": number, "manifest": body, "checksum": checksum}).encode()


@pytest.mark.parametrize("version", [1, 2, 3])
def test_manifests_of_older_versions_keep_their_files(world: World, version: int) -> None:
    data = of_version(version, dump(manifest(3, "chk-3/1/a")))
    world.store.put(LAYOUT.manifest(CheckpointId(3)), data)
    world.sweep()
    assert {"chk-3/manifest", "chk-3/1/a"} <= world.files()
    assert "chk-3/1/late" not in world.files(), "it was read"


def test_a_manifest_of_a_newer_version_keeps_all(world: World) -> None:
    data = of_version(99, dump(manifest(3, "chk-3/1/a")))
    world.store.put(LAYOUT.manifest(CheckpointId(3)), data)
    before = {path for path in world.files() if "chk-3" in path or "_withdrawn" in path}
    assert len(before) == 4
    world.sweep(may_run=False)
    assert before <= world.files()


def test_tombstones_stay(world: World) -> None:
    world.put(tombstone(4))
    world.sweep()
    assert "chk-4/manifest" in world.files()
