"""A checkpoint of either mode restores a job of the other, which goes on exactly."""

from collections import Counter
from pathlib import Path

import pytest

from tests.spark.functions import Slowing
from tests.spark.harness import (
    SOURCES,
    Killer,
    Listening,
    Recorder,
    numbered,
    rows_of,
    tagged_union,
    to_files,
    wrong_numbers,
)
from tests.spark.modes import KillerUnderWay, latest, prepare, under_way
from weir.common import Configuration
from weir.datastream.execution import ExecutionOptions, overriding
from weir.errors import JobFailedError

pytestmark = [pytest.mark.usefixtures("local")]

N = 4_000  # Records of each of both sources,
RATE = 1_500.0  # a second, which is more than the slow operator takes
PAUSE_S = 0.001  # with this for each record.


def test_unaligned_then_aligned_then_unaligned(tmp_path: Path) -> None:
    """Two jobs are killed under way; each next one restores their newest checkpoint."""
    restore = None
    for timeout_ms, is_last in ((0, False), (None, False), (0, True)):
        env = prepare(tmp_path, timeout_ms)
        env.configure(Configuration({"restart-strategy.type": "none"}))
        stream = numbered(tagged_union(env, N, RATE)).map(Slowing(PAUSE_S)).uid("slow")
        to_files(stream, tmp_path / "output")
        heard = Recorder()
        ending = Killer("worker") if timeout_ms is None else KillerUnderWay()
        with (
            Listening(heard, *([] if is_last else [ending])),
            overriding(ExecutionOptions(restore=restore)),
        ):
            if is_last:
                env.execute("modes")
                break
            with pytest.raises(JobFailedError, match="killed by signal 9"):
                env.execute("modes")
        restore = latest(tmp_path)
        stored = under_way(heard)[int(restore.rpartition("-")[2])]
        assert (stored > 0) == (timeout_ms is not None), stored
    rows = rows_of(tmp_path / "output")
    records = Counter((row[0], row[1]) for row in rows)
    assert records == Counter({(s, i): 1 for s in SOURCES for i in range(N)})
    assert not wrong_numbers(rows)
