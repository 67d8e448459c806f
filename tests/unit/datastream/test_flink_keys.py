"""Flink's configuration keys: each sets something, says what Weir does anyhow, or is refused."""

from typing import Any

import pytest

from weir.common import Configuration
from weir.common.flink_keys import FORMER, GIVEN, INSTEAD, POSITIVE
from weir.common.time import Duration
from weir.datastream import RuntimeExecutionMode, StreamExecutionEnvironment
from weir.datastream.options import OPTIONS
from weir.errors import ConfigError

# Keys that PyFlink scripts and Flink's own examples set, each with a value.
COMMON: dict[str, Any] = {
    "execution.attached": True,
    "execution.buffer-timeout": "100 ms",
    "execution.checkpointing.aligned-checkpoint-timeout": "30 s",
    "execution.checkpointing.dir": "/shared/checkpoints",
    "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
    "execution.checkpointing.incremental": False,
    "execution.checkpointing.interval": "10 s",
    "execution.checkpointing.local-backup.enabled": True,
    "execution.checkpointing.max-concurrent-checkpoints": 1,
    "execution.checkpointing.min-pause": "500 ms",
    "execution.checkpointing.mode": "EXACTLY_ONCE",
    "execution.checkpointing.num-retained": 3,
    "execution.checkpointing.storage": "filesystem",
    "execution.checkpointing.timeout": "10 min",
    "execution.checkpointing.tolerable-failed-checkpoints": 2,
    "execution.checkpointing.unaligned": True,
    "execution.runtime-mode": "STREAMING",
    "execution.savepoint.path": "/shared/savepoint",
    "execution.state-recovery.claim-mode": "NO_CLAIM",
    "heartbeat.interval": 1_000,
    "heartbeat.timeout": "50 s",
    "parallelism.default": 2,
    "pipeline.auto-watermark-interval": "200 ms",
    "pipeline.global-job-parameters": "input:/data/in,rate:10",
    "pipeline.max-parallelism": 128,
    "pipeline.name": "from keys",
    "pipeline.object-reuse": "true",
    "pipeline.operator-chaining": False,
    "restart-strategy": "fixed-delay",
    "restart-strategy.fixed-delay.attempts": 3,
    "restart-strategy.fixed-delay.delay": "5 s",
    "slot.request.timeout": "1 min",
    "state.backend.local-recovery": True,
    "state.backend.type": "hashmap",
    "state.checkpoint-storage": "filesystem",
}
REFUSED: dict[str, tuple[Any, str]] = {
    "execution.runtime-mode": ("BATCH", "a reduce emits after every record"),
    "execution.checkpointing.savepoint-dir": ("/s", "weir savepoint and weir stop"),
    "execution.target": ("remote", "--master of weir run"),
    "jobmanager.memory.process.size": ("1600m", r"spark\.driver\.memory"),
    "jobmanager.rpc.address": ("localhost", "the driver is Spark's"),
    "metrics.reporters": ("prom", "/metrics of the control plane"),
    "pipeline.auto-watermark-interval": (0, "a watermark follows each slice"),
    "pipeline.classpaths": ("file:///x.jar", "connectors are Python"),
    "pipeline.jars": ("file:///x.jar", "connectors are Python"),
    "python.archives": ("venv.zip", "in the Python that workers start with"),
    "python.client.executable": ("python3", "start the script, or weir, with that Python"),
    "python.executable": ("python3", r"spark\.pyspark\.python"),
    "python.execution-mode": ("thread", "in the worker process itself"),
    "python.files": ("helpers.py", "modules beside the script"),
    "python.fn-execution.bundle.size": (1_000, "slices of records"),
    "python.fn-execution.bundle.time": (1_000, "slices of records"),
    "python.requirements": ("requirements.txt", "install packages"),
    "python.state.cache-size": (1_000, "nothing has to be cached"),
    "rest.port": (8081, "the control plane"),
    "state.backend": ("forst", "it is one of hashmap, rocksdb"),
    "state.backend.changelog.enabled": (True, "state has no changelog"),
    "state.backend.rocksdb.memory.managed": (True, "hashmap or rocksdb"),
    "state.savepoints.dir": ("/s", "weir savepoint and weir stop"),
    "table.exec.mini-batch.enabled": (True, "no Table API"),
    "taskmanager.memory.flink.size": ("2g", r"taskmanager\.memory\.process\.size limits"),
    "taskmanager.numberOfTaskSlots": (4, r"spark\.executor\.cores"),
    "yarn.application.queue": ("default", "the cluster is Spark's"),
}


def configured(values: dict[str, Any]) -> StreamExecutionEnvironment:
    return StreamExecutionEnvironment.get_execution_environment(Configuration(values))


def test_the_common_keys_are_more_than_half_a_hundred() -> None:
    assert len(COMMON.keys() | REFUSED.keys()) >= 55


def test_common_keys_are_taken_together_and_have_their_effect() -> None:
    env = configured(COMMON)
    checkpoints = env.get_checkpoint_config()
    assert env.get_checkpoint_interval() == 10_000
    assert checkpoints.get_checkpoint_storage() == "/shared/checkpoints"
    assert checkpoints.is_unaligned_checkpoints_enabled()
    assert env.get_parallelism() == 2
    assert not env.is_chaining_enabled()
    assert env.get_job_parameter("input", "") == "/data/in"
    assert env.get_config().is_object_reuse_enabled()
    graph_options = env._options()
    assert (graph_options.restore, graph_options.claims) == ("/shared/savepoint", False)
    assert env._config(None).restart.attempts_max == 3


@pytest.mark.parametrize("key", COMMON)
def test_each_common_key_is_taken_by_itself(key: str) -> None:
    configured({key: COMMON[key]})


@pytest.mark.parametrize("key", REFUSED)
def test_a_key_without_a_meaning_here_says_what_weir_has_instead(key: str) -> None:
    value, told = REFUSED[key]
    with pytest.raises(ConfigError, match=told) as refused:
        configured({key: value})
    assert key in str(refused.value)


def test_values_may_be_objects() -> None:
    configured({"execution.runtime-mode": RuntimeExecutionMode.STREAMING})
    with pytest.raises(ConfigError, match="Weir runs streams"):
        configured({"execution.runtime-mode": RuntimeExecutionMode.BATCH})
    assert (
        configured(
            {"execution.checkpointing.interval": Duration.of_seconds(2)}
        ).get_checkpoint_interval()
        == 2_000
    )
    parameters = {"rate": 10}
    env = configured({"pipeline.global-job-parameters": parameters})
    assert env.get_job_parameter("rate", "") == "10"


@pytest.mark.parametrize("wrong", ["input", "a:1,b", ":1"])
def test_job_parameters_that_are_no_pairs_are_refused(wrong: str) -> None:
    with pytest.raises(ConfigError, match="key:value,key:value"):
        configured({"pipeline.global-job-parameters": wrong})


def test_a_savepoint_can_be_claimed_by_key() -> None:
    env = configured(
        {"execution.savepoint.path": "/s", "execution.savepoint-restore-mode": "CLAIM"}
    )
    assert env._options().claims
    with pytest.raises(ConfigError, match="CLAIM or NO_CLAIM"):
        configured({"execution.savepoint-restore-mode": "LEGACY"})


def test_every_key_is_in_one_table() -> None:
    tables = [set(OPTIONS), set(FORMER), set(GIVEN), set(INSTEAD)]
    assert sum(map(len, tables)) == len(set().union(*tables))
    assert set(FORMER.values()) <= set(OPTIONS)
    assert all(each.values and each.otherwise for each in GIVEN.values())
    assert POSITIVE in GIVEN["pipeline.auto-watermark-interval"].values


def test_a_mistyped_key_is_not_taken_for_one_of_flinks() -> None:
    for key in OPTIONS:
        with pytest.raises(ConfigError, match="there is no setting"):
            configured({f"{key}x": "1"})
