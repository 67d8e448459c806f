"""The state backend of a job: chosen by the pipeline, and nothing else differs."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.unit.testing.pipelines import reading, totals
from weir.common import Configuration
from weir.config import CheckpointConfig, JobConfig, StateBackendKind, StateConfig
from weir.datastream import StreamExecutionEnvironment
from weir.datastream.state_backend import (
    EmbeddedRocksDBStateBackend,
    HashMapStateBackend,
    StateBackend,
)
from weir.errors import ConfigError
from weir.ids import JobId, KeyGroupRange
from weir.jobmaster.job_master import JobMaster
from weir.local.cluster import run_in_process
from weir.operators.sinks import CollectSink
from weir.protocol.elements import CheckpointKind
from weir.protocol.lifecycle import JobStatus
from weir.state.backends.choice import open_tables
from weir.storage.catalog import RestoreRequest
from weir.storage.layout import SAVEPOINT_MANIFEST
from weir.storage.local import LocalStore
from weir.storage.manifest import Manifest, load
from weir.testing import KillPoint, Timed, assert_same_output, run


def in_rocksdb(env: StreamExecutionEnvironment, directory: Path) -> None:
    backend = EmbeddedRocksDBStateBackend()
    backend.set_db_storage_paths(str(directory))
    env.set_state_backend(backend)
    totals(env)


def with_increments_in_memory(env: StreamExecutionEnvironment, directory: Path) -> None:
    env.configure({"execution.checkpointing.incremental": True})
    totals(env)


@pytest.mark.parametrize("pipeline", [in_rocksdb, with_increments_in_memory])
def test_a_killed_run_gives_what_one_in_memory_does(
    pipeline: Callable[[StreamExecutionEnvironment, Path], None], tmp_path: Path
) -> None:
    readings = [Timed(reading("abc"[n % 3], n), n) for n in range(25)]
    in_memory = run(totals, readings, parallelism=2)
    killed = run(
        partial(pipeline, directory=tmp_path), readings, parallelism=2, kill=KillPoint.WRITE
    )
    assert killed.restarts == 1
    for sink, expected in in_memory.outputs.items():
        assert_same_output(expected, killed.outputs[sink], key=lambda record: record[0])
    assert list(tmp_path.iterdir()) == []  # No database is left.


WORDS = [f"word {n % 40}" for n in range(20_000)]


class Stopping:
    """Asks for a stop with a savepoint as soon as the job runs."""

    def __init__(self, target: Path) -> None:
        self.target = target
        self.done: list[str] = []
        self._has_asked = False

    def __call__(self, master: JobMaster) -> None:
        if not self._has_asked and master.status is JobStatus.RUNNING:
            self._has_asked = True
            master.savepoint(
                "stop", CheckpointKind.STOP_SUSPEND, str(self.target),
                done=self.done.append, failed=self.done.append,
            )  # fmt: skip


def test_a_job_goes_on_in_another_backend_with_another_parallelism(tmp_path: Path) -> None:
    """From savepoint to savepoint, there and back; each says in which backend it was taken."""
    counts: dict[str, int] = {}
    restore: RestoreRequest | None = None
    rounds = [("hashmap", 1), ("rocksdb", 2), ("rocksdb", 1), ("hashmap", 3)]
    for number, (backend, parallelism) in enumerate(rounds):
        env = StreamExecutionEnvironment.get_execution_environment()
        env.set_parallelism(parallelism)
        words = env.from_collection(WORDS).uid("words").rebalance().map(lambda word: (word, 1))
        counted = words.uid("pairs").key_by(lambda pair: pair[0]).sum(1).uid("sums")
        counted.sink_to(CollectSink()).uid("out")
        config = JobConfig(
            parallelism=parallelism,
            max_parallelism=12,
            checkpoints=CheckpointConfig(interval_ms=100, storage=str(tmp_path / "storage")),
            state=StateConfig(backend=StateBackendKind(backend), directory=str(tmp_path / "local")),
        )
        is_last = number == len(rounds) - 1
        stopping = Stopping(tmp_path / f"savepoint {number}")
        result = run_in_process(
            env.get_job_graph("words"),
            config,
            job_id=JobId("words"),
            restore_from=restore,
            **({} if is_last else {"meanwhile": stopping}),  # type: ignore[arg-type]
        )
        assert (result.status, result.cause) == (JobStatus.FINISHED, "")
        for word, count in result.collected:
            assert count > counts.get(word, 0)
            counts[word] = count
        if not is_last:
            assert sum(counts.values()) < len(WORDS)
            savepoint = LocalStore(stopping.target)
            manifest = load(savepoint.read(SAVEPOINT_MANIFEST))
            assert isinstance(manifest, Manifest)
            assert manifest.state_backend == backend
            restore = RestoreRequest.parse(str(stopping.target))
    assert counts == {f"word {n}": 500 for n in range(40)}
    assert list((tmp_path / "local").iterdir()) == []


def test_the_backend_is_set_by_its_class_or_by_its_key() -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    assert isinstance(env.get_state_backend(), HashMapStateBackend)
    env.set_state_backend(EmbeddedRocksDBStateBackend())
    chosen = env.get_state_backend()
    assert isinstance(chosen, EmbeddedRocksDBStateBackend)
    assert chosen.get_db_storage_paths() is None
    env.configure(
        Configuration()
        .set("state.backend.type", "hashmap")
        .set("state.backend.rocksdb.localdir", "/somewhere")
    )
    assert isinstance(env.get_state_backend(), HashMapStateBackend)
    env.configure({"state.backend": "rocksdb"})
    chosen = env.get_state_backend()
    assert isinstance(chosen, EmbeddedRocksDBStateBackend)
    assert chosen.get_db_storage_paths() == ["/somewhere"]
    assert chosen.is_incremental_checkpoints_enabled()
    for key in ("state.backend.incremental", "execution.checkpointing.incremental"):
        env.configure({key: False})
        assert not env.get_state_backend().is_incremental_checkpoints_enabled()
        env.configure({key: True})
    assert not EmbeddedRocksDBStateBackend(False).settings.incremental
    assert EmbeddedRocksDBStateBackend().is_incremental_checkpoints_enabled()
    env.configure({"state.backend": "filesystem"})
    assert isinstance(env.get_state_backend(), HashMapStateBackend)


@pytest.mark.parametrize("backend", [HashMapStateBackend, EmbeddedRocksDBStateBackend])
def test_increments_are_a_setting_that_a_backend_without_a_choice_keeps(
    backend: type[StateBackend],
) -> None:
    env, groups = StreamExecutionEnvironment.get_execution_environment(), KeyGroupRange(0, 3)
    env.set_state_backend(backend())
    default = open_tables(env._job.state, groups)
    assert default.is_incremental is (backend is EmbeddedRocksDBStateBackend)
    for chosen in (True, False):
        env.configure({"execution.checkpointing.incremental": chosen})
        env.set_state_backend(backend())
        tables = open_tables(env._job.state, groups)
        assert tables.is_incremental is chosen
        tables.close()
    default.close()


def test_local_copies_are_set_by_their_keys_and_kept_with_any_backend() -> None:
    env = StreamExecutionEnvironment.get_execution_environment()

    def state() -> StateConfig:
        return env._job.state

    assert not state().local_copies
    for key in (
        "execution.checkpointing.local-backup.enabled",
        "execution.state-recovery.from-local",
        "state.backend.local-recovery",
    ):
        for text in ("true", "false"):
            env.configure(Configuration().set_string(key, text))
            assert state().local_copies is (text == "true")
    env.configure({"state.backend.local-recovery": True, "weir.local-backup.max-size": "2 gb"})
    for key in ("taskmanager.state.local.root-dirs", "execution.checkpointing.local-backup.dirs"):
        env.configure({key: f"/disk/{key}"})
        assert state().local_copies_directory == f"/disk/{key}"
    env.set_state_backend(EmbeddedRocksDBStateBackend())
    assert isinstance(env.get_state_backend(), EmbeddedRocksDBStateBackend)
    assert state().local_copies
    assert state().local_copies_bytes_max == 2 << 30
    assert state().local_copies_directory == f"/disk/{key}"
    for wrong in (
        {"execution.checkpointing.local-backup.dirs": "/one,/two"},
        {"execution.checkpointing.local-backup.dirs": ""},
        {"weir.local-backup.max-size": "0 b"},
        {"weir.local-backup.max-size": "2 pb"},
    ):
        with pytest.raises(ConfigError):
            env.configure(wrong)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda env: env.set_state_backend("rocksdb"), "takes a HashMapStateBackend"),
        (lambda env: env.configure({"state.backend.type": "forst"}), "state.backend.type cannot"),
        (lambda env: EmbeddedRocksDBStateBackend().set_db_storage_paths("a", "b"), "not 2"),
        (lambda env: StateConfig(backend="disk"), "hashmap, rocksdb"),
    ],
)
def test_a_backend_that_is_none_is_refused(call: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        call(StreamExecutionEnvironment.get_execution_environment())


def test_a_backend_that_is_not_installed_is_refused_when_it_is_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("weir.state.backends.choice.find_spec", lambda name: None)
    env = StreamExecutionEnvironment.get_execution_environment()
    with pytest.raises(ConfigError, match=r"pip install 'weir-streaming\[rocksdb\]'"):
        env.set_state_backend(EmbeddedRocksDBStateBackend())
    with pytest.raises(ConfigError, match=r"weir-streaming\[rocksdb\]"):
        env.configure({"state.backend.type": "rocksdb"})
    assert StateBackendKind(env.get_state_backend().settings.backend) == "hashmap"
