"""A power cut at any moment of a job: what was promised by then is on the disk.

The order of fsync, rename, link, unlink and mkdir of a whole job is recorded, and folded into a
*disk* that holds only what these calls guarantee: the content of a file after its fsync, a name
after the fsync of its directory, a renamed file under one of its two names until then. At every
promise (an acknowledgement, a completed checkpoint or savepoint, a commit, the end of the job) the
disk is asked for all that it is about.
"""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from weir.common import Configuration, Types, WatermarkStrategy
from weir.datastream import StreamExecutionEnvironment
from weir.datastream.connectors import DataGeneratorSource, ParquetSink
from weir.datastream.execution import ExecutionOptions, capturing, overriding
from weir.ids import CheckpointId, JobId
from weir.jobmaster.job_master import JobMaster
from weir.local.cluster import run_in_process
from weir.output.output_files import CommittedName
from weir.protocol.elements import CheckpointKind
from weir.protocol.events import CheckpointSettled, CheckpointTriggered, JobChanged
from weir.protocol.lifecycle import JobStatus
from weir.protocol.messages import Acknowledged
from weir.protocol.pending import SAVEPOINT_KINDS, STOP_KINDS
from weir.spark import submit
from weir.storage.layout import SAVEPOINT_MANIFEST, JobLayout, parse_manifest_path
from weir.storage.manifest import Manifest, load

pytestmark = pytest.mark.usefixtures("simulated_time")

RECORDS = 400
ENDLESS = 10_000_000  # Records of a job that ends by a stop.
ROW = Types.ROW_NAMED(["number"], [Types.LONG()])


class Disk:
    """The files below a directory that a power cut would leave, in the worst case."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.calls: list[tuple[str, str]] = []
        self._contents: set[Path] = set()  # Files, under their present names, whose bytes are safe.
        self._names: set[Path] = set()  # Present names that are safe.
        self._either: set[Path] = set()  # Names of files that are safe under this or the last one.

    def holds(self, path: Path) -> bool:
        """Whether the file would be there, whole and under this name."""
        above = (one for one in path.parents if one.is_relative_to(self.root) and one != self.root)
        return path in self._contents and all(one in self._names for one in (path, *above))

    def holds_somewhere(self, path: Path) -> bool:
        """Whether the file would be there under this name, or the one before."""
        return self.holds(path) or path in self._either

    def synced(self, path: Path) -> None:
        self._call("fsync", path)
        if not path.is_dir():
            self._contents.add(path)
            return
        inside = set(path.iterdir())
        self._names = {one for one in self._names if one.parent != path} | inside

    def renamed(self, old: Path, new: Path, *, is_link: bool = False) -> None:
        self._call("link" if is_link else "rename", new)
        was_safe = self.holds(old)
        self._forget(new)
        if old in self._contents:
            self._contents.add(new)
        if was_safe:
            self._either.add(new)
        if not is_link:
            self._contents.discard(old)

    def removed(self, path: Path) -> None:
        self._call("unlink", path)
        self._forget(path)

    def _forget(self, path: Path) -> None:
        self._contents.discard(path)
        self._either.discard(path)
        self._names.discard(path)

    def _call(self, name: str, path: Path) -> None:
        self.calls.append((name, str(path.relative_to(self.root))))


class Watch:
    """Records the calls of this process that change names or make bytes durable."""

    def __init__(self, disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
        self._disk = disk
        self.before_rename: Callable[[Path, Path], None] = lambda old, new: None
        self.before_unlink: Callable[[Path], None] = lambda path: None
        patched = ("fsync", "rename", "replace", "link", "unlink")
        self._real: dict[str, Callable[..., Any]] = {name: getattr(os, name) for name in patched}
        for name in patched:
            monkeypatch.setattr(os, name, getattr(self, name))

    def fsync(self, descriptor: int) -> None:
        self._real["fsync"](descriptor)
        if (path := self._of_descriptor(descriptor)) is not None:
            self._disk.synced(path)

    def rename(self, old: Any, new: Any, **at: Any) -> None:
        self._move("rename", old, new, **at)

    def replace(self, old: Any, new: Any, **at: Any) -> None:
        self._move("replace", old, new, **at)

    def link(self, old: Any, new: Any, **at: Any) -> None:
        self._move("link", old, new, **at)

    def unlink(self, path: Any, *, dir_fd: int | None = None) -> None:
        whole = self._whole(path, dir_fd)
        if whole is not None:
            self.before_unlink(whole)
        self._real["unlink"](path, dir_fd=dir_fd)
        if whole is not None:
            self._disk.removed(whole)

    def _move(self, call: str, old: Any, new: Any, **at: Any) -> None:
        source = self._whole(old, at.get("src_dir_fd"))
        target = self._whole(new, at.get("dst_dir_fd"))
        if source is not None and target is not None:
            self.before_rename(source, target)
        self._real[call](old, new, **at)
        if source is not None and target is not None:
            self._disk.renamed(source, target, is_link=call == "link")

    def _whole(self, path: Any, descriptor: int | None) -> Path | None:
        """The absolute path; None: it is outside of what is watched."""
        above = Path() if descriptor is None else Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        whole = Path(os.path.abspath(above / path))
        return whole if whole.is_relative_to(self._disk.root) else None

    def _of_descriptor(self, descriptor: int) -> Path | None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        return path if path.is_relative_to(self._disk.root) else None


class Promises:
    """Asks the disk for everything that a job has promised so far."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.storage, self.output = directory / "storage", directory / "out" / "of" / "a" / "job"
        self.disk = Disk(directory)
        self.job: JobId | None = None
        self.savepoints = directory / "kept" / "apart"
        self.acknowledged = self.completed = self.committed = self.discarded = self.saved = 0
        self._targets: dict[CheckpointId, Path] = {}  # Directories of savepoints, by number.
        self.status = JobStatus.CREATED
        watch = Watch(self.disk, monkeypatch)
        watch.before_rename, watch.before_unlink = self.on_rename, self.on_unlink

    def on_event(self, event: Any) -> None:
        match event:
            case CheckpointTriggered(checkpoint_id=number, kind=kind) if kind in SAVEPOINT_KINDS:
                self._targets[number] = self.savepoints / kind
            case Acknowledged():
                for ack in event.operators:
                    for handle in ack.handles:
                        self._check_state(handle, self._targets.get(event.checkpoint_id))
                self.acknowledged += 1
            case CheckpointSettled(checkpoint_id=number, failure=None):
                assert self.disk.holds(self._manifest(number))
                self.completed += 1
            case JobChanged(status=status):
                self.status = status

    def on_saved(self, uri: str) -> None:
        """A client is told that its savepoint was taken: it may be moved, and restored."""
        number = next(n for n, target in self._targets.items() if str(target) == uri)
        self._check_savepoint(number)
        assert self.disk.holds(Path(uri, SAVEPOINT_MANIFEST))
        assert self.disk.holds(self._manifest(number))
        self.saved += 1

    def _check_savepoint(self, number: CheckpointId) -> None:
        """All state that a savepoint's manifest names lies in its directory, and is safe."""
        target = self._targets[number]
        data = Path(target, SAVEPOINT_MANIFEST).read_bytes()
        manifest = load(data, str(target))
        assert isinstance(manifest, Manifest)
        handles = [handle for ack in manifest.acks for handle in ack.handles]
        assert handles, "the savepoint has no state"
        for handle in handles:
            self._check_state(handle, target)

    def _check_state(self, handle: Any, target: Path | None) -> None:
        assert handle.path is not None, "all state lies in files"
        path = (target or self.storage / self._layout.directory) / handle.path
        assert self.disk.holds(path), f"{path} is acknowledged, and a power cut would lose it"
        if handle.name != "commits":
            return
        for item in json.loads(path.read_bytes()):
            for pending, final in item["commits"]:
                files = [self.output / pending, self.output / final]
                assert any(map(self.disk.holds_somewhere, files)), f"{pending} would be lost"

    def on_rename(self, old: Path, new: Path) -> None:
        """A name appears: its bytes are safe, and what it stands on is."""
        if new.is_relative_to(self.storage) or new.is_relative_to(self.savepoints):
            assert old in self.disk._contents, f"{new} gets its name before its bytes are safe"
            self._check_order(new)
            return
        name = CommittedName.parse(new.name)
        if name is None or new.parent != self.output:
            return
        covering = [n for n in self._manifests() if n >= name.checkpoint_id]
        assert any(self.disk.holds(self._manifest(n)) for n in covering), f"{new} is too early"
        assert self.disk.holds(old), f"{new} is committed before it is safe"
        self.committed += 1

    def _check_order(self, new: Path) -> None:
        """The key of a savepoint appears after its own manifest, which has all state before it."""
        if not new.is_relative_to(self.storage):
            return
        key = parse_manifest_path(str(new.relative_to(self.storage)))
        if key is None or key[1] not in self._targets:
            return
        own = self._targets[key[1]] / SAVEPOINT_MANIFEST
        assert self.disk.holds(own), f"{new} decides a savepoint whose own manifest could be lost"
        self._check_savepoint(key[1])

    def on_unlink(self, path: Path) -> None:
        """A completed checkpoint goes: a newer one is safe, or the end of the job."""
        if not path.is_relative_to(self.storage):
            return
        key = parse_manifest_path(str(path.relative_to(self.storage)))
        if key is None:
            return
        newer = [self._manifest(n) for n in self._manifests() if n > key[1]]
        end = self.storage / self._layout.finished
        assert any(map(self.disk.holds, [*newer, end])), f"{path} goes too early"
        self.discarded += 1

    @property
    def _layout(self) -> JobLayout:
        (job,) = os.listdir(self.storage)
        return JobLayout(JobId(job))

    def _manifest(self, number: CheckpointId) -> Path:
        return self.storage / self._layout.manifest(number)

    def _manifests(self) -> Iterator[CheckpointId]:
        for path in (self.storage / self._layout.directory).glob("chk-*/manifest"):
            yield CheckpointId(int(path.parent.name.removeprefix("chk-")))


@pytest.fixture
def promises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Promises:
    return Promises(tmp_path, monkeypatch)


def options(promises: Promises) -> ExecutionOptions:
    return ExecutionOptions(
        master="in-process", parallelism=2, interval_ms=50, storage=str(promises.storage)
    )


def pipeline(promises: Promises, records: int) -> StreamExecutionEnvironment:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.configure(Configuration({"execution.checkpointing.data-inline-threshold": "1"}))
    source = DataGeneratorSource(lambda i: (i,), records, 400.0)
    stream = env.from_source(source, WatermarkStrategy.no_watermarks(), "numbers")
    rows = stream.map(lambda row: row, ROW)
    rows.sink_to(ParquetSink(promises.output)).uid("files")
    return env


def run(promises: Promises) -> None:
    submit.listen(promises.on_event)
    try:
        with overriding(options(promises)):
            pipeline(promises, RECORDS).execute("power")
    finally:
        submit.unlisten(promises.on_event)


class Asking:
    """Asks for a savepoint after two checkpoints, and after two more for the job's stop with one.

    The checkpoints between commit output that the first savepoint had left waiting.
    """

    def __init__(self, promises: Promises, stop: CheckpointKind) -> None:
        self._promises = promises
        self._left = [(CheckpointKind.SAVEPOINT, 2), (stop, 5)]
        self.failed: list[str] = []

    def __call__(self, master: JobMaster) -> None:
        if not self._left or self._promises.completed < self._left[0][1]:
            return
        kind, _ = self._left.pop(0)
        target = str(self._promises.savepoints / kind)
        told = self._promises.on_saved
        master.savepoint(kind.value, kind, target, done=told, failed=self.failed.append)


def test_what_was_promised_survives_a_power_cut(promises: Promises) -> None:
    run(promises)
    assert promises.status is JobStatus.FINISHED
    assert promises.completed >= 2
    assert promises.acknowledged >= 2 * promises.completed
    assert promises.discarded >= promises.completed
    parts = list(promises.output.glob("part-*.parquet"))
    assert len(parts) == promises.committed > 0
    assert all(map(promises.disk.holds, parts)), "a commit ends with the fsync of its directory"


@pytest.mark.parametrize("stop", sorted(STOP_KINDS))
def test_savepoints_that_were_answered_survive_a_power_cut(
    promises: Promises, stop: CheckpointKind
) -> None:
    with overriding(options(promises)), capturing() as capture:
        pipeline(promises, ENDLESS).execute("power")
    (captured,) = capture.jobs
    asking = Asking(promises, stop)
    ended = run_in_process(
        captured.graph, captured.config, emit=promises.on_event, meanwhile=asking
    )
    assert (ended.status, asking.failed) == (JobStatus.FINISHED, [])
    assert promises.saved == 2
    assert promises.completed >= 6  # Four checkpoints and both savepoints.
    for kind in (CheckpointKind.SAVEPOINT, stop):
        kept = [path for path in (promises.savepoints / kind).rglob("*") if path.is_file()]
        assert len(kept) > 1
        assert all(map(promises.disk.holds, kept)), "the end of the job deletes no savepoint"
    parts = list(promises.output.glob("part-*.parquet"))
    assert len(parts) == promises.committed > 0
    assert all(map(promises.disk.holds, parts))
