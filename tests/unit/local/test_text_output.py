"""Text files of a job whose attempts fail: each record is in them once."""

from collections import Counter
from pathlib import Path
from typing import Any, ClassVar

from weir.common import Encoder, RestartStrategies, WatermarkStrategy
from weir.datastream import StreamExecutionEnvironment
from weir.datastream.connectors import DataGeneratorSource, FileSink
from weir.datastream.execution import ExecutionOptions, overriding

COUNT, FAILS_AT = 900, (300, 700)


class Line:
    """Fails at some records, once each; there is one process."""

    failed: ClassVar[Counter[int]] = Counter()

    def __call__(self, n: int) -> str:
        if n in FAILS_AT and not Line.failed[n]:
            Line.failed[n] += 1
            raise OSError(f"record {n}")
        return f"record {n}"


def test_each_record_is_written_once_although_attempts_fail(tmp_path: Path) -> None:
    Line.failed.clear()
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(2)
    env.enable_checkpointing(20).set_restart_strategy(RestartStrategies.fixed_delay_restart(5, 0))
    env.get_checkpoint_config().set_checkpoint_storage(str(tmp_path / "checkpoints"))
    source: Any = DataGeneratorSource(lambda n: n, COUNT, rows_per_second=3_000)
    env.from_source(source, WatermarkStrategy.no_watermarks(), "numbers").map(Line()).sink_to(
        FileSink.for_row_format(tmp_path / "out", Encoder.simple_string_encoder())
    )
    with overriding(ExecutionOptions(master="in-process")):
        history = env.execute("lines").history
    written = Counter(
        line
        for path in (tmp_path / "out").iterdir()
        if path.is_file()
        for line in path.read_text().splitlines()
    )
    assert written == Counter(f"record {n}" for n in range(COUNT))
    assert sum(Line.failed.values()) == 2
    attempts = {path.name.split(".")[1] for path in (tmp_path / "out").glob("part-*")}
    assert len(attempts) >= 2, f"output of one attempt only: {history}"
    assert not list((tmp_path / "out" / "_pending").rglob("*.text"))
