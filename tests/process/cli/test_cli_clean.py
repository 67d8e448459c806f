"""A driver is killed at every point of its work; of every file that it leaves is asked what for.

The jobs run in one process without Spark, so that SIGKILL ends driver and workers at once. The
looks at the storage are those of a user: names of files, and manifests.
"""

import json
import multiprocessing
import os
import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.forks import run_python
from tests.process.cli.killed import drive
from tests.process.cli.leaving import KEYS, RECORDS
from tests.unit.output.test_needs import manifest
from tests.waiting import wait_until
from weir.ids import AttemptNumber, CheckpointId, JobId
from weir.output.output_files import PENDING
from weir.protocol.lineage import AttemptBase
from weir.storage.attempt_bases import note_base
from weir.storage.attempt_claims import ManagedClaim, describe_process
from weir.storage.layout import JobLayout
from weir.storage.local import LocalStore
from weir.storage.manifest import Manifest, Tombstone, dump, load

KILLED = -9
FORKING = multiprocessing.get_context("forkserver")
FORKING.set_forkserver_preload(["tests.process.cli.killed"])


class Runs:
    """The drivers of one pipeline, one after the other, and what they leave."""

    def __init__(self, directory: Path) -> None:
        self.storage, self.output = directory / "storage", directory / "out"
        self.hurry = directory / "hurry"
        self._directory = directory

    def command(self, *options: str, interval: str = "50ms") -> list[str]:
        return [
            *(sys.executable, "-m", "weir", "run", "tests.process.cli.leaving"),
            *("--master", "in-process", "--parallelism", "2", "--interval", interval),
            *("--storage", str(self.storage), *options),
            *("--arg", f"output={self.output}", "--arg", f"hurry={self.hurry}"),
        ]

    def killed_at(self, point: str, hit: int, *options: str) -> None:
        """Run a driver that a fault kills; it is forked from one that has Weir imported."""
        _, _, _, *command = self.command(*options)
        driver = FORKING.Process(target=drive, args=(command, point, hit), daemon=True)
        driver.start()
        driver.join()
        assert driver.exitcode == KILLED, f"{point} was not reached {hit} times"

    def killed_when_writing_output(self) -> None:
        """Run a driver that takes no checkpoint, and kill it while its sinks write."""
        with subprocess.Popen(self.command(interval="500h"), stderr=subprocess.DEVNULL) as driver:
            try:
                wait_until(
                    lambda: any(name.startswith(PENDING) for name in self.uncommitted()),
                    "a sink writes",
                )
            finally:
                driver.kill()

    def finished(self) -> str:
        """Run a driver to the end of the input; what it says on the way."""
        self.hurry.touch()
        _, _, *words = self.command("--restore", "latest")
        done = run_python(*words)
        assert done.returncode == 0, done.stderr
        return done.stderr

    def weir(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return run_python("weir", *arguments)

    def clean(self, *options: str) -> subprocess.CompletedProcess[str]:
        return self.weir("clean", str(self.storage), *options)

    @property
    def job(self) -> str:
        (job,) = os.listdir(self.storage)
        return job

    def stored(self) -> set[str]:
        """The files in the job's directory."""
        below = self.storage / self.job
        return {str(file.relative_to(below)) for file in below.rglob("*") if file.is_file()}

    def uncommitted(self) -> set[str]:
        """The files of the sink that are no committed output."""
        files = (file for file in self.output.rglob("*") if file.is_file())
        names = {str(file.relative_to(self.output)) for file in files}
        return {name for name in names if "/" in name}

    def manifests(self) -> dict[int, Manifest | Tombstone]:
        store, layout = LocalStore(self.storage), JobLayout(JobId(self.job))
        paths = [path for path in store.list(layout.directory) if path.endswith("/manifest")]
        loaded = [load(store.read(path), path) for path in paths]
        return {one.checkpoint_id: one for one in loaded}

    def without_a_use(self) -> set[str]:
        """The job's files that are no records, no tombstones, and in no manifest."""
        kept = set()
        for number, one in self.manifests().items():
            kept.add(f"chk-{number}/manifest")
            if isinstance(one, Manifest):
                kept |= {handle.path for handle in one.handles if handle.path is not None}
        records = ("attempts/", "restored/", "over/")
        return {
            path
            for path in self.stored() - kept - {"finished", "outputs"}
            if not path.startswith(records)
        }

    def check_output(self) -> None:
        """Each key's records are numbered one after the other: none is lost or counted twice."""
        numbers: dict[int, list[int]] = defaultdict(list)
        for file in self.output.glob("part-*.parquet"):
            for row in pq.read_table(file).to_pylist():
                numbers[row["key"]].append(row["number"])
        whole = list(range(1, RECORDS // KEYS + 1))
        assert {key: sorted(counted) for key, counted in numbers.items()} == dict.fromkeys(
            range(KEYS), whole
        )


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(tmp_path)


POINTS = {  # And the hit of the point, once there are checkpoints to restore.
    "snapshot.write": 40,
    "manifest.before": 3,
    "manifest.written": 3,
    "sink.before_commit": 5,
    "sink.after_rename": 5,
}


@pytest.mark.parametrize("point", POINTS)
def test_after_a_kill_and_the_next_run_every_file_has_a_use(runs: Runs, point: str) -> None:
    runs.killed_at(point, POINTS[point])
    assert any(isinstance(one, Manifest) for one in runs.manifests().values())
    if point == "manifest.before":
        assert runs.without_a_use(), "all state of that checkpoint is there"
    runs.killed_at("manifest.written", 2, "--restore", "latest")
    assert runs.without_a_use() == set(), "the second driver had swept"
    runs.finished()
    assert runs.without_a_use() == set()
    assert runs.uncommitted() == set()
    assert all(isinstance(one, Tombstone) for one in runs.manifests().values())
    runs.check_output()


@pytest.mark.parametrize("damaged", ["state", "manifest"])
def test_output_of_a_damaged_checkpoint_is_kept_as_long_as_that(runs: Runs, damaged: str) -> None:
    """Going back past it withdraws its output and writes the same records again.

    Once the job has finished, no checkpoint could put that output back. A damaged manifest may be
    repaired, so its files stay, in doubt, until its directory is deleted by hand.
    """
    runs.killed_at("manifest.written", 4)
    newest = max(runs.manifests())
    directory = runs.storage / runs.job / f"chk-{newest}"
    if damaged == "state":
        file = next(file for file in directory.rglob("*") if file.name.startswith("count-"))
    else:
        file = directory / "manifest"
    os.truncate(file, file.stat().st_size - 1)
    waited = {name.rpartition("/")[2] for name in runs.uncommitted() if "/part-" in name}
    said = runs.finished()
    assert f"checkpoint {newest} is passed over" in said
    runs.check_output()
    if damaged == "state":
        assert runs.without_a_use() == set()
        assert runs.uncommitted() == set()
        return
    left = runs.stored()
    assert f"chk-{newest}/manifest" in left
    assert any(path.startswith(f"chk-{newest}/1/") for path in left)
    assert {name.rpartition("/")[2] for name in runs.uncommitted()} == waited
    assert runs.clean("--yes").returncode == 0
    assert runs.stored() == left, "it may be repaired"
    shutil.rmtree(directory)
    assert runs.clean("--yes").returncode == 0
    assert os.listdir(runs.storage) == []
    assert runs.uncommitted() == set()


def test_a_copy_of_the_storage_leaves_the_output_of_the_original_alone(runs: Runs) -> None:
    runs.killed_at("sink.before_commit", 5)
    waiting = runs.uncommitted()
    assert waiting
    copy = runs.storage.with_name("copy")
    shutil.copytree(runs.storage, copy)
    shutil.rmtree(copy / runs.job / f"chk-{max(runs.manifests())}")
    cleaned = runs.weir("clean", str(copy), "--yes", "--driver-is-gone")
    assert cleaned.returncode == 0, cleaned.stderr
    assert f"left alone: output that waits in {runs.output}" in cleaned.stdout
    assert runs.uncommitted() == waiting
    assert "left alone" not in runs.clean("--dry-run").stdout
    runs.finished()
    runs.check_output()
    assert runs.uncommitted() == set()


@pytest.mark.parametrize("writes", ["state", "output"])
def test_a_job_killed_before_its_first_checkpoint_is_listed_and_cleaned(
    runs: Runs, writes: str
) -> None:
    if writes == "state":
        runs.killed_at("snapshot.write", 2)
        said = ": checkpoint 1 was not completed"
    else:
        runs.killed_when_writing_output()
        said = "-0.parquet: output that no checkpoint covers"
    left = runs.stored()
    count = len(left) + len(runs.uncommitted())
    listed = runs.weir("checkpoints", str(runs.storage))
    assert f"{count} files left behind that nothing needs; `weir clean" in listed.stdout
    as_json = runs.weir("checkpoints", str(runs.storage), "--json")
    assert json.loads(as_json.stdout)["jobs"][0]["leftover_files"] == count

    shown = runs.clean("--dry-run")
    assert shown.returncode == 0
    assert shown.stdout.count("\n") == 1 + count
    assert said in shown.stdout
    asked = runs.clean()
    assert asked.returncode == 2
    assert "give --yes" in asked.stderr
    assert runs.stored() == left, "nothing was deleted yet"

    done = runs.clean("--yes")
    assert (done.returncode, os.listdir(runs.storage)) == (0, [])
    assert runs.uncommitted() == set()
    assert f"{count} files of job" in done.stderr


def test_a_job_that_was_refused_is_cleaned_and_the_output_of_others_stays(runs: Runs) -> None:
    runs.output.mkdir()
    others = runs.output / "part-files-0-1-1.parquet"
    others.write_bytes(b"of another job")
    done = subprocess.run(runs.command(), capture_output=True, text=True)
    assert done.returncode == 1
    assert str(runs.output) in done.stderr
    assert runs.stored(), "it left nothing to be cleaned"
    assert runs.clean("--yes").returncode == 0
    assert os.listdir(runs.storage) == []
    assert os.listdir(runs.output) == [others.name]


def test_a_job_that_runs_is_left_alone_and_a_killed_one_keeps_its_checkpoints(runs: Runs) -> None:
    with subprocess.Popen(runs.command(), stderr=subprocess.DEVNULL) as driver:
        try:
            wait_until(
                lambda: runs.storage.exists() and list(runs.storage.glob("*/chk-*/manifest")),
                "a checkpoint is there",
            )
            alive = runs.clean("--yes", "--driver-is-gone")
            assert alive.returncode == 1
            assert f"runs on this machine, as process {driver.pid}" in alive.stdout
            assert "end the driver first" in alive.stdout
            assert driver.poll() is None, "it went on"
        finally:
            driver.kill()
    before = runs.manifests()
    assert runs.clean("--yes").returncode == 0
    assert runs.without_a_use() == set()
    assert not any("/files-" in name for name in runs.uncommitted())
    after = runs.manifests()
    whole = {n for n, one in before.items() if isinstance(one, Manifest)}
    assert whole
    assert whole == {n for n, one in after.items() if isinstance(one, Manifest)}
    runs.finished()
    runs.check_output()


def test_a_driver_that_cannot_be_seen_may_run(runs: Runs) -> None:
    runs.killed_at("snapshot.write", 2)
    claim = runs.storage / runs.job / "attempts" / "1"
    described = json.loads(claim.read_bytes())
    claim.write_text(json.dumps(described | {"machine": "another"}))
    left = runs.stored()
    refused = runs.clean("--yes")
    assert refused.returncode == 1
    assert "give --driver-is-gone" in refused.stdout
    assert runs.stored() == left
    assert runs.clean("--yes", "--driver-is-gone").returncode == 0
    assert os.listdir(runs.storage) == []


def test_a_driver_that_begins_meanwhile_keeps_its_job(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    from weir.cli import clean
    from weir.errors import RestoreError

    runs.killed_at("snapshot.write", 2)
    left = runs.stored()
    layout, store = JobLayout(JobId(runs.job)), LocalStore(runs.storage)

    def confirmed(question: str, _: str) -> bool:
        assert store.create_if_absent(layout.attempt(AttemptNumber(2)), b"")
        return True

    monkeypatch.setattr(clean, "confirmed", confirmed)
    with pytest.raises(RestoreError, match="has begun attempt 2 meanwhile"):
        clean.run(
            str(runs.storage), is_sure=False, is_dry=False, driver_is_gone=False, out=sys.stdout
        )
    assert runs.stored() == left | {"attempts/2"}


def test_a_managed_job_is_left_to_its_control_plane(tmp_path: Path) -> None:
    store, job = LocalStore(tmp_path), JobId("managed")
    layout = JobLayout(job)
    claim = ManagedClaim.with_token("https://weir.example", "token")
    store.put(layout.attempt(AttemptNumber(1)), claim.dump())
    store.put(f"{layout.directory}/chk-1/1/a", b"x")
    done = Runs(tmp_path).weir("clean", str(tmp_path), "--yes")
    assert done.returncode == 1
    assert "a control plane runs it" in done.stdout
    assert store.exists(f"{layout.directory}/chk-1/1/a")


def test_a_finished_job_keeps_the_checkpoint_that_another_job_began_with(tmp_path: Path) -> None:
    """A driver was killed after it had recorded the end, and before it deleted its checkpoints."""
    store, origin, fork = LocalStore(tmp_path), JobId("job"), JobId("fork")
    layout = JobLayout(origin)
    store.put(layout.attempt(AttemptNumber(1)), b"")
    store.put(layout.finished, b"1")
    for number in (2, 3):
        one = manifest(number, f"chk-{number}/1/a")
        store.put(f"{layout.directory}/chk-{number}/1/a", b"x")
        store.put(layout.manifest(one.checkpoint_id), dump(one))
    store.put(JobLayout(fork).attempt(AttemptNumber(1)), describe_process())
    base = AttemptBase(AttemptNumber(1), CheckpointId(4), CheckpointId(3), AttemptNumber(1), origin)
    note_base(store, fork, base)
    done = Runs(tmp_path).weir("clean", str(tmp_path / "job"), "--yes")
    assert done.returncode == 0
    assert "needed by: another job, which began with checkpoint 3" in done.stdout
    left = {path for path in store.list("job") if "/chk-" in path}
    assert left == {"job/chk-3/manifest", "job/chk-3/1/a"}
