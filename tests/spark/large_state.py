"""A job whose state is much larger than the memory of its slot, with a kill in its course."""

from pathlib import Path

from tests.spark.blobs import BLOB_BYTES, MAX_PARALLELISM, Blobs, Compared, Written, key_of
from tests.spark.harness import Listening, collect, environment
from tests.spark.hurried import HurriedSource
from tests.spark.watcher import Watcher
from weir.common import WatermarkStrategy
from weir.datastream import JobExecutionResult
from weir.datastream.connectors import DataGeneratorSource

PADDING_RATE = 20.0


def run_large_state(
    directory: Path, *, state_bytes: int, limit_bytes: int, padding: int
) -> tuple[JobExecutionResult, Watcher, int]:
    """Fill a state in RocksDB, kill the worker once a checkpoint has it, and compare each value.

    ``padding`` records, 20 a second, keep the job alive until then. The result has a row for each
    key: the key, whether its value is right, and the process that compared it. The number of keys
    is the last item.
    """
    keys = state_bytes // BLOB_BYTES + 100
    settings = {
        "taskmanager.memory.process.size": str(limit_bytes),
        "state.backend.type": "rocksdb",
        "state.backend.rocksdb.localdir": str(directory / "state"),
        "pipeline.max-parallelism": str(MAX_PARALLELISM),
    }
    env = environment(directory / "checkpoints", 2_000, parallelism=1, settings=settings)
    hurry = directory / "hurry"
    written = DataGeneratorSource(Written(keys), keys)
    compared = HurriedSource(Compared(padding), padding + keys, PADDING_RATE, hurry)
    streams = [
        env.from_source(source, WatermarkStrategy.no_watermarks(), name).uid(name)
        for source, name in ((written, "written"), (compared, "compared"))
    ]
    stream = streams[0].union(streams[1]).key_by(key_of).process(Blobs()).uid("blobs")
    with Watcher(hurry, state_bytes) as watcher, Listening(watcher):
        result = collect(stream, "large state")
    return result, watcher, keys
