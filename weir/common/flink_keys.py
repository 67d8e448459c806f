"""Flink's configuration keys beside those that set something in Weir.

Three kinds: *former* names of keys that Weir has; *given* ones, with the values that describe what
Weir does anyhow; and those that mean nothing here, with what Weir has instead. The keys that set
something are those of ``weir.datastream.options``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from weir.errors import ConfigError

FORMER: Mapping[str, str] = {
    "execution.checkpointing.unaligned": "execution.checkpointing.unaligned.enabled",
    "execution.checkpointing.alignment-timeout": (
        "execution.checkpointing.aligned-checkpoint-timeout"
    ),
    "execution.savepoint.path": "execution.state-recovery.path",
    "execution.savepoint.ignore-unclaimed-state": (
        "execution.state-recovery.ignore-unclaimed-state"
    ),
    "execution.savepoint-restore-mode": "execution.state-recovery.claim-mode",
    "pipeline.operator-chaining": "pipeline.operator-chaining.enabled",
    "python.operator-chaining.enabled": "pipeline.operator-chaining.enabled",
    "restart-strategy": "restart-strategy.type",
    "state.backend": "state.backend.type",
    "state.backend.local-recovery": "execution.checkpointing.local-backup.enabled",
    "state.checkpoints.dir": "execution.checkpointing.dir",
    "state.checkpoints.num-retained": "execution.checkpointing.num-retained",
    "state.storage.fs.memory-threshold": "execution.checkpointing.data-inline-threshold",
    "taskmanager.state.local.root-dirs": "execution.checkpointing.local-backup.dirs",
}

POSITIVE = "a length of time above 0"


@dataclass(frozen=True, slots=True)
class Given:
    """The values of a key that say what Weir does anyhow, and the answer to any other value."""

    values: tuple[str, ...]  # In lower case, with - for _; POSITIVE: any but 0 and negative ones.
    otherwise: str


_CHECKPOINTING = "execution.checkpointing."
_HEAP = "state.backend.type is hashmap or rocksdb, and state has no changelog"

GIVEN: Mapping[str, Given] = {
    "execution.runtime-mode": Given(
        ("streaming",),
        "Weir runs streams, bounded ones too: a reduce emits after every record. Leave the mode "
        "out, or take the last record of each key yourself",
    ),
    "execution.attached": Given(
        ("true",), "env.execute() returns when the job ends; submit it to the control plane instead"
    ),
    "execution.buffer-timeout": Given(
        (POSITIVE, "0", "0 ms"), "records are sent after each slice, at the latest after some ms"
    ),
    "execution.buffer-timeout.interval": Given(
        (POSITIVE, "0", "0 ms"), "records are sent after each slice, at the latest after some ms"
    ),
    "execution.buffer-timeout.enabled": Given(
        ("true",), "records are sent after each slice, at the latest after some ms"
    ),
    _CHECKPOINTING + "storage": Given(
        ("filesystem", "jobmanager"),
        "execution.checkpointing.dir chooses: with a directory there, else in the driver's memory",
    ),
    _CHECKPOINTING + "checkpoints-after-tasks-finish.enabled": Given(
        ("true",), "checkpoints go on when some subtasks have ended"
    ),
    _CHECKPOINTING + "checkpoints-after-tasks-finish": Given(
        ("true",), "checkpoints go on when some subtasks have ended"
    ),
    _CHECKPOINTING + "unaligned.forced": Given(
        ("false",),
        "edges over which a barrier may not overtake keep it in its place; unaligned.enabled "
        "applies to the others",
    ),
    _CHECKPOINTING + "file-merging.enabled": Given(
        ("false",),
        "small state goes into the manifest: execution.checkpointing.data-inline-threshold",
    ),
    _CHECKPOINTING + "create-subdir": Given(("true",), "each job has a directory of its own"),
    "pipeline.auto-watermark-interval": Given(
        (POSITIVE,),
        "a watermark follows each slice of records; without event time leave out the "
        "WatermarkStrategy, and WatermarkStrategy.with_resolution places watermarks exactly",
    ),
    "pipeline.generic-types": Given(
        ("true",), "records without a type are Python objects; weir.state.allow-pickled"
    ),
    "pipeline.auto-generate-uids": Given(
        ("true",), "operators without .uid(...) are named by kind and order"
    ),
    "python.fn-execution.streaming.enabled": Given(("true",), "functions get records one by one"),
    "state.backend.changelog.enabled": Given(("false",), f"{_HEAP}; leave it out"),
    "state.changelog.enabled": Given(("false",), f"{_HEAP}; leave it out"),
    "state.checkpoint-storage": Given(
        ("filesystem", "jobmanager"),
        "execution.checkpointing.dir chooses: with a directory there, else in the driver's memory",
    ),
}

_SPARK = "Spark has it as a setting: spark-submit --conf, or SPARK_CONF_DIR"
_PLANE = "it belongs to the control plane, which has settings of its own (docs/operating.md)"
_SAVEPOINTS = "weir savepoint and weir stop write to <storage>/savepoints, or where --to says"

# Whole keys, and beginnings of keys, which end in a dot or a hyphen; the longest one that fits.
INSTEAD: Mapping[str, str] = {
    _CHECKPOINTING + "savepoint-dir": _SAVEPOINTS,
    "state.savepoints.dir": _SAVEPOINTS,
    _CHECKPOINTING + "interval-during-backlog": "the interval is the same during a backlog",
    _CHECKPOINTING + "write-buffer-size": "state is written in pieces of its own size",
    _CHECKPOINTING + "snapshot-compression": "state files are Arrow IPC, without compression",
    _CHECKPOINTING + "cleaner.": "the driver and weir clean delete what nothing needs",
    _CHECKPOINTING
    + "unaligned.max-subtasks-per-channel-state-file": "records under way are written "
    "in pieces beside the state",
    _CHECKPOINTING + "unaligned.interruptible-timers.enabled": "barriers pass between two timers",
    _CHECKPOINTING + "file-merging.": "small state goes into the manifest: "
    "execution.checkpointing.data-inline-threshold",
    "execution.target": "--master of weir run chooses: in-process, local[2], spark://host:7077",
    "execution.batch-": "Weir runs streams only",
    "execution.sorted-inputs.": "Weir runs streams only",
    "execution.shutdown-on-attached-exit": "Ctrl-C cancels the job of weir run",
    "execution.job-listeners": "env.execute() returns the job's history; the control plane has "
    "alerts and the REST API",
    "pipeline.jars": "no JVM code is needed: connectors are Python (weir.datastream.connectors)",
    "pipeline.classpaths": "no JVM code is needed: connectors are Python",
    "pipeline.cached-files": "read the file in open() of a function, by a path that all machines "
    "reach",
    "pipeline.closure-cleaner-level": "functions travel by cloudpickle",
    "pipeline.serialization-config": "types are declared in Python (weir.common.Types)",
    "pipeline.force-": "types are declared in Python (weir.common.Types)",
    "pipeline.default-kryo-serializers": "types are declared in Python (weir.common.Types)",
    "pipeline.registered-": "types are declared in Python (weir.common.Types)",
    "pipeline.watermark-alignment.": "WatermarkStrategy.with_watermark_alignment aligns splits",
    "pipeline.vertex-": "operators have names: .name(...)",
    "python.executable": "Spark's setting spark.pyspark.python, or PYSPARK_PYTHON",
    "python.client.executable": "start the script, or weir, with that Python",
    "python.pythonpath": "directories on the driver's path that workers have too are on theirs; "
    "else PYTHONPATH",
    "python.files": "modules beside the script are found where the file system is shared; else "
    "install them where workers start",
    "python.requirements": "install packages in the Python that workers start with",
    "python.archives": "install packages in the Python that workers start with",
    "python.fn-execution.": "slices of records are sized by their cost; map_batches and "
    "process_batches get whole slices",
    "python.state.": "state lies in the worker process itself; nothing has to be cached",
    "python.map-state.": "state lies in the worker process itself; nothing has to be cached",
    "python.execution-mode": "functions run in the worker process itself",
    "python.": "functions run in the worker process itself, in the driver's Python version",
    "state.backend.": f"{_HEAP}",
    "state.": f"{_HEAP}",
    "table.": "there is no Table API; map_batches and aggregate_batches work on Arrow columns",
    "sql-": "there is no SQL; map_batches and aggregate_batches work on Arrow columns",
    "jobmanager.execution.failover-strategy": "all subtasks restart together, from warm workers",
    "jobmanager.memory.": f"the driver is Spark's: spark.driver.memory. {_SPARK}",
    "jobmanager.": f"the driver is Spark's. {_SPARK}",
    "taskmanager.numberOfTaskSlots": "each slot is a Spark task: spark.executor.cores",
    "taskmanager.memory.": "taskmanager.memory.process.size limits the memory of each slot's "
    "worker process, and the caches of state are a share of it",
    "taskmanager.network.": "records are sent against credit; unaligned checkpoints bound what is "
    "under way",
    "taskmanager.": f"slots are tasks of Spark's executors. {_SPARK}",
    "task.cancellation.": "a stuck worker process is killed: heartbeat.timeout",
    "cluster.": f"the cluster is Spark's. {_SPARK}",
    "resourcemanager.": f"the cluster is Spark's. {_SPARK}",
    "akka.": "channels between slots are Weir's: weir.network.security",
    "pekko.": "channels between slots are Weir's: weir.network.security",
    "security.": "weir.network.security encrypts channels; secrets: env.get_secret",
    "kubernetes.": f"the cluster is Spark's. {_SPARK}",
    "yarn.": f"the cluster is Spark's. {_SPARK}",
    "high-availability": _PLANE,
    "high-availability.": _PLANE,
    "rest.": _PLANE,
    "web.": _PLANE,
    "metrics.": f"/metrics of the control plane has them, and {_PLANE}",
    "historyserver.": _PLANE,
    "jobstore.": _PLANE,
    "client.": _PLANE,
    "classloader.": "no JVM code is needed",
    "env.": _SPARK,
    "io.tmp.dirs": "spark.local.dir, or TMPDIR",
    "fs.": "a storage is a directory that all machines reach",
    "s3.": "a storage is a directory that all machines reach; object stores are not there yet",
}


def needs_nothing(key: str, value: Any) -> bool:
    """Whether a key with this value says what Weir does anyhow; False: it may set something.

    Raises:
        ConfigError: Flink has the key and Weir has not; the message says what it has instead.
    """
    given = GIVEN.get(key)
    if given is not None:
        text = str(getattr(value, "value", value)).strip().lower().replace("_", "-")
        if text in given.values or (POSITIVE in given.values and _is_positive(text)):
            return True
        raise ConfigError(f"{key} cannot be {value!r} here: {given.otherwise}")
    beginnings = [
        each for each in INSTEAD if key == each or (each[-1] in ".-" and key.startswith(each))
    ]
    if beginnings:
        best = max(beginnings, key=len)
        raise ConfigError(f"Weir has no {key}; instead: {INSTEAD[best]}")
    return False


def _is_positive(text: str) -> bool:
    number = text.split()[0].rstrip("abcdefghijklmnopqrstuvwxyz") if text else ""
    return number.isdecimal() and int(number) > 0
