"""One job after another dies and is submitted again from the one checkpoint that is left of it.

Sources of different parallelism, keys, a rebalanced exchange, loads of random size with checksums,
unaligned checkpoints as often as they complete, and no restarts: what one checkpoint stores has to
be enough. The seed sets sizes of loads, and when which worker dies.
"""

import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.spark.functions import Reading, Tagging
from tests.spark.harness import (
    Count,
    Killer,
    Listening,
    Recorder,
    change,
    count,
    numbered,
    rows_of,
    to_files,
)
from tests.spark.hurried import HurriedSource
from tests.spark.loads import Checking, Loading
from tests.spark.modes import latest, numbers_with_gaps, prepare, stored_ends
from weir.common import Configuration, WatermarkStrategy
from weir.config import ChannelConfig
from weir.datastream.execution import ExecutionOptions, overriding
from weir.errors import JobFailedError
from weir.ids import CheckpointId

pytestmark = [pytest.mark.usefixtures("local")]

SEED = 20
DEATHS = 3
PARALLELISMS = {"many": 3, "some": 2, "one": 1}  # By source.
N = 6_000  # Records of each source, which would last for some six seconds,
RATE = 1_200.0  # as many a second, which is more than the slow operator takes
PAUSE_S = 0.001  # with this for each record, until the last job hurries.
CREDIT_BYTES = 128 << 10  # Of each channel: a few batches, so that senders wait as well.
EXACT = Count(lost=0, duplicated=0, out_of_order=0)


def build(env: Any, output: Path, hurry: Path) -> None:
    """The sources' union, loaded, numbered by key, rebalanced, checked, in files."""
    first, *others = (
        env.from_source(
            HurriedSource(Tagging(source), N, RATE, hurry),
            WatermarkStrategy.no_watermarks(),
            source,
        )
        .uid(source)
        .set_parallelism(parallelism)
        .map(Reading())
        .uid(f"reading {source}")
        .set_parallelism(parallelism)
        .map(Loading(SEED))
        .uid(f"loading {source}")
        .set_parallelism(parallelism)
        for source, parallelism in PARALLELISMS.items()
    )
    rebalanced = numbered(first.union(*others)).rebalance()
    to_files(rebalanced.map(Checking(PAUSE_S, hurry)).uid("checking"), output)


def test_each_job_goes_on_from_the_only_checkpoint_left(tmp_path: Path) -> None:
    hurry, restore, chance = tmp_path / "hurry", None, random.Random(SEED)
    ends: set[str] = set()
    for run in range(DEATHS + 1):
        env = prepare(tmp_path, 0, max(PARALLELISMS.values()), interval_ms=50)
        env.configure(Configuration({"restart-strategy.type": "none"}))
        change(env, channels=ChannelConfig(credit_bytes=CREDIT_BYTES))
        build(env, tmp_path / "output", hurry)
        with overriding(ExecutionOptions(restore=restore)):
            if run == DEATHS:
                hurry.touch()
                env.execute("resubmitted")
                break
            after, index = chance.randint(2, 10), chance.randrange(max(PARALLELISMS.values()))
            heard, death = Recorder(), Killer("worker", after_checkpoints=after, index=index)
            with (
                Listening(heard, death),
                pytest.raises(JobFailedError, match="killed by signal 9"),
            ):
                env.execute("resubmitted")
        assert death.killed is not None
        restore = latest(tmp_path)
        ends |= stored_ends(heard, CheckpointId(int(restore.rpartition("-")[2])))
        delete_all_but(tmp_path, restore)
    assert ends == {"in", "out"}, "records were not under way at both ends of channels"
    rows = rows_of(tmp_path / "output")
    assert count(rows, dict.fromkeys(PARALLELISMS, N)) == EXACT
    assert not numbers_with_gaps(rows)


def delete_all_but(root: Path, kept: str) -> None:
    """Delete every checkpoint but one, of all jobs."""
    others = [p for p in (root / "checkpoints").glob("*/chk-*") if str(p) != kept]
    assert others, "there was but one"
    for path in others:
        shutil.rmtree(path)
