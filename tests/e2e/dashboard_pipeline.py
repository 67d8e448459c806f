"""A pipeline whose barriers can be watched: its mappers hold records, and so barriers, on request.

Parameters: ``output``, a directory; ``hold``, a file. While the file is there and empty, every
subtask of ``hold`` but the first one stands still. A time in it (seconds since the epoch) lets them
go one after the other: subtask ``i`` goes on ``i`` times ``STEP_S`` after it. Who stands still says
so by a file beside it.
"""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from weir.common import Types, WatermarkStrategy
from weir.datastream import (
    KeyedProcessFunction,
    MapFunction,
    RuntimeContext,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
)
from weir.datastream.connectors import DataGeneratorSource, ParquetSink

PARALLELISM = 4
STEP_S = 1.7  # Three of them are the alignment.
RATE = 80.0  # Every subtask looks at the file twenty times a second.
ROW = Types.ROW_NAMED(["sensor", "position", "number"], [Types.INT(), Types.LONG(), Types.LONG()])


class Hold(MapFunction):
    """Lets records through, but not while it is told to hold them."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def open(self, runtime_context: RuntimeContext) -> None:
        self._subtask = runtime_context.get_index_of_this_subtask()

    def map(self, value: Any) -> Any:
        is_new = True
        while self._subtask > 0 and self._is_held():
            if is_new:
                mark_of(self._file, self._subtask).touch()
            is_new = False
            time.sleep(0.02)
        return value

    def _is_held(self) -> bool:
        try:
            released_at = self._file.read_text()
        except FileNotFoundError:
            return False
        return not released_at or time.time() < float(released_at) + self._subtask * STEP_S


def mark_of(hold: Path, subtask: int) -> Path:
    """The file by which a subtask says that it has begun to hold records."""
    return hold.with_name(f"{hold.name}-{subtask}")


def who_holds(hold: Path) -> list[Path]:
    """The marks of all subtasks that do."""
    return list(hold.parent.glob(f"{hold.name}-*"))


class Count(KeyedProcessFunction):
    """Numbers the records of each sensor."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self._number = runtime_context.get_state(ValueStateDescriptor("number", Types.LONG()))

    def process_element(self, value: int, ctx: Any) -> Iterator[tuple[int, int, int]]:
        number = (self._number.value() or 0) + 1
        self._number.update(number)
        yield sensor(value), value, number


def sensor(position: int) -> int:
    """Whose record it is."""
    return position % 64


def same(value: Any) -> Any:
    """For ``map``, which declares the type."""
    return value


def main() -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    readings = env.from_source(
        DataGeneratorSource(same, rows_per_second=RATE),
        WatermarkStrategy.no_watermarks(),
        "readings",
    ).uid("readings")
    held = readings.map(Hold(Path(env.get_job_parameter("hold", "hold")))).uid("hold")
    counts = held.key_by(sensor).process(Count()).uid("count")
    output = env.get_job_parameter("output", "output")
    counts.map(same, ROW).uid("rows").sink_to(ParquetSink(Path(output))).uid("files")
    env.execute("watched")


if __name__ == "__main__":
    main()
